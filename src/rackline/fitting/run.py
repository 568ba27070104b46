"""From tables to calibrations: fit all classes on several processes, reject, compare siblings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rackline.arch import Model
from rackline.fitting.collectives import CollectiveFit, calibrate_collectives
from rackline.fitting.fit import ClassFit
from rackline.fitting.kernels import ClassResult, KernelFit, calibrate_class, groups_of
from rackline.fitting.reject import Key, alone_against_siblings, bad_fit
from rackline.fitting.siblings import (
    Disagreement,
    LayerShapes,
    disagreements,
    layer_shapes,
    layer_work,
    pass_seconds,
)
from rackline.fitting.tables import FORMATS, Array, Measurements
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
