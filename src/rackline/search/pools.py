"""Points of disaggregated serving: every prefill and every decode replica, and the cheapest way to pair them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rackline.arch import Model
from rackline.hardware import Cluster, FabricLevel, billed_chips, taken_chips
from rackline.parallel import Layout, memory_use
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.passes.features import Array, FloatLike, as_array
from rackline.search.evaluate import Part, Space
from rackline.search.pareto import pareto_front
from rackline.search.pool_ratios import ChipLimit, nearest_ratios
from rackline.serving.context import ContextGroup, context_decode_s, exchange_s, kv_exchange_bytes
from rackline.serving.disaggregated import MOST_LOAD, PrefillPasses, prefill_rate
from rackline.serving.open_loop import UNEVEN
from rackline.serving.workload import Mode, Workload

PREFILL_BUDGETS = (2048, 4096, 8192, 16384, 32768)  # new tokens of a pass on one rank
LONG_PROMPT = 16384  # tokens; context parallelism is considered for longer prompts
_PAIRS = 200_000  # evaluated at a time: bounds the memory
_IN_TURN = (1, 4)  # prefill replicas whose load decides the partners
_PARTNERS = 2  # for each of them
_NUMBERS = (1, 2, 4, 8, 16)  # prefill replicas whose load decides the ratios
_FEW_CHIPS = 16  # of a cluster in which every number of prefill replicas is considered
_CLOSE = 1e-9  # of a replica: thirds of a host add up to whole ones
_COUNTS = ("evaluated", "fitting")
WAITING_PROMPTS = 2.0  # passes' worth of KV on a prefill chip: one being made, one being sent


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoints:
    """Replicas of one pool; arrays of one length.

    Args:
        label: precision of each, as an index into `precisions`.
        mode: scheduler of each, as an index into `modes`.
        row: layout of each, as an index into the list of layouts.
        per_rank: sequences of a rank and micro-batch; 0 in a prefill pool [sequences].
        chips: of one replica [count].
        seconds: time per output token of a decode replica, service time of a prefill replica in full passes [s].
        alone_s: the same with one sequence on a rank, or in passes of one prompt per rank [s].
        requests_per_s: of one replica, no more than its links can send or receive [requests/s].
        link_s: time to send or to receive the KV cache of one prompt [s].
        together: prompts that a prefill replica serves at a time; 1 in a decode pool [requests].
        peers: ranks and micro-batches of a prefill replica among which they are spread; 1 in a decode pool [count].
        cp: ranks that share one context [count].
        input_cv2: variance of the prompts' tokens over the square of their mean [1].
        evaluated: points whose times were computed [count].
        fitting: points among them that fit, whichever are left of them [count].
    """

    label: Array
    mode: Array
    row: Array
    per_rank: Array
    chips: Array
    seconds: Array
    alone_s: Array
    requests_per_s: Array
    link_s: Array
    together: Array
    peers: Array
    cp: Array
    input_cv2: Array
    evaluated: int
    fitting: int

    def passes(self, index: Array | int) -> PrefillPasses:
        """What prompts find at the prefill replicas of an index."""
        return PrefillPasses(
            alone_s=self.alone_s[index],
            full_s=self.seconds[index],
            together=self.together[index],
            peers=self.peers[index],
            input_cv2=self.input_cv2[index],
        )

    def tpot_s(self, index: int, requests_per_s: float) -> float:
        """Time per output token of a decode replica at a rate, which may be less than it could serve [s].

        Assumes: it grows in proportion to the sequences in flight.
        """
        full_s, share = float(self.seconds[index]), min(requests_per_s / float(self.requests_per_s[index]), 1.0)
        alone_s = min(float(self.alone_s[index]), full_s)
        return alone_s / (1.0 - share * (1.0 - alone_s / full_s))

    def take(self, index: Array) -> PoolPoints:
        """The points of an index."""
        arrays = {name: getattr(self, name)[index] for name in self.__slots__ if name not in _COUNTS}
        return PoolPoints(**arrays, evaluated=self.evaluated, fitting=self.fitting)

    @classmethod
    def join(cls, parts: list[PoolPoints]) -> PoolPoints:
        """Several pools end to end."""
        names = [name for name in cls.__slots__ if name not in _COUNTS]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        evaluated, fitting = (sum(getattr(part, name) for part in parts) for name in _COUNTS)
        return cls(**arrays, evaluated=evaluated, fitting=fitting)

    def in_order(self) -> PoolPoints:
        """By precision, scheduler, context ranks, layout and batch: the order in which the first of equals counts."""
        return self.take(np.lexsort((self.per_rank, self.row, self.cp, self.mode, self.label)))


def prefill_modes(overlap: bool) -> list[Mode]:
    """Schedulers of a prefill pool: full passes of each budget, plain and overlapped."""
    return [
        Mode(admission="prefill_first", max_batched_tokens=budget, two_batch_overlap=two)
        for two in ((False, True) if overlap else (False,))
        for budget in PREFILL_BUDGETS
    ]


def decode_modes(overlap: bool) -> list[Mode]:
    """Schedulers of a decode pool: plain and overlapped."""
    return [Mode(admission="chunked", two_batch_overlap=two) for two in ((False, True) if overlap else (False,))]


def context_sizes(workload: Workload) -> tuple[int, ...]:
    """Ranks that may share one context: only long prompts are worth the exchange."""
    return (1, 2, 4, 8, 16) if workload.input_len >= LONG_PROMPT else (1,)


def _context_rows(space: Space, cp: int) -> tuple[Array, int]:
    """Layouts whose ranks can form context groups, and how many times their chips are needed for it.

    With experts the attention-dp ranks form the groups; without, the chips of a replica are taken cp times.
    """
    if cp == 1:
        return np.ones(len(space.grid), dtype=bool), 1
    if isinstance(space.model, Model) and space.model.is_moe:
        return space.grid.attention_dp % cp == 0, 1
    return space.grid.chips_per_replica * cp <= space.cluster.num_chips, cp


def prefill_points(part: Part, modes: list[Mode], link: FabricLevel) -> PoolPoints:
    """Every layout × scheduler that only prefills and fits.

    Args:
        link: level over which the KV cache leaves.
    """
    space, precision = part.space, part.precision
    engine = replace(part.engine, stack=part.engine.stack.prefill_pool())
    grid, work = space.grid, space.workload
    pp = as_array(grid.pp)
    parts: list[PoolPoints] = []
    whole = float(as_array(kv_bytes_per_sequence(space.model, Layout(), precision, work.input_len)))
    link_s = whole / (as_array(grid.tp) * pp) / link.bytes_per_s_each_way
    for (index, mode), cp in itertools.product(enumerate(modes), context_sizes(work)):
        shares, replicated = _context_rows(space, cp)
        exchange: FloatLike = 0.0
        if cp > 1 and isinstance(space.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            sent = kv_exchange_bytes(space.model, precision, work, mode.max_batched_tokens, group)
            exchange = exchange_s(engine, space.cluster, sent, group, "all_gather")
        rate = prefill_rate(
            engine,
            work,
            mode.max_batched_tokens,
            pp,
            two_batch_overlap=mode.two_batch_overlap,
            cp=cp,
            replicated=replicated,
            exchange_seconds=exchange,
        )
        prompts = max(mode.max_batched_tokens * cp / work.new_tokens, 1.0) / cp
        free = memory_use(
            space.model,
            grid,
            precision,
            space.cluster.chip,
            space.server(float(mode.max_batched_tokens)),
            sequences_per_rank=prompts * WAITING_PROMPTS * pp,
            context_len=work.input_len,
        ).free
        shares = shares & space.launches(precision, mode, "prefill", cp)
        fits = np.broadcast_to(as_array(free) >= 0, (len(grid),)) & shares
        fits = fits & space.holds_longest(precision, float(mode.max_batched_tokens), cp, prompt=True)
        if mode.two_batch_overlap:
            fits = fits & (grid.attention_dp > 1)
        rows = np.flatnonzero(fits)
        parts.append(
            PoolPoints(
                label=np.full(rows.size, part.label),
                mode=np.full(rows.size, index),
                row=part.start + rows,
                per_rank=np.zeros(rows.size),
                chips=grid.chips_per_replica[rows] * replicated,
                seconds=np.broadcast_to(rate.service_s, (len(grid),))[rows],
                alone_s=np.broadcast_to(rate.alone_s, (len(grid),))[rows],
                requests_per_s=np.minimum(rate.prompts_per_s, as_array(grid.attention_dp) * replicated / link_s)[rows],
                link_s=link_s[rows] / cp,
                together=np.broadcast_to(rate.together, (len(grid),))[rows],
                peers=np.broadcast_to(rate.peers, (len(grid),))[rows],
                cp=np.full(rows.size, cp),
                input_cv2=np.full(rows.size, work.input_cv2),
                evaluated=int(np.sum((grid.attention_dp > 1) & shares if mode.two_batch_overlap else shares)),
                fitting=rows.size,
            )
        )
    return PoolPoints.join(parts)


def decode_points(part: Part, modes: list[Mode], link: FabricLevel) -> PoolPoints:
    """Every layout × scheduler × batch that only decodes and fits.

    Args:
        link: level over which the KV cache arrives.
    """
    space, precision, engine = part.space, part.precision, part.engine
    grid, work, b = space.grid, space.workload, space.batches[None, :]
    ranks, pp = as_array(grid.attention_dp)[:, None], as_array(grid.pp)[:, None]
    parts: list[PoolPoints] = []
    received = as_array(kv_bytes_per_sequence(space.model, grid, precision, work.input_len))
    link_s = np.broadcast_to(received / link.bytes_per_s_each_way, (len(grid),))
    for (index, mode), cp in itertools.product(enumerate(modes), context_sizes(work)):
        overlap = mode.two_batch_overlap
        shares, replicated = _context_rows(space, cp)
        if cp > 1 and overlap:
            continue  # the batch of a context group is small
        free = np.broadcast_to(part.free_bytes(space.stack.max_num_seqs, cp), (len(grid), b.size))
        shares = shares & space.launches(precision, mode, "decode", cp)
        fits = (free >= 0) & (shares & space.holds_longest(precision, space.stack.max_num_seqs, cp))[:, None]
        if cp > 1 and isinstance(space.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            step = context_decode_s(engine, space.model, space.cluster, work, b, group, threads=space.threads)
        else:
            step = part.decode_s(overlap)
        groups = ranks * replicated / cp
        tpot = seen_s(np.broadcast_to(step, fits.shape), b, groups * pp, work)
        rate = np.minimum(b * groups * pp / (tpot * (work.output_len - 1.0)), ranks * replicated / link_s[:, None])
        usable = fits & (grid.attention_dp > 1)[:, None] & (b >= 2) if overlap else fits
        rows, columns = np.nonzero(usable)
        parts.append(
            PoolPoints(
                label=np.full(rows.size, part.label),
                mode=np.full(rows.size, index),
                row=part.start + rows,
                per_rank=space.batches[columns],
                chips=grid.chips_per_replica[rows] * replicated,
                seconds=tpot[rows, columns],
                alone_s=tpot[rows, 0],
                requests_per_s=rate[rows, columns],
                link_s=link_s[rows] / cp,
                together=np.ones(rows.size),
                peers=np.ones(rows.size),
                cp=np.full(rows.size, cp),
                input_cv2=np.full(rows.size, work.input_cv2),
                evaluated=int(np.sum((grid.attention_dp > 1) & shares if overlap else shares)) * b.size,
                fitting=rows.size,
            )
        )
    return PoolPoints.join(parts)


def seen_s(step_s: Array, batch: Array, peers: Array, workload: Workload) -> Array:
    """Time per output token where requests arrive at random and `batch` of them decode on average [s].

    A request sees itself beside the others, waits for the busiest of the peers, and for half a step until it joins;
    see `rackline.serving.pool_queue`.

    Args:
        step_s: at each batch, (layouts, batches) [s].
        batch: sequences of a rank and micro-batch, (1, batches) [sequences].
        peers: ranks and micro-batches, (layouts, 1) [count].
    """
    growth = np.zeros(step_s.shape)
    if batch.size > 1:
        growth[:, :-1] = np.diff(step_s, axis=1) / np.diff(batch, axis=1)
        growth[:, -1] = growth[:, -2]
    beside = 1.0 / peers + UNEVEN * (1.0 - 1.0 / peers)
    return (step_s + np.maximum(growth, 0.0) * beside) * (1.0 + 0.5 / (workload.output_len - 1.0))


def undominated(points: PoolPoints, limit_s: float | None = None) -> PoolPoints:
    """Of each precision and size of a replica, what no other beats in time and in rate.

    Args:
        limit_s: largest time; nothing slower is kept [s].
    """
    keep: list[Array] = []
    usable = np.ones(points.chips.size, dtype=bool) if limit_s is None else points.seconds <= limit_s
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.flatnonzero(usable)
    order = order[np.argsort(kind[order], kind="stable")]
    for group in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        if group.size:
            keep.append(group[pareto_front(points.requests_per_s[group], points.seconds[group])])
    return points.take(np.concatenate(keep) if keep else np.empty(0, dtype=np.int64))


def best_loaded(points: PoolPoints, slack_s: float | None, most: int = 2) -> PoolPoints:
    """Of each precision and size of a prefill replica, the few that serve most requests within the time to first token.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].
        most: how many of each to keep [count].
    """
    rate = points.requests_per_s * _load(points, np.arange(points.chips.size), points.link_s, slack_s)
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.lexsort((-rate, kind))
    order = order[rate[order] > 0]
    first = np.searchsorted(kind[order], kind[order], side="left")
    return points.take(order[np.arange(order.size) - first < most])


def _load(
    prefill: PoolPoints, index: Array, transfer_s: Array, slack_s: float | None, in_turn: FloatLike = 1.0
) -> Array:
    """Load at which prefill replicas of an index keep the time to first token; MOST_LOAD without a limit.

    Args:
        transfer_s: of the cache [s]; broadcasts with the index.
        in_turn: replicas of the pool, which get the arrivals round-robin [count].
    """
    if slack_s is None:
        return np.full(np.broadcast_shapes(index.shape, transfer_s.shape), MOST_LOAD)
    return prefill.passes(index).highest_load(slack_s - transfer_s, in_turn)


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
class Pairs:
    """For each decode point its cheapest partner; infinite cost where there is none.

    Args:
        usd_per_request: [USD].
        requests_per_s: of both pools together [requests/s].
        partner: index of the prefill point.
        prefill_replicas, decode_replicas: [count].
        evaluated: prefill points that were compared, over all decode points [count].
    """

    usd_per_request: Array
    requests_per_s: Array
    partner: Array
    prefill_replicas: Array
    decode_replicas: Array
    evaluated: int


def pair(prefill: PoolPoints, decode: PoolPoints, budget: Budget, slack_s: float | None) -> Pairs:
    """The cheapest prefill pool and the best ratio for each decode point, in whole replicas.

    A request costs (n a + m c) / min(n f, m r): least where m / n is nearest to f / r, from below or from above, so
    that these two are all that is considered, however many replicas there are; see `nearest_ratios`. Under a limit to
    the first token f grows with n, since round-robin arrivals are more regular: partners are found with the f of
    one replica and of four, ratios with the f of several numbers, and the cheapest at its own f counts.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].
    """
    size = decode.chips.size
    found = Pairs(
        usd_per_request=np.full(size, np.inf),
        requests_per_s=np.zeros(size),
        partner=np.zeros(size, dtype=np.int64),
        prefill_replicas=np.zeros(size, dtype=np.int64),
        decode_replicas=np.zeros(size, dtype=np.int64),
        evaluated=0,
    )
    evaluated = 0
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
            row, ways = np.arange(part.size), list[_Ways]()
            for in_turn in _IN_TURN if slack_s is not None else (0,):
                load = _load(
                    prefill, others[None, :], links[:, None], slack_s, max(in_turn, 1)
                )  # few links: each load once
                load = load[place.reshape(shape), np.arange(others.size)[None, :]].ravel()
                every = _costs(prefill, decode, first, then, budget, load)
                best = np.argsort(every.usd.reshape(shape), axis=1, kind="stable")[:, : _PARTNERS if in_turn else 1]
                ways.extend(every.take(row * others.size + one) for one in best.T)
                evaluated += load.size
            if slack_s is not None:
                ways = _in_turn(prefill, decode, ways, budget, slack_s)
            which = np.argmin(np.array([one.usd for one in ways]), axis=0)
            found.partner[part] = _chosen(which, [one.first for one in ways])
            found.usd_per_request[part] = _chosen(which, [one.usd for one in ways])
            found.requests_per_s[part] = _chosen(which, [one.requests_per_s for one in ways])
            found.prefill_replicas[part] = _chosen(which, [one.prefill_replicas for one in ways])
            found.decode_replicas[part] = _chosen(which, [one.decode_replicas for one in ways])
    return Pairs(
        **{name: getattr(found, name) for name in Pairs.__slots__ if name != "evaluated"},
        evaluated=evaluated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """Pairs of replicas in their best ratio; arrays (pairs,).

    Args:
        first, then: indices of the prefill and of the decode point.
        usd: of a request [USD].
        requests_per_s: of both pools together [requests/s].
        prefill_replicas, decode_replicas: [count].
    """

    first: Array
    then: Array
    usd: Array
    requests_per_s: Array
    prefill_replicas: Array
    decode_replicas: Array

    def take(self, index: Array) -> _Ways:
        """The pairs of an index."""
        return _Ways(**{name: getattr(self, name)[index] for name in self.__slots__})


def _chosen(which: Array, arrays: list[Array]) -> Array:
    return np.array(arrays)[which, np.arange(which.size)]


def _in_turn(prefill: PoolPoints, decode: PoolPoints, ways: list[_Ways], budget: Budget, slack_s: float) -> list[_Ways]:
    """The same pairs in the ratios that several numbers of prefill replicas allow, each at its own load."""
    count, size = len(ways) * len(_NUMBERS), ways[0].usd.size
    first = np.concatenate([way.first for way in ways for _ in _NUMBERS])
    then = np.concatenate([way.then for way in ways for _ in _NUMBERS])
    numbers = np.tile(np.repeat(_NUMBERS, size), len(ways))
    transfer = _transfer_s(prefill, decode, then, first)
    found = _costs(prefill, decode, first, then, budget, _load(prefill, first, transfer, slack_s, numbers))
    # as often as it fits: more replicas in turn, each with a higher load
    used = np.array([found.prefill_replicas, found.decode_replicas])
    limits = _chip_limits(prefill, decode, first, then, budget)
    often = np.minimum.reduce([limit.steps(0 * used, used) for limit in limits])
    n, m = used * np.where(np.isfinite(often), np.maximum(often, 1.0), 1.0).astype(np.int64)
    load = _load(prefill, first, transfer, slack_s, np.maximum(n, 1))
    rate = np.minimum(n * prefill.requests_per_s[first] * load, m * decode.requests_per_s[then])
    usd = _usd(prefill, decode, first, then, budget, n, m, rate)
    found = replace(found, usd=usd, requests_per_s=rate, prefill_replicas=n, decode_replicas=m)
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
            often = np.minimum.reduce([limit.steps(0.0 * counts, counts) for limit in limits])
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


def _costs(prefill: PoolPoints, decode: PoolPoints, first: Array, then: Array, budget: Budget, load: Array) -> _Ways:
    """Prefill replicas `first` beside decode replicas `then` in their best ratio.

    Args:
        load: of the prefill replicas, (pairs,).
    """
    rate_p, rate_d = prefill.requests_per_s[first] * load, decode.requests_per_s[then]
    limits = _chip_limits(prefill, decode, first, then, budget)
    best = _Ways(
        first=first,
        then=then,
        usd=np.full(first.shape, np.inf),
        requests_per_s=np.zeros(first.shape),
        prefill_replicas=np.zeros(first.shape, dtype=np.int64),
        decode_replicas=np.zeros(first.shape, dtype=np.int64),
    )
    for n, m in _ratios(rate_p, rate_d, limits, budget):
        rate = np.minimum(n * rate_p, m * rate_d)
        cost = _usd(prefill, decode, first, then, budget, n, m, rate)
        better = cost < best.usd
        best = replace(
            best,
            usd=np.where(better, cost, best.usd),
            requests_per_s=np.where(better, rate, best.requests_per_s),
            prefill_replicas=np.where(better, n.astype(np.int64), best.prefill_replicas),
            decode_replicas=np.where(better, m.astype(np.int64), best.decode_replicas),
        )
    return best
