"""Where the lecture disagrees with itself or with outside facts (N34 to N56): "holds" would mean that it does not."""

from __future__ import annotations

import math

from rackline.arch import Model
from rackline.ledger.segment_2 import MODEL, mixture, ranks_in_use
from rackline.ledger.segment_6 import GEMINI, OPUS, output_over_input
from rackline.ledger.segment_6_tiers import DISK, FLASH
from rackline.ledger.work import FRONTIER, HBM_CHIPS, HOPPER, RACK, Finding, Work, attention_slope
from rackline.scaling import equal_cost_ratio, overtraining_factor
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_count, format_percent, format_seconds


def n34(it: Work) -> Finding:
    meant = "sparsity is total over active parameters"
    it.near("total over active", bb.balance_batch(it.q("ridge"), it.q("ratio")), "sequences", "balance", when=meant)
    turned = "it is active over total"
    it.near("active over total", it.q("ridge") / it.q("ratio"), "sequences", "balance", when=turned)
    return it.done(
        "Only total over active, at least 1, gives the batch that was meant; here it is `total_over_active`."
    )


def n35(it: Work) -> Finding:
    active = mixture(it).experts_per_token
    for name in ("most", "some", "few"):
        it.near(f"published {active}, said {it.q(name):.0f}", active, "", name, when=f"{it.q(name):.0f} were said")
    return it.done(f"The published shape activates {active} of {mixture(it).num_experts} routed experts.")


def n36(it: Work) -> Finding:
    moe, model = mixture(it), it.world.model(MODEL)
    for label, ratio in (
        ("experts as said", it.q("experts_said")),
        ("parameters as said", it.q("rounded_total") / it.q("rounded_active")),
        ("parameters as published", model.total_over_active),
        ("experts as published", moe.num_experts / moe.experts_per_token),
    ):
        it.near(label, bb.balance_batch(it.q("ridge"), ratio), "sequences", "balance", when=f"one counts {label}")
    return it.done("The formula is derived from parameters; experts leave out attention, which every token uses.")


def n37(it: Work) -> Finding:
    for label, seconds in (
        ("20 ms", it.q("long_s")),
        ("15 ms", it.q("short_s")),
        ("1/64 s", 1.0 / it.q("passes_per_s")),
    ):
        made = bb.tokens_per_s(it.q("batch_size"), seconds)
        it.near(label, made, "tokens/s", "tokens_per_s", when=f"a pass takes {label}")
    pass_s = it.q("batch_size") / it.q("tokens_per_s")
    return it.done(f"128 thousand belongs to {format_seconds(pass_s)}.")


def n38(it: Work) -> Finding:
    drains = {name: it.world.chip(name).drain_s for name in HBM_CHIPS}
    within = it.claim.numbers["interval_s"].within
    longer = sum(not it.near(name, seconds, "s", "interval_s") for name, seconds in drains.items())
    return it.done(
        f"{longer} of {len(drains)} chips are off by more than {format_percent(within)}; "
        f"the range is {format_seconds(min(drains.values()))} to {format_seconds(max(drains.values()))}."
    )


def n39(it: Work) -> Finding:
    racks: list[str] = []
    for name in (RACK, "gb300-nvl72"):
        on = it.world.cluster(name)
        held = on.num_chips * on.chip.hbm_bytes
        within = it.q("low_bytes") <= held <= it.q("high_bytes")
        it.true(f"{name} within 10 to 20 TB", within, when=f"10 to 20 TB are meant, on {name}")
        it.least(f"{name} against many tens", held, "B", it.q("many_tens_bytes"), when="many tens are meant")
        racks.append(f"{name} has {format_bytes(held)}")
    return it.done(f"{' and '.join(racks)}.")


def n40(it: Work) -> Finding:
    hopper, rack = it.world.cluster(HOPPER).scale_up.size, it.world.cluster(RACK).scale_up.size
    it.near("Hopper to Blackwell", rack / hopper, "times", "growth")
    it.near("chips of the domain", rack, "chips", "used")
    it.near("chips over which 256 experts divide", ranks_in_use(it), "chips", "used")
    packages = it.show("Rubin Ultra in packages over Blackwell", it.q("packages_of_ultra") / rack, "times")
    dies = it.show("Rubin Ultra in dies over Vera Rubin", it.q("dies_of_ultra") / it.q("dies_of_rubin"), "times")
    return it.done(
        f"The step was {rack / hopper:.3g} times, to {rack} chips; the growth to come is {dies:.3g} times in dies and "
        f"{packages:.3g} times in packages."
    )


