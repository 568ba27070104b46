"""Which blocks leave the prefix cache when memory is needed, and what becomes of a session's between its calls.

Both are policies as data: a new one is an entry of `EVICTIONS` or `KEEPINGS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NamedTuple

from rackline.simulation.policies import Family


class BlockUse(NamedTuple):
    """What the key of a block may depend on.

    Args:
        uses: requests that used it since it was written [requests].
        written: its place in the order of writing [count].
        recompute_s: time to recompute it, with the attention to all tokens before it [s].
        floor: key of the block that was evicted last; 0 at first.
    """

    uses: int
    written: int
    recompute_s: float
    floor: float


Key = Callable[[BlockUse], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A published eviction policy as data.

    Args:
        name: short name.
        key: what a block is worth when it falls idle: the lowest is evicted first, equal ones least recently used
            first, and no block before those that follow it in a prompt. None evicts least recently used first.
        source: publication.
    """

    name: str
    key: Key | None = None
    source: str = ""


def worth(block: BlockUse) -> float:
    """Uses times the time to recompute, aged by the worth of what was evicted before, L + uses · recompute time [s].

    Greedy-Dual-Size-Frequency, key = L + uses · cost / size, where L is the key of the block that was evicted last.
    Blocks have one size; a block costs more to recompute the more tokens it attends to.
    """
    return block.floor + block.uses * block.recompute_s


EVICTIONS = Family(
    "eviction",
    {
        one.name: one
        for one in (
            Eviction(
                name="cost_aware",
                key=worth,
                source="Cherkasova 1998 (HPL-98-69R1); for prefixes, RAGCache (arXiv:2404.12457)",
            ),
            # the block that was written first
            Eviction(name="fifo", key=attrgetter("written"), source="SGLang, --radix-eviction-policy fifo"),
            # the least frequently used
            Eviction(name="lfu", key=attrgetter("uses"), source="SGLang, --radix-eviction-policy lfu"),
            # the least recently used
            Eviction(name="lru", source="vLLM (arXiv:2309.06180), SGLang (arXiv:2312.07104)"),
        )
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What becomes of a session's KV cache between its calls.

    Args:
        name: short name.
        place: where the blocks of a call that has ended go: they stay in HBM until memory is needed, move to the first
            tier behind it at once, or are freed.
        source: publication or engine.
    """

    name: str
    place: Literal["hbm", "tier", "nowhere"]
    source: str = ""


KEEPINGS = Family(
    "keeping",
    {
        one.name: one
        for one in (
            # each call computes its whole prompt, but for blocks that a running one holds
            Keeping(name="drop", place="nowhere", source="the discard of InferCept (arXiv:2402.01869)"),
            # least recently used first; tiers behind HBM, if any, take what is evicted
            Keeping(
                name="keep",
                place="hbm",
                source="vLLM's automatic prefix caching (arXiv:2309.06180), SGLang (arXiv:2312.07104)",
            ),
            # the copy out runs beside the passes; the copy back lengthens the pass that waits for it
            Keeping(
                name="offload",
                place="tier",
                source="the swap of InferCept (arXiv:2402.01869); LMCache (arXiv:2510.09665)",
            ),
        )
    },
)
