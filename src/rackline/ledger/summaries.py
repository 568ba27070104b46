"""What public summaries made of the lecture (N01 to N22): "does not hold" means that the summary is wrong there."""

from __future__ import annotations

import math

from rackline.hardware import Chip
from rackline.ledger.caches import BESIDE, hbm
from rackline.ledger.prices import GEMINI, OPUS, output_over_input
from rackline.ledger.racks import MODEL, mixture
from rackline.ledger.work import FRONTIER, HOPPER, RACK, Finding, Work, ridge
from rackline.pricing.cache import keeping_cost, tier_by_drain
from rackline.scaling import chinchilla_tokens, equal_cost_ratio, train_flop
from rackline.serving import blackboard as bb
from rackline.units import format_count, format_percent, format_seconds


def n01(it: Work) -> Finding:
    over, ridge_said = it.q("total_over_active"), it.q("ridge")
    right, turned = bb.balance_batch(ridge_said, over), ridge_said / over
    return it.done(
        it.near("300 times active over total", turned, "sequences", "balance", when="sparsity is active over total"),
        it.near("300 times total over active", right, "sequences", "balance", when="sparsity is total over active"),
        because=f"The quoted result is right, the definition is inverted: as defined it gives {turned:.3g}.",
    )


def n02(it: Work) -> Finding:
    moe, over = mixture(it), it.world.model(MODEL).total_over_active
    ratios = {
        "the experts that were said": it.q("experts_said"),
        "published experts": moe.num_experts / moe.experts_per_token,
        "published parameters": over,
        "active over total parameters": 1.0 / over,
    }
    found = {label: it.q("ridge") * ratio for label, ratio in ratios.items()}
    return it.done(
        *(
            it.near(f"by {label}", batch, "sequences", "balance", when=f"it is that of {label}")
            for label, batch in found.items()
        ),
        because=f"Left undefined it may mean {min(found.values()):.3g} to {max(found.values()):,.0f} sequences; total "
        "over active parameters, at least 1, is what the formula was derived with.",
    )


