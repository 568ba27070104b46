"""A simulation run: requests in, result out, over one pool of replicas or over disaggregated pools."""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf, nextafter

import numpy as np

from rackline.errors import require
from rackline.passes.features import Array
from rackline.processes import held
from rackline.simulation.entrance import AdmissionRule, Frontend, Stage, StageData
from rackline.simulation.gate import FEED_S, Backlog, Gate, PlainStanding, only, standing_of
from rackline.simulation.metrics import Result
from rackline.simulation.native import compiled_clock
from rackline.simulation.native_replica import NativeLog, NativeReplica, knows, run_pools
from rackline.simulation.replica import Replica
from rackline.simulation.requests import RequestLog, Requests
from rackline.simulation.server import Handover, Pool, RankSpec
from rackline.simulation.tasks import Flow

AnyReplica = Replica | NativeReplica
Progress = Callable[[int, int, float], None]  # (requests done, all requests, simulated time [s])
_ROUNDS_A_REPORT = 2000


def replica_makers(
    requests: Requests,
    pools: Sequence[Pool],
    *,
    follows_prefixes: bool = False,
    stepwise: bool = False,
    keep_passes: bool = False,
    compiled: bool = True,
) -> tuple[RequestLog | NativeLog, list[Callable[[], AnyReplica]]]:
    """The log of a run and, for each pool, what makes a replica of it: in C if the loop there knows all of them.

    Args:
        pools: the one that decodes or does all, then the one that computes prompts, if any.
        follows_prefixes: whether requests go to the rank that holds most of their prefix, in the pool at which they
            arrive.
        stepwise, keep_passes, compiled: as in `simulate`; the first two are not known in C.
    """
    columns = (requests.hashes, requests.adapters, requests.joins, requests.turns)
    plain = all(column is None for column in columns) and not (stepwise or keep_passes)
    if compiled and plain and all(map(knows, pools)):
        clocks = [compiled_clock(pool.clock, pool.spec.max_num_seqs) for pool in pools]
        known = [clock for clock in clocks if clock is not None]
        if len(known) == len(pools):
            native = NativeLog(requests)
            sides = enumerate(zip(known, pools, strict=True))
            return native, [
                partial(NativeReplica, clock, pool, native, hands_over=side > 0) for side, (clock, pool) in sides
            ]
    log = RequestLog(requests, max(len(pool.spec.tiers) for pool in pools))
    return log, [
        partial(
            Replica,
            pool,
            log,
            hands_over=side > 0,
            stepwise=stepwise,
            keep_passes=keep_passes,
            follows_prefixes=follows_prefixes and side == len(pools) - 1,
        )
        for side, pool in enumerate(pools)
    ]


