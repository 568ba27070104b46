"""Values of one quantity of a sweep, lists, steps or draws; and arithmetic of columns, texts that are never code."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, assert_never, cast, get_args

import numpy as np

from rackline.errors import InputError, nearest_name, unknown_name
from rackline.passes.features import Array

LONGEST = 1000  # characters of an expression
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
    "sqrt": (np.sqrt, 1),
    "exp": (np.exp, 1),
    "log": (np.log, 1),
    "log2": (np.log2, 1),
    "log10": (np.log10, 1),
    "abs": (np.abs, 1),
    "floor": (np.floor, 1),
    "ceil": (np.ceil, 1),
    "where": (np.where, 3),
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Mod: np.mod,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
    ast.Not: np.logical_not,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_TESTS = (ast.Compare, ast.BoolOp)
_ALLOWED = (
    f"numbers and names of columns with + - * / ** %, < <= > >= == !=, and, or, not, and {', '.join(_FUNCTIONS)}; "
    "quantities are in SI units"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression over columns.

    Args:
        text: as it was written.
        names: columns that it reads.
        is_test: whether it is true or false.

    Example:
        >>> found = read_expression("usd * 2 + min(a, b)", "cost")
        >>> float(found.value({"usd": 1.0, "a": 3.0, "b": 4.0}))
        5.0
    """

    text: str
    names: tuple[str, ...]
    is_test: bool

    def value(self, columns: Mapping[str, Any]) -> Array:
        """The expression of these columns, arrays that broadcast together; what is not a number is NaN.

        Args:
            columns: name → array or scalar.
        """
        with np.errstate(all="ignore"):
            return np.asarray(_value(ast.parse(self.text, mode="eval").body, columns))


def read_expression(text: Any, where: str) -> Expression:
    """Read an expression.

    Args:
        text: such as "usd_per_mtok_output * 1.2".
        where: which it is, for errors.

    Raises:
        InputError: anything but arithmetic of columns.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise InputError(what=where, given=text, allowed=f"an expression as a text, of {_ALLOWED}")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(what=where, given=text, allowed=_ALLOWED) from None
    names: dict[str, None] = {}
    _check(body, text, where, names)
    return Expression(text=text.strip(), names=tuple(names), is_test=_is_test(body))


def check_columns(expression: Expression, known: Iterable[str], where: str) -> None:
    """Refuse an expression that reads a column which is not there.

    Raises:
        InputError: with the nearest name.
    """
    there = list(known)
    for name in expression.names:
        if name not in there:
            raise unknown_name(where, name, there)


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, _TESTS) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _column(node: ast.AST) -> str | None:
    """The name of a column, which may have dots and numbers of list entries; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _column(node.value)
        return None if head is None else f"{head}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
        head = _column(node.value)
        return None if head is None else f"{head}.{node.slice.value}"
    return None


def _check(node: ast.AST, text: str, where: str, names: dict[str, None], depth: int = 0) -> None:
    refused = InputError(what=where, given=text, allowed=_ALLOWED)
    if depth > 50:
        raise refused
    column = _column(node)
    if column is not None:
        names[column] = None
        return
    inside: list[ast.expr] = []
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return
        case ast.BinOp() if type(node.op) in _OPERATORS:
            inside = [node.left, node.right]
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            inside = [node.operand]
        case ast.BoolOp():
            inside = node.values
        case ast.Compare() if all(type(one) in _OPERATORS for one in node.ops):
            inside = [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            if len(node.args) != _FUNCTIONS[name][1]:
                raise InputError(what=where, given=text, allowed=f"{_FUNCTIONS[name][1]} values in {name}(...)")
            inside = node.args
        case _:
            raise refused
    for one in inside:
        _check(one, text, where, names, depth + 1)


def _value(node: ast.AST, columns: Mapping[str, Any]) -> Any:
    column = _column(node)
    if column is not None:
        return columns[column]
    match node:
        case ast.Constant():
            return np.float64(float(node.value))  # pyright: ignore[reportArgumentType] - checked when it was read
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, columns), _value(node.right, columns))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, columns))
        case ast.BoolOp():
            parts = [np.asarray(_value(one, columns), dtype=bool) for one in node.values]
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return reduce(join, parts)
        case ast.Compare():
            values = [_value(one, columns) for one in (node.left, *node.comparators)]
            tests = [_OPERATORS[type(op)](a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False)]
            return reduce(np.logical_and, tests)
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name][0](*(_value(one, columns) for one in node.args))
        case _:
            raise TypeError(f"{ast.dump(node)} was not checked")


