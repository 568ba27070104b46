"""Prompts waiting for passes of an engine: a bulk-service queue whose service time depends on the batch.

Passes follow one another without a pause. A pass that finds V prompt tokens waiting at its rank takes x = min(V, B) of
them and lasts T(x), with or without prompts; tokens that arrive meanwhile wait for the next pass. With n new tokens per
prompt, lambda prompts per second, a = lambda n and

    T(x) = D + e · [x > 0] + c · x        V' = V - x + Y,  Y = n · Poisson(lambda T(x))        rho = a T(B) / B

stationarity of E[V] and of E[V²] gives

    E[T] = (D + e s) / (1 - a c),  E[x] = a E[T],  s = P(x > 0)
    E[V] = (Var(Y - x) / 2 + (1 - a c) E[x (B - x)]) / (B (1 - rho))

and Little's law gives the mean time of a token from its arrival to the end of its pass. This is exact. What the moments
alone do not give, s and E[x²], is interpolated between the two limits in which it is known: passes that never fill, and
prompts much longer than a pass. With chunked prefill D is a decode step; with prefill first e is the time of a pass of
prompts less D.

Ranks and micro-batches in lockstep (peers) wait for the slowest: the load of the others is part of D and e, by how much
the busiest of several peers has under random arrivals (`most_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array

_ROUNDS = 6  # iterations of the share of passes with prompts
_TINY = 1e-12
# both by eye on the deployments of tests/golden/test_open_loop.py, which holds the result to the simulator
_CHANCE = 1.15  # spread of prompts over peers relative to random assignment, when all passes are alike
_SPREAD = 2.7  # how fast passes become full or empty as prompts grow, on the Markov chain of equal prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPasses:
    """Time of passes of an engine by the prompt tokens of the busiest rank; arrays that broadcast.

    Args:
        decode_s: D, time of a pass without prompts [s].
        first_s: additional time of a pass with one prompt, or as much of it as fits; negative where decoding waits [s].
        per_token_s: additional time of each further token [s].
        room: B, prompt tokens that a pass can take from one rank [tokens].
        peers: ranks and micro-batches in lockstep [count].
    """

    decode_s: Array
    first_s: Array
    per_token_s: Array
    room: Array
    peers: FloatLike = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptSizes:
    """Prompts of several sizes.

    Args:
        shares: of the prompts, (classes,).
        tokens: new tokens of a prompt, (classes,) [tokens].
        squared: E[n²] of all prompts over the square of their mean, at least 1.
    """

    shares: Array
    tokens: Array
    squared: float

    def mean(self, shares: Array, value: Callable[[float], Array]) -> Array:
        """Mean of what depends on the tokens of a prompt, with these shares of the classes."""
        return as_array(sum((share * value(tokens) for share, tokens in zip(shares, self.tokens, strict=True)), 0.0))

    @property
    def token_shares(self) -> Array:
        """Share of each class in all tokens, shape (classes,) [1]."""
        tokens = self.shares * self.tokens
        return tokens / tokens.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQueue:
    """Mean values of the queue of prompts; arrays.

    Args:
        pass_s: E[T], mean pass [s].
        prompt_pass_s: mean pass with prompts [s].
        some: share of passes in which any peer carries prompts [1].
        own: share of passes in which a rank itself carries some [1].
        prompt_tokens: E[x], new tokens per pass on one rank [tokens].
        wait_s: time from the arrival of a prompt to the end of its last pass [s].
        backlog: tokens waiting when a pass starts [tokens].
        left_behind: tokens waiting when a prompt has just been finished [tokens].
        load: rho; at 1 or more the backlog grows without bound [1].
        settling: relaxation time of the backlog, in passes [count].
        growth: increase of the mean pass per increase of D [1].
    """

    pass_s: Array
    prompt_pass_s: Array
    some: Array
    own: Array
    prompt_tokens: Array
    wait_s: Array
    backlog: Array
    left_behind: Array
    load: Array
    settling: Array
    growth: Array


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # beyond saturation
def prompt_queue(
    passes: PromptPasses,
    prompts_per_s: FloatLike,
    new_tokens: float,
    like: PromptQueue | None = None,
    sizes: PromptSizes | None = None,
) -> PromptQueue:
    """The queue of one rank.

    Args:
        prompts_per_s: lambda, arrival rate at one rank [requests/s].
        new_tokens: n, new tokens per prompt [tokens].
        like: the queue at a similar rate, as a starting point.
        sizes: of prompts that differ, with new_tokens as their mean; None for equal ones.

    Returns:
        Arrays in the broadcast shape; not meaningful where `load` is 1 or more.

    Assumes: Poisson arrivals, prompts of about equal length, random assignment to peers.
    Sources: Bailey 1954, On queueing processes with bulk service, for constant T; the balance of E[V²] is that of
        Kingman 1962, On queues in heavy traffic.
    """
    rate, room, decode = as_array(prompts_per_s), passes.room, passes.decode_s
    peers = as_array(passes.peers)
    first = first_tokens(new_tokens, room, sizes)
    slope = passes.per_token_s
    tokens_per_s = rate * new_tokens
    size = new_tokens / room
    whole_pass_s = decode + passes.first_s + slope * (room - first)
    load = tokens_per_s * whole_pass_s / room
    open_ = np.maximum(1.0 - load, 1e-3)
    squared = 1.0 if sizes is None else sizes.squared
    pieces = np.ceil(size - 1e-9)  # passes that a prompt needs, on average
    if sizes is not None:
        pieces = sizes.mean(sizes.shares, lambda tokens: np.ceil(tokens / room - 1e-9))
    # the last chunk of a prompt leaves room, which other prompts fill under load
    fill = np.where(size > 0.6, 1.0 + (pieces / size - 1.0) * open_, 1.0)

    several = bool(np.any(peers > 1))
    alone_s = decode + passes.first_s - slope * first
    per_prompt_s = slope * new_tokens
    loaded_s = decode + passes.first_s if like is None else like.prompt_pass_s
    some = -np.expm1(-rate * peers * decode * pieces) if like is None else like.some
    own = some
    coming = rate * decode
    of_calm = np.maximum(-np.expm1(-coming * peers), coming) * per_prompt_s
    of_busy: FloatLike = rate * per_prompt_s
    busiest: FloatLike = 1.0
    calm = np.exp(-coming)
    calm_of_all = np.exp(-coming * peers) if several else calm
    one = size < 1.0
    for turn in range(_ROUNDS):
        mean_s = decode + some * (loaded_s - decode)
        kept = np.minimum(tokens_per_s * mean_s / room * fill, 1.0)
        busy = np.exp(-rate * loaded_s)
        busy_of_all = np.exp(-rate * peers * loaded_s) if several else busy
        some = np.where(one, 1.0 - busy_of_all / (1.0 - calm_of_all + busy_of_all), kept)
        if several:
            own = np.minimum(np.maximum(np.where(one, 1.0 - (1.0 - some) * calm - some * busy, 0.0), kept), 1.0)
            some = np.where(one, some, 1.0 - (1.0 - kept) ** peers)
            some = np.maximum(some, own)
            # few requests end in a long pass, so each new one goes to the least loaded peer
            if turn % 2 == 0:
                busiest = most_of(rate * loaded_s, peers, _CHANCE * np.sqrt(np.minimum(mean_s / loaded_s, 1.0)))
            of_busy = rate * per_prompt_s * busiest
        else:
            own = some = np.maximum(some, kept)
        before_s = loaded_s
        loaded_s = (alone_s + (1.0 / np.maximum(some, _TINY) - 1.0) * of_calm) / np.maximum(1.0 - of_busy, 1e-3)
        loaded_s = np.maximum(loaded_s, 1e-3 * (decode + passes.first_s))
        if several:
            least_s = decode + passes.first_s
            together_s = np.where(one, np.clip(loaded_s, least_s, np.maximum(whole_pass_s, least_s)), least_s)
            loaded_s = np.where(peers > 1.0, 0.5 * (together_s + before_s), loaded_s)  # else it oscillates
    mean_s = decode + some * (loaded_s - decode)
    taken = np.minimum(tokens_per_s * mean_s, room * (1.0 - 1e-6))
    # the pass as one rank sees it: prompts of the others if it has none, and what its own add
    own_s, base_s, noise = loaded_s, decode, np.zeros_like(mean_s)
    if several:
        # a prompt adds to its own pass, so it sees a fuller pass than the mean one
        at_once = (1.0 + (busiest * rate * loaded_s) ** 2.5) ** 0.4
        with_it_s = decode + passes.first_s + per_prompt_s * some * loaded_s / mean_s * (at_once - 1.0)
        own_s = np.where(
            one & (peers > 1.0), np.clip(with_it_s, loaded_s, np.maximum(whole_pass_s, loaded_s)), loaded_s
        )
        others = np.clip((mean_s - decode - own * (own_s - decode)) / (loaded_s - decode), 0.0, 1.0)
        others = np.where(own < 1.0, np.minimum(others / np.maximum(1.0 - own, _TINY), 1.0), 0.0)
        base_s = decode + others * (loaded_s - decode)
        noise = (1.0 - own) * others * (1.0 - others) * (loaded_s - decode) ** 2
    own_held = np.minimum(np.maximum(taken / np.maximum(own, _TINY), 1.0), room)
    per_token = np.where(room - own_held > 1.0, (whole_pass_s - own_s) / np.maximum(room - own_held, 1.0), slope)
    per_token = np.maximum(per_token, 0.0)
    jump = own_s - base_s - per_token * own_held
    grown = tokens_per_s * per_token
    rest = np.maximum(1.0 - grown, 1e-3)

    spread = jump * jump * own * (1.0 - own)
    cross = jump * taken * (1.0 - own)
    gated = squared * new_tokens**2 * rate * mean_s + tokens_per_s**2 * (spread + 2.0 * per_token * cross + noise)
    gated = gated / np.maximum(1.0 - grown * grown, 1e-3)
    extremes = taken * (room - taken)  # Var(x) if x were 0 or B
    share = gated / extremes
    most = 1.0 - taken / room * np.exp(-_SPREAD * size)
    share = share / np.sqrt(1.0 + (share / most) ** 2)
    if sizes is None:
        alone = np.where(size < 1.0, size, _alone_share(size))
    else:
        alone = sizes.mean(sizes.token_shares, lambda tokens: _alone_share(tokens / room))
    share = np.maximum(share, np.where((size if sizes is None else alone) > 0.4, alone, 0.0))
    variance = share * extremes
    left_free = extremes - variance  # E[x (B - x)]
    noisy = (
        squared * new_tokens**2 * rate * mean_s
        + tokens_per_s**2 * (spread + noise)
        + rest * rest * variance
        - 2.0 * tokens_per_s * rest * cross
    )
    backlog = np.maximum((0.5 * noisy + rest * left_free) / (room * open_), taken)
    pass_variance = per_token * per_token * variance + spread + 2.0 * per_token * cross + noise
    held_s = whole_pass_s * backlog - per_token * left_free + 0.5 * tokens_per_s * (mean_s * mean_s + pass_variance)
    token_s = held_s / (mean_s * tokens_per_s)
    tail = _Tail(room=room, load=load, whole_s=whole_pass_s, last_s=own_s, slope_s=slope)
    later_s, mine = tail.of(new_tokens) if sizes is None else tail.of_sizes(sizes)

    moved = room * backlog - left_free
    square = taken * taken + variance
    behind = (moved - square + tokens_per_s * ((base_s + jump) * taken + per_token * square)) / taken
    behind = np.maximum(behind - mine + tokens_per_s * later_s, 0.0)
    drift = room * open_
    loaded_more = some * some * slope * tokens_per_s + (loaded_s - decode) / mean_s * (1.0 - some) * -np.log1p(
        -np.minimum(some, 1.0 - _TINY)
    )
    return PromptQueue(
        pass_s=mean_s,
        prompt_pass_s=loaded_s,
        some=some,
        own=own,
        prompt_tokens=taken,
        wait_s=token_s + later_s,
        backlog=backlog,
        left_behind=behind,
        load=load,
        settling=behind / drift + noisy / (drift * drift),
        growth=1.0 / np.maximum(1.0 - loaded_more, 0.05),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """Time from the mean token of a prompt to its last token.

    Args:
        room: tokens that a pass takes from one rank [tokens].
        load: of the queue.
        whole_s: full pass [s].
        last_s: pass with prompts, as one with a prompt sees it [s].
        slope_s: what each token adds [s].
    """

    room: Array
    load: Array
    whole_s: Array
    last_s: Array
    slope_s: Array

    def of(self, new_tokens: FloatLike) -> tuple[Array, Array]:
        """Time to the last token [s], and tokens of the prompt that are left at the mean one [tokens]."""
        n = as_array(new_tokens)
        size = n / self.room
        pieces = np.ceil(size - 1e-9)
        open_ = np.maximum(1.0 - self.load, 1e-3)
        before = (pieces - 1.0) * self.room
        last_s = np.minimum(self.last_s, self._last_s(n, before))
        in_pieces_s = (0.5 * (pieces - 1.0) * (pieces - 2.0) * self.whole_s + (pieces - 1.0) * last_s) / size
        ratio = np.maximum(size, 1.0 / size)
        loose = np.where(np.abs(ratio - np.rint(ratio)) < 1e-9, 0.0, np.minimum(self.load, 1.0))
        split_s = 0.5 * size * loose * self.whole_s
        left = np.where(
            size < 1.0,
            0.5 * loose * loose * n,
            open_ * before * (1.0 - 0.5 * pieces / size) + 0.5 * loose * n,
        )
        return np.where(size < 1.0, loose * split_s, open_ * in_pieces_s + split_s), left

    def of_sizes(self, sizes: PromptSizes) -> tuple[Array, Array]:
        """The tail from the mean token of all to the last one of the mean prompt: long prompts have most tokens."""
        later_s, left = np.zeros(np.shape(self.load)), np.zeros(np.shape(self.load))
        for share, token_share, tokens in zip(sizes.shares, sizes.token_shares, sizes.tokens, strict=True):
            to_last_s, of_prompt = self.of(tokens)
            size = tokens / self.room
            pieces = np.ceil(size - 1e-9)
            alone_s = (pieces - 1.0) * self.whole_s + self._last_s(tokens, (pieces - 1.0) * self.room)
            # from the start of a prompt to its mean token, in passes of its own and in full ones
            load = np.minimum(self.load, 1.0)
            light_s = alone_s - np.where(size < 1.0, 0.0, to_last_s)
            mean_s = (1.0 - load) * light_s + load * 0.5 * size * self.whole_s
            later_s = later_s + share * to_last_s + (share - token_share) * mean_s
            left = left + token_share * of_prompt
        return later_s, left

    def _last_s(self, new_tokens: FloatLike, before: Array) -> Array:
        """The pass that ends a prompt which is alone [s]."""
        return self.whole_s - self.slope_s * (self.room - np.maximum(new_tokens - before, 1.0))


def first_tokens(new_tokens: FloatLike, room: Array, sizes: PromptSizes | None) -> Array:
    """Mean number of tokens in the first pass of a prompt [tokens]."""
    if sizes is None:
        return np.minimum(new_tokens, room)
    return sizes.mean(sizes.shares, lambda tokens: np.minimum(tokens, room))


def _alone_share(size: Array) -> Array:
    """E[x²] over room · E[x] of passes with one prompt each, by the passes that the prompt fills."""
    part = size - np.floor(size + 1e-9)
    return (np.floor(size + 1e-9) + part * part) / size


def slot_wait_s(in_flight: FloatLike, slots: FloatLike, stay_s: FloatLike) -> Array:
    """Mean waiting time for a slot [s]; infinite where more requests are in flight than there are slots.

        M/M/c: stay / c · rho^(sqrt(2 (c + 1)) - 1) / (1 - rho),    M/D/c: half of it, times 1 + f

        f = (1 - rho) (c - 1) (sqrt(4 + 5 c) - 2) / (16 rho c)

    Args:
        in_flight: mean number of occupied slots, arrival rate · stay [sequences].
        slots: c [sequences].
        stay_s: time that a request occupies its slot [s].

    Sources: Sakasegawa 1977 for M/M/c; Cosmetatos 1975 for M/D/c.

    >>> round(float(slot_wait_s(0.8, 1.0, 1.0)), 3), float(slot_wait_s(2.0, 1.0, 1.0))
    (2.0, inf)
    """
    c = np.maximum(as_array(slots), 1.0)
    rho = as_array(in_flight) / c
    below = np.clip(rho, 1e-9, 1.0 - 1e-9)
    wait = as_array(stay_s) / c * below ** (np.sqrt(2.0 * (c + 1.0)) - 1.0) / (1.0 - below)
    equal = 1.0 + (1.0 - below) * (c - 1.0) * (np.sqrt(4.0 + 5.0 * c) - 2.0) / (16.0 * below * c)
    return np.where(rho < 1.0, 0.5 * wait * equal, np.inf)


_FEWEST, _MOST, _POINTS = 1e-3, 1e2, 101


def busiest_share(mean: FloatLike, peers: FloatLike) -> Array:
    """Arrivals at the busiest of several peers over the mean of those peers that have any.

    With N_i arrivals at peer i, Poisson and independent: E[max N] / P(max N > 0) over E[N] / P(N > 0). It is 1 for one
    peer, and near 1 where arrivals are rare (a peer has at most one) and where they are many.

    Args:
        mean: arrivals at each peer [count], broadcast with `peers`.
        peers: number of peers [count].

    Returns:
        The factor, at least 1, in the broadcast shape [1].

    Assumes: interpolated between 101 points with means a factor of 1.12 apart, within 0.5 % of the exact sum; above
    100 arrivals, the factor at 100.
    Sources: E[max] = sum over k of 1 - (1 - P(N >= k))^peers, the tail sum of a maximum of independent variables.

    >>> round(float(busiest_share(0.3, 4)), 3)
    1.056
    """
    means, counts = as_array(mean), as_array(peers)
    shape = np.broadcast_shapes(means.shape, counts.shape)
    logs = np.broadcast_to(np.log(np.maximum(means, _FEWEST)), shape)
    found = np.ones(shape)
    by_row = counts.ndim == len(shape) > 0 and counts.shape == (*shape[:-1], 1)  # one number of peers per layout
    for count in np.unique(counts):
        if count > 1:
            here = counts == count
            here = here[..., 0] if by_row else np.broadcast_to(here, shape)
            found[here] = np.interp(logs[here], *_curve(float(count)))
    return found


def most_of(mean: FloatLike, peers: FloatLike, chance: FloatLike = 1.0) -> Array:
    """Arrivals at the busiest of several peers over the mean of one.

    E[max N] / mean, interpolated between random assignment and the most even one, where the total is divided by the
    number of peers and rounded up.

    Args:
        mean: arrivals at each peer [count], broadcast with `peers`.
        peers: number of peers [count].
        chance: 1 if each arrival goes to a random peer, 0 if it goes to the peer with the fewest [1].

    Returns:
        The factor, 1 to `peers`, in the broadcast shape [1].

    Assumes: Poisson arrivals; interpolated between 101 points with means a factor of 1.12 apart.

    >>> most_of(1e-3, 4).round(2), most_of(3.0, 4).round(2), most_of(3.0, 4, 0.0).round(2)
    (np.float64(3.99), np.float64(1.61), np.float64(1.13))
    """
    counts = as_array(peers)
    kinds, row = np.unique(counts, return_inverse=True)
    by_chance, evenly = (
        np.stack(curves) for curves in zip(*(_most_curves(float(kind)) for kind in kinds), strict=True)
    )
    place = np.log(np.clip(as_array(mean), _FEWEST, _MOST) / _FEWEST) * ((_POINTS - 1) / np.log(_MOST / _FEWEST))
    left = np.minimum(place.astype(np.int64), _POINTS - 2)
    part = place - left
    at = row.reshape(counts.shape) * _POINTS + left
    found = np.take(evenly, at) * (1.0 - part) + np.take(evenly, at + 1) * part
    return found + as_array(chance) * (
        np.take(by_chance, at) * (1.0 - part) + np.take(by_chance, at + 1) * part - found
    )


@cache
def _most_curves(peers: float) -> tuple[Array, Array]:
    """(E[max N], E[total over peers, rounded up]), each over the mean of one peer, (101,) each."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    return busiest_share(means, peers) * np.expm1(-means * peers) / np.expm1(-means), _even_curve(peers)


