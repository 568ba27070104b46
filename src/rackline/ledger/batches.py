"""Segment 1: the roofline of a pass and its cost (C01 to C23)."""

from __future__ import annotations

from rackline.ledger.racks import mixture
from rackline.ledger.work import FRONTIER, RACK, Finding, Work, attention_slope, cores_of, ridge, ridges
from rackline.passes.routing import experts_touched_mean
from rackline.serving import blackboard as bb
from rackline.units import format_count, format_percent, format_seconds, format_usd


def c01(it: Work) -> Finding:
    sheet = it.world.sheet("anthropic-claude-opus-4.6")
    normal, fast = sheet.of_mode("standard")[0], sheet.of_mode("fast")[0]
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    normal_batch = bb.mode_batches(it.q("speed_ratio"), it.q("price_ratio"), balance).normal_batch
    dear = bb.mode_at_price(normal_batch, it.q("much_more"), balance)
    return it.done(
        it.near(
            "price of fast over normal", (fast.output_usd or 0.0) / (normal.output_usd or 1.0), "times", "price_ratio"
        ),
        it.near("speed of fast over normal", fast.speed_ratio or 1.0, "times", "speed_ratio"),
        it.show("speed for 100 times the price", float(dear.speed_ratio), "times"),
        because=f"On the roofline {it.q('much_more'):.0f} times the price buys {float(dear.speed_ratio):.3g} times the "
        "speed, because weights are read in each pass at any price.",
    )


def c02(it: Work) -> Finding:
    rack, model = it.world.cluster(RACK), it.world.model("deepseek-v3")
    flop, hbm = rack.num_chips * rack.chip.flop_per_s("fp8"), rack.num_chips * rack.chip.hbm_bytes_per_s
    batch, context, kv = it.q("batch_size"), 4096.0, model.kv_bytes_per_token(1.0)
    memory = bb.memory_s(batch, model.total_params, 1.0, context, kv, hbm)
    bound = bb.pass_s(batch, model.total_params, model.active_params, 1.0, context, kv, flop, hbm)
    behind = bb.attention_then_weights_s(batch, model.total_params, model.active_params, 1.0, context, kv, flop, hbm)
    return it.done(
        it.near("chips of the rack", rack.num_chips, "chips", "chips"),
        it.identity("pass of DeepSeek V3", bound, max(bb.compute_s(batch, model.active_params, flop), memory), "s"),
        it.true("no shorter when attention hides behind nothing", behind >= bound, by_definition=True),
        because="It is a lower bound: anything that does not overlap only adds to the longer of the two.",
    )


