"""Decode steps between two events: in closed form where they grow linearly, else one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Clock, Line
from rackline.simulation.decoding import DecodingBatch
from rackline.simulation.neighbours import line_of_runs, steps_of_runs

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
    """Those of some steps that start in time."""
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
