"""Which experts a batch touches, on the busiest expert-parallel rank.

The pass ends when the busiest rank ends. There are four laws: `balanced` (every rank has the mean load), `uniform`
(each token picks its experts uniformly at random, so that ranks differ by chance), `log_normal` (the measured
popularity of experts) and `power_law` (popularity with a given exponent).

Measured loads of single experts follow a log-normal distribution whose spread increases with their number E,

    s = 0.2 log2(E) - 0.5        of the logarithm of an expert's share, at least 0

in routers trained with an auxiliary loss (Mixtral, 8 experts: 0.1; OLMoE and DeepSeek-V2-Lite, 64: 0.5 to 0.7) and in
one that is balanced by a bias per expert (DeepSeek-R1, 256: 1.1), over texts of one domain.

Experts are placed on the ranks in the order of their numbers, that is, at random with respect to popularity; or they
are rearranged by popularity, with redundant copies of the most popular ones (EPLB) that share the load equally.

Sources: tokens per expert of OLMoE and Mixtral, allenai/OLMoE, scripts/routing_output; routed tokens of
    DeepSeek-V2-Lite, deepseek-ai/ESFT; rank loads of DeepSeek-R1 with EP32, NVIDIA/TensorRT-LLM,
    examples/wide_ep/ep_load_balancer. Rearrangement: deepseek-ai/EPLB, 2025.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from rackline import files
from rackline.errors import require
from rackline.passes.features import Array, FloatLike, as_array

RoutingLaw = Literal["balanced", "uniform", "log_normal", "power_law"]
ROUTING_LAWS: tuple[RoutingLaw, ...] = get_args(RoutingLaw)
POPULAR: tuple[RoutingLaw, ...] = ("log_normal", "power_law")

_GRID_PER_OCTAVE = 6
_DRAWS = 256  # of popular experts' placement and load
_EXACT_UP_TO = 64.0  # mean count up to which the largest of n binomials is summed exactly


def experts_touched_mean(num_experts: int, experts_per_token: int, tokens: FloatLike) -> Array:
    """Distinct experts that `tokens` tokens use, each picking its experts uniformly.

    touched = E (1 - (1 - k/E)^T)

    Args:
        num_experts: E [count].
        experts_per_token: k [count].
        tokens: T [tokens], any shape.

    Returns:
        Expected distinct experts [count], shape of `tokens`.

    >>> round(float(experts_touched_mean(256, 8, 8.0)), 1)
    57.4
    """
    share = experts_per_token / num_experts
    if share >= 1.0:
        return np.where(as_array(tokens) > 0, float(num_experts), 0.0)
    return num_experts * -np.expm1(as_array(tokens) * np.log1p(-share))


def distinct_ranks(
    num_ranks: FloatLike,
    num_experts: int,
    experts_per_token: int,
    num_groups: int = 1,
    groups_per_token: int = 1,
) -> Array:
    """Distinct expert-parallel ranks that hold the experts of one token.

    distinct = R (1 - C(E - E/R, k) / C(E, k)): picks without replacement, E/R experts on a rank. With node-limited
    routing only the experts of M of the G groups can be picked, and a rank holds max(G/R, 1) of them.

    Args:
        num_ranks: R [count], any shape; 1 to E.
        num_experts: E [count].
        experts_per_token: k [count].
        num_groups: G, groups of neighbouring experts; 1 for a router without groups [count].
        groups_per_token: M, groups that a token may use [count].

    Returns:
        Expected distinct ranks [count].

    Assumes: groups and experts are picked uniformly.

    Sources: lecture Y13 (8, 16, 32 of 256 experts hit 7.7, 14.6, 26.6 of 64 GPUs); node-limited routing
        arXiv:2412.19437 section 2.1.2 (DeepSeek-V3: 4 of 8 groups).

    >>> [round(float(distinct_ranks(64, 256, k)), 1) for k in (8, 16, 32)]
    [7.7, 14.6, 26.6]
    >>> [round(float(distinct_ranks(8, 256, 8, 8, m)), 1) for m in (8, 4)]
    [5.3, 3.6]
    """
    ranks = as_array(num_ranks)
    open_experts = num_experts * groups_per_token // num_groups
    if open_experts >= num_experts:
        return ranks * (1.0 - _missed(num_experts / ranks, num_experts, experts_per_token))
    result = np.zeros_like(ranks)
    held = np.maximum(num_groups / ranks, 1.0)  # groups on a rank
    for chosen in range(1, groups_per_token + 1):  # chosen groups among those of the rank
        local = np.minimum(chosen * num_experts / num_groups, num_experts / ranks)
        hit = 1.0 - _missed(local, open_experts, experts_per_token)
        result = result + _hypergeometric(chosen, num_groups, held, groups_per_token) * hit
    return ranks * result


def _missed(local: Array, num_experts: int, experts_per_token: int) -> Array:
    """Probability that none of k picks out of E falls on `local` of them."""
    miss = np.ones_like(local)
    for pick in range(experts_per_token):
        miss = miss * np.maximum(num_experts - local - pick, 0.0) / (num_experts - pick)
    return miss


def _hypergeometric(chosen: int, total: int, held: Array, drawn: int) -> Array:
    """Probability that `chosen` of `drawn` groups out of `total` are among the `held` ones of a rank."""

    def ways(items: Array, taken: int) -> Array:
        return np.array([math.comb(int(item), taken) for item in np.ravel(items)], dtype=float).reshape(items.shape)

    return ways(held, chosen) * ways(total - held, drawn - chosen) / math.comb(total, drawn)


def power_law_shares(num_experts: int, exponent: float) -> Array:
    """Share of the picks that goes to each expert, most popular first: p_i ∝ (i + 1/2)^-z, summing to 1.

    >>> power_law_shares(4, 0.0).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    weights = (np.arange(num_experts) + 0.5) ** -exponent
    return weights / weights.sum()


