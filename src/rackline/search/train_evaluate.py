"""Time, memory and FLOP of thousands of training runs at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch import Model
from rackline.hardware import Cluster
from rackline.parallel.exchange import make_group
from rackline.passes import Calibration
from rackline.passes.features import Array, as_array
from rackline.training.adapters import LoraTargets
from rackline.training.energy import training_w
from rackline.training.flop import hardware_share, mfu, model_flop
from rackline.training.memory import TrainMemory, train_memory
from rackline.training.precision import TrainPrecision
from rackline.training.runs import Runs
from rackline.training.stack import TrainingStack
from rackline.training.step import StepTime, step_parts, step_time
from rackline.training.work import MicroBatch

CHUNK = 8192  # runs that are evaluated together: their arrays stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """What is trained, on what, with what.

    Args:
        global_batch_sequences: [sequences].
        seq_len: [tokens].
        mtp_layers: layers that predict further tokens [count].
        expert_load: tokens of the busiest expert-parallel rank over the mean [1].
        lora_rank: rank of adapters beside frozen weights; 0 trains all weights [count].
        lora_targets: products that have adapters.
        packed_len: length of the samples packed into a sequence; 0 for one sample a sequence [tokens].
    """

    model: Model
    cluster: Cluster
    precision: TrainPrecision
    stack: TrainingStack
    calibration: Calibration
    global_batch_sequences: int
    seq_len: int
    mtp_layers: int = 0
    expert_load: float = 1.0
    lora_rank: int = 0
    lora_targets: LoraTargets = "all"
    packed_len: float = 0.0

    @property
    def global_batch_tokens(self) -> float:
        """Tokens of a step [tokens]."""
        return float(self.global_batch_sequences * self.seq_len)

    def micro_batch(self, runs: Runs) -> MicroBatch:
        """One micro-batch of each run."""
        return MicroBatch(
            model=self.model,
            runs=runs,
            cluster=self.cluster,
            precision=self.precision,
            seq_len=self.seq_len,
            flash=self.stack.flash_attention,
            sequence_parallel=self.stack.sequence_parallel,
            forwards_tokens=self.stack.forwards_tokens,
            mtp_layers=self.mtp_layers,
            expert_load=self.expert_load,
            lora_rank=self.lora_rank,
            lora_targets=self.lora_targets,
            packed_len=self.packed_len,
        )

    def memory(self, runs: Runs) -> TrainMemory:
        """What the fullest chip holds."""
        return train_memory(
            self.micro_batch(runs),
            global_batch_sequences=self.global_batch_sequences,
            gradient_bytes=self.stack.gradient_bytes,
        )

    def step(self, runs: Runs) -> StepTime:
        """Time of a step."""
        parts = step_parts(
            self.micro_batch(runs),
            calibration=self.calibration,
            global_batch_sequences=self.global_batch_sequences,
        )
        return step_time(parts, self.stack)

    def chip_w(self, runs: Runs, step: StepTime) -> Array:
        """Mean power of a chip over a step, one value per run [W]."""
        return training_w(
            self.micro_batch(runs),
            step,
            calibration=self.calibration,
            global_batch_sequences=self.global_batch_sequences,
        )

    def utilisation(self, runs: Runs, step_s: Array) -> tuple[Array, Array, Array]:
        """(MFU, MFU with causal attention, HFU) of steps of this time."""
        peak = self.cluster.chip.flop_per_s(self.precision.compute)
        whole, causal = (
            as_array(
                mfu(
                    model_flop(
                        self.model,
                        self.seq_len,
                        float(self.global_batch_sequences),
                        causal=causal,
                        frozen=self.lora_rank > 0,
                        packed_len=self.packed_len,
                    ),
                    step_s,
                    as_array(runs.num_chips),
                    peak,
                )
            )
            for causal in (False, True)
        )
        return whole, causal, whole * hardware_share(self.model, runs, self.seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """All runs of a space: time of a step, bytes on the fullest chip; arrays of one length.

    Args:
        timed: how many had their step timed; runs that do not fit are not [count].
    """

    runs: Runs
    step_s: Array
    total_bytes: Array
    timed: int

    def fitting(self, hbm_bytes: float) -> Array:
        """Which fit."""
        return self.total_bytes <= hbm_bytes


def evaluate_runs(
    job: TrainJob, runs: Runs, *, all_runs: bool = False, beside: Callable[[TrainMemory], Array] | None = None
) -> Evaluated:
    """Evaluate runs in chunks; those that do not fit get an endless step.

    Args:
        all_runs: time those as well that do not fit.
        beside: what other models take of each run's fullest chip [bytes]; None for nothing.
    """
    step_s = np.full(len(runs), np.inf)
    total = np.empty(len(runs))
    timed = 0
    for start in range(0, len(runs), CHUNK):
        rows = slice(start, min(start + CHUNK, len(runs)))
        chunk = runs.take(rows)
        memory = job.memory(chunk)
        used = memory.total if beside is None else memory.total + beside(memory)
        total[rows] = used
        keep = np.flatnonzero((used <= job.cluster.chip.hbm_bytes) | all_runs)
        if keep.size:
            step_s[start + keep] = job.step(chunk.take(keep)).step
            timed += int(keep.size)
    return Evaluated(runs=runs, step_s=step_s, total_bytes=total, timed=timed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Which level of the fabric a parallel group works on.

    Args:
        name: tensor, context, experts, data or pipeline.
        size: ranks [count].
        inside: of them in one scale-up domain [count].
        level: "scale-up", "scale-out" or "both".
    """

    json_keys: ClassVar = (
        "group=name",
        "size",
        "inside_domain=inside",
        "level",
    )

    name: str
    size: int
    inside: int
    level: str


def crossings(job: TrainJob, runs: Runs, index: int) -> tuple[Crossing, ...]:
    """Groups of one run, by how they are laid out: tp innermost, then cp and ep, dp, stages outermost."""
    one = runs.layout(index)
    groups = [
        ("tensor", one.tp, 1),
        ("context", one.cp, one.tp),
        ("experts", one.ep, one.expert_tp),
        ("data", one.dp * one.cp, one.tp),
        ("expert data", int(runs.expert_dp()[index]) if job.model.is_moe else 1, one.ep * one.expert_tp),
    ]
    found: list[Crossing] = []
    for name, size, stride in groups:
        if size < 2:
            continue
        group = make_group(job.cluster, float(size), float(stride))
        inside = max(1, round(float(as_array(group.inside))))
        outside = float(as_array(group.outside)) > 1
        level = "both" if outside and inside > 1 else "scale-out" if outside else "scale-up"
        found.append(Crossing(name=name, size=size, inside=inside, level=level))
    if one.pp > 1:
        far = one.num_chips > job.cluster.scale_up.size
        found.append(
            Crossing(
                name="pipeline", size=one.pp, inside=1 if far else one.pp, level="scale-out" if far else "scale-up"
            )
        )
    return tuple(found)
