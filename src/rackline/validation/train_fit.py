"""Fit of the training stacks' parameters to published steps: few, common to all models, shrunk towards a prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from rackline.catalog import names
from rackline.fitting.solver import Parameter, fit
from rackline.passes.features import Array
from rackline.training.stack import TrainingStack, training_stack
from rackline.validation.train_cases import TrainCases, find_stack

NOISE = 0.05
"""Spread of one configuration between releases, the scale of residuals (median of repeats 2 to 4 %)."""


def _n(name: str, prior: float, spread: float, low: float, high: float) -> Parameter:
    """A parameter; its name is "field", "field generation dtype" for slowdowns, or "field stack" for a single stack."""
    return Parameter(name=name, start=prior, spread=spread, low=low, high=high)


_COMMON: tuple[Parameter, ...] = (
    _n("gemm_slowdown ampere *", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown hopper bf16", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown hopper *", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown blackwell bf16", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown blackwell fp8", 1.15, 0.15, 0.8, 2.0),
    _n("gemm_slowdown blackwell fp4", 1.15, 0.15, 0.8, 2.0),
    # a compiled step runs the products that were timed alone, and engines of their own move what chips exchange
    _n("gemm_slowdown tpu *", 1.0, 0.05, 0.8, 2.0),
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
def fitted_numbers() -> tuple[Parameter, ...]:
    """All fitted parameters: those that stacks share, and those of single stacks of the catalogue."""
    own = (
        _n(f"{one.name} {stack}", one.prior, one.spread, one.low, one.high)
        for stack in names("training_stacks")
        for one in training_stack(stack).own
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
            field, *of = number.name.split(" ")
            if field in tables:
                slow[field][of[0], of[1]] = values[number.name]
            elif not of or of == [stack.numbers_of or name]:
                plain[field] = values[number.name]
        kept = {key: value for key, value in (plain | slow).items() if key not in stack.stated}
        found[name] = replace(stack, **kept)  # type: ignore[arg-type]
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
    seen = cases.take(np.flatnonzero(rows) if rows.dtype == bool else rows)
    target = np.log(seen.measured_s)
    parameters = [
        replace(one, start=one.start if start is None else start[one.name], prior=one.start) for one in fitted_numbers()
    ]
    return fit(
        parameters,
        lambda values: np.log(seen.predict(stacks_with(values, base))) - target,
        noise=NOISE,
        loss="robust cases",
        max_nfev=40,
    ).values