def power_law_picks(num_experts: int, experts_per_token: int, exponent: float) -> Array:
    """Probability that a token uses each expert: k times its share, never above 1, summing to k.

    The excess of popular experts is spread over the others in proportion to their shares.

    >>> power_law_picks(8, 2, 3.0).sum().round(6), power_law_picks(8, 2, 3.0)[0]
    (np.float64(2.0), np.float64(1.0))
    """
    return picks_of(power_law_shares(num_experts, exponent), experts_per_token)


def picks_of(shares: Array, experts_per_token: int) -> Array:
    """Probability that a token uses each expert, of experts with these shares of the picks; see `power_law_picks`."""
    full = np.zeros(len(shares), dtype=bool)
    while True:
        left = experts_per_token - full.sum()
        picks = np.where(full, 1.0, left * shares / shares[~full].sum() if left > 0 else 0.0)
        over = (picks > 1.0) & ~full
        if not np.any(over):
            return picks
        full |= over


def normal_maximum(count: int) -> float:
    """Expected largest of `count` independent standard normal variables.

    >>> round(normal_maximum(2), 3), round(normal_maximum(32), 2)
    (0.564, 2.07)
    """
    z = np.linspace(0.0, 12.0, 1201)
    above = np.array([0.5 * math.erfc(value / math.sqrt(2.0)) for value in z])
    return float(np.trapezoid(1.0 - (1.0 - above) ** count, z) - np.trapezoid(above**count, z))


def binomial_cdf(most: int, trials: Array, share: Array) -> Array:
    """Probability of at most 0, 1 … `most` successes.

    P(j) = C(n, j) p^j (1 - p)^(n - j), with C(n, j) as the running product of (n - i) / (i + 1)

    Args:
        most: the largest number of successes asked for [count].
        trials: n, whole numbers [count], shape (m,).
        share: p, above 0 and at most 1 [fraction], shape (m,).

    Returns:
        Shape (most + 1, m). Written out because SciPy's import takes longer than all that it would compute here.

    >>> binomial_cdf(2, np.array([2.0]), np.array([0.5])).ravel().tolist()
    [0.25, 0.75, 1.0]
    """
    successes = np.arange(most + 1.0)[:, None]
    p = np.minimum(share, 1.0 - 1e-16)
    ways = np.log(np.maximum(trials - successes[:-1], 1e-300) / (successes[:-1] + 1.0))
    ways = np.concatenate([np.zeros((1, len(trials))), np.cumsum(ways, axis=0)])
    terms = np.exp(ways + successes * np.log(p) + np.maximum(trials - successes, 0.0) * np.log1p(-p))
    return np.minimum(np.cumsum(np.where(successes <= trials, terms, 0.0), axis=0), 1.0)


