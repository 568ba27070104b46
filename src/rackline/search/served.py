"""A simulated deployment: its smallest representative group of replicas at a request rate, and what a short run shows.

A plan's numbers are those of thousands of requests, in which rare crowds count; a short run sees few of them, and
random arrivals are seldom at the mean rate. The interval holds what nine of ten such runs would show, and the error
that a calibration of the user's own states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rackline.arch import AppliedAdapter, Model
from rackline.parallel import Deployment
from rackline.rounding import grid_below
from rackline.search.candidate import Candidate, PoolPair
from rackline.serving.stack import Stack
from rackline.serving.steady import steady_state
from rackline.serving.workload import Admission, Mode, Workload
from rackline.simulation import Handover, Pool, Requests, Result, TableClock, pool_of, simulate
from rackline.simulation.policies import Passes
from rackline.simulation.statistics import Latency, latency, queue_grows, statistic_of
from rackline.simulation.workloads import OpenLoop, with_chosen_adapters
from rackline.system import Constraints, Demand, System

_ADMISSION: Mapping[Passes, Admission] = {
    "mixed": "chunked",
    "prompts_first": "prefill_first",
    "batch": "decode_first",
}


def prompt_cost_share(result: Result, pool: Pool) -> float:
    """Share of the engine's time that goes to prompts, at the mean number of decoding sequences [1].

    Args:
        result: a run over one pool that does both prefill and decode.
        pool: that pool.

    Returns:
        Share, 0 to 1; 0 where nothing was decoded.

    Raises:
        TypeError: the clock of the pool is not that of a deployment.
    """
    clock = pool.clock
    if not isinstance(clock, TableClock):
        raise TypeError("a pool of a deployment is needed")
    done = result.finished
    if not np.any(done) or not result.busy_s > 0:
        return 0.0
    outputs = float(result.requests.output_len[done].mean())
    workload = Workload(input_len=float(result.requests.input_len[done].mean()), output_len=max(outputs, 2.0))
    decoding = result.sequence_s / result.busy_s / (pool.ranks * pool.micro_batches)
    mode = Mode(
        admission=_ADMISSION[pool.policy.passes],
        max_batched_tokens=pool.spec.max_batched_tokens,
        two_batch_overlap=clock.two_batch_overlap,
        alignment=pool.policy.alignment,
    )
    return float(steady_state(clock.engine, workload, mode, max(decoding, 1.0)).prefill_cost_share)


MEASURED = 4000  # measured requests of a run
LEAST_MEASURED = 500  # of prompts that take many passes: their p99 rests on five requests, and its interval says so
MOST_PASSES = 100_000  # with prompts in a run, about three seconds of work
LONG_RUN = 10  # times as many requests in the run that confirms a rate
LONG = 10_000  # requests of a run whose quarters are judged: each has a p99 of its own
QUARTER_SLACK = 1.1  # times the limit that one quarter of a long run may reach, by chance
_PARTS, _SURE = 8, 1.5  # of a long run, and standard errors over them by which its latencies stay below a limit
_MOST_STARTS, _SAME_START = 4, 0.1  # runs until as many decode as at the start, to within this share
_TURNS = 4  # requests for each slot in a run with an endless queue, so that its middle has two turns or more
_FULL = 0.95  # of slots or of KV blocks in use: then they bound the capacity

Bound: TypeAlias = Literal["slots", "KV cache", "passes", "time per output token", "time to first token"]
"""What keeps a deployment from serving more requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a deployment finishes while its queue never ends.

    Args:
        requests_per_s: of all groups [requests/s].
        bound: slots, KV cache or passes, whichever is full.
    """

    requests_per_s: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What all serving options of one plan share.

    Args:
        system: of single engines, and of decode pools.
        prefill_system: of prefill pools; the same where they have no chips of their own.
    """

    system: System
    prefill_system: System
    demand: Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Measurements of a group of replicas in a simulated open loop.

    Args:
        requests_per_s: arrival rate at all groups [requests/s].
        requests: measured requests [requests].
        in_flight: mean number of requests in prefill or decode on one decode replica [requests].
        prompt_cost_share: share of the cost that goes to prompts [1].
        ttft_s, tpot_s, e2e_s: measured latencies [s].
        queue_grows: whether the queue keeps growing.
    """

    json_keys: ClassVar = (
        "requests",
        "ttft_s",
        "tpot_s",
        "e2e_s",
    )

    requests_per_s: float
    requests: int
    in_flight: float
    prompt_cost_share: float
    ttft_s: Latency
    tpot_s: Latency
    e2e_s: Latency
    queue_grows: bool

    def over_limits(self, limits: Constraints) -> dict[str, float]:
        """Return each limited latency, at its percentile, over its limit.

        In a run of at least `LONG` requests 1.5 standard errors are added, from eight parts of the run, so that other
        arrivals meet the limit too. No quarter may exceed the limit by more than `QUARTER_SLACK` either, since a
        latency that drifts upwards does not last.
        """
        latencies = {"tpot_s": self.tpot_s, "ttft_s": self.ttft_s}
        ratios: dict[str, float] = {}
        for name, limit_s, percentile in limits.latencies():
            values = latencies[name].values
            ratios[name] = statistic_of(values, percentile) / limit_s
            if len(values) >= LONG:
                parts = [statistic_of(part, percentile) for part in np.array_split(values, _PARTS)]
                ratios[name] += _SURE * float(np.std(parts, ddof=1)) / math.sqrt(_PARTS) / limit_s
                worst_s = max(statistic_of(quarter, percentile) for quarter in np.array_split(values, 4))
                ratios[name] = max(ratios[name], worst_s / (QUARTER_SLACK * limit_s))
        return ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The smallest representative set of replicas: one engine, or prefill and decode replicas in proportion.

    Args:
        pool: replicas that decode.
        prefill: prefill replicas, with the transfer of the cache; None for a single engine.
        copies: groups in the whole deployment [count].
        prefill_chips_share: prefill chips over all chips; 0 for a single engine [1].
        beyond_s: time to first token outside of all passes [s].
        adapter: low-rank adapters that requests choose from; None without.
    """

    pool: Pool
    prefill: Handover | None
    copies: int
    prefill_chips_share: float
    beyond_s: float
    workload: Workload
    adapter: AppliedAdapter | None = None

    def serve(self, requests_per_s: float, tpot_s: float, seed: int = 1, measured: int | None = None) -> Simulated:
        """Simulate the group at an arrival rate.

        Args:
            requests_per_s: arrival rate at the whole deployment [requests/s].
            tpot_s: approximate time per output token, for the sequences that are decoding at the start [s].
            seed: random seed of the arrivals.
            measured: measured requests; by default as many as `MOST_PASSES` passes take [requests].
        """
        rate, number = requests_per_s / self.copies, measured or self.usual_number()
        starts = 0
        while True:
            starts += 1
            # rounded, since estimates differ in the last bit between processors, and which requests are there at the
            # start changes a run
            decode_s = (self.workload.output_len - 1.0) * grid_below(tpot_s)
            decode_s = min(decode_s, self._slots / rate)  # more do not decode at a time
            # a batch that ends before the next begins has nobody in between
            begun = 0 if self.pool.policy.passes == "batch" else round(rate * decode_s)
            loop = self._loop(number, seed)
            result = self.run(loop.requests(rate, begun, decode_s), seed)
            run = self._measure(result, loop.measured_part(result.arrival_s), requests_per_s)
            as_at_start = begun < loop.warm_up or abs(run.tpot_s.mean / tpot_s - 1.0) < _SAME_START
            if as_at_start or starts == _MOST_STARTS:
                return run
            tpot_s = run.tpot_s.mean  # far more or fewer were decoding than at the start: begin with as many

    def capacity(self, tpot_s: float, seed: int = 1) -> Capacity:
        """Simulate the group with an endless queue: all requests are there at the start, and all slots are taken.

        Equation:
            time of the i-th end in the middle of the run = constant + i / rate, by least squares, since requests end
            in bursts where prompts share a pass

        Args:
            tpot_s: approximate time per output token; it only decides how far the first requests are [s].
            seed: random seed of lengths that differ.
        """
        slots, work = self._slots, self.workload
        number = max(self.usual_number(), _TURNS * slots)
        decode_s = (work.output_len - 1.0) * grid_below(tpot_s)
        begun = 0 if self.pool.policy.passes == "batch" else slots
        requests = self._loop(number, seed).requests(slots / decode_s, begun, decode_s)
        result = self.run(replace(requests, arrival_s=np.zeros(len(requests))), seed)
        order = np.argsort(result.finish_s, kind="stable")
        middle = order[begun + slots : len(order) - slots]
        places = np.arange(len(middle)) - 0.5 * (len(middle) - 1)
        rate = float(places @ places / (places @ result.finish_s[middle]))
        begins = result.admitted_s if self.prefill is None else result.first_s
        taken = rate * float(np.mean((result.finish_s - begins)[middle]))
        blocks = result.used_block_s / (result.busy_s or 1.0) * self.pool.replicas
        bound: Bound = "passes"
        if taken >= _FULL * slots:
            bound = "slots"
        elif blocks >= _FULL * result.num_blocks:
            bound = "KV cache"
        return Capacity(requests_per_s=grid_below(rate * self.copies), bound=bound)

    def run(self, requests: Requests, seed: int) -> Result:
        """Simulate the group under some requests.

        Args:
            seed: random seed of the adapters that the requests choose.
        """
        return simulate(
            with_chosen_adapters(requests, self.adapter, seed),
            self.pool,
            router="round-robin",
            prefill=self.prefill,
            beyond_s=self.beyond_s,
        )

    @property
    def _slots(self) -> int:
        """Sequences that the replicas that decode may run."""
        return self.pool.spec.max_num_seqs * self.pool.ranks * self.pool.micro_batches * self.pool.replicas

    def _loop(self, measured: int, seed: int) -> OpenLoop:
        work = self.workload
        return OpenLoop(
            input_len=round(work.input_len),
            output_len=round(work.output_len),
            cached_tokens=round(work.cached_tokens),
            lengths=work.mixture,
            measured=measured,
            servers=self.copies,
            seed=seed,
        )

    def usual_number(self) -> int:
        """Return how many requests to measure: fewer where each prompt takes many passes."""
        fills = self.pool if self.prefill is None else self.prefill.pool
        passes = self.workload.mean_pieces(float(fills.spec.max_batched_tokens))
        return int(min(max(MOST_PASSES / passes, LEAST_MEASURED), MEASURED))

    def _measure(self, result: Result, part: slice, requests_per_s: float) -> Simulated:
        rate = requests_per_s / self.copies / self.pool.replicas
        begins = result.admitted_s if self.prefill is None else result.first_s
        share = self.prefill_chips_share or prompt_cost_share(result, self.pool)
        return Simulated(
            requests_per_s=requests_per_s,
            requests=part.stop - part.start,
            in_flight=rate * float(np.mean((result.finish_s - begins)[part])),
            prompt_cost_share=share,
            ttft_s=latency(result.ttft_s[part]),
            tpot_s=latency(result.tpot_s[part]),
            e2e_s=latency(result.e2e_s[part]),
            queue_grows=queue_grows(result.arrival_s[part], result.finish_s[part]),
        )


