"""Which serving stack is taken where none is named: of those measured on the chip, the cheapest for the model.

A short search, the same for every command: one machine (or as many as hold the weights), the checkpoint's own data
types, a dozen layouts that the stack launches, 2k tokens in and 512 out at 50 ms per token, with every slot taken. What
a question asks for beside model and chip has no part in it, so that commands agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rackline.arch import AnyModel, Model
from rackline.catalog import measured_stacks, names
from rackline.hardware import Chip, Cluster
from rackline.parallel import Layout, Precision, Routing, enumerate_layouts, precision
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, calibration
from rackline.passes.fallback import best_stack, num_measured
from rackline.search.engines import EngineSearch
from rackline.search.launch_rules import launch_rules
from rackline.search.space import SearchSpace, Space
from rackline.serving.workload import Mode, Workload
from rackline.system import Constraints, System

_REQUEST = Workload(input_len=2048, output_len=512)
_TPOT_S = 0.05
_BATCHES = np.array([1, 4, 16, 32, 64, 128, 256, 512], dtype=np.float64)  # sequences of a rank
_MODE = Mode(admission="chunked", max_batched_tokens=8192)
_ROOM = 1.25  # memory for weights, and for some KV cache beside them
_COMPARABLE = 0.5  # of the measured operations of the stack with most


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChoice:
    """The stack that is taken.

    Args:
        name: of the stack, or "generic" where nothing was measured on the chip.
        second: the next; empty where there is no other.
        ratio: cost of a request on the second over that on the first.
    """

    name: str
    second: str = ""
    ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """What every stack is tried on.

    Args:
        machine: hosts that hold the weights, at no price.
        types: the checkpoint's own data types.
        layouts: on all chips of the machine; may be empty.
    """

    model: Model
    machine: Cluster
    types: Precision
    layouts: tuple[Layout, ...]


def usual_stack(model: AnyModel, cluster: Cluster) -> StackChoice:
    """The stack for a model on the chips of a cluster, independent of how many are in use."""
    known = comparable_stacks(cluster.chip)
    if not isinstance(model, Model) or len(known) < 2:
        return StackChoice(name=best_stack(cluster.chip))
    types = precision("native", model, cluster.chip)
    machine = _machine(model, cluster, types)
    return StackChoice(name=best_stack(cluster.chip)) if machine is None else _cheapest(model, machine, types, *known)


@lru_cache(maxsize=256)
def _cheapest(model: Model, machine: Cluster, types: Precision, *stacks: str) -> StackChoice:
    """The cheapest of some stacks on a machine; remembered by all values of model and machine, not by their names."""
    trial = _Trial(model=model, machine=machine, types=types, layouts=_layouts(model, machine.num_chips))
    known = [stack for stack in stacks if _is_measured(trial, stack)] or [*stacks]
    costs = {stack: cost for stack in known if (cost := _cost(trial, stack)) < math.inf}
    ranked = sorted(costs, key=lambda stack: costs[stack])
    if not ranked:
        return StackChoice(name=best_stack(machine.chip))
    first, *others = ranked
    if not others:
        return StackChoice(name=first)
    return StackChoice(name=first, second=others[0], ratio=costs[others[0]] / costs[first])


def comparable_stacks(chip: Chip) -> list[str]:
    """Stacks with launch rules of their own and enough kernels measured on a chip."""
    counts = {stack: num_measured(stack, chip) for stack in measured_stacks() if stack in names("launch_rules")}
    most = max(counts.values(), default=0)
    return [stack for stack, count in counts.items() if count and count >= _COMPARABLE * most]


def _machine(model: Model, cluster: Cluster, types: Precision) -> Cluster | None:
    """As many hosts as hold the weights, a power of two, at no price; None where the fabric joins too few."""
    host = cluster.host_chips
    weights = model.total_params * storage_bytes(types.expert_weights if model.is_moe else types.linear_weights)
    hosts = 2 ** max(math.ceil(math.log2(_ROOM * weights / (host * cluster.chip.program_bytes))), 0)
    chips = host * hosts
    free = replace(cluster, usd_per_chip_hour=None, rented_chips=1)
    return free.with_num_chips(chips) if chips <= cluster.max_chips else None


def _layouts(model: Model, num_chips: int) -> tuple[Layout, ...]:
    """Layouts without pipeline stages: attention cut over a replica or each rank its own, experts cut or spread."""
    return tuple(
        one
        for one in enumerate_layouts(model, num_chips)
        if one.pp == one.cp == 1
        and 1 in (one.attention_dp, one.tp)
        and one.ep in (1, one.tp * one.attention_dp)
        and one.chips_per_replica.bit_count() == 1
    )


def _is_measured(trial: _Trial, stack: str) -> bool:
    """Whether the row that takes most of a decode step was measured under this stack, in the checkpoint's types."""
    if not trial.layouts:
        return False
    deployment = _system(trial, stack).deployment(trial.layouts[0])
    batch = Batch(decode_sequences=float(_BATCHES[len(_BATCHES) // 2]), context_len=float(_REQUEST.input_len))
    rows = [row for row in deployment.table().time(batch).rows if row.used]
    return max(rows, key=lambda row: row.seconds).evidence == "measured"


def _system(trial: _Trial, stack: str) -> System:
    """A trial under a stack; experts chosen uniformly, which all stacks share."""
    return System.of(
        trial.model,
        trial.machine,
        calibration=calibration(stack, trial.machine.chip),
        precisions=[trial.types],
        routing=Routing(),
    )


def _cost(trial: _Trial, stack: str) -> float:
    """Least cost of the request on a stack, in any unit that all stacks share; infinite where it starts nothing."""
    if not trial.layouts:
        return math.inf
    among = SearchSpace(layouts=trial.layouts, modes=[_MODE], batches=_BATCHES, rules=launch_rules(stack))
    space = Space.of(_system(trial, stack), _REQUEST, among, threads=1)
    starts = np.flatnonzero(space.launches(trial.types, _MODE))
    if not starts.size:
        return math.inf
    space = replace(space, grid=space.grid.take(starts))
    points = EngineSearch.through(space, Constraints(), open_loop=False).shortlist.points()
    points = points.take(np.flatnonzero(points.serves))
    if not len(points):
        return math.inf
    quick = points.cost[points.tpot_s <= _TPOT_S]
    return float(np.min(quick)) if quick.size else float(points.cost[np.argmin(points.tpot_s)])
