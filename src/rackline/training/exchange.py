"""Communication of one micro-batch: tensor, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from rackline.arch import Core, MoeFfn
from rackline.parallel.exchange import collective_rows, make_group
from rackline.passes import Row
from rackline.passes import collectives as c
from rackline.passes import features as f
from rackline.passes.features import Array, as_array
from rackline.passes.routing import distinct_ranks

if TYPE_CHECKING:
    from rackline.training.system import MicroBatch

Link = tuple[Literal["tensor", "context", "expert_inside", "expert_outside"], Literal["forward", "input"], Row]


def tensor_rows(batch: MicroBatch, attention_layers: int, dense_layers: int) -> Iterator[Link]:
    """Sequence parallelism: gather before and scatter after attention and each dense block.

    The input is gathered once more in the backward pass, for the gradient of the weight; that gather runs behind the
    product that makes the gradient of the input, so it is not counted.
    Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2.
    """
    tp = as_array(batch.runs.tp)
    if not np.any(tp > 1):
        return
    group = make_group(batch.system.cluster, tp)
    blocks = attention_layers + dense_layers
    buffer = {f.TOKENS: 2.0 * batch.system.model.d_model}
    calls: tuple[tuple[Literal["forward", "input"], float, float], ...] = (("forward", 1.0, 1.0), ("input", 1.0, 1.0))
    for phase, gathers, scatters in calls:
        for name, algorithm, count in (
            ("all_gather", c.all_gather, gathers),
            ("reduce_scatter", c.reduce_scatter, scatters),
        ):
            for row in collective_rows(
                f"tp_{name}_{phase}",
                cluster=batch.system.cluster,
                group=group,
                algorithms=(algorithm,),
                buffer=dict(buffer),
                calls=count * blocks * (tp > 1),
                op_class=name,
                where=phase,
                formula=f"{blocks} blocks × 2·{batch.system.model.d_model} B per token",
            ):
                yield "tensor", phase, row


def context_rows(batch: MicroBatch, cores: dict[Core, int]) -> Iterator[Link]:
    """Keys and values of all other chips of a context-parallel group pass each chip; backward also their gradients."""
    cp = as_array(batch.runs.cp)
    if not np.any(cp > 1):
        return
    tp = as_array(batch.runs.tp)
    group = make_group(batch.system.cluster, cp, tp)
    for attention, count in cores.items():
        kv = as_array(attention.kv_elements_per_token(batch.runs.tp))
        if not np.any(kv > 0):
            continue
        phases: tuple[tuple[Literal["forward", "input"], float], ...] = (("forward", 1.0), ("input", 2.0))
        for phase, times in phases:
            for row in collective_rows(
                f"cp_{attention.kind}_{phase}",
                cluster=batch.system.cluster,
                group=group,
                algorithms=(c.all_gather,),
                buffer={f.TOKENS: 2.0 * kv * cp},
                calls=times * count * (cp > 1),
                op_class="all_gather",
                where=phase,
                formula=f"{count} layers × keys and values of the whole sequence",
            ):
                yield "context", phase, row


def expert_rows(batch: MicroBatch, ffn: MoeFfn, count: int) -> Iterator[Link]:
    """Dispatch and combine of routed tokens, once forward and once backward; gathers where experts are cut by tp.

    A token crosses to a scale-up domain once, however many of its experts live there, and node-limited routing bounds
    the domains; a plain all-to-all sends it to each of its experts.

    Sources: DeepSeek-V3 technical report (arXiv:2412.19437), sections 2.1.2, 3.2.2 and 3.3.3.
    """
    runs = batch.runs
    ep, tp, expert_tp = as_array(runs.ep), as_array(runs.tp), as_array(runs.expert_tp)
    width = float(ffn.expert_d_in(batch.system.model.d_model))
    phases: tuple[Literal["forward", "input"], ...] = ("forward", "input")
    if np.any(ep > 1):
        group = make_group(batch.system.cluster, ep, expert_tp)
        picks = (ffn.num_experts, ffn.experts_per_token, ffn.num_groups, ffn.groups_per_token)
        ranks = distinct_ranks(ep, *picks)
        domains = distinct_ranks(np.minimum(as_array(group.outside), ffn.num_experts), *picks)

        def sent(of: c.Group) -> c.CollectiveCost:
            if batch.system.stack.forwards_tokens:
                return c.forwarded_all_to_all(of, ranks, domains)
            return c.scaled_cost(c.all_to_all(of), float(ffn.experts_per_token))

        outside = as_array(group.outside) > 1
        places: tuple[tuple[Literal["expert_inside", "expert_outside"], Array], ...] = (
            ("expert_inside", ~outside & (ep > 1)),
            ("expert_outside", outside & (ep > 1)),
        )
        # backward, gradients are dispatched to the experts and those of their inputs are combined
        sizes = (("dispatch", batch.system.precision.dispatch_bytes), ("combine", batch.system.precision.combine_bytes))
        for phase, (kind, here), (name, size) in product(phases, places, sizes):
            if not np.any(here):
                continue
            for row in collective_rows(
                f"ep_{name}_{kind.removeprefix('expert_')}_{phase}",
                cluster=batch.system.cluster,
                group=group,
                algorithms=(sent,),
                buffer={f.TOKENS: size * width / tp},
                calls=count * here,
                op_class="all_to_all",
                where=phase,
                formula=f"{count} layers × {size:g}·{width:g} B per token and expert rank",
            ):
                yield kind, phase, row
    if np.any(expert_tp > 1):
        group = make_group(batch.system.cluster, expert_tp)
        for phase in phases:
            for name, algorithm in (("all_gather", c.all_gather), ("reduce_scatter", c.reduce_scatter)):
                for row in collective_rows(
                    f"etp_{name}_{phase}",
                    cluster=batch.system.cluster,
                    group=group,
                    algorithms=(algorithm,),
                    buffer={f.EXPERT_TOKENS: 2.0 * width},
                    calls=count * (expert_tp > 1),
                    op_class=name,
                    where=phase,
                    formula=f"{count} layers × routed tokens of the group",
                ):
                    yield "tensor", phase, row
