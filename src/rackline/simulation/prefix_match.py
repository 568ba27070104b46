"""Where a request finds its prefix: the rule of prefix-aware routing, for replicas and for ranks of one replica."""

from __future__ import annotations

from collections.abc import Sequence

# Prefix-aware routing balances the load only beyond this imbalance, and follows a cache match above this share of the
# prompt. Defaults of SGLang's router (balance-abs-threshold, balance-rel-threshold, cache-threshold), from memory.
IMBALANCE_REQUESTS = 32
IMBALANCE_RATIO = 1.5
MATCH_SHARE = 0.5


def matched(known: Sequence[int], loads: Sequence[int], num_blocks: int) -> int | None:
    """Place of the cache to which a request goes for its prefix; None where the load decides.

    Args:
        known: blocks of the prefix in each cache [count].
        loads: waiting and running requests beside each cache [requests].
        num_blocks: of the prompt [count].

    >>> matched([0, 6], [3, 9], 8), matched([0, 3], [3, 9], 8), matched([0, 6], [3, 90], 8)
    (1, None, None)
    """
    if max(loads) - min(loads) > IMBALANCE_REQUESTS and max(loads) > IMBALANCE_RATIO * min(loads):
        return None
    best = max(range(len(known)), key=lambda place: (known[place], -loads[place]))
    return best if num_blocks and known[best] > MATCH_SHARE * num_blocks else None
