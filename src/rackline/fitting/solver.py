"""The fit behind all fitted numbers: parameters with priors, errors of what was measured, groups left out in turn.

    minimise  sum over cases of rho(error) + sum over parameters of rho(noise · (x - prior) / spread)

An error is ln(predicted / measured), so that a case twice too slow weighs as much as one twice too fast; rho is the
soft L1 loss, quadratic below `noise` and linear beyond, so that outliers count little; x is the value, its logarithm or
its logit. A parameter that no case depends on stays at its prior. State is passed: a fit keeps nothing between calls.

The solver stops within its tolerance, and the last bits of the errors, which depend on the processor, move the place
where it stops. So slopes are taken over steps that are wide against rounding errors, and x is rounded in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from rackline.passes.features import Array

SOFT_L1_SCALE = 0.1
"""Log error beyond which the loss of a case is linear instead of quadratic."""
_STEP = 2.0**-17
"""Step of x for a slope: the rounding errors of two residuals over it are 1e-11, those of SciPy's own step 1e-8."""
_GRID = 2.0**-20
"""Steps of x from its start to which it is rounded, a millionth of a value in logarithms: less than any fit knows."""
_FALLEN = 7.0
"""Logarithm of the start over a value (a thousand) from which on the value may be rounded to 0."""
_UNNOTICED = 1e-4
"""Log error that no case exceeds when such a value is doubled: the cases say that it is small, but not how small."""
Values = dict[str, float]
Form = Literal["log", "share", "plain"]
Loss = Literal["robust", "robust cases", "squares"]
_ROBUST: Mapping[Loss, tuple[bool, bool]] = {
    "robust": (True, False),
    "robust cases": (False, True),
    "squares": (False, False),
}
"""Loss → whether SciPy's loss of all residuals is robust, and whether that of the cases is made so."""
Done = Callable[[str, int, int], None]
Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)
Held = TypeVar("Held")
Fitted = TypeVar("Fitted")
Scored = TypeVar("Scored")


def _logit(value: float, unit: float) -> float:
    value = min(max(value, 1e-4), 1.0 - 1e-4)
    return float(np.log(value / (1.0 - value)))


def _within(x: float) -> float:
    """A step of the solver may lie beyond what an exponential holds."""
    return min(max(x, -60.0), 30.0)