def ended_early(loop: Callable[[], None]) -> bool:
    """Run to the end, or until Ctrl-C; whether it was that.

    A run makes no cycles, and each garbage collection would look at all that the program has loaded.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        loop()
    except KeyboardInterrupt:
        return True
    finally:
        if collects:
            gc.enable()
    return False


def simulate(
    requests: Requests,
    pool: Pool,
    *,
    router: str = "round-robin",
    prefill: Handover | None = None,
    beyond_s: float = 0.0,
    admission: AdmissionRule | None = None,
    frontend: Sequence[Stage] = (),
    skip_bad: bool = False,
    stepwise: bool = False,
    keep_passes: bool = False,
    compiled: bool = True,
    progress: Progress | None = None,
) -> Result:
    """Simulate the serving of all requests.

    Args:
        requests: the requests, in the order of arrival.
        pool: the replicas that serve them, or that decode if there is a prefill pool.
        router: one of `ROUTERS`.
        prefill: the prefill pool of a disaggregated server.
        beyond_s: time from arrival to the scheduler, outside of all passes and beside the frontend (network) [s].
        admission: rule that refuses requests; None serves all.
        frontend: stages of tokenisers and HTTP servers.
        skip_bad: leave out requests that can never fit, instead of raising an error.
        stepwise: evaluate every step by itself, which gives the same result more slowly.
        keep_passes: keep records of passes for a trace.
        compiled: whether the loop in C is used where it knows the servers, which gives the same result.
        progress: called from time to time with (requests done, all requests, simulated time).

    Returns:
        The result; after Ctrl-C, the result so far (`interrupted`).

    Raises:
        InputError: a request is longer than the KV pool and could never run; a backlog beside what it does not know.
    """
    requests, skipped = that_fit(requests, pool, prefill, skip_bad)
    backlog, front_end = Backlog(requests), Frontend(frontend, requests)
    gate = Gate(requests, router, admission, backlog)
    pools = [pool] if prefill is None else [pool, prefill.pool]
    alone = requests.turns is None and (requests.after is None or not np.any(requests.after >= 0))
    require(
        not len(backlog) or (alone and prefill is None),
        what="offline class",
        given="requests",
        allowed="one pool, and requests that follow no other",
    )
    in_order = alone and prefill is None  # each request comes at a time that is known before
    log, makers = replica_makers(
        requests,
        pools,
        follows_prefixes=gate.router.follows_prefixes,
        stepwise=stepwise,
        keep_passes=keep_passes,
        compiled=compiled and (gate.is_plain or in_order) and (alone or not frontend),
    )
    replicas, *ahead = [[make() for _ in range(one.replicas)] for make, one in zip(makers, pools, strict=True)]
    front = [one for side in ahead for one in side]
    at_s = (front_end.pass_all(requests.arrival_s, backlog.mine) if alone else requests.arrival_s) + beyond_s
    if in_order and gate.is_plain and not len(backlog) and (len(replicas) == 1 or not gate.looks):
        go = partial(_run_each, requests, log, replicas, at_s)
    elif in_order and (len(backlog) or not gate.is_plain):
        go = partial(_run_gated, requests, log, replicas, gate, backlog, at_s)
    elif isinstance(log, NativeLog):
        in_c, before = only(NativeReplica, replicas), only(NativeReplica, front)
        go = partial(run_pools, requests, log, before, in_c, gate.looks, at_s, prefill)
    else:
        plain, before = only(Replica, replicas), only(Replica, front)
        go = _Together(requests, log, before, plain, gate, Gate(requests, router), front_end, at_s, prefill).go
    interrupted = ended_early(partial(go, progress))
    with held() as hold:  # an interruption meanwhile is treated as one of the run
        stages = tuple(front_end.data())
        result = gather(requests, log, replicas, front, gate.refused, stages, skipped=skipped, interrupted=interrupted)
    return replace(result, interrupted=True) if hold.pressed else result


def that_fit(requests: Requests, pool: Pool, prefill: Handover | None, skip_bad: bool) -> tuple[Requests, int]:
    """Refuse or drop requests that do not fit on an empty rank."""
    spec = pool.spec
    longest = requests.input_len + requests.output_len - 1 + int(pool.clock.tokens_per_step)
    bad = _too_long(longest, spec)
    if prefill is not None:
        bad |= _too_long(requests.input_len, prefill.pool.spec)
    if not np.any(bad):
        return requests, 0
    first = int(np.argmax(bad))
    narrow = spec
    if prefill is not None and not bool(_too_long(longest, spec)[first]):
        narrow = prefill.pool.spec
    most = narrow.num_blocks - narrow.blocks_of(0) if narrow.grows else 0
    require(
        skip_bad,
        what="request",
        given=f"{requests.input_len[first]} + {requests.output_len[first]} tokens",
        allowed=f"at most {most * narrow.block_size} tokens, the KV cache capacity of a rank (or skip such requests)",
        where=requests.where(first),
    )
    for index, one, _ in sorted(requests.waits()):  # requests that wait for one that is left out are left out as well
        bad[index] |= bad[one]
    require(
        not np.all(bad), what="requests", given="none that fits", allowed=f"at most {most * spec.block_size} tokens"
    )
    return requests.pick(~bad), int(bad.sum())


def _too_long(tokens: Array, spec: RankSpec) -> Array:
    grown = -(-tokens // spec.block_size) if spec.grows else np.zeros_like(tokens)
    return grown > spec.num_blocks - spec.blocks_of(0)


def _run_each(
    requests: Requests,
    log: RequestLog | NativeLog,
    replicas: Sequence[AnyReplica],
    at_s: Array,
    progress: Progress | None,
) -> None:
    """Run replicas of which none ever depends on another one after another.

    Args:
        at_s: when each request reaches a scheduler [s], (n,).
    """
    log.arrival_s[:] = requests.arrival_s.tolist()
    order = np.argsort(at_s, kind="stable")
    times, number = at_s[order].tolist(), len(replicas)
    for first, replica in enumerate(replicas):
        replica.submit_all(order[first::number].tolist(), times[first::number])
    for stop in [inf] if progress is None else [*times[_ROUNDS_A_REPORT::_ROUNDS_A_REPORT], inf]:
        for replica in replicas:
            replica.advance(stop)
        if progress is not None:
            progress(sum(replica.finished for replica in replicas), len(times), replicas[0].now)


def _run_gated(
    requests: Requests,
    log: RequestLog | NativeLog,
    replicas: Sequence[AnyReplica],
    gate: Gate,
    backlog: Backlog,
    at_s: Array,
    progress: Progress | None,
) -> None:
    """Run replicas that get requests one by one as they stand then, and a backlog where there is room.

    Args:
        at_s: when each request reaches the router [s], (n,).
    """
    log.arrival_s[:] = requests.arrival_s.tolist()
    standing = standing_of(replicas, log)
    order = np.argsort(at_s, kind="stable")
    order = order[~backlog.mine[order]]
    times, cursor, now = at_s[order], 0, 0.0
    while cursor < len(order) or len(backlog):
        last = min(cursor + _ROUNDS_A_REPORT, len(order))
        if len(backlog):
            standing.look(now)
            backlog.feed(standing, now)
            now += FEED_S
            last = int(np.searchsorted(times, now, side="left"))
        gate.serve(standing, order[cursor:last], times[cursor:last])
        cursor = last
        if progress is not None:
            progress(sum(one.finished for one in replicas), len(requests), replicas[0].now)
    standing.run(inf)


class _Together:
    """A run in time order of arrivals, handovers and replicas that depend on each other.

    Args:
        front, replicas: those of a prefill pool, if any, and those that decode.
        gate, decode_gate: of arrivals, and of prompts that are computed.
        frontend: that requests pass which follow others; those that follow none have passed it.
        at_s: when requests reach the scheduler that follow no other; the pause of those that do, likewise [s], (n,).
        prefill: the transfer between the pools.
    """

    def __init__(
        self,
        requests: Requests,
        log: RequestLog,
        front: Sequence[Replica],
        replicas: Sequence[Replica],
        gate: Gate,
        decode_gate: Gate,
        frontend: Frontend,
        at_s: Array,
        prefill: Handover | None,
    ) -> None:
        self.requests, self.log, self.replicas, self.prefill = requests, log, replicas, prefill
        self.gate, self.decode_gate, self.frontend = gate, decode_gate, frontend
        self.everyone = [*front, *replicas]
        self.first = PlainStanding(front or replicas, log, runs=False)
        self.last = PlainStanding(replicas, log, runs=False)
        self.flow = Flow(requests)
        self.stages = len(frontend.stages) if self.flow.goes_on else 0
        self.beyond_s = float(at_s[0] - requests.arrival_s[0]) if self.flow.goes_on else 0.0
        # (time, kind, serial, request): among equal times, arrivals at the decode pool come first; requests whose
        # prompts are computed go straight to it; from kind 2 on those that wait for a stage of the frontend
        self.serial = len(requests)
        self.events: list[tuple[float, int, int, int]] = []
        for index, time_s in self.flow.first():
            log.arrival_s[index] = time_s
            if self.stages:
                self.events.append((time_s, 2, index, index))
            else:
                at = time_s + self.beyond_s if self.flow.goes_on else float(at_s[index])
                self.events.append((at, 0 if index in log.ready else 1, index, index))
        heapq.heapify(self.events)
        for replica in self.everyone:
            replica.tells = self.flow.goes_on or replica.hands_over

    def _push(self, time_s: float, kind: int, request: int) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time_s, kind, self.serial, request))

    def go(self, progress: Progress | None) -> None:
        """Run until no work is left."""
        everyone = self.everyone
        starts = [replica.next_start for replica in everyone]  # only an arrival or a pass of its own moves one
        place = {replica: index for index, replica in enumerate(everyone)}
        events = self.events
        for rounds in count(1):
            if progress is not None and rounds % _ROUNDS_A_REPORT == 0:
                done = sum(one.finished for one in self.replicas)
                progress(done, len(self.requests), events[0][0] if events else 0.0)
            start, arrival = min(starts), events[0][0] if events else inf
            if arrival == start == inf:
                return
            if arrival <= start:
                _, kind, _, request = heapq.heappop(events)
                found = self._arrive(request, kind, arrival)
                if found is not None:
                    found.arrivals.add(request, arrival)
                    starts[place[found]] = found.next_start
                continue
            first = starts.index(start)
            mine = everyone[first]
            starts[first] = inf
            mine.advance(max(min(arrival, min(starts)), nextafter(start, inf)))
            starts[first] = mine.next_start
            for request, end in mine.done:
                self._end(request, end, mine)
            mine.done.clear()

    def _arrive(self, request: int, kind: int, time_s: float) -> Replica | None:
        """The replica that gets a request; None for one in the frontend, and for one that is refused."""
        if kind >= 2:
            left = self.frontend.leave(kind - 2, request, time_s)
            is_last = kind - 1 == self.stages
            self._push(left + (self.beyond_s if is_last else 0.0), 1 if is_last else kind + 1, request)
            return None
        standing, gate = (self.last, self.decode_gate) if kind == 0 else (self.first, self.gate)
        if kind == 0:
            self.log.ready.add(request)
        if gate.looks:
            gate.look(standing, time_s)
        found = gate.place(request, standing)
        if found < 0:
            self._follow(request, time_s)
            return None
        return standing.plain[found]

    def _end(self, request: int, end: float, replica: Replica) -> None:
        """A request is done on a replica."""
        log, prefill = self.log, self.prefill
        if replica.hands_over and prefill is not None:
            if log.output_len[request] > 1:
                moved = end + prefill.latency_s + log.input_len[request] / prefill.tokens_per_s
                log.first_s[request] = moved  # the decode pool streams the first token as well
                self._push(moved, 0, request)
                return
            log.finish_s[request] = end
            self.replicas[0].finished += 1
        self._follow(request, end)

    def _follow(self, request: int, end: float) -> None:
        """Send the requests that follow one that has ended."""
        for follower, came in self.flow.after(request, end):
            self.log.arrival_s[follower] = came
            self._push(came if self.stages else came + self.beyond_s, 2 if self.stages else 1, follower)


def times_of(log: RequestLog | NativeLog) -> dict[str, Array]:
    """Times of each request that an `Outcome` has, by name; NaN where they are not known [s], (n,) each."""
    return {
        name: np.array(getattr(log, name), dtype=float) for name in ("arrival_s", "admitted_s", "first_s", "finish_s")
    }


def gather(
    requests: Requests,
    log: RequestLog | NativeLog,
    replicas: Sequence[Replica | NativeReplica],
    front: Sequence[Replica | NativeReplica],
    refused: Array,
    frontend: tuple[StageData, ...],
    *,
    skipped: int,
    interrupted: bool,
) -> Result:
    """Collect a run from its log and replicas."""
    everyone = [*front, *replicas]
    gaps = Counter[int]()
    counted = [replica.statistics for replica in everyone]
    for one in counted:
        gaps.update(one.gaps)
    samples = [
        np.column_stack([np.full(len(samples_of), index), np.array(samples_of, dtype=float).reshape(-1, 4)])
        for index, samples_of in enumerate(one.samples for one in counted)
    ]
    return Result(
        requests=requests,
        **times_of(log),
        engine_s=np.array(log.engine_s, dtype=float),
        preempted=np.array(log.preempted, dtype=int),
        refused=refused,
        frontend=frontend,
        cached_tokens=np.array(log.cached, dtype=int),
        gaps=gaps,
        steps=sum(one.steps for one in counted),
        passes=sum(one.passes for one in counted),
        busy_s=sum(one.busy_s for one in counted),
        sequence_s=sum(one.sequence_s for one in counted),
        used_block_s=sum(one.used_s for one in counted),
        prompt_pass_s=sum(one.prompt_pass_s for one in counted),
        prompt_rank_s=sum(one.prompt_rank_s for one in counted),
        num_blocks=sum(r.pool.num_ranks * r.pool.spec.num_blocks for r in everyone),
        ranks=sum(r.pool.num_ranks for r in everyone),
        replicas=len(everyone),
        tier_tokens=tuple(log.tier_tokens),
        samples=np.concatenate(samples),
        passes_run=tuple(r.records for r in everyone if r.records is not None),
        skipped=skipped,
        blocks_left=sum(r.blocks_left for r in everyone),
        interrupted=interrupted,
        adapter_loads=log.adapter_loads,
        prefill_busy_s=sum(one.busy_s for one in counted[: len(front)]),
        prefill_passes=sum(one.passes for one in counted[: len(front)]),
    )
