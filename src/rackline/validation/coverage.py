"""Making error bands: what 90 % of the cases of models that no fit has seen deviate by from predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from rackline.bands.bands import ANY, COVERAGE, LIMITED, SHARES, Band, Evidence, Key, find_band
from rackline.catalog.index import stack_name
from rackline.fitting.solver import grouped
from rackline.passes.features import Array
from rackline.validation.cases import shape_of
from rackline.validation.scoreboard import Score

FEWEST = 20
"""Cases that a group needs [cases]."""
_MODELS = 2.0  # a group of as many models counts as much as the wider group around it
_AIMED = 0.92  # of the cases; the factor itself is found on other models, which costs the rest
_WIDEST = 4.0
_ENDS = tuple(SHARES.index(round(share, 3)) for share in (0.5 - 0.5 * COVERAGE, 0.5 + 0.5 * COVERAGE))
_CHANGE = 1.5  # of the factor from a group to a narrower one, at most: bands made of few models ask for any


def evidence_of_score(score: Score) -> Evidence:
    """What a scored case is about."""
    return Evidence(
        stack=stack_name(score.groups["stack"]),
        kind=score.groups["blocks"],
        chip=score.groups["chip"],
        layout=score.groups["layout"],
    )


def make_bands(scores: Iterable[Score]) -> dict[Key, Band]:
    """The bands of all groups with FEWEST cases or more, by (metric, what they have in common).

    Args:
        scores: of measured times and rates, of models that their predictions had not seen; kinds without a stack
            (single operations, sizes) are left out.
    """
    found: dict[Key, Band] = {}
    for metric, scored in _by_metric(scores).items():
        own = [_Value.of_score(score) for score in scored]
        factors = _factors(metric, own)
        found |= {
            key: _scaled(one, next(factors[wide] for wide in one.of.wider() if wide in factors))
            for key, one in _bands_of(metric, own).items()
        }
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class _Value:
    """ln(measured / predicted) of a case."""

    log: float
    model: str
    of: Evidence

    @classmethod
    def of_score(cls, score: Score) -> _Value:
        """The value of a score that is above zero."""
        ratio = score.measured / score.predicted
        return cls(math.log(ratio), shape_of(score.groups["model"]), evidence_of_score(score))


def measured_scores(scores: Iterable[Score]) -> list[Score]:
    """Return scores above zero, without single operations and sizes."""
    return [
        score
        for score in scores
        if score.groups["kind"] not in ("op", "params") and score.predicted > 0 < score.measured
    ]


def _by_metric(scores: Iterable[Score]) -> dict[str, list[Score]]:
    """Return the measured scores by metric."""
    return grouped(measured_scores(scores), lambda score: score.metric)


def _bands_of(metric: str, values: Sequence[_Value]) -> dict[Key, Band]:
    """Bands of one metric before they are widened."""
    found: dict[Key, Band] = {}
    ends: dict[Evidence, Array] = {}
    for of, own in groups_of_evidence([value.of for value in values]).items():
        members = [values[place] for place in own]
        names = [value.model for value in members]
        models = len(set(names))
        ends[of] = _mixed(
            ends, of, weighted_quantiles(np.array([value.log for value in members]), names, SHARES), models
        )
        if len(members) >= FEWEST:
            quantiles = np.exp(ends[of])
            low, high = quantiles[list(_ENDS)].tolist()
            found[metric, of] = Band(
                metric=metric,
                of=of,
                low=low,
                high=high,
                num_cases=len(members),
                num_models=models,
                quantiles=tuple(quantiles.tolist()) if metric in LIMITED else (),
            )
    return found


def groups_of_evidence(given: Sequence[Evidence]) -> dict[Evidence, list[int]]:
    """Return the places of the members of each group with FEWEST or more, the widest group first.

    The group of all is always there.
    """
    groups: dict[Evidence, list[int]] = {}
    for place, evidence in enumerate(given):
        for of in dict.fromkeys(evidence.wider()):
            groups.setdefault(of, []).append(place)
    widest_first = sorted(groups.items(), key=lambda item: len(set(item[0].wider())))
    return {of: own for of, own in widest_first if len(own) >= FEWEST or of == Evidence()}


def _mixed(known: Mapping[Evidence, Array], of: Evidence, own: Array, models: int) -> Array:
    """A group's own numbers mixed with those of the wider group around it that is known."""
    around = next((known[wide] for wide in of.wider()[1:] if wide != of and wide in known), None)
    if around is None:
        return own
    share = models / (models + _MODELS)
    return share * own + (1.0 - share) * around


