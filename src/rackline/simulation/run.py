"""A simulation run: requests in, result out, over one pool of replicas or over disaggregated pools."""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf, nextafter

import numpy as np

from rackline.errors import InputError
from rackline.interrupts import held
from rackline.passes.features import Array
from rackline.simulation.metrics import Result
from rackline.simulation.native import NativeLog, NativeReplica, compiled_clock, knows, run_pools
from rackline.simulation.rank_spec import RankSpec
from rackline.simulation.replica import Replica
from rackline.simulation.requests import RequestLog, Requests
from rackline.simulation.server import Handover, Pool
from rackline.simulation.server import router as find_router

AnyReplica = Replica | NativeReplica
Progress = Callable[[int, int, float], None]  # (requests done, all requests, simulated time [s])
_ROUNDS_A_REPORT = 2000


def _native(pools: Sequence[Pool], requests: Requests) -> tuple[NativeLog, list[list[NativeReplica]]] | None:
    """Replicas of a decode pool and of the prefill pool before it, if any, in C; None where it does not know them."""
    if requests.hashes is not None or requests.adapters is not None:
        return None
    if not all(knows(pool.policy, pool.spec) for pool in pools):
        return None
    clocks = [compiled_clock(pool.clock, pool.spec.max_num_seqs) for pool in pools]
    log = NativeLog(requests)
    found: list[list[NativeReplica]] = []
    for index, (pool, clock) in enumerate(zip(pools, clocks, strict=True)):
        if clock is None:
            return None
        found.append(
            [
                NativeReplica(
                    clock,
                    pool.spec,
                    pool.policy,
                    log,
                    ranks=pool.ranks,
                    micro_batches=pool.micro_batches,
                    hands_over=index > 0,
                )
                for _ in range(pool.replicas)
            ]
        )
    return log, found