def group_of(estimate: Candidate | PoolPair, service: Service, max_num_seqs: int) -> Group:
    """Build the group of a candidate.

    Args:
        max_num_seqs: sequences that one rank and micro-batch may run [sequences].

    Raises:
        InputError: the simulator cannot run it, for example because the model has no KV cache.
    """
    system, ahead, work = service.system, service.prefill_system, service.demand.workload
    adapter = system.model.adapter if isinstance(system.model, Model) else None
    base = system.stack.with_values({"scheduler.max_num_seqs": max_num_seqs})
    if isinstance(estimate, Candidate):
        one = group_of_one(system.deployment(estimate.layout, estimate.precision), base, estimate.mode, work)
        return replace(one, copies=estimate.layout.dp, adapter=adapter)
    first, then = estimate.prefill, estimate.decode
    copies = gcd(first.layout.dp, then.layout.dp)
    front = ahead.stack.prefill_pool()
    return Group(
        pool=_pool(
            system.deployment(then.layout, then.precision),
            base,
            replace(then.mode, max_batched_tokens=max(max_num_seqs, 1)),
            then.layout.dp // copies,
        ),
        prefill=Handover(
            pool=_pool(
                ahead.deployment(first.layout, first.precision),
                front,
                first.mode,
                first.layout.dp // copies,
            ),
            tokens_per_s=work.input_len / estimate.transfer.seconds if estimate.transfer.seconds > 0 else float("inf"),
        ),
        copies=copies,
        prefill_chips_share=first.num_chips / estimate.num_chips,
        beyond_s=front.arrivals.beyond_passes_s(work),
        workload=work,
        adapter=adapter,
    )


