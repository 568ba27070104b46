"""Intervals of predicted values, in which 90 % of the measured values of similar cases lay."""

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
"""Values that no case measures → the measured one that they depend on, and whether they rise (1) or fall (-1) with it.
Rates and costs of a fixed batch depend on the time per token; a single pass on that of a static batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted value with its band.

    Args:
        metric: the predicted quantity.
        predicted: the predicted value, in SI units.
        low, high: 90 % of the measured values of the group lay between them.
        group: description of the cases that the band comes from.
        num_cases: number of these cases [cases].
    """

    metric: str
    predicted: float
    low: float
    high: float
    group: str
    num_cases: int


def intervals(predicted: Mapping[str, float], stack: str, precision: str) -> list[Interval]:
    """Intervals of values that cases measure (tpot_s, ttft_s, request_s) or that depend on one; others are left out.

    Args:
        predicted: metric → value.
        stack, precision: those of the deployment, in any spelling.
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
    """Intervals of all predicted values of a candidate; none for the ideal roofline.

    Args:
        calibration: name of the calibration of the prediction.
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
