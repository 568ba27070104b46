"""Fit of the two parameters that pools of prefill and decode workers add, to their times to first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rackline.errors import RacklineError
from rackline.fitting.solver import Parameter, Values, fit
from rackline.passes.features import Array
from rackline.serving.closed_pools import TwoPools
from rackline.serving.workload import Workload
from rackline.validation.cases import Case
from rackline.validation.fit_cases import POOLS, ServingNumbers
from rackline.validation.predict import Predictor, workload_of
from rackline.validation.resolve import Resolver
from rackline.validation.serving_fit import FEWEST

_SIZE = 0.1  # scale of both parameters
_MOST_STEPS = 8


def fit_pools(cases: Sequence[Case], numbers: ServingNumbers, calibration: str) -> ServingNumbers:
    """These parameters with those of pools fitted to the cases; unchanged if there are too few cases.

    Args:
        cases: measured cases of pools.
        numbers: parameters, of which those of single engines are kept.
        calibration: "auto" (each case's own stack), a stack or a file.
    """
    alone = numbers.changed(dict.fromkeys(POOLS, 0.0))
    predictor = Predictor(resolver=Resolver(calibration_name=calibration, change=alone.stack))
    ready: list[tuple[TwoPools, Workload, float, float]] = []
    for case in cases:
        if "ttft_s" not in case.measured:
            continue
        try:
            pools = predictor.pools(case)
            pools.closed_loop(workload_of(case), case.number("concurrency"))
        except RacklineError:
            continue
        ready.append((pools, workload_of(case), case.number("concurrency"), case.measured["ttft_s"]))
    if len(ready) < FEWEST:
        return numbers

    def errors(values: Values) -> Array:
        found: list[float] = []
        for pools, work, users, measured in ready:
            stack = replace(pools.first.stack, **values).prefill_pool()
            # the copy shares the caches of the pools, which do not depend on these parameters
            loop = replace(pools, first=replace(pools.first, stack=stack)).closed_loop(work, users)
            found.append(float(np.log(loop.ttft_s / measured)))
        return np.array(found)

    parameters = [
        Parameter(name=name, start=max(numbers.get(name), 0.02), low=0.0, high=10.0 * _SIZE, form="plain", unit=_SIZE)
        for name in POOLS
    ]
    found = fit(parameters, errors, diff_step=0.05, xtol=1e-2, ftol=1e-3, max_nfev=_MOST_STEPS)
    return numbers.changed(found.values)
