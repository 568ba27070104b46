"""What `calibrate` shows: errors by kind, rejected fits, siblings that disagree, a figure, a summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.console import Group, RenderableType

from rackline.display.axes import BAR_HEIGHT, Layer, Measure, Row, colour, hovered, log_axis, nothing_figure
from rackline.display.column import Column, Sheet
from rackline.display.figure import Figure
from rackline.display.wording import percent
from rackline.fitting.collectives import CUSTOM, CollectiveFit
from rackline.fitting.fit import KernelFit
from rackline.fitting.onboard import OnboardedGroup, Onboarding
from rackline.fitting.run import CalibrationResult, Disagreement
from rackline.fitting.solver import Errors

_NAMED = {
    "attention_prefill": "attention prefill",
    "attention_decode": "attention decode",
    "encoder_prefill": "encoder attention",
    "hyper_connections": "hyper-connections",
    "latent_product": "latent products",
}
_OF_KERNEL = {
    "mla": "mla",
    "sparse": "sparse attention",
    "compressed_sparse": "compressed attention, picked",
    "compressed": "compressed attention, whole",
    "block_sparse": "block-sparse attention",
    "gated_delta": "gated delta nets",
    "kda": "Kimi delta attention",
    "convolution": "convolutions of states",
}
KINDS = (
    "gemm bf16",
    "gemm fp8 and fp4",
    "gemm integer weights",
    "latent products",
    "attention prefill",
    "attention decode",
    *_OF_KERNEL.values(),
    "encoder attention",
    "hyper-connections",
    "quantise",
    "moe",
    "library collectives",
    "custom all-reduce",
    "expert exchange",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindErrors:
    """Median over groups (chip, stack, data type) of each group's errors [fraction]; NaN where nothing was tested.

    Args:
        kind: of operation.
        groups: how many [count].
        median_error, p90_error: on random halves that were not fitted.
        family_median_error, family_p90_error: on whole families that were not fitted.
        ideal_median_error, ideal_p90_error: of the ideal roofline.
    """

    kind: str
    groups: int
    median_error: float
    p90_error: float
    family_median_error: float
    family_p90_error: float
    ideal_median_error: float
    ideal_p90_error: float


def kind_of(op_class: str, dtype: str) -> str:
    """Kind that a class and data type are reported under."""
    if op_class == "gemm":
        if dtype == "bf16":
            return "gemm bf16"
        return "gemm fp8 and fp4" if dtype in ("fp8", "fp8_block", "fp4") else "gemm integer weights"
    return _NAMED.get(op_class) or _OF_KERNEL.get(op_class.rpartition("_")[0], op_class)


def errors_by_kind(result: CalibrationResult) -> tuple[KindErrors, ...]:
    """Medians over all groups, rejected ones included."""
    found: dict[str, list[Errors]] = {}
    for fit in result.kernels:
        found.setdefault(kind_of(fit.group.work.op_class, fit.group.work.dtype), []).append(fit.errors)
    for fit in result.collectives:
        own = "custom all-reduce" if fit.op_class == CUSTOM else "expert exchange"
        found.setdefault(own if fit.of_stack else "library collectives", []).append(fit.errors)
    return tuple(_medians(kind, found[kind]) for kind in KINDS if kind in found)


def _medians(kind: str, errors: Iterable[Errors]) -> KindErrors:
    members = list(errors)

    def middle(name: str) -> float:
        values = [value for value in (getattr(e, name) for e in members) if value is not None]
        return float(np.median(values)) if values else float("nan")

    return KindErrors(
        kind=kind,
        groups=len(members),
        median_error=middle("median_error"),
        p90_error=middle("p90_error"),
        family_median_error=middle("family_median_error"),
        family_p90_error=middle("family_p90_error"),
        ideal_median_error=middle("ideal_median_error"),
        ideal_p90_error=middle("ideal_p90_error"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedGroup:
    """A fit of kernels, and why it was rejected; empty where it was not."""

    json_keys: ClassVar = (
        "chip=fit.group.chip",
        "stack=fit.group.stack",
        "stack_version=fit.group.stack_version",
        "class=fit.group.work.op_class",
        "dtype=fit.group.work.dtype",
        "values=fit.values",
        "*fit.errors",
        "rejected",
    )

    fit: KernelFit
    rejected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A group that was rejected, and why."""

    json_keys: ClassVar = ("chip", "stack", "class=op_class", "dtype", "reason")

    chip: str
    stack: str
    op_class: str
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run as it is written.

    Args:
        rows, older_rows, slower_rows: used; left out as of older versions, as slower kernels [count].
        kinds: medians of the errors.
        groups, collectives: fits with parameters and errors.
        rejected: with reasons.
        disagreements: between stacks on one chip.
    """

    rows: int
    older_rows: int
    slower_rows: int
    kinds: tuple[KindErrors, ...]
    groups: tuple[FittedGroup, ...]
    collectives: tuple[CollectiveFit, ...]
    rejected: tuple[Rejected, ...]
    disagreements: tuple[Disagreement, ...]


def summary(result: CalibrationResult) -> Summary:
    """Rows, kinds, groups with parameters and errors, what was rejected, disagreements."""
    return Summary(
        rows=result.rows,
        older_rows=result.older_rows,
        slower_rows=result.slower_rows,
        kinds=errors_by_kind(result),
        groups=tuple(FittedGroup(fit=one, rejected=result.rejected.get(one.group.key, "")) for one in result.kernels),
        collectives=result.collectives,
        rejected=tuple(
            Rejected(chip=chip, stack=stack, op_class=op_class, dtype=dtype, reason=reason)
            for (chip, stack, op_class, dtype), reason in sorted(result.rejected.items())
        ),
        disagreements=result.disagreements,
    )


def calibrate_report(result: CalibrationResult, files: Sequence[str]) -> RenderableType:
    """Errors on held-out shapes and those of the ideal roofline; then rejected fits, with the reasons."""
    columns: list[Column[KindErrors]] = [
        Column("kind", "kind"),
        Column("groups", "groups", "whole"),
        Column("median_error", "random half", "share"),
        Column("p90_error", "p90", "share"),
        Column("family_median_error", "whole families", "share"),
        Column("family_p90_error", "p90", "share"),
        Column("ideal_median_error", "ideal roofline", "share", priority=1),
        Column("ideal_p90_error", "p90", "share", priority=1),
    ]
    title = "error on held-out shapes, median over groups (median and p90 of a group)"
    table = Sheet("errors", columns, errors_by_kind(result), title)
    lines = [
        f"{result.rows} shapes; left out: {result.slower_rows} slower kernels of the same shape, "
        f"{result.older_rows} rows of older versions."
    ]
    if result.rejected:
        lines += ["", "Rejected, these fall back to another stack on the chip or to its generation:"]
        lines += [f"  {' '.join(key)}: {reason}" for key, reason in sorted(result.rejected.items())]
    if result.disagreements:
        lines += ["", "Stacks that differ by more than 1.5x on the layers of the catalogue's models:"]
        lines += [
            f"  {item.chip} {item.op_class} {item.dtype}: {item.slower} {item.ratio:.1f}x {item.faster} "
            f"(p90 {item.largest_ratio:.1f}x)"
            for item in result.disagreements
        ]
    lines += ["", "Written: " + (", ".join(files) or "nothing; -o FILE.toml or a folder keeps the fits")]
    return Group(table, "\n".join(lines))


def worse_groups(found: Onboarding) -> list[str]:
    """One line for each group that is described worse than its stored entry says of itself."""
    return [
        f"{one.chip} {one.stack} {one.op_class} {one.dtype}: {one.error:.1%} on rows not fitted, before "
        f"{one.stated_error:.1%}"
        for one in found.groups
        if one.is_worse
    ]


def onboarding_report(
    found: Onboarding,
    changes: Sequence[tuple[str, int, float, float, float, float]],
    worse: Sequence[str],
    files: Sequence[str],
) -> RenderableType:
    """What became of a release or chip: errors group by group, servings before and after, what got worse.

    Args:
        changes: of measured servings, as `rackline.validation.run.Rescored` has them.
        worse: one line each.
        files: that were written.
    """
    columns: list[Column[OnboardedGroup]] = [
        Column("kernels", "kernels", "words", lambda one: f"{one.chip} {one.stack} {one.op_class} {one.dtype}"),
        Column("errors.rows", "rows", "whole"),
        Column("", "random half", "figures", lambda one: _both(one.errors.median_error, one.errors.p90_error)),
        Column(
            "",
            "whole families",
            "figures",
            lambda one: _both(one.errors.family_median_error, one.errors.family_p90_error),
        ),
        Column("stored_error", "stored numbers", "share"),
        Column(
            "", "stored", "figures", lambda one: one.stored_version and f"{one.stored_version}: {one.stated_error:.1%}"
        ),
        Column("", "now", "words", lambda one: f"{one.verdict}: {one.reason}" if one.reason else one.verdict),
    ]
    table = Sheet("groups", columns, found.groups, "error on rows that were not fitted (median / p90)")
    lines = [
        f"{name}, {cases:,} cases: {_pair(*before)} before, {_pair(*after)} now"
        for name, cases, *errors in changes
        for before, after in [(errors[:2], errors[2:])]
    ]
    lines += ["", "Worse than what was stored:", *(f"  {line}" for line in worse)] if worse else ["", "Nothing worse."]
    return Group(table, "\n".join([*lines, "", "Written: " + (", ".join(files) or "nothing")]))


def _both(median: float | None, p90: float | None) -> str:
    return "-" if median is None or p90 is None else _pair(median, p90)


def _pair(median: float, p90: float) -> str:
    return "-" if math.isnan(median) else f"{median:.1%} / {p90:.0%}"


_KIND = Measure(field="kind", title="operation")
_GROUPS = Measure(field="groups", title="groups of chip, stack and data type", kind="count")
_TESTED = {
    "halves not fitted": ("median_error", "p90_error"),
    "families not fitted": ("family_median_error", "family_p90_error"),
    "ideal roofline": ("ideal_median_error", "ideal_p90_error"),
}


def errors_figure(kinds: Sequence[KindErrors], rows_read: int) -> Figure:
    """Median and 90th percentile of the errors of each kind of operation, beside those of the ideal roofline.

    Args:
        kinds: medians over groups.
        rows_read: rows of the tables [count].
    """
    rows: list[Row] = []
    for one in kinds:
        for tested, (median, p90) in _TESTED.items():
            low, high = getattr(one, median), getattr(one, p90)
            if math.isfinite(low) and math.isfinite(high) and low > 0:
                where = {"kind": one.kind, "groups": one.groups, "series": tested}
                rows.append({**where, "median": low, "p90": high})
    title = "Errors of the fit by kind of operation"
    if not rows:
        return nothing_figure(title, "No group has enough rows for a held-out test.")
    middle, worst = (
        Measure(field=name, title=text, kind="share")
        for name, text in (("median", "absolute error"), ("p90", "90th percentile"))
    )
    names = list(dict.fromkeys(row["kind"] for row in rows))
    used = [name for name in _TESTED if any(row["series"] == name for row in rows)]
    x = log_axis(middle, [value for row in rows for value in (row["median"], row["p90"])])
    y: Layer = {"field": "kind", "type": "nominal", "sort": names, "title": None}
    y |= {"axis": {"labelLimit": 260, "ticks": False, "domain": False, "grid": True}}
    shift: Layer = {"field": "series", "type": "nominal", "scale": {"domain": list(_TESTED), "paddingOuter": 0.3}}
    place: Layer = {"x": x, "y": y, "yOffset": shift, "color": colour(list(_TESTED), used=used)}
    shown = [_KIND, _GROUPS, Measure(field="median", title="median", kind="share"), worst]
    fitted = [row["median"] for row in rows if row["series"] == used[0]]
    return Figure(
        title=title,
        subtitle=f"dot: median; line: to the 90th percentile; {rows_read:,} rows",
        description=f"Median and 90th percentile of absolute errors for {len(names)} kinds of operations on log axes, "
        f"on random halves and families that were not fitted and of the ideal roofline. "
        f"Medians of the first lie within {percent(min(fitted))} to {percent(max(fitted))}.",
        spec={
            "data": {"values": rows},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 2},
                    "encoding": {**place, "x2": {"field": "p90"}},
                },
                hovered({"type": "point", "size": 70}, place, shown),
            ],
        },
        height=3 * BAR_HEIGHT * len(names) // 2 + BAR_HEIGHT,
    )
