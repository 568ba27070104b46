"""A replica: ranks that run their passes in lockstep, simulated from event to event.

The state changes only when a request arrives that can start, when one finishes, or when the free blocks run out.
Between such events all steps are decode steps of the same sequences. They are evaluated together: in closed form where
the time of a pass is linear in the step number, else as one array. `stepwise` evaluates every step by itself, for
comparison.

Attention-dp ranks share experts and step together. The micro-batches of a pipeline pass through its stages in turn; a
round takes as long as its slowest pass (a slow pass delays all that follow it on the same stages), so they step
together too, each with its own load of experts.
"""

from __future__ import annotations

from math import ceil, inf
from typing import assert_never

import numpy as np

from rackline.simulation.clock import Chunk, Clock
from rackline.simulation.decode_steps import common_line, durations_of, step_s, steps_before, steps_with_room
from rackline.simulation.neighbours import prompts_of_runs
from rackline.simulation.policies import Policy
from rackline.simulation.prefix_match import matched
from rackline.simulation.rank import Rank
from rackline.simulation.rank_spec import RankSpec
from rackline.simulation.replica_statistics import PassRecord, ReplicaStatistics
from rackline.simulation.request_log import RequestLog
from rackline.simulation.waiting import ArrivalQueue

_AHEAD = 1 << 16  # steps that are evaluated at a time


