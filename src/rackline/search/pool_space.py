"""The space of a prefill pool that has its own chips or layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.hardware import Cluster
from rackline.parallel import Layout, LayoutGrid, enumerate_layouts, precision
from rackline.passes import Calibration
from rackline.search.evaluate import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """The prefill pool of disaggregated serving.

    Args:
        cluster: that it is on; chips of the decode pool's by default.
        layouts: that it may have; all by default.
        calibration: numbers of its chip; those of the decode pool by default.
    """

    cluster: Cluster | None = None
    layouts: Sequence[Layout] | None = None
    calibration: Calibration | None = None


ANY_POOL = PrefillPool()


def prefill_space(space: Space, pool: PrefillPool) -> tuple[Space, list[Layout]] | None:
    """The space of a prefill pool and its layouts; None where it is that of the decode pool.

    Args:
        space: of the decode pool.
    """
    if pool.cluster is None and pool.layouts is None and len(space.grid) > 1:
        return None
    cluster = pool.cluster or space.cluster
    options = list(pool.layouts) if pool.layouts else enumerate_layouts(space.model, cluster.num_chips)
    own = replace(
        space,
        cluster=cluster,
        grid=LayoutGrid.of(options),
        precisions=[precision(each.label, space.model, cluster.chip) for each in space.precisions],
        calibration=pool.calibration or space.calibration,
    )
    return own, options
