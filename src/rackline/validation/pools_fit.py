"""Fit of the two parameters that pools of prefill and decode workers add, to their times to first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from rackline.errors import RacklineError
from rackline.passes.features import Array
from rackline.serving.closed_pools import TwoPools
from rackline.serving.workload import Workload
from rackline.validation.cases import Case
from rackline.validation.fit_cases import POOLS, ServingNumbers
from rackline.validation.predict import Predictor, workload_of
from rackline.validation.resolve import Resolver
from rackline.validation.serving_fit import FEWEST, SOFT_L1_SCALE

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

    def errors(coded: Array) -> Array:
        handover_s, share = (float(value) * _SIZE for value in coded)
        found: list[float] = []
        for pools, work, users, measured in ready:
            stack = replace(pools.first.stack, handover_s=handover_s, pool_burst_share=share).prefill_pool()
            # the copy shares the caches of the pools, which do not depend on these parameters
            loop = replace(pools, first=replace(pools.first, stack=stack)).closed_loop(work, users)
            found.append(float(np.log(loop.ttft_s / measured)))
        return np.array(found)

    from scipy import optimize

    found: Any = cast("Any", optimize).least_squares(
        errors,
        [max(numbers.get(name), 0.02) / _SIZE for name in POOLS],
        bounds=(0.0, 10.0),
        loss="soft_l1",
        f_scale=SOFT_L1_SCALE,
        diff_step=0.05,
        xtol=1e-2,
        ftol=1e-3,
        max_nfev=_MOST_STEPS,
    )
    return numbers.changed({name: float(value) * _SIZE for name, value in zip(POOLS, found.x, strict=True)})
