"""Least worth first: uses times the time to recompute, aged by the worth of what was evicted before.

Greedy-Dual-Size-Frequency, key = L + uses · cost / size, where L is the key of the block that was evicted last. Blocks
have one size; a block costs more to recompute the more tokens it attends to.
"""

from rackline.simulation.evictions import BlockUse, Eviction


def worth(block: BlockUse) -> float:
    """L + uses · recompute time [s]."""
    return block.floor + block.uses * block.recompute_s


EVICTION = Eviction(
    name="cost_aware",
    key=worth,
    source="Cherkasova 1998 (HPL-98-69R1); for prefixes, RAGCache (arXiv:2404.12457)",
)
