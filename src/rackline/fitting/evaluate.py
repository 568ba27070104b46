"""Held-out errors of a fit: a random half of the shapes, and whole families of shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackline.fitting.fit import Group
from rackline.fitting.solver import Values, leave_out
from rackline.fitting.tables import Array

SEEDS = (0, 1)
Mask = npt.NDArray[np.bool_]
_FEWEST_TESTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Absolute relative errors of one fit [fraction]; None if there were too few rows or families.

    Args:
        rows: rows of the table [count].
        median_error, p90_error: errors on the held-out random half.
        family_median_error, family_p90_error: errors on the held-out families.
        ideal_median_error, ideal_p90_error: errors of the ideal roofline on all rows.
    """

    rows: int
    median_error: float | None
    p90_error: float | None
    family_median_error: float | None
    family_p90_error: float | None
    ideal_median_error: float
    ideal_p90_error: float


RELATIVE, ABSOLUTE = 0.02, 0.002
"""Increase of an error that does not count as worse: 2 % of itself plus 0.2 percentage points."""


def is_worse(now: float, before: float) -> bool:
    """Whether an error is larger than before by more than does not count; so is one that is no number."""
    return not now <= before * (1.0 + RELATIVE) + ABSOLUTE


def random_half(rows: int, seed: int) -> npt.NDArray[np.bool_]:
    """Mask of a random half of the rows, to fit."""
    return np.random.default_rng(seed).permutation(rows) < rows // 2


def half_of_families(families: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a random half of the families, to fit."""
    names = np.unique(families)
    chosen = np.random.default_rng(seed + 100).permutation(names)[: max(1, len(names) // 2)]
    return np.isin(families, chosen)


def median_and_p90(predicted_s: Array, measured_s: Array) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1| [fraction]."""
    error = np.abs(predicted_s / measured_s - 1.0)
    return float(np.median(error)), float(np.quantile(error, 0.9))


def evaluate(groups: Sequence[Group], predictor: Callable[[list[Group]], Callable[[Group], Array]]) -> list[Errors]:
    """Refit on halves and test on the rest; the parents of a fit are refitted too, so that nothing leaks.

    Args:
        groups: whole groups of one class.
        predictor: fits a list of (halved) groups, returns a function from group to seconds.

    Returns:
        One entry per group.
    """
    seen: dict[str, Callable[[Group, int], Mask]] = {
        "random": lambda group, seed: random_half(len(group.measured_s), seed),
        "family": lambda group, seed: half_of_families(group.families, seed),
    }

    def fitted(masks: list[Mask]) -> Callable[[Group], Array]:
        return predictor([group.take(mask) if mask.any() else group for group, mask in zip(groups, masks, strict=True)])

    def scored(predict: Callable[[Group], Array], masks: list[Mask]) -> list[tuple[float, float] | None]:
        unseen = [group.take(~mask) for group, mask in zip(groups, masks, strict=True)]
        return [
            median_and_p90(predict(own), own.measured_s) if min(np.sum(mask), np.sum(~mask)) >= _FEWEST_TESTED else None
            for own, mask in zip(unseen, masks, strict=True)
        ]

    errors: dict[str, list[list[tuple[float, float] | None]]] = {}
    for kind, half in seen.items():
        halves = {str(seed): [half(group, seed) for group in groups] for seed in SEEDS}
        errors[kind] = [fold.scored for fold in leave_out(halves, fitted, scored)]
    out: list[Errors] = []
    for place, group in enumerate(groups):
        random, family = (_mean([fold[place] for fold in errors[kind]]) for kind in seen)
        ideal = median_and_p90(group.work.ideal_s(), group.measured_s)
        out.append(
            Errors(
                rows=len(group.measured_s),
                median_error=random[0],
                p90_error=random[1],
                family_median_error=family[0],
                family_p90_error=family[1],
                ideal_median_error=ideal[0],
                ideal_p90_error=ideal[1],
            )
        )
    return out


def _mean(found: list[tuple[float, float] | None]) -> tuple[float | None, float | None]:
    known = [one for one in found if one is not None]
    if not known:
        return None, None
    median, p90 = np.mean(np.array(known), axis=0)
    return float(median), float(p90)


WORTH = 0.05
"""Mean |log error| that numbers of its own must gain a version."""
_WORST_MEDIAN = 0.2
"""Median error of numbers of its own beyond which they describe nothing."""
_SEEDS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderFit:
    """Numbers of an older version.

    Args:
        stack_version: newest version that they describe.
        oldest_version: oldest one.
        values: parameters.
        rows: of the table of `stack_version` [count].
        median_error: on held-out halves of it [fraction].
        newer_error: of the next newer version's numbers on the same halves [fraction].
    """

    stack_version: str
    oldest_version: str
    values: Values
    rows: int
    median_error: float
    newer_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """A table of an older version with its model.

    Args:
        stack_version: of the table.
        target_s: time of each row, the newest version's prediction times the measured ratio [s], shape (rows,).
        predict: values → time of each row [s], shape (rows,).
        fit: (rows to fit, values to be pulled towards) → values.
    """

    stack_version: str
    target_s: Array
    predict: Callable[[Values], Array]
    fit: Callable[[Mask, Values], Values]


def older_fits(newest: Values, newest_version: str, tables: Sequence[Older]) -> tuple[str, tuple[OlderFit, ...]]:
    """The oldest version that the newest numbers describe, and the numbers of those before it.

    Args:
        newest: numbers of the newest version.
        newest_version: which it is.
        tables: of older versions, the newest of them first.
    """
    spans: list[tuple[Values, list[str], Older | None, tuple[float, float]]] = [
        (newest, [newest_version], None, (0.0, 0.0))
    ]
    for table in tables:
        known = spans[-1][0]
        own, newer = held_out_errors(table, known)
        if is_worth(own, newer):
            values = table.fit(np.ones(len(table.target_s), dtype=np.bool_), known)
            spans.append((values, [table.stack_version], table, (float(np.median(own)), float(np.median(newer)))))
        else:
            spans[-1][1].append(table.stack_version)
    return spans[0][1][-1], tuple(
        OlderFit(
            stack_version=versions[0],
            oldest_version=versions[-1],
            values=values,
            rows=len(table.target_s),
            median_error=own,
            newer_error=newer,
        )
        for values, versions, table, (own, newer) in spans
        if table is not None
    )


def is_worth(own: Array, known: Array) -> bool:
    """Whether numbers of its own gain a version more than WORTH, by their errors and those of known numbers, and are
    good enough themselves."""
    gain = np.mean(np.log1p(known)) - np.mean(np.log1p(own))
    return bool(gain > WORTH and np.median(own) < _WORST_MEDIAN)


def held_out_errors(table: Older, known: Values, fitted: Mapping[str, Mask] | None = None) -> tuple[Array, Array]:
    """Ratios less one, of the slower to the faster of predicted and measured: own numbers, and known ones.

    Args:
        known: values that own numbers are pulled towards.
        fitted: rows that are fitted, one mask a fold; random halves by default. The others are scored.
    """

    def errors(values: Values, mask: Mask) -> list[Array]:
        logs = (np.log(table.predict(numbers)[~mask] / table.target_s[~mask]) for numbers in (values, known))
        return [np.expm1(np.abs(log)) for log in logs]

    halves = fitted or {str(seed): random_half(len(table.target_s), seed) for seed in _SEEDS}
    held = [fold.scored for fold in leave_out(halves, lambda mask: table.fit(mask, known), errors)]
    own, newer = (np.concatenate([fold[place] for fold in held]) for place in (0, 1))
    return own, newer
