"""Fit of the few parameters that serving stacks add to their kernels, to measured servers.

Three affect the time per output token: the wait of ranks at an all-reduce, the slowdown of prefill over its kernels,
and the least time of an eager layer. Three or four affect the time to first token: the time outside of passes, for
equal and for varying lengths, and the share of a burst that a request waits for, by admission. The first are fitted to
the time per output token, then the others to the time to first token, both by the logarithm of the error under a soft
L1 loss. No parameter belongs to a single model, stack or row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rackline.fitting.solver import Parameter, Values, fit
from rackline.passes.features import Array
from rackline.validation.fit_cases import BURST, COMMON, FIRST_TOKEN, FitCases, ServingNumbers

FEWEST = 5
"""A parameter of the time to first token with fewer cases takes the value of similar ones [cases]."""
_LEAST = {"rank_skew_s": 0.0, "prefill_slowdown": 1.0, "eager_s_per_layer": 0.0}
_ROUNDS = 3
_LINES = 2
_STARTS = (0.02, 0.1, 0.4)
_MOST_STEPS = 8


def fit_numbers(
    cases: FitCases,
    start: ServingNumbers,
    used: Array,
    *,
    fixed: Mapping[str, float] | None = None,
) -> ServingNumbers:
    """Fit the parameters to some of the cases.

    Args:
        start: initial values.
        used: mask of the cases, shape (cases,).
        fixed: parameters with a known value; burst_share applies to every admission.
    """
    fixed = dict(fixed or {})
    for name in (f"{BURST}.{admission}" for admission in start.burst_share if BURST in fixed):
        fixed[name] = fixed[BURST]
    fixed.pop(BURST, None)
    here = start.changed(fixed)
    rows = np.flatnonzero(used)
    waits = [name for name in (*FIRST_TOKEN, *(f"{BURST}.{key}" for key in start.burst_share)) if name not in fixed]
    felt = [name for name in waits if np.sum(cases.concerned(name) & used & np.isfinite(cases.ttft_s)) >= FEWEST]
    for _ in range(_ROUNDS):
        here = _like(_fit_waits(cases, _fit_common(cases, here, rows, fixed), felt, used), waits, felt)
    return here


def _like(here: ServingNumbers, waits: Sequence[str], felt: Sequence[str]) -> ServingNumbers:
    """Parameters that no case depends on take the value of similar ones: the other constant, the median of the
    shares."""
    values: dict[str, float] = {}
    for name in set(waits) - set(felt):
        others = [here.get(other) for other in felt if (other in FIRST_TOKEN) == (name in FIRST_TOKEN)]
        if others:
            values[name] = float(np.median(others))
    return here.changed(values)


def _fit_common(cases: FitCases, start: ServingNumbers, rows: Array, fixed: Mapping[str, float]) -> ServingNumbers:
    """Fit to the time per output token."""
    free = [name for name in COMMON if name not in fixed]
    measured = cases.tpot_s[rows]
    if not free:
        return start
    parameters = [
        Parameter(
            name=name,
            start=max(start.get(name), _LEAST[name] + 0.02 * COMMON[name]),
            low=_LEAST[name],
            form="plain",
            unit=COMMON[name],
        )
        for name in free
    ]

    def errors(values: Values) -> Array:
        return np.log(cases.predict(start.changed(values), rows).tpot_s[rows] / measured)

    found = fit(parameters, errors, diff_step=0.03, xtol=1e-3, ftol=1e-4, max_nfev=_MOST_STEPS)
    return start.changed(found.values)


def _fit_waits(cases: FitCases, here: ServingNumbers, felt: Sequence[str], used: Array) -> ServingNumbers:
    """Fit to the time to first token, which is nearly linear in its parameters: all at once, by their slopes."""
    rows = np.flatnonzero(used & np.isfinite(cases.ttft_s))
    if not felt or len(rows) < FEWEST:
        return here
    for _ in range(_LINES):
        base = cases.predict(here, rows)
        keep = rows[~base.memory_bound[rows]]
        rest = base.ttft_s[keep].copy()
        slopes: list[Array] = []
        for name in felt:
            value = here.get(name)
            step = 0.02 + 0.1 * value
            own = np.flatnonzero(cases.concerned(name) & used & np.isfinite(cases.ttft_s) & ~base.memory_bound)
            moved = cases.predict(here.changed({name: value + step}), own).ttft_s[own]
            slope = np.zeros(len(cases.cases))
            slope[own] = (moved - base.ttft_s[own]) / step
            slopes.append(slope[keep])
            rest -= slope[keep] * value
        here = here.changed(_best_line(rest, slopes, cases.ttft_s[keep], felt))
    return here


def _best_line(rest: Array, slopes: list[Array], measured: Array, names: Sequence[str]) -> Values:
    """Values from 0 to 1 that minimise the log error of rest + values · slopes against the measurements."""
    lines = np.array(slopes)

    def errors(values: Values) -> Array:
        return np.log(np.maximum(rest + np.array([values[name] for name in names]) @ lines, 1e-6) / measured)

    def begun(first: float, share: float) -> list[Parameter]:
        """All constants and all shares start with equal values."""
        starts = {name: first if name in FIRST_TOKEN else share for name in names}
        return [Parameter(name=name, start=start, low=0.0, high=1.0, form="plain") for name, start in starts.items()]

    found = [fit(begun(first, share), errors) for first in _STARTS for share in _STARTS]
    return min(found, key=lambda one: one.cost).values
