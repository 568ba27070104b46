"""The four numbers of an older engine version, fitted to the median times between tokens that one benchmark publishes.

Kernel times do not depend on the numbers, so each pass is computed once: a step is

    behind(passes + (ratio - 1) experts + bytes · logits / bandwidth + step, launches + each · sequences)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from rackline.arch import Model
from rackline.errors import RacklineError
from rackline.fitting.solver import Parameter, Values, fit
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.steady import behind, median_prompts
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor, workload_of
from rackline.validation.resolve import Resolver
from rackline.validation.sources import source_of

NAMES = ("host_s_per_step", "host_s_per_sequence", "sample_bytes_per_logit", "untuned_slowdown")
SCALE = np.array([1e-3, 3e-5, 400.0, 2.0])
WITHOUT = np.array([0.0, 0.0, 0.0, 1.0])
"""None of the four."""
ELSEWHERE = np.array([2.2e-3, 0.0, 2.318e-3 / (128 * 131_072) * 0.75 * 3.35e12, 1.0])
"""What others' measurements alone say: a step of vLLM 0.10 and 0.11 in AMD's batch latencies on MI300X (least cost
between 2.0 and 2.5 ms), the sort in vLLM's pull request 40376 (128 x 131,072 logits in 2.32 ms, its chip taken for an
H100); nothing on hosts per sequence and on untuned experts."""
FEWEST = 20
"""Cases that the four numbers need [cases]."""
_REACHED = 0.75  # of the memory bandwidth, by kernels that pass over tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A case with the median step's parts that do not depend on the numbers [s]."""

    case: Case
    mixture: bool
    measured_s: float
    kernels_s: float
    untuned_s: float
    bytes_s: float
    launches_s: float
    sequences: float

    def seconds(self, numbers: Array) -> float:
        """The median step under (step, each, bytes, ratio)."""
        step_s, each_s, bytes_per_logit, ratio = numbers.tolist()
        device = self.kernels_s + (ratio - 1.0) * self.untuned_s + bytes_per_logit * self.bytes_s + step_s
        return float(behind(device, self.launches_s + each_s * self.sequences))


def is_of_older_engine(case: Case) -> bool:
    """Whether a case states the median of its times between tokens, to which the four numbers are fitted."""
    return case.kind == "serve" and "tpot_s" in case.measured and source_of(case).tpot == "median"


def steps_of(cases: Sequence[Case], calibration: str = "auto") -> list[Step]:
    """The cases that can be predicted, prepared."""
    predictor = Predictor(resolver=Resolver(calibration_name=calibration))
    found: list[Step] = []
    for case in cases:
        try:
            found.append(step_of(predictor, case))
        except RacklineError:
            continue
    return found


def step_of(predictor: Predictor, case: Case) -> Step:
    """Prepare a case.

    Raises:
        RacklineError: it cannot be predicted.
    """
    around = predictor.resolver.stack(case)
    bare = replace(
        around, host_s_per_step=0.0, host_s_per_sequence=0.0, untuned_slowdown=1.0, sample_bytes_per_logit=0.0
    )
    deployment = predictor.resolver.deployments(case, stack=bare)[0]
    model = cast("Model", deployment.model)
    engine, work = predictor.engine(deployment, IDEAL), workload_of(case)
    layout, chip = deployment.layout, deployment.cluster.chip
    b = case.number("concurrency") / (layout.attention_dp * layout.pp * layout.dp)
    batch = Batch(decode_sequences=b, context_len=work.mean_context)
    times = engine.time_table(False)
    kernels = alone = float(engine.seconds(batch, times, two_batch_overlap=False))
    prompts = float(median_prompts(np.array(b / (work.output_len - 1.0)))) * work.new_tokens
    prompts = max(min(prompts, around.max_batched_tokens - b), 0.0)
    launched = b + prompts > around.held_tokens
    if prompts > 0.0:
        chunk = min(work.new_tokens, prompts)
        mixed = replace(batch, prefill_sequences=prompts / chunk, chunk_tokens=chunk)
        extra = float(engine.seconds(mixed, times, two_batch_overlap=False)) - alone
        kernels += (around.prefill_slowdown if launched else 1.0) * extra
    rows = {row.name: row for row in engine.table.time(batch).rows}
    experts = rows.get("experts")
    of = f"{chip.generation} {deployment.precision.expert_weights}"
    untuned = experts.seconds if experts is not None and of in around.untuned_experts else 0.0
    return Step(
        case=case,
        mixture=experts is not None,
        measured_s=case.measured["tpot_s"],
        kernels_s=kernels,
        untuned_s=untuned,
        bytes_s=b * model.vocab_size / (_REACHED * chip.hbm_bytes_per_s),
        launches_s=launched * engine.num_layers * around.eager_s_per_layer,
        sequences=b,
    )


def fit_engine(steps: Sequence[Step]) -> Array:
    """The numbers that minimise soft L1 of the log error, in the order of NAMES."""
    measured = np.log(np.array([step.measured_s for step in steps]))

    def errors(values: Values) -> Array:
        numbers = np.array(list(values.values()))
        return np.log(np.array([step.seconds(numbers) for step in steps])) - measured

    parameters = [Parameter(name=name, start=float(scale)) for name, scale in zip(NAMES, SCALE, strict=True)]
    return np.array(list(fit(parameters, errors, around=0.0, diff_step=0.03).values.values()))


def with_engine(numbers: Array) -> Callable[[Stack], Stack]:
    """Stacks of the versions that have the four numbers, with these; others as they are."""

    def changed(found: Stack) -> Stack:
        if not found.sample_bytes_per_logit:
            return found
        step_s, each_s, logit_bytes, slowdown = (float(value) for value in numbers)
        return replace(
            found,
            host_s_per_step=step_s,
            host_s_per_sequence=each_s,
            sample_bytes_per_logit=logit_bytes,
            untuned_slowdown=slowdown,
        )

    return changed
