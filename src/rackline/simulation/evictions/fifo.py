"""First in, first out: the block that was written first is evicted first."""

from rackline.simulation.evictions import BlockUse, Eviction


def written(block: BlockUse) -> float:
    """Its place in the order of writing [count]."""
    return float(block.written)


EVICTION = Eviction(name="fifo", key=written, source="SGLang, --radix-eviction-policy fifo")
