"""What follows from the deployment that a plan has chosen: its fleet, draft tokens, attention and experts apart.

**Attention and experts apart.** Each pool is sized to its own bottleneck, with token exchange between them. A attention
ranks of tp chips hold the KV caches and the attention weights; F chips hold the experts. m micro-batches take turns, so
that one pool works while the tokens of another micro-batch are in the other pool or in transit. With t_a and t_f the
time of one layer of a micro-batch in each pool, and t_d and t_c the times of dispatch and combine,

    tpot = layers · max(t_a + t_f + t_d + t_c, m · max(t_a, t_f, t_d, t_c))
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import ClassVar

import numpy as np

from rackline.arch import Model, MoeFfn
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.parallel import Layout, Precision
from rackline.parallel.layout import is_usual, problem
from rackline.parallel.memory import kv_bytes_per_sequence, runtime_bytes, weight_bytes
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch
from rackline.passes.features import ONE, Array, as_array
from rackline.passes.routing import distinct_ranks
from rackline.passes.row import Row, row_numbers, row_seconds
from rackline.passes.table import PassTable
from rackline.search.choice import Choice
from rackline.search.plan import Plan
from rackline.search.pools import without_context
from rackline.search.space import BATCH_GRID
from rackline.serving.fleet import Fleet, Part, Traffic, fleet, fleet_of_users
from rackline.serving.open_loop import Population, Response
from rackline.serving.workload import PLAIN, Speculation, Workload, breakeven_tokens, usual_speculation
from rackline.system import System


def plan_fleet(
    traffic: Traffic | None,
    answer: Plan,
    prefill_on: Cluster | None = None,
    users: Population | None = None,
    *,
    pue: float = 1.0,
) -> Fleet | None:
    """Copies of the cheapest deployment: one replica of an aggregated plan, or a pair of pools; None without an answer.

    With an engine on chips that are left free, a copy is as many replicas as share one such engine.

    Args:
        traffic: of the fleet; None where it was not asked for.
        prefill_on: cluster of the prefill pool where it has its own.
        users: where the traffic follows from them; then only its peak counts.
        pue: power of the site over that of the machines [1].
    """
    best = answer.best
    if best is None or traffic is None:
        return None
    parts, copies = _parts(best, answer.system.cluster, prefill_on)
    output_len = best.workload.output_len
    if users is not None:
        return fleet_of_users(users, traffic, output_len, _response(best, copies), parts, pue=pue)
    rate = best.requests_per_s_with_leftover / copies * output_len
    return replace(fleet(traffic, rate, parts, pue=pue), requests_per_s=traffic.tokens_per_s / output_len)


def _parts(best: Choice, cluster: Cluster, prefill_on: Cluster | None) -> tuple[tuple[Part, ...], int]:
    """Chips of one copy, and copies in the plan."""
    first, then, left, energy = best.prefill_pool, best.decode_pool, best.leftover, best.energy
    beside: Part | None = None
    if left is not None:
        layout = left.choice.layout
        count = layout.dp * left.places
        power = left.choice.energy and left.choice.energy.power
        size = layout.chips_per_replica
        beside = Part(cluster=cluster, replica_chips=size, replicas=count, beside=True, power=power)
    if first is not None and then is not None:
        decode = Part(
            cluster=cluster,
            replica_chips=then.layout.chips_per_replica,
            replicas=then.layout.dp,
            power=energy and energy.power,
        )
        prefill = Part(
            cluster=prefill_on or cluster,
            replica_chips=first.layout.chips_per_replica,
            replicas=first.layout.dp,
            power=energy and energy.prefill_power,
        )
        return (decode, prefill, *(() if beside is None else (beside,))), 1
    size, copies = best.layout.chips_per_replica, best.layout.dp
    if beside is None:
        return (Part(cluster=cluster, replica_chips=size, power=energy and energy.power),), copies
    together = gcd(copies, beside.replicas)
    shared = replace(beside, replicas=beside.replicas // together)
    engine = Part(cluster=cluster, replica_chips=size, replicas=copies // together, power=energy and energy.power)
    return (engine, shared), together


def _response(best: Choice, copies: int) -> Response:
    """How long a request takes on one copy."""
    steps = best.workload.output_len - 1.0
    loaded_s = best.ttft_s + steps * best.tpot_s
    alone_s = (
        loaded_s
        if best.sustained is None
        else best.sustained.alone_s["ttft_s"] + steps * best.sustained.alone_s["tpot_s"]
    )
    rate = best.requests_per_s_with_leftover / copies
    return Response(alone_s=min(alone_s, loaded_s), loaded_s=loaded_s, requests_per_s=rate)


USUAL_DRAFTS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRow:
    """One number of drafts on one replica; arrays over batches.

    Args:
        speculation: drafts and the tokens that a step yields.
        sequences_per_rank: of one rank and micro-batch [sequences].
        tpot_s: time per output token [s].
        breakeven: tokens per step above which drafting pays [tokens].
        pays_up_to: largest batch at which it is faster than one token per step; 0 when at none [sequences].
        best_batch: largest batch that meets the limit; 0 when none does [sequences].
        output_tokens_per_s_per_chip: at that batch [tokens/s].
    """

    json_keys: ClassVar = (
        "draft_tokens=speculation.draft_tokens",
        "tokens_per_step=speculation.tokens_per_step",
        "sequences_per_rank",
        "tpot_s",
        "breakeven_tokens=breakeven",
        "pays_up_to",
        "best_batch",
        "output_tokens_per_s_per_chip",
    )

    speculation: Speculation
    sequences_per_rank: Array
    tpot_s: Array
    breakeven: Array
    pays_up_to: int
    best_batch: int
    output_tokens_per_s_per_chip: float


def speculation_rows(
    system: System,
    layout: Layout,
    precision: Precision,
    workload: Workload,
    speculations: Sequence[Speculation],
    *,
    largest_batch: int,
    tpot_limit_s: float | None,
) -> list[SpeculationRow]:
    """Decode steps with and without drafts over batches, the plain one first.

    Args:
        largest_batch: sequences of a rank that memory holds [sequences].
        tpot_limit_s: None for no limit [s].

    Assumes: passes that only decode; the drafts' own weights and cache take no memory worth counting.
    """
    batches = np.unique(np.rint(np.geomspace(1, max(largest_batch, 1), 96)))
    chips_batches = layout.attention_dp * layout.pp / layout.chips_per_replica
    rows: list[SpeculationRow] = []
    plain: Array | None = None
    for speculation in (PLAIN, *speculations):
        engine = system.engine(layout, precision, speculation)
        batch = Batch(
            decode_sequences=batches, decode_tokens=speculation.verified_tokens, context_len=workload.mean_context
        )
        verify = engine.decode_s(batch, engine.time_table(False), two_batch_overlap=False)
        drafts = np.broadcast_to(engine.drafts_s(batches, workload.mean_context), verify.shape)
        tpot = (verify + drafts) / speculation.tokens_per_step
        plain = tpot if plain is None else plain
        faster = np.flatnonzero(tpot < plain)
        kept = np.flatnonzero(tpot <= tpot_limit_s) if tpot_limit_s is not None else np.arange(batches.size)
        best = int(kept[-1]) if kept.size else -1
        count = speculation.draft_tokens
        rows.append(
            SpeculationRow(
                speculation=speculation,
                sequences_per_rank=batches,
                tpot_s=tpot,
                breakeven=np.array(
                    [
                        breakeven_tokens(v, d / max(count, 1), p, count)
                        for v, d, p in zip(verify, drafts, plain, strict=True)
                    ]
                ),
                pays_up_to=int(batches[faster[-1]]) if faster.size else 0,
                best_batch=int(batches[best]) if best >= 0 else 0,
                output_tokens_per_s_per_chip=float(batches[best] * chips_batches / tpot[best]) if best >= 0 else 0.0,
            )
        )
    return rows


def paying_drafts(plan: Plan, rows: Sequence[SpeculationRow]) -> SpeculationRow | None:
    """The drafts with which a plan's answer is fastest at its most running sequences; None where none pays.

    Engines draft with each of the model's own layers in turn, as often as all of them or a multiple of that.
    """
    best, model = plan.best, plan.system.model
    if best is None or not isinstance(model, Model):
        return None
    own = 1 if model.draft is not None else max(model.mtp_layers, 1)
    plain, *others = rows
    able = [row for row in others if row.speculation.draft_tokens <= own or row.speculation.draft_tokens % own == 0]

    def tpot_s(row: SpeculationRow) -> float:
        return float(np.interp(best.max_num_seqs, row.sequences_per_rank, row.tpot_s))

    found = min(able, key=tpot_s, default=plain)
    return found if tpot_s(found) < tpot_s(plain) else None


def plan_speculation(plan: Plan, speculations: Sequence[Speculation] | None = None) -> list[SpeculationRow]:
    """The decode replica of a plan's cheapest deployment with drafts; empty without an answer.

    Args:
        speculations: drafts and acceptance; 1 to 4 drafts with the acceptance usually measured by default.

    Raises:
        InputError: a model without layers.
    """
    system, workload = plan.system, plan.demand.workload
    if not isinstance(system.model, Model):
        raise InputError(what="speculation", given=system.model.name, allowed="a model with layers")
    best = plan.best
    if best is None:
        return []
    layout, precision = without_context(best.layout, system.model), best.precision
    fits = system.deployment(layout, precision).max_sequences(
        context_len=workload.final_context, server=system.server()
    )
    return speculation_rows(
        system,
        layout,
        precision,
        workload,
        list(speculations) if speculations else [usual_speculation(count) for count in USUAL_DRAFTS],
        largest_batch=fits // (layout.attention_dp * layout.pp),
        tpot_limit_s=plan.demand.limits.tpot_s,
    )


EXPERT_GROUPS = ("experts", "expert parallel")
EXPERT_WEIGHTS = ("experts", "shared_experts", "router")
MICRO_BATCHES = (2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFfnSplit:
    """A split of the layers over an attention pool and an expert pool.

    Args:
        attention_ranks, tp: ranks of the attention pool, and chips per rank [count].
        ffn_chips: chips that hold the experts [count].
        micro_batches: micro-batches that take turns [count].
        sequences_per_rank: sequences of one attention rank, in all micro-batches together [sequences].
        attention_s, ffn_s, dispatch_s, combine_s: times of one layer of one micro-batch [s].
        tpot_s: time per output token [s].
        output_tokens_per_s_per_chip: output over the chips of both pools [tokens/s].
    """

    json_keys: ClassVar = (
        "num_chips",
        "attention_ranks",
        "tp",
        "ffn_chips",
        "micro_batches",
        "sequences_per_rank",
        "attention_s",
        "ffn_s",
        "dispatch_s",
        "combine_s",
        "tpot_s",
        "output_tokens_per_s_per_chip",
    )

    attention_ranks: int
    tp: int
    ffn_chips: int
    micro_batches: int
    sequences_per_rank: int
    attention_s: float
    ffn_s: float
    dispatch_s: float
    combine_s: float
    tpot_s: float
    output_tokens_per_s_per_chip: float

    @property
    def num_chips(self) -> int:
        """Chips of both pools."""
        return self.attention_ranks * self.tp + self.ffn_chips


def layer_s(attention_s: Array, ffn_s: Array, dispatch_s: Array, combine_s: Array, micro_batches: int) -> Array:
    """Time of one layer in a steady ping-pong of micro-batches [s].

    Args:
        attention_s, ffn_s, dispatch_s, combine_s: times of one micro-batch [s].
        micro_batches: m [count].

    Sources: MegaScale-Infer, arXiv:2504.02263, ping-pong pipeline: full when m is at least twice (1 + t_c / t).

    >>> float(layer_s(np.array(1.0), np.array(1.0), np.array(0.5), np.array(0.5), 2))
    3.0
    >>> float(layer_s(np.array(1.0), np.array(1.0), np.array(0.5), np.array(0.5), 4))
    4.0
    """
    slowest = np.maximum(np.maximum(attention_s, ffn_s), np.maximum(dispatch_s, combine_s))
    return np.maximum(attention_s + ffn_s + dispatch_s + combine_s, micro_batches * slowest)


def split_attention_ffn(
    system: System, workload: Workload, *, tpot_limit_s: float | None = None
) -> AttentionFfnSplit | None:
    """The split with most tokens per second and chip that fits and meets the limit; None when there is none.

    Args:
        system: in one precision.
        tpot_limit_s: largest time per output token; None for no limit [s].

    Raises:
        InputError: the model has no experts, or its layers are not known.

    Assumes: both pools in one domain when they fit; the links of a chip carry dispatch and combine in turn; leading
        dense layers and the head run in the attention pool.
    """
    model, cluster = system.model, system.cluster
    moe = model.moe() if isinstance(model, Model) else None
    if not isinstance(model, Model) or moe is None:
        raise InputError(what="attention-ffn", given=model.name, allowed="a mixture of experts")
    sizes = [n for n in range(2, cluster.num_chips) if is_usual(n) and moe.num_experts >= n]
    holders = [Layout(tp=tp, ep=tp) for tp in (1, 2, 4, 8) if tp < cluster.num_chips]
    pools = [_Attention.of(system, model, one, workload) for one in holders if problem(one, model) is None]
    splits = (
        split
        for attention, chips in itertools.product(pools, sizes)
        if attention is not None
        for split in _with_experts(attention, moe, chips, tpot_limit_s)
    )
    return max(splits, key=lambda split: split.output_tokens_per_s_per_chip, default=None)


def plan_split(plan: Plan) -> AttentionFfnSplit | None:
    """The best split with the precision and limits of the plan's cheapest deployment.

    Raises:
        InputError: as `split_attention_ffn`.
    """
    chosen, model = plan.best, plan.system.model
    if not isinstance(model, Model):
        raise InputError(what="attention-ffn", given=model.name, allowed="a mixture of experts")
    if chosen is None:
        return None
    return split_attention_ffn(
        replace(plan.system, precisions=(chosen.precision,)),
        plan.demand.workload,
        tpot_limit_s=plan.demand.limits.tpot_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """One attention rank, and the batches that fit in its memory."""

    system: System
    model: Model
    workload: Workload
    tp: int
    table: PassTable
    batches: Array

    @classmethod
    def of(cls, system: System, model: Model, layout: Layout, workload: Workload) -> _Attention | None:
        held = weight_bytes(model, layout, system.precision)
        weights = sum(float(as_array(value)) for kind, value in held.items() if kind not in EXPERT_WEIGHTS)
        each = float(as_array(kv_bytes_per_sequence(model, layout, system.precision, workload.final_context)))
        kept = float(as_array(runtime_bytes(layout, system.server())))
        room = _usable_bytes(system) - weights - kept
        if room < each:
            return None
        table = system.deployment(layout).table()
        batches = np.asarray(BATCH_GRID, dtype=float)
        return cls(
            system=system,
            model=model,
            workload=workload,
            tp=layout.tp,
            table=replace(table, rows=tuple(row for row in table.rows if row.group not in EXPERT_GROUPS)),
            batches=batches[batches * each <= room],
        )


def _usable_bytes(system: System) -> float:
    return system.cluster.chip.program_bytes * system.stack.memory.memory_fraction


def _with_experts(
    attention: _Attention, moe: MoeFfn, chips: int, tpot_limit_s: float | None
) -> Iterator[AttentionFfnSplit]:
    """The best number of attention ranks and batch for a number of expert chips, of each number of micro-batches."""
    system, model, cluster = attention.system, attention.model, attention.system.cluster
    layout = Layout(attention_dp=chips, ep=chips)
    held = weight_bytes(model, layout, system.precision)
    weights = sum(float(as_array(held.get(kind, 0.0))) for kind in EXPERT_WEIGHTS)
    most = (cluster.num_chips - chips) // attention.tp
    kept = float(as_array(runtime_bytes(layout, system.server())))
    if most < 1 or weights + kept > _usable_bytes(system):
        return
    table = system.deployment(layout).table()
    experts = replace(table, rows=tuple(row for row in table.rows if row.group == "experts"))
    ranks = np.arange(1, most + 1, dtype=float)[:, None]
    batches = attention.batches[None, :]
    moe_layers = sum(group.count for group in model.layer_groups if isinstance(group.ffn, MoeFfn))
    copies = float(distinct_ranks(chips, moe.num_experts, moe.experts_per_token, moe.num_groups, moe.groups_per_token))
    for count in MICRO_BATCHES:
        b = batches / count
        attention_s = attention.table.seconds(
            Batch(decode_sequences=b.ravel(), context_len=attention.workload.mean_context)
        )[None, :]
        tokens = ranks * b
        ffn_s = experts.seconds(Batch(decode_sequences=tokens / chips, group_tokens=tokens))
        one_a, one_f = attention_s / model.num_layers, ffn_s / moe_layers
        sizes = (storage_bytes(system.precision.expert_activations), 2.0)
        busiest = np.maximum(b / attention.tp * copies, tokens * copies / chips)
        width = moe.expert_d_in(model.d_model)
        sent = [_exchange_s(attention, busiest * width * size, ranks * attention.tp + chips) for size in sizes]
        layers = layer_s(one_a + 0.0 * tokens, one_f, sent[0], sent[1], count)
        tpot = moe_layers * layers + (model.num_layers - moe_layers) * count * one_a
        rate = batches * ranks / tpot / (ranks * attention.tp + chips)
        rate = np.where(b >= 1.0, rate, 0.0)
        if tpot_limit_s is not None:
            rate = np.where(tpot <= tpot_limit_s, rate, 0.0)
        row, column = np.unravel_index(int(np.argmax(rate)), rate.shape)
        if rate[row, column] > 0:
            yield AttentionFfnSplit(
                attention_ranks=int(ranks[row, 0]),
                tp=attention.tp,
                ffn_chips=chips,
                micro_batches=count,
                sequences_per_rank=int(batches[0, column]),
                attention_s=float(one_a[0, column]),
                ffn_s=float(one_f[row, column]),
                dispatch_s=float(sent[0][row, column]),
                combine_s=float(sent[1][row, column]),
                tpot_s=float(tpot[row, column]),
                output_tokens_per_s_per_chip=float(rate[row, column]),
            )


def _exchange_s(attention: _Attention, num_bytes: Array, chips: Array) -> Array:
    """One dispatch or combine between the pools, one message step [s]."""
    cluster = attention.system.cluster
    inside = 1.0 * (chips <= cluster.scale_up.size) if cluster.scale_out is not None else np.ones_like(chips)
    row = Row(
        name="pool_exchange",
        group="expert parallel",
        op_class="all_to_all",
        dtype="bf16",
        scale_up={ONE: num_bytes * inside},
        scale_out={} if cluster.scale_out is None else {ONE: num_bytes * (1.0 - inside)},
        launches={ONE: 1.0},
        group_size=chips,
        scale_up_steps=inside,
        scale_out_steps=1.0 - inside,
    )
    return as_array(row_seconds(row_numbers(row, attention.system.calibration, cluster.chip, cluster), {ONE: 1.0}))
