"""The space of a prefill pool that has its own chips or layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackline.hardware import Cluster
from rackline.parallel import Layout, LayoutGrid, enumerate_layouts, precision
from rackline.passes import Calibration
from rackline.search.evaluate import Space


def prefill_space(
    space: Space,
    on: Cluster | None,
    layouts: Sequence[Layout] | None,
    calibration: Calibration | None,
) -> tuple[Space, list[Layout]] | None:
    """The space of a prefill pool and its layouts; None where it is that of the decode pool.

    Args:
        space: of the decode pool.
        on: cluster of the prefill pool; None for chips of the same.
        layouts: it may have; None for all.
        calibration: numbers of its chip; None for the same.
    """
    if on is None and layouts is None and len(space.grid) > 1:
        return None
    cluster = on or space.cluster
    options = list(layouts) if layouts else enumerate_layouts(space.model, cluster.num_chips)
    own = replace(
        space,
        cluster=cluster,
        grid=LayoutGrid.of(options),
        precisions=[precision(each.label, space.model, cluster.chip) for each in space.precisions],
        calibration=calibration or space.calibration,
    )
    return own, options
