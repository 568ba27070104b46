"""Chips, the fabrics that join them and the memory tiers behind them."""

from rackline.hardware.chip import Chip, chip, chip_from_record
from rackline.hardware.fabric import Cluster, FabricLevel, cluster, cluster_from_record
from rackline.hardware.memory import MemoryTier, hbm_of, memory_tier, tier_from_record

__all__ = [
    "Chip",
    "Cluster",
    "FabricLevel",
    "MemoryTier",
    "chip",
    "chip_from_record",
    "cluster",
    "cluster_from_record",
    "hbm_of",
    "memory_tier",
    "tier_from_record",
]
