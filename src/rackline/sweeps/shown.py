"""What is shown of a sweep: its front, best rows, sensitivities and crossovers, or the answer to SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rackline.sweeps.file import Sense
from rackline.sweeps.read import Binding, Crossovers
from rackline.sweeps.sensitivity import Effect, Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why points have no result or do not fit.

    Args:
        reason: in words.
        rows: points [count].
    """

    reason: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a sweep has found.

    Args:
        title: of the sweep.
        rows: that are there [count].
        feasible_rows: of them, those that have a result, fit and keep all constraints [count].
        shards: of the sweep [count].
        missing: of them, those that are not there yet [count].
        reasons: why points have no result or do not fit, most first.
        objectives: column → whether less or more is better.
        quantities: columns of lists with several values.
        front: rows of the Pareto front, as column → value.
        best: the best row of each group.
        by: columns of the groups.
        binding: what each constraint costs.
        sensitivities: of the first objective, most first; empty where it does not vary.
        tornado: main effects on it, largest first.
        crossovers: the best of each option along a quantity; None where nothing competes.
    """

    title: str
    rows: int
    feasible_rows: int
    shards: int
    missing: int
    reasons: tuple[Reason, ...]
    objectives: Mapping[str, Sense]
    quantities: tuple[str, ...]
    front: tuple[Mapping[str, Any], ...]
    best: tuple[Mapping[str, Any], ...]
    by: tuple[str, ...]
    binding: tuple[Binding, ...]
    sensitivities: tuple[Sensitivity, ...]
    tornado: tuple[Effect, ...]
    crossovers: Crossovers | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queried:
    """What SQL has answered.

    Args:
        columns: their names.
        values: rows of values.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str | float | bool | None, ...], ...]
