"""Segment 3: pipelines of racks (C54 to C65)."""

from __future__ import annotations

import math

from rackline.arch import Model
from rackline.ledger.segment_2 import MODEL, mixture, ranks_in_use
from rackline.ledger.work import HOPPER, RACK, Finding, Work
from rackline.parallel.exchange import ExpertRouting, dispatch_traffic
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_seconds


def up_over_out(it: Work, name: str) -> float:
    """Bandwidth inside over bandwidth out of a domain."""
    on = it.world.cluster(name)
    return on.scale_up.bytes_per_s_each_way / (on.scale_out or on.scale_up).bytes_per_s_each_way


def c54(it: Work) -> Finding:
    kinds: dict[bool, list[str]] = {}
    for name in ("llama-3.1-405b", "gpt-3-175b", MODEL, "kimi-k2"):
        model = it.world.model(name)
        if isinstance(model, Model):
            it.near(name, model.num_layers, "layers", "layers")
            kinds.setdefault(model.is_moe, []).append(str(model.num_layers))
    found = [f"{'mixtures' if moe else 'dense models'} {' and '.join(layers)}" for moe, layers in kinds.items()]
    return it.done(f"Of these, {', '.join(found)}.")


def c55(it: Work) -> Finding:
    said = bb.scale_up_over_scale_out_time(it.q("ratio"), it.q("experts"), it.q("layers"))
    when = f"the network is {it.q('ratio'):g} times slower, as was said"
    it.least("8 experts, 1 layer, ratio 8", said, "times", it.q("enough"), when=when)
    found: list[str] = []
    experts = float(mixture(it).experts_per_token)
    for name in (HOPPER, RACK):
        ratio = up_over_out(it, name)
        value = bb.scale_up_over_scale_out_time(ratio, experts, it.q("layers"))
        when = f"it is {ratio:.3g} times slower, as on {name}"
        it.least(f"DeepSeek V3 on {name}, 1 layer", value, "times", it.q("enough"), when=when)
        found.append(f"{value:.3g} at a ratio of {ratio:.3g}")
    return it.done(
        f"The ratio of bandwidths has to come from the machine: one layer of {experts:g} experts gives "
        f"{' and '.join(found)}."
    )


def c56(it: Work) -> Finding:
    for experts, of in (("few", "of_few"), ("some", "of_some"), ("many", "of_many")):
        times = bb.scale_up_over_scale_out_time(it.q("ratio"), it.q(experts), 1.0)
        it.near(f"{it.q(experts):.0f} experts", times, "times", of)
        it.least(f"{it.q(experts):.0f} experts against one", times, "times", it.q("enough"))
    real = up_over_out(it, RACK)
    it.show(f"experts that one layer needs on {RACK}", real / 2.0, "")
    return it.done(f"That is at a ratio of {it.q('ratio'):g}; {RACK} has one of {real:.3g}.")


def c57(it: Work) -> Finding:
    drawn = ExpertRouting(
        num_ranks=ranks_in_use(it), num_experts=mixture(it).num_experts, experts_per_token=int(it.q("drawn"))
    )
    it.near(
        "GPUs that a token with 3 experts goes to",
        float(dispatch_traffic(drawn, 1.0, 1.0).sent[0].sum()),
        "chips",
        "copies",
    )
    real = ExpertRouting(
        num_ranks=ranks_in_use(it), num_experts=mixture(it).num_experts, experts_per_token=mixture(it).experts_per_token
    )
    it.show(f"with {real.experts_per_token}", float(dispatch_traffic(real, 1.0, 1.0).sent[0].sum()), "chips")
    return it.done("A token is sent once to each GPU that holds one of its experts, a few fewer than it has experts.")


def c58(it: Work) -> Finding:
    experts = float(mixture(it).experts_per_token)
    needed = 1
    for name in ("h800-8", HOPPER, RACK):
        value = bb.scale_up_over_scale_out_time(up_over_out(it, name), experts, it.q("layers"))
        it.least(name, value, "times", it.q("enough"))
        needed = max(needed, math.ceil(it.q("layers") / value))
    return it.done(
        "It depends on how much slower the network is than the links inside; on all of these it takes "
        f"{needed} {'layer' if needed == 1 else 'layers'} a stage."
    )


