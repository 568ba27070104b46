"""Numbers of older versions of a stack, where those of the newest do not describe their times.

Versions are compared at equal shapes: what an older version is fitted to is the newest one's predicted time, multiplied
by the measured ratio of both. It has numbers of its own if they predict the half of its shapes that they were not
fitted to better than the numbers of the next newer version do. They are pulled towards those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rackline.fitting.evaluate import Mask, random_half
from rackline.fitting.solver import Values, leave_out
from rackline.fitting.tables import Array

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
