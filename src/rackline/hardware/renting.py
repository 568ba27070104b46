"""Chips that are paid for: whole rented units, of which replicas take whole shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.hardware.fabric import Cluster

_CLOSE = 1e-9  # of a chip: thirds of a host add up to whole ones


def taken_chips(cluster: Cluster, chips_per_replica: Any) -> NDArray[np.float64]:
    """Chips that a replica takes from others of its kind: those of a host that it leaves cannot hold one more.

    Where chips are rented one by one, no more than it has.

    Args:
        chips_per_replica: [count].

    Returns:
        A host over the replicas that it holds, or whole hosts, as many values as were given [chips].

    Example:
        >>> from rackline.hardware import cluster
        >>> taken_chips(cluster("gb200-nvl72"), [1, 2, 3, 4, 12]).tolist()
        [1.0, 2.0, 4.0, 4.0, 12.0]
    """
    size = np.asarray(chips_per_replica, dtype=np.float64)
    if cluster.rented_chips == 1:
        return size
    host = float(cluster.host_chips)
    inside = host / np.floor(host / np.minimum(size, host))
    beyond = np.ceil(size / host) * host
    return np.maximum(np.minimum(np.where(size <= host, inside, beyond), cluster.num_chips), size)


def replicas(cluster: Cluster, chips_per_replica: Any) -> NDArray[np.int64]:
    """Replicas of one kind that a cluster holds, at least 1 [count]."""
    found = np.floor(cluster.num_chips / taken_chips(cluster, chips_per_replica) + _CLOSE)
    return np.maximum(found, 1.0).astype(np.int64)


def billed_chips(cluster: Cluster, taken: Any) -> NDArray[np.float64]:
    """Chips that are paid for: whole rented units, no more than the cluster has; beyond it, whole clusters first.

    A cluster that is set to fewer chips than a unit is a unit itself.

    Args:
        taken: chips of all replicas, as `taken_chips` counts them [chips].

    Example:
        >>> from rackline.hardware import cluster
        >>> float(billed_chips(cluster("gb200-nvl72"), 13)), float(billed_chips(cluster("l40s-8"), 3))
        (16.0, 3.0)
        >>> billed_chips(cluster("dgx-h100").with_num_chips(4), [2, 4, 6]).tolist()
        [4.0, 4.0, 8.0]
    """
    chips, unit = np.asarray(taken, dtype=np.float64), cluster.rented_chips
    clusters = np.floor(chips / cluster.num_chips + _CLOSE) * cluster.num_chips
    rest = np.ceil(np.maximum(chips - clusters, 0.0) / unit - _CLOSE) * unit
    return np.maximum(clusters + np.minimum(rest, cluster.num_chips), chips)


def billing(cluster: Cluster) -> str:
    """What is paid for, in words; see `billed_chips`."""
    unit = cluster.rented_chips
    if unit == 1:
        return "chips that no replica uses are not paid"
    if cluster.num_chips < unit:
        return f"all {cluster.num_chips} chips are paid, a part of a unit of {unit}"
    return f"paid in whole units of {unit} chips"


def paid_share(cluster: Cluster, chips_per_replica: Any) -> NDArray[np.float64]:
    """Chips that are paid for over chips in use, with as many replicas as the cluster holds [ratio]."""
    count = replicas(cluster, chips_per_replica)
    used = count * np.asarray(chips_per_replica, dtype=np.float64)
    return billed_chips(cluster, count * taken_chips(cluster, chips_per_replica)) / used