Steps = Literal["linear", "log"]
Spread = Literal["uniform", "log_uniform", "normal", "log_normal"]
STEPS: tuple[Steps, ...] = get_args(Steps)
SPREADS: tuple[Spread, ...] = get_args(Spread)
MOST_VALUES = 10_000_000
FORMS = (
    "one value, a list of values, { linear = [FROM, TO], num = N }, { log = [FROM, TO], num = N }, or, drawn by "
    "[sample], { uniform = [FROM, TO] }, { log_uniform = [FROM, TO] }, { normal = [MEAN, DEVIATION] } or "
    "{ log_normal = [MEDIAN, SPREAD OF THE LOGARITHM] }"
)
Reader = Callable[[Any, str], Any]
"""Reads one value of a quantity, a number with a unit or a text: (value, name) → SI number, text or the like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """A quantity that is drawn.

    Args:
        spread: its distribution.
        first, second: the ends, or mean and standard deviation, or median and standard deviation of the logarithm.
        whole: rounded to whole numbers.
    """

    spread: Spread
    first: float
    second: float
    whole: bool = False

    def at(self, quantiles: Array) -> Array:
        """Values at quantiles between 0 and 1, any shape."""
        from scipy.special import ndtri

        match self.spread:
            case "uniform":
                found = self.first + (self.second - self.first) * quantiles
            case "log_uniform":
                found = self.first * (self.second / self.first) ** quantiles
            case "normal":
                found = self.first + self.second * ndtri(quantiles)
            case "log_normal":
                found = self.first * np.exp(self.second * ndtri(quantiles))
            case _:
                assert_never(self.spread)
        return np.rint(found) if self.whole else found


Values = tuple[Any, ...]


def is_range(given: Any) -> bool:
    """Whether what stands in a sweep file is several values or a distribution, and not one value."""
    return isinstance(given, Mapping | list)


def read_range(given: Any, name: str, read: Reader, *, whole: bool = False) -> Values | Draws:
    """The values of a quantity, or the distribution that it is drawn from.

    Args:
        given: what stands in the file.
        name: of the quantity, for errors.
        read: reads one value.
        whole: whether values are whole numbers: steps are rounded, and each value counts once.

    Raises:
        InputError: another form, no values, too many, ends that are equal or that a logarithm does not have.
    """
    if isinstance(given, list):
        found = tuple(read(one, name) for one in cast("list[Any]", given))
        if not found:
            raise InputError(what=name, given="an empty list", allowed=FORMS)
        again = next((one for at, one in enumerate(found) if one in found[:at]), None) if len(found) < 1000 else None
        if again is not None:
            raise InputError(what=name, given=again, allowed="each value once")
        return found
    table = cast("Mapping[str, Any]", given)
    forms = [key for key in table if key in (*STEPS, *SPREADS)]
    if len(forms) != 1:
        raise InputError(
            what=name, given=dict(table), allowed=FORMS, nearest=nearest_name(next(iter(table), ""), [*STEPS, *SPREADS])
        )
    form = forms[0]
    others = set(table) - {form} - ({"num"} if form in STEPS else set[str]())
    if others:
        raise InputError(what=name, given=sorted(others)[0], allowed=FORMS)
    ends = table[form]
    pair = cast("list[Any]", ends) if isinstance(ends, list) else []
    if len(pair) != 2:
        raise InputError(what=f"{name} {form}", given=table[form], allowed="two values, such as [1, 64]")
    if form in STEPS:
        low, high = _numbers([read(one, name) for one in pair], name, form)
        return _steps("log" if form == "log" else "linear", low, high, _num(table.get("num"), name), name, whole=whole)
    return _draws(cast("Spread", form), pair, name, read, whole=whole)


def _numbers(values: Sequence[Any], name: str, form: str) -> tuple[float, float]:
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        raise InputError(what=f"{name} {form}", given=list(values), allowed="numbers; names and texts are listed")
    return float(values[0]), float(values[1])


def _num(given: Any, name: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 2 <= given <= MOST_VALUES:
        allowed = f"a whole number of values, 2 to {MOST_VALUES:,}"
        raise InputError(what=f"{name} num", given="nothing" if given is None else given, allowed=allowed)
    return given


def _steps(form: Steps, low: float, high: float, num: int, name: str, *, whole: bool) -> Values:
    if low == high or (form == "log" and not (low > 0 and high > 0)):
        allowed = "two different ends" + (" above zero" if form == "log" else "")
        raise InputError(what=f"{name} {form}", given=[low, high], allowed=allowed)
    found = np.geomspace(low, high, num) if form == "log" else np.linspace(low, high, num)
    if not whole:
        return tuple(found.tolist())
    rounded = np.rint(found)
    return tuple(int(one) for one in rounded[np.sort(np.unique(rounded, return_index=True)[1])])


def _draws(spread: Spread, pair: list[Any], name: str, read: Reader, *, whole: bool) -> Draws:
    def plain(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(what=f"{name} {spread}", given=value, allowed="a number without a unit")
        return float(value)

    if spread == "log_normal":  # the spread of a logarithm has no unit
        first, second = _numbers([read(pair[0], name), plain(pair[1])], name, spread)
    else:
        first, second = _numbers([read(one, name) for one in pair], name, spread)
    fine = {
        "uniform": second > first,
        "log_uniform": second > first > 0,
        "normal": second > 0,
        "log_normal": first > 0 and second > 0,
    }[spread]
    if not fine:
        allowed = {
            "uniform": "a smaller and a larger value",
            "log_uniform": "a smaller and a larger value above zero",
            "normal": "a mean and a deviation above zero",
            "log_normal": "a median and a spread above zero",
        }[spread]
        raise InputError(what=f"{name} {spread}", given=pair, allowed=allowed)
    return Draws(spread=spread, first=first, second=second, whole=whole)
