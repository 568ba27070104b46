"""The request rate that `plan` promises: the highest at which a deployment keeps its limits in simulation.

First the capacity of an endless queue is simulated; no more than 95 % of it is promised. Then the rate is searched,
from the estimate of the search. Latency grows with the rate as A / (1 - r / s), which both a queue and a batch do whose
size follows the rate. So 1 / latency is about a line in the rate, and where it crosses a limit is the next rate to try,
above as below. All rates see the same inter-arrival times, scaled. Rates have five significant digits, so that the last
bit of a latency, which depends on the processor, does not move the next rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from rackline.errors import RacklineError
from rackline.parallel.work import most_sequences
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.rounding import grid_above, grid_below
from rackline.search.candidate import Candidate, PoolPair
from rackline.search.estimates import engine_points
from rackline.search.points import OperatingPoints
from rackline.search.rate_capacity import rate_between
from rackline.search.served import LONG_RUN, Bound, Capacity, Group, Service, Simulated, group_of
from rackline.search.space import SearchSpace, Space
from rackline.system import Constraints

_GRID, _BETWEEN = 24, 64  # numbers of slots that are tried, and between two of them
MOST_LOAD = 0.95
"""Share of the capacity that is promised at most: beyond, waits grow without bound."""
SEARCH_SEED, CONFIRM_SEED = 1, 1001  # of the arrivals, in short runs and in the long one
MOST_IN_GROUP = 100_000  # on all replicas of a group of two pools
MOST_IN_FLIGHT = 10_000  # on a replica: beyond, chance hardly matters and a run would take many seconds
RESOLVED = 0.005  # a rate this near to one that does not hold is not raised any more
_ROOM = 0.002  # share of a limit that is left: from there on a higher rate is tried
_NEAR_BOUND = 0.985  # of the rate at which the capacity bounds: from there on it does
_CONFIRMED = 0.01  # a confirmed rate this near to one that does not hold is not raised any more
_AIM = 1.002  # of a limit, where the rate is raised
_MOST_RAISE = 2.0  # of the rate at a time
_MOST_RUNS = 12  # where a rate holds; else until the least
_FALLS = (1.0, 0.8, 0.5)  # share of a rate that breaks, at the most, for the first, second and each further time
_LIMIT_NAMES: Mapping[str, Bound] = {"tpot_s": "time per output token", "ttft_s": "time to first token"}
_LEAST_RATE = 0.02  # of the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The engine with its slots: how many, and what one request alone would take.

    Args:
        max_num_seqs: sequences that one rank and micro-batch may run [sequences].
        most_num_seqs: the most that memory holds and that are of use [sequences].
        alone_s: latency of a request that is alone [s], by name.
    """

    max_num_seqs: int
    most_num_seqs: int
    alone_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRate(Span):
    """A rate at which the limits hold.

    Args:
        requests_per_s: rate of all replicas [requests/s].
        saturation_requests_per_s: capacity of an endless queue [requests/s].
        simulated: what was measured at the rate.
        runs: simulations that it took [count].
        bound: what keeps the rate from being higher.
        capacity_bound: what bounds the capacity of an endless queue.
    """

    requests_per_s: float
    saturation_requests_per_s: float
    simulated: Simulated
    runs: int
    bound: Bound
    capacity_bound: Bound

    @property
    def is_limited(self) -> bool:
        """Check whether a limit on latency bounds the rate, and not the capacity."""
        return self.bound in _LIMIT_NAMES.values()

    @property
    def utilisation(self) -> float:
        """Sustained rate over the saturation rate."""
        return self.requests_per_s / self.saturation_requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSustainedRate:
    """Why there is no rate, or none above the one that was asked for.

    Args:
        reason: as a sentence: its capacity is too small, or which limit breaks in simulation.
        simulated: whether it was served and no rate held; else it cannot be, or is too slow for what was asked.
    """

    reason: str
    simulated: bool = False


