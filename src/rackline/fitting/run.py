"""From tables to calibrations: all classes fitted on several processes, fits rejected, siblings compared.

A fit is rejected at a bound, where it is implausible for its kind, or of another kernel class than the rest. It is left
out of its stack's file with its reason, so that a reader of the file falls back to the same chip under another stack,
else to the chip's generation, else to all chips.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rackline.arch import Model, MoeFfn
from rackline.arch.kinds import LATENT_KERNELS
from rackline.fitting.amounts import KV_TYPES, PREFILL_TYPES, PRODUCTS, Amounts, amounts
from rackline.fitting.collectives import CollectiveFit, calibrate_collectives
from rackline.fitting.fit import (
    ClassFit,
    ClassResult,
    Group,
    KernelFit,
    evaluate,
    fit_types,
    groups_of,
    older_of,
    seconds,
)
from rackline.fitting.solver import Errors, Values, grouped, older_fits
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
    by_class = grouped(tables, lambda table: FORMATS[table.table].fits[0])
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


def calibrate_class(groups: Sequence[Group]) -> ClassResult:
    """Fit the groups of one class, find outliers, fit again without them in the parents, and evaluate."""
    first = fit_types(groups, frozenset())
    reasons = gross_outliers([(g, first[g.work.dtype].by_group[g.chip, g.stack]) for g in groups])
    outliers = frozenset(reasons)
    final = fit_types(groups, outliers) if outliers else first

    def predictor(halves: list[Group]) -> Callable[[Group], Array]:
        fits = fit_types(halves, outliers)
        return lambda group: seconds(fits[group.work.dtype].by_group[group.chip, group.stack], group.work)

    fits: list[KernelFit] = []
    for group, error in zip(groups, evaluate(groups, predictor), strict=True):
        values = final[group.work.dtype].by_group[group.chip, group.stack]
        oldest, older = older_fits(values, group.stack_version, [older_of(one, values) for one in group.older])
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


_OVERHEAD_TIMES_MEDIAN = 5.0
_EAGER_S = 80e-6
_FASTER, _FASTER_ROWS = 1.5, 0.1
_NEAR_ONE, _NEAR_ZERO = 0.9995, 0.03
_BINDING_SHARE = 0.2
_WORST_P90 = 0.6
_WORST_MEDIAN = 0.15
_UNUSUAL_MEDIAN = 0.2
_TIMES_KIND = 2.0
_TIMES_PARENT_ETA = 2.5
_EAGER_QUANTISE_S = 40e-6
_HOST_SHARE = 0.3

Key = tuple[str, str, str, str]


def constant_s(values: Values) -> float:
    """Time of a call without work: launch and quantisation [s]."""
    return values.get("overhead_s", 0.0) + values.get("quantise_s", 0.0)


def gross_outliers(fits: Sequence[tuple[Group, Values]]) -> dict[Key, str]:
    """Groups whose constant is far above that of the others of their class, or that no memory could serve.

    Returns:
        Key of the group → reason.
    """
    reasons: dict[Key, str] = {}
    by_class: dict[str, list[float]] = {}
    for group, values in fits:
        by_class.setdefault(group.work.op_class, []).append(constant_s(values))
    for group, values in fits:
        usual = float(np.median(by_class[group.work.op_class]))
        own = constant_s(values)
        if own > _OVERHEAD_TIMES_MEDIAN * usual and own > _EAGER_S:
            reasons[group.key] = (
                f"{own * 1e6:.0f} us per call without work, {own / usual:.0f}x the median of its class: host-bound call"
            )
        beyond = np.mean((group.work.memory_s - group.work.cache_s) > _FASTER * group.measured_s)
        if beyond > _FASTER_ROWS and not group.work.others:
            reasons[group.key] = f"{beyond:.0%} of its calls move their bytes faster than the memory of the chip can"
    return reasons


def bad_fit(
    group: Group,
    values: Values,
    errors: Errors,
    *,
    parents: Sequence[Values],
    usual_median: float,
    over_siblings: float | None,
) -> str:
    """Why a fit cannot be used by itself; empty if it can.

    Args:
        group: the rows.
        values: the fit.
        errors: on what it did not see.
        parents: numbers of the generation and of all chips.
        usual_median: median error of the fits of this class and data type.
        over_siblings: time over that of the other stacks on the chip, on the layers of the catalogue; None if alone.
    """
    if values.get("quantise_s", 0.0) > _EAGER_QUANTISE_S:
        return f"{values['quantise_s'] * 1e6:.0f} us of a separate quantisation per call: host-bound call"
    binding = group.work.compute_s / values.get("eta_compute", 1.0) > group.work.memory_s / values["eta_memory"]
    for name, share in (("eta_compute", np.mean(binding)), ("eta_memory", np.mean(~binding))):
        own = values.get(name, 0.0)
        if share < _BINDING_SHARE or name not in values:
            continue
        if own > _NEAR_ONE or own < _NEAR_ZERO:
            return f"{name} sits at its bound ({own:.3g})"
        usual = max(parent[name] for parent in parents)
        if over_siblings is not None and over_siblings > DISAGREEMENT and own * _TIMES_PARENT_ETA < usual:
            return (
                f"{name} {own:.2f}, {usual:.2f} is usual, and {over_siblings:.1f}x the time of its siblings: "
                "another class of kernel"
            )
    if errors.median_error is None or errors.p90_error is None:
        return "too few rows to test"
    if errors.median_error > errors.ideal_median_error:
        return "no better than the peaks alone"
    fallback = float(np.median(np.abs(seconds(parents[0], group.work) / group.measured_s - 1.0)))
    if fallback > errors.median_error:
        return ""  # a poor fit of the right kernel is better than a good one of others
    if errors.p90_error > _WORST_P90 and errors.median_error > _WORST_MEDIAN:
        return f"error {errors.median_error:.0%} / {errors.p90_error:.0%} (median / p90) on shapes not fitted"
    if errors.median_error > max(_TIMES_KIND * usual_median, _UNUSUAL_MEDIAN):
        return f"median error {errors.median_error:.0%}, {usual_median:.0%} is usual for its kind"
    return ""


def host_bound_chips(fits: Iterable[CollectiveFit]) -> dict[str, str]:
    """Chips whose collectives were limited by the host that they were measured on, not by their links.

    The share of the link rate that a larger group reaches must not fall to a small part of what two chips reach.

    Returns:
        Chip → reason.
    """
    reached: dict[str, dict[int, float]] = {}
    for fit in fits:
        sizes = reached.setdefault(fit.chip, {})
        sizes[fit.group_size] = min(fit.values["eta_link"], sizes.get(fit.group_size, 1.0))
    reasons: dict[str, str] = {}
    for chip, sizes in reached.items():
        first, worst = sizes[min(sizes)], min(sizes, key=lambda size: sizes[size])
        if sizes[worst] < _HOST_SHARE * first:
            reasons[chip] = (
                f"{worst} ranks reach {sizes[worst]:.2f} of the link in collectives, {min(sizes)} reach {first:.2f}: "
                "limited by the host"
            )
    return reasons


def alone_against_siblings(times: Mapping[str, Array]) -> dict[str, str]:
    """Stacks on one chip that differ from two others which agree with each other.

    Args:
        times: stack → seconds on the layer shapes of the catalogue.

    Returns:
        Stack → reason.

    >>> alone_against_siblings({"a": np.ones(3), "b": np.ones(3) * 1.1, "c": np.ones(3) * 2})
    {'c': '1.9x its siblings a, b on the layers of the catalogue'}
    """
    if len(times) < 3:
        return {}
    reasons: dict[str, str] = {}
    for stack, own in times.items():
        others = {name: t for name, t in times.items() if name != stack}
        within = [float(np.median(a / b)) for a in others.values() for b in others.values()]
        if max(within) > DISAGREEMENT:
            continue
        middle = np.exp(np.mean([np.log(t) for t in others.values()], axis=0))
        ratio = float(np.median(own / middle))
        if max(ratio, 1.0 / ratio) > DISAGREEMENT:
            names = ", ".join(sorted(others))
            reasons[stack] = f"{ratio:.1f}x its siblings {names} on the layers of the catalogue"
    return reasons


DISAGREEMENT = 1.5
_TP = (1, 8)
_TOKENS = (1.0, 8.0, 64.0, 512.0, 4096.0)
_DECODE = ((1.0, 4096.0), (16.0, 2048.0), (64.0, 2048.0), (64.0, 16384.0))
_PREFILL = ((1.0, 1024.0), (4.0, 2048.0), (1.0, 8192.0))
_BENCHMARK_ONLY = ("cached", "quantise_s")  # a pass finds no KV in the cache and quantises in the kernel before

LayerShapes = Mapping[str, Sequence[tuple[float, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two stacks on one chip that differ by more than DISAGREEMENT on the layers of the catalogue's models.

    Args:
        chip, op_class, dtype: what was compared.
        slower, faster: stacks.
        ratio: median over shapes of slower / faster [1].
        largest_ratio: 90th percentile of it [1].
    """

    chip: str
    op_class: str
    dtype: str
    slower: str
    faster: str
    ratio: float
    largest_ratio: float


