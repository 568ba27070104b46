"""The cheapest way to pair the prefill and the decode replicas of a space, in whole numbers of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.hardware import Cluster, billed_chips, taken_chips
from rackline.passes.features import Array, as_array
from rackline.rounding import rounded
from rackline.search.points import Columns
from rackline.search.pool_points import PoolPoints

_PAIRS = 200_000  # evaluated at a time: bounds the memory
_IN_TURN = (1, 4)  # prefill replicas whose load decides the partners
_PARTNERS = 2  # for each of them
_NUMBERS = (1, 2, 4, 8, 16)  # prefill replicas whose load decides the ratios
_FEW_CHIPS = 16  # of a cluster in which every number of prefill replicas is considered
_CLOSE = 1e-9  # of a replica: thirds of a host add up to whole ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Chips and prices of both pools.

    Args:
        prefill_chips, decode_chips: most that each pool may use [count].
        shared_chips: most that both may use together; None for pools on clusters of their own [count].
        prefill_usd_per_chip_s, decode_usd_per_chip_s: [USD/s].
        prefill_on, decode_on: clusters whose whole rented units are paid; None where only chips in use are.
    """

    prefill_chips: int
    decode_chips: int
    shared_chips: int | None
    prefill_usd_per_chip_s: float
    decode_usd_per_chip_s: float
    prefill_on: Cluster | None = None
    decode_on: Cluster | None = None

    def taken(self, prefill_chips: Array, decode_chips: Array) -> tuple[Array, Array]:
        """Chips that a replica of each pool takes, see `rackline.hardware.renting.taken_chips` [chips]."""
        first = prefill_chips if self.prefill_on is None else taken_chips(self.prefill_on, prefill_chips)
        then = decode_chips if self.decode_on is None else taken_chips(self.decode_on, decode_chips)
        return as_array(first), as_array(then)

    def billed(self, prefill_taken: Array, decode_taken: Array) -> tuple[Array, Array]:
        """Chips that are paid for in each pool; where they share a cluster, in the ratio of what they take [chips]."""
        if self.prefill_on is None or self.decode_on is None:
            return prefill_taken, decode_taken
        if self.shared_chips is None:
            return billed_chips(self.prefill_on, prefill_taken), billed_chips(self.decode_on, decode_taken)
        both = np.maximum(prefill_taken + decode_taken, 1.0)
        share = billed_chips(self.decode_on, both) / both
        return share * prefill_taken, share * decode_taken

    @property
    def in_units(self) -> bool:
        """Whether both pools share chips that are rented several at a time."""
        return self.shared_chips is not None and self.decode_on is not None and self.decode_on.rented_chips > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs(Columns):
    """Pairs of replicas in their best ratio; arrays (pairs,), with infinite cost where there is no ratio.

    Args:
        partner, decode: indices of the prefill and of the decode point.
        usd_per_request: [USD].
        requests_per_s: of both pools together [requests/s].
        prefill_replicas, decode_replicas: [count].
    """

    partner: Array
    decode: Array
    usd_per_request: Array
    requests_per_s: Array
    prefill_replicas: Array
    decode_replicas: Array

    @classmethod
    def none(cls, partner: Array, decode: Array) -> Pairs:
        """Pairs before any ratio is known."""
        whole = np.zeros(decode.shape, dtype=np.int64)
        return cls(
            partner=partner,
            decode=decode,
            usd_per_request=np.full(decode.shape, np.inf),
            requests_per_s=np.zeros(decode.shape),
            prefill_replicas=whole,
            decode_replicas=whole.copy(),
        )


