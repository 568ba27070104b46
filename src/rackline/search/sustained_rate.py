"""The highest request rate of a deployment at which its limits hold in simulation.

The estimate of the search says about which rate that is. Latency grows with the rate as A / (1 - r / s), which both a
queue and a batch do whose size follows the rate. So 1 / latency is about a line in the rate, and where it crosses a
limit is the next rate to try, above as below. All rates see the same inter-arrival times, scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rackline.errors import RacklineError
from rackline.parallel import ServerMemory
from rackline.parallel.adapters import most_sequences
from rackline.passes import Batch
from rackline.search.candidate import Candidate, plan_points
from rackline.search.pool_pair import PoolPair
from rackline.search.served import Group, Simulated, Site, group_of
from rackline.search.space import Constraints
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import stack_of

MOST_LOAD = 0.95  # of the saturation rate: beyond, waits grow without bound
MOST_IN_GROUP = 100_000  # on all replicas of a group of two pools
MOST_IN_FLIGHT = 10_000  # on a replica: beyond, chance hardly matters and a run would take many seconds
_CLOSE = 0.02  # a rate this near to one that does not hold is not raised any more
_SLACK = 0.02  # nor one that leaves a limit only so much
_ROOM = 0.05  # share of a limit that is left: from there on a higher rate is tried
_AIM = 0.98  # of a limit, where the rate is raised
_MOST_RAISE = 2.0  # of the rate at a time
_MOST_RUNS = 7
_LEAST_RATE = 0.02  # of the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRate:
    """A rate at which the limits hold.

    Args:
        requests_per_s: of all replicas [requests/s].
        saturation_requests_per_s: that the engines reach with all slots taken [requests/s].
        max_num_seqs: sequences that one rank and micro-batch may run [sequences].
        simulated: what was measured at the rate.
        runs: simulations that it took [count].
        alone_s: latency of a request that is alone [s], by name.
    """

    requests_per_s: float
    saturation_requests_per_s: float
    max_num_seqs: int
    simulated: Simulated
    runs: int
    alone_s: Mapping[str, float]

    @property
    def utilisation(self) -> float:
        """Sustained rate over the saturation rate."""
        return self.requests_per_s / self.saturation_requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The engine with its slots: how many, what they reach, and what one request alone would take.

    Args:
        max_num_seqs: of one rank and micro-batch [sequences].
        saturation_requests_per_s: of all replicas [requests/s].
        alone: latency of a request that is alone [s], by name.
    """

    max_num_seqs: int
    saturation_requests_per_s: float
    alone: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSustainedRate:
    """Why there is no rate.

    Args:
        reason: as a sentence.
        simulated: whether it was served and no rate held; else it cannot be simulated.
    """

    reason: str
    simulated: bool


def sustained_rate(estimate: Candidate | PoolPair, site: Site) -> SustainedRate | NoSustainedRate:
    """Find the rate, or say why there is none."""
    if isinstance(estimate, PoolPair) and (estimate.prefill.layout.cp > 1 or estimate.decode.layout.cp > 1):
        return NoSustainedRate(reason="context parallelism is not simulated", simulated=False)
    span = span_of(estimate, site)
    engine = estimate.decode if isinstance(estimate, PoolPair) else estimate
    if engine.batch_size > MOST_IN_FLIGHT:
        reason = f"{engine.batch_size:,} requests are in flight on a replica, more than {MOST_IN_FLIGHT:,}"
        return NoSustainedRate(reason=reason, simulated=False)
    try:
        group = group_of(estimate, site, span.max_num_seqs)
    except RacklineError as error:
        return NoSustainedRate(reason=str(error), simulated=False)
    in_group = engine.batch_size * group.pool.replicas
    if in_group > MOST_IN_GROUP:
        reason = f"{in_group:,} requests are in flight on a group of both pools, more than {MOST_IN_GROUP:,}"
        return NoSustainedRate(reason=reason, simulated=False)
    return _Search(estimate=estimate, span=span, group=group, limits=site.limits).answer()


def _server(site: Site, batched_tokens: float) -> ServerMemory:
    """What a server that decodes keeps of a chip."""
    stack = stack_of(site.calibration, site.cluster.chip.hbm_bytes)
    return stack.memory(batched_tokens, site.limits.memory_fraction)


