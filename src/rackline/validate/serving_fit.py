"""The few numbers that serving stacks add to their kernels, fitted to measured servers.

Four are common to all stacks (how long ranks wait at an all-reduce, how much slower prompt work is than its kernels,
the least time of an eager layer, the popularity of experts), two are of each stack (time to first token beyond the
passes, share of the burst that a request waits for). The common ones minimise the error of the time per output token,
then those of each stack the error of the time to first token, both as logarithms under soft L1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from rackline.passes.features import Array
from rackline.validate.fit_cases import COMMON, FitCases, Predicted, ServingNumbers, StackNumbers

SOFT_L1_SCALE = 0.1
"""Log error beyond which a case counts in proportion instead of squared."""
EXPONENTS = (0.5, 0.7, 0.85, 1.0, 1.2)
"""Popularity of experts that a fit tries."""
FEWEST = 5
"""A stack with fewer fitted cases takes the numbers of the others [cases]."""
_LEAST = {"rank_skew_s": 0.0, "prefill_slowdown": 1.0, "eager_s_per_layer": 0.0}
_ROUNDS = 3
_MOST_STEPS = 8


def fit_numbers(
    cases: FitCases,
    start: ServingNumbers,
    used: Array,
    *,
    fixed: Mapping[str, float] | None = None,
) -> ServingNumbers:
    """Fit to some of the cases.

    Args:
        start: where to begin.
        used: which cases, shape (cases,).
        fixed: numbers that are known and not fitted; those of a stack hold for all stacks.
    """
    fixed = fixed or {}
    common = {name: value for name, value in fixed.items() if name in (*COMMON, "routing_exponent")}
    here = cast("ServingNumbers", replace(cast("Any", start), **common))
    rows = np.flatnonzero(used)
    stacks = [name for name in cases.schedulers if np.sum(cases.stack_is(name) & used) >= FEWEST]
    kept = {name: _pinned(start.of_stack(name), fixed) for name in stacks or start.by_stack}
    here = replace(here, by_stack=kept)
    mixed = np.any(cases.mixture[rows]) and "routing_exponent" not in fixed
    for turn in range(_ROUNDS):
        exponents = EXPONENTS if mixed and turn == 0 else (here.routing_exponent,)
        found = [_fit_common(cases, replace(here, routing_exponent=z), rows, fixed) for z in exponents]
        here = min(found, key=lambda one: one[0])[1]
        own = {name: _fit_stack(cases, here, name, used, fixed) for name in stacks}
        here = replace(here, by_stack={**kept, **own})
    return here


def _pinned(own: StackNumbers, fixed: Mapping[str, float]) -> StackNumbers:
    return StackNumbers(
        first_token_s=fixed.get("first_token_s", own.first_token_s),
        burst_share=fixed.get("burst_share", own.burst_share),
        synchrony=fixed.get("synchrony", own.synchrony),
    )


def _fit_common(
    cases: FitCases, start: ServingNumbers, rows: Array, fixed: Mapping[str, float]
) -> tuple[float, ServingNumbers]:
    """(cost, numbers) of the best time per output token."""
    free = [name for name in COMMON if name not in fixed]
    measured = cases.tpot_s[rows]

    def numbers(coded: Sequence[float] | Array) -> ServingNumbers:
        values = {name: float(x) * COMMON[name] for name, x in zip(free, coded, strict=True)}
        return cast("ServingNumbers", replace(cast("Any", start), **values))

    def errors(coded: Array) -> Array:
        return np.log(cases.predict(numbers(coded), rows).tpot_s[rows] / measured)

    if not free:
        return _soft_l1(errors(np.empty(0))), start
    least = np.array([_LEAST[name] / COMMON[name] for name in free])
    at = np.maximum([getattr(start, name) / COMMON[name] for name in free], least + 0.02)
    cost, coded = _least_squares(
        errors, at, (least, np.inf), diff_step=0.03, xtol=1e-3, ftol=1e-4, max_nfev=_MOST_STEPS
    )
    return cost, numbers(coded)


def _soft_l1(errors: Array) -> float:
    return float(np.sum(SOFT_L1_SCALE**2 * (np.sqrt(1.0 + (errors / SOFT_L1_SCALE) ** 2) - 1.0)))


def _fit_stack(
    cases: FitCases, here: ServingNumbers, name: str, used: Array, fixed: Mapping[str, float]
) -> StackNumbers:
    """The best time to first token of one stack, in which both numbers are nearly linear."""
    own = here.of_stack(name)
    rows = np.flatnonzero(cases.stack_is(name) & used & np.isfinite(cases.ttft_s))
    free = [key for key in ("first_token_s", "burst_share") if key not in fixed]
    if not free or len(rows) < FEWEST:
        return own

    def predict(numbers: StackNumbers) -> Predicted:
        return cases.predict(replace(here, by_stack={**here.by_stack, name: numbers}), rows)

    for _ in range(2):
        base = predict(own)
        keep = rows[~base.memory_bound[rows]]
        slopes: dict[str, Array] = {}
        for key in free:
            step = 0.02 + 0.1 * getattr(own, key)
            moved = predict(replace(own, **{key: getattr(own, key) + step}))
            slopes[key] = (moved.ttft_s[keep] - base.ttft_s[keep]) / step
        rest = base.ttft_s[keep] - sum(slopes[key] * getattr(own, key) for key in free)
        found = _best_line(rest, [slopes[key] for key in free], cases.ttft_s[keep])
        own = replace(own, **dict(zip(free, found, strict=True)))
    return own


def _best_line(rest: Array, slopes: list[Array], measured: Array) -> list[float]:
    """Values from 0 to 1 that bring rest + values · slopes closest to what was measured, as logarithms."""
    lines = np.array(slopes)

    def errors(values: Array) -> Array:
        return np.log(np.maximum(rest + values @ lines, 1e-6) / measured)

    grid = np.concatenate([[0.0], np.geomspace(0.01, 0.8, 16)])
    starts = np.array(np.meshgrid(*[grid] * len(slopes))).reshape(len(slopes), -1).T
    start = min(starts, key=lambda values: _soft_l1(errors(values)))
    inside = np.clip(start, 1e-4, 1.0 - 1e-4)
    return _least_squares(errors, inside, (np.zeros(len(inside)), 1.0))[1]


def _least_squares(
    errors: Callable[[Array], Array],
    start: Sequence[float] | Array,
    bounds: tuple[Sequence[float] | Array, float],
    **options: float,
) -> tuple[float, list[float]]:
    """(cost, values) at the least sum of soft L1."""
    from scipy import optimize

    found: Any = cast("Any", optimize).least_squares(
        errors, np.asarray(start), bounds=bounds, loss="soft_l1", f_scale=SOFT_L1_SCALE, **options
    )
    return float(found.cost), [float(value) for value in found.x]
