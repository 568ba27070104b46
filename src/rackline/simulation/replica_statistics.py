"""Running statistics of a replica: inter-token latency, occupancy, samples over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.rank import Rank

GAPS_PER_E = 200.0  # bins of the histogram of inter-token times per factor of e: half a percent wide
_SAMPLES = 4096


class PassRecord(NamedTuple):
    """Consecutive passes of one kind, for traces: start, duration, number, decoding sequences, prompt tokens."""

    start_s: float
    duration_s: float
    passes: int
    sequences: int
    prompt_tokens: int


class ReplicaStatistics:
    """Running counts and times of one replica."""

    def __init__(self) -> None:
        self.steps = self.passes = 0
        self.busy_s = self.sequence_s = self.used_s = 0.0
        self.prompt_pass_s = self.prompt_rank_s = 0.0  # passes with prompts; times the share of ranks with prompts
        self.gaps: dict[int, int] = {}
        self.waited_s = 0.0  # since the last decode step
        self.joined: list[tuple[float, int]] = []
        self.samples: list[tuple[float, int, int, int]] = []
        self.next_sample = self.sample_s = 0.0

    def account(self, ranks: Sequence[Rank], seconds: float, steps: int, used_more: float) -> None:
        n = used = 0
        for rank in ranks:
            n += rank.decoding.count
            used += rank.blocks.used
        self.steps += steps
        self.passes += 1
        self.busy_s += seconds
        self.sequence_s += n * seconds
        self.used_s += (used + used_more) * seconds

    def prompts(self, by_rank: Sequence[Sequence[object]], seconds: float) -> None:
        """Count a pass with prompts, and the share of ranks that had some."""
        self.prompt_pass_s += seconds
        self.prompt_rank_s += seconds * sum(1 for chunks in by_rank if chunks) / len(by_rank)

    def gap_of(self, seconds: float, count: int) -> None:
        place = int(log(seconds) * GAPS_PER_E) if seconds > 0 else -10000
        self.gaps[place] = self.gaps.get(place, 0) + count

    def gap(self, count: int, seconds: float, end: float) -> None:
        """Each decoding sequence gets a token; some joined while prompts had passes of their own."""
        if self.waited_s:
            for time_s, joined in self.joined:
                joined = min(joined, count)
                self.gap_of(end - time_s, joined)
                count -= joined
            seconds += self.waited_s
            self.waited_s, self.joined = 0.0, []
        if count:
            self.gap_of(seconds, count)

    def gaps_of(self, n: int, start: float, first: float, slope: float, steps: int, durations: Array | None) -> None:
        self.gap(n, first, start + first)
        if steps > 1:
            if durations is None:
                self.gap_of(first + 0.5 * slope * steps, n * (steps - 1))
            else:
                for value, count in zip(*np.unique(durations[1:], return_counts=True), strict=True):
                    self.gap_of(float(value), n * int(count))

    def sample(self, ranks: Sequence[Rank], now: float) -> None:
        n = waiting = used = 0
        for rank in ranks:
            n += rank.decoding.count
            waiting += len(rank.waiting) + len(rank.prefilling)
            used += rank.blocks.used
        self.samples.append((now, n, waiting, used))
        if len(self.samples) >= _SAMPLES:
            self.samples = self.samples[::2]
            span = self.samples[-1][0] - self.samples[0][0]
            self.sample_s = 2.0 * span / _SAMPLES
        self.next_sample = now + self.sample_s
