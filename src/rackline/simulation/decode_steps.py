"""Decode steps between two events: in closed form where they grow linearly, else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Chunk, Clock, Line
from rackline.simulation.decoding import DecodingBatch, Slots

_MOST_AT_ONCE = 256  # steps that are evaluated as one array
_FEW = 8  # steps up to which scalars are faster


class Pace(NamedTuple):
    """Decode steps: how many, all of them [s], the first [s], growth per step [s], and each of them [s].

    There are no single durations where the growth tells all of them.
    """

    steps: int
    seconds: float
    first_s: float
    slope_s: float
    durations: Sequence[float]


def step_s(clock: Clock, batch: DecodingBatch, group_tokens: float) -> float:
    """One decode step of a rank [s]."""
    return _first_s(clock, batch, group_tokens, _line_of(clock, batch, group_tokens))


def is_straight(clock: Clock, batch: DecodingBatch) -> bool:
    """Whether the sums over a batch tell what its attention reads."""
    return batch.slots is None and batch.shortest_context >= clock.straight_from


def may_be_slowest(batches: Sequence[DecodingBatch]) -> list[DecodingBatch]:
    """Batches that no other exceeds in sequences, cached tokens and longest context; only they can take longest."""
    found: list[DecodingBatch] = []
    for batch in sorted(batches, key=lambda one: one.kv_tokens, reverse=True):
        count, longest = batch.count, batch.longest
        for other in found:
            if count <= other.count and longest <= other.longest:
                break
        else:
            if count:
                found.append(batch)
    return found


def may_take_longest(clock: Clock, batches: Sequence[DecodingBatch], size: int) -> list[tuple[DecodingBatch, float]]:
    """Batches that may take longest in the next steps, each with the tokens of the ranks that share its experts.

    All of them where attention reads some contexts in part, so that cached tokens do not tell what is read.

    Args:
        batches: of all ranks of a replica.
        size: ranks that share experts [count].
    """
    if len(batches) == 1:
        return [(batches[0], batches[0].count * clock.verified)]
    found: list[tuple[DecodingBatch, float]] = []
    for first in range(0, len(batches), size if size > 1 else len(batches)):
        group = [batch for batch in batches[first : first + size if size > 1 else None] if batch.count]
        tokens = sum([batch.count for batch in group]) * clock.verified
        by_slots = any(batch.slots is not None for batch in group)
        if not (clock.straight_from or by_slots) or all(is_straight(clock, one) for one in group):
            group = may_be_slowest(group)
        found += [(batch, tokens if size > 1 else batch.count * clock.verified) for batch in group]
    return found


def pace(
    clock: Clock, batches: Sequence[tuple[DecodingBatch, float]], most: int, room_s: float, interval_s: float
) -> Pace:
    """The next decode steps, each as long as that of its slowest rank: those that start in time, at most `most`.

    Args:
        batches: all that may be the slowest, each with the tokens of the ranks that share experts with it.
        room_s: time within which steps may start; the first always may [s].
        interval_s: steps take whole multiples of this time; 0 for any time [s].
    """
    lines = [_line_of(clock, batch, tokens) for batch, tokens in batches]
    firsts = [_first_s(clock, batch, tokens, line) for (batch, tokens), line in zip(batches, lines, strict=True)]
    first, steps = _rounded(max(firsts), interval_s), most
    if first >= room_s:
        steps = 1
    elif first > 0 and room_s < steps * first:
        steps = min(steps, ceil(room_s / first))  # they do not get shorter, so that no more start in time
    if steps == 1:
        return Pace(1, first, first, 0.0, ())
    together = batches[0][0].together
    ahead = [_tokens_to_bend(clock, batch, tokens, line) for (batch, tokens), line in zip(batches, lines, strict=True)]
    known = [tokens for tokens in ahead if tokens is not None]
    if known:
        steps = min(steps, together.steps_within(int(min(min(known), 1e9))) + 1)
    is_linear = len(known) == len(ahead)
    if not is_linear:
        steps = min(steps, _MOST_AT_ONCE)
    slopes = [
        _slope_s(clock, batch, tokens, line, seconds, together.tokens_of(steps - 1)) if bend is not None else None
        for (batch, tokens), line, seconds, bend in zip(batches, lines, firsts, ahead, strict=True)
    ]
    if is_linear and together.tokens_per_step == 1.0 and not interval_s:
        growth = [slope or 0.0 for slope in slopes]
        slowest = max(range(len(firsts)), key=lambda place: firsts[place] + growth[place] * (steps - 1))
        if firsts[slowest] >= first:
            slope = growth[slowest]
            if steps > 1 and room_s < steps * (first + slope * (steps - 1)):
                steps = steps_before(room_s, first, slope, steps)
            return Pace(steps, steps * first + slope * (0.5 * steps * (steps - 1)), first, slope, ())
    gained = together.gained(np.arange(min(steps, _MOST_AT_ONCE), dtype=float))
    durations = np.zeros(len(gained))
    for (batch, tokens), seconds, slope in zip(batches, firsts, slopes, strict=True):
        each = _each(clock, batch, gained, tokens) if slope is None else seconds + slope * gained
        np.maximum(durations, each, out=durations)
    return _until(durations.tolist(), room_s, interval_s)


def _until(durations: list[float], room_s: float, interval_s: float) -> Pace:
    """The pace of those steps, from the first, that start before the room is used up."""
    durations = [_rounded(seconds, interval_s) for seconds in durations] if interval_s else durations
    end = 0.0
    for index, end in enumerate(accumulate(durations)):
        if end >= room_s:
            durations = durations[: index + 1]
            break
    return Pace(len(durations), end, durations[0], 0.0, durations)


def _rounded(seconds: float, interval_s: float) -> float:
    return ceil(seconds / interval_s - 1e-9) * interval_s if interval_s else seconds


def _line_of(clock: Clock, batch: DecodingBatch, group_tokens: float) -> Line | None:
    """The decode step of a rank that shares its experts with no other; None where it is not linear."""
    if batch.slots is not None:
        return line_of_runs(clock, batch, batch.slots)
    if group_tokens != batch.count * clock.verified:
        return None  # there are too many numbers of tokens for a line each
    kv = batch.kv_tokens
    line = clock.line(batch.count, group_tokens, kv)
    return None if line is None or kv < line.from_kv or batch.shortest_context < line.from_context else line


def _first_s(clock: Clock, batch: DecodingBatch, group_tokens: float, line: Line | None) -> float:
    if line is not None:
        return line.base_s + line.per_kv_s * batch.kv_tokens + line.per_longest_s * batch.longest_context
    if is_straight(clock, batch):
        return float(clock.straight(batch.count, batch.kv_tokens, batch.longest_context, group_tokens))
    return float(_each(clock, batch, np.zeros(1), group_tokens)[0])


def _tokens_to_bend(clock: Clock, batch: DecodingBatch, group_tokens: float, line: Line | None) -> float | None:
    """Tokens by which contexts may grow while the step grows linearly [tokens]; None where it does not."""
    kv = batch.kv_tokens
    if line is not None:
        return (line.to_kv - kv) / batch.count
    bends = clock.bends(batch.count, group_tokens) if is_straight(clock, batch) else None
    return None if bends is None else (min([bend for bend in bends if bend > kv], default=inf) - kv) / batch.count


def _slope_s(
    clock: Clock, batch: DecodingBatch, group_tokens: float, line: Line | None, first_s: float, ahead: int
) -> float:
    """Growth of a step per token of context [s/token]."""
    if line is not None:
        return line.per_kv_s * batch.count + line.per_longest_s
    if not ahead:
        return 0.0
    kv, longest = batch.kv_tokens + batch.count * ahead, batch.longest_context + ahead
    return (float(clock.straight(batch.count, kv, longest, group_tokens)) - first_s) / ahead


def _each(clock: Clock, batch: DecodingBatch, gained: Array, group_tokens: float) -> Array:
    """Decode steps one by one [s], in the shape of `gained`: the tokens gained before each."""
    if batch.slots is not None:
        return steps_of_runs(clock, batch, batch.slots, gained)
    if is_straight(clock, batch):
        if len(gained) <= _FEW:
            grown = [(batch.kv_tokens + batch.count * more, batch.longest_context + more) for more in gained.tolist()]
            return np.array([clock.straight(batch.count, kv, longest, group_tokens) for kv, longest in grown])
        kv, longest = batch.kv_tokens + batch.count * gained, batch.longest_context + gained
        return np.broadcast_to(clock.straight(batch.count, kv, longest, group_tokens), gained.shape)
    return clock.steps(batch.contexts(), gained, group_tokens)


def steps_before(room_s: float, first: float, slope: float, most: int) -> int:
    """Steps that start within `room_s`, where step k takes first + k · slope; 1 to `most` [count]."""
    half = first - 0.5 * slope
    if slope > 0:
        found = ceil(2.0 * room_s / (half + sqrt(half * half + 2.0 * slope * room_s)))
    else:
        found = ceil(room_s / first) if first > 0 else most
    found = min(max(found, 1), most)
    while found > 1 and (found - 1) * half + 0.5 * slope * (found - 1) ** 2 >= room_s:
        found -= 1
    while found < most and found * half + 0.5 * slope * found**2 < room_s:
        found += 1
    return found


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
    decoding = (
        sorted((slots.of[one], 1, base + batch.together.clock) for one, base in batch.base.items()) if decodes else []
    )
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
            found[-1].append(base + batch.together.clock)
        else:
            found.append([base + batch.together.clock])
        last = slot
    return found
