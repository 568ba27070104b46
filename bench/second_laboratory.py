"""The four numbers of an older engine, fitted to one laboratory's servings with models, chips or batch sizes left out.

    uv run python bench/second_laboratory.py ../shared/measured/serving_power.jsonl

Prints the numbers of all cases, and the errors where each model, each chip and each class of batch sizes is left out of
the fit in turn. Kernel times do not depend on the numbers, so each pass is computed once: a step is

    behind(passes + (ratio - 1) experts + bytes · logits / bandwidth + step, launches + each · sequences)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy.optimize import least_squares

from rackline.arch import Model
from rackline.errors import RacklineError
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.serving.median_step import median_prompts
from rackline.serving.stack import Stack
from rackline.serving.steady import behind
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor, workload_of
from rackline.validation.read import read_cases
from rackline.validation.resolve import Resolver

NAMES = ("host_s_per_step", "host_s_per_sequence", "sample_bytes_per_logit", "untuned_slowdown")
SCALE = np.array([1e-3, 3e-5, 400.0, 2.0])
# What others' measurements alone say: a step of vLLM 0.10 and 0.11 in AMD's batch latencies on MI300X (least cost
# between 2.0 and 2.5 ms), the sort in vLLM's pull request 40376 (128 x 131,072 logits in 2.32 ms, its chip taken for an
# H100); nothing on hosts per sequence and on untuned experts.
ELSEWHERE = np.array([2.2e-3, 0.0, 2.318e-3 / (128 * 131_072) * 0.75 * 3.35e12, 1.0])
CLASSES = (16, 64, 256, np.inf)  # sequences per chip
REACHED = 0.75  # of the memory bandwidth, by kernels that pass over tensors


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


def step_of(predictor: Predictor, case: Case) -> Step:
    """Prepare a case. Raises RacklineError where it cannot be predicted."""
    resolver = predictor.resolver
    around = resolver.stack(case)
    bare = replace(around, host_s_per_step=0.0, host_s_per_sequence=0.0, untuned_slowdown=1.0)
    resolver.stacks["vllm"] = replace(bare, sample_bytes_per_logit=0.0)
    deployment = resolver.deployments(case)[0]
    del resolver.stacks["vllm"]
    model = cast("Model", deployment.model)
    engine, work = predictor.engine(deployment, Stack()), workload_of(case)
    layout, chip = deployment.layout, deployment.cluster.chip
    b = case.number("concurrency") / (layout.attention_dp * layout.pp * layout.dp)
    batch = Batch(decode_sequences=b, context_len=work.mean_context)
    times = engine.time_table(False)
    kernels = alone = float(engine.seconds(batch, times, two_batch_overlap=False))
    prompts = float(median_prompts(np.array(b / (work.output_len - 1.0)))) * work.new_tokens
    prompts = min(prompts, around.max_batched_tokens - b)
    if prompts > 0.0:
        chunk = min(work.new_tokens, prompts)
        mixed = replace(batch, prefill_sequences=prompts / chunk, chunk_tokens=chunk)
        extra = float(engine.seconds(mixed, times, two_batch_overlap=False)) - alone
        kernels += around.prefill_slowdown * extra
    rows = {row.name: row for row in engine.table.time(batch).rows}
    experts = rows.get("experts")
    of = f"{chip.generation} {deployment.precision.expert_weights}"
    untuned = experts.seconds if experts is not None and of in around.untuned_experts else 0.0
    launched = b + max(prompts, 0.0) > around.graph_tokens
    return Step(
        case=case,
        mixture=experts is not None,
        measured_s=case.measured["tpot_s"],
        kernels_s=kernels,
        untuned_s=untuned,
        bytes_s=b * model.vocab_size / (REACHED * chip.hbm_bytes_per_s),
        launches_s=launched * engine.num_layers * around.eager_s_per_layer,
        sequences=b,
    )


def fit(steps: Sequence[Step]) -> Array:
    """The numbers that minimise soft L1 of the log error."""
    measured = np.log(np.array([step.measured_s for step in steps]))

    def errors(coded: Array) -> Array:
        return np.log(np.array([step.seconds(np.exp(coded) * SCALE) for step in steps])) - measured

    found: Any = least_squares(errors, np.zeros(4), loss="soft_l1", f_scale=0.1, diff_step=0.03)
    return np.exp(np.asarray(found.x, dtype=np.float64)) * SCALE


def report(name: str, steps: Sequence[Step], predicted: Sequence[float]) -> None:
    """One row: cases, median error, p90, bias."""
    ratio = np.array(predicted) / np.array([step.measured_s for step in steps])
    off = np.abs(ratio - 1.0)
    print(
        f"| {name} | {len(steps)} | {100 * np.median(off):.1f} % | {100 * np.quantile(off, 0.9):.1f} % | "
        f"{100 * (np.median(ratio) - 1.0):+.1f} % |"
    )


def left_out(steps: Sequence[Step], key: Callable[[Step], object]) -> tuple[list[float], list[Array]]:
    """Each group predicted by the numbers of the others, and these numbers."""
    groups = [key(step) for step in steps]
    numbers = {group: fit([s for s, of in zip(steps, groups, strict=True) if of != group]) for group in set(groups)}
    return [step.seconds(numbers[of]) for step, of in zip(steps, groups, strict=True)], list(numbers.values())


def batch_class(step: Step) -> int:
    """Class of a case by sequences per chip."""
    each = step.case.number("concurrency") / step.case.num_chips
    return next(index for index, most in enumerate(CLASSES) if each <= most)


def chip_of(step: Step) -> str:
    """Chip of a case."""
    return step.case.chip


def model_of(step: Step) -> str:
    """Shape of the model: releases of one shape are left out together."""
    name = step.case.model.rpartition("/")[2].lower()
    for word in ("-instruct", "-thinking", "-2507", "-fp8"):
        name = name.replace(word, "")
    return name.replace("llama-3.3", "llama-3.1")


def main(paths: Sequence[str]) -> None:
    predictor, steps, refused = Predictor(resolver=Resolver()), list[Step](), 0
    for case in read_cases(paths).cases:
        try:
            steps.append(step_of(predictor, case))
        except RacklineError:
            refused += 1
    numbers = fit(steps)
    print(
        f"{len(steps)} cases, {refused} refused; "
        + ", ".join(f"{n} {v:.3g}" for n, v in zip(NAMES, numbers, strict=True))
    )
    print("\n| | cases | median error | p90 | bias |\n|---|---:|---:|---:|---:|")
    report("in sample", steps, [step.seconds(numbers) for step in steps])
    without = np.array([0.0, 0.0, 0.0, 1.0])
    report("without the four numbers", steps, [step.seconds(without) for step in steps])
    report("laboratory held out", steps, [step.seconds(ELSEWHERE) for step in steps])
    for index, name in enumerate(NAMES):
        one = numbers.copy()
        one[index] = without[index]
        report(f"without {name}", steps, [step.seconds(one) for step in steps])
    report("each chip held out", steps, left_out(steps, chip_of)[0])
    report("each class of batch sizes held out", steps, left_out(steps, batch_class)[0])
    predicted, folds = left_out(steps, model_of)
    report("each model held out", steps, predicted)
    low, high = np.min(folds, axis=0), np.max(folds, axis=0)

    def part(name: str, chosen: Sequence[bool]) -> None:
        own = [index for index, take in enumerate(chosen) if take]
        report(f"· {name}", [steps[index] for index in own], [predicted[index] for index in own])

    part("mixtures", [step.mixture for step in steps])
    part("dense and hybrid", [not step.mixture for step in steps])
    for index, most in enumerate(CLASSES):
        part(f"up to {most:g} sequences per chip", [batch_class(step) == index for step in steps])
    for chip in sorted(set(map(chip_of, steps))):
        part(chip, [chip_of(step) == chip for step in steps])
    for model in sorted(set(map(model_of, steps))):
        part(f"without {model}", [model_of(step) == model for step in steps])
    print("\n| number | all cases | least | most |\n|---|---:|---:|---:|")
    for row in zip(NAMES, numbers, low, high, strict=True):
        print("| {} | {:.3g} | {:.3g} | {:.3g} |".format(*row))


if __name__ == "__main__":
    main(sys.argv[1:])
