"""How far servers of a laboratory that nobody has measured may be from a prediction: the likely number, and headroom.

`bench/confidence.py` makes the shipped spreads with `rackline.validation.laboratories`. Ratios say how much slower a
server was than predicted: measured over predicted, and predicted over measured for rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypedDict, cast

import numpy as np

from rackline.bands.bands import SHARES, Evidence, evidence_of, has_servers
from rackline.errors import require
from rackline.files import rounded, shipped_toml, toml_text
from rackline.parallel import Deployment
from rackline.parallel.layout import KINDS, LayoutKind
from rackline.system import Headroom, System

FILE = "spread.toml"
_DIGITS = 4
_POOLS = "pools_"
USUAL_SHARE = 0.8
"""Share of the measured servers of the kind that meet each limit of a plan, unless another is asked for [1]."""
LEAST_CORRECTION = 0.005
"""Corrections below half a percent are within the last digit on a screen and not worth a line [1]."""


def single_metric(metric: str) -> str:
    """Return the metric of single engines that a metric of pools has the meaning of.

    >>> single_metric("pools_tpot_s"), single_metric("ttft_s")
    ('tpot_s', 'ttft_s')
    """
    return metric.removeprefix(_POOLS)


def metric_under(metric: str, kind: LayoutKind) -> str:
    """Return the metric under a kind of layout: that of pools, or of single engines.

    >>> metric_under("tpot_s", "pools"), metric_under("tpot_s", "tp")
    ('pools_tpot_s', 'tpot_s')
    """
    return f"{_POOLS}{metric}" if kind == "pools" else metric


def is_rate(metric: str) -> bool:
    """Return whether larger values of a metric are better.

    >>> is_rate("served_tokens_per_s"), is_rate("tpot_s"), is_rate("joules_per_output_token")
    (True, False, False)
    """
    return metric.endswith("_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much slower than predicted the servers of a kind were.

    Args:
        metric: of these cases.
        of: what the servers have in common.
        likely: the usual ratio, nearer to 1 the fewer laboratories measured it [ratio].
        quantiles: ratios that the SHARES of the servers stay below, rising.
        num_cases: cases behind it [count].
        num_laboratories: laboratories that measured them [count].
    """

    metric: str
    of: Evidence
    likely: float
    quantiles: tuple[float, ...]
    num_cases: int
    num_laboratories: int

    def ratio_within(self, share: float) -> float:
        """Return the ratio that a share of the servers stays below [ratio].

        Args:
            share: between the first and the last of SHARES.
        """
        return float(np.exp(np.interp(share, SHARES, np.log(self.quantiles))))

    def share_within(self, ratio: float) -> float:
        """Return the share of the servers whose ratio is at most this one, from 1 to 99 % [1]."""
        return float(np.interp(math.log(ratio), np.log(self.quantiles), SHARES))


Spreads = Mapping[tuple[str, Evidence], Spread]


def find_spread(spreads: Spreads, metric: str, of: Evidence) -> Spread | None:
    """Return the spread of the narrowest group that has one, of single engines where pools have none; None without."""
    for name in dict.fromkeys((metric, single_metric(metric))):
        for wide in of.wider():
            if (name, wide) in spreads:
                return spreads[name, wide]
    return None


def spreads_toml(spreads: Spreads, files: Iterable[str]) -> str:
    """Return the file that `read_spreads` reads."""
    comments = (
        f"Written by `bench/confidence.py --write` from {', '.join(sorted(files))}.",
        "likely: usual measured / predicted. quantiles: measured / predicted that these shares of the servers stay",
        f"below: {', '.join(f'{share:g}' for share in SHARES)}.",
    )
    rows = [
        {
            "metric": spread.metric,
            **{part.name: getattr(spread.of, part.name) for part in fields(Evidence)},
            "likely": spread.likely,
            "cases": spread.num_cases,
            "laboratories": spread.num_laboratories,
            "quantiles": list(spread.quantiles),
        }
        for spread in spreads.values()
    ]
    return toml_text({"spread": rounded(rows, _DIGITS)}, comments)


