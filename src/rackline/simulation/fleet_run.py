"""What a run of a fleet was: latencies by window, replicas over time, chip-seconds, requests that were lost."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.classes import Slo
from rackline.simulation.outcomes import ClassData, Outcome, at_percentile
from rackline.simulation.statistics import PERCENTILES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolRun:
    """One pool of a run.

    Args:
        chips: of a replica [count].
        spans_s: when each replica was begun, was ready, and ended (infinite: not in the run) [s], (replicas, 3).
        samples: time [s], replicas that are ready, start and drain, requests that run and wait, share of KV blocks in
            use, each time the policy was asked, (times, 7).
    """

    chips: int
    spans_s: Array
    samples: Array

    def chip_seconds(self, seconds: float) -> float:
        """Chips that are paid for, from the decision to start a replica to its end [chip s].

        Args:
            seconds: end of what is paid [s].
        """
        ends = np.minimum(self.spans_s[:, 2], seconds)
        return self.chips * float(np.maximum(ends - np.minimum(self.spans_s[:, 0], seconds), 0.0).sum())

    def serving(self, times_s: Array, place: int = 1) -> Array:
        """Replicas that are there at some times [count], same shape.

        Args:
            place: from when on: 0 for the decision, 1 for ready.
        """
        begun, ended = np.sort(self.spans_s[:, place]), np.sort(self.spans_s[:, 2])
        # a replica that ended before it was ready counts at neither time
        never = np.sort(np.where(self.spans_s[:, 2] < self.spans_s[:, place], self.spans_s[:, place], inf))
        wrong = np.sort(np.where(self.spans_s[:, 2] < self.spans_s[:, place], self.spans_s[:, 2], inf))
        counted = np.searchsorted(begun, times_s, side="right") - np.searchsorted(ended, times_s, side="right")
        return counted - np.searchsorted(never, times_s, side="right") + np.searchsorted(wrong, times_s, side="right")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """Requests that arrived in one window of time, and what served them.

    Args:
        start_s, end_s: of the window [s].
        requests: that arrived [count].
        rate_per_s: of them [requests/s].
        attained: share of them that were answered within the limits; None without limits or requests [1].
        ttft_p50_s, ttft_p99_s, tpot_p50_s, tpot_p99_s: of them [s].
        replicas: mean number that served, of all pools [count].
        waiting: mean requests in queues, as policies saw them [requests].
        kv_use: mean share of KV blocks in use, likewise [1].
    """

    start_s: float
    end_s: float
    requests: int
    rate_per_s: float
    attained: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    replicas: float
    waiting: float | None
    kv_use: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetRun(Outcome):
    """A run of a fleet.

    Args:
        retries: how often a request was sent again because its replica failed [count], (n,).
        pools: the pool for prompts, if there is one, then the one that decodes.
        seconds: that are paid for [s].
        spare_chips: that are paid for beside those of replicas [count].
        failed_replicas: that were lost with their hosts [count].
        lost_requests: that were sent again [count].
    """

    columns: ClassVar = (*Outcome.columns, "retries")

    retries: Array
    pools: tuple[PoolRun, ...]
    seconds: float
    spare_chips: int
    failed_replicas: int
    lost_requests: int

    @property
    def count(self) -> int:
        """Requests of the run [requests]."""
        return len(self.requests)

    @property
    def answered(self) -> int:
        """Requests with all their tokens [requests]."""
        return int(self.finished.sum())

    @property
    def unanswered(self) -> int:
        """Requests without, which were not refused [requests]."""
        return self.count - self.answered - self.refused_requests

    @property
    def refused_requests(self) -> int:
        """Requests that were refused [requests]."""
        return int(self.refused.sum())

    def by_class(self) -> list[ClassData]:
        """What became of each class of requests; empty where there are none."""
        return self.classes_among(np.arange(self.count), self.seconds)

    @property
    def chip_seconds(self) -> float:
        """Chips that are paid for [chip s]."""
        return sum(pool.chip_seconds(self.seconds) for pool in self.pools) + self.spare_chips * self.seconds

    @property
    def chip_hours(self) -> float:
        """Time of all chips [chip h]."""
        return self.chip_seconds / 3600.0

    @property
    def mean_replicas(self) -> float:
        """Replicas that are paid for on average, of all pools [count]."""
        return sum(pool.chip_seconds(self.seconds) / pool.chips for pool in self.pools) / self.seconds

    @property
    def most_replicas(self) -> int:
        """Most replicas that are paid for at a time, of all pools [count]."""
        times = np.concatenate([pool.spans_s[:, 0] for pool in self.pools])
        return int(np.sum([pool.serving(times, place=0) for pool in self.pools], axis=0).max())

    def attained(self, slo: Slo) -> float:
        """Share of the requests that were answered within all limits [1]."""
        return float(self.good(slo).mean())

    def holds(self, slo: Slo) -> bool:
        """Whether each limit is met at its percentile, over the whole run; an unanswered request is late."""
        every = np.arange(self.count)
        return all(
            at_percentile(self.counted(name, every), slo.percentile(name)) <= limit
            for name, limit in slo.limits().items()
        )

    @property
    def online(self) -> FleetRun:
        """The same run without the requests of offline classes."""
        offline = self.requests.offline
        return self if offline is None else self.of(~offline)

    def windows(self, seconds: float, slo: Slo | None) -> tuple[WindowRow, ...]:
        """The run by windows of time.

        Args:
            seconds: of a window [s].
            slo: limits, if there are any.
        """
        number = max(int(np.ceil(self.seconds / seconds - 1e-9)), 1)
        edges = np.minimum(np.arange(number + 1) * seconds, self.seconds)
        order = np.argsort(self.arrival_s, kind="stable")
        places = np.searchsorted(self.arrival_s[order], edges)
        places[-1] = len(order)
        good = self.good(slo) if slo is not None and slo.limits() else None
        grid = np.arange(0.5, 20.0) / 20.0  # within a window
        rows: list[WindowRow] = []
        for index in range(number):
            mine = order[places[index] : places[index + 1]]
            start, end = float(edges[index]), float(edges[index + 1])
            times = start + (end - start) * grid
            seen = [pool.samples[(pool.samples[:, 0] >= start) & (pool.samples[:, 0] < end)] for pool in self.pools]
            rows.append(
                WindowRow(
                    start_s=start,
                    end_s=end,
                    requests=len(mine),
                    rate_per_s=len(mine) / max(end - start, 1e-9),
                    attained=None if good is None or not len(mine) else float(good[mine].mean()),
                    ttft_p50_s=_at(self.ttft_s[mine], PERCENTILES[0]),
                    ttft_p99_s=_at(self.ttft_s[mine], PERCENTILES[-1]),
                    tpot_p50_s=_at(self.tpot_s[mine], PERCENTILES[0]),
                    tpot_p99_s=_at(self.tpot_s[mine], PERCENTILES[-1]),
                    replicas=float(sum(pool.serving(times).mean() for pool in self.pools)),
                    waiting=float(sum(one[:, 5].mean() for one in seen)) if all(map(len, seen)) else None,
                    kv_use=float(max(one[:, 6].mean() for one in seen)) if all(map(len, seen)) else None,
                )
            )
        return tuple(rows)


def _at(values: Array, percentile: float) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, percentile)) if len(known) else None
