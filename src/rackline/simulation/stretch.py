"""Decode steps between two events: in closed form, or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.clock import Clock, Line
from rackline.simulation.rank import Rank
from rackline.simulation.rank_spec import token_clock


def step_s(clock: Clock, rank: Rank, group_tokens: float) -> float:
    """One decode step of a rank [s]."""
    line = line_of(clock, rank, group_tokens)
    if line is not None:
        return line.base_s + line.per_kv_s * rank.kv + line.per_longest_s * (rank.longest + rank.clock)
    return float(clock.steps(_contexts(rank), np.zeros(1), group_tokens)[0])


def line_of(clock: Clock, rank: Rank, group_tokens: float) -> Line | None:
    """The line of a rank's decode step, None where it does not hold."""
    line = clock.line(rank.n, group_tokens)
    if line is None or rank.kv < line.from_kv or rank.shortest + rank.clock < line.from_context:
        return None
    return line


def _contexts(rank: Rank) -> Array:
    return np.fromiter(rank.base.values(), float, len(rank.base)) + rank.clock


def common_line(clock: Clock, groups: Sequence[Sequence[Rank]], most: int) -> tuple[float, float] | None:
    """(first step, growth a step) if one rank is the slowest in all `most` steps."""
    found: list[tuple[float, float, float]] = []  # first step, last step, growth of each rank
    for group in groups:
        tokens = sum(rank.n for rank in group) * clock.verified if len(group) > 1 else 0
        for rank in group:
            n = rank.n
            if not n:
                continue
            line = line_of(clock, rank, tokens or n * clock.verified)
            if line is None:
                return None
            first = line.base_s + line.per_kv_s * rank.kv + line.per_longest_s * (rank.longest + rank.clock)
            slope = line.per_kv_s * n + line.per_longest_s
            found.append((first, first + slope * (most - 1), slope))
    if not found:
        return None
    first, last, slope = found[0] if len(found) == 1 else max(found)
    return (first, slope) if all(last >= other[1] for other in found) else None


def durations_of(clock: Clock, groups: Sequence[Sequence[Rank]], most: int) -> Array:
    """Every step by itself, the slowest rank of each."""
    slowest = np.zeros(most)
    for group in groups:
        tokens = sum(rank.n for rank in group) * clock.verified
        for rank in group:
            if not rank.n:
                continue
            grown = np.arange(most, dtype=float)
            if clock.tokens_per_step != 1.0:
                grown = np.floor((rank.steps + grown) * clock.tokens_per_step + 1e-9) - rank.clock
            line = line_of(clock, rank, tokens)
            if line is not None:
                kv = rank.kv + rank.n * grown
                mine = line.base_s + line.per_kv_s * kv + line.per_longest_s * (rank.longest + rank.clock + grown)
            else:
                mine = clock.steps(_contexts(rank), grown, tokens)
            np.maximum(slowest, mine, out=slowest)
    return slowest


def steps_before(room_s: float, first: float, slope: float, most: int) -> int:
    """Steps that start before `room_s` have passed, when step k takes first + k · slope; 1 to `most`."""
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
    room = rank.total - rank.used
    if rank.final or rank.n * (most * ceil(tokens_per_step) // rank.bs + 1) <= room:
        return most

    def fits(steps: int) -> bool:
        return rank.needed(token_clock(rank.steps + steps, tokens_per_step) - rank.clock) <= room

    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