def group_of_one(deployment: Deployment, stack: Stack, mode: Mode, work: Workload) -> Group:
    """A single engine for prefill and decode.

    Args:
        stack: that runs it, with the sequences that a rank and micro-batch may run.
    """
    return Group(
        pool=_pool(deployment, stack, mode, 1),
        prefill=None,
        copies=1,
        prefill_chips_share=0.0,
        beyond_s=stack.arrivals.beyond_passes_s(work),
        workload=work,
    )


def _pool(deployment: Deployment, stack: Stack, mode: Mode, replicas: int) -> Pool:
    found = pool_of(
        deployment,
        stack.with_values({"scheduler.max_batched_tokens": mode.max_batched_tokens}),
        policy_name=mode.alignment.name if mode.alignment else mode.admission,
        two_batch_overlap=mode.two_batch_overlap,
        replicas=replicas,
    )
    return replace(found, policy=replace(found.policy, alignment=mode.alignment))


RUNS = 40
STATISTICS: Mapping[str, float | None] = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
_ENDS = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A statistic of the requests of one run.

    Args:
        metric: tpot_s or ttft_s.
        statistic: mean, p50, p90 or p99.
        median_s: of the runs [s].
        low_s, high_s: between them it lies in nine of ten runs [s].
    """

    metric: str
    statistic: str
    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRequests:
    """What runs of few requests show.

    Args:
        requests: of a run [count].
        runs: that were simulated, each with arrivals of its own [count].
        error: of single requests that nine of ten stay below, as the calibration states, by metric; empty where it
            states none [1].
        low_requests_per_s, high_requests_per_s: between them the rate of nine of ten runs lies [requests/s].
        shown: the statistics.
    """

    requests: int
    runs: int
    error: Mapping[str, float]
    low_requests_per_s: float
    high_requests_per_s: float
    shown: tuple[Shown, ...]


def few_requests(group: Group, requests_per_s: float, requests: int, error: Mapping[str, float]) -> FewRequests:
    """Simulate runs that begin on an idle server.

    Equation:
        ln(high / median) = sqrt(ln(q95 / median)² + ln(1 + error)²): arrivals and the calibration's error are
        independent; the low end likewise.

    Args:
        group: of replicas.
        requests_per_s: mean arrival rate at the whole deployment [requests/s].
        requests: of each run [count].
        error: the calibration's own, of single requests, by metric [1].
    """
    runs = [_run(group, requests_per_s, requests, seed) for seed in range(1, RUNS + 1)]
    shown: list[Shown] = []
    for metric in ("ttft_s", "tpot_s"):
        for statistic, place in STATISTICS.items():
            if place is not None and requests < 1.0 / (1.0 - place / 100.0):
                continue  # no request lies beyond it
            values = [float(np.mean(one[metric]) if place is None else np.percentile(one[metric], place))
                      for one in runs]  # fmt: skip
            low, median, high = np.quantile(values, (_ENDS[0], 0.5, _ENDS[1])).tolist()
            wide = math.log1p(error.get(metric, 0.0))
            shown.append(
                Shown(
                    metric=metric,
                    statistic=statistic,
                    median_s=median,
                    low_s=median * math.exp(-math.hypot(math.log(median / low), wide)),
                    high_s=median * math.exp(math.hypot(math.log(high / median), wide)),
                )
            )
    rates = np.quantile([requests / float(one["arrival_s"][-1]) for one in runs], _ENDS)
    return FewRequests(
        requests=requests,
        runs=RUNS,
        error=dict(error),
        low_requests_per_s=float(rates[0]),
        high_requests_per_s=float(rates[1]),
        shown=tuple(shown),
    )


def _run(group: Group, rate: float, requests: int, seed: int) -> dict[str, NDArray[Any]]:
    """Times of the requests of one run over all copies, which they reach in turn."""
    rng = np.random.default_rng(seed)
    arrival_s, work = np.cumsum(rng.exponential(1.0 / rate, requests)), group.workload
    prompts, answers = np.full(requests, round(work.input_len)), np.full(requests, round(work.output_len))
    if work.mixture is not None:
        prompts, answers = work.mixture.draw(rng, requests)
    cached = prompts * round(work.cached_tokens) // max(round(work.input_len), 1)
    found: list[Result] = []
    for copy in range(min(group.copies, requests)):
        mine = slice(copy, None, group.copies)
        sent = Requests(
            arrival_s=arrival_s[mine],
            input_len=prompts[mine],
            output_len=answers[mine],
            computed=cached[mine] if work.cached_tokens else None,
            name="a few requests",
        )
        found.append(group.run(sent, seed))
    times = {name: np.concatenate([getattr(run, name) for run in found]) for name in ("ttft_s", "tpot_s")}
    return {"arrival_s": arrival_s, **times}