_CODES: Mapping[Form, tuple[Callable[[float, float], float], Callable[[float], float]]] = {
    "plain": (lambda value, unit: value / unit, lambda x: x),
    "log": (lambda value, unit: float(np.log(max(value, 1e-18))) / unit, lambda x: float(np.exp(_within(x)))),
    "share": (_logit, lambda x: float(1.0 / (1.0 + np.exp(-_within(x))))),
}
"""Form → (value, unit) → x, and x times the unit → value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A fitted number.

    Args:
        name: key of its value.
        start: where the search begins.
        prior: value that it is drawn to; None for `start`.
        spread: distance from the prior that costs as much as an error of `noise`, in units of x; None: it is not drawn.
        low, high: bounds of the value; None for none.
        form: x is ln(value / unit), the logit of the value, or value / unit.
        unit: of x: what the value is divided by, or, of the logarithm, what that is divided by where `alike` is empty.
        alike: parameters of this name are drawn to each other instead of to a prior.
    """

    name: str
    start: float
    prior: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    form: Form = "log"
    unit: float = 1.0
    alike: str = ""

    def encode(self, value: float) -> float:
        """Value → x."""
        return _CODES[self.form][0](value, self.unit)

    def decode(self, x: float) -> float:
        """x → value."""
        return _CODES[self.form][1](x * self.unit)

    def slope(self, value: float) -> float:
        """d value / d x, at a value."""
        return self.unit * {"plain": 1.0, "log": value, "share": value * (1.0 - value)}[self.form]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A minimum.

    Args:
        values: of the parameters by name.
        x: of the parameters, shape (parameters,).
        cost: what was minimised.
        slopes: of all residuals, those of the priors last, shape (residuals, parameters).
        residuals: x → residuals.
        scale: of residuals: what an error of `noise` counts.
    """

    values: Values
    x: Array
    cost: float
    slopes: Array
    residuals: Callable[[Array], Array]
    scale: float

    def spreads(self, step: float | None = None) -> Array:
        """Width of each x given cases and priors: root of the diagonal of the inverse of J'J [units of x].

        Args:
            step: of central differences in x for slopes of jumping errors; None takes those of the solver.
        """
        slopes = self.slopes
        if step is not None:
            columns = [
                (self.residuals(self.x + move) - self.residuals(self.x - move)) / (2.0 * step)
                for move in np.eye(len(self.x)) * step
            ]
            slopes = np.array(columns).T
        slopes = slopes / self.scale
        return np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))


def fit(
    parameters: Sequence[Parameter],
    errors: Callable[[Values], Array],
    *,
    noise: float = SOFT_L1_SCALE,
    loss: Loss = "robust",
    around: float | None = None,
    slopes: Callable[[Values], Mapping[str, Array]] | None = None,
    **options: Any,
) -> Fit:
    """Fit parameters to cases.

    Args:
        parameters: with starts, priors and bounds.
        errors: values → ln(predicted / measured) of each case, shape (cases,).
        noise: error beyond which the loss is linear.
        loss: "robust" for cases and priors, "robust cases" with squares for priors, "squares" for both.
        around: x of the solver is its distance from the start plus this, so that relative steps of its differences
            are steps of one size; None leaves x as it is.
        slopes: values → d error / d value of each parameter by name, shape (cases,) each, not for "robust cases"; None
            takes differences, one evaluation a parameter.
        options: of `scipy.optimize.least_squares`, such as diff_step and max_nfev.
    """
    from scipy import optimize

    start = np.array([one.encode(one.start) for one in parameters])
    origin = np.zeros(len(parameters)) if around is None else start - around
    centre = np.array([one.encode(one.start if one.prior is None else one.prior) for one in parameters])
    drawn = np.array([place for place, one in enumerate(parameters) if one.spread and not one.alike], dtype=np.int64)
    pairs = [
        (place, other, cast(float, one.spread))
        for place, one in enumerate(parameters)
        for other, same in enumerate(parameters)
        if place < other and one.alike and one.alike == same.alike
    ]

    of_all, of_cases = _ROBUST[loss]
    scale = noise if of_all else 1.0  # of residuals: SciPy's robust loss knows the noise, squares do not

    pull = scale / np.array([one.spread for one in parameters if one.spread and not one.alike], dtype=np.float64)

    def residuals(x: Array) -> Array:
        found = errors(values_of(parameters, x)) / (noise / scale)
        if of_cases:
            found = np.sign(found) * np.sqrt(2.0 * (np.sqrt(1.0 + found**2) - 1.0))
        apart = [scale * (x[place] - x[other]) / spread for place, other, spread in pairs]
        return np.concatenate([found, pull * (x[drawn] - centre[drawn]), np.array(apart, dtype=np.float64)])

    low = np.array([-np.inf if one.low is None else one.encode(one.low) for one in parameters]) - origin
    high = np.array([np.inf if one.high is None else one.encode(one.high) for one in parameters]) - origin
    first = np.clip(start - origin, low + 1e-6 * np.isfinite(low), high - 1e-6 * np.isfinite(high))

    def moved(y: Array) -> Array:
        return residuals(y + origin)

    def slopes_at(y: Array) -> Array:
        values = values_of(parameters, y + origin)
        of_value = cast("Callable[[Values], Mapping[str, Array]]", slopes)(values)
        columns = [of_value[one.name] * (one.slope(values[one.name]) * scale / noise) for one in parameters]
        priors = np.zeros((len(drawn) + len(pairs), len(parameters)))
        priors[np.arange(len(drawn)), drawn] = pull
        for row, (place, other, spread) in enumerate(pairs, len(drawn)):
            priors[row, place], priors[row, other] = scale / spread, -scale / spread
        return np.concatenate([np.array(columns).T, priors])

    def differences_at(y: Array) -> Array:
        here = moved(y)
        steps = np.where(y + _STEP <= high, _STEP, -_STEP)
        return np.array([(moved(y + step) - here) / step.sum() for step in np.diag(steps)]).T

    if slopes is not None:
        options = {**options, "jac": slopes_at}
    elif "diff_step" not in options:
        options = {**options, "jac": differences_at}
    solve = cast("Callable[..., Any]", optimize.least_squares)  # pyright: ignore[reportUnknownMemberType]
    chosen = {"loss": "soft_l1", "f_scale": noise} if of_all else {}
    found = solve(moved, first, bounds=(low, high), **chosen, **options)
    begun = start - origin
    x = np.clip(begun + np.rint((np.asarray(found.x) - begun) / _GRID) * _GRID, low, high) + origin
    values = values_of(parameters, x)
    of_a_case = np.abs(np.asarray(found.jac)[: len(found.fun) - len(drawn) - len(pairs)]) * (noise / scale)
    for place, one in enumerate(parameters):
        if one.form == "log" and x[place] < start[place] - _FALLEN and of_a_case[:, place].max() < _UNNOTICED:
            values[one.name] = 0.0
    return Fit(
        values=values,
        x=x,
        cost=float(found.cost),
        slopes=np.asarray(found.jac),
        residuals=residuals,
        scale=scale,
    )


def values_of(parameters: Sequence[Parameter], x: Array) -> Values:
    """x → values by name."""
    return {one.name: one.decode(place) for one, place in zip(parameters, x.tolist(), strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Generic[Held, Fitted, Scored]):
    """A fit without a group, and what that group is predicted to be.

    Args:
        name: of the group.
        held: what was left out.
        fitted: to the others.
        scored: of what was left out.
    """

    name: str
    held: Held
    fitted: Fitted
    scored: Scored


def leave_out(
    groups: Mapping[str, Held],
    fitted: Callable[[Held], Fitted],
    scored: Callable[[Fitted, Held], Scored],
    done: Done | None = None,
) -> Iterator[LeftOut[Held, Fitted, Scored]]:
    """Leave each group out of the fit in turn and predict it.

    Args:
        groups: name and members of each, as both functions understand them: a mask, masks by table, a name.
        fitted: members of a group → the fit to all others.
        scored: (fit, members) → what is kept of their prediction.
        done: called with (what, finished, all) after each.
    """
    for number, (name, held) in enumerate(groups.items(), 1):
        found = fitted(held)
        yield LeftOut(name=name, held=held, fitted=found, scored=scored(found, held))
        if done is not None:
            done(name, number, len(groups))


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows by their key, in order of first appearance."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def groups_of(keys: Iterable[str]) -> dict[str, Array]:
    """Name → mask of its rows, in order of first appearance, each of shape (rows,)."""
    names = np.array(list(keys), dtype=object)
    return {name: names == name for name in dict.fromkeys(names.tolist())}


SEEDS = (0, 1)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Absolute relative errors of one fit [fraction]; None if there were too few rows or families.

    Args:
        rows: rows of the table [count].
        median_error, p90_error: errors on the held-out random half.
        family_median_error, family_p90_error: errors on the held-out families.
        ideal_median_error, ideal_p90_error: errors of the ideal roofline on all rows.
    """

    rows: int
    median_error: float | None
    p90_error: float | None
    family_median_error: float | None
    family_p90_error: float | None
    ideal_median_error: float
    ideal_p90_error: float


