"""What became of the requests of a run, served by replicas or by a fleet: latencies, limits kept, classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, nan
from typing import ClassVar, NotRequired, Self, TypedDict

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.classes import LATENCIES, Slo
from rackline.simulation.entrance import StageData
from rackline.simulation.requests import RequestClass, Requests
from rackline.simulation.statistics import KnownSpread, known_percentiles


class Latencies(TypedDict):
    """Time to first token, time per output token and time of a request [s]."""

    ttft_s: KnownSpread
    tpot_s: KnownSpread
    e2e_s: KnownSpread


class LimitData(TypedDict):
    """One limit of a class: the latency at its percentile, and the share of all requests that kept it.

    Refused and unanswered requests keep no limit.
    """

    latency: str
    limit_s: float
    percentile: float | None
    reached_s: float
    attained: float
    holds: bool


class ClassData(Latencies):
    """Requests of one class.

    Args:
        refused_share: refused over all that came [1].
        output_tokens_per_s: of those that were answered, over the run [tokens/s].
        attained: share of all that came that kept every limit [1].
        holds: whether each limit is kept at its percentile.
    """

    name: str
    priority: int
    offline: bool
    requests: int
    finished: int
    refused: int
    refused_share: float
    preemptions: int
    output_tokens_per_s: float
    limits: list[LimitData]
    attained: NotRequired[float]
    holds: NotRequired[bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What became of requests. Times that a request did not reach are NaN.

    Args:
        requests: that were served, in the order of the columns below.
        arrival_s, admitted_s, first_s, finish_s: arrival, first start, first token and last token by request [s], (n,).
        preempted: preemptions by request [count], (n,).
        refused: mask of the requests that were refused, (n,).
        frontend: what its stages did.
        skipped: requests that were left out because they cannot fit [count].
        interrupted: whether the run was cut short.
    """

    columns: ClassVar[tuple[str, ...]] = ("arrival_s", "admitted_s", "first_s", "finish_s", "preempted", "refused")
    """What there is by request, besides the requests themselves."""

    requests: Requests
    arrival_s: Array
    admitted_s: Array
    first_s: Array
    finish_s: Array
    preempted: Array
    refused: Array
    frontend: tuple[StageData, ...]
    skipped: int
    interrupted: bool

    @property
    def finished(self) -> Array:
        """Mask of requests with all their tokens, (n,)."""
        return np.isfinite(self.finish_s)

    @property
    def ttft_s(self) -> Array:
        """Arrival to first token [s], (n,)."""
        return self.first_s - self.arrival_s

    @property
    def e2e_s(self) -> Array:
        """Arrival to last token [s], (n,)."""
        return self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> Array:
        """Time from first to last token over the tokens after the first; NaN for one token [s], (n,)."""
        after = self.requests.output_len - 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(after > 0, (self.finish_s - self.first_s) / after, nan)

    def latencies(self, places: Array) -> Latencies:
        """Latencies of some requests.

        Args:
            places: their indices in the order of arrival, (m,).
        """
        ttft, tpot, e2e = (known_percentiles(getattr(self, name)[places]) for name in LATENCIES)
        return {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}

    def counted(self, name: str, places: Array) -> Array:
        """A latency of some requests, infinite where there is no answer; an answer of one token has no time per token.

        Args:
            name: of the latency, such as ttft_s.
            places: as above.
        """
        values = np.where(self.finished, getattr(self, name), inf)[places]
        return values[~np.isnan(values)]

    def good(self, slo: Slo) -> Array:
        """Mask of the requests that were answered within all limits, (n,)."""
        late = (getattr(self, name) > limit for name, limit in slo.limits().items())
        return self.finished & ~np.any([np.zeros(len(self.requests), dtype=bool), *late], axis=0)

    def of(self, mine: Array) -> Self:
        """The same run of some requests alone; what replicas did is that of all.

        Args:
            mine: mask, (n,).
        """
        columns = {name: getattr(self, name)[mine] for name in self.columns}
        return replace(self, requests=replace(self.requests.pick(mine), process=None), **columns)

    def classes_among(self, places: Array, seconds: float) -> list[ClassData]:
        """What became of each class of requests; empty where there are none.

        Args:
            places: indices of the requests that are measured, (m,); of offline classes all are.
            seconds: of the run [s].
        """
        classes = self.requests.classes
        if classes is None:
            return []
        found: list[ClassData] = []
        for number, kind in enumerate(self.requests.kinds):
            mine = classes == number
            here = np.flatnonzero(mine) if kind.offline else places[classes[places] == number]
            done = self.finished & mine
            count = int(mine.sum())
            made = float(self.requests.output_len[done].sum())
            data: ClassData = {
                "name": kind.name,
                "priority": kind.priority,
                "offline": kind.offline,
                "requests": count,
                "finished": int(done.sum()),
                "refused": int(self.refused[mine].sum()),
                "refused_share": float(self.refused[mine].mean()) if count else 0.0,
                **self.latencies(here),
                "preemptions": int(self.preempted[mine].sum()),
                "output_tokens_per_s": made / seconds if seconds > 0 else 0.0,
                "limits": self._limits_of(kind, here),
            }
            if kind.limits and len(here):
                slow = [getattr(self, limit.latency)[here] > limit.seconds for limit in kind.limits]
                data["attained"] = float((self.finished[here] & ~np.any(slow, axis=0)).mean())
                data["holds"] = all(one["holds"] for one in data["limits"])
            found.append(data)
        return found

    def _limits_of(self, kind: RequestClass, places: Array) -> list[LimitData]:
        """What some requests of a class did within each of its limits."""
        found: list[LimitData] = []
        for limit in kind.limits:
            known = self.counted(limit.latency, places)
            reached = at_percentile(known, limit.percentile)
            found.append(
                {
                    "latency": limit.latency,
                    "limit_s": limit.seconds,
                    "percentile": limit.percentile,
                    "reached_s": reached,
                    "attained": float((known <= limit.seconds).mean()) if len(known) else 1.0,
                    "holds": reached <= limit.seconds,
                }
            )
        return found


def at_percentile(values: Array, percentile: float | None) -> float:
    """Return the least value that this share of the values does not exceed; 0 without any.

    Args:
        values: of `Outcome.counted`.
        percentile: above 0, up to 100; None for the mean.
    """
    if percentile is None:
        return float(np.mean(values)) if len(values) else 0.0
    return float(np.percentile(values, percentile, method="higher")) if len(values) else 0.0
