"""The serving engine of an answer where a question names none: the same one in every command.

It is the first of `rackline.catalog.default_engines` that runs on the chip, which is vLLM on most. Another engine takes
its place if its own measured kernels cover at least 20 percentage points more of a usual decode step of this model on
this chip. Only the model and the chip decide, not the rest of the question and not the cost of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from rackline.arch import AnyModel, Model
from rackline.bands.bands import Band, Evidence, find_band, kind_of_model, shipped_bands
from rackline.catalog import calibration_record, default_engines, measured_stacks, names
from rackline.hardware import Chip, Cluster
from rackline.parallel import Precision, Routing, enumerate_layouts, precision
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, PassTime, calibration
from rackline.passes.fallback import GENERIC, num_measured
from rackline.system import System

_BATCH, _CONTEXT_LEN = 32.0, 2048.0  # of the usual step, on a rank
_ROOM = 1.25  # memory for weights, and for some KV cache beside them
LEAD = 0.20
"""Share of a usual decode step by which an engine's measured rows must exceed those of the default engine [1].

A choice: chips differ in which engine was measured more often, and a few rows more do not justify to change engines.
"""
_DIGITS = 6  # of a share: what differs by less is equal on all processors


def stacks_on(chip: Chip) -> tuple[str, ...]:
    """Return the engines with kernels measured on a chip and launch rules of their own."""
    return tuple(name for name in measured_stacks() if name in names("launch_rules") and num_measured(name, chip))


def own_share(step: PassTime, stack: str, chip: Chip) -> float:
    """Return the share of a step that rests on rows measured under a stack on a chip, over all rows in use [1].

    Rows of another stack, of what stacks share, of the generation or of all chips stand in and do not count.
    """
    rows = [row for row in step.rows if row.used]
    own = sum(row.seconds for row in rows if row.evidence == "measured" and row.origin == f"{stack}, {chip.name}")
    return own / (sum(row.seconds for row in rows) or 1.0)


def usual_shares(model: AnyModel, cluster: Cluster) -> dict[str, float]:
    """Return the share of a usual decode step that rests on an engine's own rows, by engine measured on the chip [1].

    The step does not depend on what a question asks for beside model and chip: a tensor-parallel replica on as many
    hosts as hold the weights, the checkpoint's own data types, 32 sequences of 2,048 tokens. Empty where that is no
    replica, or where the layers of the model are not known.
    """
    if not isinstance(model, Model):
        return {}
    types = precision("native", model, cluster.chip)
    weights = model.total_params * storage_bytes(types.expert_weights if model.is_moe else types.linear_weights)
    hosts = 2 ** max(math.ceil(math.log2(_ROOM * weights / (cluster.host_chips * cluster.chip.program_bytes))), 0)
    chips = cluster.host_chips * hosts
    if chips > cluster.max_chips:  # the fabric joins too few
        return {}
    return _shares(model, replace(cluster, usd_per_chip_hour=None, rented_chips=1).with_num_chips(chips), types)


@lru_cache(maxsize=256)
def _shares(model: Model, machine: Cluster, types: Precision) -> dict[str, float]:
    """Remembered by all values of model and machine, not by their names."""
    alike = enumerate_layouts(
        model, machine.num_chips
    )  # of these the most tensor parallelism, experts cut as attention
    plain = [one for one in alike if one.pp == one.cp == one.attention_dp == one.ep == 1]
    layout = max(plain, key=lambda one: one.tp, default=None)
    batch = Batch(decode_sequences=_BATCH, context_len=_CONTEXT_LEN)
    systems = {
        stack: System.of(
            model, machine, calibration=calibration(stack, machine.chip), precisions=[types], routing=Routing()
        )
        for stack in (stacks_on(machine.chip) if layout else ())
    }
    return {
        stack: own_share(system.deployment(layout).table().time(batch), stack, machine.chip)
        for stack, system in systems.items()
        if layout
    }


def errors_of(stack: str, model: AnyModel, chip: Chip, *, pools: bool = False) -> Band:
    """Return what measured servers of a stack, with this kind of model on a chip, deviate by in time per output token.

    Args:
        pools: those with pools of prefill and decode workers.
    """
    of = Evidence(stack=stack, kind=kind_of_model(model), chip=chip.name)
    return find_band(shipped_bands(), "pools_tpot_s" if pools else "tpot_s", of)


def default_engine(model: AnyModel, cluster: Cluster) -> str:
    """Return the engine that every command takes for a model on the chips of a cluster where none is named.

    The number of chips and the other options do not change it, so that all commands agree.

    Returns:
        "generic" on chips that no engine of the catalogue runs on.
    """
    return most_measured(usual_shares(model, cluster), _usual_engine(cluster.chip))


def _usual_engine(chip: Chip) -> str:
    """Return the engine that is taken on a chip unless another was measured better there."""
    return next(iter(default_engines(chip.vendor)), GENERIC)


def why_taken(engine: str, model: AnyModel, cluster: Cluster) -> str:
    """Return which engine is taken where none is named, with the reason where it is not the usual one."""
    usual = _usual_engine(cluster.chip)
    if engine == usual:
        return f"engine {engine} (--engine)"
    shares = usual_shares(model, cluster)
    own, others = (f"{shares.get(name, 0.0):.0%}".replace("%", " %") for name in (engine, usual))
    return (
        f"engine {engine}: its own measurements cover {own} of a usual decode step on {cluster.chip.name}, those of "
        f"{usual} {others} (--engine)"
    )


def most_measured(shares: Mapping[str, float], usual: str) -> str:
    """Return the engine that is taken: the usual one, unless the rows of another cover `LEAD` more.

    Args:
        shares: of a usual decode step that rest on an engine's own rows, by engine [1].
        usual: engine that is taken where nothing was measured.
    """
    known = {name: round(share, _DIGITS) for name, share in shares.items()}
    most = max(known, key=known.__getitem__, default=usual)
    return most if round(known.get(most, 0.0) - known.get(usual, 0.0), _DIGITS) >= LEAD else usual


def engines_of(model: AnyModel, cluster: Cluster) -> list[str]:
    """Return the engines that a search may take for a model on a cluster, the default one first."""
    first = default_engine(model, cluster)
    return [first, *(name for name in stacks_on(cluster.chip) if name != first)]


def known_engines(chip: Chip) -> list[str]:
    """Return the engines that run on a chip: those taken where none is named, then those measured there."""
    return list(dict.fromkeys([*default_engines(chip.vendor), *stacks_on(chip)]))


def runs_on(engine: str, chip: Chip) -> bool:
    """Check whether the catalogue knows that an engine runs on a chip: measured there, or by the chip's vendor."""
    return engine in known_engines(chip)


def numbers_of(engine: str, chip: Chip) -> str:
    """Return the name of the calibration with which an engine runs on a chip where a question names none.

    It is the engine's own, whose missing rows are filled from others. Where no engine was measured on the chip, it is
    one that belongs to no engine but has numbers of the chip, such as XLA's on TPUs. An engine without a calibration
    has the numbers that engines share.
    """
    if not any(num_measured(name, chip) for name in measured_stacks()):
        for name in set(names("calibrations")) - set(names("stacks")):
            record = calibration_record(name)
            if record.stack not in names("stacks") and any(row.chip == chip.name for row in record.operation):
                return name
    return engine if engine in names("calibrations") else GENERIC
