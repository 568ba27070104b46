"""The slowdown of prompts in an engine before CUDA graphs, fitted to single batches that papers measured.

Kernel times do not depend on it, so each prompt pass is computed once:

    prefill = behind(slowdown · kernels, launches)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import RacklineError
from rackline.fitting.solver import Parameter, fit
from rackline.serving.closed_loop import static_batch
from rackline.serving.stack import Stack
from rackline.serving.steady import behind
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver

NAME = "single_batch_prefill_slowdown"
FEWEST = 5
"""Cases that the number needs [cases]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A measured prompt pass of a single batch.

    Args:
        case: that it is of.
        stack: name of the engine.
        kernels_s: its kernels [s].
        launches_s: launches of all layers by the host [s].
        measured_s: prefill_s of the case.
    """

    case: Case
    stack: str
    kernels_s: float
    launches_s: float
    measured_s: float


def prompts_of(cases: Sequence[Case], calibration: str = "auto") -> list[Prompts]:
    """The prompt passes of single batches on engines before CUDA graphs, of the cases that can be predicted."""
    predictor = Predictor(resolver=Resolver(calibration_name=calibration))
    found: list[Prompts] = []
    for case in cases:
        if case.kind != "static-batch" or "prefill_s" not in case.measured:
            continue
        try:
            around = predictor.resolver.stack(case)
            if not around.eager_decode:
                continue
            deployment = predictor.resolver.deployments(case)[0]
            alone = predictor.engine(deployment, replace(around, prefill_slowdown=1.0, eager_s_per_layer=0.0))
            sizes = case.number("batch_size"), case.number("input_len"), 1.0
            kernels_s = static_batch(deployment, *sizes, engine=alone).prefill_s
        except RacklineError:
            continue
        found.append(
            Prompts(
                case=case,
                stack=around.name,
                kernels_s=kernels_s,
                launches_s=alone.num_layers * around.eager_s_per_layer,
                measured_s=case.measured["prefill_s"],
            )
        )
    return found


def fit_prompts(seen: Sequence[Prompts]) -> float:
    """The slowdown that minimises soft L1 of the log error [ratio]."""
    kernels_s, launches_s, measured_s = (
        np.array([getattr(one, name) for one in seen]) for name in ("kernels_s", "launches_s", "measured_s")
    )
    slowdown = Parameter(name=NAME, start=1.3, low=1.0, high=10.0, form="plain")
    return fit([slowdown], lambda values: np.log(behind(values[NAME] * kernels_s, launches_s) / measured_s)).values[
        NAME
    ]


def with_slowdown(slowdown: float, stacks: Collection[str]) -> Callable[[Stack], Stack]:
    """Engines of these names before CUDA graphs with this slowdown; others as they are."""

    def changed(found: Stack) -> Stack:
        return replace(found, prefill_slowdown=slowdown) if found.eager_decode and found.name in stacks else found

    return changed
