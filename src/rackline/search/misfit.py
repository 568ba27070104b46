"""Why something does not fit: what the fullest chip would hold, by part, and the changes with which it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rackline.hardware import Cluster
from rackline.parallel.memory import MemoryUse
from rackline.search.fits import rent_of_all
from rackline.units import format_bytes

HOST_MEMORY = "ddr5-host"
"""Tier of the catalogue that is the memory of a host."""

ChangeKind = Literal[
    "layout", "recompute", "memory_fraction", "precision", "optimizer", "offload", "requests", "context", "adapters",
    "chips", "cluster",
]  # fmt: skip
"""Kinds of change in the order in which they are tried: what costs nothing, precision, time, work left out, chips."""
LESS_WORK: tuple[ChangeKind, ...] = ("requests", "context", "adapters")
"""Kinds that leave out some of the work that was asked for."""


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
        """Those that do, with all of the work first and of the least dollars; then those that do not, as tried."""

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
    tried: list[Change] = []
    for one in changes:
        tried.append(one)
        if one.fits:
            break
    return tried[-1:]