def sustained_rate(
    estimate: Candidate | PoolPair, service: Service, above: float = 0.0, *, max_num_seqs: int | None = None
) -> SustainedRate | NoSustainedRate:
    """Find the rate, or say why there is none.

    Args:
        above: rate that it must exceed to be of use; 0 for any [requests/s].
        max_num_seqs: cap of the sequences that one rank and micro-batch may run; by default that of `span_of`.
    """
    served = _group_with_slots(estimate, service, max_num_seqs)
    if isinstance(served, str):
        return NoSustainedRate(reason=served)
    group, span = served
    above = grid_above(above)
    limits = service.demand.limits.of_predictions(estimate.layout_kind)
    capacity = group.capacity(estimate.tpot_s)
    if grid_below(MOST_LOAD * capacity.requests_per_s) < above:
        most = f"more than {100.0 * MOST_LOAD:.0f} % of its capacity"
        return NoSustainedRate(reason=f"to win it would have to serve {above:.3g} requests/s, {most}")
    search = _Search(estimate=estimate, span=span, group=group, limits=limits, above=above, capacity=capacity)
    return search.answer()


def confirmed_rate(
    estimate: Candidate | PoolPair, service: Service, promised: SustainedRate
) -> SustainedRate | NoSustainedRate:
    """Repeat a rate with ten times as many requests and other arrivals, and lower or raise it to what lasts.

    No quarter of the run may exceed a limit by more than 10 %, and no more than `MOST_LOAD` of the capacity is
    promised.

    Args:
        promised: the rate that short runs found.
    """
    group = group_of(estimate, service, promised.max_num_seqs)
    limits = service.demand.limits.of_predictions(estimate.layout_kind)
    capacity = Capacity(requests_per_s=promised.saturation_requests_per_s, bound=promised.capacity_bound)
    search = _Search(estimate=estimate, span=promised, group=group, limits=limits, above=0.0, capacity=capacity)
    return search.confirmed(promised)


def most_rate(estimate: Candidate | PoolPair, service: Service) -> float:
    """Return the most that is promised of the capacity; infinite where it cannot be simulated [requests/s]."""
    served = _group_with_slots(estimate, service)
    if isinstance(served, str):
        return inf
    return MOST_LOAD * served[0].capacity(estimate.tpot_s).requests_per_s


def _group_with_slots(
    estimate: Candidate | PoolPair, service: Service, max_num_seqs: int | None = None
) -> tuple[Group, Span] | str:
    """What is simulated, or why it cannot be."""
    if estimate.shares_contexts:
        return "context parallelism is not simulated"
    engine = estimate.decode if isinstance(estimate, PoolPair) else estimate
    if engine.batch_size > MOST_IN_FLIGHT:
        return f"{engine.batch_size:,} requests are in flight on a replica, more than {MOST_IN_FLIGHT:,}"
    span = span_of(estimate, service)
    if max_num_seqs is not None:
        span = replace(span, max_num_seqs=min(max_num_seqs, span.most_num_seqs))
    try:
        group = group_of(estimate, service, span.max_num_seqs)
    except RacklineError as error:
        return str(error)
    in_group = engine.batch_size * group.pool.replicas
    if in_group > MOST_IN_GROUP:
        return f"{in_group:,} requests are in flight on a group of both pools, more than {MOST_IN_GROUP:,}"
    return group, span