RELATIVE, ABSOLUTE = 0.02, 0.002
"""Increase of an error that does not count as worse: 2 % of itself plus 0.2 percentage points."""


def is_worse(now: float, before: float) -> bool:
    """Whether an error is larger than before by more than does not count; so is one that is no number."""
    return not now <= before * (1.0 + RELATIVE) + ABSOLUTE


def random_half(rows: int, seed: int) -> npt.NDArray[np.bool_]:
    """Mask of a random half of the rows, to fit."""
    return np.random.default_rng(seed).permutation(rows) < rows // 2


def half_of_families(families: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a random half of the families, to fit."""
    names = np.unique(families)
    chosen = np.random.default_rng(seed + 100).permutation(names)[: max(1, len(names) // 2)]
    return np.isin(families, chosen)


def median_and_p90(predicted_s: Array, measured_s: Array) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1| [fraction]."""
    error = np.abs(predicted_s / measured_s - 1.0)
    return float(np.median(error)), float(np.quantile(error, 0.9))


WORTH = 0.05
"""Mean |log error| that numbers of its own must gain a version."""
_WORST_MEDIAN = 0.2
"""Median error of numbers of its own beyond which they describe nothing."""
_SEEDS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderFit:
    """Numbers of an older version.

    Args:
        stack_version: newest version that they describe.
        oldest_version: oldest one.
        values: parameters.
        rows: of the table of `stack_version` [count].
        median_error: on held-out halves of it [fraction].
        newer_error: of the next newer version's numbers on the same halves [fraction].
    """

    stack_version: str
    oldest_version: str
    values: Values
    rows: int
    median_error: float
    newer_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """A table of an older version with its model.

    Args:
        stack_version: of the table.
        target_s: time of each row, the newest version's prediction times the measured ratio [s], shape (rows,).
        predict: values → time of each row [s], shape (rows,).
        fit: (rows to fit, values to be pulled towards) → values.
    """

    stack_version: str
    target_s: Array
    predict: Callable[[Values], Array]
    fit: Callable[[Mask, Values], Values]


def older_fits(newest: Values, newest_version: str, tables: Sequence[Older]) -> tuple[str, tuple[OlderFit, ...]]:
    """The oldest version that the newest numbers describe, and the numbers of those before it.

    Args:
        newest: numbers of the newest version.
        newest_version: which it is.
        tables: of older versions, the newest of them first.
    """
    spans: list[tuple[Values, list[str], Older | None, tuple[float, float]]] = [
        (newest, [newest_version], None, (0.0, 0.0))
    ]
    for table in tables:
        known = spans[-1][0]
        own, newer = held_out_errors(table, known)
        if is_worth(own, newer):
            values = table.fit(np.ones(len(table.target_s), dtype=np.bool_), known)
            spans.append((values, [table.stack_version], table, (float(np.median(own)), float(np.median(newer)))))
        else:
            spans[-1][1].append(table.stack_version)
    return spans[0][1][-1], tuple(
        OlderFit(
            stack_version=versions[0],
            oldest_version=versions[-1],
            values=values,
            rows=len(table.target_s),
            median_error=own,
            newer_error=newer,
        )
        for values, versions, table, (own, newer) in spans
        if table is not None
    )


def is_worth(own: Array, known: Array) -> bool:
    """Whether numbers of its own gain a version more than WORTH, by their errors and those of known numbers, and are
    good enough themselves."""
    gain = np.mean(np.log1p(known)) - np.mean(np.log1p(own))
    return bool(gain > WORTH and np.median(own) < _WORST_MEDIAN)


def held_out_errors(table: Older, known: Values, fitted: Mapping[str, Mask] | None = None) -> tuple[Array, Array]:
    """Ratios less one, of the slower to the faster of predicted and measured: own numbers, and known ones.

    Args:
        known: values that own numbers are pulled towards.
        fitted: rows that are fitted, one mask a fold; random halves by default. The others are scored.
    """

    def errors(values: Values, mask: Mask) -> list[Array]:
        logs = (np.log(table.predict(numbers)[~mask] / table.target_s[~mask]) for numbers in (values, known))
        return [np.expm1(np.abs(log)) for log in logs]

    halves = fitted or {str(seed): random_half(len(table.target_s), seed) for seed in _SEEDS}
    held = [fold.scored for fold in leave_out(halves, lambda mask: table.fit(mask, known), errors)]
    own, newer = (np.concatenate([fold[place] for fold in held]) for place in (0, 1))
    return own, newer
