"""From tables to calibrations: fit all classes on several processes, reject, compare siblings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackline.arch import Model
from rackline.fitting import modules
from rackline.fitting.amounts import amounts
from rackline.fitting.collectives import CollectiveFit, calibrate_collectives
from rackline.fitting.evaluate import Errors, Older, OlderFit, evaluate, older_fits
from rackline.fitting.fit import ClassFit, Group, fit_class, fit_line, pull_of, seconds, terms_of
from rackline.fitting.reject import (
    Disagreement,
    Key,
    LayerShapes,
    alone_against_siblings,
    bad_fit,
    disagreements,
    gross_outliers,
    layer_shapes,
    layer_work,
    pass_seconds,
)
from rackline.fitting.solver import Values
from rackline.fitting.tables import FEWEST_ROWS, FORMATS, Array, Measurements
from rackline.hardware import Chip
from rackline.processes import mapped

COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """Result of a calibration run.

    Args:
        kernels: every fit of a kernel table, rejected ones included.
        parents: class → data type → parents.
        collectives: every fit of a collective.
        rejected: (chip, stack, class, data type) → reason.
        disagreements: accepted fits that differ from a sibling on the layers of the catalogue's models.
        rows, older_rows, slower_rows: used; left out as of older versions, as slower kernels [count].
    """

    kernels: tuple[KernelFit, ...]
    parents: Mapping[str, Mapping[str, ClassFit]]
    collectives: tuple[CollectiveFit, ...]
    rejected: Mapping[Key, str]
    disagreements: tuple[Disagreement, ...]
    rows: int
    older_rows: int
    slower_rows: int


def calibrate(
    tables: Sequence[Measurements],
    *,
    chips: Mapping[str, Chip],
    links: Mapping[str, float],
    in_network: Collection[str] = (),
    scale_out: Mapping[str, float] | None = None,
    models: Iterable[Model],
    processes: int = 2,
    done: Callable[[str, int, int], None] | None = None,
) -> CalibrationResult:
    """Fit all tables.

    Args:
        tables: as `read_tables` returns them.
        chips: name → chip.
        links: chip name → scale-up bytes/s each way.
        in_network: chips whose switches add up and multicast.
        scale_out: chip name → bytes/s each way beyond its domain.
        models: models on whose layers siblings are compared.
        processes: number of processes; 1 runs everything in this one [count].
        done: called with (what, finished, all) after each class.

    Returns:
        Fits, errors, rejections and disagreements.
    """
    by_class: dict[str, list[Measurements]] = {}
    for table in tables:
        by_class.setdefault(FORMATS[table.table].fits[0], []).append(table)
    shared = (by_class, dict(chips), dict(links), tuple(in_network), dict(scale_out or {}))
    results = dict(mapped(_fitter, shared, list(by_class), processes, done))
    classes = [r for r in results.values() if isinstance(r, ClassResult)]
    collectives = results.get(COLLECTIVE)
    rejected, times = _judge(classes, chips, layer_shapes(models))
    return CalibrationResult(
        kernels=tuple(fit for result in classes for fit in result.fits),
        parents={result.op_class: result.parents for result in classes},
        collectives=tuple(collectives) if isinstance(collectives, list) else (),
        rejected=rejected,
        disagreements=tuple(disagreements({key: t for key, t in times.items() if key not in rejected})),
        rows=sum(len(t.seconds) for t in tables),
        older_rows=sum(t.older_rows for t in tables),
        slower_rows=sum(t.slower_rows for t in tables),
    )


def _fitter(
    by_class: Mapping[str, Sequence[Measurements]],
    chips: dict[str, Chip],
    links: Mapping[str, float],
    in_network: Collection[str],
    scale_out: Mapping[str, float],
) -> Callable[[str], ClassResult | list[CollectiveFit] | None]:
    """What fits the tables of a class; None for one with too few rows."""

    def fitted(name: str) -> ClassResult | list[CollectiveFit] | None:
        if name == COLLECTIVE:
            return calibrate_collectives(by_class[name], links, in_network, scale_out)
        groups = groups_of(by_class[name], chips)
        return calibrate_class(groups) if groups else None

    return fitted


def _judge(
    classes: Sequence[ClassResult], chips: Mapping[str, Chip], shapes: LayerShapes
) -> tuple[dict[Key, str], dict[Key, Array]]:
    """Reasons to reject, and seconds on the layer shapes of every fit."""
    rejected: dict[Key, str] = {}
    times: dict[Key, Array] = {}
    for result in classes:
        for dtype, parents in result.parents.items():
            fits = [fit for fit in result.fits if fit.group.work.dtype == dtype]
            medians = [fit.errors.median_error for fit in fits if fit.errors.median_error is not None]
            usual = float(np.median(medians)) if medians else 0.0
            for fit in fits:
                work = layer_work(shapes, chips[fit.group.chip], result.op_class, dtype)
                if work is not None:
                    times[fit.group.key] = pass_seconds(fit.values, work)
            for fit in fits:
                reason = fit.outlier or bad_fit(
                    fit.group,
                    fit.values,
                    fit.errors,
                    parents=(parents.parent(fit.group.generation), parents.everywhere),
                    usual_median=usual,
                    over_siblings=_over_siblings(fit, fits, times),
                )
                if reason:
                    rejected[fit.group.key] = reason
            for chip in sorted({fit.group.chip for fit in fits}):
                sound = {
                    f.group.stack: times[f.group.key]
                    for f in fits
                    if f.group.chip == chip and f.group.key in times and f.group.key not in rejected
                }
                for stack, reason in alone_against_siblings(sound).items():
                    rejected[chip, stack, result.op_class, dtype] = reason
    return rejected, times


def _over_siblings(fit: KernelFit, fits: Sequence[KernelFit], times: Mapping[Key, Array]) -> float | None:
    """Median over layer shapes of its time over that of its fastest sibling that is no outlier."""
    others = [
        times[f.group.key]
        for f in fits
        if f.group.chip == fit.group.chip and f is not fit and not f.outlier and f.group.key in times
    ]
    if not others or fit.group.key not in times:
        return None
    return max(float(np.median(times[fit.group.key] / other)) for other in others)


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
