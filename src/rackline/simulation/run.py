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

from rackline.errors import InputError
from rackline.interrupts import held
from rackline.passes.features import Array
from rackline.simulation.flow import Flow
from rackline.simulation.metrics import Result
from rackline.simulation.native import NativeLog, NativeReplica, compiled_clock, knows, run_pools
from rackline.simulation.rank_spec import Handover, Pool, RankSpec
from rackline.simulation.replica import Replica
from rackline.simulation.requests import RequestLog, Requests
from rackline.simulation.server import router as find_router

AnyReplica = Replica | NativeReplica
Progress = Callable[[int, int, float], None]  # (requests done, all requests, simulated time [s])
_ROUNDS_A_REPORT = 2000


def _native(pools: Sequence[Pool], requests: Requests) -> tuple[NativeLog, list[list[NativeReplica]]] | None:
    """Replicas of a decode pool and of the prefill pool before it, if any, in C; None where it does not know them."""
    plain = requests.hashes is None and requests.adapters is None and requests.joins is None and requests.turns is None
    if not plain or not all(knows(pool) for pool in pools):
        return None
    clocks = [clock for pool in pools if (clock := compiled_clock(pool.clock, pool.spec.max_num_seqs)) is not None]
    if len(clocks) < len(pools):
        return None
    log = NativeLog(requests)
    sides = enumerate(zip(pools, clocks, strict=True))
    return log, [
        [NativeReplica(clock, pool, log, hands_over=side > 0) for _ in range(pool.replicas)]
        for side, (pool, clock) in sides
    ]


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
    requests, skipped = that_fit(requests, pool, prefill, skip_bad)
    pools = [pool] if prefill is None else [pool, prefill.pool]
    native = _native(pools, requests) if compiled and not (stepwise or keep_passes) else None
    go: Callable[[Progress | None], None]
    if native is not None:
        log, (replicas, *before) = native
        front = before[0] if before else []
        go = partial(run_pools, requests, log, front, replicas, router != "round-robin", beyond_s, prefill)
    else:
        log = RequestLog(requests, max(len(one.spec.tiers) for one in pools))
        options = {"stepwise": stepwise, "keep_passes": keep_passes}
        follows = [router == "prefix-aware" and one is pools[-1] for one in pools]
        replicas, front = (
            [
                Replica(one, log, hands_over=side > 0, follows_prefixes=follows[side], **options)
                for one in pools[side : side + 1]
                for _ in range(one.replicas)
            ]
            for side in (0, 1)
        )
        go = partial(_run_together, requests, log, front, replicas, router, beyond_s, prefill)
    alone = requests.turns is None and (requests.after is None or not np.any(requests.after >= 0))
    if alone and prefill is None and (len(replicas) == 1 or router == "round-robin"):
        go = partial(_run_each, requests, log, replicas, beyond_s)
    interrupted = False
    collects = gc.isenabled()
    gc.disable()  # a run makes no cycles, and each collection would look at all that the program has loaded
    try:
        go(progress)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if collects:
            gc.enable()
    with held() as hold:  # an interruption meanwhile is treated as one of the run
        result = gather(requests, log, replicas, front, skipped=skipped, interrupted=interrupted)
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
    if not skip_bad:
        raise InputError(
            what="request",
            given=f"{requests.input_len[first]} + {requests.output_len[first]} tokens",
            allowed=f"at most {most * narrow.block_size} tokens, the KV cache capacity of a rank "
            "(or skip such requests)",
            where=requests.where(first),
        )
    if requests.after is not None:  # requests that wait for one that is left out are left out as well
        waits = [[one] for one in requests.after.tolist()]
        if requests.joins is not None:
            for index, one in zip(requests.joins.request.tolist(), requests.joins.before.tolist(), strict=True):
                waits[index].append(one)
        for index, some in enumerate(waits):
            bad[index] |= any(one >= 0 and bad[one] for one in some)
    if np.all(bad):
        raise InputError(what="requests", given="none that fits", allowed=f"at most {most * spec.block_size} tokens")
    return requests.pick(~bad), int(bad.sum())


def _too_long(tokens: Array, spec: RankSpec) -> Array:
    grown = -(-tokens // spec.block_size) if spec.grows else np.zeros_like(tokens)
    return grown > spec.num_blocks - spec.blocks_of(0)


def _run_each(
    requests: Requests,
    log: RequestLog | NativeLog,
    replicas: Sequence[AnyReplica],
    beyond_s: float,
    progress: Progress | None,
) -> None:
    """Run replicas of which none ever depends on another one after another."""
    times, number = requests.arrival_s.tolist(), len(replicas)
    log.arrival_s[:] = times
    for first, replica in enumerate(replicas):
        replica.submit_all(range(first, len(times), number), [time_s + beyond_s for time_s in times[first::number]])
    for stop in [inf] if progress is None else [*times[_ROUNDS_A_REPORT::_ROUNDS_A_REPORT], inf]:
        for replica in replicas:
            replica.advance(stop)
        if progress is not None:
            progress(sum(replica.finished for replica in replicas), len(times), replicas[0].now)


def _run_together(
    requests: Requests,
    log: RequestLog,
    front: Sequence[Replica],
    replicas: Sequence[Replica],
    router: str,
    beyond_s: float,
    prefill: Handover | None,
    progress: Progress | None,
) -> None:
    """Run arrivals, handovers and replicas in time order until no work is left."""
    flow = Flow(requests)
    choose, choose_decode = find_router(router), find_router(router)
    # (time, kind, serial, request): among equal times, arrivals at the decode pool come first; requests whose prompts
    # are computed go straight to it
    events: list[tuple[float, int, int, int]] = []
    for i, time_s in flow.first():
        log.arrival_s[i] = time_s
        events.append((time_s + beyond_s, 0 if i in log.ready else 1, i, i))
    heapq.heapify(events)
    everyone = [*front, *replicas]
    for replica in everyone:
        replica.tells = flow.goes_on or replica.hands_over
    starts = [replica.next_start for replica in everyone]  # only an arrival or a pass of its own moves one
    place = {replica: index for index, replica in enumerate(everyone)}
    serial = total = len(requests)
    for rounds in count(1):
        if progress is not None and rounds % _ROUNDS_A_REPORT == 0:
            progress(sum(one.finished for one in replicas), total, events[0][0] if events else 0.0)
        start, arrival = min(starts), events[0][0] if events else inf
        if arrival == start == inf:
            return
        if arrival <= start:
            _, kind, _, request = heapq.heappop(events)
            if kind == 0:
                log.ready.add(request)
                found = choose_decode(request, replicas)
            else:
                found = choose(request, front or replicas)
            found.arrivals.add(request, arrival)
            starts[place[found]] = found.next_start
            continue
        first = starts.index(start)
        mine = everyone[first]
        starts[first] = inf
        mine.advance(max(min(arrival, min(starts)), nextafter(start, inf)))
        starts[first] = mine.next_start
        for request, end in mine.done:
            serial += 1
            if mine.hands_over and prefill is not None:
                if log.output_len[request] > 1:
                    moved = end + prefill.latency_s + log.input_len[request] / prefill.tokens_per_s
                    log.first_s[request] = moved  # the decode pool streams the first token as well
                    heapq.heappush(events, (moved, 0, serial, request))
                    continue
                log.finish_s[request] = end
                replicas[0].finished += 1
            for follower, time_s in flow.after(request, end):
                serial += 1
                log.arrival_s[follower] = time_s
                heapq.heappush(events, (time_s + beyond_s, 1, serial, follower))
        mine.done.clear()


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
        preempted=np.array(log.preempted, dtype=int),
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
