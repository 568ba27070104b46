"""Serving stacks beside each other: which were measured on a chip, and how much of a step stands on their own rows.

What can be said of their costs, given how far off each of them was, is `rackline.bands.stacks`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from rackline.arch import AnyModel, Model
from rackline.catalog import measured_stacks, names
from rackline.hardware import Chip, Cluster
from rackline.parallel import Layout, Precision, Routing, enumerate_layouts, precision
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, PassTime, calibration
from rackline.passes.fallback import num_measured
from rackline.system import System

_BATCH, _CONTEXT_LEN = 32.0, 2048.0  # of the usual step, on a rank
_ROOM = 1.25  # memory for weights, and for some KV cache beside them


def stacks_on(chip: Chip) -> tuple[str, ...]:
    """Stacks with kernels measured on a chip and launch rules of their own."""
    return tuple(one for one in measured_stacks() if one in names("launch_rules") and num_measured(one, chip))


def own_share(step: PassTime, stack: str, chip: Chip) -> float:
    """Share of a step that stands on rows measured under a stack on a chip, over all rows in use [1].

    Rows of another stack, of what stacks share, of the generation or of all chips stand in and do not count.
    """
    rows = [row for row in step.rows if row.used]
    own = sum(row.seconds for row in rows if row.evidence == "measured" and row.origin == f"{stack}, {chip.name}")
    return own / (sum(row.seconds for row in rows) or 1.0)


def usual_shares(model: AnyModel, cluster: Cluster) -> dict[str, float]:
    """Share of a usual decode step that stands on a stack's own rows, of each stack measured on the chip [1].

    The step does not depend on what a question asks for beside model and chip: a tensor-parallel replica on as many
    hosts as hold the weights, the checkpoint's own data types, 32 sequences of 2,048 tokens. Empty where that is no
    replica, or where the layers of the model are not known.
    """
    if not isinstance(model, Model):
        return {}
    types = precision("native", model, cluster.chip)
    chips = _chips_holding(model, cluster, types)
    if chips is None:
        return {}
    return _shares(model, replace(cluster, usd_per_chip_hour=None, rented_chips=1).with_num_chips(chips), types)


@lru_cache(maxsize=256)
def _shares(model: Model, machine: Cluster, types: Precision) -> dict[str, float]:
    """Remembered by all values of model and machine, not by their names."""
    layout = _widest(model, machine.num_chips)
    batch = Batch(decode_sequences=_BATCH, context_len=_CONTEXT_LEN)
    found: dict[str, float] = {}
    if layout is None:
        return found
    for stack in stacks_on(machine.chip):
        numbers = calibration(stack, machine.chip)
        system = System.of(model, machine, calibration=numbers, precisions=[types], routing=Routing())
        found[stack] = own_share(system.deployment(layout).table().time(batch), stack, machine.chip)
    return found


def _chips_holding(model: Model, cluster: Cluster, types: Precision) -> int | None:
    """Chips of as many hosts as hold the weights, a power of two; None where the fabric joins too few."""
    weights = model.total_params * storage_bytes(types.expert_weights if model.is_moe else types.linear_weights)
    hosts = 2 ** max(math.ceil(math.log2(_ROOM * weights / (cluster.host_chips * cluster.chip.program_bytes))), 0)
    chips = cluster.host_chips * hosts
    return chips if chips <= cluster.max_chips else None


def _widest(model: Model, num_chips: int) -> Layout | None:
    """The most tensor parallelism, experts cut as attention is; None where there is no such layout."""
    plain = [one for one in enumerate_layouts(model, num_chips) if one.pp == one.cp == one.attention_dp == one.ep == 1]
    return max(plain, key=lambda one: one.tp, default=None)
