"""Decode steps between two events: in closed form, or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Clock, Line
from rackline.simulation.decoding import DecodingBatch
from rackline.simulation.neighbours import line_of_runs, steps_of_runs
from rackline.simulation.rank import Rank


def step_s(clock: Clock, batch: DecodingBatch, group_tokens: float) -> float:
    """One decode step of a rank [s]."""
    line = line_of(clock, batch, group_tokens)
    if line is not None:
        return line.base_s + line.per_kv_s * batch.kv_tokens + line.per_longest_s * batch.longest_context
    return float(_steps(clock, batch, np.zeros(1), group_tokens)[0])


def line_of(clock: Clock, batch: DecodingBatch, group_tokens: float) -> Line | None:
    """The decode step of a rank as a linear function; None where it is not linear."""
    if batch.slots is not None:
        return line_of_runs(clock, batch, batch.slots)
    line = clock.line(batch.count, group_tokens)
    if line is None or batch.kv_tokens < line.from_kv or batch.shortest_context < line.from_context:
        return None
    return line


def _steps(clock: Clock, batch: DecodingBatch, grown: Array, group_tokens: float) -> Array:
    """Decode steps one by one [s], in the shape of `grown`: the tokens gained before each."""
    if batch.slots is not None:
        return steps_of_runs(clock, batch, batch.slots, grown)
    return clock.steps(batch.contexts(), grown, group_tokens)


def common_line(clock: Clock, groups: Sequence[Sequence[Rank]], most: int) -> tuple[float, float] | None:
    """(first step [s], growth per step [s]) if one rank is the slowest in all `most` steps; else None."""
    found: list[tuple[float, float, float]] = []  # first step, last step, growth per step of each rank
    for group in groups:
        tokens = sum(rank.decoding.count for rank in group) * clock.verified if len(group) > 1 else 0
        for rank in group:
            batch, n = rank.decoding, rank.decoding.count
            if not n:
                continue
            line = line_of(clock, batch, tokens or n * clock.verified)
            if line is None:
                return None
            first = line.base_s + line.per_kv_s * batch.kv_tokens + line.per_longest_s * batch.longest_context
            slope = line.per_kv_s * n + line.per_longest_s
            found.append((first, first + slope * (most - 1), slope))
    if not found:
        return None
    first, last, slope = found[0]
    if len(found) > 1:
        first, last, slope = max(found)
        if any(last < other[1] for other in found):
            return None
    return first, slope


def durations_of(clock: Clock, groups: Sequence[Sequence[Rank]], most: int) -> Array:
    """Duration of each of `most` steps, that of the slowest rank [s], (most,)."""
    slowest = np.zeros(most)
    for group in groups:
        tokens = sum(rank.decoding.count for rank in group) * clock.verified
        for batch in _may_be_slowest(clock, [rank.decoding for rank in group if rank.decoding.count], tokens):
            grown = np.arange(most, dtype=float)
            if clock.tokens_per_step != 1.0:
                grown = np.floor((batch.steps + grown) * clock.tokens_per_step + 1e-9) - batch.clock
            line = line_of(clock, batch, tokens)
            if line is not None:
                kv = batch.kv_tokens + batch.count * grown
                mine = line.base_s + line.per_kv_s * kv + line.per_longest_s * (batch.longest_context + grown)
            else:
                mine = _steps(clock, batch, grown, tokens)
            np.maximum(slowest, mine, out=slowest)
    return slowest


def _may_be_slowest(clock: Clock, batches: list[DecodingBatch], tokens: float) -> list[DecodingBatch]:
    """Those that no other exceeds in sequences, cached tokens and longest context; only they can take longest.

    With drafts a batch gains whole tokens at steps of its own, so the other must also be as far towards the next one.

    All of them where attention reads some contexts in part, so that cached tokens do not tell what is read, and where
    slots split a step.
    """
    if len(batches) < 2 or batches[0].slots is not None:
        return batches
    for batch in batches:
        line = clock.line(batch.count, tokens)
        if line is None or batch.shortest_context < line.from_context:
            return batches
    kept: list[DecodingBatch] = []
    for batch in sorted(batches, key=lambda one: (one.count, one.kv_tokens, one.longest_context), reverse=True):
        if not any(
            other.kv_tokens >= batch.kv_tokens
            and other.longest_context >= batch.longest_context
            and (clock.tokens_per_step == 1.0 or _partial_tokens(other, clock) >= _partial_tokens(batch, clock))
            for other in kept
        ):
            kept.append(batch)
    return kept


def _partial_tokens(batch: DecodingBatch, clock: Clock) -> float:
    """Share of a token that a batch has gained beyond whole ones, and all that it has yet to be given [tokens]."""
    return batch.steps * clock.tokens_per_step - batch.clock


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


def steps_with_room(rank: Rank, most: int, tokens_per_step: float) -> int:
    """Steps that fit into the free blocks, at most `most` [count]."""
    batch, room = rank.decoding, rank.blocks.free
    if rank.final or batch.count * (most * ceil(tokens_per_step) // batch.block_size + 1) <= room:
        return most

    def fits(steps: int) -> bool:
        return rank.needed(batch.tokens_of(steps, tokens_per_step)) <= room

    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
