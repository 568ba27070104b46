"""Intervals of predicted numbers: where nine of ten measured values of such cases lay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rackline.validate.bands import ANY, find_band, shipped_bands


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted number with its band.

    Args:
        metric: what it is.
        predicted: the number.
        low, high: nine of ten measured values of the group lay between them.
        group: which cases the band comes from, for people.
        num_cases: how many they are [cases].
    """

    metric: str
    predicted: float
    low: float
    high: float
    group: str
    num_cases: int


def intervals(predicted: Mapping[str, float], stack: str, precision: str) -> list[Interval]:
    """Intervals of numbers that a serving case measures (tpot_s, ttft_s, request_s); others are left out.

    Args:
        predicted: metric → number.
        stack, precision: of the deployment, however they are written.
    """
    bands = shipped_bands()
    known = {metric for metric, _, _ in bands}
    found: list[Interval] = []
    for metric, value in predicted.items():
        if metric in known:
            band = find_band(bands, metric, stack, precision)
            words = " ".join(part for part in (band.stack, band.precision) if part != ANY) or "all stacks"
            found.append(
                Interval(
                    metric=metric,
                    predicted=value,
                    low=value * band.low,
                    high=value * band.high,
                    group=words,
                    num_cases=band.num_cases,
                )
            )
    return found
