"""Exact Pareto front of two quantities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rackline.passes.features import Array


def pareto_front(maximise: Array, minimise: Array) -> NDArray[np.int64]:
    """Indices of the points that no other point beats in one quantity without losing in the other.

    Args:
        maximise, minimise: the two quantities, shape (points,); NaN never enters the front.

    Returns:
        Indices sorted by falling `maximise`; of equal points the first is kept.

    >>> pareto_front(np.array([3.0, 2.0, 2.0, 1.0]), np.array([5.0, 4.0, 6.0, 4.0])).tolist()
    [0, 1]
    """
    usable = np.flatnonzero(np.isfinite(maximise) & np.isfinite(minimise))
    order = usable[np.lexsort((minimise[usable], -maximise[usable]))]
    if order.size == 0:
        return order
    cost = minimise[order]
    before = np.concatenate(([np.inf], np.minimum.accumulate(cost)[:-1]))
    return order[cost < before]
