"""Paid chips that the replicas of a layout leave free, and what an engine on them can make of a cost at the most."""

from __future__ import annotations

import numpy as np

from rackline.hardware import Cluster, billed_chips, replicas, taken_chips
from rackline.passes.features import Array, FloatLike, as_array

BETWEEN = 1.5  # times: how far a cost falls between two batches of the grid, at the most


def idle_chips(cluster: Cluster, chips_per_replica: FloatLike) -> tuple[Array, Array]:
    """(chips in use, paid chips that are not) with as many replicas as the cluster holds [count].

    Args:
        chips_per_replica: any shape [count].

    Example:
        >>> from rackline.hardware import cluster
        >>> used, idle = idle_chips(cluster("dgx-h100"), [1, 3, 5, 8])
        >>> used.tolist(), idle.tolist()
        ([8.0, 6.0, 5.0, 8.0], [0.0, 2.0, 3.0, 0.0])
    """
    size, count = as_array(chips_per_replica), as_array(replicas(cluster, chips_per_replica))
    used = count * size
    return used, np.maximum(billed_chips(cluster, count * taken_chips(cluster, size)) - used, 0.0)


def least_cost(cost: Array, rate: Array, used: Array, idle: Array, most_rate: float) -> Array:
    """Lower bound of a cost when the idle chips serve too.

    Equation:
        cost · used · rate / (used · rate + idle · most_rate): the same rent over all output tokens

    Args:
        cost: without them [USD per million tokens].
        rate: of the chips in use [tokens/s/chip].
        used, idle: chips [count].
        most_rate: of a chip in any engine [tokens/s/chip].

    Example:
        >>> round(float(least_cost(np.array(1.2), np.array(100.0), np.array(6.0), np.array(2.0), 150.0)), 6)
        0.8
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(idle > 0.0, cost * used * rate / (used * rate + idle * most_rate), cost)
