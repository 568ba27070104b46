"""Running statistics of a replica: inter-token latency, occupancy, samples over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np

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

    def account(self, seconds: float, steps: int, sequences: int, used: float) -> None:
        """Count a pass, or steps without an event in between.

        Args:
            sequences, used: decoding sequences and KV blocks in use, meanwhile [count].
        """
        self.steps += steps
        self.passes += 1
        self.busy_s += seconds
        self.sequence_s += sequences * seconds
        self.used_s += used * seconds

    def prompts(self, seconds: float, share: float) -> None:
        """Count a pass with prompts on a share of the ranks."""
        self.prompt_pass_s += seconds
        self.prompt_rank_s += seconds * share

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

    def gaps_of(self, n: int, start: float, first: float, slope: float, steps: int, durations: Sequence[float]) -> None:
        """Count the inter-token times of decode steps, from their durations or, if there are none, from their slope."""
        self.gap(n, first, start + first)
        if steps == 1:
            return
        if not durations:
            self.gap_of(first + 0.5 * slope * steps, n * (steps - 1))
        elif steps < 8 or min(durations) <= 0.0:
            for value in durations[1:]:
                self.gap_of(value, n)
        else:
            places = (np.log(durations[1:]) * GAPS_PER_E).astype(int)
            for place, count in zip(*np.unique(places, return_counts=True), strict=True):
                self.gaps[int(place)] = self.gaps.get(int(place), 0) + n * int(count)

    def sample(self, now: float, sequences: int, waiting: int, used: int) -> None:
        """Record how full the replica is; when there are too many samples, drop every second."""
        self.samples.append((now, sequences, waiting, used))
        if len(self.samples) >= _SAMPLES:
            self.samples = self.samples[::2]
            span = self.samples[-1][0] - self.samples[0][0]
            self.sample_s = 2.0 * span / _SAMPLES
        self.next_sample = now + self.sample_s
