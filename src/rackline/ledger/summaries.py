"""What public summaries made of the lecture (N01 to N22): "does not hold" means that the summary is wrong there."""

from __future__ import annotations

import math

from rackline.ledger.segment_2 import MODEL, mixture
from rackline.ledger.segment_6 import GEMINI, OPUS, output_over_input
from rackline.ledger.segment_6_tiers import DDR, DISK, FLASH, hbm
from rackline.ledger.work import FRONTIER, HOPPER, RACK, Finding, Work, ridge
from rackline.pricing.cache import keeping_cost, tier_by_drain
from rackline.scaling import chinchilla_tokens, equal_cost_ratio, train_flop
from rackline.serving import blackboard as bb
from rackline.units import format_count, format_percent, format_seconds


def n01(it: Work) -> Finding:
    over, ridge_said = it.q("total_over_active"), it.q("ridge")
    right, turned = bb.balance_batch(ridge_said, over), ridge_said / over
    it.near("300 times active over total", turned, "sequences", "balance", when="sparsity is active over total")
    it.near("300 times total over active", right, "sequences", "balance", when="sparsity is total over active")
    return it.done(f"The quoted result is right, the definition is inverted: as defined it gives {turned:.3g}.")


def n02(it: Work) -> Finding:
    moe, model = mixture(it), it.world.model(MODEL)
    found: list[float] = []
    for label, ratio in (
        ("the experts that were said", it.q("experts_said")),
        ("published experts", moe.num_experts / moe.experts_per_token),
        ("published parameters", model.total_over_active),
        ("active over total parameters", 1.0 / model.total_over_active),
    ):
        found.append(it.q("ridge") * ratio)
        it.near(f"by {label}", found[-1], "sequences", "balance", when=f"it is that of {label}")
    return it.done(
        f"Left undefined it may mean {min(found):.3g} to {max(found):,.0f} sequences; total over active parameters, at "
        "least 1, is what the formula was derived with."
    )


def n03(it: Work) -> Finding:
    raws: list[float] = []
    for name in ("b200-sxm", "gb200"):
        chip = it.world.chip(name)
        raws.append(chip.ridge_point("fp4"))
        it.near(
            f"FLOP per byte of {name} in FP4", raws[-1], "FLOP/B", "ratio", when=f"FLOP per byte of {name} are meant"
        )
        label, when = f"multiplies per weight of {name}", f"multiplies per weight of half a byte on {name} are"
        it.near(label, ridge(chip, "fp4"), "times", "ratio", when=when)
    return it.done(
        f"FLOP per byte are {min(raws):,.0f} to {max(raws):,.0f}; 300 comes after half a byte a weight and two FLOP a "
        "multiply."
    )


