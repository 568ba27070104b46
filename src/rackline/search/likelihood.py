"""How far measured servers were off from numbers like these, and how likely a deployment meets its limits."""

from __future__ import annotations

from rackline.bands.bands import FOLLOWS, JOULES, Interval, evidence_of, has_servers, intervals
from rackline.bands.spread import limit_spread
from rackline.search.candidate import Candidate
from rackline.search.choice import Choice
from rackline.system import Constraints, LimitRisk, Risk, System


def intervals_of(candidate: Candidate | Choice, system: System) -> list[Interval]:
    """Return the intervals of all predicted numbers of a deployment; none for the ideal roofline."""
    if system.calibration.name == "unit":
        return []
    chosen = candidate if isinstance(candidate, Choice) else None
    whole = candidate if chosen is None else chosen.whole
    metrics = ("tpot_s", "ttft_s", *(name for name in FOLLOWS if hasattr(candidate, name)))
    predicted = {metric: float(getattr(whole if hasattr(whole, metric) else candidate, metric)) for metric in metrics}
    energy = chosen and chosen.energy
    if energy is not None and energy.power.basis == "kernels":
        predicted[JOULES] = energy.joules_per_output_token
    return intervals(predicted, evidence_of(system, candidate.layout_kind))


def risk_of(choice: Choice, system: System, limits: Constraints, usd_without: float | None = None) -> Risk | None:
    """Return how likely a deployment meets its limits; None where no measured server is like it.

    Args:
        usd_without: cost of the cheapest without headroom [USD per million output tokens].
    """
    if not has_servers(system):
        return None
    risks: list[LimitRisk] = []
    for name, limit_s, percentile in limits.latencies():
        spread, predicted_s = limit_spread(name, system, choice.layout_kind), choice.latency_s(name, percentile)
        risks.append(
            LimitRisk(
                metric=name,
                limit_s=limit_s,
                percentile=percentile,
                predicted_s=predicted_s,
                chance=spread.share_within(limit_s / predicted_s),
                low_s=predicted_s * spread.ratio_within(0.05),
                median_s=predicted_s * spread.ratio_within(0.5),
                high_s=predicted_s * spread.ratio_within(0.95),
                likely_s=predicted_s * spread.likely,
                group=spread.of.text(),
                num_cases=spread.num_cases,
                num_laboratories=spread.num_laboratories,
            )
        )
    return Risk(
        limits=tuple(risks),
        confidence=limits.headroom and limits.headroom.share,
        usd=choice.usd_with_leftover,
        usd_without=usd_without,
    )
