"""The values of one quantity of a sweep: a list, steps between two ends, or draws from a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, cast, get_args

import numpy as np

from rackline.errors import InputError, nearest_names
from rackline.passes.features import Array

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
        near = nearest_names(next(iter(table), ""), [*STEPS, *SPREADS], 1)
        raise InputError(what=name, given=dict(table), allowed=FORMS, nearest=near[0] if near else None)
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
