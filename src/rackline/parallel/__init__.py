"""Layouts of a model over chips, the memory of each chip, and the deployment."""

from rackline.parallel.deployment import (
    Deployment,
    Routing,
    build_table,
    expert_law,
    parse_routing,
    stage_imbalance,
)
from rackline.parallel.exchange import (
    ExpertRouting,
    TrafficMatrix,
    combine_traffic,
    dispatch_traffic,
    drawn_dispatch,
    forwarded_traffic,
)
from rackline.parallel.layout import Layout, LayoutGrid, enumerate_layouts, matching_layouts, parse_layout
from rackline.parallel.memory import SERVER, MemoryUse, ServerMemory, fitting_sequences, max_sequences, memory_use
from rackline.parallel.precision import Precision, precision

__all__ = [
    "SERVER",
    "Deployment",
    "ExpertRouting",
    "Layout",
    "LayoutGrid",
    "MemoryUse",
    "Precision",
    "Routing",
    "ServerMemory",
    "TrafficMatrix",
    "build_table",
    "combine_traffic",
    "dispatch_traffic",
    "drawn_dispatch",
    "enumerate_layouts",
    "expert_law",
    "fitting_sequences",
    "forwarded_traffic",
    "matching_layouts",
    "max_sequences",
    "memory_use",
    "parse_layout",
    "parse_routing",
    "precision",
    "stage_imbalance",
]
