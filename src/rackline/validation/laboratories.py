"""Likely numbers and headroom for laboratories never seen, and how often the headroom was enough.

What servers of one laboratory take differs from what others take: its clients, versions and settings are its own. So a
laboratory is a random effect. Each laboratory and model counts the same, regardless of its number of cases, and a group
that few laboratories measured takes most of its numbers from the wider group around it (partial pooling: Gelman and
Hill 2007, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.bands.bands import SHARES, Evidence
from rackline.bands.spread import Spread, Spreads, find_spread, is_rate, single_metric
from rackline.fitting.solver import grouped
from rackline.passes.features import Array
from rackline.validation.coverage import (
    FEWEST,
    GROUPED,
    evidence_of_score,
    groups_of_evidence,
    measured_scores,
    weighted_quantiles,
)
from rackline.validation.page import PageTable
from rackline.validation.scoreboard import Score

_LABORATORIES = 3.0
"""Laboratories with which a group counts as much as the wider group around it. Of 2 to 4, left-out laboratories are
covered about as often, and likely numbers are best with 3 (docs/findings.md, 2026-11-29) [count]."""
_STRENGTHS = (1.0, 0.5, 0.25)
"""Shares of a correction that are tried until left-out laboratories are predicted no worse with it; then none [1]."""
LEVELS = (0.8, 0.9)
"""Shares of the servers for which coverage is reported [1]."""
ACCEPTED = ((0.75, 0.87), (0.85, 0.95))
"""Coverage that counts as right at each of LEVELS [1]."""
MANY = 30
"""Least cases of a group that is judged [count]."""
_MEDIAN = SHARES.index(0.5)


@dataclass(frozen=True, slots=True)
class _Case:
    """A measured value: the logarithm of how much slower it is than predicted, and who measured it."""

    log: float
    of: Evidence
    laboratory: str
    unit: Hashable

    @classmethod
    def of_score(cls, score: Score) -> _Case:
        log = math.log(score.measured / score.predicted)
        laboratory = GROUPED["laboratory"](score)
        return cls(
            -log if is_rate(score.metric) else log,
            evidence_of_score(score),
            laboratory,
            (laboratory, GROUPED["model"](score)),
        )


def slowness(score: Score) -> float:
    """Return how much slower than predicted a case was: measured over predicted, the inverse for rates [ratio]."""
    ratio = score.measured / score.predicted
    return 1.0 / ratio if is_rate(score.metric) else ratio


@dataclass(frozen=True, slots=True)
class _Group:
    """Quantiles and the usual value of a group [log ratio]."""

    quantiles: Array
    usual: float
    num_cases: int
    num_laboratories: int


def _groups(cases: Sequence[_Case], around: Mapping[Evidence, _Group]) -> dict[Evidence, _Group]:
    """Return the numbers of each group of a metric, the widest first.

    Args:
        cases: of one metric.
        around: groups of the single engines, which those of pools are pooled with.
    """
    groups: dict[Evidence, _Group] = {}
    for of, places in groups_of_evidence([case.of for case in cases]).items():
        members = [cases[place] for place in places]
        if len(members) < FEWEST:
            continue
        logs = np.array([case.log for case in members])
        own = weighted_quantiles(logs, [case.unit for case in members], SHARES)
        laboratories = len({case.laboratory for case in members})
        pooled_with = [groups[wide] for wide in of.wider()[1:] if wide != of and wide in groups]
        if not pooled_with and of in around:
            pooled_with = [around[of]]
        groups[of] = _Group(
            quantiles=_pooled(own, laboratories - 1, [group.quantiles for group in pooled_with]),
            # not of the same laboratories again, which would count more often the narrower the group
            usual=float(
                _pooled(
                    own[_MEDIAN],
                    laboratories,
                    [group.usual for group in pooled_with if group.num_laboratories > laboratories] or [0.0],
                )
            ),
            num_cases=len(members),
            num_laboratories=laboratories,
        )
    return groups


def _pooled(own: Array, count: int, wider: Sequence[Array | float]) -> Array:
    """Return a group's own numbers, pooled with those of the narrowest wider group.

    Args:
        own: numbers of the group.
        count: how much they count: laboratories for a middle; one fewer for what differs between them, about which a
            single laboratory says nothing [count].
        wider: numbers of the wider groups, the narrowest first; empty if there is none.
    """
    if not wider:
        return own
    weight = count / (count + _LABORATORIES)
    return weight * own + (1.0 - weight) * wider[0]


def _cases_by_metric(scores: Iterable[Score]) -> dict[str, list[_Case]]:
    """Return the cases of each metric, those of pools last."""
    by_metric = grouped(measured_scores(scores), lambda score: score.metric)
    metrics = sorted(by_metric, key=lambda metric: (single_metric(metric) != metric, metric))
    return {metric: [_Case.of_score(score) for score in by_metric[metric]] for metric in metrics}


def _all_groups(by_metric: Mapping[str, Sequence[_Case]]) -> dict[str, dict[Evidence, _Group]]:
    groups: dict[str, dict[Evidence, _Group]] = {}
    for metric, cases in by_metric.items():
        single = single_metric(metric)
        groups[metric] = _groups(cases, groups.get(single, {}) if single != metric else {})
    return groups


def _spreads(groups: Mapping[str, Mapping[Evidence, _Group]], strengths: Mapping[str, float]) -> Spreads:
    return {
        (metric, of): Spread(
            metric=metric,
            of=of,
            likely=math.exp(strengths.get(metric, 0.0) * group.usual),
            quantiles=tuple(np.exp(group.quantiles).tolist()),
            num_cases=group.num_cases,
            num_laboratories=group.num_laboratories,
        )
        for metric, own in groups.items()
        for of, group in own.items()
    }


def make_spreads(scores: Iterable[Score], strengths: Mapping[str, float] | None = None) -> Spreads:
    """Return the spreads of all groups with FEWEST cases or more.

    Args:
        scores: of measured times and rates; single operations and sizes are left out.
        strengths: share of the correction that the likely number of each metric uses; by default the largest with which
            left-out laboratories are predicted no worse than without.
    """
    scores = list(scores)
    return _spreads(_all_groups(_cases_by_metric(scores)), likely_strengths(scores) if strengths is None else strengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSpread:
    """A case with the spread that cases of other groups give.

    Args:
        score: of the case.
        spread: made without its group; None where too few cases are left.
    """

    score: Score
    spread: Spread | None

    def error(self, strength: float = 1.0) -> float:
        """Return |likely / measured - 1|.

        Args:
            strength: share of the correction that is used.
        """
        likely = 1.0 if self.spread is None else self.spread.likely**strength
        corrected = self.score.predicted * (1.0 / likely if is_rate(self.score.metric) else likely)
        return abs(corrected / self.score.measured - 1.0)


def held_out_spreads(
    scores: Iterable[Score], left_out: str, strengths: Mapping[str, float] | None = None
) -> list[HeldOutSpread]:
    """Return each case with the spread that `make_spreads` gives without its group.

    Args:
        scores: of measured times and rates.
        left_out: one of GROUPED, such as "laboratory".
        strengths: of the likely numbers; whole corrections by default.
    """
    known = measured_scores(scores)
    whole = dict.fromkeys((score.metric for score in known), 1.0) if strengths is None else strengths
    held: list[HeldOutSpread] = []
    for members in grouped(known, GROUPED[left_out]).values():
        own = {id(score) for score in members}
        metrics = {name for score in members for name in (score.metric, single_metric(score.metric))}
        others = (score for score in known if score.metric in metrics and id(score) not in own)
        spreads = make_spreads(others, whole)
        held += [
            HeldOutSpread(score=score, spread=find_spread(spreads, score.metric, evidence_of_score(score)))
            for score in members
        ]
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyStats:
    """Errors of the computed and of the likely numbers of a metric, with the laboratory of each case left out.

    Args:
        metric: of the cases.
        num_cases: that were predicted [count].
        strength: share of the correction that is used; 0 where it does not help, so that both numbers are equal [1].
        computed_median, computed_p90: median and 90th percentile of |computed / measured - 1| [1].
        median_abs_error, p90_abs_error: those of the likely numbers [1].
    """

    json_keys: ClassVar = (
        "metric",
        "cases=num_cases",
        "strength",
        "computed.median_abs_error=computed_median",
        "computed.p90_abs_error=computed_p90",
        "likely.median_abs_error=median_abs_error",
        "likely.p90_abs_error=p90_abs_error",
    )

    metric: str
    num_cases: int
    strength: float
    computed_median: float
    computed_p90: float
    median_abs_error: float
    p90_abs_error: float

    @property
    def is_worse(self) -> bool:
        """Check whether likely numbers have a larger median or 90th percentile of the error than computed ones."""
        return self.median_abs_error > self.computed_median or self.p90_abs_error > self.computed_p90


def likely_stats(scores: Iterable[Score]) -> tuple[LikelyStats, ...]:
    """Return the errors of computed and likely numbers by metric, each case without its laboratory.

    The correction of a metric is weakened until neither its median error nor its 90th percentile is larger than without
    it.
    """
    held = grouped(held_out_spreads(scores, "laboratory"), lambda case: case.score.metric)
    return tuple(_weakened(metric, cases) for metric, cases in held.items())


def _weakened(metric: str, cases: Sequence[HeldOutSpread]) -> LikelyStats:
    computed = np.array([abs(case.score.error) for case in cases])
    known = any(case.spread is not None for case in cases)

    def stats_at(strength: float) -> LikelyStats:
        errors = np.array([case.error(strength) for case in cases]) if strength else computed
        return LikelyStats(
            metric=metric,
            num_cases=len(cases),
            strength=strength,
            computed_median=float(np.median(computed)),
            computed_p90=float(np.quantile(computed, 0.9)),
            median_abs_error=float(np.median(errors)),
            p90_abs_error=float(np.quantile(errors, 0.9)),
        )

    tried = map(stats_at, _STRENGTHS if known else ())
    return next((stats for stats in tried if not stats.is_worse), stats_at(0.0))


def likely_strengths(scores: Iterable[Score]) -> dict[str, float]:
    """Return the share of the correction that each metric uses; see `likely_stats`."""
    return {stats.metric: stats.strength for stats in likely_stats(scores)}


BY: Mapping[str, Callable[[Score], str]] = {
    **GROUPED,
    "kind of model": lambda score: score.groups["blocks"],
    "layout": lambda score: score.groups["layout"],
}
"""Groups of cases whose coverage is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomCoverage:
    """How many cases were no slower than the headroom that cases of other groups ask for.

    Args:
        metric: of the cases.
        left_out: what was left out in turn, "laboratory" or "model".
        by, group: the cases, such as all of one chip; empty for all cases.
        num_cases: that have headroom from others [count].
        num_alone: cases without, as no other group measured enough like them [count].
        covered: share of the cases that the headroom covered, at each of LEVELS [1].
        ratios: median of the headroom, at each of LEVELS [ratio].
    """

    json_keys: ClassVar = (
        "metric",
        "left_out",
        "by",
        "group",
        "cases=num_cases",
        "without_others=num_alone",
        "covered_at_80=covered.0",
        "covered_at_90=covered.1",
        "headroom_at_80=ratios.0",
        "headroom_at_90=ratios.1",
        "accepted=is_accepted",
    )

    metric: str
    left_out: str
    by: str
    group: str
    num_cases: int
    num_alone: int
    covered: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def is_accepted(self) -> bool:
        """Check whether the coverage at each level is within ACCEPTED."""
        return all(low <= share <= high for share, (low, high) in zip(self.covered, ACCEPTED, strict=True))


