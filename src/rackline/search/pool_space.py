"""The space of a prefill pool that has its own chips or layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.parallel import Layout, LayoutGrid, enumerate_layouts, precision
from rackline.search.evaluate import Space
from rackline.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """The prefill pool of disaggregated serving.

    Args:
        system: that prefills where it is another one; that of the decode pool by default.
        layouts: that it may have; all by default.
    """

    system: System | None = None
    layouts: Sequence[Layout] | None = None


ANY_POOL = PrefillPool()


def prefill_space(space: Space, pool: PrefillPool) -> tuple[Space, list[Layout]] | None:
    """The space of a prefill pool and its layouts; None where it is that of the decode pool.

    Args:
        space: of the decode pool.
    """
    if pool.system is None and pool.layouts is None and len(space.grid) > 1:
        return None
    system = pool.system or space.system
    options = list(pool.layouts) if pool.layouts else enumerate_layouts(system.model, system.cluster.num_chips)
    types = tuple(precision(each.label, system.model, system.cluster.chip) for each in space.precisions)
    return replace(space, system=replace(system, precisions=types), grid=LayoutGrid.of(options)), options
