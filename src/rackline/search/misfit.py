"""Why something does not fit: what the fullest chip would hold, where it would fit, and with which changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from rackline.catalog import names
from rackline.hardware import Cluster, billed_chips, cluster
from rackline.parallel.memory import MemoryUse
from rackline.search.space import SearchSpace, Space, every_layout
from rackline.serving.workload import Workload
from rackline.system import System, default_precisions
from rackline.units import format_bytes

HOST_MEMORY = "ddr5-host"  # tier of the catalogue that is the memory of a host

# in the order in which they are tried: what costs nothing, precision, time, work left out, chips
ChangeKind = Literal[
    "layout", "recompute", "memory_fraction", "precision", "optimizer", "offload", "requests", "context", "adapters",
    "chips", "cluster",
]  # fmt: skip
LESS_WORK: tuple[ChangeKind, ...] = ("requests", "context", "adapters")  # they leave out some of what was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipMemory:
    """What the fullest chip of a deployment holds.

    Args:
        layout: of the deployment, in words.
        parts: name → bytes, in the order in which they are loaded; what may not be used is one of them [bytes].
        hbm_bytes: memory of the chip [bytes].
    """

    json_keys: ClassVar = ("layout", "parts", "held_bytes", "hbm_bytes", "free_bytes")

    layout: str
    parts: Mapping[str, float]
    hbm_bytes: float

    @classmethod
    def of_server(cls, layout: str, use: MemoryUse) -> ChipMemory:
        """Memory of an engine: weights, KV cache, activations, buffers, and what the engine keeps clear."""
        named = {
            "weights": use.weight_total,
            "KV cache": use.kv_cache,
            "activations": use.activations,
            "buffers": use.runtime,
            "overhead": use.total - float(use.usable),
        }
        return cls(layout=layout, parts={name: float(size) for name, size in named.items()}, hbm_bytes=use.total)

    @classmethod
    def of_training(cls, layout: str, held: Mapping[str, float], hbm_bytes: float) -> ChipMemory:
        """Memory of a run, as `rackline.training.memory.TrainMemory.at` names it."""
        named = {
            "weights": "weights",
            "gradients": "gradients",
            "optimizer": "optimiser states",
            "activations": "activations",
            "logits": "logits",
            "runtime": "buffers",
            "margin": "overhead",
        }
        parts = {name: held[f"{key}_bytes"] for key, name in named.items()}
        return cls(layout=layout, parts=parts, hbm_bytes=hbm_bytes)

    @property
    def held_bytes(self) -> float:
        """All parts [bytes]."""
        return sum(self.parts.values())

    @property
    def free_bytes(self) -> float:
        """What is left of the chip; negative where it does not fit [bytes]."""
        return self.hbm_bytes - self.held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a deployment that fits takes in time and dollars.

    Args:
        layout: in words.
        step_s: of serving, mean time per output token; of training, a step [s].
        ttft_s: mean time to the first token; None where no prompt was asked about [s].
        usd_per_mtok: of the tokens that were asked for; chip-hours without a price [USD per million tokens].
        reason: why it is not an answer although it fits; empty where it is one.
    """

    layout: str
    step_s: float
    usd_per_mtok: float
    ttft_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that was tried.

    Args:
        setting: how it is asked for.
        gives_up: what the answer is then not; empty where it is the same work in the same data types.
        cluster, num_chips: on which it is tried.
        memory: of the fullest chip with the most room; None where no layout is possible.
        cost: time and dollars; None where it does not fit.
        usd_per_hour: rent of all chips; None without a price [USD/hour].
        days, usd: of a whole training run; None without.
        reason: why it does not do; empty where it does.
    """

    json_keys: ClassVar = (
        "kind",
        "setting",
        "fits",
        "gives_up",
        "cluster",
        "num_chips",
        "layout=cost.layout",
        "step_s=cost.step_s",
        "ttft_s=cost.ttft_s",
        "usd_per_mtok=cost.usd_per_mtok",
        "usd_per_hour",
        "days",
        "usd",
        "memory",
        "reason",
    )

    kind: ChangeKind
    setting: str
    gives_up: str = ""
    cluster: str
    num_chips: int
    memory: ChipMemory | None
    cost: Cost | None
    usd_per_hour: float | None
    days: float | None = None
    usd: float | None = None
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether it holds what was asked and is an answer."""
        return self.cost is not None and not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why nothing fits, and what would.

    Args:
        memory: of the layout that lacks least.
        tried: changes in the order in which they were tried.
        unit: what the tokens of the dollars are: output tokens, or tokens trained on.
        priced: False where costs are chip-hours, because the cluster has no price.
    """

    json_keys: ClassVar = ("memory", "changes", "cheapest=cheapest.setting", "with_less_work=less.setting", "unit")

    memory: ChipMemory
    tried: tuple[Change, ...]
    unit: Literal["output", "trained"]
    priced: bool = True

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that suffice, those with all of the work first, then by dollars; after them those that do not."""

        def place(one: Change) -> tuple[bool, bool, float]:
            if one.cost is None or not one.fits:
                return True, False, 0.0
            return False, one.kind in LESS_WORK, one.cost.usd_per_mtok

        return tuple(sorted(self.tried, key=place))

    @property
    def cheapest(self) -> Change | None:
        """The change of the least dollars per token that does all of the work; None where none does."""
        return next((one for one in self.changes if one.fits and one.kind not in LESS_WORK), None)

    @property
    def less(self) -> Change | None:
        """The change of the least dollars per token that leaves out some of the work; None where none does."""
        return next((one for one in self.changes if one.fits and one.kind in LESS_WORK), None)