def weighted_quantiles(values: Array, units: Sequence[Hashable], shares: Sequence[float]) -> Array:
    """Return quantiles in which each unit counts the same, however many cases it has above FEWEST.

    Args:
        values: of the cases, shape (cases,).
        units: which cases belong together, such as all of a model, shape (cases,).
        shares: of the quantiles.
    """
    counts = Counter(units)
    weights = np.array([1.0 / max(counts[unit], FEWEST) for unit in units])
    order = np.argsort(values)
    # Weibull's quantiles: k / (n + 1), of weights
    reached = np.cumsum(weights[order]) / (weights.sum() + weights.mean())
    return np.interp(shares, reached, values[order])


def _scaled(band: Band, factor: Array) -> Band:
    middle = 0.5 * (math.log(band.low) + math.log(band.high))
    half = 0.5 * (math.log(band.high) - math.log(band.low)) * factor
    ends = middle - half, middle + half
    quantiles = np.log(band.quantiles)
    if quantiles.size:  # the median stays; on either side of it all move as the end does
        before, median = quantiles[list(_ENDS)], quantiles[SHARES.index(0.5)]
        side = (quantiles > median).astype(int)
        reach = np.maximum((np.array(ends) - median) / np.where(before == median, 1.0, before - median), 0.0)
        quantiles = median + (quantiles - median) * reach[side]
    return replace(
        band, low=float(np.exp(ends[0])), high=float(np.exp(ends[1])), quantiles=tuple(np.exp(quantiles).tolist())
    )


def _needed(metric: str, values: Sequence[_Value]) -> Array:
    """The least factor at which each case lies inside the bands made without its model; nan where there are none."""
    found = np.full(len(values), np.nan)
    for model in dict.fromkeys(value.model for value in values):
        bands = _bands_of(metric, [value for value in values if value.model != model])
        if not bands:
            continue
        for index, value in enumerate(values):
            if value.model == model:
                band = find_band(bands, metric, value.of)
                middle = 0.5 * (math.log(band.low) + math.log(band.high))
                half = 0.5 * (math.log(band.high) - math.log(band.low))
                found[index] = abs(value.log - middle) / max(half, 1e-9)
    return found


