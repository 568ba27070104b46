"""Popularity of experts, and their placement on ranks.

Measured loads of single experts follow a log-normal distribution whose spread increases with their number E,

    s = 0.2 log2(E) - 0.5        of the logarithm of an expert's share, at least 0

in routers trained with an auxiliary loss (Mixtral, 8 experts: 0.1; OLMoE and DeepSeek-V2-Lite, 64: 0.5 to 0.7) and in
one that is balanced by a bias per expert (DeepSeek-R1, 256: 1.1), over texts of one domain.

Experts are placed on the ranks in the order of their numbers, that is, at random with respect to popularity; or they
are rearranged by popularity, with redundant copies of the most popular ones (EPLB) that share the load equally.

Sources: tokens per expert of OLMoE and Mixtral, allenai/OLMoE, scripts/routing_output; routed tokens of
    DeepSeek-V2-Lite, deepseek-ai/ESFT; rank loads of DeepSeek-R1 with EP32, NVIDIA/TensorRT-LLM,
    examples/wide_ep/ep_load_balancer. Rearrangement: deepseek-ai/EPLB, 2025.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from rackline.passes.features import Array

_PER_OCTAVE, _AT_ONE = 0.2, -0.5


def expert_spread(num_experts: int) -> float:
    """Standard deviation of the logarithm of an expert's share of the picks.

    >>> [round(expert_spread(count), 2) for count in (4, 8, 64, 256)]
    [0.0, 0.1, 0.7, 1.1]
    """
    return max(_PER_OCTAVE * math.log2(num_experts) + _AT_ONE, 0.0)


def log_normal_shares(num_experts: int, spread: float) -> Array:
    """Share of the picks that goes to each expert, most popular first: quantiles of a log-normal, summing to 1.

    >>> log_normal_shares(4, 0.0).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    normal = NormalDist()
    scores = np.array([normal.inv_cdf(1.0 - (index + 0.5) / num_experts) for index in range(num_experts)])
    weights = np.exp(spread * scores)
    return weights / weights.sum()


def rearranged(popularity: Array, ep: int, redundant_experts: int) -> Array:
    """Copies of each expert on each rank, rearranged so that the ranks are as balanced as possible.

    The expert with the highest load per copy gets the next redundant copy; then copies go, most loaded first, to the
    rank with the least load that has a slot.

    Args:
        popularity: popularity of each expert, (experts,).
        ep: ranks, each with the same number of slots [count].
        redundant_experts: copies beyond one of each; slots left over are filled as well [count].

    Returns:
        Copies [count], (experts, ep).

    >>> rearranged(np.array([4.0, 1.0, 1.0]), 2, 1).sum(axis=0).tolist()
    [2.0, 2.0]
    """
    experts = len(popularity)
    slots = math.ceil((experts + redundant_experts) / ep)
    copies = np.ones(experts)
    for _ in range(slots * ep - experts):
        copies[int(np.argmax(popularity / copies))] += 1.0
    each = popularity / copies
    load, room, placed = np.zeros(ep), np.full(ep, slots), np.zeros((experts, ep))
    for expert in np.argsort(-each, kind="stable"):
        for _ in range(int(copies[expert])):
            rank = int(np.argmin(np.where(room > 0, load + 1e-9 * placed[expert], np.inf)))
            placed[expert, rank] += 1.0
            load[rank] += each[expert]
            room[rank] -= 1
    return placed
