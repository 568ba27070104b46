"""Power and energy of an engine in steady state.

A chip draws idle power all the time and the energy of its kernels in each step; it does not exceed its limit. The mean
step of a loop of b sequences on a rank decodes b tokens and carries b / (output_len - 1) prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rackline.hardware import Cluster, drawn_w, wall_w
from rackline.parallel import Layout
from rackline.passes import Batch
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.context import prefill_chunk
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload, Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power of a chip and what it comes to.

    Args:
        chip_w: mean power of a chip [W].
        wall_w: with its share of host, fans and switches, at the machine's plug [W].
        basis: "kernels": from what the chip does; "other generations": with the numbers of chips of other generations;
            "nameplate": what the record states for full load, where not even the chip's limit is known.
        cap_w: power cap of the chips; None without one [W].
    """

    json_keys: ClassVar = ("chip_w", "wall_w", "basis", "cap_w")

    chip_w: float
    wall_w: float
    basis: str
    cap_w: float | None = None

    def site_w(self, pue: float) -> float:
        """Power of the site, per chip [W]; that of the nameplate has its cooling already.

        Args:
            pue: power of the site over that of the machines [1].
        """
        return self.wall_w * (1.0 if self.basis == "nameplate" else pue)

    def joules_per_request(self, chips: float, requests_per_s: float) -> float:
        """Energy at the plug of a request of what `chips` chips serve [J]."""
        return self.wall_w * chips / requests_per_s


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


def power_of(cluster: Cluster, chip_w: float) -> Power | None:
    """Power of a chip with its share of the machine; that of the nameplate where nothing else is known, else None.

    Args:
        chip_w: mean power of the chip itself; not a number where nothing is known of it [W].
    """
    chip = cluster.chip
    if chip.power is not None:
        basis = "other generations" if chip.power.other_generation else "kernels"
        return Power(chip_w=chip_w, wall_w=wall_w(cluster, chip_w), basis=basis, cap_w=chip.power_cap_w)
    if cluster.power_w_per_chip is None:
        return None
    return Power(chip_w=cluster.power_w_per_chip, wall_w=cluster.power_w_per_chip, basis="nameplate")


def request_joules(engine: Engine, layout: Layout, work: Workload, sequences: float) -> float:
    """Energy that the kernels of all chips of a replica take for one request, prompt and output, beyond idle [J].

    Args:
        sequences: that decode together on a rank and pipeline micro-batch [sequences].
    """
    return _of_request(engine, layout, work, sequences, float(step_joules(engine, work, sequences)))


def output_joules(engine: Engine, layout: Layout, work: Workload, sequences: float) -> float:
    """The same for the output alone, on a pool that decodes [J]."""
    decoding = Batch(
        decode_sequences=sequences,
        decode_tokens=engine.speculation.verified_tokens,
        context_len=work.mean_context,
        group_tokens=sequences * engine.speculation.verified_tokens * layout.attention_dp,
    )
    return _of_request(engine, layout, work, sequences, float(engine.table.kernel_joules(decoding)))


def prompt_joules(engine: Engine, layout: Layout, work: Workload, max_batched_tokens: float) -> float:
    """The same for the prompt alone, in passes full of prompts [J]; a prompt may be shared by cp ranks."""
    ranks = layout.attention_dp * layout.cp
    full = replace(prefill_chunk(work, max_batched_tokens, layout.cp), group_tokens=max_batched_tokens * ranks)
    passes = work.new_tokens / max_batched_tokens  # of all ranks, for one prompt
    chips = layout.chips_per_replica / (layout.pp * ranks)
    return float(engine.table.kernel_joules(full)) * passes * chips


def _of_request(engine: Engine, layout: Layout, work: Workload, sequences: float, joules: float) -> float:
    """Energy of the steps of a request, from that of a step of one chip for one micro-batch, all its layers [J]."""
    steps = (work.output_len - 1.0) / engine.speculation.tokens_per_step
    return joules * steps * layout.chips_per_replica / (sequences * layout.attention_dp * layout.pp)


def power_at(cluster: Cluster, joules_per_request: float, requests_per_s: float, chips: float) -> Power | None:
    """Mean power of a chip that serves its share of some requests.

    Args:
        joules_per_request: of the kernels of all chips that a request runs on, beyond idle [J].
        requests_per_s: rate of all chips together [requests/s].
        chips: that serve them [count].
    """
    return power_of(cluster, float(drawn_w(cluster.chip, joules_per_request * requests_per_s / chips, 1.0)))
