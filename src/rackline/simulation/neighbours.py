"""Passes of an engine that computes only sequences of neighbouring slots together, as llama.cpp does.

Where each sequence has a cache of its own, `llama_decode` splits a batch into passes, and each of them reads the
weights (`llama_batch_allocr::split_equal`, sequential): a pass takes the sequences of neighbouring slots, in the order
of the batch, and as many tokens of each as the one with the fewest has left. A step of two sequences in slots 0 and 2
is two passes; a prompt beside a sequence that decodes is a pass with one token of each, and one with its rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Chunk, Clock, Line
from rackline.simulation.decoding import DecodingBatch, Slots


def equal_passes(slots: Sequence[int], tokens: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """The passes of a batch: which of its sequences, by their places, and how many tokens of each.

    Args:
        slots: of the sequences, in the order of the batch.
        tokens: new ones of each [tokens].

    >>> list(equal_passes([0, 2, 1], [1, 1, 100]))
    [([0, 2], 1), ([1], 1), ([2], 99)]
    """
    left = list(tokens)
    while any(left):
        run: list[int] = []
        for place, slot in enumerate(slots):
            if left[place] and (not run or slot == slots[run[-1]] + 1):
                run.append(place)
        count = min(left[place] for place in run)
        for place in run:
            left[place] -= count
        yield run, count


def line_of_runs(clock: Clock, batch: DecodingBatch, slots: Slots) -> Line | None:
    """The decode step as a linear function of the longest context, all runs together; None where it is not linear."""
    now_s = slope = 0.0
    room = inf  # tokens by which contexts may grow before a run changes its slope
    for contexts in _runs(batch, slots):
        count, kv_tokens = len(contexts), sum(contexts)
        line = clock.line(count, count * clock.verified, kv_tokens)
        if line is None or kv_tokens < line.from_kv or min(contexts) < line.from_context:
            return None
        room = min(room, (line.to_kv - kv_tokens) / count)
        now_s += line.base_s + line.per_kv_s * kv_tokens + line.per_longest_s * max(contexts)
        slope += line.per_kv_s * count + line.per_longest_s
    return Line(now_s - slope * batch.longest_context, 0.0, slope, to_kv=batch.kv_tokens + room * batch.count)


def steps_of_runs(clock: Clock, batch: DecodingBatch, slots: Slots, grown: Array) -> Array:
    """Decode steps, all runs one after the other [s], in the shape of `grown`: the tokens gained before each."""
    seconds = np.zeros(np.shape(grown))
    for contexts in _runs(batch, slots):
        seconds = seconds + clock.steps(np.array(contexts, dtype=float), grown, len(contexts) * clock.verified)
    return seconds


def prompts_of_runs(
    clock: Clock, batch: DecodingBatch, slots: Slots, prompts: Sequence[tuple[int, int, int]], *, decodes: bool
) -> float:
    """A batch with prompts, all of its passes one after the other [s].

    Args:
        clock: time of a pass.
        batch: sequences that decode.
        slots: of all requests.
        prompts: (request, new tokens, tokens before them).
        decodes: whether the sequences that decode take part.
    """
    decoding = sorted((slots.of[one], 1, base + batch.clock) for one, base in batch.base.items()) if decodes else []
    entries = [*decoding, *sorted((slots.of[one], new, before) for one, new, before in prompts)]
    cached = [before for _, _, before in entries]
    seconds = 0.0
    for run, count in equal_passes([slot for slot, _, _ in entries], [new for _, new, _ in entries]):
        total = float(count * len(run))
        if count == 1:
            contexts = np.array([max(cached[place], 1) for place in run], dtype=float)
            seconds += float(clock.steps(contexts, np.zeros(1), total)[0])
        else:
            seconds += clock.prompts(0, 0.0, 0.0, [Chunk(count, cached[place]) for place in run], total, 0.0)
        for place in run:
            cached[place] += count
    return seconds


def _runs(batch: DecodingBatch, slots: Slots) -> list[list[int]]:
    """Contexts of the decoding sequences, by runs of neighbouring slots [tokens]."""
    found: list[list[int]] = []
    last = -2
    for slot, base in sorted((slots.of[request], base) for request, base in batch.base.items()):
        if slot == last + 1:
            found[-1].append(base + batch.clock)
        else:
            found.append([base + batch.clock])
        last = slot
    return found
