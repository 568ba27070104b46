"""What is asked of a system: requests, limits on their latency, and what is to be least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from rackline.errors import InputError
from rackline.parallel.layout import KINDS, LayoutKind
from rackline.passes.features import Array
from rackline.serving.workload import Workload
from rackline.units import Quantity, parse_limit

Objective = Literal["dollars", "joules"]
LEAST_CHANCE = 0.01  # that measured servers tell from none; as far below 1, from all


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Room that predictions leave below limits, so that a share of the servers of their kind keeps each.

    Args:
        share: of the servers [1].
        tpot, ttft: measured over predicted that this share keeps, by kind of layout [ratio].
    """

    share: float
    tpot: Mapping[LayoutKind, float]
    ttft: Mapping[LayoutKind, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits on latency.

    Args:
        headroom: that predictions leave below the limits; None where they may reach them.
        tpot_s: largest time per output token, None for no limit [s].
        ttft_s: largest time to first token, None for no limit [s].
        tpot_percentile, ttft_percentile: of the requests that must keep it, below 100; None limits the mean.

    Raises:
        InputError: a limit that is not positive, a percentile outside (0, 100).
    """

    tpot_s: float | None = None
    ttft_s: float | None = None
    tpot_percentile: float | None = None
    ttft_percentile: float | None = None
    headroom: Headroom | None = None

    def __post_init__(self) -> None:
        for name, value in (("tpot_s", self.tpot_s), ("ttft_s", self.ttft_s)):
            if value is not None and not value > 0:
                raise InputError(what=name, given=value, allowed="more than 0 s", nearest="0.03")
        for name, place in (("tpot_percentile", self.tpot_percentile), ("ttft_percentile", self.ttft_percentile)):
            if place is not None and not 0.0 < place < 100.0:
                raise InputError(what=name, given=place, allowed="above 0 and below 100", nearest="99")

    @classmethod
    def of(cls, tpot: Quantity | None, ttft: Quantity | None) -> Constraints:
        """Limits as they are written: such as 0.03 [s], "30ms" or "2s@p99"; None for no limit.

        Raises:
            InputError: another form.
        """
        tpot_s, tpot_percentile = (None, None) if tpot is None else parse_limit(tpot, name="tpot")
        ttft_s, ttft_percentile = (None, None) if ttft is None else parse_limit(ttft, name="ttft")
        return cls(tpot_s=tpot_s, ttft_s=ttft_s, tpot_percentile=tpot_percentile, ttft_percentile=ttft_percentile)

    def of_predictions(self, kind: LayoutKind) -> Constraints:
        """Limits on predictions of a kind of layout, below these by the headroom."""
        room = self.headroom
        if room is None:
            return self
        return replace(
            self,
            tpot_s=self.tpot_s and self.tpot_s / room.tpot[kind],
            ttft_s=self.ttft_s and self.ttft_s / room.ttft[kind],
            headroom=None,
        )

    def of_kinds(self, kinds: Array) -> tuple[Array, Array]:
        """The same on time per output token and to first token, infinite without a limit [s].

        Args:
            kinds: places among the kinds of layouts of single engines, any shape.
        """
        each = [self.of_predictions(kind) for kind in KINDS]
        tpot_s, ttft_s = (
            np.array([np.inf if limit is None else limit for limit in limits])
            for limits in zip(*((one.tpot_s, one.ttft_s) for one in each), strict=True)
        )
        return tpot_s[kinds], ttft_s[kinds]

    def latencies(self) -> list[tuple[str, float, float | None]]:
        """(name, limit [s], percentile or None for the mean) of those that are limited."""
        given = (
            ("tpot_s", self.tpot_s, self.tpot_percentile),
            ("ttft_s", self.ttft_s, self.ttft_percentile),
        )
        return [(name, limit, percentile) for name, limit, percentile in given if limit is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRisk:
    """One limit, against what servers of this kind measured.

    Args:
        metric: tpot_s or ttft_s.
        limit_s: as it was asked [s].
        percentile: that it is of; None for the mean.
        predicted_s: of the plan at its rate [s].
        chance: share of the servers of this kind that meet the limit at this rate, from 1 to 99 % [1].
        low_s, median_s, high_s: time that 5, 50 and 95 % of such servers stay below [s].
        group: what the servers have in common.
        num_cases: of servers [count].
    """

    metric: str
    limit_s: float
    percentile: float | None
    predicted_s: float
    chance: float
    low_s: float
    median_s: float
    high_s: float
    group: str
    num_cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """How surely a plan keeps its limits.

    Args:
        limits: each with its chance.
        confidence: share of the servers for which each leaves headroom; None where none was asked for [1].
        usd_without: all cost over output tokens of the plan without headroom; None where there is no headroom, or no
            such plan [USD per million].
        usd: of the plan itself [USD per million].
    """

    json_keys: ClassVar = ("limits", "confidence", "usd_per_mtok_output_all_in_without=usd_without", "cost_ratio")

    limits: tuple[LimitRisk, ...]
    usd: float
    confidence: float | None = None
    usd_without: float | None = None

    @property
    def cost_ratio(self) -> float | None:
        """Cost over that of the plan without headroom [ratio]."""
        return None if self.usd_without is None else self.usd / self.usd_without


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests, the limits that they must keep, and what is to be least.

    Args:
        workload: lengths of the requests.
        limits: on their latency.
        objective: what the answer has the least of, for an output token.
    """

    workload: Workload
    limits: Constraints = Constraints()
    objective: Objective = "dollars"
