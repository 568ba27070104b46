"""Chips and the fabrics that join them."""

from rackline.hardware.chip import Chip, chip, chip_from_record
from rackline.hardware.fabric import Cluster, FabricLevel, cluster, cluster_from_record

__all__ = [
    "Chip",
    "Cluster",
    "FabricLevel",
    "chip",
    "chip_from_record",
    "cluster",
    "cluster_from_record",
]
