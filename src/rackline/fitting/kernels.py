"""Fit, evaluate and reject the kernel tables of one operation class, all data types and chips together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackline.fitting import modules
from rackline.fitting.amounts import amounts
from rackline.fitting.evaluate import Errors, evaluate
from rackline.fitting.fit import ClassFit, Group, fit_class, fit_line, pull_of, seconds, terms_of
from rackline.fitting.older import Older, OlderFit, older_fits
from rackline.fitting.reject import gross_outliers
from rackline.fitting.solver import Values
from rackline.fitting.tables import FEWEST_ROWS, Array, Measurements
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
        oldest_version: oldest version of the stack that it describes.
        older: numbers of versions before that.
    """

    group: Group
    values: Values
    errors: Errors
    outlier: str = ""
    oldest_version: str = ""
    older: tuple[OlderFit, ...] = ()


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
    """Groups of the kernel tables that have enough rows to fit; a kernel that was timed alone is not taken from the
    module that it is part of."""
    found: dict[tuple[str, str, str, str], Group] = {}
    for table in tables:
        if _is_enough(table):
            group = _group(table, chips[table.chip])
            found.setdefault(group.key, group)
    return list(found.values())


def _is_enough(table: Measurements) -> bool:
    """Whether a table has enough rows to fit; products of one shape say nothing of the launch, which those of other
    data types take over."""
    return len(table.seconds) >= FEWEST_ROWS and (table.table != "gemm" or len(np.unique(table.families)) > 1)


def _group(table: Measurements, chip: Chip) -> Group:
    return Group(
        chip=table.chip,
        generation=chip.generation,
        stack=table.stack,
        stack_version=table.stack_version,
        work=(modules.amounts if table.table in modules.LAYERS else amounts)(table, chip),
        measured_s=table.seconds,
        families=table.families,
        older=tuple(_group(older, chip) for older in table.older if _is_enough(older)),
        newest_s=table.newest_s,
    )


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
    fits: list[KernelFit] = []
    for group, error in zip(groups, errors, strict=True):
        values = final[group.work.dtype].by_group[group.chip, group.stack]
        oldest, older = older_fits(values, group.stack_version, [_older(one, values) for one in group.older])
        fits.append(
            KernelFit(
                group=group,
                values=values,
                errors=error,
                outlier=reasons.get(group.key, ""),
                oldest_version=oldest,
                older=older,
            )
        )
    return ClassResult(op_class=groups[0].work.op_class, fits=tuple(fits), parents=final)


def _older(group: Group, newest: Values) -> Older:
    """An older version's table. Where it shares no shapes with the newest, its times are as they were measured."""
    ratio = 1.0 if group.newest_s is None else seconds(newest, group.work) / group.newest_s
    return version_of(group, newest, group.measured_s * ratio)


def version_of(group: Group, known: Values, target_s: Array) -> Older:
    """A version's table with its model; what only the benchmark has is as in known numbers, and so is the launch of
    quantised products.

    Args:
        target_s: times that it is fitted to [s], shape (rows,).
    """
    terms = terms_of(group.work)
    kept = ("cached", "quantise_s", *(("overhead_s",) if group.quantised else ()))
    fixed = {name: known[name] for name in kept if name in known}

    def fit(rows: npt.NDArray[np.bool_], towards: Values) -> Values:
        return fit_line(terms, group.work.take(rows), target_s[rows], towards, pull_of(group.work), fixed)

    return Older(
        stack_version=group.stack_version,
        target_s=target_s,
        predict=lambda values: seconds(values, group.work),
        fit=fit,
    )