def layer_shapes(models: Iterable[Model]) -> dict[str, list[tuple[float, ...]]]:
    """Shapes of the layers of models, whole and over 8 chips, by table; sorted, without repeats."""
    found: dict[str, set[tuple[float, ...]]] = {}
    for model in models:
        for group in model.layer_groups:
            attention, ffn = group.attention, group.ffn
            projections = list(attention.projections(model.d_model))
            expansion = attention.expansion()
            projections += [expansion] if expansion else []
            if isinstance(ffn, MoeFfn):
                expert = (model.d_model, ffn.d_expert, ffn.experts_per_token, ffn.num_experts)
                for ep in _TP:
                    if ffn.num_experts % ep == 0:
                        cases = {(t, *map(float, expert), 1.0, float(ep)) for t in _TOKENS}
                        found.setdefault("moe", set()).update(cases)
            else:
                projections += list(ffn.projections(model.d_model))
            for tp in _TP:
                sizes = {(float(p.shard_out(tp)), float(p.shard_in(tp))) for p in projections}
                found.setdefault("gemm", set()).update((m, n, k) for m in _TOKENS for n, k in sizes)
                heads = float(np.ceil(attention.num_q_heads / tp))
                if attention.kernel in LATENT_KERNELS:
                    found.setdefault("mla_decode", set()).update((b, c, heads) for b, c in _DECODE)
                    found.setdefault("mla_prefill", set()).update((b, t, heads) for b, t in _PREFILL)
                    continue
                gqa = (heads, float(np.ceil(attention.num_kv_heads / tp)), attention.decode_flop_per_pair / 4.0)
                found.setdefault("attention_decode", set()).update((b, c, *gqa) for b, c in _DECODE)
                found.setdefault("attention_prefill", set()).update((b, t, *gqa) for b, t in _PREFILL)
    return {name: sorted(shapes) for name, shapes in sorted(found.items())}


