"""Power and energy of an engine in steady state.

A chip draws idle power all the time and the energy of its kernels in each step; it does not exceed its limit. The mean
step of a loop of b sequences on a rank decodes b tokens and carries b / (output_len - 1) prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rackline.hardware import Chip, Cluster, wall_w
from rackline.passes import Batch
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload, Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power of a chip and what it comes to.

    Args:
        chip_w: mean power of a chip [W].
        wall_w: with its share of host, fans and switches, at the machine's plug [W].
        basis: "kernels" where it follows from what the chip does; "nameplate" where nothing was measured on its
            generation, so that it is what the record states for full load.
    """

    chip_w: float
    wall_w: float
    basis: str

    def joules_per(self, chips: float, per_s: float) -> float:
        """Energy at the plug of one of what `chips` chips do `per_s` times a second [J]."""
        return self.wall_w * chips / per_s


def mean_step(engine: Engine, work: Workload | Workloads, sequences: FloatLike) -> Batch:
    """The work of a mean step of a rank: its decodes, and its share of the prompts that replace finished requests.

    Args:
        sequences: b, decoding on a rank and pipeline micro-batch [sequences].
    """
    b = as_array(sequences)
    verified, per_step = engine.speculation.verified_tokens, engine.speculation.tokens_per_step
    prompts = b * per_step / (work.output_len - 1.0)
    return Batch(
        decode_sequences=b,
        decode_tokens=verified,
        context_len=work.mean_context,
        prefill_sequences=prompts,
        chunk_tokens=work.new_tokens,
        prefix_tokens=work.prefix_tokens,
        group_tokens=(b * verified + prompts * work.new_tokens) * engine.attention_dp,
    )


def step_joules(engine: Engine, work: Workload | Workloads, sequences: FloatLike) -> Array:
    """Energy that the kernels of a mean step take on one chip beyond what it draws idle [J]."""
    joules = engine.table.kernel_joules(mean_step(engine, work, sequences))
    if engine.draft is not None and engine.speculation.draft_tokens:
        drafted = Batch(decode_sequences=as_array(sequences), context_len=work.mean_context)
        joules = joules + engine.speculation.draft_tokens * engine.draft.kernel_joules(drafted)
    return joules


def drawn_w(chip: Chip, kernel_joules: FloatLike, seconds: FloatLike) -> Array:
    """Mean power of a chip over some time [W].

    Equation:
        min(idle_w + kernel_joules / seconds, cap)

    Args:
        chip: its power; its rated power where nothing is known of it.
        kernel_joules: energy of its kernels in that time beyond idle [J].
        seconds: the time [s].
    """
    power = chip.power
    if power is None:
        return np.full(np.shape(as_array(seconds)), chip.power_w or np.nan)
    limit = power.limit_w if chip.power_cap_w is None else chip.power_cap_w
    return np.minimum(power.idle_w + as_array(kernel_joules) / seconds, limit)


def power_of(cluster: Cluster, chip_w: float) -> Power | None:
    """Power of a chip with its share of the machine; None where neither chip nor cluster state any."""
    if cluster.chip.power is not None:
        return Power(chip_w=chip_w, wall_w=wall_w(cluster, chip_w), basis="kernels")
    if cluster.chip.power_w is None and cluster.power_w_per_chip is None:
        return None
    chip_w = cluster.chip.power_w or cluster.power_w_per_chip or 0.0
    whole = cluster.power_w_per_chip or wall_w(cluster, chip_w)
    return Power(chip_w=chip_w, wall_w=whole, basis="nameplate")


def engine_power(engine: Engine, cluster: Cluster, work: Workload, sequences: float, step_s: float) -> Power | None:
    """Mean power of a chip of an engine in steady state.

    Args:
        sequences: decoding on a rank and pipeline micro-batch [sequences].
        step_s: mean time from step to step, whatever it consists of [s].
    """
    if cluster.chip.power is None:
        return power_of(cluster, 0.0)
    table = engine.table if engine.table.chip == cluster.chip else replace(engine.table, chip=cluster.chip)
    joules = step_joules(replace(engine, table=table), work, sequences)
    return power_of(cluster, float(drawn_w(cluster.chip, joules, step_s)))
