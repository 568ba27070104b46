"""Chips, the fabrics that join them, the racks that hold them and the memory tiers behind them."""

from rackline.hardware.chip import Chip, chip, chip_from_record
from rackline.hardware.drawn_power import checked_cap, drawn_w, wall_w
from rackline.hardware.fabric import Cluster, FabricLevel, cluster, cluster_from_record
from rackline.hardware.memory import MemoryTier, hbm_of, memory_tier, tier_from_record
from rackline.hardware.paths import FatTree, Path, fat_tree, path_between, scale_out_path, scale_up_path, torus_hops
from rackline.hardware.power import ChipPower
from rackline.hardware.racks import RackBill, rack_bill, scale_up_cables, scale_up_switches
from rackline.hardware.renting import billed_chips, billing, paid_share, replicas, taken_chips
from rackline.hardware.rents import Rent, parse_rent_kind, rent_of, rented

__all__ = [
    "Chip",
    "ChipPower",
    "Cluster",
    "FabricLevel",
    "FatTree",
    "MemoryTier",
    "Path",
    "RackBill",
    "Rent",
    "billed_chips",
    "billing",
    "checked_cap",
    "chip",
    "chip_from_record",
    "cluster",
    "cluster_from_record",
    "drawn_w",
    "fat_tree",
    "hbm_of",
    "memory_tier",
    "paid_share",
    "parse_rent_kind",
    "path_between",
    "rack_bill",
    "rent_of",
    "rented",
    "replicas",
    "scale_out_path",
    "scale_up_cables",
    "scale_up_path",
    "scale_up_switches",
    "taken_chips",
    "tier_from_record",
    "torus_hops",
    "wall_w",
]
