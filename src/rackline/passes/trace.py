"""Traced numbers: a formula of the library, called with them, writes itself down as lines of JavaScript.

A traced number answers arithmetic, comparisons and NumPy's functions with another one and the line that computes it. So
each formula stands once, in Python, and the page that needs it in a browser gets what that Python did. A formula can be
traced if its only branches on a traced number are `np.where`, `np.minimum` and the like; `np.any` and `np.all` of one
are refused, since their value is not known yet. `features.may_occur` of one is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from rackline.errors import InputError

_BINARY = {
    "add": "{0}+{1}",
    "subtract": "{0}-{1}",
    "multiply": "{0}*{1}",
    "divide": "{0}/{1}",
    "power": "{0}**{1}",
    "minimum": "Math.min({0},{1})",
    "maximum": "Math.max({0},{1})",
    "greater": "{0}>{1}",
    "greater_equal": "{0}>={1}",
    "less": "{0}<{1}",
    "less_equal": "{0}<={1}",
    "bitwise_and": "{0}&&{1}",
    "logical_and": "{0}&&{1}",
}
_UNARY = {
    "negative": "-{0}",
    "sqrt": "Math.sqrt({0})",
    "floor": "Math.floor({0})",
    "ceil": "Math.ceil({0})",
    "absolute": "Math.abs({0})",
    "exp": "Math.exp({0})",
    "log": "Math.log({0})",
    "log2": "Math.log2({0})",
    "rint": "rint({0})",
}
_UFUNCS = {**_BINARY, **_UNARY}


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one function; an expression that occurred already is not computed twice."""

    names: dict[str, str] = field(default_factory=dict[str, str])

    def number(self, code: str) -> Traced:
        """The number that an expression computes."""
        return Traced(self, self.names.setdefault(code, f"t{len(self.names)}"))

    def body(self) -> str:
        """All of them in order."""
        return "".join(f"const {name}={code};" for code, name in self.names.items())


@dataclass(frozen=True, slots=True, eq=False)
class Traced(NDArrayOperatorsMixin):
    """A number whose value is known where the lines run.

    Args:
        lines: what its value was computed with.
        code: its name there.
    """

    lines: Lines
    code: str

    def _by(self, name: str, *values: Any) -> Traced:
        return self.lines.number(_UFUNCS[name].format(*(literal(value) for value in values)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *values: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc.__name__ not in _UFUNCS:
            return NotImplemented
        return self._by(ufunc.__name__, *values)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: Any) -> Any:
        match function.__name__:
            case "where":
                return self.lines.number("{}?{}:{}".format(*(literal(value) for value in args)))
            case "clip":
                return self._by("minimum", self._by("maximum", args[0], args[1]), args[2])
            case _:
                return NotImplemented

    def __bool__(self) -> bool:
        raise InputError(what="a traced number", given="a branch on its value", allowed="np.where")


def is_traced(value: object) -> bool:
    """Whether a number is one that is written down."""
    return isinstance(value, Traced)


def literal(value: Any) -> str:
    """A number in JavaScript: the name of a traced one, all digits of another."""
    if isinstance(value, Traced):
        return value.code
    number = float(value)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0.0 else "(-Infinity)"
    text = str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    return f"({text})" if number < 0.0 else text


def function(
    parameters: Sequence[str], formula: Callable[..., Sequence[Any] | Mapping[str, Any] | Any], name: str = ""
) -> str:
    """A formula as a JavaScript function.

    Args:
        parameters: names of its arguments.
        formula: called once, with a traced number for each. What it returns is returned there: a number, an array
            or an object of them.
        name: of the function.
    """
    lines = Lines()
    found = formula(*(Traced(lines, parameter) for parameter in parameters))
    if isinstance(found, Mapping):
        named = cast(Mapping[str, Any], found)
        result = "{" + ",".join(f"{key}:{literal(value)}" for key, value in named.items()) + "}"
    elif isinstance(found, Sequence):
        result = "[" + ",".join(map(literal, cast(Sequence[Any], found))) + "]"
    else:
        result = literal(found)
    return f"function {name}({','.join(parameters)}){{{lines.body()}return {result}}}"
