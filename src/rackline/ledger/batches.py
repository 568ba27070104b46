"""Segment 1: the roofline of a pass and its cost; trains of batches, traffic, what sparsity is worth (C01 to C37)."""

from __future__ import annotations

from rackline.ledger.racks import mixture
from rackline.ledger.work import (
    FRONTIER,
    HBM_CHIPS,
    RACK,
    Computed,
    Finding,
    Work,
    attention_slope,
    cores_of,
    ridge,
    ridges,
)
from rackline.passes.routing import experts_touched_mean
from rackline.scaling import dense_equivalent_params, routed_total_params
from rackline.serving import blackboard as bb
from rackline.serving.trains import TrainLine, arrivals_to_fill_per_s, share_of_fleet
from rackline.units import format_bytes, format_count, format_percent, format_rate, format_seconds, format_usd


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
    compute = bb.compute_s(batch, model.active_params, flop)
    memory = bb.memory_s(batch, model.total_params, 1.0, context, kv, hbm)
    bound = bb.pass_s(batch, model.total_params, model.active_params, 1.0, context, kv, flop, hbm)
    behind = bb.attention_then_weights_s(batch, model.total_params, model.active_params, 1.0, context, kv, flop, hbm)
    return it.done(
        it.near("chips of the rack", rack.num_chips, "chips", "chips"),
        it.identity("pass of DeepSeek V3", bound, max(compute, memory), "s"),
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
    slower = bb.mode_at_price(balance, it.q("half_price"), balance)
    return it.done(
        it.true("no batch is sold at half the price of the balanced one", not slower.feasible, by_definition=True),
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
    stars: list[float] = []
    rows: list[Computed] = []
    for name, chip, dtype in (
        ("llama-3.1-70b", "h100-sxm", "bf16"),
        ("deepseek-v3", "h800-sxm", "bf16"),
        (FRONTIER, "gb200", "fp4"),
    ):
        model, made_of = it.world.model(name), it.world.chip(chip)
        flop, hbm, kv = made_of.flop_per_s(dtype), made_of.hbm_bytes_per_s, model.kv_bytes_per_token(2.0)
        star = bb.crossover_context(model.active_params, kv, flop, hbm)
        stars.append(star)
        rows.append(it.show(f"{name} on {chip}", star, "tokens"))
        rows.append(
            it.identity(
                "cache time is arithmetic time there",
                bb.kv_fetch_s(1.0, star, kv, hbm),
                bb.compute_s(1.0, model.active_params, flop),
                "s",
            )
        )
    return it.done(
        *rows,
        because=f"Such a context exists for each model and chip; here it lies between {format_count(min(stars))} and "
        f"{format_count(max(stars))} tokens.",
    )


def c16(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, context = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, it.q("context_len")
    kv = bb.kv_bytes_per_token_from_crossover(model.active_params, it.q("crossover"), flop, hbm)
    balance = bb.balance_batch(bb.dimensionless_ridge(flop, hbm, 0.5), model.total_params / model.active_params)
    shares: list[float] = []
    rows: list[Computed] = []
    for times in (1.0, it.q("batches")):
        batch = times * balance
        t = bb.pass_s(batch, model.total_params, model.active_params, 0.5, context, kv, flop, hbm)
        shares.append(float(bb.mfu(batch, model.active_params, flop, t)))
        when = f"the batch is {times:g} times the balanced one"
        rows.append(it.near(f"at {times:g} times the balanced batch", shares[-1], "share", "mfu", when=when))
    return it.done(
        it.near(
            "without weights",
            bb.mfu_at_context(context, it.q("crossover")),
            "share",
            "mfu",
            when="weights are left out",
        ),
        *rows,
        because=f"With the weights in the sum it is {format_percent(shares[0])} at the balanced batch, because memory "
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
    value = ridge(it.world.chip("gb200"), "fp4")
    balance = bb.balance_batch(value, it.q("total_over_active"))
    chip, ratio = it.world.chip("gb200"), it.q("total_over_active")
    active = it.q("active_params")
    compute = bb.compute_s(balance, active, chip.flop_per_s("fp4"))
    return it.done(
        it.near("balanced batch at 8 on GB200 in FP4", balance, "sequences", "balance"),
        it.identity(
            "arithmetic there takes as long as the weights",
            compute,
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
    within = it.q("low") <= balance <= it.q("high")
    return it.done(
        it.true("the balanced batch is two to three thousand", within, when="one stays at balance"),
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


def c24(it: Work) -> Finding:
    made = bb.tokens_per_s(it.q("batch_size"), it.q("interval_s")) * it.q("interval_s")
    return it.done(
        it.identity("tokens of one pass", made, it.q("batch_size"), "tokens"),
        because="In decoding one pass makes one token for each sequence, so the batch counts both.",
    )


def c25(it: Work) -> Finding:
    value = ridge(it.world.chip("gb200"), "fp4")
    small = bb.balance_batch_with_kv(value, 8e9, 1e9, 0.5, 0.0, 0.0)
    large = bb.balance_batch_with_kv(value, 8e9 * it.q("scale"), 1e9 * it.q("scale"), 0.5, 0.0, 0.0)
    return it.done(
        it.identity("balanced batch of a model 100 times as large", large, small, "sequences"),
        because="Size cancels as long as the cache is left out; on the chip it depends through R.",
    )


def c26(it: Work) -> Finding:
    drain = it.world.cluster(RACK).chip.drain_s
    return it.done(
        it.near("drain time of a chip of the rack", drain, "s", "interval_s"),
        because=f"The memory of a Blackwell chip is read once in {format_seconds(drain)}.",
    )


def c27(it: Work) -> Finding:
    interval, places = it.q("interval_s"), int(it.q("capacity"))
    return it.done(
        *(
            it.near(
                f"worst with {load:.3g} requests for each place",
                TrainLine(interval_s=interval, capacity=places, arrivals_per_s=load * places / interval).worst_s,
                "s",
                "worst_s",
                when=f"{load:.3g} requests come for each place",
            )
            for load in (it.q("light_load"), it.q("heavy_load"))
        ),
        it.show("mean while no train is full", bb.train_latency(interval).mean_s, "s"),
        because="Just missed and ridden is two intervals, one and a half on average; once trains are full the wait "
        "grows.",
    )


def c28(it: Work) -> Finding:
    drains = {name: it.world.chip(name).drain_s for name in HBM_CHIPS}
    low, high = min(drains.values()), max(drains.values())
    return it.done(
        *(it.near(name, seconds, "s", "interval_s") for name, seconds in drains.items()),
        because=f"Reading the whole memory takes {format_seconds(low)} to {format_seconds(high)}, by chip.",
    )


def c29(it: Work) -> Finding:
    said, rubin = bb.hbm_drain_s(it.q("hbm_bytes"), it.q("hbm_bytes_per_s")), it.world.chip("rubin")
    return it.done(
        it.near("288 GB at 20 TB/s", said, "s", "interval_s"),
        it.near("Rubin in the catalogue", rubin.drain_s, "s", "interval_s"),
        because=f"The catalogue's Rubin reads {format_bytes(rubin.hbm_bytes)} at {format_rate(rubin.hbm_bytes_per_s)}.",
    )


def c30(it: Work) -> Finding:
    rubin = bb.hbm_drain_s(it.q("hbm_bytes"), it.q("hbm_bytes_per_s"))
    reads = {name: it.q("interval_s") / it.world.chip(name).drain_s for name in ("rubin", "h100-sxm", "gb200", "gb300")}
    low, high = min(reads, key=reads.__getitem__), max(reads, key=reads.__getitem__)
    return it.done(
        it.near(f"full reads in 30 ms at {format_seconds(rubin)} each", it.q("interval_s") / rubin, "times", "reads"),
        *(it.near(f"on {name}", value, "times", "reads") for name, value in reads.items()),
        because=f"In 30 ms the memory is read {reads[low]:.3g} times on {low}, {reads[high]:.3g} times on {high}.",
    )


def c31(it: Work) -> Finding:
    places = it.q("capacity")
    needed = arrivals_to_fill_per_s(places, it.q("time_s"))
    pass_s = it.world.cluster(RACK).chip.drain_s
    own = arrivals_to_fill_per_s(places, it.q("output_len") * pass_s)
    fleet = it.q("fleet_tokens_per_s") / it.q("output_len")
    return it.done(
        it.show("arrivals that fill 2,000 places in 100 ms", needed, "requests/s"),
        it.show("arrivals that keep one system full with answers of 500 tokens", own, "requests/s"),
        it.show("arrivals of a fleet of 100 M tokens/s", fleet, "requests/s"),
        *(
            it.most(
                f"time to fill 2,000 places from {label}", places / arrivals, "s", it.q("time_s"), when=f"it is {label}"
            )
            for label, arrivals in (
                ("one system's own share of the traffic", own),
                ("all traffic of that fleet", fleet),
            )
        ),
        because=f"A place is kept for a whole answer, so {format_count(own)} requests a second keep a system full, and "
        f"from empty they take {format_seconds(places / own)} to fill it; 100 ms take {format_count(needed)} a second.",
    )


def c32(it: Work) -> Finding:
    passes = {
        "1/64 s": 1.0 / it.q("passes_per_s"),
        "20 ms": it.q("interval_s"),
        "15 ms": it.q("short_s"),
        "as long as a Blackwell chip reads its memory": it.world.cluster(RACK).chip.drain_s,
    }
    return it.done(
        *(
            it.near(
                f"with passes of {label}",
                bb.tokens_per_s(it.q("batch_size"), pass_s),
                "tokens/s",
                "tokens_per_s",
                when=f"a pass takes {label}",
            )
            for label, pass_s in passes.items()
        ),
        because="64 passes a second mean 15.6 ms each.",
    )


def c33(it: Work) -> Finding:
    month, later = (it.q(name) / it.q("month_s") for name in ("month_tokens", "later_month_tokens"))
    fleets = {
        "100 M tokens/s": it.q("low_fleet_tokens_per_s"),
        "980 T tokens a month": month,
        "1.3 Q tokens a month": later,
    }
    return it.done(
        *(
            it.near(
                f"systems for {label}",
                1.0 / share_of_fleet(it.q("system_tokens_per_s"), fleet),
                "systems",
                "systems",
                when=f"the traffic is {label}",
            )
            for label, fleet in fleets.items()
        ),
        because=f"Google's published monthly tokens are {format_count(month)} and later {format_count(later)} a "
        "second, prompts included.",
    )


def c34(it: Work) -> Finding:
    law = it.world.routed("clark-s-base")
    size = dense_equivalent_params(law, it.q("active_params"), it.q("num_experts"))
    return it.done(
        it.near("dense size by the published fit", size, "parameters", "dense_params"),
        because=f"The fit of the paper's table gives {format_count(size)} for what was read off its figure.",
    )


def c35(it: Work) -> Finding:
    law, params, routed = it.world.routed("clark-s-base"), it.q("active_params"), it.q("routed_share")
    counted, published = "all parameters are those of experts", "experts stand in every other layer, as in the paper"
    experts = it.q("num_experts")
    whole, total = (routed_total_params(params, experts, share) / params for share in (1.0, routed))
    most = dense_equivalent_params(law, params, 1e9) / params
    return it.done(
        *(
            it.near(
                f"worth of {number:.0f} experts",
                dense_equivalent_params(law, params, number) / params,
                "times",
                name,
                when=f"{number:.0f} experts are meant",
            )
            for number, name in ((experts, "gain"), (it.q("guessed_experts"), "guessed_gain"))
        ),
        it.identity("all parameters, were they all those of experts", whole, experts, "times", when=counted),
        it.near("all parameters, with every other layer routed", total, "times", "num_experts", when=published),
        it.show("worth of any number of experts", most, "times"),
        because=f"64 is the number of experts: with every other layer routed the model has {total:.3g} times the "
        f"parameters. The law bends at about {law.experts_max:.0f} experts; no number of them is worth more than "
        f"{most:.2g} times.",
    )


def c36(it: Work) -> Finding:
    law, params, step = it.world.routed("clark-s-base"), it.q("active_params"), it.q("step")
    totals = [routed_total_params(params, step**n, it.q("routed_share")) / params for n in (1, 2)]
    return it.done(
        *(
            it.near(
                f"worth of {experts:.0f} experts",
                dense_equivalent_params(law, params, experts) / params,
                "times",
                name,
                when="experts are counted",
            )
            for experts, name in ((step, "first"), (step * step, "second"))
        ),
        it.near("all parameters with 8 experts", totals[0], "times", "step", when="parameters are counted"),
        it.near("and with 64 over 8", totals[1] / totals[0], "times", "step", when="parameters are counted"),
        because=f"Eight times the experts are about a doubling; they are {totals[0]:.3g} times the parameters at first "
        f"and {totals[1] / totals[0]:.3g} times then, because only every other layer is routed.",
    )


def c37(it: Work) -> Finding:
    chip, active = it.world.chip("gb200"), it.q("active_params")
    value = ridge(chip, "fp4")

    def weights_per_token(ratio: float) -> float:
        return bb.weight_fetch_s(ratio * active, 0.5, chip.hbm_bytes_per_s) / bb.balance_batch(value, ratio)

    rack = it.world.cluster(RACK)
    held = bb.chip_memory(it.q("high") * active, 0.5, 0.0, 0.0, 0.0, float(rack.num_chips)).weights_bytes
    frontier = it.world.model(FRONTIER)
    return it.done(
        it.identity(
            "weight reads per token at balance", weights_per_token(it.q("high")), weights_per_token(it.q("low")), "s"
        ),
        it.most("weights per chip at 32 times", float(held), "B", rack.chip.hbm_bytes),
        it.show(
            "users needed at balance",
            bb.balance_batch(value, frontier.total_params / frontier.active_params),
            "sequences",
        ),
        because="At its own balanced batch a sparser model reads as much per token, if there are that many users.",
    )
