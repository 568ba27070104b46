"""A replica: ranks that run their passes in lockstep, simulated from event to event.

The state changes only when a request arrives that can start, when one finishes, or when the free blocks run out.
Between such events all steps are decode steps of the same sequences. They are evaluated together: in closed form where
one rank's time of a pass is linear in the step number, else from the ranks that may be the slowest. Ranks to which
nothing happens are not touched (`Rank.settle`). `stepwise` evaluates every step by itself, for comparison.

Attention-dp ranks share experts and step together. The micro-batches of a pipeline pass through its stages in turn; a
round takes as long as its slowest pass (a slow pass delays all that follow it on the same stages), so they step
together too, each with its own load of experts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from math import ceil, inf, isnan

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Chunk
from rackline.simulation.decode_steps import may_be_slowest, may_take_longest, pace, prompts_of_runs, step_s
from rackline.simulation.decoding import DecodingBatch, Lockstep
from rackline.simulation.prefix_cache import matched
from rackline.simulation.rank import AlignedPrompts, Rank
from rackline.simulation.requests import RequestLog
from rackline.simulation.server import ArrivalQueue, Pool
from rackline.simulation.statistics import PassRecord, ReplicaStatistics

_AHEAD = 1 << 16  # steps that are evaluated at a time

_Chunks = dict[int, list[tuple[int, int, int]]]  # by rank: (request, new tokens, tokens before them)


class Replica:
    """Ranks in lockstep.

    Args:
        pool: what it is one of.
        log: log of the requests that the replica writes to.
        hands_over: whether requests leave after their first token (a prefill pool).
        stepwise: whether each step is evaluated by itself.
        keep_passes: whether records of passes are kept.
        follows_prefixes: whether a request goes to the rank that holds most of its prefix; else to the least loaded.
    """

    def __init__(
        self,
        pool: Pool,
        log: RequestLog,
        *,
        hands_over: bool = False,
        stepwise: bool = False,
        keep_passes: bool = False,
        follows_prefixes: bool = False,
    ) -> None:
        self.pool, self.log, self.follows_prefixes = pool, log, follows_prefixes
        self.clock, self.spec, self.policy = pool.clock, pool.spec, pool.policy
        self.together = Lockstep(self.spec.block_size, self.clock.tokens_per_step)
        self.ranks = [Rank(self.spec, self.policy, log, self.together, index) for index in range(pool.num_ranks)]
        self.group_size = pool.ranks  # ranks that share experts
        self.loads = [0] * len(self.ranks)  # waiting and running requests by rank
        self.present = 0  # their sum
        self.room: list[float] = [inf] * len(self.ranks)  # by rank, the clock until which decoding fits
        self.slowest: list[tuple[DecodingBatch, float]] = []  # ranks that may be, with the tokens of their group
        self.yields = False  # whether one of them yields to decoding
        # ranks without prompts decode beside those that have some; with drafts, all of them wait
        self.beside = self.policy.passes == "prompts_first" and len(self.ranks) > 1 and self.clock.verified == 1
        self.late: list[Rank] = []  # ranks whose decoding has waited since its last step
        self.aligned = AlignedPrompts(self.policy.alignment) if self.policy.alignment is not None else None
        self.caches = self.ranks[0].cache is not None
        self.swaps = bool(self.spec.swap_tokens_per_s or self.spec.tiers) or self.ranks[0].adapters is not None
        self.hands_over, self.stepwise = hands_over, stepwise
        self.now = 0.0
        self.arrivals = ArrivalQueue()
        self.done: list[tuple[int, float]] = []  # (request, time) finished or handed over, for the run
        self.tells = hands_over
        self.finished = 0
        self.statistics = ReplicaStatistics()
        self.records: list[PassRecord] | None = [] if keep_passes else None

    def submit_all(self, requests: Sequence[int], times_s: Sequence[float]) -> None:
        """Requests reach the scheduler at these times."""
        for one in zip(requests, times_s, strict=True):
            self.arrivals.add(*one)

    @property
    def blocks_left(self) -> int:
        """KV blocks in use on all ranks, as they were last counted [count]."""
        return sum(rank.blocks.used for rank in self.ranks)

    def take_done(self) -> tuple[Array, Array]:
        """Requests that are done since the last call, and when [s], (n,) each."""
        done = self.done
        self.done = []
        return np.array([one for one, _ in done], dtype=np.int64), np.array([end for _, end in done], dtype=np.float64)

    @property
    def queued(self) -> int:
        """Waiting requests [requests]."""
        return sum(len(rank.waiting) for rank in self.ranks) + len(self.arrivals)

    @property
    def load(self) -> int:
        """Waiting and running requests of the replica [requests]."""
        return self.present + len(self.arrivals)

    def known_prefix(self, request: int) -> int:
        """Blocks of a prompt's prefix in the best-matching rank's memories [count]."""
        return max(rank.known_prefix(request, self.now) for rank in self.ranks)

    @property
    def used_blocks(self) -> int:
        """KV blocks in use on all ranks [count]."""
        return self.blocks_left + self.together.unsettled

    def _take_arrivals(self) -> None:
        arrivals, ranks, engine_s = self.arrivals, self.ranks, self.log.engine_s
        used: dict[int, int] = {}  # KV blocks in use by rank, where they decide
        while (arrival := arrivals.pop_until(self.now)) is not None:
            time_s, request = arrival
            if isnan(engine_s[request]):
                engine_s[request] = time_s
            index = self._rank_for(request, used) if len(ranks) > 1 else 0
            ranks[index].waiting.add(request, engine_s[request])
            if self.policy.order is not None:
                ranks[index].stuck = False
            self.loads[index] += 1
            self.present += 1

    def _rank_for(self, request: int, used: dict[int, int]) -> int:
        """The rank that holds most of a prefix, where that decides; else the one with the fewest requests, and
        among those the one with the fewest KV blocks in use."""
        loads, hashes = self.loads, self.log.hashes
        if self.follows_prefixes and hashes is not None:
            known = [rank.known_prefix(request, self.now) for rank in self.ranks]
            place = matched(known, loads, len(hashes[request]))
            if place is not None:
                return place
        least = min(loads)
        if loads.count(least) == 1:
            return loads.index(least)
        alike = [index for index, load in enumerate(loads) if load == least]
        for index in alike:
            if index not in used:
                used[index] = self.ranks[index].used_blocks
        return min(alike, key=used.__getitem__)

    @property
    def next_start(self) -> float:
        """When the next pass can start [s]; infinite when there is nothing to do."""
        if self.present:
            return self._departure(self.now)
        start = self.arrivals.next_s()
        return start if start == inf else self._departure(max(self.now, start))

    def advance(self, until: float = inf) -> None:
        """Run all passes that start before `until`; stop early when `done` has entries."""
        mixed = self.policy.passes == "mixed"
        while True:
            self._take_arrivals()
            if not self.present:
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
                    seconds = start - self.now
                    self.now += seconds
                    for rank in self.ranks:
                        if rank.decoding.count:
                            self._late(rank, seconds)
                    continue
            if self.now >= self.statistics.next_sample:
                count = self.together.count
                self.statistics.sample(self.now, count, self.present - count, self.used_blocks)
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

    def _late(self, rank: Rank, seconds: float) -> None:
        if not rank.waited_s:
            self.late.append(rank)
        rank.waited_s += seconds

    def _first_gaps(self, sequences: int, seconds: float, end: float, waiting: Container[int] = ()) -> None:
        """Each decoding sequence gets a token, but on ranks that wait; some waited before, or joined those that did."""
        still: list[Rank] = []
        for rank in self.late:
            if rank.index in waiting:
                still.append(rank)
                continue
            count = rank.decoding.count
            sequences -= count
            for time_s, joined in rank.joined:
                joined = min(joined, count)
                if joined:
                    self.statistics.gap_of(end - time_s, joined)
                count -= joined
            if count:
                self.statistics.gap_of(seconds + rank.waited_s, count)
            rank.waited_s, rank.joined = 0.0, []
        self.late = still
        if sequences:
            self.statistics.gap_of(seconds, sequences)

    def _mixed_or_decode(self, until: float) -> None:
        now, verified, together = self.now, self.clock.verified, self.together
        grown = together.tokens_of(1) if together.count else 0
        finished = self.finished
        self._refresh()
        prompts: _Chunks = {}
        lost, held = False, self.aligned.passes_held(self.ranks, self.statistics.steps) if self.aligned else 0
        least = together.clock + grown
        if self.present > together.count or min(self.room) < least:
            for rank in self.ranks:
                if not (rank.prefilling or (rank.waiting and not rank.stuck) or self.room[rank.index] < least):
                    continue
                rank.settle()
                batch = rank.decoding
                if self.log.ready:
                    for request in rank.join_ready(now):
                        self._leave(rank, request, now)
                if batch.count:
                    grown = together.tokens_of(1)
                    if batch.count * grown > rank.blocks.free:
                        lost = rank.make_room(grown, now) or lost
                if (rank.prefilling or rank.waiting) and not held:
                    need = rank.needed(grown)  # reserved for the sequences that decode in this pass
                    rank.blocks.used += need
                    budget = self.spec.max_batched_tokens - batch.count * verified
                    lost = self._take(rank, budget, not lost, prompts) or lost
                    rank.blocks.used -= need
        if prompts:
            self._pass(prompts, decodes=True)
        elif together.count or self.finished == finished:
            self._decode(until, alone=lost, held=held)

    def _prompts_or_decode(self, until: float) -> None:
        now, together = self.now, self.together
        batch = self.policy.passes == "batch"
        finished = self.finished
        prompts: _Chunks = {}
        lost = yielding = False
        held = self.aligned.passes_held(self.ranks, self.statistics.steps) if self.aligned else 0
        for rank in self.ranks if batch or self.present > together.count else ():
            if not (rank.waiting or rank.prefilling or batch):
                continue
            if held and (not rank.prefilling or (self.policy.alignment and self.policy.alignment.holds_chunks)):
                continue
            if self.log.ready and rank.waiting:
                rank.settle()
                for request in rank.join_ready(now):
                    self._leave(rank, request, now)
            if batch and not rank.running:
                rank.is_open = True
            held_back = rank.yields and rank.decoding.count > 0
            yielding = yielding or held_back
            admit = (rank.is_open or not batch) and not held_back and not held
            if rank.prefilling or (rank.waiting and not rank.stuck):
                rank.settle()
                if self._take(rank, self.spec.max_batched_tokens, admit, prompts):
                    lost = rank.yields = self.yields = True
        if prompts and not self.beside:
            self._pass(prompts, decodes=False)
            return
        if batch:
            for rank in self.ranks:
                rank.is_open = False
        self._refresh()
        grown = together.tokens_of(1)
        if min(self.room) < together.clock + grown:
            for rank in self.ranks:
                if self.room[rank.index] < together.clock + grown and rank.index not in prompts:
                    rank.settle()
                    lost = rank.make_room(grown, now) or lost
        if prompts:
            self._pass(prompts, decodes=False)
        elif together.count or self.finished == finished:
            self._decode(until, alone=lost or yielding, held=held)
        if self.yields:
            self.yields = False
            for rank in self.ranks:
                rank.yields = False

    def _take(self, rank: Rank, budget: int, admit: bool, prompts: _Chunks) -> bool:
        """Take prompts of a rank into a pass; whether a request was preempted for them."""
        preempted = rank.preemptions
        if chunks := rank.take_prompts(budget, self.now, admit):
            prompts[rank.index] = chunks
        return rank.preemptions != preempted

    def _refresh(self) -> None:
        """Bring what is known of ranks up to date for those to which something has happened."""
        together = self.together
        if together.changed:
            for index in together.changed:
                rank = self.ranks[index]
                if rank.settled != together.clock:
                    rank.settle()
                self.room[index] = together.clock + rank.room()
            together.changed.clear()
            self.slowest = []

    def _pass(self, prompts: _Chunks, *, decodes: bool) -> None:
        """A pass with prompts.

        Args:
            prompts: by rank.
            decodes: whether ranks with prompts decode in it; those without do so as well, or where they do beside them.
        """
        log, together = self.log, self.together
        self._refresh()
        seconds, size = 0.0, self.group_size
        for first in range(0, len(self.ranks), size):
            group = self.ranks[first : first + size]
            mine = {i: prompts[i] for i in range(first, first + size) if i in prompts}
            seconds = max(seconds, self._group_s(group, mine, decodes=decodes))
        if self.swaps:
            for rank in self.ranks:  # layers are computed while the cache of later ones is loaded
                seconds = max(seconds, rank.tier_s)
                rank.tier_s = rank.swap_s = 0.0
        interval = self.policy.interval_s
        if interval:
            seconds = ceil(seconds / interval - 1e-9) * interval
        start, end = self.now, self.now + seconds
        self.statistics.account(seconds, 1, together.count, self.used_blocks)
        self.now = end
        waiting = () if decodes else prompts if self.beside else range(len(self.ranks))
        sequences = together.count - sum([self.ranks[index].decoding.count for index in waiting])
        if self.records is not None:
            tokens = sum(take for chunks in prompts.values() for _, take, _ in chunks)
            self.records.append(PassRecord(start, seconds, 1, sequences, tokens))
        if sequences:
            self._first_gaps(sequences, seconds, end, waiting)
        for index in waiting:
            self._late(self.ranks[index], seconds)
        if len(self.ranks) > 1:
            self.statistics.prompt_pass_s += seconds
            self.statistics.prompt_rank_s += seconds * (len(prompts) / len(self.ranks))
        ended: dict[int, list[int]] = {}
        if sequences:
            for index, request in self._advance(1, waiting):
                ended.setdefault(index, []).append(request)
        for index in sorted({*ended, *prompts}):
            rank = self.ranks[index]
            rank.settle()
            for request in ended.get(index, ()):
                rank.finish(request, end)
                self._leave(rank, request, end)
            joined = 0
            for request, take, done in prompts.get(index, ()):
                if request not in rank.prefilling:
                    continue
                if done + take < rank.target(request):
                    rank.prefilling[request] = done + take
                    continue
                if isnan(log.first_s[request]):
                    log.first_s[request] = end
                elif (last := log.last_s.pop(request, None)) is not None:
                    self.statistics.gap_of(end - last, 1)
                if self.hands_over:
                    rank.free(request, end)
                    self._leave(rank, request, end)
                elif rank.prompt_done(request, end):
                    self._leave(rank, request, end)
                else:
                    joined += 1
            if joined and not decodes:
                rank.joined.append((end, joined))
        if self.aligned is not None:
            self.aligned.owed_passes = self.aligned.alignment.decodes_after

    def _group_s(self, group: list[Rank], prompts: _Chunks, *, decodes: bool) -> float:
        """A pass of ranks that share experts, with prompts on some of them [s]."""
        clock, verified = self.clock, self.clock.verified
        beside = decodes or self.beside
        mine = [rank for rank in group if decodes or (beside and rank.index not in prompts)]
        decoding = verified * sum([rank.decoding.count for rank in mine])
        others = beside and any(rank.decoding.count for rank in group if rank.index not in prompts)
        new = sum([take for chunks in prompts.values() for _, take, _ in chunks])
        seconds = 0.0
        alike: set[tuple[tuple[int, int], ...]] = set()  # prompts of ranks that do nothing else
        for index, chunks in prompts.items():
            rank = self.ranks[index]
            batch = rank.decoding
            if batch.slots is not None:
                split_s = prompts_of_runs(clock, batch, batch.slots, chunks, decodes=decodes)
                seconds = max(seconds, split_s + rank.swap_s)
                continue
            n = batch.count if decodes else 0
            pieces = [Chunk(take, done) for _, take, done in chunks]
            if not n and not rank.swap_s:
                if (key := tuple(pieces)) in alike:
                    continue
                alike.add(key)
            kv, longest = (batch.kv_tokens, batch.longest_context) if n else (0, 0)
            alone = step_s(clock, batch, decoding) if n else 0.0
            own = clock.prompts(n, kv, longest, pieces, decoding + new, alone, others_decode=others)
            seconds = max(seconds, own + rank.swap_s)
        if beside and len(prompts) < len(group) and decoding:
            for batch in may_be_slowest([rank.decoding for rank in group if rank.index not in prompts]):
                kv, longest = batch.kv_tokens, batch.longest_context
                seconds = max(seconds, clock.prompts(batch.count, kv, longest, [], decoding + new, 0.0))
        if self.swaps:  # beside or without decoding
            for rank in group:
                if rank.swap_s and rank.index not in prompts:
                    batch, n = rank.decoding, rank.decoding.count if beside else 0
                    kv, longest = batch.kv_tokens, batch.longest_context
                    also = clock.prompts(n, kv, longest, [], decoding + new, 0.0) if n else 0.0
                    seconds = max(seconds, also + rank.swap_s)
        return seconds

    def _decode(self, until: float, *, alone: bool, held: int = 0) -> None:
        together, interval, alone_s = self.together, self.policy.interval_s, 0.0
        if not together.count:
            raise RuntimeError("no request is running and none can start")
        self._refresh()
        one, most = len(self.ranks) == 1, 1
        if not (alone or self.stepwise):
            most = max(min(held or _AHEAD, together.steps_to_end()), 1)
            room = min(self.room) - together.clock
            if room < together.tokens_of(most):
                most = max(together.steps_within(int(room)), 1)
        # requests that join the end of a blocked queue do not change it; with adapters, later requests overtake
        blocked = one and self.policy.order is None and bool(self.ranks[0].waiting) and self.ranks[0].adapters is None
        if not blocked:
            until = min(until, self.arrivals.next_s())
        if self.caches:  # what a waiting request finds in the cache changes when blocks expire
            for rank in self.ranks:
                if rank.waiting and rank.cache is not None:
                    until = min(until, rank.cache.next_expiry_s)
        if not self.slowest:
            self.slowest = may_take_longest(self.clock, [rank.decoding for rank in self.ranks], self.group_size)
        steps, seconds, first, slope, durations = pace(self.clock, self.slowest, most, until - self.now, interval)
        if self.swaps:
            alone_s = max(rank.swap_s for rank in self.ranks)
            for rank in self.ranks:
                rank.swap_s = 0.0
        seconds += alone_s
        sequences, start = together.count, self.now
        self.now = end = start + seconds
        if self.records is not None:
            self.records.append(PassRecord(start, seconds, steps, sequences, 0))
        self._first_gaps(sequences, first + alone_s, start + first + alone_s)
        self.statistics.gaps_of(sequences, first + alone_s, slope, steps, durations)
        if self.aligned is not None:
            self.aligned.count_held(self.ranks, steps, held)
        used, before = self.used_blocks, together.unsettled
        ended = self._advance(steps)
        self.statistics.account(seconds, steps, sequences, used + 0.5 * (together.unsettled - before))
        if self.caches:
            for rank in self.ranks:
                if rank.cache is not None and rank.decoding.count:
                    rank.settle()
                    rank.cache.trim(rank.blocks.free)
        for index, request in ended:
            rank = self.ranks[index]
            rank.settle()
            rank.finish(request, end)
            self._leave(rank, request, end)

    def _advance(self, steps: int, waiting: Iterable[int] = ()) -> Sequence[tuple[int, int]]:
        """Sequences gain their tokens of some steps, but on ranks that wait; (rank, request) of those that have all."""
        together = self.together
        grown = together.tokens_of(steps)
        need = together.new_blocks(grown) if grown and not self.ranks[0].final else 0
        for index in waiting:
            self.ranks[index].settle()
            need -= self.ranks[index].pause()
        together.unsettled += need
        together.clock += grown
        together.steps += steps
        return together.ended()

    def _leave(self, rank: Rank, request: int, end: float) -> None:
        """A request has all its tokens, or goes on elsewhere."""
        self.loads[rank.index] -= 1
        self.present -= 1
        if not self.hands_over:
            self.log.finish_s[request] = end
            self.finished += 1
        if self.tells:
            self.done.append((request, end))