class Replica:
    """Ranks in lockstep.

    Args:
        clock: time of a pass.
        spec: limits of each rank.
        policy: the scheduler.
        log: log of the requests that the replica writes to.
        ranks: number of attention-dp ranks [count].
        micro_batches: micro-batches in flight in a pipeline [count].
        hands_over: whether requests leave after their first token (a prefill pool).
        stepwise: whether each step is evaluated by itself.
        keep_passes: whether records of passes are kept.
        follows_prefixes: whether a request goes to the rank that holds most of its prefix; else to the least loaded.
    """

    def __init__(
        self,
        clock: Clock,
        spec: RankSpec,
        policy: Policy,
        log: RequestLog,
        *,
        ranks: int = 1,
        micro_batches: int = 1,
        hands_over: bool = False,
        stepwise: bool = False,
        keep_passes: bool = False,
        follows_prefixes: bool = False,
    ) -> None:
        self.follows_prefixes = follows_prefixes
        self.clock, self.spec, self.policy, self.log = clock, spec, policy, log
        self.per_step = clock.tokens_per_step
        self.groups = [[Rank(spec, policy, log) for _ in range(ranks)] for _ in range(micro_batches)]
        self.ranks = [rank for group in self.groups for rank in group]
        self.hands_over, self.stepwise = hands_over, stepwise
        self.now = 0.0
        self.arrivals = ArrivalQueue()
        self.done: list[tuple[int, float]] = []  # (request, time) finished or handed over, for the run
        self.tells = hands_over
        self.finished = 0
        self.statistics = ReplicaStatistics()
        self.records: list[PassRecord] | None = [] if keep_passes else None

    # arrivals

    def submit(self, request: int, time_s: float) -> None:
        """A request reaches the scheduler at this time."""
        self.arrivals.add(request, time_s)

    @property
    def load(self) -> int:
        """Waiting and running requests of the replica [requests]."""
        return sum(rank.load for rank in self.ranks) + len(self.arrivals)

    def known_prefix(self, request: int) -> int:
        """Blocks of a prompt's prefix in the best-matching rank's memories [count]."""
        return max(rank.known_prefix(request, self.now) for rank in self.ranks)

    def _take_arrivals(self) -> None:
        while (arrival := self.arrivals.pop_until(self.now)) is not None:
            time_s, request = arrival
            if self.log.engine_s[request] is None:
                self.log.engine_s[request] = time_s
            ranks = self.ranks
            place = None
            if self.follows_prefixes and len(ranks) > 1 and self.log.hashes is not None:
                known = [rank.known_prefix(request, self.now) for rank in ranks]
                place = matched(known, [rank.load for rank in ranks], len(self.log.hashes[request]))
            if place is not None:
                ranks = [ranks[place]]
            elif len(ranks) > 1:
                loads = [len(rank.waiting) + len(rank.running) for rank in ranks]
                least = min(loads)
                ranks = [rank for rank, load in zip(ranks, loads, strict=True) if load == least]
            rank = ranks[0] if len(ranks) == 1 else min(ranks, key=lambda rank: rank.blocks.used)
            rank.waiting.add(request, time_s)

    # the loop

    @property
    def next_start(self) -> float:
        """When the next pass can start [s]; infinite when there is nothing to do."""
        if any(rank.running or rank.waiting for rank in self.ranks):
            return self._departure(self.now)
        start = self.arrivals.next_s()
        return start if start == inf else self._departure(max(self.now, start))

    def advance(self, until: float = inf) -> None:
        """Run all passes that start before `until`; stop early when `done` has entries."""
        ranks = self.ranks
        match self.policy.passes:
            case "mixed":
                mixed = True
            case "prompts_first" | "batch":
                mixed = False
            case _:
                assert_never(self.policy.passes)
        while True:
            self._take_arrivals()
            for rank in ranks:
                if rank.running or rank.waiting:
                    break
            else:
                start = self.arrivals.next_s()
                if start >= until or start == inf:
                    return
                self.now = max(self.now, start)
                continue
            if self.now >= until:
                return
            if self.policy.interval_s:
                start = self._departure(self.now)
                if start > self.now:
                    if start >= until:
                        return
                    self._wait(start - self.now)
                    continue
            if self.now >= self.statistics.next_sample:
                self.statistics.sample(self.ranks, self.now)
            if mixed:
                self._mixed_or_decode(until)
            else:
                self._prompts_or_decode(until)
            if self.done and self.tells:
                return

    def _departure(self, time_s: float) -> float:
        """Earliest time, `time_s` or later, at which a pass may start [s]."""
        interval = self.policy.interval_s
        return max(time_s, ceil(time_s / interval - 1e-9) * interval) if interval else time_s

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        if any(rank.decoding.count for rank in self.ranks):
            self.statistics.waited_s += seconds

    def _mixed_or_decode(self, until: float) -> None:
        now, verified = self.now, self.clock.verified
        prompts: list[list[tuple[int, int, int]]] = []
        any_prompts = lost = False
        for rank in self.ranks:
            if self.log.ready:
                rank.join_ready(now)
            found: list[tuple[int, int, int]] = []
            grown = 0
            batch = rank.decoding
            if batch.count:
                grown = batch.tokens_of(1, self.per_step)
                if batch.count * grown > rank.blocks.free:
                    lost = rank.make_room(grown, now) or lost
            if rank.prefilling or rank.waiting:
                need = rank.needed(grown)  # reserved for the sequences that decode in this pass
                rank.blocks.used += need
                preempted = rank.preemptions
                found = rank.take_prompts(self.spec.max_batched_tokens - batch.count * verified, now, not lost)
                rank.blocks.used -= need
                lost = lost or rank.preemptions != preempted
            prompts.append(found)
            any_prompts = any_prompts or bool(found)
        if any_prompts:
            self._pass(prompts, decodes=True)
        else:
            self._decode(until, alone=lost)

    def _prompts_or_decode(self, until: float) -> None:
        now = self.now
        batch = self.policy.passes == "batch"
        prompts: list[list[tuple[int, int, int]]] = []
        any_prompts = lost = yielding = False
        for rank in self.ranks:
            if self.log.ready:
                rank.join_ready(now)
            if batch and not rank.running:
                rank.is_open = True
            held_back = rank.yields and rank.decoding.count > 0
            yielding = yielding or held_back
            admit = (rank.is_open or not batch) and not held_back
            found: list[tuple[int, int, int]] = []
            if rank.prefilling or rank.waiting:
                preempted = rank.preemptions
                found = rank.take_prompts(self.spec.max_batched_tokens, now, admit)
                if rank.preemptions != preempted:
                    lost = rank.yields = True
            prompts.append(found)
            any_prompts = any_prompts or bool(found)
        if any_prompts:
            self._pass(prompts, decodes=False)
            return
        for rank in self.ranks:
            rank.is_open = False
            if rank.decoding.count:
                lost = rank.make_room(rank.decoding.tokens_of(1, self.per_step), now) or lost
        self._decode(until, alone=lost or yielding)
        for rank in self.ranks:
            rank.yields = False

    # one pass with prompts

    def _pass(self, prompts: list[list[tuple[int, int, int]]], *, decodes: bool) -> None:
        log, clock, verified = self.log, self.clock, self.clock.verified
        seconds = beside = 0.0
        index = tokens = sequences = 0
        for group in self.groups:
            mine = prompts[index : index + len(group)]
            index += len(group)
            decoding = new = 0
            for rank, chunks in zip(group, mine, strict=True):
                decoding += rank.decoding.count * verified if decodes else 0
                for chunk in chunks:
                    new += chunk[1]
            tokens += new
            sequences += decoding // verified
            for rank, chunks in zip(group, mine, strict=True):
                batch = rank.decoding
                n = batch.count if decodes else 0
                swap_s, beside = rank.swap_s, max(beside, rank.tier_s)
                rank.tier_s = rank.swap_s = 0.0
                if not chunks and (not n or self._dominated(rank, group, mine)) and not swap_s:
                    continue
                if not chunks and not n:
                    seconds = max(seconds, swap_s)
                    continue
                if batch.slots is not None and chunks:
                    split_s = prompts_of_runs(clock, batch, batch.slots, chunks, decodes=decodes)
                    seconds = max(seconds, split_s + swap_s)
                    continue
                kv, longest = (batch.kv_tokens, batch.longest_context) if n else (0, 0)
                alone = step_s(self.clock, batch, decoding) if n and chunks else 0.0
                pieces = [Chunk(take, done) for _, take, done in chunks]
                seconds = max(seconds, clock.prompts(n, kv, longest, pieces, decoding + new, alone) + swap_s)
        seconds = max(seconds, beside)  # layers are computed while the cache of later ones is loaded
        interval = self.policy.interval_s
        if interval:
            seconds = ceil(seconds / interval - 1e-9) * interval
        start, end = self.now, self.now + seconds
        self.statistics.account(self.ranks, seconds, 1, 0.0)
        self.now = end
        if self.records is not None:
            self.records.append(PassRecord(start, seconds, 1, sequences, tokens))
        if sequences:
            self.statistics.gap(sequences, seconds, end)
        if len(prompts) > 1:
            self.statistics.prompts(prompts, seconds)
        joined = 0
        for rank, chunks in zip(self.ranks, prompts, strict=True):
            if decodes and rank.decoding.count:
                grown = rank.decoding.tokens_of(1, self.per_step)
                rank.blocks.take(rank.needed(grown))
                for request in rank.advance(grown, 1, end):
                    self._finish(request, end)
            for request, take, done in chunks:
                if request not in rank.prefilling:
                    continue
                if done + take < rank.target(request):
                    rank.prefilling[request] = done + take
                    continue
                if log.first_s[request] is None:
                    log.first_s[request] = end
                else:
                    last = log.last_s.pop(request, None)
                    if last is not None:
                        self.statistics.gap_of(end - last, 1)
                if self.hands_over:
                    rank.free(request, end)
                    self.done.append((request, end))
                elif rank.prompt_done(request, end):
                    self._finish(request, end)
                else:
                    joined += 1
        if not decodes:
            self.statistics.waited_s += seconds
            if joined:
                self.statistics.joined.append((end, joined))

    def _dominated(self, rank: Rank, group: list[Rank], prompts: list[list[tuple[int, int, int]]]) -> bool:
        """Whether another rank of the group has at least as much of everything, so that it finishes later."""
        return any(
            chunks and other.decoding.exceeds(rank.decoding) for other, chunks in zip(group, prompts, strict=True)
        )

    # decode steps

    def _decode(self, until: float, *, alone: bool) -> None:
        most = _AHEAD
        per_step = self.per_step
        blocked = False
        for rank in self.ranks:
            if rank.decoding.count:
                most = min(most, rank.decoding.steps_to_end(per_step))
            if rank.waiting and rank.adapters is None:  # with adapters, later requests overtake
                blocked = True
        for rank in self.ranks:
            if rank.decoding.count:
                most = min(most, steps_with_room(rank, most, per_step))
        most = 1 if alone or self.stepwise else max(most, 1)
        # requests that join the end of a blocked queue do not change it
        if not (blocked and len(self.ranks) == 1 and self.policy.order is None):
            until = min(until, self.arrivals.next_s())
        for rank in self.ranks:  # what a waiting request finds in the cache changes when blocks expire
            if rank.waiting and rank.cache is not None:
                until = min(until, rank.cache.next_expiry_s)
        interval = self.policy.interval_s
        line = None if per_step != 1.0 or interval else common_line(self.clock, self.groups, most)
        if line is not None:
            first, slope = line
            steps = most
            if most > 1 and until < self.now + most * (first + slope * (most - 1)):
                steps = steps_before(until - self.now, first, slope, most)
            seconds = steps * first + slope * (0.5 * steps * (steps - 1))
            durations = None
        else:
            most = min(most, 256)
            durations = durations_of(self.clock, self.groups, most)
            if interval:
                durations = np.ceil(durations / interval - 1e-9) * interval
            ends = np.cumsum(durations)
            steps = most
            if self.now + ends[-1] > until:
                steps = min(most, int(np.searchsorted(ends, until - self.now, side="left")) + 1)
            durations = durations[:steps]
            seconds = float(ends[steps - 1])
            first, slope = float(durations[0]), 0.0
        sequences = 0
        swapped = 0.0
        for rank in self.ranks:
            sequences += rank.decoding.count
            swapped = max(swapped, rank.swap_s)
            rank.swap_s = 0.0
        seconds += swapped
        if not sequences:
            raise RuntimeError("no request is running and none can start")
        start = self.now
        self.now = end = start + seconds
        if self.records is not None:
            self.records.append(PassRecord(start, seconds, steps, sequences, 0))
        self.statistics.gaps_of(sequences, start, first + swapped, slope, steps, durations)
        grown_used = 0
        for rank in self.ranks:
            if rank.decoding.count:
                grown = rank.decoding.tokens_of(steps, per_step)
                need = rank.needed(grown)
                rank.blocks.take(need)
                grown_used += need
        self.statistics.account(self.ranks, seconds, steps, -0.5 * grown_used)
        for rank in self.ranks:
            if rank.decoding.count:
                grown = rank.decoding.tokens_of(steps, per_step)
                if rank.cache is not None:
                    rank.cache.trim(rank.blocks.free)
                for request in rank.advance(grown, steps, end):
                    self._finish(request, end)

    def _finish(self, request: int, end: float) -> None:
        self.log.finish_s[request] = end
        self.finished += 1
        if self.tells:
            self.done.append((request, end))
