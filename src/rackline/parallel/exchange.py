"""Rows of the fabric: communication of one pass, per chip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rackline.arch import Model, MoeFfn
from rackline.hardware import Cluster
from rackline.parallel.layout import Sharding
from rackline.parallel.precision import Precision, storage_bytes
from rackline.passes import collectives as c
from rackline.passes import features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.routing import distinct_ranks
from rackline.passes.row import Row

CLASS_OF = {
    "ring": "all_reduce_ring",
    "two_shot": "all_reduce_two_shot",
    "one_shot": "all_reduce_one_shot",
    "tree": "all_reduce_tree",
    "direct": "all_to_all",
    "forwarded": "all_to_all",
    "gathered": "all_gather",
}


def make_group(cluster: Cluster, size: FloatLike, stride: FloatLike = 1) -> c.Group:
    """Ranks of a parallel group, split over the fabric levels of the cluster."""
    level = cluster.scale_up
    inside, outside = c.split_group(size, stride, level.size)
    if level.topology != "torus" or not level.torus_axes:
        return c.Group(inside=inside, outside=outside, in_network=level.in_network_reduction)
    axis = float(np.prod(level.torus_axes)) ** (1.0 / len(level.torus_axes))
    return c.Group(
        inside=inside,
        outside=outside,
        torus_axis=np.minimum(axis, inside),
        torus_axes=float(len(level.torus_axes)),
    )


def torus_penalty(cluster: Cluster, group: c.Group) -> Array:
    """Links that stay idle because the group spans fewer axes than the torus has: axes / axes used."""
    axes = cluster.scale_up.torus_axes
    if cluster.scale_up.topology != "torus" or not axes:
        return np.ones_like(as_array(group.inside))
    longest = float(max(axes))
    used = np.ceil(np.log(np.maximum(as_array(group.inside), 1.0001)) / np.log(max(longest, 2.0)))
    return len(axes) / np.clip(used, 1.0, len(axes))


def collective_rows(
    name: str,
    *,
    cluster: Cluster,
    group: c.Group,
    algorithms: tuple[Callable[[c.Group], c.CollectiveCost], ...],
    buffer: dict[str, FloatLike],
    calls: FloatLike,
    op_class: str,
    where: str,
    formula: str,
) -> list[Row]:
    """`calls` calls per pass on a buffer given as feature → bytes per call; one row per algorithm."""
    rows: list[Row] = []
    penalty = torus_penalty(cluster, group)
    active = calls * (as_array(group.size) > 1)
    for algorithm in algorithms:
        cost = algorithm(group)
        up = {k: v * calls * cost.scale_up_bytes * penalty for k, v in buffer.items()}
        out = {k: v * calls * cost.scale_out_bytes for k, v in buffer.items()}
        rows.append(
            Row(
                name=name if len(algorithms) == 1 else f"{name}_{cost.algorithm}",
                group=where,
                op_class=op_class if len(algorithms) == 1 else CLASS_OF.get(cost.algorithm, op_class),
                dtype="bf16",
                group_size=group.size,
                scale_up=up,
                scale_out=out if cluster.scale_out is not None else {},
                launches={f.ONE: active},
                scale_up_steps=calls * as_array(cost.scale_up_steps),
                scale_out_steps=calls * as_array(cost.scale_out_steps),
                stream="communication",
                choice=name if len(algorithms) > 1 else "",
                formula=formula,
            )
        )
    return rows


def all_reduce_algorithms(cluster: Cluster) -> tuple[Callable[[c.Group], c.CollectiveCost], ...]:
    """On a torus only neighbours are one step away; on a switch all are."""
    return (c.all_reduce_ring,) if cluster.scale_up.topology == "torus" else c.ALL_REDUCE


def exchange_rows(model: Model, layout: Sharding, precision: Precision, cluster: Cluster) -> list[Row]:
    """All collectives of a pass: tensor parallelism, expert dispatch and combine, pipeline hops, logits."""
    tp, attention_dp = as_array(layout.tp), as_array(layout.attention_dp)
    shared_dp = attention_dp > 1
    d = float(model.d_model)
    tp_group = make_group(cluster, tp)
    moe_layers = sum(g.count for g in model.layer_groups if isinstance(g.ffn, MoeFfn))
    dense_layers = sum(g.count for g in model.layer_groups if g.has_ffn) - moe_layers
    mixers = sum(g.count for g in model.layer_groups if g.has_attention)
    moe = model.moe()
    # after attention always; after dense blocks; after experts when all chips of the replica hold all tokens,
    # or for shared experts that tensor parallelism cuts
    after_experts = moe_layers * np.where(shared_dp, float(bool(moe and moe.d_shared)), 1.0)
    blocks = np.where(model.parallel_block, 0.0, 1.0)
    calls = mixers * blocks + dense_layers + after_experts + 1.0  # 1: embedding
    rows = collective_rows(
        "all_reduce",
        cluster=cluster,
        group=tp_group,
        algorithms=all_reduce_algorithms(cluster),
        buffer={f.TOKENS: 2.0 * d},
        calls=calls,
        op_class="all_reduce_ring",
        where="tensor parallel",
        formula=f"2·{model.d_model} B per token after attention and after each block",
    )
    rows += collective_rows(
        "all_gather_logits",
        cluster=cluster,
        group=tp_group,
        algorithms=(c.all_gather,),
        buffer={f.LOGIT_ROWS: 2.0 * model.vocab_size},
        calls=1.0,
        op_class="all_gather",
        where="tensor parallel",
        formula=f"2·{model.vocab_size} B a logit row",
    )
    if moe is not None and np.any(shared_dp):
        rows += expert_rows(model, moe, moe_layers, layout, precision, cluster)
    if np.any(as_array(layout.pp) > 1):
        rows.append(pipeline_row(model, layout, cluster))
    return rows


def expert_rows(
    model: Model, moe: MoeFfn, layers: int, layout: Sharding, precision: Precision, cluster: Cluster
) -> list[Row]:
    """Dispatch and combine between attention-dp ranks, by the fastest of three methods.

    Direct: a chip sends each of its tokens once to every distinct rank that holds one of its experts.
    Forwarded: across scale-up domains once per distinct domain, then copied inside it.
    Gathered: all tokens go to all chips, the sums come back by reduce-scatter; cheaper for few ranks.
    """
    tp, attention_dp = as_array(layout.tp), as_array(layout.attention_dp)
    ep, moe_tp = as_array(layout.ep), as_array(layout.moe_tp)
    chips = tp * attention_dp
    group = make_group(cluster, chips)
    calls = layers * (attention_dp > 1)
    picks = (moe.num_experts, moe.experts_per_token, moe.num_groups, moe.groups_per_token)
    copies = distinct_ranks(ep, *picks) * moe_tp
    spread = as_array(group.outside)
    domains = distinct_ranks(np.minimum(spread, moe.num_experts), *picks)

    def gathered(g: c.Group) -> c.CollectiveCost:
        return replace(c.all_gather(g), algorithm="gathered")  # the sums come back by the mirror image

    def direct(g: c.Group) -> c.CollectiveCost:
        return c.scaled_cost(c.all_to_all(g), copies / chips)

    def forwarded(g: c.Group) -> c.CollectiveCost:
        return c.scaled_cost(c.forwarded_all_to_all(g, copies, domains), 1.0 / chips)

    rows: list[Row] = []
    for name, size in (
        ("dispatch", moe.expert_d_in(model.d_model) * storage_bytes(precision.expert_activations)),
        ("combine", 2.0 * moe.expert_d_in(model.d_model)),
    ):
        rows += collective_rows(
            name,
            cluster=cluster,
            group=group,
            algorithms=(direct, forwarded, gathered) if np.any(spread > 1) else (direct, gathered),
            buffer={f.GROUP_TOKENS: size},
            calls=calls,
            op_class="all_to_all",
            where="expert parallel",
            formula=f"{layers} × {size:g} B of a token to its distinct expert ranks",
        )
    return rows


def crossing_hops(pp: FloatLike, stage_chips: FloatLike, domain_size: int) -> Array:
    """Hops between neighbouring stages, the one from the last back to the first among them, that leave a domain.

    Args:
        pp: stages, laid out one after the other [count].
        stage_chips: chips of one stage [count].
        domain_size: chips of a scale-up domain [count].

    Returns:
        [count], 0 for one stage. A hop counts where any of its chips has to leave the domain.

    >>> [int(crossing_hops(pp, chips, 8)) for pp, chips in ((1, 8), (2, 4), (4, 4), (4, 8), (4, 2), (3, 16))]
    [0, 0, 2, 4, 0, 3]
    """
    stages, chips = as_array(pp), as_array(stage_chips)
    last = int(np.max(stages)) - 1
    first = np.arange(max(last, 0), dtype=float).reshape(-1, *([1] * np.broadcast(stages, chips).ndim))
    leaves = np.floor(first * chips / domain_size) != np.floor(((first + 2.0) * chips - 1.0) / domain_size)
    back = (stages > 1) & (stages * chips > domain_size)
    return np.sum(leaves & (first < stages - 1.0), axis=0) + 1.0 * back


def pipeline_row(model: Model, layout: Sharding, cluster: Cluster) -> Row:
    """Activations from stage to stage: pp hops per pass (the last returns the token to the first)."""
    pp = as_array(layout.pp)
    hops = pp * (pp > 1)
    crossing = crossing_hops(pp, as_array(layout.tp) * as_array(layout.attention_dp), cluster.scale_up.size)
    cost = c.send_recv(crosses_domain=crossing / np.maximum(hops, 1.0))
    size = 2.0 * model.d_model / as_array(layout.tp)
    return Row(
        name="pipeline_send",
        group="pipeline",
        op_class="all_to_all",
        dtype="bf16",
        group_size=2.0,
        scale_up={f.TOKENS: hops * size * cost.scale_up_bytes},
        scale_out={f.TOKENS: hops * size * cost.scale_out_bytes} if cluster.scale_out else {},
        launches={f.ONE: hops},
        scale_up_steps=hops * as_array(cost.scale_up_steps),
        scale_out_steps=hops * as_array(cost.scale_out_steps),
        stream="communication",
        formula=f"pp hops of 2·{model.d_model}/tp B per token",
    )