def c59(it: Work) -> Finding:
    """Bytes that all chips of a domain send for a token of one layer, and the time beside that of its arithmetic."""
    rack, model, moe = it.world.cluster(RACK), it.world.model(MODEL), mixture(it)
    if not isinstance(model, Model):
        raise TypeError(f"{MODEL} has no layers")
    ranks = ranks_in_use(it)
    spread = ExpertRouting(num_ranks=ranks, num_experts=moe.num_experts, experts_per_token=moe.experts_per_token)
    copies = float(dispatch_traffic(spread, 1.0, 1.0).sent[0].sum())
    width = 2.0 * model.d_model  # a token in BF16
    reduced = 2.0 * (ranks - 1)  # times that a ring all-reduce sends each element, summed over ranks
    hidden = 2.0 * 2.0 * (moe.experts_per_token * moe.d_expert + moe.d_shared)  # gate and up in BF16
    up = rack.scale_up.bytes_per_s_each_way
    out = (rack.scale_out or rack.scale_up).bytes_per_s_each_way
    per_layer = rack.chip.flop_per_s("fp8") * model.num_layers / float(model.flop_per_token(0.0))
    stages = it.q("stages")
    for name, sent, link, pays in (
        ("layers", width * (stages - 1.0) / model.num_layers, out, True),
        ("experts", 1.5 * width * copies, up, True),  # FP8 out, BF16 back
        ("hidden width (d_ff)", width * reduced, up, False),
        ("width (d_model)", hidden * reduced, up, False),
    ):
        share = sent / link * per_layer
        if pays:
            it.most(f"exchange over arithmetic, cut along {name}", share, "times", it.q("even"))
        else:
            it.least(f"exchange over arithmetic, cut along {name}", share, "times", it.q("even"))
    return it.done(
        f"Bytes that {ranks} chips send for a token of a layer of DeepSeek V3 in FP8, over the time of its arithmetic. "
        "A cut through a width sums all results over all chips, one along layers or experts moves a token a few times."
    )


def c60(it: Work) -> Finding:
    stages, rack = it.q("stages"), it.world.cluster(RACK)
    chips = float(rack.num_chips)
    one = bb.chip_memory(it.q("total_params"), 1.0, 0.0, 0.0, 0.0, chips, 1.0).weights_bytes
    four = bb.chip_memory(it.q("total_params"), 1.0, 0.0, 0.0, 0.0, chips, stages).weights_bytes
    it.near("weights per chip with 4 stages over 1", four / one, "share", "share")
    whole = bb.weight_fetch_s(it.q("total_params"), 1.0, rack.chip.hbm_bytes_per_s, chips)
    staged = stages * bb.weight_fetch_s(it.q("total_params") / stages, 1.0, rack.chip.hbm_bytes_per_s, chips)
    it.identity("reads of one token through all stages", staged, whole, "s")
    return it.done("Each stage reads its share in turn, so the time of a token is the sum and the memory a share.")


def c61(it: Work) -> Finding:
    step = bb.ring_step(it.q("pass_s"), it.q("stages"), 1.0, it.q("batch_size"))
    it.near("idle share with one batch in flight", step.idle_share, "share", "idle")
    return it.done("One batch is in one stage at a time.")


def c62(it: Work) -> Finding:
    stages, pass_s, batch = it.q("stages"), it.q("pass_s"), it.q("batch_size")
    free = bb.ring_step(pass_s, stages, stages, batch, 0.0).token_s / pass_s
    it.identity("time per token over one rack, free hops", free, 1.0, "times", when="hops take no time")
    hop = it.q("hop_s")
    slow = bb.ring_step(pass_s, stages, stages, batch, hop).token_s / pass_s
    label = f"hops of {format_seconds(hop)}"
    it.near(f"time per token over one rack, {label}", slow, "times", "neutral", when=f"there are {label}")
    return it.done("With as many micro-batches as stages none is idle; what the hops take is added (C74).")


def c63(it: Work) -> Finding:
    it.near(
        "4 stages, 4 micro-batches", bb.flush_bubble_share(it.q("stages"), it.q("micro_batches")), "share", "bubble"
    )
    it.show("4 stages, 32 micro-batches", bb.flush_bubble_share(it.q("stages"), 32.0), "share")
    return it.done("More micro-batches shrink the bubble of a flushed pipeline; only other schedules remove it.")


def c65(it: Work) -> Finding:
    for name in (RACK, "gb300-nvl72"):
        on = it.world.cluster(name)
        it.least(f"many tens of terabytes on {name}", on.num_chips * on.chip.hbm_bytes, "B", it.q("many_tens_bytes"))
    needed = float(bb.chip_memory(it.q("params"), 1.0, 0.0, 0.0, 0.0, 1.0).weights_bytes)
    it.near("the weights of 1 T parameters at one byte", needed, "B", "needed_bytes")
    rack = it.world.cluster(RACK)
    it.most("their room in one rack", needed, "B", rack.num_chips * rack.chip.hbm_bytes)
    return it.done(
        f"A rack holds {format_bytes(rack.num_chips * rack.chip.hbm_bytes)}; the conclusion needs no more than "
        f"{format_bytes(needed)}."
    )