def n41(it: Work) -> Finding:
    stages = it.q("stages")
    it.identity(
        "idle share with as many micro-batches as stages",
        bb.ring_step(it.q("pass_s"), stages, stages, it.q("micro_batch")).idle_share,
        0.0,
        "share",
        when="the number of micro-batches is meant",
    )
    it.most(
        "with one micro-batch of as many sequences",
        bb.ring_step(it.q("pass_s"), stages, 1.0, stages).idle_share,
        "share",
        0.0,
        when="their size is meant",
    )
    return it.done("The number of micro-batches decides, not their size.")


def n42(it: Work) -> Finding:
    b = it.q("batch")
    one, two = (bb.cost_per_token_usd(x, 1e-3, 1.0) for x in (b, 2 * b))
    it.identity("cost at twice the batch over cost", two / one, 0.5, "times", when="hyperbola is said")
    it.identity("the same against a parabola", two / one, 4.0, "times", when="parabola is said")
    return it.done("A constant time over the batch is a hyperbola.")


def n43(it: Work) -> Finding:
    rack = it.world.cluster(RACK)
    room = rack.num_chips * rack.chip.hbm_bytes
    needed = math.ceil(it.world.model(MODEL).total_params / room)
    it.most("stages that DeepSeek V3 in FP8 needs", needed, "stages", it.q("most"), when="none to two is meant")
    largest = math.ceil(it.q("params") / room)
    it.least("stages that 5 T parameters in FP8 need", largest, "stages", it.q("realistic"), when="four is meant")
    it.least("the same against a layer on each rack", largest, "stages", it.q("layers"), when="a hundred is meant")
    return it.done(f"A hundred is possible; on GB200 racks DeepSeek V3 needs {needed}, 5 T parameters {largest}.")


def n44(it: Work) -> Finding:
    m = it.q("relative_mfu")
    divided, multiplied = "one divides by the MFU", "one multiplies by it"
    it.near("β by dividing", equal_cost_ratio(2.0, m), "times", "beta", when=divided)
    it.near("α by dividing, k = 3", equal_cost_ratio(it.q("k"), m), "times", "alpha", when=divided)
    it.near("β by multiplying", equal_cost_ratio(2.0, 1.0 / m), "times", "beta", when=multiplied)
    it.near("the same against what was said first", equal_cost_ratio(2.0, 1.0 / m), "times", "slip")
    return it.done("Machine time is divided by MFU, so its inverse multiplies; the first values were taken back.")


def n45(it: Work) -> Finding:
    factors: dict[str, float] = {}
    for label, name in (("259 T", "exact"), ("200 T", "rounded"), ("150 T", "rumour"), ("100 T", "slip")):
        factors[label] = overtraining_factor(it.q("params"), it.q(name))
        it.near(label, factors[label], "times", "factor", when=f"{label} are trained on")
    return it.done(
        f"The numbers that were named allow {min(factors.values()):.0f} to {max(factors.values()):.0f} times."
    )


def n46(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, context = chip.flop_per_s("fp8"), chip.hbm_bytes_per_s, it.q("context_len")
    kv = bb.kv_bytes_per_token_from_crossover(model.active_params, context, flop, hbm)
    by_step = bb.kv_fetch_s(1.0, context, kv, hbm) / bb.compute_s(1.0, model.active_params, flop)
    it.show("memory over arithmetic at 200K by the step", by_step, "times")
    it.identity("at most 1 below the bend, by the step", by_step, 1.0, "times", when="the step alone is believed")
    for name in (OPUS, GEMINI):
        ratio, when = output_over_input(it.world.sheet(name)), f"the output price of {name} is believed"
        it.most(f"at most 1 as well, by the output price of {name}", ratio, "times", it.q("bound"), when=when)
    return it.done(
        "Below the bend decoding is bound by arithmetic and would cost what prefill does; where a list asks for more, "
        "margins differ or the step is not the bend."
    )


def n47(it: Work) -> Finding:
    sheet = it.world.sheet(GEMINI)
    longest = sheet.max_context_len or it.q("context_len")
    it.most("cost at the longest prompt over that at the step", longest / it.q("context_len"), "times", it.q("rise"))
    covered = it.q("rise") * it.q("context_len")
    return it.done(
        f"A floor price with that surcharge covers {format_count(covered)} tokens of the {format_count(longest)} that "
        "are sold; the rest takes a margin, or fewer bytes."
    )


def n48(it: Work) -> Finding:
    low, high = it.world.sheet(GEMINI).of_mode("standard")[:2]
    output = (high.output_usd or 0.0) / (low.output_usd or 1.0)
    read = (high.input_usd or 0.0) / (low.input_usd or 1.0)
    it.near("output", output, "times", "rise", when="output is meant")
    it.near("input", read, "times", "rise", when="input is meant")
    return it.done(f"Input rises {read:.3g} times and output {output:.3g}; a bend of decoding explains output alone.")


def n49(it: Work) -> Finding:
    one, two = (bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), width) for width in (1.0, 2.0))
    it.near("1 byte per element", one, "B/token", "said")
    it.near("2 bytes", two, "B/token", "said")
    said = it.q("said")
    return it.done(f"It is {one / said:.3g} times as much at one byte per element and {two / said:.3g} times at two.")


