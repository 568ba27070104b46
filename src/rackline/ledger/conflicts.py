"""Where the lecture disagrees with itself or with outside facts (N34 to N56): "holds" would mean that it does not."""

from __future__ import annotations

import math

from rackline.ledger.caches import DISK, FLASH
from rackline.ledger.prices import GEMINI, OPUS, output_over_input
from rackline.ledger.racks import MODEL, mixture, ranks_in_use
from rackline.ledger.work import FRONTIER, HBM_CHIPS, HOPPER, RACK, Finding, Work, attention_slope, cores_of
from rackline.scaling import equal_cost_ratio, overtraining_factor
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_count, format_percent, format_seconds


def n34(it: Work) -> Finding:
    return it.done(
        it.near(
            "total over active",
            bb.balance_batch(it.q("ridge"), it.q("ratio")),
            "sequences",
            "balance",
            when="sparsity is total over active parameters",
        ),
        it.near(
            "active over total", it.q("ridge") / it.q("ratio"), "sequences", "balance", when="it is active over total"
        ),
        because="Only total over active, at least 1, gives the batch that was meant; here it is `total_over_active`.",
    )


def n35(it: Work) -> Finding:
    active = mixture(it).experts_per_token
    return it.done(
        *(
            it.near(
                f"experts of a token, against {it.q(name):.0f}",
                active,
                "",
                name,
                when=f"a token goes to {it.q(name):.0f} experts of a layer",
            )
            for name in ("most", "some", "few")
        ),
        because=f"The published shape activates {active} of {mixture(it).num_experts} routed experts.",
    )


def n36(it: Work) -> Finding:
    moe, model = mixture(it), it.world.model(MODEL)
    return it.done(
        *(
            it.near(label, bb.balance_batch(it.q("ridge"), ratio), "sequences", "balance", when=f"one counts {label}")
            for label, ratio in (
                ("experts as said", it.q("experts_said")),
                ("parameters as said", it.q("rounded_total") / it.q("rounded_active")),
                ("parameters as published", model.total_over_active),
                ("experts as published", moe.num_experts / moe.experts_per_token),
            )
        ),
        because="The formula is derived from parameters; experts leave out attention, which every token uses.",
    )


def n37(it: Work) -> Finding:
    passes = {"20 ms": it.q("long_s"), "15 ms": it.q("short_s"), "1/64 s": 1.0 / it.q("passes_per_s")}
    batch = it.q("batch_size")
    return it.done(
        *(
            it.near(label, bb.tokens_per_s(batch, pass_s), "tokens/s", "tokens_per_s", when=f"a pass takes {label}")
            for label, pass_s in passes.items()
        ),
        because=f"128 thousand belongs to {format_seconds(batch / it.q('tokens_per_s'))}.",
    )


def n38(it: Work) -> Finding:
    drains = {name: it.world.chip(name).drain_s for name in HBM_CHIPS}
    within = it.claim.numbers["interval_s"].within
    rows = [it.near(name, seconds, "s", "interval_s") for name, seconds in drains.items()]
    return it.done(
        *rows,
        because=f"{sum(not row.passes for row in rows)} of {len(drains)} chips are off by more than "
        f"{format_percent(within)}; the range is {format_seconds(min(drains.values()))} to "
        f"{format_seconds(max(drains.values()))}.",
    )


def n39(it: Work) -> Finding:
    held = {
        on.name: on.num_chips * on.chip.hbm_bytes for on in [it.world.cluster(name) for name in (RACK, "gb300-nvl72")]
    }
    return it.done(
        *(
            row
            for name, room in held.items()
            for row in (
                it.true(
                    f"{name} within 10 to 20 TB",
                    it.q("low_bytes") <= room <= it.q("high_bytes"),
                    when=f"10 to 20 TB are meant, on {name}",
                ),
                it.least(f"{name} against many tens", room, "B", it.q("many_tens_bytes"), when="many tens are meant"),
            )
        ),
        because=f"{' and '.join(f'{name} has {format_bytes(room)}' for name, room in held.items())}.",
    )


def n40(it: Work) -> Finding:
    hopper, rack = it.world.cluster(HOPPER).scale_up.size, it.world.cluster(RACK).scale_up.size
    packages, dies = it.q("packages_of_ultra") / rack, it.q("dies_of_ultra") / it.q("dies_of_rubin")
    return it.done(
        it.near("Hopper to Blackwell", rack / hopper, "times", "growth"),
        it.near("chips of the domain", rack, "chips", "used"),
        it.near("chips over which 256 experts divide", ranks_in_use(it), "chips", "used"),
        it.show("Rubin Ultra in packages over Blackwell", packages, "times"),
        it.show("Rubin Ultra in dies over Vera Rubin", dies, "times"),
        because=f"The step was {rack / hopper:.3g} times, to {rack} chips; the growth to come is {dies:.3g} times in "
        f"dies and {packages:.3g} times in packages.",
    )


