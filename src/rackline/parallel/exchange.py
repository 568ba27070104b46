"""Communication of one pass: rows of the fabric per chip, and expert-parallel traffic as matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rackline.arch import Model, MoeFfn
from rackline.errors import require
from rackline.hardware import Cluster
from rackline.parallel.layout import Sharding
from rackline.parallel.precision import Precision, storage_bytes
from rackline.passes import collectives as c, features as f
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
    used = np.ceil(np.log(np.maximum(as_array(group.inside), 1.0001)) / np.log(max(float(max(axes)), 2.0)))
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
    # on a torus only neighbours are one step away, on a switch all are; through the host's memory libraries run rings,
    # and the engines' own kernels need access to each other's memory (vLLM, custom_all_reduce.py: disabled without)
    direct = cluster.scale_up.topology != "torus" and cluster.scale_up.peer_access
    rows = collective_rows(
        "all_reduce",
        cluster=cluster,
        group=tp_group,
        algorithms=c.ALL_REDUCE if direct else (c.all_reduce_ring,),
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

    methods: tuple[Callable[[c.Group], c.CollectiveCost], ...] = (
        lambda g: c.scaled_cost(c.all_to_all(g), copies / chips),
        lambda g: c.scaled_cost(c.forwarded_all_to_all(g, copies, domains), 1.0 / chips),
        lambda g: replace(c.all_gather(g), algorithm="gathered"),  # the sums come back by the mirror image
    )
    width = moe.expert_d_in(model.d_model)
    sizes = {"dispatch": width * storage_bytes(precision.expert_activations), "combine": 2.0 * width}
    return [
        row
        for name, size in sizes.items()
        for row in collective_rows(
            name,
            cluster=cluster,
            group=group,
            algorithms=methods if np.any(spread > 1) else methods[::2],
            buffer={f.GROUP_TOKENS: size},
            calls=calls,
            op_class="all_to_all",
            where="expert parallel",
            formula=f"{layers} × {size:g} B of a token to its distinct expert ranks",
        )
    ]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouting:
    """A router and the placement of its experts: E experts in order, E/R on each of R ranks, ranks in order in domains.

    Args:
        num_ranks: R [count].
        num_experts, experts_per_token: E and k [count].
        ranks_per_domain: ranks in one scale-up domain; None for all [count].
        num_groups, groups_per_token: node-limited routing, see `distinct_ranks` [count].
        picks: probability that a token uses each expert, summing to k, shape (E,); None for uniform.

    Raises:
        InputError: counts that do not divide, or picks that are no probabilities.
    """

    num_ranks: int
    num_experts: int
    experts_per_token: int
    ranks_per_domain: int | None = None
    num_groups: int = 1
    groups_per_token: int = 1
    picks: Array | None = None

    def __post_init__(self) -> None:
        require(
            self.num_ranks >= 1 and not self.num_experts % self.num_ranks,
            what="num_ranks",
            given=self.num_ranks,
            allowed=f"a divisor of {self.num_experts} experts",
        )
        require(
            not self.num_ranks % self.domain_size,
            what="ranks_per_domain",
            given=self.ranks_per_domain,
            allowed=f"a divisor of {self.num_ranks} ranks",
        )
        require(
            1 <= self.experts_per_token <= self.num_experts,
            what="experts_per_token",
            given=self.experts_per_token,
            allowed=f"1 to {self.num_experts}",
        )
        if self.picks is not None:
            good = self.picks.shape == (self.num_experts,) and bool(np.all((self.picks >= 0) & (self.picks <= 1)))
            require(
                good and np.isclose(self.picks.sum(), self.experts_per_token),
                what="picks",
                given=f"shape {self.picks.shape}, sum {self.picks.sum():g}",
                allowed=f"{self.num_experts} probabilities that sum to {self.experts_per_token}",
            )

    @property
    def domain_size(self) -> int:
        """Ranks of one scale-up domain [count]."""
        return self.ranks_per_domain or self.num_ranks

    def hit_probability(self, num_parts: int) -> Array:
        """Probability that a token has an expert on each of `num_parts` equal parts of the experts, shape (parts,).

        Uneven picks are taken as independent of each other; uniform ones are exact.
        """
        if self.picks is None:
            hit = distinct_ranks(
                num_parts, self.num_experts, self.experts_per_token, self.num_groups, self.groups_per_token
            )
            return np.full(num_parts, float(hit) / num_parts)
        return 1.0 - np.prod(1.0 - self.picks.reshape(num_parts, -1), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficMatrix:
    """Bytes of one exchange.

    Args:
        sent: from each rank (row) to each rank (column), shape (ranks, ranks); the diagonal stays on the chip [bytes].
        ranks_per_domain: ranks in one scale-up domain [count].
    """

    sent: Array
    ranks_per_domain: int

    @property
    def crosses(self) -> Array:
        """Whether the pair of ranks is in different domains, shape (ranks, ranks)."""
        domain = np.arange(len(self.sent)) // self.ranks_per_domain
        return domain[:, None] != domain[None, :]

    @property
    def crossing_share(self) -> float:
        """Share of all bytes, those that stay on the chip counted, that leave their domain; (R - 1)/R when even."""
        total = float(self.sent.sum())
        return float(self.sent[self.crosses].sum()) / total if total else 0.0

    def link_bytes(self) -> dict[str, Array]:
        """Bytes on each rank's links by level and direction, shape (ranks,): what is sent is received."""
        off_chip = ~np.eye(len(self.sent), dtype=bool)
        inside, outside = np.where(off_chip & ~self.crosses, self.sent, 0.0), np.where(self.crosses, self.sent, 0.0)
        return {
            "scale_up_out": inside.sum(axis=1),
            "scale_up_in": inside.sum(axis=0),
            "scale_out_out": outside.sum(axis=1),
            "scale_out_in": outside.sum(axis=0),
        }

    def seconds(self, scale_up_bytes_per_s: float, scale_out_bytes_per_s: float) -> float:
        """Time of the busiest link, both levels working at once, without latency [s].

        Args:
            scale_up_bytes_per_s, scale_out_bytes_per_s: links of one rank, each way [bytes/s].
        """
        links = self.link_bytes()
        inside = max(links["scale_up_out"].max(), links["scale_up_in"].max()) / scale_up_bytes_per_s
        outside = max(links["scale_out_out"].max(), links["scale_out_in"].max()) / scale_out_bytes_per_s
        return float(max(inside, outside))