def change_of(
    kind: ChangeKind,
    setting: str,
    on: Cluster,
    gives_up: str,
    memory: ChipMemory | None,
    cost: Cost | None,
    reason: str = "",
) -> Change:
    """A change on a cluster, with its rent.

    Args:
        reason: why it does not do; by default by how much it does not fit, or why its cost is no answer.
    """
    lacks = "no layout is possible" if memory is None else f"{format_bytes(-memory.free_bytes)} too much on a chip"
    return Change(
        kind=kind,
        setting=setting,
        gives_up=gives_up,
        cluster=on.name,
        num_chips=on.num_chips,
        memory=memory,
        cost=cost,
        usd_per_hour=None if on.usd_per_chip_hour is None else rent_of_all(on),
        reason=reason or (lacks if cost is None else cost.reason),
    )


def until_it_fits(changes: Iterable[Change]) -> list[Change]:
    """The first change that fits, as far as they are asked for; else the last."""
    last: list[Change] = []
    for one in changes:
        last = [one]
        if one.fits:
            break
    return last


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
        system: on which it does not fit; other chips run the same engine, with those of its data types that a plan
            considers there, or with all of them if it considers none.
    """
    on = system.cluster
    narrower = _narrower(system, workload)

    def free_on(option: Cluster) -> tuple[float, str]:
        there = system.on(option)
        considered = {one.short() for one in default_precisions(system.model, option.chip)}
        usual = tuple(one for one in there.precisions if one.short() in considered)
        return best_free_bytes(replace(there, precisions=usual or there.precisions), workload)

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
            chips, total = option.num_chips, option.num_chips * option.chip.hbm_bytes
            what = f"{chips} chips of {option.name}, {format_bytes(total)}"
            reason = f"{what}: {label}, {format_bytes(free)} free on the fullest"
            return ClusterNeed(cluster=option.name, num_chips=chips, reason=reason, narrower=narrower)
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
    """The same number of chips of other kinds with more memory each, of the same vendor, those of the least rent first.

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
    heads = ((one, one.label.partition(",")[0]) for one in default_precisions(system.model, system.cluster.chip))
    return next(
        (
            one.label if head == "native" else head
            for one, head in heads
            if best_free_bytes(replace(system, precisions=(one,)), workload)[0] >= 0
        ),
        "",
    )
