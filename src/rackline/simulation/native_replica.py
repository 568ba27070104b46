"""Replicas whose passes run in the loop in C, what becomes of their requests, and runs of several of them."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.native import ALIGNMENT, Arrays, Head, LogFields, NativeClock, RunFields, library
from rackline.simulation.policies import tier
from rackline.simulation.requests import Requests
from rackline.simulation.server import Handover, Pool
from rackline.simulation.statistics import ReplicaStatistics

_PASSES, _ROUNDS = 200_000, 20_000  # between two looks at interruptions
_GAPS, _GAP_ZERO = 24_000, 12_000
_MORE, _STUCK = 1, 2
_GOES_ON = 2  # as in replica.c
_PASSES_AS = {"mixed": 0, "prompts_first": 1, "batch": 2}
_RESERVES = {"chunk": 0, "prompt": 1, "final": 2}
_LINKS = ("place", "run_before", "run_after", "fill_before", "fill_after")
_LIMITS = ("block_size", "num_blocks", "grows", "max_num_seqs", "max_batched_tokens")


def knows(pool: Pool) -> bool:
    """Whether the loop knows the policy of a pool and all that its ranks do."""
    policy, spec = pool.policy, pool.spec
    further = (spec.prefix_caching, spec.swap_tokens_per_s, spec.tiers, spec.adapters, spec.neighbour_passes)
    by_tier = policy.order is tier
    ordered = policy.preempts_last_of_order if by_tier else policy.order is None and not policy.preempts_last_of_order
    return ordered and not any(further)


class NativeLog:
    """The outcome of each request as arrays that the loop writes; names as in `RequestLog`, unknown times NaN."""

    adapter_loads = 0
    hashes = None

    def __init__(self, requests: Requests) -> None:
        count = len(requests)
        self.input_len: Array = np.ascontiguousarray(requests.input_len, dtype=np.int64)
        self.output_len: Array = np.ascontiguousarray(requests.output_len, dtype=np.int64)
        self.arrival_s, self.engine_s, self.admitted_s, self.first_s, self.finish_s, last_s = (
            np.full(count, np.nan) for _ in range(6)
        )
        self.preempted = np.zeros(count, dtype=np.int64)
        self.cached = np.zeros(count, dtype=np.int64)
        self.tier_tokens = [0]
        ready = np.zeros(count, dtype=np.uint8)
        if requests.computed is not None:
            ready[requests.computed >= requests.input_len] = 1
        own = {
            "last_s": last_s,
            "ready": ready,
            "end_at": np.full(count, -1, dtype=np.int64),
            **{name: np.zeros(count, dtype=np.int64) for name in ("generated", "base", "held", "done")},
            **{name: np.zeros(count, dtype=np.int32) for name in _LINKS},
            **{name: np.zeros(count, dtype=np.uint8) for name in ("fills", "decodes")},
        }
        self.own = own
        self.arrays = arrays = Arrays()
        shown = ("input_len", "output_len", "engine_s", "admitted_s", "first_s", "finish_s", "preempted")
        self.structure = LogFields(
            **{name: arrays.of(getattr(self, name)) for name in shown},
            **{name: arrays.of(column) for name, column in own.items()},
            computed=None if requests.computed is None else arrays.ints(requests.computed),
            priority=arrays.ints(np.zeros(count) if requests.priority is None else requests.priority),
            num_ready=arrays.ints([ready.sum()]),
        )
        self.address = ctypes.addressof(self.structure)

    def make_ready(self, requests: Array) -> None:
        """The prompts of these requests have been computed elsewhere."""
        self.structure.num_ready[0] += int(np.sum(self.own["ready"][requests] == 0))
        self.own["ready"][requests] = 1

    def forget(self, requests: Array) -> None:
        """These requests, whose replica has failed, are as new."""
        self.structure.num_ready[0] -= int(self.own["ready"][requests].sum())
        for name, column in self.own.items():
            column[requests] = {"last_s": np.nan, "end_at": -1}.get(name, 0)
        self.admitted_s[requests] = self.first_s[requests] = np.nan


def _in_c(name: str) -> Any:
    """A property of a replica that the loop in C keeps."""
    return property(attrgetter(f"_head.{name}"))


class NativeReplica:
    """A `replica.Replica` whose passes run in C.

    Args:
        clock: times its passes.
        pool: what it is one of.
        log: of the requests of the run.
        hands_over: as in `Replica`.
    """

    records = None

    def __init__(self, clock: NativeClock, pool: Pool, log: NativeLog, *, hands_over: bool = False) -> None:
        self.clock, self.log, self.pool = clock, log, pool
        spec, policy = pool.spec, pool.policy
        self._library = library()
        self._memory = ctypes.create_string_buffer(self._library.replica_bytes)
        self.address = ctypes.addressof(self._memory)
        self._head = Head.from_buffer(self._memory)
        given = {
            "clock": ctypes.addressof(clock.structure),
            "log": log.address,
            "num_ranks": pool.num_ranks,
            "group_size": pool.ranks,
            "fixed_blocks": spec.blocks_of(0),
            "reserve": _RESERVES[spec.reserve or policy.reserve],
            "passes_as": _PASSES_AS[policy.passes],
            "chunked": policy.chunked,
            "interval_s": policy.interval_s,
            "hands_over": hands_over,
            "tells": _GOES_ON if hands_over else 0,  # for `take_done`; `run_pools` sets it anew
            "aligned": policy.alignment is not None,
            "by_priority": policy.order is not None,
            "for_urgent": policy.preempts_for_urgent,
        }
        given |= {name: getattr(spec, name) for name in _LIMITS}
        given |= {name: getattr(policy.alignment, name) for name in ALIGNMENT if policy.alignment is not None}
        for name, value in given.items():
            setattr(self._head, name, value)
        self._library.begin(self.address)

    def __del__(self) -> None:
        """Free what the loop has allocated."""
        if hasattr(self, "_head"):
            self._library.release(self.address)

    def submit_all(self, requests: Sequence[int], times_s: Sequence[float]) -> None:
        """Requests reach the scheduler at these times."""
        arrays = Arrays()
        self._library.submit_all(self.address, len(requests), arrays.ints(requests), arrays.floats(times_s))

    def advance(self, until: float = inf) -> None:
        """Run all passes that start before `until`."""
        while goes_on(self._library.advance(self.address, until, _PASSES)):
            pass  # interruptions are noticed here

    def take_done(self) -> tuple[Array, Array]:
        """Requests that are done since the last call, and when [s], (n,) each."""
        number = self._head.num_done
        if not number:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        self._head.num_done = 0
        shape = (number,)
        return (
            np.ctypeslib.as_array(self._head.done, shape).copy(),
            np.ctypeslib.as_array(self._head.done_s, shape).copy(),
        )

    load: int = _in_c("load")  # waiting and running requests [requests]
    queued: int = _in_c("queued")  # waiting requests [requests]
    now: float = _in_c("now")  # [s]
    finished: int = _in_c("finished")  # requests that have all their tokens [requests]
    used_blocks: int = _in_c("held_blocks")  # KV blocks in use on all ranks [count]
    blocks_left: int = _in_c("used_blocks")  # the same as they were last counted [count]

    @property
    def statistics(self) -> ReplicaStatistics:
        """Counts and times so far."""
        head, found = self._head, ReplicaStatistics()
        for name in ("steps", "passes", "busy_s", "sequence_s", "used_s", "prompt_pass_s", "prompt_rank_s"):
            setattr(found, name, getattr(head, name))
        gaps = np.ctypeslib.as_array(head.gaps, (_GAPS,))
        places = np.flatnonzero(gaps)
        found.gaps = Counter(dict(zip((places - _GAP_ZERO).tolist(), gaps[places].tolist(), strict=True)))
        samples: Any = np.ctypeslib.as_array(head.samples, (max(head.num_samples, 1), 4))[: head.num_samples].copy()
        found.samples = samples
        return found


def serve_all(
    open_ones: Sequence[NativeReplica],
    others: Sequence[NativeReplica],
    requests: Array,
    times_s: Array,
    turn: int,
    until: float,
    *,
    to_least_loaded: bool,
) -> tuple[Array, int]:
    """Requests go to replicas, and all replicas run the passes that start before a time.

    Args:
        open_ones, others: those that take requests, and those that only go on.
        requests, times_s: in the order of arrival, all before `until`; none where no replica is open [s], (n,).
        turn: of the next request, where they go to each replica in turn.
        until: [s].
        to_least_loaded: whether requests go to the replica with the fewest; else to each in turn.

    Returns:
        Place of each request's replica in `open_ones`, (n,), and the next turn.
    """
    everyone = [replica.address for replica in (*open_ones, *others)]
    arrays, placed = Arrays(), np.zeros(max(len(requests), 1), dtype=np.int64)
    turns = np.array([turn], dtype=np.int64)
    state = library().serve(
        (c_void_p * max(len(everyone), 1))(*everyone), len(open_ones), len(everyone), len(requests),
        arrays.ints(requests), arrays.floats(times_s), to_least_loaded, arrays.of(turns), arrays.of(placed), until,
    )  # fmt: skip
    goes_on(state)
    return placed[: len(requests)], int(turns[0])


def run_pools(
    requests: Requests,
    log: NativeLog,
    front: Sequence[NativeReplica],
    replicas: Sequence[NativeReplica],
    least_loaded: bool,
    at_s: Array,
    prefill: Handover | None,
    progress: Callable[[int, int, float], None] | None,
) -> None:
    """Run replicas that depend on each other: arrivals, handovers and passes in the order of time.

    Args:
        front, replicas: those of a prefill pool, if any, and those that decode.
        least_loaded: whether requests go to the replica with the fewest; else to each in turn.
        at_s: when each request reaches the scheduler, or for one that follows another the pause before that [s], (n,).
        prefill: transfer from the prefill pool.
        progress: called from time to time.
    """
    found, arrays, count = library(), Arrays(), len(requests)
    everyone = [replica.address for replica in (*front, *replicas)]
    after = np.full(count, -1) if requests.after is None else requests.after
    free, waits = np.flatnonzero(after < 0), np.flatnonzero(after >= 0)
    closed = requests.process == "closed" and requests.after is not None
    memory = ctypes.create_string_buffer(found.run_bytes)
    head = RunFields.from_buffer(memory)
    given = {
        "log": log.address, "num_front": len(front), "num_replicas": len(replicas), "num_requests": count,
        "replicas": arrays.at((c_void_p * len(everyone))(*everyone)), "least_loaded": least_loaded, "closed": closed,
        "times_s": arrays.floats(requests.arrival_s),
        "at_s": arrays.floats(at_s),
        "arrival_s": arrays.of(log.arrival_s),
        "latency_s": 0.0 if prefill is None else prefill.latency_s,
        "tokens_per_s": inf if prefill is None else prefill.tokens_per_s,
    }  # fmt: skip
    if requests.after is not None:
        order = waits if closed else waits[np.argsort(after[waits], kind="stable")]
        number = np.zeros(count, dtype=np.int64) if closed else np.bincount(after[waits], minlength=count)
        ends = np.concatenate([[0], np.cumsum(number)])
        ends[-1] = len(waits)
        given |= {"first_follower": arrays.ints(ends), "followers": arrays.ints(order)}
    for name, value in given.items():
        setattr(head, name, value)
    at = ctypes.addressof(memory)
    found.begin_run(at, len(free), arrays.ints(free))
    try:
        while goes_on(found.go(at, _ROUNDS)):
            if progress is not None:
                progress(sum(one.finished for one in replicas), count, max(one.now for one in replicas))
    finally:
        found.release_run(at)


def goes_on(state: int) -> bool:
    """Whether a call ended before the run did."""
    if state == _STUCK:
        raise RuntimeError("no request is running and none can start")
    return state == _MORE
