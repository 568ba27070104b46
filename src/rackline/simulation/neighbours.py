"""Passes of an engine that computes only sequences of neighbouring slots together, as llama.cpp does.

Where each sequence has a cache of its own, `llama_decode` splits a batch into passes over runs of neighbouring slots,
and each of them reads the weights (`llama_batch_allocr::split_equal`, sequential). A slot is taken when it has been
free for longest, so that after some requests the slots in use are any: a batch has the runs that as many random slots
have on average. A prompt is no longer than its first token beside others, and goes through a pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Chunk, Line, TableClock


@cache
def mean_runs(sequences: int, slots: int) -> tuple[tuple[int, float], ...]:
    """Runs of neighbours among random slots: each length with the mean number of such runs.

    Args:
        sequences: slots in use [count].
        slots: of them all [count].

    >>> mean_runs(2, 8)
    ((1, 1.5), (2, 0.25))
    >>> mean_runs(8, 8)
    ((8, 1.0),)
    """
    if sequences >= slots:
        return ((sequences, 1.0),)
    found: list[tuple[int, float]] = []
    for length in range(1, sequences + 1):
        inside = (slots - length - 1) * comb(slots - length - 2, sequences - length) if length < slots - 1 else 0
        at_an_end = 2 * comb(slots - length - 1, sequences - length)
        if inside + at_an_end:
            found.append((length, (inside + at_an_end) / comb(slots, sequences)))
    return tuple(found)


class NeighbourClock(TableClock):
    """A clock whose passes are split into runs of neighbouring slots."""

    def _runs(self, sequences: int) -> tuple[tuple[int, float], ...]:
        return mean_runs(sequences, max(self.engine.stack.max_num_seqs, sequences))

    def line(self, sequences: int, group_tokens: float) -> Line | None:
        """The runs one after the other, each with its share of the cached tokens."""
        base_s = per_kv_s = per_longest_s = from_kv = from_context = 0.0
        for length, often in self._runs(sequences):
            share = length / sequences
            one = super().line(length, group_tokens * share)
            if one is None:
                return None
            base_s += often * one.base_s
            per_kv_s += often * share * one.per_kv_s
            per_longest_s += often * one.per_longest_s
            from_kv, from_context = max(from_kv, one.from_kv / share), max(from_context, one.from_context)
        return Line(base_s, per_kv_s, per_longest_s, from_kv, from_context)

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        """The runs one after the other, each of sequences of the mean context."""
        sequences, mean = len(contexts), float(contexts.mean())
        seconds = np.zeros(np.shape(advance))
        for length, often in self._runs(sequences):
            alike = np.full(length, mean)
            seconds = seconds + often * super().steps(alike, advance, group_tokens * length / sequences)
        return seconds

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
    ) -> float:
        """The runs of those that decode, then each prompt by itself."""
        each = (super(NeighbourClock, self).prompts(0, 0.0, 0.0, [one], float(one.tokens), 0.0) for one in chunks)
        return alone_s + sum(each)
