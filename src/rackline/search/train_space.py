"""The space of a training run, layouts × micro-batch × schedule × recompute as arrays, and its evaluation at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rackline.arch import Model
from rackline.errors import LayoutError, require
from rackline.passes.features import Array
from rackline.training.contexts import context_method
from rackline.training.memory import TrainMemory, train_memory
from rackline.training.runs import (
    RECOMPUTE,
    SCHEDULES,
    Runs,
    TrainLayout,
    attention_problem,
    check_layout,
    experts_problem,
    nearest_multiple,
)
from rackline.training.step import StepTime, step_parts, step_time
from rackline.training.system import MicroBatch, TrainingSystem

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_TP = 64
MOST_CP = 64
# context parallelism is not considered where a chip would hold fewer tokens of a sequence
SHORTEST_SHARE = 1024
# runs that are evaluated together: their arrays stay in the cache
CHUNK = 8192
# micro-batches of a step on each replica up to which a rounded batch is divided further
MICRO_BATCHES_OF_A_STEP = 64
# how far a batch may be moved so that replicas can share it: 16M tokens in sequences of 8192 are 2048 of them
ROUNDING = 0.06


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors up to a limit, rising.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    found = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    found += [number // n for n in found]
    return sorted({n for n in found if most is None or n <= most})


def train_space(
    system: TrainingSystem,
    *,
    fixed: Mapping[str, int] | None = None,
    schedules: Sequence[str] = SCHEDULES,
    recompute: Sequence[str] = RECOMPUTE,
) -> Runs:
    """All runs on all chips of the system.

    Args:
        fixed: parts of the layout that are given.
        schedules, recompute: which of them to look at.

    Raises:
        LayoutError: nothing is possible; names the constraint that the given parts break.
    """
    fixed = fixed or {}
    model, chips, sequences = system.model, system.cluster.num_chips, system.global_batch_sequences
    columns: list[Array] = []
    for tp, pp, cp in _shapes(system, fixed):
        dp = chips // (tp * pp * cp)
        if fixed.get("dp", dp) != dp:
            continue
        chunks = _chunks(model, pp, fixed)
        grid = [
            (tp, pp, v, cp, ep, expert_tp, dp, zero, fsdp, b, RECOMPUTE.index(again), SCHEDULES.index(name))
            for b in _given(fixed, "micro_batch", MICRO_BATCHES)
            if sequences % (dp * b) == 0
            for v, name in _orders(pp, chunks, sequences // (dp * b), schedules)
            for ep, expert_tp in _experts(model, tp, cp, dp, fixed)
            for zero in _given(fixed, "zero", (1, 2, 3))
            for fsdp in _given(fixed, "fsdp", _shard_groups(system, tp * cp, dp) if zero == 3 else (0,))
            if dp % max(fsdp, 1) == 0
            for again in recompute
        ]
        if grid:
            columns.append(np.array(grid, dtype=np.int64))
    if not columns:
        raise _refused(system, fixed, schedules)
    return Runs(**dict(zip([f.name for f in fields(Runs)], np.concatenate(columns).T, strict=True)))


def _given(fixed: Mapping[str, int], name: str, otherwise: Sequence[int]) -> Sequence[int]:
    return (fixed[name],) if name in fixed else otherwise


def _shapes(system: TrainingSystem, fixed: Mapping[str, int]) -> list[tuple[int, int, int]]:
    """(tp, pp, cp) that fill all chips and cut no head, layer or sequence."""
    model, chips, seq_len = system.model, system.cluster.num_chips, system.seq_len
    tps = [
        tp
        for tp in _given(fixed, "tp", divisors(chips, MOST_TP))
        if attention_problem(TrainLayout(tp=tp), model) is None
    ]
    pps = [pp for pp in _given(fixed, "pp", divisors(chips, model.num_layers)) if pp <= model.num_layers]
    most_cp = max(1, min(MOST_CP, seq_len // SHORTEST_SHARE))
    cps = _given(fixed, "cp", [cp for cp in divisors(chips, most_cp) if seq_len % (2 * cp) == 0])
    how = context_method(system.stack.parallelism.context)
    heads = [core.num_q_heads for core in model.cores().values() if core.num_q_heads]

    def cuts(tp: int, cp: int) -> bool:
        return cp == 1 or not how.cuts_heads or all(number % (tp * cp) == 0 for number in heads)

    return [(tp, pp, cp) for tp in tps for pp in pps for cp in cps if chips % (tp * pp * cp) == 0 and cuts(tp, cp)]


def _shard_groups(system: TrainingSystem, stride: int, dp: int) -> tuple[int, ...]:
    """Replicas that weights are sharded over: all, and under stacks that can those of one scale-up domain."""
    inside = math.gcd(dp, max(system.cluster.scale_up.size // stride, 1))
    return (0, inside) if system.stack.parallelism.hybrid_shards and 1 < inside < dp else (0,)


def _experts(model: Model, tp: int, cp: int, dp: int, fixed: Mapping[str, int]) -> list[tuple[int, int]]:
    """(ep, expert_tp) that the experts of a model allow."""
    moe = model.moe()
    most = divisors(moe.num_experts) if moe else [1]
    return [
        (ep, expert_tp)
        for expert_tp in _given(fixed, "expert_tp", sorted({1, tp}) if moe else [1])
        for ep in _given(fixed, "ep", most)
        if experts_problem(TrainLayout(tp=tp, cp=cp, dp=dp, ep=ep, expert_tp=expert_tp), model) is None
    ]


def _chunks(model: Model, pp: int, fixed: Mapping[str, int]) -> list[int]:
    """Parts of the layers that a stage may hold."""
    if pp == 1:
        return [1] if fixed.get("virtual_pp", 1) == 1 else []
    most = -(-model.num_layers // pp)
    return [v for v in _given(fixed, "virtual_pp", range(1, most + 1)) if v <= most]


def _orders(pp: int, chunks: Sequence[int], micro_batches: int, schedules: Sequence[str]) -> list[tuple[int, str]]:
    """(virtual_pp, schedule) that this number of micro-batches allows."""
    if pp == 1:  # without a pipeline all are one
        return [(1, "1f1b")] if chunks else []
    able = {
        **dict.fromkeys(("1f1b", "gpipe", "zb-h1", "zb-h2"), True),
        "zb-v": max(chunks, default=1) > 1,
        "dualpipe": pp % 2 == 0 and micro_batches % 2 == 0 and micro_batches >= 2 * pp,
    }
    whole = [name for name in schedules if name not in ("zb-v", "dualpipe")]
    whole += [name for name in ("zb-v", "dualpipe") if name in schedules]
    cut = ["interleaved"] if "interleaved" in schedules and micro_batches % pp == 0 else []
    return [(v, name) for v in chunks for name in (cut if v > 1 else whole) if v > 1 or able.get(name)]


def _refused(system: TrainingSystem, fixed: Mapping[str, int], schedules: Sequence[str]) -> LayoutError:
    """The constraint that the given parts break; without given parts, chips and batch do not go together."""
    model, chips, sequences = system.model, system.cluster.num_chips, system.global_batch_sequences
    if not fixed:
        replicas = sorted({chips // (tp * pp * cp) for tp, pp, cp in _shapes(system, {})})
        near = min((nearest_multiple(sequences, dp) for dp in replicas), key=lambda n: (abs(n - sequences), n))
        listed = ", ".join(map(str, replicas[:6])) + (", ..." if len(replicas) > 6 else "")
        return LayoutError(
            what="global_batch",
            given=f"{sequences} sequences on {chips} chips",
            allowed=f"a multiple of the replicas that {chips} chips can make: {listed}",
            nearest=f"{near} sequences of {system.seq_len} tokens",
        )
    if "tp" in fixed and attention_problem(TrainLayout(tp=fixed["tp"]), model):
        check_layout(TrainLayout(tp=fixed["tp"]), model, system.cluster, sequences, system.seq_len)
    per_replica = fixed.get("tp", 1) * fixed.get("pp", 1) * fixed.get("cp", 1)
    if chips % per_replica:
        return LayoutError(
            what="layout",
            given=",".join(f"{key}={value}" for key, value in fixed.items()),
            allowed=f"tp·pp·cp = {per_replica} to divide {chips} chips",
            nearest=f"{max(1, round(chips / per_replica)) * per_replica} chips",
        )
    tp, cp = fixed.get("tp", 1), fixed.get("cp", 1)
    context = system.stack.parallelism.context
    if cp > 1 and context_method(context).cuts_heads and not _shapes(system, {"tp": tp, "cp": cp}):
        heads = max(core.num_q_heads for core in model.cores().values())
        return LayoutError(
            what="layout",
            given=f"tp={tp},cp={cp}",
            allowed=f"tp·cp to divide the {heads} heads, as {context} gives each chip whole heads",
            nearest=f"cp={max(heads // tp, 1)}",
        )
    layout = replace(TrainLayout(dp=fixed.get("dp", chips // per_replica)), **fixed)
    check_layout(layout, model, system.cluster, sequences, system.seq_len)
    if not _orders(
        layout.pp, _chunks(model, layout.pp, fixed), sequences // (layout.dp * layout.micro_batch), schedules
    ):
        return LayoutError(
            what="layout",
            given=f"pp={layout.pp}",
            allowed=f"a pipeline under one of these schedules: {', '.join(schedules)}; use `schedule` for others"
            if schedules
            else "no pipeline: the stack has none; use `schedule` to choose one anyway",
            nearest="pp=1",
        )
    return LayoutError(
        what="global batch",
        given=f"{sequences} sequences",
        allowed=f"a multiple of the replicas that {chips} chips make with this layout",
        nearest=f"{max(1, round(sequences / layout.dp)) * layout.dp} sequences",
    )


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


def evaluate_runs(
    system: TrainingSystem, runs: Runs, *, all_runs: bool = False, beside: Callable[[TrainMemory], Array] | None = None
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
        memory = train_memory(MicroBatch(system=system, runs=chunk))
        used = memory.total if beside is None else memory.total + beside(memory)
        total[rows] = used
        keep = np.flatnonzero((used <= system.cluster.chip.hbm_bytes) | all_runs)
        if keep.size:
            step_s[start + keep] = timed_steps(system, chunk.take(keep)).step
            timed += int(keep.size)
    return Evaluated(runs=runs, step_s=step_s, total_bytes=total, timed=timed)


def timed_steps(system: TrainingSystem, runs: Runs) -> StepTime:
    """Time of a step of each run."""
    return step_time(step_parts(MicroBatch(system=system, runs=runs)), system.stack)


def whole_batch(tokens: float, seq_len: int, num_chips: int) -> int:
    """Sequences of a batch of about this many tokens: within 6 %, the count that replicas divide best.

    Replicas share a batch evenly and their number divides the chips, so what counts is the greatest common divisor of
    sequences and chips. A whole count with which it is as large as with any other stays; else the count wins with which
    it is largest, of equals the one that micro-batches divide further, and of those the nearest.

    Args:
        tokens: asked for [tokens].
        seq_len: [tokens].
        num_chips: [count].

    Raises:
        InputError: less than one sequence.

    >>> whole_batch(16e6, 8192, 1024), whole_batch(4096.0 * 1000, 4096, 8), whole_batch(64e6, 4096, 512)
    (2048, 1000, 16384)
    >>> whole_batch(4e6, 8192, 2000)  # 500 replicas divide 500 sequences; 512 is a rounder number, but 16 divide it
    500
    """
    exact = tokens / seq_len
    require(
        exact >= 0.5,
        what="global_batch",
        given=f"{tokens:g} tokens",
        allowed=f"at least one sequence of {seq_len} tokens",
        nearest=str(seq_len),
    )
    low, high = math.ceil(exact * (1.0 - ROUNDING)), math.floor(exact * (1.0 + ROUNDING))
    near = np.arange(max(low, 1), max(high, 1) + 1)
    near = near[np.argsort(np.abs(near - exact), kind="stable")]
    if not near.size or low > high:
        return max(1, round(exact))
    shared = np.gcd(near, num_chips)
    if exact.is_integer() and math.gcd(int(exact), num_chips) == int(shared.max()):
        return int(exact)
    near = near[shared == shared.max()]
    return int(near[np.argmax(np.gcd(near, num_chips * MICRO_BATCHES_OF_A_STEP))])