def headroom_coverage(scores: Iterable[Score], left_out: str) -> list[HeadroomCoverage]:
    """Return how often headroom was enough when the group of a case was left out: by metric, all cases and groups.

    Args:
        scores: of measured times and rates.
        left_out: what is left out in turn, "laboratory" or "model".
    """
    table: list[HeadroomCoverage] = []
    for metric, cases in grouped(held_out_spreads(scores, left_out), lambda case: case.score.metric).items():
        known = [(case.score, case.spread) for case in cases if case.spread is not None]
        if len(known) < MANY:
            continue
        alone = len(cases) - len(known)
        ratios = np.array([[spread.ratio_within(level) for level in LEVELS] for _, spread in known])
        slower = np.array([slowness(score) for score, _ in known])
        covered = slower[:, None] <= ratios
        names = {by: np.array([name(score) for score, _ in known]) for by, name in BY.items()}
        groups = [("", "", np.ones(len(known), dtype=bool))]
        groups += [(by, name, own == name) for by, own in names.items() for name in dict.fromkeys(own.tolist())]
        for by, name, members in groups:
            if not by or np.count_nonzero(members) >= MANY:
                table.append(
                    HeadroomCoverage(
                        metric=metric,
                        left_out=left_out,
                        by=by,
                        group=name,
                        num_cases=int(np.count_nonzero(members)),
                        num_alone=0 if by else alone,
                        covered=tuple(np.mean(covered[members], axis=0).tolist()),
                        ratios=tuple(np.median(ratios[members], axis=0).tolist()),
                    )
                )
    return table