def dispatch_traffic(
    routing: ExpertRouting, tokens_per_rank: float, bytes_per_token: float, *, once_per_rank: bool = True
) -> TrafficMatrix:
    """Expected bytes of dispatch when every rank sends its tokens straight to the ranks of their experts.

    sent[s, r] = tokens · bytes · P(an expert of the token is on r); without removing duplicates the expected number
    of its experts there.

    Args:
        tokens_per_rank: tokens of each rank [tokens].
        bytes_per_token: d_model times the bytes of an element [bytes].
        once_per_rank: send a token once to a rank that holds several of its experts.

    Sources: lecture C40-C43, C47; Y08, Y13.

    >>> routing = ExpertRouting(num_ranks=128, num_experts=256, experts_per_token=8, ranks_per_domain=64)
    >>> dispatch_traffic(routing, 1.0, 1.0).crossing_share
    0.5
    """
    if once_per_rank:
        copies = routing.hit_probability(routing.num_ranks)
    elif routing.picks is None:
        copies = np.full(routing.num_ranks, routing.experts_per_token / routing.num_ranks)
    else:
        copies = routing.picks.reshape(routing.num_ranks, -1).sum(axis=1)
    return TrafficMatrix(
        sent=np.tile(copies * tokens_per_rank * bytes_per_token, (routing.num_ranks, 1)),
        ranks_per_domain=routing.domain_size,
    )


def forwarded_traffic(routing: ExpertRouting, tokens_per_rank: float, bytes_per_token: float) -> TrafficMatrix:
    """Expected bytes of dispatch when a token crosses once to each domain and is copied to its ranks inside it.

    The rank with the same place in the other domain receives it and forwards it. A matrix of hops, not of tokens: a
    byte that is forwarded is counted on both of its links.

    Args:
        tokens_per_rank, bytes_per_token: as `dispatch_traffic`.

    Sources: DeepEP README, normal kernels.
    """
    size, domains = routing.domain_size, routing.num_ranks // routing.domain_size
    bytes_per_rank = tokens_per_rank * bytes_per_token
    place = np.arange(routing.num_ranks) % size
    same_domain = ~TrafficMatrix(sent=np.eye(routing.num_ranks), ranks_per_domain=size).crosses
    to_domain = np.repeat(routing.hit_probability(domains), size)
    across = np.where(~same_domain & (place[:, None] == place[None, :]), to_domain[None, :], 0.0)
    # a forwarder has the tokens of its own place in every domain
    inside = np.where(same_domain, domains * routing.hit_probability(routing.num_ranks)[None, :], 0.0)
    return TrafficMatrix(sent=(across + inside) * bytes_per_rank, ranks_per_domain=size)


def combine_traffic(dispatch: TrafficMatrix, bytes_ratio: float) -> TrafficMatrix:
    """Bytes of combine: each copy comes back over the link it took.

    Args:
        bytes_ratio: bytes of a result over bytes of a dispatched token, 2 for bf16 after fp8; 1 when equal (C41).
    """
    return replace(dispatch, sent=dispatch.sent.T * bytes_ratio)


def drawn_dispatch(routing: ExpertRouting, tokens_per_rank: int, rng: np.random.Generator) -> Array:
    """Copies that drawn tokens send from rank to rank, shape (ranks, ranks): the experiment behind the expectation.

    Args:
        rng: of the draws; uneven picks are drawn one expert after the other without replacement.
    """
    ranks, experts, k = routing.num_ranks, routing.num_experts, routing.experts_per_token
    sent = np.zeros((ranks, ranks))
    local = experts // ranks
    weights = np.log(np.ones(experts) if routing.picks is None else np.maximum(routing.picks, 1e-300))
    for rank in range(ranks):
        score = weights + rng.gumbel(size=(tokens_per_rank, experts))
        if routing.groups_per_token < routing.num_groups:
            order = rng.random((tokens_per_rank, routing.num_groups)).argsort(axis=1)
            closed = order >= routing.groups_per_token
            score = np.where(np.repeat(closed, experts // routing.num_groups, axis=1), -np.inf, score)
        chosen = np.argpartition(-score, k - 1, axis=1)[:, :k] // local
        hit = np.zeros((tokens_per_rank, ranks), dtype=bool)
        hit[np.arange(tokens_per_rank)[:, None], chosen] = True
        sent[rank] = hit.sum(axis=0)
    return sent
