"""The fit behind all fitted numbers: parameters with priors, errors of what was measured, groups left out in turn.

    minimise  sum over cases of rho(error) + sum over parameters of rho(noise · (x - prior) / spread)

An error is ln(predicted / measured), so that a case twice too slow weighs as much as one twice too fast; rho is the
soft L1 loss, quadratic below `noise` and linear beyond, so that outliers count little; x is the value, its logarithm or
its logit. A parameter that no case depends on stays at its prior. State is passed: a fit keeps nothing between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, assert_never, cast

import numpy as np

from rackline.passes.features import Array

SOFT_L1_SCALE = 0.1
"""Log error beyond which the loss of a case is linear instead of quadratic."""
Values = dict[str, float]
Errors = Callable[[Values], Array]
Form = Literal["log", "share", "plain"]
Loss = Literal["robust", "robust cases", "squares"]
_ROBUST: Mapping[Loss, tuple[bool, bool]] = {
    "robust": (True, False),
    "robust cases": (False, True),
    "squares": (False, False),
}
"""Loss → whether SciPy's loss of all residuals is robust, and whether that of the cases is made so."""
Done = Callable[[str, int, int], None]
Held = TypeVar("Held")
Fitted = TypeVar("Fitted")
Scored = TypeVar("Scored")


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
        match self.form:
            case "plain":
                return value / self.unit
            case "log":
                return float(np.log(max(value, 1e-18))) / self.unit
            case "share":
                value = min(max(value, 1e-4), 1.0 - 1e-4)
                return float(np.log(value / (1.0 - value)))
            case _:
                assert_never(self.form)

    def decode(self, x: float) -> float:
        """x → value."""
        within = min(max(x * self.unit, -60.0), 30.0)  # a step of the solver may lie beyond what an exponential holds
        match self.form:
            case "plain":
                return x * self.unit
            case "log":
                return float(np.exp(within))
            case "share":
                return float(1.0 / (1.0 + np.exp(-within)))
            case _:
                assert_never(self.form)


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
    errors: Errors,
    *,
    noise: float = SOFT_L1_SCALE,
    loss: Loss = "robust",
    around: float | None = None,
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

    spreads = [one.spread for one in parameters if one.spread and not one.alike]
    pull = scale / np.array(spreads, dtype=np.float64)

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

    solve = cast("Callable[..., Any]", optimize.least_squares)  # pyright: ignore[reportUnknownMemberType]
    chosen = {"loss": "soft_l1", "f_scale": noise} if of_all else {}
    found = solve(moved, first, bounds=(low, high), **chosen, **options)
    x = np.asarray(found.x, dtype=np.float64) + origin
    return Fit(
        values=values_of(parameters, x),
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


def groups_of(keys: Iterable[str]) -> dict[str, Array]:
    """Name → mask of its rows, in order of first appearance, each of shape (rows,)."""
    names = np.array(list(keys), dtype=object)
    return {name: names == name for name in dict.fromkeys(names.tolist())}