def n41(it: Work) -> Finding:
    stages, pass_s, said = it.q("stages"), it.q("pass_s"), it.q("micro_batches")
    cases = (
        (
            f"there are {said:.0f} micro-batches of {format_count(it.q('micro_batch'))} sequences",
            said,
            it.q("micro_batch"),
        ),
        (f"there is one micro-batch of {said:.0f} sequences", 1.0, said),
    )
    return it.done(
        *(
            it.most(
                f"idle share, {when}", bb.ring_step(pass_s, stages, number, size).idle_share, "share", 0.0, when=when
            )
            for when, number, size in cases
        ),
        because="The number of micro-batches decides, not their size.",
    )


def n42(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(MODEL)
    flop, rate, total, active = chip.flop_per_s("fp8"), chip.hbm_bytes_per_s, model.total_params, model.active_params

    def cost(batch: float) -> float:
        return bb.cost_per_token_usd(batch, bb.pass_s(batch, total, active, 1.0, 0.0, 0.0, flop, rate), 1.0)

    few, many = it.q("batch"), it.q("large_batch")
    at = {few: "reading the weights sets the time of a pass", many: "arithmetic sets the time of a pass"}
    growth = {batch: cost(2.0 * batch) / cost(batch) for batch in at}
    label = "cost of a token, {} over half as many sequences"
    return it.done(
        *(
            it.near(
                f"{label.format(format_count(2.0 * batch))}, against a hyperbola",
                growth[batch],
                "times",
                "hyperbola",
                when=f"{when}, as at {format_count(batch)} sequences",
            )
            for batch, when in at.items()
        ),
        it.near(f"{label.format(format_count(2.0 * few))}, against a parabola", growth[few], "times", "parabola"),
        because="While a pass takes as long as reading the weights its cost is a constant over the batch, a hyperbola; "
        "from the balanced batch on it is flat. A parabola would grow fourfold.",
    )


def n43(it: Work) -> Finding:
    rack = it.world.cluster(RACK)
    room = rack.num_chips * rack.chip.hbm_bytes
    needed = math.ceil(it.world.model(MODEL).total_params / room)
    largest = math.ceil(it.q("params") / room)
    return it.done(
        it.most("stages that DeepSeek V3 in FP8 needs", needed, "stages", it.q("most"), when="none to two is meant"),
        it.least("stages that 5 T parameters in FP8 need", largest, "stages", it.q("realistic"), when="four is meant"),
        it.least("the same against a layer on each rack", largest, "stages", it.q("layers"), when="a hundred is meant"),
        because=f"A hundred is possible; on GB200 racks DeepSeek V3 needs {needed}, 5 T parameters {largest}.",
    )


def n44(it: Work) -> Finding:
    m = it.q("relative_mfu")
    divided, multiplied = "one divides by the MFU", "one multiplies by it"
    return it.done(
        it.near("β by dividing", equal_cost_ratio(2.0, m), "times", "beta", when=divided),
        it.near("α by dividing, k = 3", equal_cost_ratio(it.q("k"), m), "times", "alpha", when=divided),
        it.near("β by multiplying", equal_cost_ratio(2.0, 1.0 / m), "times", "beta", when=multiplied),
        it.near("the same against what was said first", equal_cost_ratio(2.0, 1.0 / m), "times", "slip"),
        because="Machine time is divided by MFU, so its inverse multiplies; the first values were taken back.",
    )


def n45(it: Work) -> Finding:
    named = {"259 T": "exact", "200 T": "rounded", "150 T": "rumour", "100 T": "slip"}
    factors = {label: overtraining_factor(it.q("params"), it.q(name)) for label, name in named.items()}
    return it.done(
        *(
            it.near(label, factor, "times", "factor", when=f"{label} are trained on")
            for label, factor in factors.items()
        ),
        because=f"The numbers that were named allow {min(factors.values()):.0f} to {max(factors.values()):.0f} times.",
    )


def n46(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, context = chip.flop_per_s("fp8"), chip.hbm_bytes_per_s, it.q("context_len")
    kv = bb.kv_bytes_per_token_from_crossover(model.active_params, context, flop, hbm)
    by_step = bb.kv_fetch_s(1.0, context, kv, hbm) / bb.compute_s(1.0, model.active_params, flop)
    return it.done(
        it.show("memory over arithmetic at 200K by the step", by_step, "times"),
        it.identity("at most 1 below the bend, by the step", by_step, 1.0, "times", when="the step alone is believed"),
        *(
            it.most(
                f"at most 1 as well, by the output price of {name}",
                output_over_input(it.world.sheet(name)),
                "times",
                it.q("bound"),
                when=f"the output price of {name} is believed",
            )
            for name in (OPUS, GEMINI)
        ),
        because="Below the bend decoding is bound by arithmetic and would cost what prefill does; where a list asks "
        "for more, margins differ or the step is not the bend.",
    )


def n47(it: Work) -> Finding:
    longest = it.world.sheet(GEMINI).max_context_len or it.q("context_len")
    covered = it.q("rise") * it.q("context_len")
    return it.done(
        it.most(
            "cost at the longest prompt over that at the step", longest / it.q("context_len"), "times", it.q("rise")
        ),
        because=f"A floor price with that surcharge covers {format_count(covered)} tokens of the "
        f"{format_count(longest)} that are sold; the rest takes a margin, or fewer bytes.",
    )


def n48(it: Work) -> Finding:
    low, high = it.world.sheet(GEMINI).of_mode("standard")[:2]
    output = (high.output_usd or 0.0) / (low.output_usd or 1.0)
    read = (high.input_usd or 0.0) / (low.input_usd or 1.0)
    return it.done(
        it.near("output", output, "times", "rise", when="it is the price of output"),
        it.near("input", read, "times", "rise", when="it is the price of input"),
        because=f"Input rises {read:.3g} times and output {output:.3g}; a bend of decoding explains output alone.",
    )


def n49(it: Work) -> Finding:
    one, two = (bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), width) for width in (1.0, 2.0))
    said = it.q("said")
    return it.done(
        it.near("1 byte per element", one, "B/token", "said"),
        it.near("2 bytes", two, "B/token", "said"),
        because=f"It is {one / said:.3g} times as much at one byte per element and {two / said:.3g} times at two.",
    )