def n50(it: Work) -> Finding:
    lengths: list[str] = []
    for name in (GEMINI, OPUS):
        longest = it.world.sheet(name).max_context_len or 0.0
        it.most(f"{name} against a million", longest, "tokens", 1.05 * it.q("most"), when="a million is the bound")
        it.most(f"{name} against 200 thousand", longest, "tokens", it.q("high"), when="200 thousand is the habit")
        lengths.append(f"{name} sells {format_count(longest)}")
    return it.done(f"{' and '.join(lengths)} tokens.")


def n51(it: Work) -> Finding:
    found: list[str] = []
    ridge = it.world.chip("h100-sxm").ridge_point("bf16")
    for name in ("llama-3.1-70b", MODEL):
        model = it.world.model(name)
        slope = attention_slope(model)
        equal = bb.attention_equals_weights_context(model.active_params, slope)
        share = slope / model.kv_bytes_per_token(2.0) / ridge
        it.least(f"{name}: equal at", equal, "tokens", it.q("millions"), when=f"the context of {name} is meant")
        label, when = f"{name}: slope of arithmetic over memory", f"the slope of {name} is meant"
        it.most(label, share, "share", it.q("far_below"), when=when)
        found.append(f"{format_count(float(equal))} tokens and {format_percent(share)} in {name}")
    return it.done(f"Attention equals the weights at, and has of the slope of memory: {'; '.join(found)}.")


def n52(it: Work) -> Finding:
    reads: list[str] = []
    context = it.q("context_len")
    root = bb.sparse_read_tokens(2 * context) / bb.sparse_read_tokens(context)
    it.near("square root", root, "times", "growth", when="blocks grow with the root of the context")
    model = it.world.model("deepseek-v3.2")
    if isinstance(model, Model):
        for name, core in model.cores().items():
            growth = float(core.kv_read_tokens(2 * context)) / float(core.kv_read_tokens(context))
            it.near(f"DeepSeek V3.2, {name}", growth, "times", "growth", when=f"{name} of DeepSeek V3.2 is meant")
            reads.append(f"{float(core.kv_read_tokens(context)):,.0f} by {name}")
    return it.done(f"Of {format_count(context)} tokens DeepSeek V3.2 reads {' and '.join(reads)}.")


def n53(it: Work) -> Finding:
    disk, flash = it.world.tier(DISK).drain_s, it.world.tier(FLASH).drain_s
    it.near("20 TB disk", disk, "s", "disk_s")
    dense = it.world.tier("qlc-31tb").drain_s
    it.near("30 TB QLC flash", dense, "s", "disk_s")
    it.near("4 TB NVMe flash", flash, "s", "flash_s")
    return it.done(
        f"A disk takes {format_seconds(disk)}, a small flash drive {format_seconds(flash)}, a large one "
        f"{format_seconds(dense)}."
    )


def n56(it: Work) -> Finding:
    chip = it.world.chip("h100-sxm")
    least = far = math.inf
    for name in (MODEL, "llama-3.1-70b"):
        model = it.world.model(name)
        kv = model.kv_bytes_per_token(2.0)
        least = min(least, kv)
        it.near(f"{name} in BF16", kv, "B/token", "said")
        star = bb.crossover_context(model.active_params, kv, chip.flop_per_s("bf16"), chip.hbm_bytes_per_s)
        it.near(f"{name} crosses on H100", star, "tokens", "context_len")
        far = min(far, star)
    return it.done(
        f"They keep {format_bytes(least)} a token and more and cross from {format_count(far)} tokens on; 200 thousand "
        "and 2 KB were said."
    )
