"""Which experts the tables' MoE rows use on the rank that was timed.

The tables hold two distributions, both made by the collector of their source: `balanced` deals token-expert pairs out
in turn; `power_law_Z` draws the load of each expert from a density ∝ x^-Z, scales the loads to the pairs of all
tokens, caps them at one pair a token and times the rank with the most pairs. The draws of the tables are not known,
so that a row has the mean over fixed draws here.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rackline.errors import InputError
from rackline.fitting.tables import Array

_DRAWS = 48


def power_law_loads(
    num_tokens: int, num_experts: int, experts_per_token: int, exponent: float, rng: np.random.Generator, draws: int
) -> Array:
    """Tokens of each expert in the skewed distribution of the tables.

    Args:
        num_tokens: T, tokens of all ranks [tokens].
        num_experts: E [count].
        experts_per_token: k [count].
        exponent: Z of the density [1].
        rng: source of the draws.
        draws: number of draws [count].

    Returns:
        Tokens of each expert [tokens], shape (draws, E); each row sums to T k.

    Assumes: density ∝ x^-Z between 1 and 0.8 T where T k exceeds E, else between 0.01 and 2.

    Sources: aiconfigurator, collector/helper.py, _generate_power_law_distribution.
    """
    pairs = num_tokens * experts_per_token
    low, high = (1.0, max(0.8 * num_tokens, 1.0 + 1e-9)) if pairs > num_experts else (0.01, 2.0)
    power = 1.0 - exponent
    u = rng.random((draws, num_experts))
    sizes = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    loads = np.minimum(np.rint(sizes / sizes.sum(axis=1, keepdims=True) * pairs), num_tokens)
    for row in loads:
        _settle(row, pairs, num_tokens)
    return loads


def _settle(row: Array, pairs: int, most: int) -> None:
    """Hand out what rounding and the cap left over: to the smallest loads, or from the largest."""
    for _ in range(64):
        left = int(pairs - row.sum())
        if left == 0:
            return
        order = np.argsort(row if left > 0 else -row, kind="stable")
        free = order[(row[order] < most) if left > 0 else (row[order] > 0)]
        row[free[: abs(left)]] += math.copysign(1.0, left) * max(abs(left) // max(len(free), 1), 1)
        np.clip(row, 0, most, out=row)


@lru_cache(maxsize=4096)
def busiest_rank(
    num_tokens: int, num_experts: int, experts_per_token: int, ep: int, exponent: float | None
) -> tuple[float, float]:
    """Pairs and touched experts of the timed rank.

    Args:
        num_tokens: of the whole expert-parallel group [tokens].
        num_experts, experts_per_token, ep: of the model and layout [count].
        exponent: of the skewed distribution; None is balanced.

    Returns:
        Token-expert pairs [count], distinct experts [count].

    >>> busiest_rank(1024, 64, 4, 8, None)
    (512.0, 8.0)
    """
    local = num_experts // ep
    if exponent is None:
        pairs = num_tokens * experts_per_token / ep
        return pairs, min(float(local), max(1.0, pairs))
    rng = np.random.default_rng(20261121)
    loads = power_law_loads(num_tokens, num_experts, experts_per_token, exponent, rng, _DRAWS)
    ranks = loads.reshape(_DRAWS, ep, local)
    busiest = ranks.sum(axis=2).argmax(axis=1)
    timed = ranks[np.arange(_DRAWS), busiest]
    return float(timed.sum(axis=1).mean()), float((timed > 0).sum(axis=1).mean())


def routing_exponent(distribution: str) -> float | None:
    """Exponent of a distribution's name: "balanced" is None, "power_law_1.2" is 1.2.

    Raises:
        InputError: another name.
    """
    if distribution == "balanced":
        return None
    try:
        if distribution.startswith("power_law_"):
            return float(distribution.removeprefix("power_law_"))
    except ValueError:
        pass
    raise InputError(what="distribution", given=distribution, allowed="balanced, power_law_1.2 or another exponent")


def expert_load(columns: dict[str, Array], distributions: tuple[str, ...]) -> tuple[Array, Array]:
    """`busiest_rank` of each row of a MoE table: pairs and touched experts, each of shape (rows,)."""
    found = [
        busiest_rank(int(tokens), int(experts), int(top_k), int(ep), routing_exponent(word))
        for tokens, experts, top_k, ep, word in zip(
            columns["tokens"], columns["num_experts"], columns["top_k"], columns["ep"], distributions, strict=True
        )
    ]
    pairs, touched = np.array(found, dtype=np.float64).T
    return pairs, touched