def n03(it: Work) -> Finding:
    chips = [it.world.chip(name) for name in ("b200-sxm", "gb200")]
    raws = {chip.name: chip.ridge_point("fp4") for chip in chips}
    return it.done(
        *(
            row
            for chip in chips
            for row in (
                it.near(
                    f"FLOP per byte of {chip.name} in FP4",
                    raws[chip.name],
                    "FLOP/B",
                    "ratio",
                    when=f"FLOP per byte of {chip.name} are meant",
                ),
                it.near(
                    f"multiplies per weight of {chip.name}",
                    ridge(chip, "fp4"),
                    "times",
                    "ratio",
                    when=f"multiplies per weight of half a byte on {chip.name} are",
                ),
            )
        ),
        because=f"FLOP per byte are {min(raws.values()):,.0f} to {max(raws.values()):,.0f}; 300 comes after half a "
        "byte a weight and two FLOP a multiply.",
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
    return it.done(
        *(
            it.least(
                f"cost over the floor at {share:g} times the balanced batch",
                cost(share * balance) / floor,
                "times",
                it.q("off_the_floor"),
                when=f"the batch is {share:g} of balance",
            )
            for share in (it.q("below"), it.q("above"))
        ),
        because="Under the larger of two terms cost falls as a hyperbola to the balanced batch of "
        f"{format_count(balance)} and is on the floor from there on; nothing is approached without being reached.",
    )


def n05(it: Work) -> Finding:
    interval = it.world.cluster(RACK).chip.drain_s
    whole = it.q("output_len") * interval
    wait = float(bb.train_latency(interval).worst_s) - interval
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    both = bb.mode_batches(it.q("speed_ratio"), it.q("price_ratio"), balance)
    trade = bb.mode_at_batch(float(both.normal_batch), float(both.fast_batch), balance)
    return it.done(
        it.least("longest wait for a train, of an answer of 500 tokens", wait / whole, "share", it.q("most_of_it")),
        it.show("speed of the smaller batch by its shorter pass", float(trade.speed_ratio), "times"),
        because=f"The wait for a place is at most {format_percent(wait / whole)} of such an answer; the smaller batch "
        "is faster because its pass is shorter.",
    )


def n06(it: Work) -> Finding:
    rack, model = it.world.cluster(RACK), it.world.model(FRONTIER)
    wanted = it.q("interval_s") / it.q("speed_ratio")
    drain = rack.chip.drain_s
    floor = bb.latency_floor_s(model.total_params, 0.5, rack.num_chips * rack.chip.hbm_bytes_per_s)
    return it.done(
        it.most(
            "interval when a pass reads all of the memory", drain, "s", wanted, when="a pass reads all of the memory"
        ),
        it.most("interval when it reads the weights alone", floor, "s", wanted, when="a pass reads the weights alone"),
        because=f"As told, trains depart every {format_seconds(drain)} at any price; they could at "
        f"{format_seconds(floor)} if a batch is so small that only weights are read. Queueing and priority were not "
        "spoken of.",
    )


def n07(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, rate, total, active = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, model.total_params, model.active_params
    balance, kv = bb.balance_batch(ridge(chip, "fp4"), total / active), model.kv_bytes_per_token()

    def over_one(share: float, context: float) -> float:
        times = [bb.pass_s(b, total, active, 0.5, context, kv, flop, rate) for b in (share * balance, 1.0)]
        return times[0] / times[1]

    cases = ((0.5, 0.0), (it.q("above"), 0.0), (0.5, it.q("context_len")))
    found = {
        f"{share:g} of the balanced batch, {format_count(context)} tokens of context": over_one(share, context)
        for share, context in cases
    }
    _, above, cached = found.values()
    return it.done(
        *(
            it.most(
                f"pass over that of one sequence at {label}", times, "times", it.q("no_change"), when=f"it is {label}"
            )
            for label, times in found.items()
        ),
        because=f"A pass grows with the batch once arithmetic or cache count: here {above:.3g} and {cached:.3g} times.",
    )


def n08(it: Work) -> Finding:
    context, chip, model = it.q("context_len"), it.world.chip("gb200"), it.world.model("llama-3.1-70b")

    def growth(sparse: bool) -> float:
        reads = [bb.sparse_read_tokens(n * context) if sparse else n * context for n in (1, 2, 3)]
        once, twice, thrice = (
            bb.kv_fetch_s(1.0, read, model.kv_bytes_per_token(), chip.hbm_bytes_per_s) for read in reads
        )
        return (thrice / twice) / (twice / once)

    return it.done(
        *(
            it.least(
                f"growth from 200K to 300K over that from 100K to 200K, {label}", growth(sparse), "times", it.q("equal")
            )
            for label, sparse in (("dense attention", False), ("a square root", True))
        ),
        because="An exponential grows by the same factor with each step; reads of dense attention grow by the same "
        "amount, those of a square root by less and less.",
    )


def n09(it: Work) -> Finding:
    sizes = {name: it.world.model(name).total_params for name in (MODEL, "kimi-k2")}
    large = ("5 T parameters", it.q("large_params"))
    needed = {
        (name, on.name): math.ceil(params * it.q("weight_bytes") / (on.num_chips * on.chip.hbm_bytes))
        for on, (name, params) in (
            (it.world.cluster(cluster), held)
            for cluster, held in (*((RACK, one) for one in (*sizes.items(), large)), (HOPPER, large))
        )
    }
    return it.done(
        *(
            it.least(f"stages for {name} in FP8 on {cluster}", stages, "stages", it.q("more_than_one"))
            for (name, cluster), stages in needed.items()
        ),
        because=f"Stages needed are {', '.join(map(str, needed.values()))}: only what outgrows a domain needs more "
        "than one.",
    )


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
    return it.done(
        it.identity("cost at 32 over that at 8, batches balanced", with_users, it.q("dearer"), "times", when=stays),
        it.least("cost at 32 over that at 8, same batch", without, "times", it.q("dearer"), when=grows),
        because="At its own balanced batch a sparser model costs as much a token; at the batch of the denser one "
        f"{without:.3g} times. Limits are users, memory capacity and quality.",
    )


def n11(it: Work) -> Finding:
    params, tokens = it.q("params"), chinchilla_tokens(it.q("params"))
    dearer = train_flop(params, it.q("factor") * tokens) / train_flop(params, tokens)
    return it.done(
        it.most("training cost over that of the compute-optimal run", dearer, "times", it.q("slightly")),
        because=f"At the same size {it.q('factor'):g} times the tokens are {dearer:g} times the FLOP.",
    )


def n12(it: Work) -> Finding:
    sheets = {name: it.world.sheet(name) for name in (OPUS, GEMINI)}
    tiers = {name: sheet.of_mode("standard")[0] for name, sheet in sheets.items()}
    return it.done(
        *(it.near(f"output over input of {name}", output_over_input(sheets[name]), "times", "ratio") for name in tiers),
        *(
            it.show(
                f"miss over hit of {name}", (tier.input_usd or 0.0) / (tier.cached_input_usd or float("inf")), "times"
            )
            for name, tier in tiers.items()
        ),
        because="No list sells output at ten times input; ten is what a cache miss costs over a hit, of which the "
        "sentence at 1:49:45 speaks.",
    )


def n13(it: Work) -> Finding:
    def held(stages: float, context_len: float) -> float:
        kv = it.q("kv_bytes_per_token")
        return float(
            bb.chip_memory(
                it.q("total_params"), 1.0, it.q("micro_batch"), context_len, kv, it.q("chips"), stages
            ).total_bytes
        )

    contexts = [it.q(name) for name in ("short_context", "context_len", "long_context")]
    shares = {context: held(it.q("stages"), context) / held(1.0, context) for context in contexts}
    found = [f"{format_percent(share)} at {format_count(context)}" for context, share in shares.items()]
    return it.done(
        *(
            it.near(f"memory of a chip, 4 stages over 1, {when}", share, "times", "no_benefit", when=when)
            for when, share in (
                (f"contexts have {format_count(context)} tokens", share) for context, share in shares.items()
            )
        ),
        because=f"In inference too a chip keeps less with four stages, {', '.join(found)} tokens of context: weights "
        "are cut in four, the cache stays.",
    )


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
    return it.done(
        *(
            it.most(
                f"growth of {label} over that of arithmetic",
                growth / flop,
                "times",
                it.q("keeps_up"),
                when=f"it is {label}",
            )
            for label, growth in grown.items()
        ),
        because="The lecture's wall is the memory's bandwidth, capacity and price; from A100 to GB200 arithmetic grew "
        f"{flop:.3g} times, links of a chip {grown['links of a chip']:.3g} and those of a domain "
        f"{grown['links of a domain']:.3g} times.",
    )


def n15(it: Work) -> Finding:
    labels = {each: f"{each:g} new {'token' if each == 1 else 'tokens'}" for each in (it.q("one"), it.q("chunk"))}
    return it.done(
        *(
            it.near(
                f"tokens of a pass, {label} for each sequence",
                it.q("batch_size") * each,
                "tokens",
                "tokens",
                when=f"a pass makes {label} for each sequence",
            )
            for each, label in labels.items()
        ),
        because="Sequences and tokens are the same number in decoding alone, one new token each.",
    )


def n16(it: Work) -> Finding:
    """Tokens of a chip in a second with its memory full or its arithmetic, in a domain of eight and of a rack."""
    model, sizes = it.world.model(MODEL), [it.world.cluster(name).scale_up.size for name in (HOPPER, RACK)]
    total, active, kv, context = (
        model.total_params,
        model.active_params,
        model.kv_bytes_per_token(1.0),
        it.q("context_len"),
    )

    def made(chip: Chip, size: int) -> float:
        batch = max((size * chip.hbm_bytes - total) / (context * kv), 1.0)
        flop, rate = size * chip.flop_per_s("fp8"), size * chip.hbm_bytes_per_s
        seconds = bb.pass_s(batch, total, active, 1.0, context, kv, flop, rate)
        return float(bb.tokens_per_s(batch, seconds)) / size

    chips = [it.world.chip(name) for name in ("gb200", "h100-sxm")]
    over = {chip.name: made(chip, sizes[1]) / made(chip, sizes[0]) for chip in chips}
    filled = {chip.name: format_percent(total / (sizes[0] * chip.hbm_bytes)) for chip in chips}
    gains = [f"{times:.3g} times with {name}" for name, times in over.items()]
    floors = [bb.weight_fetch_s(total, 1.0, chips[0].hbm_bytes_per_s, size) for size in sizes]
    return it.done(
        *(
            it.least(
                f"throughput of a chip, {sizes[1]} chips over {sizes[0]} of {name}",
                times,
                "times",
                it.q("dramatic"),
                when=f"weights fill {filled[name]} of {sizes[0]} chips, as in FP8 of {name}",
            )
            for name, times in over.items()
        ),
        it.show("speed of the shortest pass, the same chips", floors[0] / floors[1], "times"),
        because=f"A chip serves {' and '.join(gains)} in the larger domain: what counts is the memory that weights "
        f"leave to sequences. The shortest pass is {floors[0] / floors[1]:.3g} times as fast; that this explains who "
        "is ahead was the host's guess.",
    )


def n17(it: Work) -> Finding:
    model, machines = it.world.model(FRONTIER), (("h100-sxm", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "fp4"))
    active, kv = model.active_params, model.kv_bytes_per_token()
    found = {
        f"{chip.name} in {dtype.upper()}": bb.crossover_context(
            active, kv, chip.flop_per_s(dtype), chip.hbm_bytes_per_s
        )
        for chip, dtype in ((it.world.chip(name), dtype) for name, dtype in machines)
    }
    return it.done(
        *(
            it.near(f"costs are equal on {at}", star, "tokens", "context_len", when=f"it runs on {at}")
            for at, star in found.items()
        ),
        because=f"The same model has equal costs at {format_count(min(found.values()))} to "
        f"{format_count(max(found.values()))} tokens by chip and data type; the lecture said probably, and maybe not "
        "exactly.",
    )


def n18(it: Work) -> Finding:
    found = [keeping_cost(tier, 1e9) for tier in (hbm(it), *(it.world.tier(name) for name in BESIDE))]
    short, long = (tier_by_drain(found, it.q(name)) for name in ("short_s", "long_s"))
    guesses = {
        "flash and spinning disk": ("nvme", "disk"),
        "HBM and DDR": ("hbm", "host_dram"),
        "DDR and flash": ("host_dram", "nvme"),
    }
    return it.done(
        *(
            it.true(f"5 minutes and an hour are {label}", (short.tier, long.tier) == guessed, when=f"they are {label}")
            for label, guessed in guesses.items()
        ),
        because=f"The summaries disagree because the lecture guessed three times; drain times say {short.name} and "
        f"{long.name}.",
    )


def n19(it: Work) -> Finding:
    stages, pass_s, batch, hop_s = it.q("stages"), it.q("pass_s"), it.q("batch_size"), it.q("hop_s")
    token_s = {hop: float(bb.ring_step(pass_s, stages, stages, batch, hop).token_s) for hop in (0.0, hop_s)}
    return it.done(
        *(
            it.near(f"time of a token over that on one rack, {when}", spent / pass_s, "times", "neutral", when=when)
            for when, spent in ((f"a hop takes {format_seconds(hop)}", spent) for hop, spent in token_s.items())
        ),
        because="Both are said: neutral without hops; four of them add "
        f"{format_seconds(token_s[hop_s] - pass_s)} (C74).",
    )


def n20(it: Work) -> Finding:
    names = [name.removeprefix("summary_") for name in it.claim.numbers if name.startswith("summary_")]
    off = {name.replace("_", " "): abs(it.q(f"summary_{name}") - it.q(f"video_{name}")) for name in names}
    exact = sum(seconds <= it.q("near_s") for seconds in off.values())
    return it.done(
        *(
            it.most(f"{name}, off by", seconds, "s", it.q("near_s"), when=f"the quote on {name} is looked up")
            for name, seconds in off.items()
        ),
        because=f"Of {len(off)} times {exact} are right to {format_seconds(it.q('near_s'))}, others are off by up to "
        f"{format_seconds(max(off.values()))}: do not use them.",
    )


def n22(it: Work) -> Finding:
    shares = (it.q("same_mfu"), it.q("relative_mfu"))
    same, real = (float(1.0 / equal_cost_ratio(2.0, mfu)) for mfu in shares)
    whens = [f"decoding has {format_percent(mfu)} of the MFU of training" for mfu in shares]
    return it.done(
        *(
            it.near(f"tokens of use over pre-training, {when}", ratio, "times", "equal", when=when)
            for when, ratio in zip(whens, (same, real), strict=True)
        ),
        because=f"Equal costs alone mean {same:.3g} times the tokens; only the MFU makes them {real:.3g}.",
    )
