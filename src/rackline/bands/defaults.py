"""The stack that is taken where none is named and nothing is searched: that of which most is known.

Known are kernels, by the share of a usual decode step that stands on rows measured under the stack on the chip, and
servers, by how wide the errors of measured ones are. `rackline.bands.stack_choice` compares what stacks cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from rackline.arch import AnyModel, Model
from rackline.bands.bands import ANY, Band, Evidence, find_band, kind_of_model, shipped_bands
from rackline.catalog import measured_stacks, names
from rackline.hardware import Chip, Cluster
from rackline.parallel import Precision, Routing, enumerate_layouts, precision
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, PassTime, calibration
from rackline.passes.fallback import best_stack, num_measured
from rackline.system import System

_BATCH, _CONTEXT_LEN = 32.0, 2048.0  # of the usual step, on a rank
_ROOM = 1.25  # memory for weights, and for some KV cache beside them
_AS_MUCH = 0.1  # of a step: stacks whose shares are this near are known equally well by their kernels


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
    """What measured servers of a stack, with a model of this kind on a chip, deviate by in time per output token.

    Args:
        pools: those with pools of prefill and decode workers.
    """
    of = Evidence(stack=stack, kind=kind_of_model(model), chip=chip.name)
    return find_band(shipped_bands(), "pools_tpot_s" if pools else "tpot_s", of)


def best_known(shares: Mapping[str, float], errors: Mapping[str, Band]) -> list[str]:
    """Stacks by what is known of them, most first.

    Those whose decode step stands most on their own rows come first; of shares within a tenth of the largest, the one
    with the narrowest group of measured servers, and of equal groups the least errors.

    Args:
        shares: of a decode step [1], by stack.
        errors: of served requests, by stack.
    """

    def servers(stack: str) -> tuple[int, float]:
        band = errors[stack]
        named = sum(part != ANY for part in (band.of.stack, band.of.kind, band.of.chip))
        return -named, band.high / band.low

    left, found = dict(shares), list[str]()
    while left:
        near = [stack for stack, share in left.items() if share >= max(left.values()) - _AS_MUCH]
        found.append(min(near, key=servers))
        del left[found[-1]]
    return found


def default_stacks(model: AnyModel, cluster: Cluster) -> list[str]:
    """The stacks of a model on the chips of a cluster, by what is known of them; the first is taken without a search.

    Independent of how many chips are in use and of what is asked for, so that commands agree. Where nothing was
    measured on the chip, or the layers of the model are not known, that with the most measurements, else the generic
    one.
    """
    shares = usual_shares(model, cluster)
    errors = {stack: errors_of(stack, model, cluster.chip) for stack in shares}
    return best_known(shares, errors) or [best_stack(cluster.chip)]


def default_stack(model: AnyModel, cluster: Cluster) -> str:
    """The first of `default_stacks`."""
    return default_stacks(model, cluster)[0]