def n50(it: Work) -> Finding:
    longest = {name: it.world.sheet(name).max_context_len or 0.0 for name in (GEMINI, OPUS)}
    bounds = (
        ("a million", 1.05 * it.q("most"), "a million is the bound"),
        ("200 thousand", it.q("high"), "200 thousand is the habit"),
    )
    return it.done(
        *(
            it.most(f"{name} against {label}", length, "tokens", bound, when=when)
            for name, length in longest.items()
            for label, bound, when in bounds
        ),
        because=f"{' and '.join(f'{name} sells {format_count(length)}' for name, length in longest.items())} tokens.",
    )


def n51(it: Work) -> Finding:
    ridge = it.world.chip("h100-sxm").ridge_point("bf16")
    models = [it.world.model(name) for name in ("llama-3.1-70b", MODEL)]
    equal = {m.name: bb.attention_equals_weights_context(m.active_params, attention_slope(m)) for m in models}
    shares = {m.name: attention_slope(m) / m.kv_bytes_per_token(2.0) / ridge for m in models}
    found = [
        f"{format_count(float(equal[name]))} tokens and {format_percent(shares[name])} in {name}" for name in equal
    ]
    return it.done(
        *(
            row
            for name, context in equal.items()
            for row in (
                it.least(
                    f"{name}: equal at", context, "tokens", it.q("millions"), when=f"the context of {name} is meant"
                ),
                it.most(
                    f"{name}: slope of arithmetic over memory",
                    shares[name],
                    "share",
                    it.q("far_below"),
                    when=f"the slope of {name} is meant",
                ),
            )
        ),
        because=f"Attention equals the weights at, and has of the slope of memory: {'; '.join(found)}.",
    )


def n52(it: Work) -> Finding:
    context = it.q("context_len")
    root = bb.sparse_read_tokens(2 * context) / bb.sparse_read_tokens(context)
    cores = cores_of(it.world.model("deepseek-v3.2"))
    reads = [f"{float(core.kv_read_tokens(context)):,.0f} by {name}" for name, core in cores.items()]
    return it.done(
        it.near("square root", root, "times", "growth", when="blocks grow with the root of the context"),
        *(
            it.near(
                f"DeepSeek V3.2, {name}",
                float(core.kv_read_tokens(2 * context)) / float(core.kv_read_tokens(context)),
                "times",
                "growth",
                when=f"{name} of DeepSeek V3.2 is meant",
            )
            for name, core in cores.items()
        ),
        because=f"Of {format_count(context)} tokens DeepSeek V3.2 reads {' and '.join(reads)}.",
    )


def n53(it: Work) -> Finding:
    disk, flash = it.world.tier(DISK).drain_s, it.world.tier(FLASH).drain_s
    dense = it.world.tier("qlc-31tb").drain_s
    return it.done(
        it.near("20 TB disk", disk, "s", "disk_s"),
        it.near("30 TB QLC flash", dense, "s", "disk_s"),
        it.near("4 TB NVMe flash", flash, "s", "flash_s"),
        because=f"A disk takes {format_seconds(disk)}, a small flash drive {format_seconds(flash)}, a large one "
        f"{format_seconds(dense)}.",
    )


def n56(it: Work) -> Finding:
    chip, models = it.world.chip("h100-sxm"), [it.world.model(name) for name in (MODEL, "llama-3.1-70b")]
    kept = {model.name: model.kv_bytes_per_token(2.0) for model in models}
    crossings = {
        model.name: bb.crossover_context(
            model.active_params, kept[model.name], chip.flop_per_s("bf16"), chip.hbm_bytes_per_s
        )
        for model in models
    }
    return it.done(
        *(
            row
            for name, kv in kept.items()
            for row in (
                it.near(f"{name} in BF16", kv, "B/token", "said"),
                it.near(f"{name} crosses on H100", crossings[name], "tokens", "context_len"),
            )
        ),
        because=f"They keep {format_bytes(min(kept.values()))} a token and more and cross from "
        f"{format_count(min(crossings.values()))} tokens on; 200 thousand and 2 KB were said.",
    )
