"""The decoding sequences of the ranks of a replica: their contexts, the longest and shortest, their slots."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from operator import itemgetter

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.server import token_clock


class Extremes:
    """Largest and smallest value of a mapping that grows and shrinks, in logarithmic time.

    Removed values stay in the heaps until they reach the top, or until they are the majority.
    """

    __slots__ = ("down", "up", "values")

    def __init__(self, values: Mapping[int, int]) -> None:
        self.values = values
        self.up: list[tuple[int, int]] = []
        self.down: list[tuple[int, int]] = []

    def add(self, key: int, value: int) -> None:
        """Add a key."""
        heapq.heappush(self.up, (value, key))
        heapq.heappush(self.down, (-value, key))
        if len(self.up) > 2 * len(self.values) + 64 or len(self.down) > 2 * len(self.values) + 64:
            self.up = [(value, key) for key, value in self.values.items()]
            self.down = [(-value, key) for key, value in self.values.items()]
            heapq.heapify(self.up)
            heapq.heapify(self.down)

    def most(self) -> int:
        """The largest value; the mapping must not be empty."""
        values, heap = self.values, self.down
        while values.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        return -heap[0][0]

    def least(self) -> int:
        """The smallest value; the mapping must not be empty."""
        values, heap = self.values, self.up
        while values.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0]


class Slots:
    """The slots of an engine and the requests in them; the one that has been free for longest is taken.

    Args:
        number: of them all [count].
    """

    __slots__ = ("free", "of")

    def __init__(self, number: int) -> None:
        self.free = deque(range(number))
        self.of: dict[int, int] = {}  # request → slot

    def take(self, request: int) -> None:
        """A request takes a slot."""
        self.of[request] = self.free.popleft()

    def give(self, request: int) -> None:
        """A request leaves its slot."""
        self.free.append(self.of.pop(request))


class Lockstep:
    """Token clock of the ranks of a replica, and sums over their decoding sequences.

    Args:
        block_size: tokens per KV block [tokens].
        tokens_per_step: tokens that a sequence gains per step on average [tokens].
    """

    __slots__ = (
        "block_size", "changed", "clock", "count", "end_at", "ends", "phases", "steps", "tokens_per_step",
        "unsettled",
    )  # fmt: skip

    def __init__(self, block_size: int, tokens_per_step: float = 1.0) -> None:
        self.block_size, self.tokens_per_step = block_size, tokens_per_step
        self.clock = self.steps = self.count = 0
        self.end_at: dict[int, int] = {}
        self.ends: list[tuple[int, int, int]] = []  # heap of (end, rank, request); stale unless `end_at` confirms it
        self.phases = [0] * block_size  # sequences by the clock, modulo the block size, at which they need a new block
        self.unsettled = 0  # KV blocks that ranks have not counted since they were settled
        self.changed: set[int] = set()  # ranks to which something has happened

    def new_blocks(self, tokens: int) -> int:
        """New KV blocks of all ranks while every sequence gains `tokens` tokens [count]."""
        return blocks_between(self.phases, self.count, self.clock, tokens)

    def tokens_of(self, steps: int) -> int:
        """Tokens that every sequence gains in the next steps [tokens]."""
        if self.tokens_per_step == 1.0:
            return steps
        return token_clock(self.steps + steps, self.tokens_per_step) - self.clock

    def gained(self, steps: Array) -> Array:
        """Tokens that every sequence has gained before each of the next steps, counted from 0 [tokens]."""
        if self.tokens_per_step == 1.0:
            return steps
        return np.floor((self.steps + steps) * self.tokens_per_step + 1e-9) - self.clock

    def steps_within(self, tokens: int) -> int:
        """Steps that yield at most this many tokens [count]."""
        if self.tokens_per_step == 1.0:
            return tokens
        steps = max(int((self.clock + tokens) / self.tokens_per_step) - self.steps + 1, 0)
        while steps and self.tokens_of(steps) > tokens:
            steps -= 1
        return steps

    def steps_to_end(self) -> int:
        """Steps until the next sequence finishes [count]; at least 1."""
        ends = self.ends
        while ends and self.end_at.get(ends[0][2]) != ends[0][0]:
            heapq.heappop(ends)
        if not ends:
            return 1 << 60
        end = ends[0][0]
        if self.tokens_per_step == 1.0:
            return end - self.clock
        steps = max(ceil(end / self.tokens_per_step) - self.steps - 1, 1)
        while token_clock(self.steps + steps, self.tokens_per_step) < end:
            steps += 1
        return steps

    def ended(self) -> Sequence[tuple[int, int]]:
        """(rank, request) of the sequences that have reached their end, rank by rank; they still have their blocks."""
        ends, clock = self.ends, self.clock
        found: list[tuple[int, int]] = []
        while ends and ends[0][0] <= clock:
            end, rank, request = heapq.heappop(ends)
            if self.end_at.get(request) == end and (not found or found[-1] != (rank, request)):
                found.append((rank, request))  # one that was preempted and ends as before has two entries
        if len(found) > 1 and self.tokens_per_step != 1.0:  # with drafts, some ends have been passed
            found.sort(key=itemgetter(0))
        return found


class DecodingBatch:
    """The decoding sequences of one rank.

    Args:
        together: clock and sums that its ranks share.
        index: of the rank.
        slots: of all requests, where only neighbours share a pass; None else.
    """

    __slots__ = ("base", "count", "extremes", "index", "longest", "phases", "shortest", "slots", "sum_base", "together")

    def __init__(self, together: Lockstep, index: int = 0, slots: Slots | None = None) -> None:
        self.together, self.index, self.slots = together, index, slots
        self.count = self.sum_base = 0
        self.base: dict[int, int] = {}  # request → context - clock
        self.extremes = Extremes(self.base)
        self.longest = self.shortest = 0  # largest and smallest base
        self.phases = [0] * together.block_size

    @property
    def kv_tokens(self) -> int:
        """Tokens that the sequences have cached [tokens]."""
        return self.sum_base + self.count * self.together.clock

    @property
    def longest_context(self) -> int:
        """Tokens that the longest sequence has cached [tokens]."""
        return self.longest + self.together.clock

    @property
    def shortest_context(self) -> int:
        """Tokens that the shortest sequence has cached [tokens]."""
        return self.shortest + self.together.clock

    def contexts(self) -> Array:
        """Tokens that each sequence has cached [tokens]."""
        return np.fromiter(self.base.values(), float, len(self.base)) + self.together.clock

    def remaining(self, request: int) -> int:
        """Tokens that a sequence has yet to generate [tokens]."""
        return self.together.end_at[request] - self.together.clock

    def add(self, request: int, context: int, remaining: int) -> None:
        """A sequence starts to decode.

        Args:
            context: its cached tokens [tokens].
            remaining: tokens that it has yet to generate [tokens].
        """
        together = self.together
        base = context - together.clock
        self.base[request] = base
        self.extremes.add(request, base)
        end = together.clock + remaining
        together.end_at[request] = end
        heapq.heappush(together.ends, (end, self.index, request))
        if not self.count:
            self.longest = self.shortest = base
        elif base > self.longest:
            self.longest = base
        elif base < self.shortest:
            self.shortest = base
        self._counted(base, 1)

    def _counted(self, base: int, change: int) -> None:
        together = self.together
        phase = -base % together.block_size
        self.count += change
        self.sum_base += change * base
        self.phases[phase] += change
        together.phases[phase] += change
        together.count += change
        together.changed.add(self.index)

    def remove(self, request: int) -> int:
        """Remove a sequence; returns its cached tokens [tokens]."""
        together = self.together
        base = self.base.pop(request)
        del together.end_at[request]
        self._counted(base, -1)
        if self.count and (base == self.longest or base == self.shortest):
            self.longest, self.shortest = self.extremes.most(), self.extremes.least()
        return base + together.clock

    def postpone(self, tokens: int) -> None:
        """Sequences do not gain the next tokens of the clock."""
        together = self.together
        for request, base in self.base.items():
            self.base[request] = base - tokens
            self.extremes.add(request, base - tokens)
            together.end_at[request] += tokens
            heapq.heappush(together.ends, (together.end_at[request], self.index, request))
        self.sum_base -= self.count * tokens
        self.longest, self.shortest = self.longest - tokens, self.shortest - tokens
        size, before = len(self.phases), self.phases
        self.phases = [before[(place - tokens) % size] for place in range(size)]
        for place in range(size):
            together.phases[place] += self.phases[place] - before[place]

    def new_blocks(self, tokens: int, since: int | None = None) -> int:
        """New KV blocks while every sequence gains `tokens` tokens from now, or from `since` on the clock [count]."""
        return blocks_between(self.phases, self.count, self.together.clock if since is None else since, tokens)

    def tokens_in(self, blocks: int) -> int:
        """Tokens that every sequence can gain in this many new KV blocks [tokens]; the batch must not be empty."""
        phases, size = self.phases, len(self.phases)
        whole, left = divmod(blocks, self.count)  # each sequence needs one block for every `size` tokens
        tokens, place = whole * size, self.together.clock % size
        while (left := left - phases[place]) >= 0:
            tokens += 1
            place = place + 1 if place + 1 < size else 0
        return tokens


def blocks_between(phases: Sequence[int], count: int, clock: int, tokens: int) -> int:
    """New KV blocks that `count` sequences need while the clock goes on by `tokens` [count].

    Args:
        phases: sequences by the clock, modulo the block size, at which they need a new block.
        count: their sum.
    """
    size = len(phases)
    if tokens == 1:
        return phases[clock % size]
    whole, part = divmod(tokens, size)
    found = whole * count
    if part:
        first = clock % size
        last = first + part
        found += sum(phases[first:last])
        if last > size:
            found += sum(phases[: last - size])
    return found
