"""The space of a training run: layouts × micro-batch × schedule × recompute, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rackline.arch import DenseFfn, Model
from rackline.errors import LayoutError
from rackline.hardware import Cluster
from rackline.passes.features import Array
from rackline.training.runs import RECOMPUTE, SCHEDULES, Runs, TrainLayout, check_layout, nearest_multiple, replaced

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_TP = 64
MOST_CP = 16
SHORTEST_SHARE = 1024
"""Context parallelism is not considered where a chip would hold fewer tokens of a sequence."""


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors up to a limit, rising.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    found = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    found += [number // n for n in found]
    return sorted({n for n in found if most is None or n <= most})


def train_space(
    model: Model,
    cluster: Cluster,
    *,
    global_batch_sequences: int,
    seq_len: int,
    fixed: Mapping[str, int] | None = None,
    schedules: Sequence[str] = SCHEDULES,
    recompute: Sequence[str] = RECOMPUTE,
) -> Runs:
    """All runs on all chips of the cluster.

    Args:
        global_batch_sequences: [sequences].
        fixed: parts of the layout that are given.
        schedules, recompute: which of them to look at.

    Raises:
        LayoutError: nothing is possible; names the constraint that the given parts break.
    """
    fixed = dict(fixed or {})
    chips = cluster.num_chips
    columns: list[Array] = []
    for tp, pp, cp in _shapes(model, chips, seq_len, fixed):
        dp = chips // (tp * pp * cp)
        if fixed.get("dp", dp) != dp:
            continue
        micro = [b for b in _given(fixed, "micro_batch", MICRO_BATCHES) if global_batch_sequences % (dp * b) == 0]
        experts = _experts(model, tp, cp, dp, fixed)
        chunks = _chunks(model, pp, fixed)
        if not micro or not experts or not chunks:
            continue
        grid = [
            (tp, pp, v, cp, ep, expert_tp, dp, zero, b, RECOMPUTE.index(again), SCHEDULES.index(name))
            for b in micro
            for v, name in _orders(pp, chunks, global_batch_sequences // (dp * b), schedules)
            for ep, expert_tp in experts
            for zero in _given(fixed, "zero", (1, 2, 3))
            for again in recompute
        ]
        if grid:
            columns.append(np.array(grid, dtype=np.int64))
    if not columns:
        _refuse(model, cluster, global_batch_sequences, seq_len, fixed, schedules)
    table = np.concatenate(columns)
    names = ("tp", "pp", "virtual_pp", "cp", "ep", "expert_tp", "dp", "zero", "micro_batch", "recompute", "schedule")
    return Runs(**{name: table[:, index] for index, name in enumerate(names)})


def _given(fixed: Mapping[str, int], name: str, otherwise: Sequence[int]) -> Sequence[int]:
    return (fixed[name],) if name in fixed else otherwise


def _shapes(model: Model, chips: int, seq_len: int, fixed: Mapping[str, int]) -> list[tuple[int, int, int]]:
    """(tp, pp, cp) that fill all chips and cut no head, layer or sequence."""
    tps = [tp for tp in _given(fixed, "tp", divisors(chips, MOST_TP)) if _tp_fits(model, tp)]
    pps = [pp for pp in _given(fixed, "pp", divisors(chips, model.num_layers)) if pp <= model.num_layers]
    most_cp = max(1, min(MOST_CP, seq_len // SHORTEST_SHARE))
    cps = _given(fixed, "cp", [cp for cp in divisors(chips, most_cp) if seq_len % (2 * cp) == 0])
    return [(tp, pp, cp) for tp in tps for pp in pps for cp in cps if chips % (tp * pp * cp) == 0]


def _tp_fits(model: Model, tp: int) -> bool:
    for core in model.cores().values():
        heads, kv_heads = core.num_q_heads, core.num_kv_heads
        if heads % tp or (kv_heads and kv_heads % tp and tp % kv_heads):
            return False
    return all(group.ffn.d_ff % tp == 0 for group in model.layer_groups if isinstance(group.ffn, DenseFfn))


def _experts(model: Model, tp: int, cp: int, dp: int, fixed: Mapping[str, int]) -> list[tuple[int, int]]:
    moe = model.moe()
    if moe is None:
        return [(1, 1)] if fixed.get("ep", 1) * fixed.get("expert_tp", 1) == 1 else []
    ranks = tp * cp * dp
    found: list[tuple[int, int]] = []
    for expert_tp in _given(fixed, "expert_tp", sorted({1, tp})):
        for ep in _given(fixed, "ep", divisors(moe.num_experts)):
            if moe.num_experts % ep == 0 and ranks % (ep * expert_tp) == 0 and moe.d_expert % expert_tp == 0:
                found.append((ep, expert_tp))
    return found


def _chunks(model: Model, pp: int, fixed: Mapping[str, int]) -> list[int]:
    """Parts of the layers that a stage may hold."""
    if pp == 1:
        return [1] if fixed.get("virtual_pp", 1) == 1 else []
    most = -(-model.num_layers // pp)
    return [v for v in _given(fixed, "virtual_pp", range(1, most + 1)) if v <= most]


def _orders(pp: int, chunks: Sequence[int], micro_batches: int, schedules: Sequence[str]) -> list[tuple[int, str]]:
    """(virtual_pp, schedule) that this number of micro-batches allows."""
    if pp == 1:  # without a pipeline all are one
        return [(1, "1f1b")]
    found: list[tuple[int, str]] = []
    for v in chunks:
        if v > 1:
            if "interleaved" in schedules and micro_batches % pp == 0:
                found.append((v, "interleaved"))
            continue
        found += [(1, name) for name in schedules if name in ("1f1b", "gpipe", "zb-h1", "zb-h2")]
        if "zb-v" in schedules and max(chunks) > 1:
            found.append((1, "zb-v"))
        if "dualpipe" in schedules and pp % 2 == 0 and micro_batches % 2 == 0 and micro_batches >= 2 * pp:
            found.append((1, "dualpipe"))
    return found


def _far(wanted: int) -> Callable[[int], tuple[int, int]]:
    return lambda number: (abs(number - wanted), number)


def _listed(numbers: Sequence[int], most: int = 6) -> str:
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")


def _refuse(
    model: Model,
    cluster: Cluster,
    global_batch_sequences: int,
    seq_len: int,
    fixed: Mapping[str, int],
    schedules: Sequence[str],
) -> None:
    """Say which constraint the given parts break; without given parts, chips and batch do not go together."""
    chips = cluster.num_chips
    if not fixed:
        replicas = sorted({chips // (tp * pp * cp) for tp, pp, cp in _shapes(model, chips, seq_len, {})})
        near = min((nearest_multiple(global_batch_sequences, dp) for dp in replicas), key=_far(global_batch_sequences))
        raise LayoutError(
            what="--global-batch",
            given=f"{global_batch_sequences} sequences on {chips} chips",
            allowed=f"a multiple of the replicas that {chips} chips can make: {_listed(replicas)}",
            nearest=f"{near} sequences of {seq_len} tokens",
        )
    for tp in (fixed["tp"],) if "tp" in fixed and not _tp_fits(model, fixed["tp"]) else ():
        check_layout(TrainLayout(tp=tp), model, cluster, global_batch_sequences, seq_len)
    per_replica = fixed.get("tp", 1) * fixed.get("pp", 1) * fixed.get("cp", 1)
    if chips % per_replica:
        raise LayoutError(
            what="--layout",
            given=",".join(f"{key}={value}" for key, value in fixed.items()),
            allowed=f"tp·pp·cp = {per_replica} to divide {chips} chips",
            nearest=f"{max(1, round(chips / per_replica)) * per_replica} chips",
        )
    dp = fixed.get("dp", chips // per_replica)
    layout = replaced(TrainLayout(dp=dp), **fixed)
    check_layout(layout, model, cluster, global_batch_sequences, seq_len)
    pp, chunks = layout.pp, _chunks(model, layout.pp, fixed)
    if not _orders(pp, chunks, global_batch_sequences // (layout.dp * layout.micro_batch), schedules):
        raise LayoutError(
            what="--layout",
            given=f"pp={pp}",
            allowed=f"a pipeline under one of these schedules: {', '.join(schedules)}; use --schedule for others"
            if schedules
            else "no pipeline: the stack has none; use --schedule to choose one anyway",
            nearest="pp=1",
        )
    raise LayoutError(
        what="global batch",
        given=f"{global_batch_sequences} sequences",
        allowed=f"a multiple of the replicas that {chips} chips make with this layout",
        nearest=f"{max(1, round(global_batch_sequences / dp)) * dp} sequences",
    )