_COLUMNS = {
    "gemm": ("m", "n", "k"),
    "moe": ("tokens", "d_model", "d_ff", "top_k", "num_experts", "moe_tp", "ep"),
    "attention_decode": ("batch", "context", "q_heads", "kv_heads", "head_dim"),
    "attention_prefill": ("batch", "tokens", "q_heads", "kv_heads", "head_dim"),
    "mla_decode": ("batch", "context", "q_heads"),
    "mla_prefill": ("batch", "tokens", "q_heads"),
}


def _labels(op_class: str, dtype: str) -> tuple[str, ...]:
    """Label columns whose table has this data type."""
    if op_class in ("gemm", "moe"):
        return (next(name for name, product in PRODUCTS.items() if product.key == dtype),)
    if op_class.endswith("decode"):
        return ("bfloat16", next(name for name, key in KV_TYPES.items() if key == dtype))
    return next(pair for pair, (key, _, _) in PREFILL_TYPES.items() if key == dtype)


def layer_work(shapes: LayerShapes, chip: Chip, op_class: str, dtype: str) -> Amounts | None:
    """Amounts of the layer shapes of a class on a chip; None if no model has such a layer."""
    rows = shapes.get(op_class)
    if not rows:
        return None
    columns = dict(zip(_COLUMNS[op_class], np.array(rows, dtype=np.float64).T, strict=True))
    count = len(rows)
    table = Measurements(
        table=op_class,
        chip=chip.name,
        stack="",
        stack_version="",
        labels=_labels(op_class, dtype),
        columns=columns,
        words={"distribution": ("balanced",) * count} if op_class == "moe" else {},
        seconds=np.ones(count),
        families=np.zeros(count, dtype=np.int64),
    )
    return amounts(table, chip)


def pass_seconds(values: Values, work: Amounts) -> Array:
    """Time of the layer shapes in a pass, which has not what only the benchmark has [s]."""
    return seconds({name: value for name, value in values.items() if name not in _BENCHMARK_ONLY}, work)


def disagreements(times: Mapping[tuple[str, str, str, str], Array]) -> list[Disagreement]:
    """Pairs of stacks that differ by more than DISAGREEMENT.

    Args:
        times: (chip, stack, class, data type) → seconds on the layer shapes.
    """
    out: list[Disagreement] = []
    for (one, first), (two, second) in combinations(sorted(times.items()), 2):
        if (one[0], one[2:]) != (two[0], two[2:]):
            continue
        ratio = float(np.median(first / second))
        if max(ratio, 1.0 / ratio) > DISAGREEMENT:
            slower, faster, ratios = (one, two, first / second) if ratio > 1 else (two, one, second / first)
            out.append(
                Disagreement(
                    chip=one[0],
                    op_class=one[2],
                    dtype=one[3],
                    slower=slower[1],
                    faster=faster[1],
                    ratio=max(ratio, 1.0 / ratio),
                    largest_ratio=float(np.quantile(ratios, 0.9)),
                )
            )
    return out
