"""Expert-parallel traffic as matrices: bytes from every rank to every other one, in dispatch and in combine.

The pass table needs the busiest link only (`rackline.parallel.exchange`); here every pair of ranks is written out, so
that what crosses racks, what duplicates cost and what an uneven router does can be seen and checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.passes.routing import distinct_ranks


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
        if self.num_ranks < 1 or self.num_experts % self.num_ranks:
            raise InputError(what="num_ranks", given=self.num_ranks, allowed=f"a divisor of {self.num_experts} experts")
        if self.num_ranks % self.domain_size:
            raise InputError(
                what="ranks_per_domain", given=self.ranks_per_domain, allowed=f"a divisor of {self.num_ranks} ranks"
            )
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise InputError(what="experts_per_token", given=self.experts_per_token, allowed=f"1 to {self.num_experts}")
        if self.picks is not None:
            good = self.picks.shape == (self.num_experts,) and bool(np.all((self.picks >= 0) & (self.picks <= 1)))
            if not good or not np.isclose(self.picks.sum(), self.experts_per_token):
                raise InputError(
                    what="picks",
                    given=f"shape {self.picks.shape}, sum {self.picks.sum():g}",
                    allowed=f"{self.num_experts} probabilities that sum to {self.experts_per_token}",
                )

    @property
    def domain_size(self) -> int:
        """Ranks of one scale-up domain [count]."""
        return self.ranks_per_domain or self.num_ranks

    @property
    def num_domains(self) -> int:
        """Scale-up domains (racks) [count]."""
        return self.num_ranks // self.domain_size

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
    def transposed(self) -> TrafficMatrix:
        """The reverse exchange: each rank sends what it received."""
        return TrafficMatrix(sent=self.sent.T.copy(), ranks_per_domain=self.ranks_per_domain)

    def scaled(self, factor: float) -> TrafficMatrix:
        """The same pattern with `factor` times the bytes."""
        return TrafficMatrix(sent=self.sent * factor, ranks_per_domain=self.ranks_per_domain)

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
    size, domains = routing.domain_size, routing.num_domains
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
    return dispatch.transposed.scaled(bytes_ratio)


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
