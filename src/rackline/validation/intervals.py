"""Intervals of predicted numbers: where nine of ten measured values of such cases lay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from rackline.search.candidate import Candidate
from rackline.search.choice import Choice
from rackline.validation.bands import ANY, find_band, shipped_bands

FOLLOWS: Mapping[str, tuple[str, int]] = {
    "tokens_per_s_per_user": ("tpot_s", -1),
    "output_tokens_per_s_per_chip": ("tpot_s", -1),
    "usd_per_mtok_input": ("tpot_s", 1),
    "usd_per_mtok_output": ("tpot_s", 1),
    "usd_per_mtok_output_all_in": ("tpot_s", 1),
    "decode_pass_s": ("token_s", 1),
    "prefill_pass_s": ("prefill_s", 1),
}
"""Numbers that no case measures as such → the measured one that they follow, and whether they grow (1) or fall (-1)
with it. Rates and costs of a fixed batch follow the time per token; a single pass follows that of a static batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted number with its band.

    Args:
        metric: what it is.
        predicted: the number.
        low, high: nine of ten measured values of the group lay between them.
        group: which cases the band comes from, as text.
        num_cases: how many they are [cases].
    """

    metric: str
    predicted: float
    low: float
    high: float
    group: str
    num_cases: int


def intervals(predicted: Mapping[str, float], stack: str, precision: str) -> list[Interval]:
    """Intervals of numbers that cases measure (tpot_s, ttft_s, request_s) or that follow one; others are left out.

    Args:
        predicted: metric → number.
        stack, precision: of the deployment, however they are written.
    """
    bands = shipped_bands()
    known = {metric for metric, _, _ in bands}
    found: list[Interval] = []
    for metric, value in predicted.items():
        followed, sign = FOLLOWS.get(metric, (metric, 1))
        if followed in known:
            band = find_band(bands, followed, stack, precision)
            factors = (band.low, band.high) if sign > 0 else (1.0 / band.high, 1.0 / band.low)
            words = " ".join(part for part in (band.stack, band.precision) if part != ANY) or "all stacks"
            found.append(
                Interval(
                    metric=metric,
                    predicted=value,
                    low=value * factors[0],
                    high=value * factors[1],
                    group=words,
                    num_cases=band.num_cases,
                )
            )
    return found


def of_candidate(candidate: Candidate | Choice, calibration: str) -> list[Interval]:
    """Intervals of all predicted numbers of a way to serve; none for the ideal roofline.

    Args:
        calibration: name of the calibration that predicted it.
    """
    if calibration == "unit":
        return []
    metrics = ("tpot_s", "ttft_s", *(name for name in FOLLOWS if hasattr(candidate, name)))
    predicted = {metric: float(getattr(candidate, metric)) for metric in metrics}
    return intervals(
        {metric: value for metric, value in predicted.items() if math.isfinite(value)},
        calibration,
        candidate.precision.expert_weights,
    )


class Ends(TypedDict):
    """Both ends of an interval."""

    low: float
    high: float


def ends_of(found: Iterable[Interval]) -> dict[str, Ends]:
    """Metric → both ends."""
    return {one.metric: {"low": one.low, "high": one.high} for one in found}
