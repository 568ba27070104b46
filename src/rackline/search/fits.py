"""Which clusters a model fits on, and which is the smallest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.arch import AnyModel
from rackline.catalog import names
from rackline.hardware import Cluster, cluster
from rackline.parallel import LayoutGrid, enumerate_layouts, memory_use
from rackline.passes import calibration
from rackline.passes.features import as_array
from rackline.search.space import default_precisions
from rackline.serving.stack import stack_of
from rackline.serving.workload import Workload
from rackline.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNeed:
    """The smallest cluster of the catalogue on which one request fits.

    Args:
        cluster: its name; None if there is none.
        reason: explanation in one line.
    """

    cluster: str | None
    num_chips: int
    reason: str


def best_free_bytes(model: AnyModel, on: Cluster, workload: Workload, memory_fraction: float) -> tuple[float, str]:
    """Most free bytes on the fullest chip with one request per rank, over all layouts and default precisions.

    Returns:
        (bytes, "layout · precision"); -inf when no layout is possible.
    """
    layouts = enumerate_layouts(model, on.num_chips)
    if not layouts:
        return -np.inf, "no layout is possible"
    grid = LayoutGrid.of(layouts)
    best, label = -np.inf, ""
    for precision in default_precisions(model, on.chip):
        use = memory_use(
            model,
            grid,
            precision,
            on.chip,
            stack_of(calibration("auto", on.chip), on.chip.hbm_bytes).memory(memory_fraction=memory_fraction),
            sequences_per_rank=as_array(grid.pp),
            context_len=workload.final_context,
        )
        free = np.broadcast_to(as_array(use.free), (len(layouts),))
        index = int(np.argmax(free))
        if free[index] > best:
            best, label = float(free[index]), f"{layouts[index].label()} · {precision.short()}"
    return best, label


def smallest_cluster(model: AnyModel, workload: Workload, memory_fraction: float = 0.9) -> ClusterNeed:
    """The cluster of the catalogue with the least memory on which one request fits."""
    known = sorted((cluster(name) for name in names("clusters")), key=lambda c: c.num_chips * c.chip.hbm_bytes)
    for option in known:
        free, label = best_free_bytes(model, option, workload, memory_fraction)
        if free >= 0:
            total = option.num_chips * option.chip.hbm_bytes
            return ClusterNeed(
                cluster=option.name,
                num_chips=option.num_chips,
                reason=f"{option.name} has {format_bytes(total)} on {option.num_chips} chips; with {label} "
                f"{format_bytes(free)} remain free on the fullest chip",
            )
    largest = known[-1]
    free, label = best_free_bytes(model, largest, workload, memory_fraction)
    return ClusterNeed(
        cluster=None,
        num_chips=0,
        reason=f"no cluster of the catalogue is large enough; {largest.name} is the closest "
        f"({label}: {format_bytes(-free)} too much on the fullest chip)",
    )
