"""Fit of the training stacks' parameters to published steps: few, common to all models, shrunk towards a prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np

from rackline.catalog import names, training_stack_record
from rackline.passes.features import Array
from rackline.training.stack import TrainingStack
from rackline.validation.train_cases import TrainCases, find_stack

NOISE = 0.05
"""Spread of one configuration between releases, the scale of residuals (median of repeats 2 to 4 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One fitted parameter.

    Args:
        name: "field", "field generation dtype" for slowdowns, or "field stack" for parameters of one stack.
        prior: value that it is shrunk to.
        spread: standard deviation of the prior, in ln.
        low, high: bounds.
    """

    name: str
    prior: float
    spread: float
    low: float
    high: float

    @property
    def field(self) -> str:
        """Field of a training stack."""
        return self.name.split(" ")[0]

    @property
    def of(self) -> tuple[str, ...]:
        """What the parameter belongs to: (generation, dtype), (stack,) or ()."""
        return tuple(self.name.split(" ")[1:])


def _n(name: str, prior: float, spread: float, low: float, high: float) -> Number:
    return Number(name=name, prior=prior, spread=spread, low=low, high=high)


_COMMON: tuple[Number, ...] = (
    _n("gemm_slowdown ampere *", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown hopper bf16", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown hopper *", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown blackwell bf16", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown blackwell fp8", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown blackwell fp4", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown * *", 1.15, 0.15, 0.8, 2.0),  # chips without measurements stay at the prior
    _n("expert_slowdown hopper *", 1.1, 0.15, 0.8, 2.0),
    _n("flash_forward", 1.1, 0.15, 0.8, 2.5),
    _n("flash_backward", 1.3, 0.15, 0.9, 2.0),
    _n("elementwise", 1.0, 0.4, 0.3, 4.0),
    _n("quantise", 1.0, 0.4, 0.2, 4.0),
    _n("permute", 4.0, 0.5, 0.5, 12.0),
    _n("unfused", 10.0, 1.0, 1.0, 120.0),
    _n("state", 10.0, 0.7, 1.0, 100.0),
    _n("tensor_exposed", 0.3, 0.5, 0.05, 1.0),
    _n("context_exposed", 0.3, 0.5, 0.05, 1.0),
    _n("expert_inside", 1.0, 0.5, 0.1, 3.0),
    _n("expert_outside", 1.2, 0.5, 0.1, 4.0),
    _n("data_exposed", 0.7, 0.4, 0.05, 1.5),
    _n("shard_exposed", 0.5, 0.4, 0.05, 1.0),
    _n("host_dense_s", 0.9e-3, 0.4, 0.1e-3, 4e-3),
    _n("host_moe_s", 5e-3, 0.25, 0.3e-3, 20e-3),
    _n("host_expert_s", 0.1e-3, 0.3, 0.01e-3, 0.3e-3),
    _n("host_state_s", 5e-3, 0.5, 0.3e-3, 20e-3),
    _n("host_grace", 0.6, 0.4, 0.2, 1.5),
)


@cache
def fitted_numbers() -> tuple[Number, ...]:
    """All fitted parameters: those that stacks share, and those of single stacks of the catalogue."""
    own = (
        _n(f"{one.name} {stack}", one.prior, one.spread, one.low, one.high)
        for stack in names("training_stacks")
        for one in training_stack_record(stack).own
    )
    return (*_COMMON, *own)


def stacks_with(values: Mapping[str, float], base: Mapping[str, TrainingStack]) -> dict[str, TrainingStack]:
    """Stacks with these parameters; everything else is unchanged."""
    found: dict[str, TrainingStack] = {}
    tables = ("gemm_slowdown", "expert_slowdown")
    for name, stack in base.items():
        plain: dict[str, float] = {}
        slow: dict[str, dict[tuple[str, str], float]] = {table: {} for table in tables}
        for number in fitted_numbers():
            value = values[number.name]
            if number.field in tables:
                slow[number.field][number.of[0], number.of[1]] = value
            elif number.of in ((), (stack.numbers_of or name,)):
                plain[number.field] = value
        plain = {key: value for key, value in plain.items() if key not in stack.stated}
        found[name] = replace(stack, **plain, **slow)
    return found


def base_stacks(cases: TrainCases) -> dict[str, TrainingStack]:
    """The catalogue's stacks that the cases ran under."""
    return {name: find_stack(name) for name in dict.fromkeys(cases.stacks)}


def fit_numbers(
    cases: TrainCases, rows: Array, base: Mapping[str, TrainingStack], start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Fit all parameters to some cases.

    Minimises the soft-L1 loss of ln(predicted / measured) over NOISE, plus the squares of ln(value / prior) over each
    parameter's spread: a parameter that the cases do not depend on stays at its prior.

    Args:
        rows: mask or indices of the cases to fit.
        base: stacks with everything that is not fitted.
        start: initial values.
    """
    from scipy import optimize

    seen = cases.take(np.flatnonzero(rows) if rows.dtype == bool else rows)
    prior = np.log([number.prior for number in fitted_numbers()])
    spread = np.array([number.spread for number in fitted_numbers()])
    low = np.log([number.low for number in fitted_numbers()])
    high = np.log([number.high for number in fitted_numbers()])
    target = np.log(seen.measured_s)

    def loss(x: Array) -> Array:
        values = {number.name: float(v) for number, v in zip(fitted_numbers(), np.exp(x), strict=True)}
        misfit = (np.log(seen.predict(stacks_with(values, base))) - target) / NOISE
        # soft L1 loss of the residuals, squares for the priors
        soft = np.sign(misfit) * np.sqrt(2.0 * (np.sqrt(1.0 + misfit**2) - 1.0))
        return np.concatenate([soft, (x - prior) / spread])

    first = prior if start is None else np.log([start[number.name] for number in fitted_numbers()])
    found: Any = cast("Any", optimize).least_squares(
        loss, np.clip(first, low + 1e-6, high - 1e-6), bounds=(low, high), max_nfev=40
    )
    return {number.name: float(v) for number, v in zip(fitted_numbers(), np.exp(found.x), strict=True)}
