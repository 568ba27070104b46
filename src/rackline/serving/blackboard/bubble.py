"""The bubble of a training pipeline, the cost of filling it with the next batch, and unequal stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rackline.checked import Num, checked, plain
from rackline.errors import InputError


def flush_bubble_share(pipeline_stages: Num, micro_batches: Num) -> Num:
    """Idle share of a stage's time when the pipeline is flushed before the weights change.

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


def stale_updates(pipeline_stages: Num, micro_batches: Num) -> Num:
    """Weight updates that a forward pass at the first stage misses when batches follow each other without a flush.

    u = ceil((P - 1) / M)

    Args:
        pipeline_stages: P [count], any shape.
        micro_batches: M of one batch [count], broadcasts.

    Returns:
        Updates [count], broadcast shape; the number of older weight versions kept for the backward pass.

    Raises:
        InputError: less than one stage or micro-batch.

    Assumes: one forward and one backward pass in turn (1F1B); a stage updates its weights as soon as it has all
    gradients of a batch.

    Sources: Harlap et al. 2018, PipeDream, arXiv:1806.03377; lecture C63, flash card Q12.

    >>> stale_updates(4.0, 4.0), stale_updates(4.0, 1.0), stale_updates(1.0, 8.0)
    (1.0, 3.0, 0.0)
    """
    p, m = checked(
        "stale_updates",
        at_least_one=("pipeline_stages", "micro_batches"),
        pipeline_stages=pipeline_stages,
        micro_batches=micro_batches,
    )
    return plain(np.ceil((p - 1.0) / m))


def stage_imbalance(layer_costs: Sequence[float], pipeline_stages: int) -> float:
    """Work of the busiest stage over the mean, with consecutive layers split into stages of nearly equal number.

    Args:
        layer_costs: work of each layer, in order, in any unit.
        pipeline_stages: P [count].

    Returns:
        Ratio, at least 1.

    Raises:
        InputError: fewer layers than stages, or no stage.

    Assumes: the first stages take the remaining layers.

    Sources: flash card Q14: layers that differ unbalance the stages.

    >>> stage_imbalance([1.0, 1.0, 1.0, 5.0], 2)
    1.5
    """
    if not 1 <= pipeline_stages <= len(layer_costs):
        raise InputError(what="pipeline_stages", given=pipeline_stages, allowed=f"1 to {len(layer_costs)} layers")
    stages = [float(part.sum()) for part in np.array_split(np.asarray(layer_costs, dtype=float), pipeline_stages)]
    return max(stages) * pipeline_stages / sum(stages)
