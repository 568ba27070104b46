"""The bubble of a training pipeline: all micro-batches forward, a stop, all backward."""

from __future__ import annotations

from rackline.checked import Num, checked, plain


def flush_bubble_share(pipeline_stages: Num, micro_batches: Num) -> Num:
    """Share of a stage's time without work when a batch is flushed before the weights change.

    idle = (P - 1) / (M + P - 1)

    Args:
        pipeline_stages: P [count], any shape.
        micro_batches: M of one batch [count], broadcasts.

    Returns:
        Share, broadcast shape.

    Raises:
        InputError: less than one stage or micro-batch.

    Assumes: equal stages; the backward of a stage takes a fixed multiple of its forward; no overlap of batches.

    Sources: Huang et al. 2019, GPipe, arXiv:1811.06965; lecture C63 (4 stages, 4 micro-batches: 6 of 14 slots).

    >>> round(flush_bubble_share(4.0, 4.0), 3)
    0.429
    """
    p, m = checked(
        "flush_bubble_share",
        at_least_one=("pipeline_stages", "micro_batches"),
        pipeline_stages=pipeline_stages,
        micro_batches=micro_batches,
    )
    return plain((p - 1.0) / (m + p - 1.0))
