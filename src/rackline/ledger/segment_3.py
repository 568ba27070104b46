"""Segment 3: pipelines of racks (C54 to C65)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackline.arch import Model
from rackline.ledger.parts import HOPPER, RACK
from rackline.ledger.segment_2 import MODEL, mixture, ranks_in_use
from rackline.ledger.work import Finding, Work
from rackline.parallel.traffic import ExpertRouting, dispatch_traffic
from rackline.serving import blackboard as bb
from rackline.units import format_bytes


def up_over_out(it: Work, name: str) -> float:
    """Bandwidth inside over bandwidth out of a domain."""
    on = it.world.cluster(name)
    return on.scale_up.bytes_per_s_each_way / (on.scale_out or on.scale_up).bytes_per_s_each_way


def c54(it: Work) -> Finding:
    for name in ("llama-3.1-405b", "gpt-3-175b", MODEL, "kimi-k2"):
        model = it.world.model(name)
        if isinstance(model, Model):
            it.near(name, model.num_layers, "layers", "layers")
    return it.done(
        "Large dense models have about a hundred layers, open mixtures about sixty.", only_if="the model is dense"
    )


def c55(it: Work) -> Finding:
    said = bb.scale_up_over_scale_out_time(it.q("ratio"), it.q("experts"), it.q("layers"))
    it.least("8 experts, 1 layer, ratio 8", said, "", it.q("enough"))
    experts = float(mixture(it).experts_per_token)
    for name in (HOPPER, RACK):
        value = bb.scale_up_over_scale_out_time(up_over_out(it, name), experts, it.q("layers"))
        it.least(f"DeepSeek V3 on {name}, 1 layer", value, "", it.q("enough"))
    return it.done(
        "The ratio of bandwidths has to come from the machine: at 18 one layer of 8 experts is not enough.",
        only_if="the network is about a ninth as fast as the links inside",
    )


def c56(it: Work) -> Finding:
    for experts, of in (("few", "of_few"), ("some", "of_some"), ("many", "of_many")):
        it.near(
            f"{it.q(experts):.0f} experts", bb.scale_up_over_scale_out_time(it.q("ratio"), it.q(experts), 1.0), "", of
        )
    return it.done("With any of the numbers of experts that were named the product is above one at a ratio of 8.")


def c57(it: Work) -> Finding:
    drawn = ExpertRouting(
        num_ranks=ranks_in_use(it), num_experts=mixture(it).num_experts, experts_per_token=int(it.q("drawn"))
    )
    it.near(
        "GPUs that a token with 3 experts goes to", float(dispatch_traffic(drawn, 1.0, 1.0).sent[0].sum()), "", "copies"
    )
    real = ExpertRouting(
        num_ranks=ranks_in_use(it), num_experts=mixture(it).num_experts, experts_per_token=mixture(it).experts_per_token
    )
    it.show("with 8 experts", float(dispatch_traffic(real, 1.0, 1.0).sent[0].sum()), "")
    return it.done("A token is sent once to each GPU that holds one of its experts, a few fewer than it has experts.")


def c58(it: Work) -> Finding:
    experts = float(mixture(it).experts_per_token)
    for name in ("h800-8", HOPPER, RACK):
        value = bb.scale_up_over_scale_out_time(up_over_out(it, name), experts, it.q("layers"))
        it.least(name, value, "", it.q("enough"))
    return it.done(
        "It depends on how much slower the network is than the links inside; two layers a stage are enough on all."
    )


def c60(it: Work) -> Finding:
    stages, rack = it.q("stages"), it.world.cluster(RACK)
    chips = float(rack.num_chips)
    one = bb.chip_memory(it.q("total_params"), 1.0, 0.0, 0.0, 0.0, chips, 1.0).weights_bytes
    four = bb.chip_memory(it.q("total_params"), 1.0, 0.0, 0.0, 0.0, chips, stages).weights_bytes
    it.near("weights per chip with 4 stages over 1", four / one, "", "share")
    whole = bb.weight_fetch_s(it.q("total_params"), 1.0, rack.chip.hbm_bytes_per_s, chips)
    staged = stages * bb.weight_fetch_s(it.q("total_params") / stages, 1.0, rack.chip.hbm_bytes_per_s, chips)
    it.same("reads of one token through all stages", staged, whole, "s")
    return it.done("Each stage reads its share in turn, so the time of a token is the sum and the memory a share.")


def c61(it: Work) -> Finding:
    step = bb.ring_step(it.q("pass_s"), it.q("stages"), 1.0, it.q("batch_size"))
    it.near("idle share with one batch in flight", step.idle_share, "%", "idle")
    return it.done("One batch is in one stage at a time.")


def c62(it: Work) -> Finding:
    stages, pass_s, batch = it.q("stages"), it.q("pass_s"), it.q("batch_size")
    for label, hop in (("no time between racks", 0.0), ("2.5 ms between racks", it.q("hop_s"))):
        step = bb.ring_step(pass_s, stages, stages, batch, hop)
        it.near(f"time per token over one rack, {label}", step.token_s / pass_s, "times", "neutral")
    return it.done(
        "With as many micro-batches as stages none is idle; what the hops take is added (C74).",
        only_if="hops take no time",
    )


def c63(it: Work) -> Finding:
    it.near("4 stages, 4 micro-batches", bb.flush_bubble_share(it.q("stages"), it.q("micro_batches")), "%", "bubble")
    it.show("4 stages, 32 micro-batches", bb.flush_bubble_share(it.q("stages"), 32.0), "%")
    return it.done("More micro-batches shrink the bubble of a flushed pipeline; only other schedules remove it.")


def c65(it: Work) -> Finding:
    for name in (RACK, "gb300-nvl72"):
        on = it.world.cluster(name)
        it.least(name, on.num_chips * on.chip.hbm_bytes, "B", it.q("many_tens_bytes"))
    needed = float(bb.chip_memory(it.q("params"), 1.0, 0.0, 0.0, 0.0, 1.0).weights_bytes)
    it.near("1 T parameters at one byte", needed, "B", "needed_bytes")
    rack = it.world.cluster(RACK)
    it.most("which fits into one rack", needed, "B", rack.num_chips * rack.chip.hbm_bytes)
    return it.done(
        f"A rack holds {format_bytes(rack.num_chips * rack.chip.hbm_bytes)}, not many tens; the conclusion stands.",
        only_if="one or two tens of terabytes are meant",
    )


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "C54": c54,
    "C55": c55,
    "C56": c56,
    "C57": c57,
    "C58": c58,
    "C60": c60,
    "C61": c61,
    "C62": c62,
    "C63": c63,
    "C65": c65,
}