@cache
def _even_curve(peers: float) -> Array:
    """E[total over peers, rounded up] over the mean of one, (101,)."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    factors = np.empty(_POINTS)
    for index, mean in enumerate(means):
        total = mean * peers
        counts = np.arange(1, int(total + 12.0 * np.sqrt(total) + 12.0))
        log_terms = counts * np.log(total) - total - np.cumsum(np.log(counts))
        factors[index] = float(np.sum(np.exp(log_terms) * np.ceil(counts / peers))) / mean
    return factors


@cache
def _curve(peers: float) -> tuple[Array, Array]:
    """(log of the mean, factor), (101,) each."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    factors = np.empty(_POINTS)
    for index, mean in enumerate(means):
        far = int(mean + 12.0 * np.sqrt(mean) + 12.0)
        log_terms = np.arange(far) * np.log(mean) - mean - np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, far)))])
        tails = np.clip(1.0 - np.cumsum(np.exp(log_terms)), 0.0, 1.0)  # P(N >= 1), P(N >= 2), ...
        # tails below 1e-12 are rounding errors, which `peers` would multiply
        some = -np.expm1(peers * np.log1p(-np.minimum(np.where(tails > 1e-12, tails, 0.0), 1.0 - 1e-15)))
        factors[index] = some.sum() / some[0] * -np.expm1(-mean) / mean
    return np.log(means), np.maximum(factors, 1.0)