def coverage_tables(rows: Sequence[HeadroomCoverage]) -> list[PageTable]:
    """Return tables of all cases by metric, and of the groups whose coverage is outside of ACCEPTED."""
    tables: list[PageTable] = []
    for left_out in dict.fromkeys(row.left_out for row in rows):
        own = [row for row in rows if row.left_out == left_out]
        groups = [row for row in own if row.by]
        tables.append(
            PageTable(
                title=f"cases covered by headroom from other {_PLURALS.get(left_out, left_out)}, at 80 and 90 %",
                heads=("measured", "cases", "covered", "headroom", "groups outside"),
                rows=[_total(row, groups) for row in own if not row.by],
            )
        )
        tables.append(
            PageTable(
                title=f"{left_out} left out: groups of {MANY} cases and more outside of {_ranges()}",
                heads=("measured", "group", "cases", "covered"),
                rows=[
                    (row.metric, f"{row.by} {row.group}", f"{row.num_cases:,}", _both(row))
                    for row in groups
                    if not row.is_accepted
                ],
                texts=2,
            )
        )
    return tables


_PLURALS = {"laboratory": "laboratories", "model": "models"}


def _both(row: HeadroomCoverage) -> str:
    """Return the coverage at all LEVELS, such as "79.0 / 89.1 %"."""
    return " / ".join(f"{100 * share:.1f}" for share in row.covered) + " %"