def pair(prefill: PoolPoints, decode: PoolPoints, budget: Budget, slack_s: float | None) -> tuple[Pairs, int]:
    """The cheapest prefill pool and the best ratio for each decode point, in whole replicas.

    A request costs (n a + m c) / min(n f, m r): least where m / n is nearest to f / r, from below or from above, so
    that these two are all that is considered, however many replicas there are; see `nearest_ratios`. Under a limit to
    the first token f grows with n, since round-robin arrivals are more regular: partners are found with the f of
    one replica and of four, ratios with the f of several numbers, and the cheapest at its own f counts.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].

    Returns:
        (the pair of each decode point, prefill points that were compared over all decode points).
    """
    size, evaluated = decode.chips.size, 0
    found = Pairs.none(np.zeros(size, dtype=np.int64), np.arange(size))
    for label in np.unique(decode.label):
        mine = np.flatnonzero(decode.label == label)
        others = np.flatnonzero(prefill.label == label)
        if others.size == 0:
            continue
        step = max(1, _PAIRS // others.size)
        for start in range(0, mine.size, step):
            part = mine[start : start + step]
            shape = (part.size, others.size)
            transfer = _transfer_s(prefill, decode, part[:, None], others[None, :])
            first, then = (np.broadcast_to(index, shape).ravel() for index in (others[None, :], part[:, None]))
            links, place = np.unique(transfer, return_inverse=True)
            row, ways = np.arange(part.size), list[Pairs]()
            for in_turn in _IN_TURN if slack_s is not None else (0,):
                load = prefill.load(
                    others[None, :], links[:, None], slack_s, max(in_turn, 1)
                )  # few links: each load once
                load = load[place.reshape(shape), np.arange(others.size)[None, :]].ravel()
                every = _costs(prefill, decode, first, then, budget, load)
                best = np.argsort(rounded(every.usd_per_request).reshape(shape), axis=1, kind="stable")[
                    :, : _PARTNERS if in_turn else 1
                ]
                ways.extend(every.take(row * others.size + one) for one in best.T)
                evaluated += load.size
            if slack_s is not None:
                ways = _in_turn(prefill, decode, ways, budget, slack_s)
            which = np.argmin(rounded([one.usd_per_request for one in ways]), axis=0)
            for name in Pairs.__slots__:
                getattr(found, name)[part] = np.array([getattr(one, name) for one in ways])[which, row]
    return found, evaluated


def _in_turn(prefill: PoolPoints, decode: PoolPoints, ways: list[Pairs], budget: Budget, slack_s: float) -> list[Pairs]:
    """The same pairs in the ratios that several numbers of prefill replicas allow, each at its own load."""
    count, size = len(ways) * len(_NUMBERS), ways[0].decode.size
    first = np.concatenate([way.partner for way in ways for _ in _NUMBERS])
    then = np.concatenate([way.decode for way in ways for _ in _NUMBERS])
    numbers = np.tile(np.repeat(_NUMBERS, size), len(ways))
    transfer = _transfer_s(prefill, decode, then, first)
    found = _costs(prefill, decode, first, then, budget, prefill.load(first, transfer, slack_s, numbers))
    # as often as it fits: more replicas in turn, each with a higher load
    used = np.array([found.prefill_replicas, found.decode_replicas])
    limits = _chip_limits(prefill, decode, first, then, budget)
    often = _most(limits, 0 * used, used)
    n, m = used * np.where(np.isfinite(often), np.maximum(often, 1.0), 1.0).astype(np.int64)
    load = prefill.load(first, transfer, slack_s, np.maximum(n, 1))
    rate = np.minimum(n * prefill.requests_per_s[first] * load, m * decode.requests_per_s[then])
    usd = _usd(prefill, decode, first, then, budget, n, m, rate)
    found = replace(found, usd_per_request=usd, requests_per_s=rate, prefill_replicas=n, decode_replicas=m)
    return [found.take(np.arange(at * size, (at + 1) * size)) for at in range(count)]


def _transfer_s(prefill: PoolPoints, decode: PoolPoints, then: Array, first: Array) -> Array:
    return np.maximum(prefill.link_s[first], decode.link_s[then])


def _usd(
    prefill: PoolPoints, decode: PoolPoints, first: Array, then: Array, budget: Budget, n: Array, m: Array, rate: Array
) -> Array:
    one, other = budget.taken(prefill.chips[first], decode.chips[then])
    paid = budget.billed(n * one, m * other)
    spent = paid[0] * budget.prefill_usd_per_chip_s + paid[1] * budget.decode_usd_per_chip_s
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rate > 0, spent / rate, np.inf)


def _chip_limits(prefill: PoolPoints, decode: PoolPoints, first: Array, then: Array, budget: Budget) -> list[ChipLimit]:
    chips_p, chips_d = budget.taken(as_array(prefill.chips[first]), as_array(decode.chips[then]))
    if budget.shared_chips is not None:
        return [ChipLimit(prefill_chips=chips_p, decode_chips=chips_d, num_chips=budget.shared_chips)]
    none = np.zeros(first.shape)
    return [
        ChipLimit(prefill_chips=chips_p, decode_chips=none, num_chips=budget.prefill_chips),
        ChipLimit(prefill_chips=none, decode_chips=chips_d, num_chips=budget.decode_chips),
    ]


