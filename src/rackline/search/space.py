"""The search space of a plan, and the limits it must meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rackline.arch import AggregateModel, AnyModel
from rackline.errors import InputError
from rackline.hardware import Chip
from rackline.parallel import Layout, Precision, precision
from rackline.passes.features import Array
from rackline.search.launch_rules import LaunchRules
from rackline.serving.workload import Mode
from rackline.units import Quantity, parse_limit

# Sequences per attention-dp rank: every power of two, and its 3/2; the best is refined to a whole batch afterwards.
BATCH_GRID = np.unique(np.array([1, 2, 3] + [2**e * q // 2 for e in range(2, 13) for q in (2, 3)], dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits of a plan.

    Args:
        tpot_s: largest time per output token, None for no limit [s].
        ttft_s: largest time to first token, None for no limit [s].
        tpot_percentile, ttft_percentile: of the requests that must keep it, below 100; None limits the mean.
        memory_fraction: share of HBM that the server may use.

    Raises:
        InputError: a limit that is not positive, a fraction outside (0, 1].
    """

    tpot_s: float | None = None
    ttft_s: float | None = None
    tpot_percentile: float | None = None
    ttft_percentile: float | None = None
    memory_fraction: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("tpot_s", self.tpot_s), ("ttft_s", self.ttft_s)):
            if value is not None and not value > 0:
                raise InputError(what=name, given=value, allowed="more than 0 s", nearest="0.03")
        for name, place in (("tpot_percentile", self.tpot_percentile), ("ttft_percentile", self.ttft_percentile)):
            if place is not None and not 0.0 < place < 100.0:
                raise InputError(what=name, given=place, allowed="above 0 and below 100", nearest="99")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise InputError(what="memory_fraction", given=self.memory_fraction, allowed="above 0 to 1", nearest="0.9")

    @classmethod
    def of(cls, tpot: Quantity | None, ttft: Quantity | None, memory_fraction: float = 0.9) -> Constraints:
        """Limits as they are written: such as 0.03 [s], "30ms" or "2s@p99"; None for no limit.

        Raises:
            InputError: another form.
        """
        tpot_s, tpot_percentile = (None, None) if tpot is None else parse_limit(tpot, name="tpot")
        ttft_s, ttft_percentile = (None, None) if ttft is None else parse_limit(ttft, name="ttft")
        return cls(
            tpot_s=tpot_s,
            ttft_s=ttft_s,
            tpot_percentile=tpot_percentile,
            ttft_percentile=ttft_percentile,
            memory_fraction=memory_fraction,
        )

    def latencies(self) -> list[tuple[str, float, float | None]]:
        """(name, limit [s], percentile or None for the mean) of those that are limited."""
        given = (
            ("tpot_s", self.tpot_s, self.tpot_percentile),
            ("ttft_s", self.ttft_s, self.ttft_percentile),
        )
        return [(name, limit, percentile) for name, limit, percentile in given if limit is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a plan may choose from; None for all that there is.

    Args:
        precisions: see `default_precisions`.
        modes: schedulers; see `default_modes`.
        layouts: see `rackline.parallel.enumerate_layouts`.
        batches: sequences per rank, shape (batches,); see `BATCH_GRID`.
        rules: what the engine launches; those of the calibration's stack by default.
        any_layout: also layouts that the engine does not launch.
    """

    precisions: Sequence[Precision] | None = None
    modes: Sequence[Mode] | None = None
    layouts: Sequence[Layout] | None = None
    batches: Array | None = None
    rules: LaunchRules | None = None
    any_layout: bool = False


def default_precisions(model: AnyModel, chip: Chip) -> list[Precision]:
    """Precisions worth looking at: the released type and every narrower one that the chip multiplies.

    Each with the KV cache in bf16 and in fp8.
    """
    widths = {
        "fp32": 4,
        "bf16": 3,
        "fp16": 3,
        "int8": 2,
        "fp8": 2,
        "mxfp8": 2,
        "int4": 1,
        "fp4": 1,
        "mxfp4": 1,
        "q4_k_m": 1,
    }
    native = widths.get(model.native_precision.partition(",")[0], 3)
    labels = ["native"]
    if native >= 3 and chip.supports("fp8"):
        labels.append("fp8")
    if native >= 3 and not chip.supports("fp8") and chip.supports("int8"):
        labels.append("int8")
    if native >= 2 and chip.supports("fp4"):
        labels.append("fp4")
    if isinstance(model, AggregateModel):
        return [precision(label, model, chip) for label in labels]
    kv_types = ("bf16", "fp8") if chip.supports("fp8") else ("bf16",)
    return [precision(f"{label},kv={kv}", model, chip) for label in labels for kv in kv_types]


def default_modes(model: AnyModel) -> list[Mode]:
    """Schedulers worth looking at: chunked prefill with four budgets, prefill first; each also overlapped."""
    plain = [
        Mode(admission="chunked", max_batched_tokens=512),
        Mode(admission="chunked", max_batched_tokens=1024),
        Mode(admission="chunked", max_batched_tokens=2048),
        Mode(admission="chunked", max_batched_tokens=8192),
        Mode(admission="prefill_first", max_batched_tokens=16384),
    ]
    if not model.is_moe or isinstance(model, AggregateModel):
        return plain
    return plain + [
        Mode(
            admission=mode.admission,
            max_batched_tokens=mode.max_batched_tokens,
            two_batch_overlap=True,
        )
        for mode in plain
    ]