def span_of(estimate: Candidate | PoolPair, site: Site) -> Span:
    """Slots for bursts, twice the mean batch and 8 more, as far as memory holds them; and what they reach."""
    engine = estimate.decode if isinstance(estimate, PoolPair) else estimate
    batch = engine.sequences_per_rank
    most = int(min(2 * batch + 8, max(most_sequences(site.model), 1.0)))
    if isinstance(estimate, Candidate):
        tries = np.unique(np.geomspace(1.0, most, 24).astype(int))
        points = plan_points(
            site.deployment(estimate.layout, estimate.precision),
            estimate,
            np.array([1, *tries], dtype=float),
            site.workload,
            _server(site, float(estimate.mode.max_batched_tokens)),
            1.0,
        )
        good = [
            point
            for point in points[1:]
            if point.free_bytes >= 0 and point.sequences_per_rank < estimate.mode.max_batched_tokens
        ]
        busy = [point.requests_per_s for point in good if point.prefill_utilisation < 1.0]
        slots = max((point.sequences_per_rank for point in good), default=batch)
        return Span(
            max_num_seqs=max(1, int(site.workload.slots(slots))) if slots < most else slots,
            saturation_requests_per_s=max(busy, default=estimate.requests_per_s),
            alone={"tpot_s": points[0].tpot_s, "ttft_s": points[0].ttft_s},
        )
    deployment = site.deployment(engine.layout, engine.precision)
    layout, work = engine.layout, site.workload
    ranks = layout.attention_dp * layout.pp
    fits = deployment.max_sequences(context_len=work.final_context, server=_server(site, float(most)))
    room = int(work.slots(fits // ranks))
    most = max(min(most, room), min(batch, max(room, 1)))
    tables = engine_of(deployment, stack_of(site.calibration))
    overlap = engine.mode.two_batch_overlap
    step = tables.decode_s(
        Batch(decode_sequences=np.array([1.0, float(most)]), context_len=work.mean_context),
        tables.time_table(overlap),
        two_batch_overlap=overlap,
    )
    decodes = most * ranks * layout.dp / (float(step[1]) * (work.output_len - 1.0))
    return Span(
        max_num_seqs=most,
        saturation_requests_per_s=min(estimate.prefill.requests_per_s, max(decodes, estimate.requests_per_s)),
        alone={"tpot_s": float(step[0]), "ttft_s": estimate.ttft_alone_s},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    estimate: Candidate | PoolPair
    span: Span
    group: Group
    limits: Constraints

    def answer(self) -> SustainedRate | NoSustainedRate:
        first = min(self.estimate.requests_per_s, MOST_LOAD * self.span.saturation_requests_per_s)
        held: Simulated | None = None
        broken: Simulated | None = None
        tpot_s, rate = self.estimate.tpot_s, first
        for run in range(1, _MOST_RUNS + 1):
            found = self.group.serve(rate, tpot_s)
            tpot_s = found.tpot_s.mean
            if self._excess(found) <= 1.0:
                held = found
            else:
                broken = found
            if held is not None and broken is None:
                more = self._raised(held)
                if more <= held.requests_per_s * (1.0 + _CLOSE):
                    return self._sustained(held, run)
                rate = more
                continue
            if held is not None and broken is not None and self._is_near(held, broken):
                return self._sustained(held, run)
            rate = self._next(held, broken) if broken is not None else rate
            if rate < _LEAST_RATE * first:
                break
        if held is not None:
            return self._sustained(held, _MOST_RUNS)
        worst = "nothing ends" if broken is None else self._worst(broken)
        return NoSustainedRate(reason=f"no request rate meets the limits: {worst}", simulated=True)

    def _sustained(self, held: Simulated, runs: int) -> SustainedRate:
        return SustainedRate(
            requests_per_s=held.requests_per_s,
            saturation_requests_per_s=self.span.saturation_requests_per_s,
            max_num_seqs=self.span.max_num_seqs,
            simulated=held,
            runs=runs,
            alone_s=self.span.alone,
        )

    def _excess(self, found: Simulated) -> float:
        """The latency that is furthest over its limit, over that; infinite where the queue grows."""
        return float("inf") if found.queue_grows else max(found.over_limits(self.limits).values(), default=0.0)

    def _is_near(self, held: Simulated, broken: Simulated) -> bool:
        return broken.requests_per_s <= held.requests_per_s * (1.0 + _CLOSE) or self._excess(held) >= 1.0 - _SLACK

    def _raised(self, held: Simulated) -> float:
        """A rate at which the nearest limit is about reached, below saturation; that of `held` where it is near."""
        most = MOST_LOAD * self.span.saturation_requests_per_s
        over = held.over_limits(self.limits)
        if max(over.values(), default=0.0) > 1.0 - _ROOM:
            return held.requests_per_s
        for name, limit, _ in self.limits.latencies():
            # through the latency of a request alone and the one that was measured
            alone = min(self.span.alone[name] / limit, 0.95 * over[name])
            most = min(most, held.requests_per_s * (1.0 / alone - 1.0 / _AIM) / (1.0 / alone - 1.0 / over[name]))
        return min(most, _MOST_RAISE * held.requests_per_s)

    def _next(self, held: Simulated | None, broken: Simulated) -> float:
        """The next rate to try."""
        high = broken.requests_per_s
        over = broken.over_limits(self.limits)
        if held is not None:
            low = held.requests_per_s
            below = held.over_limits(self.limits)
            if broken.queue_grows:
                return (low * high) ** 0.5
            # 1 / latency is about a line: aim a little below the limit
            crossings = [
                low
                + (high - low) * (1.0 / below[name] - 1.0 / (1.0 - 0.5 * _SLACK)) / (1.0 / below[name] - 1.0 / ratio)
                for name, ratio in over.items()
                if ratio > 1.0 and below[name] < 1.0 - 0.5 * _SLACK
            ]
            inside = 0.1 * (high - low)
            return min(max(min(crossings, default=low), low + inside), high - inside)
        rate = 0.9 * high if broken.queue_grows else 0.98 * high
        for name, limit, _ in self.limits.latencies():
            ratio = over[name]
            if ratio <= 1.0:
                continue
            # through the latency of a request alone and the one that was measured
            alone = min(self.span.alone[name], 0.9 * limit) / limit
            rate = min(rate, 0.995 * high * (1.0 - alone) / (1.0 - alone / ratio))
        return max(rate, 0.3 * high)

    def _worst(self, found: Simulated) -> str:
        """Which limit is exceeded most, as text."""
        if found.queue_grows:
            return f"at {found.requests_per_s:.3g} requests/s the queue still grows"
        over = found.over_limits(self.limits)
        name = max(over, key=lambda key: over[key])
        percentile = {key: place for key, _, place in self.limits.latencies()}[name]
        what = f"{name.removesuffix('_s')} {'mean' if percentile is None else f'p{percentile:g}'}"
        return f"at {found.requests_per_s:.3g} requests/s {what} is {over[name]:.3g} times its limit"