def simulate(
    requests: Requests,
    pool: Pool,
    *,
    router: str = "round-robin",
    prefill: Handover | None = None,
    beyond_s: float = 0.0,
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
        router: round-robin, least-loaded or prefix-aware.
        prefill: the prefill pool of a disaggregated server.
        beyond_s: time from arrival to the scheduler, outside of all passes (network, tokeniser) [s].
        skip_bad: leave out requests that can never fit, instead of raising an error.
        stepwise: evaluate every step by itself, which gives the same result more slowly.
        keep_passes: keep records of passes for a trace.
        compiled: whether the loop in C is used where it knows the servers, which gives the same result.
        progress: called from time to time with (requests done, all requests, simulated time).

    Returns:
        The result; after Ctrl-C, the result so far (`interrupted`).

    Raises:
        InputError: a request is longer than the KV pool and could never run.
    """
    find_router(router)
    requests, skipped = _that_fit(requests, pool, prefill, skip_bad)
    pools = [pool] if prefill is None else [pool, prefill.pool]
    native = _native(pools, requests) if compiled and not (stepwise or keep_passes) else None
    go: Callable[[], None]
    if native is not None:
        log, (replicas, *before) = native
        front = before[0] if before else []
        go = partial(_run_native, requests, log, replicas, front, router, prefill, beyond_s, progress)
    else:
        log = RequestLog(requests, max(len(one.spec.tiers) for one in pools))
        kept, follows = {"stepwise": stepwise, "keep_passes": keep_passes}, router == "prefix-aware"
        replicas = pool.build(log, hands_over=False, follows_prefixes=follows and prefill is None, **kept)
        front = [] if prefill is None else prefill.pool.build(log, hands_over=True, follows_prefixes=follows, **kept)
        go = _Run(requests, log, replicas, front, router, prefill, beyond_s, progress).go
    interrupted = False
    collects = gc.isenabled()
    gc.disable()  # a run makes no cycles, and each collection would look at all that the program has loaded
    try:
        go()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if collects:
            gc.enable()
    return _finished(lambda: gather(requests, log, replicas, front, skipped=skipped, interrupted=interrupted))


def _finished(make: Callable[[], Result]) -> Result:
    """Complete a result; an interruption meanwhile is treated as one of the run."""
    with held() as hold:
        result = make()
    return replace(result, interrupted=True) if hold.pressed else result


def _that_fit(requests: Requests, pool: Pool, prefill: Handover | None, skip_bad: bool) -> tuple[Requests, int]:
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
    if not skip_bad:
        raise InputError(
            what="request",
            given=f"{requests.input_len[first]} + {requests.output_len[first]} tokens",
            allowed=f"at most {most * narrow.block_size} tokens, the KV cache capacity of a rank "
            "(or skip such requests)",
            where=requests.where(first),
        )
    if requests.after is not None:  # requests that follow one that is left out are left out as well
        for index, before in enumerate(requests.after.tolist()):
            bad[index] |= before >= 0 and bad[before]
    if np.all(bad):
        raise InputError(what="requests", given="none that fits", allowed=f"at most {most * spec.block_size} tokens")
    return requests.pick(~bad), int(bad.sum())


def _too_long(tokens: Array, spec: RankSpec) -> Array:
    grown = -(-tokens // spec.block_size) if spec.grows else np.zeros_like(tokens)
    return grown > spec.num_blocks - spec.blocks_of(0)


def _are_independent(
    requests: Requests, replicas: Sequence[AnyReplica], front: Sequence[AnyReplica], router: str
) -> bool:
    """Whether what one replica does never depends on another one."""
    alone = requests.after is None or not np.any(requests.after >= 0)
    return alone and not front and (len(replicas) == 1 or router == "round-robin")


def _run_each(
    requests: Requests,
    log: RequestLog | NativeLog,
    replicas: Sequence[AnyReplica],
    beyond_s: float,
    progress: Progress | None,
) -> None:
    """Run replicas that do not depend on each other one after another."""
    times, count = requests.arrival_s.tolist(), len(replicas)
    log.arrival_s[:] = times
    for first, replica in enumerate(replicas):
        replica.submit_all(range(first, len(times), count), [time_s + beyond_s for time_s in times[first::count]])
    stops = [inf] if progress is None else [*times[_ROUNDS_A_REPORT::_ROUNDS_A_REPORT], inf]
    for stop in stops:
        for replica in replicas:
            replica.advance(stop)
        if progress is not None:
            progress(sum(replica.finished for replica in replicas), len(times), replicas[0].now)


def _run_native(
    requests: Requests,
    log: NativeLog,
    replicas: list[NativeReplica],
    front: list[NativeReplica],
    router: str,
    prefill: Handover | None,
    beyond_s: float,
    progress: Progress | None,
) -> None:
    """Run replicas in C until no work is left."""
    if _are_independent(requests, replicas, front, router):
        _run_each(requests, log, replicas, beyond_s, progress)
        return

    def report() -> None:
        if progress is not None:
            progress(sum(one.finished for one in replicas), len(requests), max(one.now for one in replicas))

    transfer = (0.0, inf) if prefill is None else (prefill.latency_s, prefill.tokens_per_s)
    run_pools(
        requests,
        log,
        front,
        replicas,
        least_loaded=router != "round-robin",  # there are no prefixes
        beyond_s=beyond_s,
        transfer=transfer,
        report=report,
    )


class _Run:
    """Arrivals, handovers and replicas in time order."""

    def __init__(
        self,
        requests: Requests,
        log: RequestLog,
        replicas: list[Replica],
        front: list[Replica],
        router: str,
        prefill: Handover | None,
        beyond_s: float,
        progress: Progress | None,
    ) -> None:
        self.requests, self.log, self.replicas, self.front = requests, log, replicas, front
        self.router_name, self.prefill, self.beyond_s, self.progress = router, prefill, beyond_s, progress
        self.choose = find_router(router)
        self.choose_decode = find_router(router)
        self.followers: dict[int, list[int]] = {}
        if requests.after is not None:
            for index, before in enumerate(requests.after.tolist()):
                if before >= 0:
                    self.followers.setdefault(before, []).append(index)
        # a user who is free sends the next request of all, so that no user runs out of them before the others
        self.rest = (
            iter(sorted(one for some in self.followers.values() for one in some))
            if requests.process == "closed"
            else None
        )

    def go(self) -> None:
        """Run until no work is left."""
        times = self.requests.arrival_s.tolist()
        self.times = times
        if _are_independent(self.requests, self.replicas, self.front, self.router_name):
            _run_each(self.requests, self.log, self.replicas, self.beyond_s, self.progress)
        else:
            self._together(times)

    def _followers_of(self, request: int) -> list[int]:
        """The requests that wait for this one."""
        return self.followers.get(request, []) if self.rest is None else list(islice(self.rest, 1))

    def _together(self, times: list[float]) -> None:
        after = self.requests.after
        free = range(len(times)) if after is None else np.flatnonzero(after < 0).tolist()
        # (time, kind, serial, request): among equal times, arrivals at the decode pool come first
        begun = self.log.ready  # their prompts are computed: they go straight to the decode pool
        events = [(times[i] + self.beyond_s, 0 if i in begun else 1, i, i) for i in free]
        for i in free:
            self.log.arrival_s[i] = times[i]
        heapq.heapify(events)
        everyone = [*self.front, *self.replicas]
        for replica in everyone:
            replica.tells = bool(self.followers) or replica.hands_over
        starts = [replica.next_start for replica in everyone]  # only an arrival or a pass of its own moves one
        place = {replica: index for index, replica in enumerate(everyone)}
        serial = len(times)
        rounds = 0
        while True:
            rounds += 1
            if self.progress is not None and rounds % _ROUNDS_A_REPORT == 0:
                self.progress(sum(r.finished for r in self.replicas), len(times), events[0][0] if events else 0.0)
            start = min(starts)
            arrival = events[0][0] if events else inf
            if arrival <= start:
                if arrival == inf:
                    return
                _, kind, _, request = heapq.heappop(events)
                replica = self._route(request, arrival, behind=kind == 0)
                starts[place[replica]] = replica.next_start
                continue
            first = starts.index(start)
            next_one = everyone[first]
            starts[first] = inf
            next_one.advance(max(min(arrival, min(starts)), nextafter(start, inf)))
            starts[first] = next_one.next_start
            for request, end in next_one.done:
                serial += 1
                if next_one.hands_over and self.log.output_len[request] > 1 and self.prefill is not None:
                    moved = end + self.prefill.latency_s + self.log.input_len[request] / self.prefill.tokens_per_s
                    self.log.first_s[request] = moved  # the decode pool streams the first token as well
                    heapq.heappush(events, (moved, 0, serial, request))
                    continue
                if next_one.hands_over:
                    self.log.finish_s[request] = end
                    self.replicas[0].finished += 1
                for follower in self._followers_of(request):
                    serial += 1
                    self.log.arrival_s[follower] = end + times[follower]
                    heapq.heappush(events, (end + times[follower] + self.beyond_s, 1, serial, follower))
            next_one.done.clear()

    def _route(self, request: int, time_s: float, *, behind: bool) -> Replica:
        if behind:
            self.log.ready.add(request)
            found = self.choose_decode(request, self.replicas)
        else:
            found = self.choose(request, self.front or self.replicas)
        found.submit(request, time_s)
        return found


def gather(
    requests: Requests,
    log: RequestLog | NativeLog,
    replicas: Sequence[Replica | NativeReplica],
    front: Sequence[Replica | NativeReplica],
    *,
    skipped: int,
    interrupted: bool,
) -> Result:
    """Collect a run from its log and replicas."""
    everyone = [*front, *replicas]
    count = len(requests)
    preempted, cached = np.zeros(count, dtype=int), np.zeros(count, dtype=int)
    for column, found in ((preempted, log.preempted), (cached, log.cached)):
        if found:
            column[np.fromiter(found, int, len(found))] = np.fromiter(found.values(), int, len(found))
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
        arrival_s=np.array(log.arrival_s, dtype=float),
        engine_s=np.array(log.engine_s, dtype=float),
        admitted_s=np.array(log.admitted_s, dtype=float),
        first_s=np.array(log.first_s, dtype=float),
        finish_s=np.array(log.finish_s, dtype=float),
        preempted=preempted,
        cached_tokens=cached,
        gaps=gaps,
        steps=sum(one.steps for one in counted),
        passes=sum(one.passes for one in counted),
        busy_s=sum(one.busy_s for one in counted),
        sequence_s=sum(one.sequence_s for one in counted),
        used_block_s=sum(one.used_s for one in counted),
        prompt_pass_s=sum(one.prompt_pass_s for one in counted),
        prompt_rank_s=sum(one.prompt_rank_s for one in counted),
        num_blocks=sum(r.num_blocks for r in everyone),
        ranks=sum(r.num_ranks for r in everyone),
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