def _ratios(rate_p: Array, rate_d: Array, limits: list[ChipLimit], budget: Budget) -> Iterator[tuple[Array, Array]]:
    """Replicas of both pools that may be the cheapest: in the nearest ratios, or filling the cluster.

    Where chips are rented several at a time, the nearest ratios are repeated as often as they fit, and beside them
    stand the whole numbers around the ratio that would use every chip.
    """
    for counts in nearest_ratios(rate_p / rate_d, limits):
        often = np.ones(counts.shape[1:])
        if budget.in_units:
            often = _most(limits, 0.0 * counts, counts)
            often = np.where(np.isfinite(often), np.maximum(often, 1.0), 1.0)
        n, m = counts * often
        yield n, m
    if not budget.in_units:
        return
    both = limits[0]
    one, other = both.prefill_chips, both.decode_chips
    with np.errstate(divide="ignore", invalid="ignore"):
        ideal = both.num_chips / (one * rate_d + other * rate_p)
        wanted = [(rounded(ideal * rate_d), None) for rounded in (np.floor, np.ceil)]
        wanted += [(None, rounded(ideal * rate_p)) for rounded in (np.floor, np.ceil)]
    if both.num_chips <= _FEW_CHIPS:
        wanted = [(np.full(one.shape, float(count)), None) for count in range(1, int(both.num_chips))]
    for n, m in wanted:  # one of both is rounded, the other takes what is left
        n = np.floor((both.num_chips - m * other) / one + _CLOSE) if n is None else n
        m = np.floor((both.num_chips - n * one) / other + _CLOSE) if m is None else m
        good = (n >= 1) & (m >= 1) & np.isfinite(n) & np.isfinite(m)
        yield np.where(good, n, 0.0), np.where(good, m, 0.0)


def _costs(prefill: PoolPoints, decode: PoolPoints, first: Array, then: Array, budget: Budget, load: Array) -> Pairs:
    """Prefill replicas `first` beside decode replicas `then` in their best ratio.

    Args:
        load: of the prefill replicas, (pairs,).
    """
    rate_p, rate_d = prefill.requests_per_s[first] * load, decode.requests_per_s[then]
    limits = _chip_limits(prefill, decode, first, then, budget)
    best = Pairs.none(first, then)
    for n, m in _ratios(rate_p, rate_d, limits, budget):
        rate = np.minimum(n * rate_p, m * rate_d)
        cost = _usd(prefill, decode, first, then, budget, n, m, rate)
        better = cost < best.usd_per_request * (1.0 - 1e-10)  # of equal ones, the first
        best = replace(
            best,
            usd_per_request=np.where(better, cost, best.usd_per_request),
            requests_per_s=np.where(better, rate, best.requests_per_s),
            prefill_replicas=np.where(better, n.astype(np.int64), best.prefill_replicas),
            decode_replicas=np.where(better, m.astype(np.int64), best.decode_replicas),
        )
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLimit(Columns):
    """Chips that replicas of two pools may use: prefill_chips · n + decode_chips · m <= num_chips.

    Args:
        prefill_chips, decode_chips: of one replica, (pairs,); 0 where a pool has chips of its own [count].
        num_chips: [count].
    """

    prefill_chips: Array
    decode_chips: Array
    num_chips: float

    def steps(self, start: Array, step: Array) -> Array:
        """How often a step of (n, m) fits behind a start, both (2, pairs)."""
        left = self.num_chips - start[0] * self.prefill_chips - start[1] * self.decode_chips
        each = step[0] * self.prefill_chips + step[1] * self.decode_chips
        return np.where(left < 0, 0.0, np.where(each > 0, np.floor(left / np.where(each > 0, each, 1.0)), np.inf))


def nearest_ratios(wanted: Array, limits: Sequence[ChipLimit]) -> tuple[Array, Array]:
    """Replicas whose ratio m / n is nearest to the wanted one, from below and from above, within the limits.

    The walk down the Stern-Brocot tree: a fraction between two neighbours of the tree has at least the sum of their
    numerators and of their denominators, so when that sum is beyond the limits nothing lies between them. A run of
    steps to one side is taken at once, which makes it as long as a continued fraction.

    Args:
        wanted: decode replicas a prefill replica, above 0, (pairs,).
        limits: on both numbers.

    Returns:
        (n, m) of the nearest from below and from above, each (2, pairs); a 0 in it means that there is none.

    Sources: Graham, Knuth, Patashnik 1994, Concrete Mathematics, section 4.5.
    """
    shape = (2, wanted.size)
    below, above = np.zeros(shape), np.zeros(shape)
    below[0], above[1] = 1.0, 1.0  # 0 / 1 and 1 / 0
    moving = np.flatnonzero(wanted > 0)
    while moving.size:
        target, low, high = wanted[moving], below[:, moving], above[:, moving]
        here = [limit.take(moving) for limit in limits]
        gap_low, gap_high = target * low[0] - low[1], high[1] - target * high[0]
        up = np.floor(gap_low / np.maximum(gap_high, 1e-300))
        up = np.maximum(np.minimum(up, _most(here, low, high)), 0.0)
        low = low + up * high
        gap_low = target * low[0] - low[1]
        down = np.where(gap_low > 0, np.ceil(gap_high / np.where(gap_low > 0, gap_low, 1.0)) - 1.0, 0.0)
        down = np.maximum(np.minimum(down, _most(here, high, low)), 0.0)
        high = high + down * low
        below[:, moving], above[:, moving] = low, high
        moving = moving[(up > 0) | (down > 0)]
    return below, above


def _most(limits: Sequence[ChipLimit], start: Array, step: Array) -> Array:
    return np.minimum.reduce([limit.steps(start, step) for limit in limits])