def read_spreads(file: Mapping[str, Any]) -> dict[tuple[str, Evidence], Spread]:
    """Read the spreads of a file that `spreads_toml` wrote."""
    rows = cast("list[dict[str, Any]]", file["spread"])
    spreads = [
        Spread(
            metric=row["metric"],
            of=Evidence(**{part.name: row[part.name] for part in fields(Evidence)}),
            likely=float(row["likely"]),
            quantiles=tuple(float(value) for value in row["quantiles"]),
            num_cases=int(row["cases"]),
            num_laboratories=int(row["laboratories"]),
        )
        for row in rows
    ]
    return {(spread.metric, spread.of): spread for spread in spreads}


@cache
def shipped_spreads() -> Spreads:
    """Return the spreads that come with the library."""
    return read_spreads(shipped_toml("rackline.bands", FILE))


def limit_spread(name: str, system: System | Deployment, kind: LayoutKind) -> Spread:
    """Return the spread of a limited latency over servers like these."""
    spread = find_spread(shipped_spreads(), metric_under(name, kind), evidence_of(system, kind))
    if spread is None:
        raise LookupError(f"no spread of {name}")
    return spread


def headroom_of(share: float | None, system: System) -> Headroom | None:
    """Return the headroom below limits with which a share of the servers like these meets each.

    Args:
        share: of the servers, for each limit, 0.5 to 0.99; `USUAL_SHARE` where None [1].

    Returns:
        None where no share was asked for and no measured server is like these.

    Raises:
        InputError: a share was asked for, and no measured server is like these.
    """
    if share is None and not has_servers(system):
        return None
    share = USUAL_SHARE if share is None else share
    require(
        has_servers(system),
        what="confidence",
        given=f"{share:.0%} under {system.calibration.label}",
        allowed="a stack whose servers were measured, such as vllm, sglang or trtllm",
    )

    def ratios(name: str) -> Mapping[LayoutKind, float]:
        # a prediction may not exceed a limit, also where servers were faster than predicted
        kinds: tuple[LayoutKind, ...] = (*KINDS, "pools")
        return {kind: max(limit_spread(name, system, kind).ratio_within(share), 1.0) for kind in kinds}

    return Headroom(share=share, tpot=ratios("tpot_s"), ttft=ratios("ttft_s"))


class ComputedAndLikely(TypedDict):
    """Both values of a time [s], and the correction between them [ratio]."""

    computed_s: float
    likely_s: float
    likely_over_computed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Likely:
    """A computed time, and what servers like these usually take.

    Args:
        metric: of the time.
        computed_s: the prediction [s].
        spread: of the servers like these.
    """

    metric: str
    computed_s: float
    spread: Spread

    @property
    def likely_s(self) -> float:
        """The computed time times the usual ratio [s]."""
        return self.computed_s * self.spread.likely

    @property
    def differs(self) -> bool:
        """Check whether the likely value is worth a line of its own."""
        return abs(self.spread.likely - 1.0) >= LEAST_CORRECTION

    @property
    def plain(self) -> ComputedAndLikely:
        """Both values, as JSON has them."""
        return {
            "computed_s": self.computed_s,
            "likely_s": self.likely_s,
            "likely_over_computed": self.spread.likely,
        }


def likely_times(computed: Mapping[str, float], deployment: Deployment | System, kind: LayoutKind) -> list[Likely]:
    """Return the likely values of computed times; none for the ideal roofline or a machine with numbers of its own.

    Args:
        computed: metric → time [s].
        deployment: what serves.
        kind: of its layout.
    """
    if not has_servers(deployment):
        return []
    of = evidence_of(deployment, kind)
    pairs = [
        (metric, value, find_spread(shipped_spreads(), metric_under(metric, kind), of))
        for metric, value in computed.items()
        if math.isfinite(value)
    ]
    return [
        Likely(metric=metric, computed_s=value, spread=spread) for metric, value, spread in pairs if spread is not None
    ]
