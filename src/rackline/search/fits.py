"""Where a model fits that does not fit on a cluster: on more of its chips, in narrower types, on its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.catalog import names
from rackline.hardware import Cluster, billed_chips, cluster
from rackline.search.space import SearchSpace, Space, every_layout
from rackline.serving.workload import Workload
from rackline.system import System, default_precisions
from rackline.units import format_bytes

_MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNeed:
    """The nearest chips on which one request fits: more of the same, else a relative.

    Args:
        cluster: its name, None when there is none.
        reason: why, in one line.
        narrower: data types in which it fits without more chips; empty where there are none.
    """

    cluster: str | None
    num_chips: int
    reason: str
    narrower: str = ""


def best_free_bytes(system: System, workload: Workload) -> tuple[float, str]:
    """Most bytes left on the fullest chip with one request a rank, over all layouts and precisions.

    Returns:
        (bytes, "layout · precision"); -inf when no layout is possible.
    """
    layouts = every_layout(system)
    if not layouts:
        return -np.inf, "no layout is possible"
    space = Space.of(system, workload, SearchSpace(layouts=layouts, batches=np.ones(1)))
    free = np.array([space.free_bytes(types, None)[:, 0] for types in system.precisions])
    label, row = np.unravel_index(int(np.argmax(free)), free.shape)
    return float(free[label, row]), f"{layouts[row].label()} · {system.precisions[label].short()}"


def nearest_cluster(system: System, workload: Workload) -> ClusterNeed:
    """The nearest chips on which one request fits, where it does not on a cluster.

    More chips of the same cluster come first, then clusters of the same generation, of the same vendor and of others,
    those with the least memory first.

    Args:
        system: on which it does not fit; other chips run the same engine, with types of the same labels.
    """
    on = system.cluster
    narrower = _narrower(system, workload)

    def free_on(option: Cluster) -> tuple[float, str]:
        return best_free_bytes(system.on(option), workload)

    for count in more_chips(on):
        free, label = free_on(on.with_num_chips(count))
        if free >= 0:
            reason = f"{count} chips of {on.name}: {label}, {format_bytes(free)} free on the fullest"
            return ClusterNeed(cluster=on.name, num_chips=count, reason=reason, narrower=narrower)

    def distance(option: Cluster) -> tuple[bool, bool, float]:
        memory = option.num_chips * option.chip.hbm_bytes
        return option.chip.generation != on.chip.generation, option.chip.vendor != on.chip.vendor, memory

    known = sorted((cluster(name) for name in names("clusters")), key=distance)
    for option in known:
        free, label = free_on(option)
        if free >= 0:
            total = option.num_chips * option.chip.hbm_bytes
            return ClusterNeed(
                cluster=option.name,
                num_chips=option.num_chips,
                reason=f"{option.num_chips} chips of {option.name}, {format_bytes(total)}: {label}, "
                f"{format_bytes(free)} free on the fullest",
                narrower=narrower,
            )
    largest = max(known, key=lambda option: option.num_chips * option.chip.hbm_bytes)
    free, label = free_on(largest)
    return ClusterNeed(
        cluster=None,
        num_chips=0,
        reason=f"no cluster of the catalogue is large enough; {largest.name} is the closest "
        f"({label}: {format_bytes(-free)} too much on the fullest chip)",
        narrower=narrower,
    )


def larger_chips(on: Cluster, most: int = 6) -> list[Cluster]:
    """As many chips of other kinds with more memory each, of the same vendor, those of the least rent first.

    Args:
        most: kinds of chips [count].
    """
    found: dict[str, Cluster] = {}
    for name in names("clusters"):
        other = cluster(name)
        larger = other.chip.hbm_bytes > on.chip.hbm_bytes and other.chip.vendor == on.chip.vendor
        if larger and other.max_chips >= on.num_chips and other.usd_per_chip_hour is not None:
            few = other.with_num_chips(on.num_chips)
            found[other.chip.name] = min(found.get(other.chip.name, few), few, key=rent_of_all)
    return sorted(found.values(), key=rent_of_all)[:most]


def rent_of_all(on: Cluster) -> float:
    """Rent of all chips of a cluster, in whole units; 0 without a price [USD/hour]."""
    return (on.usd_per_chip_hour or 0.0) * float(billed_chips(on, on.num_chips))


def more_chips(on: Cluster, multiples: Sequence[int] = _MULTIPLES) -> list[int]:
    """Numbers of chips above that of a cluster: powers of two within a host, whole hosts beyond."""
    counts = [on.num_chips * many for many in multiples]
    whole = [count for count in counts if count.bit_count() == 1 or count % on.host_chips == 0]
    return [count for count in whole if count <= on.max_chips]


def _narrower(system: System, workload: Workload) -> str:
    """The widest of the default types in which one request fits on a cluster; empty where none does."""
    for option in default_precisions(system.model, system.cluster.chip):
        if best_free_bytes(replace(system, precisions=(option,)), workload)[0] >= 0:
            head = option.label.partition(",")[0]
            return option.label if head == "native" else head
    return ""
