"""The decoding sequences of a rank.

All sequences gain the same number of tokens in a step, so one clock serves all: a sequence stores `context - clock`,
finishes when the clock reaches its end, and needs a new block whenever the clock passes its phase modulo the block
size. A step is then one addition, for any number of sequences.
"""

from __future__ import annotations

import heapq
from math import ceil

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.extremes import Extremes
from rackline.simulation.rank_spec import token_clock
from rackline.simulation.slots import Slots


class DecodingBatch:
    """Sequences that gain the same number of tokens in each step.

    Args:
        block_size: tokens per KV block [tokens].
        slots: of all requests, where only neighbours share a pass; None else.
    """

    __slots__ = (
        "base", "block_size", "clock", "count", "end_at", "ends", "extremes", "longest", "phases", "shortest", "slots",
        "steps", "sum_base",
    )  # fmt: skip

    def __init__(self, block_size: int, slots: Slots | None = None) -> None:
        self.block_size, self.slots = block_size, slots
        self.clock = self.steps = self.count = self.sum_base = 0
        self.base: dict[int, int] = {}  # request → context - clock
        self.extremes = Extremes(self.base)
        self.longest = self.shortest = 0  # largest and smallest base
        self.end_at: dict[int, int] = {}
        self.ends: list[tuple[int, int]] = []  # heap of end times; entries that `end_at` does not confirm are stale
        self.phases = [0] * block_size  # sequences by the clock, modulo the block size, at which they need a new block

    @property
    def kv_tokens(self) -> int:
        """Tokens that the sequences have cached [tokens]."""
        return self.sum_base + self.count * self.clock

    @property
    def longest_context(self) -> int:
        """Tokens that the longest sequence has cached [tokens]."""
        return self.longest + self.clock

    @property
    def shortest_context(self) -> int:
        """Tokens that the shortest sequence has cached [tokens]."""
        return self.shortest + self.clock

    def contexts(self) -> Array:
        """Tokens that each sequence has cached [tokens]."""
        return np.fromiter(self.base.values(), float, len(self.base)) + self.clock

    def exceeds(self, other: DecodingBatch) -> bool:
        """Whether this batch has at least as many sequences and cached tokens, and as long a sequence, as the other."""
        return self.count >= other.count and self.kv_tokens >= other.kv_tokens and self.longest >= other.longest

    def remaining(self, request: int) -> int:
        """Tokens that a sequence has yet to generate [tokens]."""
        return self.end_at[request] - self.clock

    def add(self, request: int, context: int, remaining: int) -> None:
        """A sequence starts to decode.

        Args:
            context: its cached tokens [tokens].
            remaining: tokens that it has yet to generate [tokens].
        """
        base = context - self.clock
        self.base[request] = base
        self.extremes.add(request, base)
        end = self.clock + remaining
        self.end_at[request] = end
        heapq.heappush(self.ends, (end, request))
        self.longest = max(self.longest, base) if self.count else base
        self.shortest = min(self.shortest, base) if self.count else base
        self.count += 1
        self.sum_base += base
        self.phases[-base % self.block_size] += 1

    def remove(self, request: int) -> int:
        """Remove a sequence; returns its cached tokens [tokens]."""
        base = self.base.pop(request)
        del self.end_at[request]
        self.count -= 1
        self.sum_base -= base
        self.phases[-base % self.block_size] -= 1
        if self.count and (base == self.longest or base == self.shortest):
            self.longest, self.shortest = self.extremes.most(), self.extremes.least()
        return base + self.clock

    def new_blocks(self, tokens: int) -> int:
        """New KV blocks needed while every sequence gains `tokens` tokens [count]."""
        if tokens == 1:
            return self.phases[self.clock % self.block_size]
        whole, part = divmod(tokens, self.block_size)
        found = whole * self.count
        if part:
            first = self.clock % self.block_size
            last = first + part
            found += sum(self.phases[first:last])
            if last > self.block_size:
                found += sum(self.phases[: last - self.block_size])
        return found

    def tokens_of(self, steps: int, tokens_per_step: float) -> int:
        """Tokens that every sequence gains in the next steps [tokens]."""
        return steps if tokens_per_step == 1.0 else token_clock(self.steps + steps, tokens_per_step) - self.clock

    def advance(self, tokens: int, steps: int) -> None:
        """Every sequence gains `tokens` tokens, over `steps` steps."""
        self.clock += tokens
        self.steps += steps

    def next_ended(self) -> int | None:
        """The next sequence that has reached its end, in the order of ends; None when there is none left."""
        ends = self.ends
        while ends and ends[0][0] <= self.clock:
            end, request = heapq.heappop(ends)
            if self.end_at.get(request) == end:
                return request
        return None

    def steps_to_end(self, tokens_per_step: float) -> int:
        """Steps until the next sequence finishes [count]; at least 1."""
        ends = self.ends
        while ends and self.end_at.get(ends[0][1]) != ends[0][0]:
            heapq.heappop(ends)
        if not ends:
            return 1 << 60
        if tokens_per_step == 1.0:
            return ends[0][0] - self.clock
        steps = max(ceil(ends[0][0] / tokens_per_step) - self.steps - 1, 1)
        while token_clock(self.steps + steps, tokens_per_step) < ends[0][0]:
            steps += 1
        return steps