def span_of(estimate: Candidate | PoolPair, service: Service) -> Span:
    """Return the slots of an engine, and what a request takes that is alone.

    As many slots as memory holds, up to twice the mean batch and 8 more for bursts, but not more than meet the limit on
    the time per output token while all of them are taken.
    """
    engine = estimate.decode if isinstance(estimate, PoolPair) else estimate
    system, work = service.system, service.demand.workload
    tpot_s = service.demand.limits.of_predictions(estimate.layout_kind).tpot_s or inf
    most = int(min(2 * engine.sequences_per_rank + 8, max(most_sequences(system.model), 1.0)))
    if isinstance(estimate, Candidate):
        return _span_of_engine(estimate, service, most, tpot_s)
    deployment, layout = system.deployment(engine.layout, engine.precision), engine.layout
    fits = deployment.max_sequences(context_len=work.final_context, server=system.server(float(most)))
    room = int(work.slots(fits // (layout.attention_dp * layout.pp)))
    most = max(min(most, room), min(engine.sequences_per_rank, max(room, 1)))
    tables = system.engine(engine.layout, engine.precision)
    overlap = engine.mode.two_batch_overlap
    counts = np.arange(1.0, most + 1.0)
    steps = tables.decode_s(
        Batch(decode_sequences=counts, context_len=work.mean_context),
        tables.time_table(overlap),
        two_batch_overlap=overlap,
    )
    return Span(
        max_num_seqs=int(np.max(counts[steps <= tpot_s], initial=1.0)),
        most_num_seqs=most,
        alone_s={"tpot_s": float(steps[0]), "ttft_s": estimate.ttft_alone_s},
    )


def _span_of_engine(estimate: Candidate, service: Service, most: int, tpot_s: float) -> Span:
    """Return the span of a single engine.

    Args:
        most: slots of a rank and micro-batch that are of use [sequences].
        tpot_s: limit on the time per output token; infinite without [s].
    """
    work = service.demand.workload
    space = Space.of(service.system, work, SearchSpace(layouts=[estimate.layout]))
    budget = estimate.mode.max_batched_tokens

    def points_at(counts: Array) -> OperatingPoints:
        return engine_points(space, estimate.layout, estimate.precision, estimate.mode, counts)

    def last(counts: Array, holds: Array, condition: Callable[[OperatingPoints], Array]) -> int:
        """Return the last count that holds, also between the counts of the grid; 0 where none does."""
        reached = float(np.max(counts[holds], initial=0.0))
        if not reached or reached == counts[-1]:
            return int(reached)
        end = min(float(counts[counts > reached][0]), budget) - 1.0
        between = np.unique(np.linspace(reached, max(end, reached), _BETWEEN).astype(int)).astype(float)
        return int(np.max(between[condition(points_at(between))], initial=reached))

    tries = np.unique(np.geomspace(1.0, most, _GRID).astype(int)).astype(float)
    points = points_at(tries)
    fits = (points.free_bytes >= 0) & (tries < budget)
    room = last(tries, fits, lambda finer: finer.free_bytes >= 0) or estimate.sequences_per_rank
    fast = fits & (points.tpot_s <= tpot_s)
    slots = last(tries, fast, lambda finer: (finer.free_bytes >= 0) & (finer.tpot_s <= tpot_s)) or room
    if room < most:  # the block manager needs room to grow
        room, slots = (max(1, int(work.slots(count))) for count in (room, slots))
    return Span(
        max_num_seqs=min(slots, room),
        most_num_seqs=room,
        alone_s={"tpot_s": float(points.tpot_s[0]), "ttft_s": float(points.ttft_s[0])},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    estimate: Candidate | PoolPair
    span: Span
    group: Group
    limits: Constraints
    above: float
    capacity: Capacity

    @property
    def most(self) -> float:
        """The most that is promised of the capacity [requests/s]."""
        return grid_below(MOST_LOAD * self.capacity.requests_per_s)

    def answer(self) -> SustainedRate | NoSustainedRate:
        """Return the highest rate in short runs."""
        if not self.limits.latencies():
            full = self.group.serve(self.most, self.estimate.tpot_s, SEARCH_SEED)
            return self._sustained(full, grows=False, runs=1)
        first = min(self.estimate.requests_per_s, self.most)
        held, grows, runs = self._highest(first, self.estimate.tpot_s, SEARCH_SEED)
        return held if isinstance(held, NoSustainedRate) else self._sustained(held, grows=grows, runs=runs)

    def confirmed(self, promised: SustainedRate) -> SustainedRate | NoSustainedRate:
        """Return the highest rate in long runs, beginning with one that short runs found."""
        number = LONG_RUN * self.group.usual_number()
        tpot_s, first = promised.simulated.tpot_s.mean, promised.requests_per_s
        held, grows, runs = self._highest(first, tpot_s, CONFIRM_SEED, number, resolved=_CONFIRMED)
        if isinstance(held, NoSustainedRate):
            return held
        return self._sustained(held, grows=grows, runs=promised.runs + runs)

    def _sustained(self, held: Simulated, *, grows: bool, runs: int) -> SustainedRate:
        """Return the answer, with what bounds it.

        Args:
            grows: whether the queue grows at the next higher rate, so that the capacity bounds and no limit.
        """
        bound = self.capacity.bound
        over = held.over_limits(self.limits)
        if over and not grows and held.requests_per_s < _NEAR_BOUND * self.most:
            bound = _LIMIT_NAMES[max(over, key=lambda name: over[name])]
        return SustainedRate(
            requests_per_s=held.requests_per_s,
            saturation_requests_per_s=self.capacity.requests_per_s,
            max_num_seqs=self.span.max_num_seqs,
            most_num_seqs=self.span.most_num_seqs,
            simulated=held,
            runs=runs,
            alone_s=self.span.alone_s,
            bound=bound,
            capacity_bound=self.capacity.bound,
        )

    def _highest(
        self, first: float, tpot_s: float, seed: int, measured: int | None = None, resolved: float = RESOLVED
    ) -> tuple[Simulated | NoSustainedRate, bool, int]:
        """Return a run at the highest rate at which the limits hold, or why there is none.

        Also returns whether the queue grows at the next higher rate that was tried, and the number of runs.

        Args:
            first: rate to begin with [requests/s].
            tpot_s: approximate time per output token [s].
            seed: of the arrivals.
            measured: requests of a run; the usual number by default.
            resolved: distance to a rate that does not hold at which the search ends [1].
        """
        held: Simulated | None = None
        broken: Simulated | None = None
        rate, tries = max(grid_below(first), self.above), 0
        while True:
            tries += 1
            run = self.group.serve(rate, tpot_s, seed, measured)
            if not run.queue_grows:  # one that grows fills all slots, and lower rates would begin with as many
                tpot_s = run.tpot_s.mean
            holds = not run.queue_grows and max(run.over_limits(self.limits).values(), default=0.0) <= 1.0
            held, broken = (run, broken) if holds else (held, run)
            if held is None:
                if rate <= self.above:
                    return NoSustainedRate(reason=self._worst(run, ", which it needs to win,")), False, tries
                rate = max(grid_below(self._lowered(run, tries)), self.above)
                if rate < _LEAST_RATE * first:
                    reason = f"no request rate meets the limits: {self._worst(run)}"
                    return NoSustainedRate(reason=reason, simulated=True), False, tries
                continue
            if broken is None:
                more = grid_below(self._raised(held))
            else:
                below = held.over_limits(self.limits)
                more = rate_between(
                    held.requests_per_s,
                    broken.requests_per_s,
                    below,
                    dict.fromkeys(below, inf) if broken.queue_grows else broken.over_limits(self.limits),
                    resolved,
                    held=run is held,
                )
            most = held.requests_per_s * (1.0 + resolved)
            if tries >= _MOST_RUNS or (more if broken is None else broken.requests_per_s) <= most:
                return held, broken is not None and broken.queue_grows, tries
            rate = more

    def _raised(self, held: Simulated) -> float:
        """A rate at which the nearest limit is about reached, below saturation; that of `held` where it is near."""
        most = self.most
        over = held.over_limits(self.limits)
        if max(over.values(), default=0.0) > 1.0 - _ROOM:
            return held.requests_per_s
        for name, limit, _ in self.limits.latencies():
            # through the latency of a request alone and the one that was measured
            alone = min(self.span.alone_s[name] / limit, 0.95 * over[name])
            most = min(most, held.requests_per_s * (1.0 / alone - 1.0 / _AIM) / (1.0 / alone - 1.0 / over[name]))
        return min(most, _MOST_RAISE * held.requests_per_s)

    def _lowered(self, broken: Simulated, runs: int) -> float:
        """The next rate to try, after some runs of which none held."""
        high, over = broken.requests_per_s, broken.over_limits(self.limits)
        rate = 0.9 * high if broken.queue_grows else 0.98 * high
        for name, limit, _ in self.limits.latencies():
            ratio = over[name]
            if ratio <= 1.0:
                continue
            # through the latency of a request alone and the one that was measured
            alone = min(self.span.alone_s[name], 0.9 * limit) / limit
            rate = min(rate, 0.995 * high * (1.0 - alone) / (1.0 - alone / ratio))
        return min(max(rate, 0.3 * high), _FALLS[min(runs, len(_FALLS)) - 1] * high)

    def _worst(self, found: Simulated, where: str = "") -> str:
        """Which limit is exceeded most, as text."""
        at = f"at {found.requests_per_s:.3g} requests/s{where}"
        if found.queue_grows:
            return f"{at} the queue still grows"
        over = found.over_limits(self.limits)
        name = max(over, key=lambda key: over[key])
        percentile = {key: place for key, _, place in self.limits.latencies()}[name]
        what = f"{name.removesuffix('_s')} {'mean' if percentile is None else f'p{percentile:g}'}"
        return f"{at} {what} is {over[name]:.3g} times its limit"
