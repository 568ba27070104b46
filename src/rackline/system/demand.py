"""What is asked of a system: requests, limits on their latency, and what is to be least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rackline.errors import InputError
from rackline.serving.workload import Workload
from rackline.units import Quantity, parse_limit

Objective = Literal["dollars", "joules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits on latency.

    Args:
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

    def latencies(self) -> list[tuple[str, float, float | None]]:
        """(name, limit [s], percentile or None for the mean) of those that are limited."""
        given = (
            ("tpot_s", self.tpot_s, self.tpot_percentile),
            ("ttft_s", self.ttft_s, self.ttft_percentile),
        )
        return [(name, limit, percentile) for name, limit, percentile in given if limit is not None]


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
