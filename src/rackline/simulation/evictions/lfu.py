"""Least frequently used first."""

from rackline.simulation.evictions import BlockUse, Eviction


def uses(block: BlockUse) -> float:
    """Requests that used the block [requests]."""
    return float(block.uses)


EVICTION = Eviction(name="lfu", key=uses, source="SGLang, --radix-eviction-policy lfu")
