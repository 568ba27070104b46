"""What a plan may choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rackline.arch import AggregateModel, AnyModel
from rackline.parallel import Layout
from rackline.passes.features import Array
from rackline.search.launch_rules import LaunchRules
from rackline.serving.workload import Mode

# Sequences per attention-dp rank: every power of two, and its 3/2; the best is refined to a whole batch afterwards.
BATCH_GRID = np.unique(np.array([1, 2, 3] + [2**e * q // 2 for e in range(2, 13) for q in (2, 3)], dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a plan may choose from; None for all that there is.

    Args:
        modes: schedulers; see `default_modes`.
        layouts: see `rackline.parallel.enumerate_layouts`.
        batches: sequences per rank, shape (batches,); see `BATCH_GRID`.
        rules: what the engine launches; those of the calibration's stack by default.
        any_layout: also layouts that the engine does not launch.
    """

    modes: Sequence[Mode] | None = None
    layouts: Sequence[Layout] | None = None
    batches: Array | None = None
    rules: LaunchRules | None = None
    any_layout: bool = False


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