def largest_of(count: int, mean: Array, trials: Array) -> Array:
    """Expected largest of `count` independent binomials with this mean and number of trials.

    E[max] = sum over j >= 0 of 1 - F(j)^n; above a mean of 64 the normal limit is used.

    Args:
        count: n, how many ranks [count].
        mean: expected value of each [count], shape (m,).
        trials: number of trials of each, at least the mean [count], shape (m,).

    Returns:
        Expected maximum [count], shape (m,).
    """
    if count == 1:
        return mean
    share = np.clip(mean / np.maximum(trials, 1.0), 0.0, 1.0)
    spread = np.sqrt(mean * (1.0 - share))
    largest = mean + normal_maximum(count) * spread
    small = (mean <= _EXACT_UP_TO) & (mean > 0)
    if np.any(small):
        top = int(np.ceil(np.max((mean + 8.0 * spread)[small]))) + 3
        whole = np.ceil(trials[small])
        cdf = np.where(np.arange(top)[:, None] >= whole, 1.0, binomial_cdf(top - 1, whole, share[small]))
        largest[small] = np.sum(1.0 - cdf**count, axis=0)
    return np.maximum(np.minimum(largest, trials), mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Load of the busiest of `ep` ranks as functions of the tokens of the whole expert-parallel group.

    Both functions are tabulated once on a logarithmic grid and interpolated, so that millions of points cost
    one `numpy.interp` each.

    Args:
        num_experts, experts_per_token: those of the model [count].
        ep: expert-parallel ranks [count].
        law: routing law, see the module docstring.
        skew: exponent of the power law, or standard deviation of the log-normal's logarithm; 0 is uniform.
        redundant_experts: copies beyond one of each, with experts rearranged by popularity; None if they are placed at
            random [count].
        max_tokens: end of the grid [tokens]; beyond it the load is scaled in proportion.
    """

    num_experts: int
    experts_per_token: int
    ep: int
    law: RoutingLaw
    log_tokens: Array
    tokens_per_token: Array
    touched: Array

    @classmethod
    def tabulate(
        cls,
        *,
        num_experts: int,
        experts_per_token: int,
        ep: int,
        law: RoutingLaw = "uniform",
        skew: float = 0.0,
        redundant_experts: int | None = None,
        max_tokens: float = 4.0e6,
    ) -> ExpertLoad:
        """Tabulate the law, once per process. Raises InputError for an unknown law or impossible counts."""
        require(law in ROUTING_LAWS, what="routing law", given=law, allowed=", ".join(ROUTING_LAWS))
        require(
            1 <= ep <= num_experts,
            what="ep",
            given=ep,
            allowed=f"1 to {num_experts} (experts)",
            nearest=str(num_experts),
        )
        return _tabulated(num_experts, experts_per_token, ep, law, skew, redundant_experts, max_tokens)

    @property
    def points_per_octave(self) -> float:
        """Points of the logarithmic grid per doubling of tokens [count]."""
        return (len(self.log_tokens) - 1) / float(self.log_tokens[-1])

    def expert_tokens(self, group_tokens: FloatLike) -> FloatLike:
        """Token-expert pairs on the busiest rank [tokens]; below one token the load is in proportion."""
        tokens = as_array(group_tokens)
        return tokens * np.interp(self._log(tokens), self.log_tokens, self.tokens_per_token)

    def experts_touched(self, group_tokens: FloatLike) -> FloatLike:
        """Distinct experts whose weights the busiest rank reads [count]."""
        tokens = as_array(group_tokens)
        return np.interp(self._log(tokens), self.log_tokens, self.touched) * np.minimum(tokens, 1.0)

    @staticmethod
    def _log(tokens: Array) -> Array:
        return np.log2(np.maximum(tokens, 1.0))


@functools.lru_cache(maxsize=1024)
def _tabulated(
    num_experts: int,
    experts_per_token: int,
    ep: int,
    law: RoutingLaw,
    skew: float,
    redundant_experts: int | None,
    max_tokens: float,
) -> ExpertLoad:
    log_tokens = _log_grid(max_tokens)
    tokens = np.exp2(log_tokens)
    local = float(np.ceil(num_experts / ep))
    if law in POPULAR and skew > 0 and ep > 1:
        load, touched = _kept(num_experts, experts_per_token, ep, law, skew, redundant_experts, max_tokens)
    elif law == "balanced" or ep == 1:
        load = np.full_like(tokens, experts_per_token / ep)
        touched = experts_touched_mean(num_experts, experts_per_token, tokens) / ep
        if law in POPULAR:
            picks = popular_picks(num_experts, experts_per_token, law, skew)
            touched = (1.0 - (1.0 - picks[None, :]) ** tokens[:, None]).sum(axis=1)
    else:  # uniform, as popular experts without skew are
        used = experts_touched_mean(num_experts, experts_per_token, tokens) / num_experts
        touched = np.minimum(largest_of(ep, used * local, np.full_like(tokens, local)), local)
        mean = tokens * experts_per_token * local / num_experts
        busiest = largest_of(ep, mean, tokens * min(experts_per_token, local))
        load = np.minimum(busiest / tokens, min(experts_per_token, local))
    for array in (log_tokens, load, touched):
        array.flags.writeable = False  # shared by all who ask for this law
    return ExpertLoad(
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        ep=ep,
        law=law,
        log_tokens=log_tokens,
        tokens_per_token=load,
        touched=touched,
    )


def _kept(
    num_experts: int,
    experts_per_token: int,
    ep: int,
    law: RoutingLaw,
    skew: float,
    redundant_experts: int | None,
    max_tokens: float,
) -> tuple[Array, Array]:
    """Load and touched experts of popular experts, on the even grid that all laws have; drawn once on a machine."""
    log_tokens = _log_grid(max_tokens)
    law_of = (num_experts, experts_per_token, ep, law, skew, redundant_experts, max_tokens)
    name = files.kept_name("routing", _code(), np.__version__, *law_of)
    stored = files.load_kept(name)
    if stored is not None and len(stored) == 2 * log_tokens.nbytes:
        both = np.frombuffer(stored, dtype="<f8").reshape(2, -1).astype(float)
        return both[0], both[1]
    whole, counts, drawn = _drawn_counts(num_experts, experts_per_token, law, skew, max_tokens)
    if redundant_experts is None:
        found = _busiest(counts, ep, whole)
    else:
        picks = popular_picks(num_experts, experts_per_token, law, skew)
        found = _busiest_rearranged(counts, drawn, rearranged(picks, ep, redundant_experts), whole)
    both = np.stack([np.interp(log_tokens, np.log2(whole), mean) for mean in found])
    files.keep(name, both.astype("<f8").tobytes())
    return both[0], both[1]


@functools.cache
def _code() -> bytes:
    """The source of what the tables follow from: a change of it makes them anew."""
    return Path(__file__).read_bytes()


def _log_grid(max_tokens: float) -> Array:
    octaves = int(np.ceil(np.log2(max_tokens)))
    return np.linspace(0.0, octaves, octaves * _GRID_PER_OCTAVE + 1)


def popular_picks(num_experts: int, experts_per_token: int, law: RoutingLaw, skew: float) -> Array:
    """Probability that a token uses each expert under a law with popular experts, most popular first."""
    if law == "log_normal":
        return picks_of(log_normal_shares(num_experts, skew), experts_per_token)
    return power_law_picks(num_experts, experts_per_token, skew)


@functools.lru_cache(maxsize=2)  # tens of megabytes each
def _drawn_counts(
    num_experts: int, experts_per_token: int, law: RoutingLaw, skew: float, max_tokens: float
) -> tuple[Array, Array, Array]:
    """Seeded draws of how many tokens each popular expert gets; the same for every number of ranks.

    Tokens are added step by step along the grid, so that what follows from the counts rises with tokens.

    Returns:
        (rising whole tokens of shape (grid,), counts of shape (experts, grid, draws), where there are any: 1.0).
    """
    tokens = np.unique(np.rint(np.exp2(_log_grid(max_tokens))))
    picks = popular_picks(num_experts, experts_per_token, law, skew)
    rng = np.random.default_rng(0)
    counts = np.empty((num_experts, len(tokens), _DRAWS), dtype=np.float32)  # whole numbers, as sums need them
    so_far = np.zeros((_DRAWS, num_experts), dtype=np.int64)
    for index, step in enumerate(np.diff(tokens, prepend=0.0).astype(int)):
        so_far += rng.binomial(step, np.broadcast_to(picks, so_far.shape))
        counts[:, index] = so_far.T
    return tokens, counts, (counts > 0).astype(np.float32)


def _busiest(counts: Array, ep: int, tokens: Array) -> tuple[Array, Array]:
    """Popular experts placed at random: mean over the draws of the busiest rank.

    Returns:
        (token-expert pairs per token, touched experts) of the busiest rank, each of shape (grid,).
    """
    experts, draws = int(counts.shape[0]), int(counts.shape[2])
    slots = ep * int(np.ceil(experts / ep))
    places: Array = np.random.default_rng(1).permuted(np.tile(np.arange(slots), (draws, 1)), axis=1)[:, :experts]
    ranks: Array = (places % ep + ep * np.arange(draws)[:, None]).ravel(order="F")
    load, touched = np.empty(len(tokens)), np.empty(len(tokens))
    for index in range(len(tokens)):
        drawn: Array = counts[:, index].ravel()
        sums = np.bincount(ranks, weights=drawn, minlength=draws * ep)
        used = np.bincount(ranks, weights=drawn > 0, minlength=draws * ep)
        load[index] = sums.reshape(draws, ep).max(axis=1).mean() / tokens[index]
        touched[index] = used.reshape(draws, ep).max(axis=1).mean()
    return load, touched


def _busiest_rearranged(counts: Array, drawn: Array, placed: Array, tokens: Array) -> tuple[Array, Array]:
    """Like `_busiest`, for experts with these copies on the ranks, (experts, ep); copies share the tokens evenly.

    A rank holds few experts, so their rows are added one by one: a product with `placed` is mostly zeros.
    """
    copies = placed.sum(axis=1)
    load, touched = np.zeros(counts.shape[1:], dtype=np.float32), np.zeros(counts.shape[1:], dtype=np.float32)
    for held in placed.T:
        alone = np.flatnonzero((held > 0) & (copies == 1.0))
        sums, used = counts[alone].sum(axis=0), drawn[alone].sum(axis=0)
        for expert in np.flatnonzero((held > 0) & (copies > 1.0)):
            # a token of an expert with n copies goes to each of them with 1/n
            missed = np.log1p(-1.0 / copies[expert]).astype(np.float32)
            sums += np.float32(held[expert] / copies[expert]) * counts[expert]
            used -= np.float32(held[expert]) * np.expm1(missed * counts[expert])
        np.maximum(load, sums, out=load)
        np.maximum(touched, used, out=touched)
    return load.mean(axis=1) / tokens, touched.mean(axis=1)


_PER_OCTAVE, _AT_ONE = 0.2, -0.5


def expert_spread(num_experts: int) -> float:
    """Standard deviation of the logarithm of an expert's share of the picks.

    >>> [round(expert_spread(count), 2) for count in (4, 8, 64, 256)]
    [0.0, 0.1, 0.7, 1.1]
    """
    return max(_PER_OCTAVE * math.log2(num_experts) + _AT_ONE, 0.0)


def log_normal_shares(num_experts: int, spread: float) -> Array:
    """Share of the picks that goes to each expert, most popular first: quantiles of a log-normal, summing to 1.

    >>> log_normal_shares(4, 0.0).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    normal = NormalDist()
    scores = np.array([normal.inv_cdf(1.0 - (index + 0.5) / num_experts) for index in range(num_experts)])
    weights = np.exp(spread * scores)
    return weights / weights.sum()


def rearranged(popularity: Array, ep: int, redundant_experts: int) -> Array:
    """Copies of each expert on each rank, rearranged so that the ranks are as balanced as possible.

    The expert with the highest load per copy gets the next redundant copy; then copies go, most loaded first, to the
    rank with the least load that has a slot.

    Args:
        popularity: popularity of each expert, (experts,).
        ep: ranks, each with the same number of slots [count].
        redundant_experts: copies beyond one of each; slots left over are filled as well [count].

    Returns:
        Copies [count], (experts, ep).

    >>> rearranged(np.array([4.0, 1.0, 1.0]), 2, 1).sum(axis=0).tolist()
    [2.0, 2.0]
    """
    experts = len(popularity)
    slots = math.ceil((experts + redundant_experts) / ep)
    copies = np.ones(experts)
    for _ in range(slots * ep - experts):
        copies[int(np.argmax(popularity / copies))] += 1.0
    each = popularity / copies
    load, room, placed = np.zeros(ep), np.full(ep, slots), np.zeros((experts, ep))
    for expert in np.argsort(-each, kind="stable"):
        for _ in range(int(copies[expert])):
            rank = int(np.argmin(np.where(room > 0, load + 1e-9 * placed[expert], np.inf)))
            placed[expert, rank] += 1.0
            load[rank] += each[expert]
            room[rank] -= 1
    return placed