def n04(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(MODEL)
    flop, hbm_rate, total, active = (
        chip.flop_per_s("fp4"),
        chip.hbm_bytes_per_s,
        model.total_params,
        model.active_params,
    )
    balance = bb.balance_batch(ridge(chip, "fp4"), model.total_over_active)

    def cost(batch: float) -> float:
        return bb.cost_per_token_usd(batch, bb.pass_s(batch, total, active, 0.5, 0.0, 0.0, flop, hbm_rate), 1.0)

    floor = bb.cost_floor_usd(active, 0.0, 0.0, flop, hbm_rate, 1.0)
    for share in (it.q("below"), it.q("above")):
        label, when = f"cost over the floor at {share:g} times the balanced batch", f"the batch is {share:g} of balance"
        it.least(label, cost(share * balance) / floor, "times", it.q("off_the_floor"), when=when)
    return it.done(
        f"Under the larger of two terms cost falls as a hyperbola to the balanced batch of {format_count(balance)} and "
        "is on the floor from there on; nothing is approached without being reached."
    )


def n05(it: Work) -> Finding:
    interval = it.world.cluster(RACK).chip.drain_s
    whole = it.q("output_len") * interval
    wait = float(bb.train_latency(interval).worst_s) - interval
    it.least("longest wait for a train, of an answer of 500 tokens", wait / whole, "share", it.q("most_of_it"))
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    both = bb.mode_batches(it.q("speed_ratio"), it.q("price_ratio"), balance)
    trade = bb.mode_at_batch(float(both.normal_batch), float(both.fast_batch), balance)
    it.show("speed of the smaller batch by its shorter pass", float(trade.speed_ratio), "times")
    return it.done(
        f"The wait for a place is at most {format_percent(wait / whole)} of such an answer; the smaller batch is "
        "faster because its pass is shorter."
    )


def n06(it: Work) -> Finding:
    rack, model = it.world.cluster(RACK), it.world.model(FRONTIER)
    wanted = it.q("interval_s") / it.q("speed_ratio")
    drain = rack.chip.drain_s
    floor = bb.latency_floor_s(model.total_params, 0.5, rack.num_chips * rack.chip.hbm_bytes_per_s)
    it.most("interval when a pass reads all of the memory", drain, "s", wanted, when="a pass reads all of the memory")
    it.most("interval when it reads the weights alone", floor, "s", wanted, when="a pass reads the weights alone")
    return it.done(
        f"As told, trains depart every {format_seconds(drain)} at any price; they could at {format_seconds(floor)} "
        "if a batch is so small that only weights are read. Queueing and priority were not spoken of."
    )


def n07(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, rate, total, active = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, model.total_params, model.active_params
    balance = bb.balance_batch(ridge(chip, "fp4"), total / active)

    def over_one(share: float, context: float) -> float:
        kv = model.kv_bytes_per_token()
        times = [bb.pass_s(b, total, active, 0.5, context, kv, flop, rate) for b in (share * balance, 1.0)]
        return times[0] / times[1]

    found: list[float] = []
    for share, context in ((0.5, 0.0), (it.q("above"), 0.0), (0.5, it.q("context_len"))):
        found.append(over_one(share, context))
        label = f"{share:g} of the balanced batch, {format_count(context)} tokens of context"
        it.most(
            f"pass over that of one sequence at {label}", found[-1], "times", it.q("no_change"), when=f"it is {label}"
        )
    return it.done(
        f"A pass grows with the batch once arithmetic or cache count: here {found[1]:.3g} and {found[2]:.3g} times."
    )


def n08(it: Work) -> Finding:
    context, chip = it.q("context_len"), it.world.chip("gb200")
    model = it.world.model("llama-3.1-70b")

    def read_s(tokens: float, sparse: bool) -> float:
        read = bb.sparse_read_tokens(tokens) if sparse else tokens
        return bb.kv_fetch_s(1.0, read, model.kv_bytes_per_token(), chip.hbm_bytes_per_s)

    for label, sparse in (("dense attention", False), ("a square root", True)):
        once, twice = (read_s((n + 1) * context, sparse) / read_s(n * context, sparse) for n in (1, 2))
        it.least(f"growth from 200K to 300K over that from 100K to 200K, {label}", twice / once, "times", it.q("equal"))
    return it.done(
        "An exponential grows by the same factor with each step; reads of dense attention grow by the same amount, "
        "those of a square root by less and less."
    )


def n09(it: Work) -> Finding:
    models = {MODEL: it.world.model(MODEL).total_params, "kimi-k2": it.world.model("kimi-k2").total_params}
    needed: list[int] = []
    for cluster, params in (
        *((RACK, (name, count)) for name, count in models.items()),
        (RACK, ("5 T parameters", it.q("large_params"))),
        (HOPPER, ("5 T parameters", it.q("large_params"))),
    ):
        on = it.world.cluster(cluster)
        stages = math.ceil(params[1] * it.q("weight_bytes") / (on.num_chips * on.chip.hbm_bytes))
        needed.append(stages)
        it.least(f"stages for {params[0]} in FP8 on {cluster}", stages, "stages", it.q("more_than_one"))
    return it.done(f"Stages needed are {', '.join(map(str, needed))}: only what outgrows a domain needs more than one.")


def n10(it: Work) -> Finding:
    chip, active = it.world.chip("gb200"), it.q("active_params")
    value, flop = ridge(chip, "fp4"), chip.flop_per_s("fp4")

    def cost(ratio: float, batch: float) -> float:
        t = bb.pass_s(batch, ratio * active, active, 0.5, 0.0, 0.0, flop, chip.hbm_bytes_per_s)
        return bb.cost_per_token_usd(batch, t, 1.0)

    low, high = it.q("low"), it.q("high")
    full = bb.balance_batch(value, low)
    with_users = cost(high, bb.balance_batch(value, high)) / cost(low, full)
    without = cost(high, full) / cost(low, full)
    grows, stays = "the batch cannot grow, as users run out", "the batch grows with sparsity"
    it.identity("cost at 32 over that at 8, batches balanced", with_users, it.q("dearer"), "times", when=stays)
    it.least("cost at 32 over that at 8, same batch", without, "times", it.q("dearer"), when=grows)
    return it.done(
        f"At its own balanced batch a sparser model costs as much a token; at the batch of the denser one "
        f"{without:.3g} times. Limits are users, memory capacity and quality."
    )


def n11(it: Work) -> Finding:
    params, tokens = it.q("params"), chinchilla_tokens(it.q("params"))
    dearer = train_flop(params, it.q("factor") * tokens) / train_flop(params, tokens)
    it.most("training cost over that of the compute-optimal run", dearer, "times", it.q("slightly"))
    return it.done(f"At the same size {it.q('factor'):g} times the tokens are {dearer:g} times the FLOP.")


def n12(it: Work) -> Finding:
    for name in (OPUS, GEMINI):
        sheet = it.world.sheet(name)
        tier = sheet.of_mode("standard")[0]
        spoken = "output over input is meant"
        it.near(f"output over input of {name}", output_over_input(sheet), "times", "ratio", when=spoken)
        hit = (tier.input_usd or 0.0) / (tier.cached_input_usd or 1.0)
        it.near(f"miss over hit of {name}", hit, "times", "ratio", when="a cache miss over a hit is meant")
    return it.done("The sentence, at 1:49:45, is about computing a cache again against loading it.")


def n13(it: Work) -> Finding:
    stages = it.q("stages")
    one, four = (
        bb.chip_memory(
            it.q("total_params"), 1.0, it.q("micro_batch"), it.q("context_len"), it.q("kv_bytes_per_token"), 64.0, p
        )
        for p in (1.0, stages)
    )
    weights, cache = float(four.weights_bytes / one.weights_bytes), float(four.kv_bytes / one.kv_bytes)
    it.near("weights of a chip with 4 stages over 1", weights, "times", "no_benefit", when="weights are meant")
    it.identity("cache of a chip with 4 stages over 1", cache, it.q("no_benefit"), "times", when="the cache is meant")
    return it.done(f"In inference too stages keep {format_percent(weights)} of the weights each; the cache stays.")


def n14(it: Work) -> Finding:
    old, new = it.world.cluster("dgx-a100"), it.world.cluster(RACK)
    flop = new.chip.flop_per_s("bf16") / old.chip.flop_per_s("bf16")
    links = [on.scale_up.bytes_per_s_each_way for on in (new, old)]
    grown = {
        "bandwidth of the memory": new.chip.hbm_bytes_per_s / old.chip.hbm_bytes_per_s,
        "its capacity": new.chip.hbm_bytes / old.chip.hbm_bytes,
        "links of a chip": links[0] / links[1],
        "links of a domain": links[0] * new.scale_up.size / (links[1] * old.scale_up.size),
    }
    for label, growth in grown.items():
        it.most(
            f"growth of {label} over that of arithmetic",
            growth / flop,
            "times",
            it.q("keeps_up"),
            when=f"it is {label}",
        )
    return it.done(
        f"The lecture's wall is the memory's bandwidth, capacity and price; from A100 to GB200 arithmetic grew "
        f"{flop:.3g} times, links of a chip {grown['links of a chip']:.3g} and those of a domain "
        f"{grown['links of a domain']:.3g} times."
    )


def n15(it: Work) -> Finding:
    batch = it.q("batch_size")
    for each in (it.q("one"), it.q("chunk")):
        label = f"{each:g} new {'token' if each == 1 else 'tokens'} for each sequence"
        it.near(f"tokens of a pass, {label}", batch * each, "tokens", "tokens", when=f"a pass makes {label}")
    return it.done("Sequences and tokens are the same number in decoding alone, one new token each.")


def n16(it: Work) -> Finding:
    hopper, rack, model = it.world.cluster(HOPPER), it.world.cluster(RACK), it.world.model(MODEL)
    chip = rack.chip
    balance = bb.balance_batch(ridge(chip, "fp8"), model.total_over_active)
    passes: list[float] = []
    rates: list[float] = []
    for chips in (hopper.scale_up.size, rack.scale_up.size):
        flop, rate = chips * chip.flop_per_s("fp8"), chips * chip.hbm_bytes_per_s
        t = bb.pass_s(balance, model.total_params, model.active_params, 1.0, 0.0, 0.0, flop, rate)
        passes.append(t)
        rates.append(bb.tokens_per_s(balance, t) / chips)
    label = f"{rack.scale_up.size} chips over {hopper.scale_up.size}"
    it.least(
        f"throughput of a chip, {label}", rates[1] / rates[0], "times", it.q("dramatic"), when="throughput is meant"
    )
    it.least(f"speed of a pass, {label}", passes[0] / passes[1], "times", it.q("dramatic"), when="latency is meant")
    return it.done(
        f"A larger domain makes the pass {passes[0] / passes[1]:.3g} times as fast and each chip "
        f"{rates[1] / rates[0]:.3g} times as productive; that this explains who is ahead was the host's guess."
    )


def n17(it: Work) -> Finding:
    model = it.world.model(FRONTIER)
    found: list[float] = []
    for name, dtype in (("h100-sxm", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "fp4")):
        chip = it.world.chip(name)
        found.append(
            bb.crossover_context(
                model.active_params, model.kv_bytes_per_token(), chip.flop_per_s(dtype), chip.hbm_bytes_per_s
            )
        )
        at = f"{name} in {dtype.upper()}"
        it.near(f"costs are equal on {at}", found[-1], "tokens", "context_len", when=f"it runs on {at}")
    return it.done(
        f"The same model has equal costs at {format_count(min(found))} to {format_count(max(found))} tokens by chip "
        "and data type; the lecture said probably, and maybe not exactly."
    )


def n18(it: Work) -> Finding:
    known = [hbm(it), *(it.world.tier(name) for name in (DDR, FLASH, "qlc-31tb", DISK))]
    found = [keeping_cost(tier, 1e9) for tier in known]
    short, long = (tier_by_drain(found, it.q(name)) for name in ("short_s", "long_s"))
    for label, first, second in (
        ("flash and spinning disk", "nvme", "disk"),
        ("HBM and DDR", "hbm", "host_dram"),
        ("DDR and flash", "host_dram", "nvme"),
    ):
        fits = (short.tier, long.tier) == (first, second)
        it.true(f"5 minutes and an hour are {label}", fits, when=f"they are {label}")
    return it.done(
        f"The summaries disagree because the lecture guessed three times; drain times say {short.name} and {long.name}."
    )


def n19(it: Work) -> Finding:
    stages, pass_s, batch = it.q("stages"), it.q("pass_s"), it.q("batch_size")
    added: list[float] = []
    for hop in (0.0, it.q("hop_s")):
        step = bb.ring_step(pass_s, stages, stages, batch, hop)
        added.append(float(step.token_s) - pass_s)
        when = f"a hop takes {format_seconds(hop)}"
        it.near(f"time of a token over that on one rack, {when}", step.token_s / pass_s, "times", "neutral", when=when)
    return it.done(f"Both are said: neutral without hops; four of them add {format_seconds(added[1])} (C74).")


def n20(it: Work) -> Finding:
    off: list[float] = []
    names = [name.removeprefix("summary_") for name in it.claim.numbers if name.startswith("summary_")]
    for name in names:
        said, told = it.q(f"video_{name}"), it.q(f"summary_{name}")
        off.append(abs(told - said))
        it.near(
            f"{name.replace('_', ' ')}, off by", told, "s", f"video_{name}", when=f"{name.replace('_', ' ')} is meant"
        )
    return it.done(
        f"Of {len(off)} times some are exact, others off by up to {format_seconds(max(off))}: do not use them."
    )


def n22(it: Work) -> Finding:
    ratios: list[float] = []
    for mfu in (it.q("same_mfu"), it.q("relative_mfu")):
        ratios.append(float(1.0 / equal_cost_ratio(2.0, mfu)))
        when = f"decoding has {format_percent(mfu)} of the MFU of training"
        it.near(f"tokens of use over pre-training, {when}", ratios[-1], "times", "equal", when=when)
    return it.done(f"Equal costs alone mean {ratios[0]:.3g} times the tokens; only the MFU makes them {ratios[1]:.3g}.")
