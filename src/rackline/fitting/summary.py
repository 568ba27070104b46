"""Summary of a run of `calibrate`: medians over groups, by kind of operation, beside the ideal roofline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.fitting.collectives import CUSTOM, CollectiveFit
from rackline.fitting.evaluate import Errors
from rackline.fitting.kernels import KernelFit
from rackline.fitting.run import CalibrationResult
from rackline.fitting.siblings import Disagreement

_NAMED = {
    "attention_prefill": "attention prefill",
    "attention_decode": "attention decode",
    "encoder_prefill": "encoder attention",
    "hyper_connections": "hyper-connections",
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
    "attention prefill",
    "attention decode",
    *_OF_KERNEL.values(),
    "encoder attention",
    "hyper-connections",
    "quantise",
    "moe",
    "library collectives",
    "custom all-reduce",
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
        name = "custom all-reduce" if fit.op_class == CUSTOM else "library collectives"
        found.setdefault(name, []).append(fit.errors)
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
