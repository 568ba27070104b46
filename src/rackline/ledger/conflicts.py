"""Where the lecture disagrees with itself or with outside facts (N34 to N56): "holds" would mean that it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rackline.arch import Model
from rackline.ledger.parts import FRONTIER, HBM_CHIPS, HOPPER, RACK, attention_slope
from rackline.ledger.segment_2 import MODEL, mixture, ranks_in_use
from rackline.ledger.segment_6 import GEMINI, OPUS, output_over_input
from rackline.ledger.segment_6_tiers import DISK, FLASH
from rackline.ledger.work import Finding, Work
from rackline.scaling import equal_cost_ratio, overtraining_factor
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_seconds


def n34(it: Work) -> Finding:
    it.near("total over active", bb.balance_batch(it.q("ridge"), it.q("ratio")), "sequences", "balance")
    it.near("active over total", it.q("ridge") / it.q("ratio"), "sequences", "balance")
    return it.done(
        "Only total over active, at least 1, gives the batch that was meant; here it is `total_over_active`."
    )


def n35(it: Work) -> Finding:
    active = mixture(it).experts_per_token
    for name in ("most", "some", "few"):
        it.near(f"published {active}, said {it.q(name):.0f}", active, "", name)
    return it.done("The published shape activates 8 of 256 routed experts and one shared.", only_if="8 were said")


def n36(it: Work) -> Finding:
    moe, model = mixture(it), it.world.model(MODEL)
    for label, ratio in (
        ("experts as said", it.q("experts_said")),
        ("parameters as said", it.q("rounded_total") / it.q("rounded_active")),
        ("parameters as published", model.total_over_active),
        ("experts as published", moe.num_experts / moe.experts_per_token),
    ):
        it.near(label, bb.balance_batch(it.q("ridge"), ratio), "sequences", "balance")
    return it.done("The formula is derived from parameters; experts leave out attention, which every token uses.")


def n37(it: Work) -> Finding:
    for label, seconds in (
        ("20 ms", it.q("long_s")),
        ("15 ms", it.q("short_s")),
        ("1/64 s", 1.0 / it.q("passes_per_s")),
    ):
        it.near(label, bb.tokens_per_s(it.q("batch_size"), seconds), "tokens/s", "tokens_per_s")
    return it.done("128 thousand belongs to 15.6 ms.")


def n38(it: Work) -> Finding:
    for name in HBM_CHIPS:
        it.near(name, it.world.chip(name).drain_s, "s", "interval_s")
    return it.done("Half of the chips take longer by more than a third.")


def n39(it: Work) -> Finding:
    for name in (RACK, "gb300-nvl72"):
        on = it.world.cluster(name)
        held = on.num_chips * on.chip.hbm_bytes
        it.true(f"{name} within 10 to 20 TB", it.q("low_bytes") <= held <= it.q("high_bytes"))
        it.least(f"{name} against many tens", held, "B", it.q("many_tens_bytes"))
    return it.done(
        "The first is right for GB200 and nearly for GB300, the second for neither.",
        only_if="one or two tens are meant",
    )


def n40(it: Work) -> Finding:
    hopper, rack = it.world.cluster(HOPPER).scale_up.size, it.world.cluster(RACK).scale_up.size
    it.near("Hopper to Blackwell", rack / hopper, "times", "growth")
    it.near("chips of the domain", rack, "", "used")
    it.show("chips over which 256 experts divide", ranks_in_use(it), "")
    it.show("Rubin Ultra in packages over Blackwell", it.q("packages_of_ultra") / rack, "times")
    it.show("Rubin Ultra in dies over Vera Rubin", it.q("dies_of_ultra") / it.q("dies_of_rubin"), "times")
    return it.done("It is ninefold and 72; the fourfold growth to come is in dies, in packages it is twofold.")


def n41(it: Work) -> Finding:
    stages = it.q("stages")
    it.most(
        "idle share with as many micro-batches as stages",
        bb.ring_step(it.q("pass_s"), stages, stages, it.q("micro_batch")).idle_share,
        "%",
        0.0,
    )
    it.most(
        "with one micro-batch of as many sequences",
        bb.ring_step(it.q("pass_s"), stages, 1.0, stages).idle_share,
        "%",
        0.0,
    )
    return it.done("The number of micro-batches decides, not their size.", only_if="the number is meant")


def n42(it: Work) -> Finding:
    b = it.q("batch")
    one, two = (bb.cost_per_token_usd(x, 1e-3, 1.0) for x in (b, 2 * b))
    it.same("cost at twice the batch over cost", two / one, 0.5)
    it.same("and as a parabola", two / one, 4.0)
    return it.done("A constant time over the batch is a hyperbola.", only_if="hyperbola is said")


def n43(it: Work) -> Finding:
    rack = it.world.cluster(RACK)
    room = rack.num_chips * rack.chip.hbm_bytes
    needed = math.ceil(it.world.model(MODEL).total_params / room)
    it.most("stages that DeepSeek V3 in FP8 needs", needed, "", it.q("most"))
    largest = math.ceil(it.q("params") / room)
    it.least("stages that 5 T parameters in FP8 need", largest, "", it.q("realistic"))
    it.least("the same against a layer on each rack", largest, "", it.q("layers"))
    return it.done(
        "A hundred is possible, one or two are needed, so none to two is what one would run.",
        only_if="none to two is meant",
    )


def n44(it: Work) -> Finding:
    m = it.q("relative_mfu")
    it.near("β by dividing", equal_cost_ratio(2.0, m), "", "beta")
    it.near("α by dividing, k = 3", equal_cost_ratio(it.q("k"), m), "", "alpha")
    it.near("2/6 multiplied", equal_cost_ratio(2.0, 1.0 / m), "", "beta")
    it.near("which was said first", equal_cost_ratio(2.0, 1.0 / m), "", "slip")
    return it.done(
        "Machine time is divided by MFU, so its inverse multiplies; the first values were taken back.",
        only_if="one divides",
    )


def n45(it: Work) -> Finding:
    for label, name in (("259 T", "exact"), ("200 T", "rounded"), ("150 T", "rumour"), ("100 T", "slip")):
        it.near(label, overtraining_factor(it.q("params"), it.q(name)), "times", "factor")
    return it.done("A hundred belongs to 200 trillion; the inputs named allow 50 to 130.")


def n46(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, context = chip.flop_per_s("fp8"), chip.hbm_bytes_per_s, it.q("context_len")
    kv = bb.kv_bytes_per_token_from_crossover(model.active_params, context, flop, hbm)
    by_step = bb.kv_fetch_s(1.0, context, kv, hbm) / bb.compute_s(1.0, model.active_params, flop)
    it.show("memory over arithmetic at 200K by the step", by_step, "times")
    it.most("at most 1 below the bend, by the step", by_step, "times", 1.0)
    for name in (OPUS, GEMINI):
        it.most(
            f"at most 1 as well, by the output price of {name}", output_over_input(it.world.sheet(name)), "times", 1.0
        )
    return it.done(
        "Below the bend decoding is bound by arithmetic and would cost what prefill does; both prices are real, so "
        "margins differ or the step is not the bend.",
        only_if="the output price has another reason",
    )


def n47(it: Work) -> Finding:
    sheet = it.world.sheet(GEMINI)
    longest = sheet.max_context_len or it.q("context_len")
    it.most("cost at the longest prompt over that at the step", longest / it.q("context_len"), "times", it.q("rise"))
    return it.done(
        "A floor price with that surcharge loses money beyond 300 thousand tokens; there is a margin, or fewer bytes."
    )


def n48(it: Work) -> Finding:
    low, high = it.world.sheet(GEMINI).of_mode("standard")[:2]
    it.near("output", (high.output_usd or 0.0) / (low.output_usd or 1.0), "times", "rise")
    it.near("input", (high.input_usd or 0.0) / (low.input_usd or 1.0), "times", "rise")
    return it.done("Input doubles, which a bend of decoding does not explain.", only_if="output is meant")


def n49(it: Work) -> Finding:
    it.near("1 byte an element", bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), 1.0), "B/token", "said")
    it.near("2 bytes", bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), 2.0), "B/token", "said")
    return it.done("It is 23 % more at one byte an element and 2.5 times at two.")


def n50(it: Work) -> Finding:
    for name in (GEMINI, OPUS):
        longest = it.world.sheet(name).max_context_len or 0.0
        it.most(f"{name} against a million", longest, "tokens", 1.05 * it.q("most"))
        it.most(f"{name} against 200 thousand", longest, "tokens", it.q("high"))
    return it.done(
        "Price lists go to a million tokens, five times what was said to be the habit.",
        only_if="a million is the bound",
    )


def n51(it: Work) -> Finding:
    ridge = it.world.chip("h100-sxm").ridge_point("bf16")
    for name in ("llama-3.1-70b", MODEL):
        model = it.world.model(name)
        slope = attention_slope(model)
        it.least(
            f"{name}: equal at",
            bb.attention_equals_weights_context(model.active_params, slope),
            "tokens",
            it.q("millions"),
        )
        it.most(
            f"{name}: slope of arithmetic over memory",
            slope / model.kv_bytes_per_token(2.0) / ridge,
            "%",
            it.q("far_below"),
        )
    return it.done(
        "Attention passes the weights at thousands of tokens; absorbed MLA nearly balances both slopes.",
        only_if="the slope of grouped-query attention is meant",
    )


def n52(it: Work) -> Finding:
    context = it.q("context_len")
    it.near("square root", bb.sparse_read_tokens(2 * context) / bb.sparse_read_tokens(context), "times", "growth")
    model = it.world.model("deepseek-v3.2")
    if isinstance(model, Model):
        for name, core in model.cores().items():
            it.near(
                f"DeepSeek V3.2, {name}",
                float(core.kv_read_tokens(2 * context)) / float(core.kv_read_tokens(context)),
                "times",
                "growth",
            )
    return it.done(
        "DeepSeek V3.2 picks 2,048 tokens at any length with an index that reads all.",
        only_if="blocks grow with the root of the context",
    )


def n53(it: Work) -> Finding:
    disk, flash = it.world.tier(DISK).drain_s, it.world.tier(FLASH).drain_s
    it.near("20 TB disk", disk, "s", "disk_s")
    it.near("30 TB QLC flash", it.world.tier("qlc-31tb").drain_s, "s", "disk_s")
    it.near("4 TB NVMe flash", flash, "s", "flash_s")
    return it.done(
        f"A disk takes {format_seconds(disk)}, a small flash drive {format_seconds(flash)}, a large one an hour.",
        only_if="a large flash drive is meant by disk",
    )


def n56(it: Work) -> Finding:
    chip = it.world.chip("h100-sxm")
    least = math.inf
    for name in (MODEL, "llama-3.1-70b"):
        model = it.world.model(name)
        kv = model.kv_bytes_per_token(2.0)
        least = min(least, kv)
        it.near(f"{name} in BF16", kv, "B/token", "said")
        star = bb.crossover_context(model.active_params, kv, chip.flop_per_s("bf16"), chip.hbm_bytes_per_s)
        it.near(f"{name} crosses on H100", star, "tokens", "context_len")
    return it.done(f"They keep {format_bytes(least)} and more and cross at a few thousand tokens, not at 200 thousand.")


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "N34": n34,
    "N35": n35,
    "N36": n36,
    "N37": n37,
    "N38": n38,
    "N39": n39,
    "N40": n40,
    "N41": n41,
    "N42": n42,
    "N43": n43,
    "N44": n44,
    "N45": n45,
    "N46": n46,
    "N47": n47,
    "N48": n48,
    "N49": n49,
    "N50": n50,
    "N51": n51,
    "N52": n52,
    "N53": n53,
    "N56": n56,
}