def _total(row: HeadroomCoverage, groups: Iterable[HeadroomCoverage]) -> tuple[str, ...]:
    judged = [group for group in groups if group.metric == row.metric]
    outside = sum(not group.is_accepted for group in judged)
    covered = _both(row) if row.is_accepted else f"{_both(row)} (outside)"
    ratios = " / ".join(f"{ratio:.2f}" for ratio in row.ratios)
    return row.metric, f"{row.num_cases:,}", covered, ratios, f"{outside} of {len(judged)}"


def _ranges() -> str:
    return " and ".join(f"{100 * low:.0f} to {100 * high:.0f} %" for low, high in ACCEPTED)


def likely_table(rows: Sequence[LikelyStats]) -> PageTable:
    """Return the errors of the computed and of the likely numbers of each metric."""

    def cells(row: LikelyStats) -> tuple[str, ...]:
        errors = row.computed_median, row.median_abs_error, row.computed_p90, row.p90_abs_error
        strength = f"{100 * row.strength:.0f} %" if row.strength else "none"
        return row.metric, f"{row.num_cases:,}", *(f"{100 * error:.1f} %" for error in errors), strength

    return PageTable(
        title="errors of computed and likely numbers; the correction of a case is from other laboratories",
        heads=("measured", "cases", "median", "likely", "p90", "likely", "correction used"),
        rows=[cells(row) for row in rows if row.num_cases >= MANY],
    )
