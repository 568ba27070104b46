"""Comparisons that experiments share: how far two trees of arrays are apart, and the shortest time of a call."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def largest_difference(one: Any, other: Any) -> float:
    """Largest relative difference of the leaves of two trees, each by its norm; they may lie on different devices."""

    def difference(a: Any, b: Any) -> float:
        wanted = np.asarray(b)
        return float(np.linalg.norm(np.asarray(a) - wanted) / max(float(np.linalg.norm(wanted)), 1e-30))

    return max(jax.tree.leaves(jax.tree.map(difference, one, other)))


def shortest_s(call: Callable[[], Any], repeats: int) -> float:
    """Shortest time of a call after a first one that compiles: other programs on the machine only add to it [s]."""
    jax.block_until_ready(call())
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return float(best)
