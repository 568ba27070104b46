"""Fit, evaluate and reject the kernel tables of one operation class, all data types and chips together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rackline.fitting.amounts import amounts
from rackline.fitting.evaluate import Errors, evaluate
from rackline.fitting.fit import FEWEST_ROWS, ClassFit, Group, Values, fit_class
from rackline.fitting.line import seconds
from rackline.fitting.reject import gross_outliers
from rackline.fitting.tables import Array, Measurements
from rackline.hardware import Chip

LAUNCH_TYPE = "bf16"  # data type whose launch overhead quantised products share


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """Fit of one group with its errors.

    Args:
        group: the rows.
        values: parameters.
        errors: errors on held-out data.
        outlier: why it was not used for parents; empty if it was.
    """

    group: Group
    values: Values
    errors: Errors
    outlier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """All fits of one operation class.

    Args:
        op_class: name.
        fits: one per group.
        parents: data type → parents.
    """

    op_class: str
    fits: tuple[KernelFit, ...]
    parents: dict[str, ClassFit]


def groups_of(tables: Iterable[Measurements], chips: dict[str, Chip]) -> list[Group]:
    """Groups of the kernel tables that have enough rows to fit."""
    return [
        Group(
            chip=table.chip,
            generation=chips[table.chip].generation,
            stack=table.stack,
            stack_version=table.stack_version,
            work=amounts(table, chips[table.chip]),
            measured_s=table.seconds,
            families=table.families,
        )
        for table in tables
        if len(table.seconds) >= FEWEST_ROWS
        # products of one shape say nothing of the launch, which those of other data types take over
        and (table.table != "gemm" or len(np.unique(table.families)) > 1)
    ]


def fit_types(groups: Sequence[Group], outliers: frozenset[tuple[str, str, str, str]]) -> dict[str, ClassFit]:
    """Fit each data type; bf16 first, whose launch overhead the quantised products share."""
    by_type: dict[str, list[Group]] = {}
    for group in groups:
        by_type.setdefault(group.work.dtype, []).append(group)
    fits: dict[str, ClassFit] = {}
    for dtype in sorted(by_type, key=lambda name: (name != LAUNCH_TYPE, name)):
        members = by_type[dtype]
        excluded = frozenset((g.chip, g.stack) for g in members if g.key in outliers)
        launch = fits.get(LAUNCH_TYPE) if members[0].quantised else None
        fits[dtype] = fit_class(members, excluded=excluded, overheads=launch)
    return fits


def calibrate_class(groups: Sequence[Group]) -> ClassResult:
    """Fit the groups of one class, find outliers, fit again without them in the parents, and evaluate."""
    first = fit_types(groups, frozenset())
    reasons = gross_outliers([(g, first[g.work.dtype].by_group[g.chip, g.stack]) for g in groups])
    outliers = frozenset(reasons)
    final = fit_types(groups, outliers) if outliers else first

    def predictor(halves: list[Group]) -> Callable[[Group], Array]:
        fits = fit_types(halves, outliers)
        return lambda group: seconds(fits[group.work.dtype].by_group[group.chip, group.stack], group.work)

    errors = evaluate(groups, predictor)
    return ClassResult(
        op_class=groups[0].work.op_class,
        fits=tuple(
            KernelFit(
                group=group,
                values=final[group.work.dtype].by_group[group.chip, group.stack],
                errors=error,
                outlier=reasons.get(group.key, ""),
            )
            for group, error in zip(groups, errors, strict=True)
        ),
        parents=final,
    )