def _factors(metric: str, values: Sequence[_Value]) -> dict[Evidence, Array]:
    """The factor of each group at which COVERAGE of its cases lie inside bands made without their model."""
    needed = _needed(metric, values)
    known = np.flatnonzero(np.isfinite(needed)).tolist()
    found: dict[Evidence, Array] = {}
    for of, own in groups_of_evidence([values[place].of for place in known]).items():
        places = [known[place] for place in own]
        if len(places) < FEWEST:
            break
        of_models = [values[place].model for place in places]
        own = np.clip(weighted_quantiles(needed[places], of_models, [_AIMED])[0], 0.5, _WIDEST)
        around = next((found[wide] for wide in of.wider()[1:] if wide in found), own)
        own = np.clip(own, around / _CHANGE, around * _CHANGE)
        found[of] = _mixed(found, of, own, len(set(of_models)))
        if of.layout != ANY:  # so few models that they may only widen
            found[of] = np.maximum(found[of], found.get(replace(of, layout=ANY), found[of]))
    return found or {Evidence(): np.ones(())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many cases lie inside bands that were made without their group.

    Args:
        metric: of the cases.
        by: what was left out in turn, and what a group of them is: "model", "chip", "laboratory" and so on.
        group: name; all cases where it is empty.
        num_cases: of the group [count].
        share: inside.
        width: median of high / low of their bands [ratio].
    """

    metric: str
    by: str
    group: str
    num_cases: int
    share: float
    width: float


GROUPED: Mapping[str, Callable[[Score], str]] = {
    "model": lambda score: shape_of(score.groups["model"]),
    "chip": lambda score: score.groups["chip"],
    "stack": lambda score: stack_name(score.groups["stack"]),
    "laboratory": lambda score: score.groups["laboratory"],
}


def held_out_coverage(scores: Iterable[Score], left_out: str = "model") -> list[Coverage]:
    """Coverage of bands made without each group of cases in turn; the widening factor is found without it as well.

    Where most cases of a metric, or of a stack in it, are of one group, so that too few others would be left, random
    halves of them take turns.

    Args:
        scores: of predictions with models left out.
        left_out: one of GROUPED. Its groups, and those of the others, are listed.
    """
    found: list[Coverage] = []
    for metric, own in _by_metric(scores).items():
        inside, width = np.zeros(len(own), dtype=bool), np.full(len(own), np.nan)
        by, bands = without_their_group(metric, own, left_out)
        for index, near in bands:
            ratio = own[index].measured / own[index].predicted
            inside[index], width[index] = near.low <= ratio <= near.high, near.high / near.low
        known = np.isfinite(width)
        if not known.any():
            continue
        found.append(covered(metric, by, "", inside[known], width[known]))
        for kind, key in GROUPED.items():
            groups = np.array([key(score) for score in own])
            for group in dict.fromkeys(groups[known].tolist()):
                part = known & (groups == group)
                found.append(covered(metric, kind, group, inside[part], width[part]))
    return found


def without_their_group(metric: str, scores: Sequence[Score], left_out: str) -> tuple[str, list[tuple[int, Band]]]:
    """What was left out, and the band of each score, by its place, that was made without its group."""
    by, names = _with_halves(left_out, [GROUPED[left_out](score) for score in scores], scores)
    found: list[tuple[int, Band]] = []
    for name in dict.fromkeys(names):
        bands = make_bands(score for score, of in zip(scores, names, strict=True) if of != name)
        places = [place for place, of in enumerate(names) if of == name and bands]
        found += [(place, find_band(bands, metric, evidence_of_score(scores[place]))) for place in places]
    return by, sorted(found, key=lambda one: one[0])


def _with_halves(left_out: str, names: Sequence[str], scores: Sequence[Score]) -> tuple[str, list[str]]:
    """What is left out, and the name that each score is left out with: of its group, or of its half."""
    halves = [f"half {crc32(score.case_id.encode()) % 2}" for score in scores]
    if len(names) - max(map(names.count, set(names))) < FEWEST:
        return "half", halves
    stacks = [GROUPED["stack"](score) for score in scores]
    found = list(names)
    for stack in set(stacks):
        own = [place for place, name in enumerate(stacks) if name == stack]
        groups = [names[place] for place in own]
        if len(own) >= _MANY and len(own) - max(map(groups.count, set(groups))) < FEWEST:
            for place in own:
                found[place] = f"{stack}, {halves[place]}"
    halved = sorted({name.split(", half")[0] for name in found if ", half" in name})
    return (f"{left_out}; half of {', '.join(halved)}" if halved else left_out), found


def covered(metric: str, by: str, group: str, inside: Array, width: Array) -> Coverage:
    """Share of the values that lie inside their bands, and the median width of these bands."""
    return Coverage(
        metric=metric,
        by=by,
        group=group,
        num_cases=int(inside.size),
        share=float(np.mean(inside)),
        width=float(np.median(width)),
    )


_LEAST = 0.75
_MANY = 30


def coverage_markdown(found: Sequence[Coverage], left_out: str = "model") -> str:
    """The table of a page: all cases of a metric, then the groups of 30 cases and more that are held worst."""
    lines = [
        f"Bands of {COVERAGE:.0%}, made without each {left_out} (or half of the cases) in turn from predictions that "
        f"had not seen its {left_out} either, and scored on it. Width is the median of high over low.",
        "",
        "| measured | left out | cases | inside | width | groups of 30 cases and more that are held worst |",
        "|---|---|---:|---:|---:|---|",
    ]
    for one in found:
        if one.group:
            continue
        groups = [part for part in found if part.metric == one.metric and part.group and part.num_cases >= _MANY]
        worst = sorted(groups, key=lambda part: part.share)[:3]
        named = ", ".join(f"{part.group} {part.share:.0%} of {part.num_cases}" for part in worst)
        lines.append(
            f"| {one.metric} | {one.by} | {one.num_cases} | {one.share:.1%} | {one.width:.2f} | {named or '-'} |"
        )
    return "\n".join([*lines, "", low_line(found)])


def low_line(found: Iterable[Coverage]) -> str:
    """Which groups of 30 cases and more the bands hold less than 75 % of."""
    low = [part for part in found if part.group and part.num_cases >= _MANY and part.share < _LEAST]
    words = "; ".join(f"{part.metric} of {part.group} {part.share:.0%} of {part.num_cases}" for part in low)
    return f"Groups of 30 cases and more under {_LEAST:.0%}: {words or 'none'}."
