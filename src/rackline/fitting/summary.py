"""Summary of a run of `calibrate`: medians over groups, by kind of operation, beside the ideal roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rackline.fitting.collectives import CUSTOM
from rackline.fitting.evaluate import Errors
from rackline.fitting.run import CalibrationResult

KINDS = (
    "gemm bf16",
    "gemm fp8 and fp4",
    "gemm integer weights",
    "attention prefill",
    "attention decode",
    "mla",
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
    if op_class.startswith("mla"):
        return "mla"
    return {"attention_prefill": "attention prefill", "attention_decode": "attention decode"}.get(op_class, op_class)


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


def as_dict(result: CalibrationResult) -> Mapping[str, Any]:
    """Plain data of a run: rows, kinds, groups with parameters and errors, rejected, disagreements."""
    groups = [
        {
            "chip": fit.group.chip,
            "stack": fit.group.stack,
            "stack_version": fit.group.stack_version,
            "class": fit.group.work.op_class,
            "dtype": fit.group.work.dtype,
            "values": fit.values,
            **asdict(fit.errors),
            "rejected": result.rejected.get(fit.group.key, ""),
        }
        for fit in result.kernels
    ]
    collectives = [
        {
            "chip": fit.chip,
            "stack": fit.stack,
            "stack_version": fit.stack_version,
            "class": fit.op_class,
            "group_size": fit.group_size,
            "values": fit.values,
            **asdict(fit.errors),
        }
        for fit in result.collectives
    ]
    return {
        "rows": result.rows,
        "older_rows": result.older_rows,
        "slower_rows": result.slower_rows,
        "kinds": [asdict(kind) for kind in errors_by_kind(result)],
        "groups": groups,
        "collectives": collectives,
        "rejected": [
            {"chip": chip, "stack": stack, "class": op_class, "dtype": dtype, "reason": reason}
            for (chip, stack, op_class, dtype), reason in sorted(result.rejected.items())
        ],
        "disagreements": [asdict(item) for item in result.disagreements],
    }