def c03(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model("deepseek-v3")
    flop = chip.flop_per_s("fp4")
    said = it.q("batch_size") * model.active_params / flop
    return it.done(
        it.identity(
            "Φ in multiply-adds per second",
            bb.compute_s(it.q("batch_size"), model.active_params, 2.0 * flop),
            said,
            "s",
        ),
        it.identity("Φ in FLOP per second", bb.compute_s(it.q("batch_size"), model.active_params, flop), said, "s"),
        because="A multiply-add is two FLOP, and data sheets count FLOP: with those the formula needs a factor of 2.",
        units=True,
    )


def c04(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model("deepseek-v3")
    batch, context, kv = it.q("batch_size"), it.q("context_len"), model.kv_bytes_per_token(1.0)
    hbm = chip.hbm_bytes_per_s
    said = (model.total_params + batch * context * kv) / hbm
    return it.done(
        *(
            it.identity(name, bb.memory_s(batch, model.total_params, width, context, kv, hbm), said, "s")
            for name, width in (("1 byte a weight", 1.0), ("FP4, half a byte", 0.5), ("BF16, 2 bytes", 2.0))
        ),
        because="The two reads add up as said; N over W is seconds only when a weight is one byte.",
        units=True,
    )


def c05(it: Work) -> Finding:
    models = [it.world.model(name) for name in ("llama-3.1-70b", "deepseek-v3")]
    crossings = {model.name: float(model.flop_per_token(0.0)) / attention_slope(model) for model in models}
    equal = [f"{format_count(crossing)} tokens in {name}" for name, crossing in crossings.items()]
    return it.done(
        *(
            it.most(
                f"attention over weights, {model.name} at {format_count(context)}",
                attention_slope(model) * context / float(model.flop_per_token(0.0)),
                "share",
                it.q("small"),
                when=f"{model.name} has {format_count(context)} tokens of context",
            )
            for model in models
            for context in (it.q("short_context"), it.q("long_context"))
        ),
        because=f"Attention grows with the context while the weights stay: it equals them at {' and '.join(equal)}, "
        "whose attention is absorbed MLA.",
    )


def c07(it: Work) -> Finding:
    model = it.world.model("deepseek-v3")
    return it.done(
        it.near("active parameters", model.active_params, "parameters", "active_params"),
        it.near("all parameters", model.total_params, "parameters", "total_params"),
        because=f"Its published shape counts to {format_count(model.total_params)} in all.",
    )


def c08(it: Work) -> Finding:
    rack, model = it.world.cluster(RACK), it.world.model(FRONTIER)
    flop, hbm = rack.chip.flop_per_s("fp4"), rack.chip.hbm_bytes_per_s
    total, active, kv, context = (
        model.total_params,
        model.active_params,
        model.kv_bytes_per_token(),
        it.q("context_len"),
    )
    knee = bb.balance_batch_with_kv(bb.dimensionless_ridge(flop, hbm, 0.5), total, active, 0.5, context, kv)

    def seconds(batch: float) -> float:
        return bb.pass_s(batch, total, active, 0.5, context, kv, flop, hbm)

    binds = it.true("there is a batch from which arithmetic binds", knee < float("inf"))
    if not binds.passes:
        return it.done(
            binds, because="On this machine the cache is read more slowly than it is multiplied at every batch."
        )
    slope = (seconds(knee / 2) - seconds(knee / 4)) / (knee / 4)
    return it.done(
        binds,
        it.show("knee", knee, "sequences"),
        it.identity("a tiny batch takes the weights", seconds(1e-9), bb.weight_fetch_s(total, 0.5, hbm), "s"),
        it.identity("slope below the knee is the cache", slope, bb.kv_fetch_s(1.0, context, kv, hbm), "s"),
        it.identity(
            "slope above it is arithmetic", (seconds(4 * knee) - seconds(2 * knee)) / (2 * knee), 2 * active / flop, "s"
        ),
        because="The curve has the three pieces as drawn, with one knee.",
    )


def c09(it: Work) -> Finding:
    rack, model, moe = it.world.cluster(RACK), it.world.model("deepseek-v3"), mixture(it)
    floor = bb.latency_floor_s(model.total_params, 1.0, rack.num_chips * rack.chip.hbm_bytes_per_s)
    touched = {
        batch: float(experts_touched_mean(moe.num_experts, moe.experts_per_token, batch)) / moe.num_experts
        for batch in (1.0, it.q("large_batch"))
    }
    shares = [f"{batch:g} read {format_percent(share)}" for batch, share in touched.items()]
    return it.done(
        it.show("floor of DeepSeek V3 on the rack, FP8", floor, "s"),
        *(
            it.near(
                f"experts that a batch of {batch:g} reads",
                share,
                "share",
                "touched",
                when=f"{batch:g} sequences choose experts",
            )
            for batch, share in touched.items()
        ),
        because=f"{format_seconds(floor)} is the floor of batches that touch every expert; of the routed experts "
        f"{' and '.join(shares)}, and reading fewer is faster.",
    )


def c10(it: Work) -> Finding:
    boxes = [it.world.cluster(name) for name in ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", RACK)]
    rents = {box.name: box.usd_per_chip_hour for box in boxes if box.usd_per_chip_hour is not None}
    rack, model = boxes[-1], it.world.model("deepseek-v3")
    floor = bb.latency_floor_s(model.total_params, 1.0, rack.num_chips * rack.chip.hbm_bytes_per_s)
    whole = bb.cost_per_token_usd(1.0, floor, 1.0)
    return it.done(
        *(it.near(f"rent of a chip of {name}", price, "USD", "usd_per_hour") for name, price in rents.items()),
        it.near("shortest pass, weights only", floor, "s", "shortest_s"),
        it.near("longest pass, all of the memory", rack.chip.drain_s, "s", "longest_s"),
        it.identity(
            "weights of a token at batch 100, times 100", bb.cost_per_token_usd(100.0, floor, 1.0) * 100.0, whole, "USD"
        ),
        because=f"Rents of the catalogue are {format_usd(min(rents.values()))} to {format_usd(max(rents.values()))} an "
        f"hour; a pass of DeepSeek V3 on the rack takes {format_seconds(floor)} (weights alone) to "
        f"{format_seconds(rack.chip.drain_s)} (all of the memory).",
    )


def c11(it: Work) -> Finding:
    rack, model = it.world.cluster(RACK), it.world.model(FRONTIER)
    chips = float(rack.num_chips)
    flop, hbm = chips * rack.chip.flop_per_s("fp4"), chips * rack.chip.hbm_bytes_per_s
    usd = it.q("usd_per_hour") * chips
    total, active, kv, context = (
        model.total_params,
        model.active_params,
        model.kv_bytes_per_token(),
        it.q("context_len"),
    )
    floor = bb.cost_floor_usd(active, context, kv, flop, hbm, usd)

    def cost(batch: float) -> float:
        return bb.cost_per_token_usd(batch, bb.pass_s(batch, total, active, 0.5, context, kv, flop, hbm), usd)

    return it.done(
        it.show("a million tokens at batch 1", cost(1.0) * 1e6, "USD"),
        it.show("a million tokens at 2,400", cost(it.q("batch_size")) * 1e6, "USD"),
        it.least("batch 1 over the bound", cost(1.0) / floor, "times", it.q("much_dearer")),
        it.true(
            "no batch costs less than the bound", cost(it.q("large_batch")) >= floor * (1.0 - 1e-9), by_definition=True
        ),
        it.most(
            f"a batch of {format_count(it.q('large_batch'))} over the bound",
            cost(it.q("large_batch")) / floor,
            "times",
            it.q("close"),
        ),
        because="Cost falls with the batch until arithmetic or cache per token sets it, and never below that.",
    )


def c12(it: Work) -> Finding:
    balance = bb.balance_batch(ridge(it.world.chip("gb200"), "fp4"), 8.0)
    return it.done(
        it.true(
            "no batch is sold at half the price of the balanced one",
            not bb.mode_at_price(balance, it.q("half_price"), balance).feasible,
            by_definition=True,
        ),
        it.identity(
            "cost at ten times the balanced batch over that at it",
            float(bb.mode_at_batch(balance, 10 * balance, balance).price_ratio),
            1.0,
            "times",
        ),
        because="From the balanced batch on, waiting longer saves nothing: each sequence pays its own arithmetic.",
    )


def c13(it: Work) -> Finding:
    value = ridge(it.world.chip("gb200"), "fp4")
    ratios = {
        "a dense model": 1.0,
        "one with 8 times the active parameters": it.q("total_over_active"),
        "DeepSeek V3": it.world.model("deepseek-v3").total_over_active,
    }
    factors = {name: bb.batch_cost_ratio(1.0, bb.balance_batch(value, ratio)) for name, ratio in ratios.items()}
    found = [f"{format_count(float(factor))} for {name}" for name, factor in factors.items()]
    return it.done(
        *(it.near(name, factor, "times", "times", when=f"the model is {name}") for name, factor in factors.items()),
        because=f"Without cache the factor is the balanced batch itself: {', '.join(found)}.",
    )


def c14(it: Work) -> Finding:
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    both = bb.mode_batches(it.q("speed_ratio"), it.q("price_ratio"), balance)
    k = it.q("kv_over_compute")
    return it.done(
        it.show("normal batch that the prices reveal", float(both.normal_batch), "sequences"),
        it.show("fast batch that they reveal", float(both.fast_batch), "sequences"),
        it.identity(
            "most speed-up from that normal batch",
            bb.max_speed_ratio(float(both.normal_batch), balance),
            it.q("speed_ratio"),
            "times",
            when="the normal batch is that far above balance",
        ),
        it.identity(
            "from the balanced batch, without cache",
            bb.max_speed_ratio(balance, balance),
            it.q("speed_ratio"),
            "times",
            when="the normal batch is balanced and has no cache",
        ),
        it.least(
            f"from the knee, cache {k:g} of arithmetic",
            bb.max_speed_ratio_at_knee(k),
            "times",
            it.q("speed_ratio"),
            when=f"the cache takes {k:g} of the arithmetic's time",
        ),
        because="Below balance a pass takes as long as reading the weights, so a smaller batch buys no speed there.",
    )


def c15(it: Work) -> Finding:
    served = (("llama-3.1-70b", "h100-sxm", "bf16"), ("deepseek-v3", "h800-sxm", "bf16"), (FRONTIER, "gb200", "fp4"))
    known = {
        f"{name} on {chip}": (
            it.world.model(name).active_params,
            it.world.model(name).kv_bytes_per_token(2.0),
            it.world.chip(chip).flop_per_s(dtype),
            it.world.chip(chip).hbm_bytes_per_s,
        )
        for name, chip, dtype in served
    }
    stars = {label: bb.crossover_context(*numbers) for label, numbers in known.items()}
    return it.done(
        *(
            row
            for label, (active, kv, flop, hbm) in known.items()
            for row in (
                it.show(label, stars[label], "tokens"),
                it.identity(
                    "cache time is arithmetic time there",
                    bb.kv_fetch_s(1.0, stars[label], kv, hbm),
                    bb.compute_s(1.0, active, flop),
                    "s",
                ),
            )
        ),
        because=f"Such a context exists for each model and chip; here it lies between "
        f"{format_count(min(stars.values()))} and {format_count(max(stars.values()))} tokens.",
    )


def c16(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, context = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, it.q("context_len")
    total, active = model.total_params, model.active_params
    kv = bb.kv_bytes_per_token_from_crossover(active, it.q("crossover"), flop, hbm)
    balance = bb.balance_batch(bb.dimensionless_ridge(flop, hbm, 0.5), total / active)

    def share(times: float) -> float:
        batch = times * balance
        return float(bb.mfu(batch, active, flop, bb.pass_s(batch, total, active, 0.5, context, kv, flop, hbm)))

    return it.done(
        it.near(
            "without weights",
            bb.mfu_at_context(context, it.q("crossover")),
            "share",
            "mfu",
            when="weights are left out",
        ),
        *(
            it.near(
                f"at {times:g} times the balanced batch",
                share(times),
                "share",
                "mfu",
                when=f"the batch is {times:g} times the balanced one",
            )
            for times in (1.0, it.q("batches"))
        ),
        because=f"With the weights in the sum it is {format_percent(share(1.0))} at the balanced batch, because memory "
        "also reads them.",
    )


def c17(it: Work) -> Finding:
    context, far = it.q("context_len"), it.q("far")
    growth = bb.sparse_read_tokens(2 * context) / bb.sparse_read_tokens(context)
    cores = cores_of(it.world.model("deepseek-v3.2")).values()
    read, more = (sum(float(core.kv_read_tokens(tokens)) for core in cores) for tokens in (context, 2 * context))
    return it.done(
        it.show("saved at 200K", context / bb.sparse_read_tokens(context), "times"),
        it.show("saved at 100 M", far / bb.sparse_read_tokens(far), "times"),
        it.near(
            "growth of the reads of the root from 200K to 400K",
            growth,
            "times",
            "growth",
            when="the tokens that are read grow with the root of the context",
        ),
        it.near(
            "growth of the reads of DeepSeek V3.2",
            more / read,
            "times",
            "growth",
            when="tokens are picked as DeepSeek V3.2 does",
        ),
        because="Published ones pick a fixed number of tokens; a root needs blocks that grow with the root of the "
        f"context. DeepSeek V3.2 reads {more / read:.3g} times as much at twice the context, its index included.",
    )


def c18(it: Work) -> Finding:
    chips = ("h100-sxm:bf16", "h100-sxm:fp8", "b200-sxm:fp4", "gb200:fp4", "h200-sxm:bf16", "mi300x:bf16")
    found = [it.near(label, value, "times", "ridge") for label, value in ridges(it.world, chips)]
    raw = it.world.chip("b200-sxm").ridge_point("fp4")
    return it.done(
        *found,
        it.show("raw FLOP per byte of B200 in FP4", raw, "FLOP/B"),
        because=f"It counts multiplies per weight read; raw FP4 FLOP per byte of a B200 are {raw:,.0f}.",
    )


def c19(it: Work) -> Finding:
    found = dict(
        ridges(it.world, ("a100-sxm-40gb:bf16", "a100-sxm-80gb:bf16", "h100-sxm:bf16", "b200-sxm:bf16", "gb300:fp4"))
    )
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    return it.done(
        *(it.near(label, value, "times", "ridge") for label, value in found.items()),
        because=f"It goes from {found[low]:.3g} ({low}) to {found[high]:.3g} ({high}).",
    )


def c20(it: Work) -> Finding:
    balance = bb.balance_batch(ridge(it.world.chip("gb200"), "fp4"), it.q("total_over_active"))
    chip, ratio = it.world.chip("gb200"), it.q("total_over_active")
    active = it.q("active_params")
    return it.done(
        it.near("balanced batch at 8 on GB200 in FP4", balance, "sequences", "balance"),
        it.identity(
            "arithmetic there takes as long as the weights",
            bb.compute_s(balance, active, chip.flop_per_s("fp4")),
            bb.weight_fetch_s(ratio * active, 0.5, chip.hbm_bytes_per_s),
            "s",
        ),
        because="Both times are equal at that batch; sparsity has to mean total over active parameters.",
    )


def c21(it: Work) -> Finding:
    published, moe = "it is the published model", mixture(it)
    ratio = it.world.model("deepseek-v3").total_over_active
    return it.done(
        it.near(
            "300 · 8",
            bb.balance_batch(it.q("ridge"), it.q("num_experts") / it.q("active_experts")),
            "sequences",
            "balance",
            when=f"{it.q('active_experts'):.0f} of {it.q('num_experts'):.0f} experts are active",
        ),
        it.near("experts in its published shape", moe.num_experts, "", "num_experts", when=published),
        it.near("active ones", moe.experts_per_token, "", "active_experts", when=published),
        it.near(
            "experts over active experts",
            moe.num_experts / moe.experts_per_token,
            "times",
            "total_over_active",
            when=published,
        ),
        it.near("parameters over active parameters", ratio, "times", "total_over_active", when=published),
        it.show("batch by parameters", bb.balance_batch(it.q("ridge"), ratio), "sequences"),
        because=f"The published model activates {moe.experts_per_token} of {moe.num_experts} experts; the formula was "
        f"derived for parameters, which give {ratio:.3g}.",
    )


def c22(it: Work) -> Finding:
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    return it.done(
        it.true(
            "the balanced batch is two to three thousand",
            it.q("low") <= balance <= it.q("high"),
            when="one stays at balance",
        ),
        *(
            it.most(label, factor * balance, "sequences", it.q("high"), when=f"it may be {label}")
            for label, factor in (("doubled", it.q("double")), ("tripled", it.q("triple")))
        ),
        because=f"The balanced batch itself is {format_count(balance)}.",
    )


def c23(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, kv = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, model.kv_bytes_per_token()
    star = bb.crossover_context(model.active_params, kv, flop, hbm)
    value = bb.dimensionless_ridge(flop, hbm, 0.5)
    plain = bb.balance_batch(value, model.total_params / model.active_params)
    at_half = bb.balance_batch_with_kv(value, model.total_params, model.active_params, 0.5, star * it.q("half"), kv)
    beyond = bb.balance_batch_with_kv(value, model.total_params, model.active_params, 0.5, 1.0001 * star, kv)
    return it.done(
        it.identity("at half of the crossover context it doubles", at_half, 2 * plain, "sequences"),
        it.true("at the crossover it has no bound", beyond == float("inf"), by_definition=True),
        because=f"It grows without bound as the context nears the crossover of {format_count(star)} tokens.",
    )
