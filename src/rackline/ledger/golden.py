"""The golden values of the ledger (G01 to G17), from the catalogue where it has what they start from; flash cards on
passes and pipelines that no claim answers (Q4, Q12, Q14).
"""

from __future__ import annotations

import dataclasses

from rackline.arch import Model
from rackline.ledger.pipelines import held
from rackline.ledger.racks import MODEL, mixture
from rackline.ledger.training import LAWS, exact_tokens
from rackline.ledger.work import FRONTIER, HBM_CHIPS, RACK, Computed, Finding, Work, attention_slope, ridge
from rackline.scaling import dense_equivalent_params, equal_cost_ratio, lifetime_tokens, overtraining_factor
from rackline.serving import blackboard as bb
from rackline.units import format_count, format_percent, format_seconds, plural


def g01(it: Work) -> Finding:
    chips = {name: name.partition("_")[::2] for name in it.claim.numbers}
    return it.done(
        *(
            it.near(f"{chip} {dtype.upper()}", ridge(it.world.chip(chip), dtype), "times", name)
            for name, (chip, dtype) in chips.items()
        ),
        because="From the peaks and bandwidths of the catalogue.",
    )


def g02(it: Work) -> Finding:
    return it.done(
        *(
            it.near(name, bb.hbm_drain_s(it.q(f"{name}_bytes"), it.world.chip(name).hbm_bytes_per_s), "s", name)
            for name in HBM_CHIPS
        ),
        because="From printed capacities; those that drivers report are up to 8 % larger.",
    )


def g03(it: Work) -> Finding:
    moe, value = mixture(it), it.q("ridge")
    return it.done(
        it.near("8", bb.balance_batch(value, 8.0), "sequences", "experts_said"),
        it.near(
            "published experts",
            bb.balance_batch(value, moe.num_experts / moe.experts_per_token),
            "sequences",
            "experts",
        ),
        it.near(
            "700 over 37",
            bb.balance_batch(value, it.q("rounded_total") / it.q("rounded_active")),
            "sequences",
            "rounded",
        ),
        it.near(
            "published parameters",
            bb.balance_batch(value, it.world.model(MODEL).total_over_active),
            "sequences",
            "published",
        ),
        because=f"The published shape counts {format_count(it.world.model(MODEL).active_params)} active parameters, "
        "the ledger 37 billion.",
    )


def g04(it: Work) -> Finding:
    chip, model = it.world.chip("h100-sxm"), it.world.model(MODEL)
    flop, hbm, total, active = chip.flop_per_s("fp8"), chip.hbm_bytes_per_s, model.total_params, model.active_params
    alone = bb.cost_per_token_usd(1.0, bb.pass_s(1.0, total, active, 1.0, 0.0, 0.0, flop, hbm), it.q("usd_per_hour"))
    floor = bb.cost_floor_usd(active, 0.0, 0.0, flop, hbm, it.q("usd_per_hour"))
    return it.done(
        it.identity(
            "DeepSeek V3 on H100 in FP8", alone / floor, bb.balance_batch(ridge(chip, "fp8"), total / active), "times"
        ),
        because="The weights of one pass over one token's arithmetic is the balanced batch.",
    )


def g05(it: Work) -> Finding:
    balance = it.q("balance")
    both = bb.mode_batches(it.q("speed"), it.q("price"), balance)
    dear = bb.mode_at_price(float(both.normal_batch), it.q("much"), balance)
    return it.done(
        it.near("normal batch", float(both.normal_batch), "sequences", "normal"),
        it.near("fast batch", float(both.fast_batch), "sequences", "fast"),
        it.near("batch at 100 times the price", float(dear.batch_size), "sequences", "tiny"),
        it.near("its speed", float(dear.speed_ratio), "times", "speed"),
        it.near("most speed at a cache of 0.6", bb.max_speed_ratio_at_knee(it.q("kv_over_compute")), "times", "speed"),
        because="The floor of latency is reached at 2.5 times the speed.",
    )


def g06(it: Work) -> Finding:
    stages = {"one": 1.0, "two": 2.0, "four": 4.0, "eight": 8.0}
    memory = {name: held(it, count) for name, count in stages.items()}
    return it.done(
        *(
            row
            for name, one in memory.items()
            for row in (
                it.near(f"weights, {name}", float(one.weights_bytes), "B", name),
                it.near(f"cache, {name}", float(one.kv_bytes), "B", "cache"),
            )
        ),
        because="The stages cancel for the cache.",
    )


def g07(it: Work) -> Finding:
    return it.done(
        it.near("fleet", lifetime_tokens(it.q("fleet_rate"), it.q("time_s")), "tokens", "fleet"),
        it.near("model", lifetime_tokens(it.q("model_rate"), it.q("time_s")), "tokens", "model"),
        because="Sixty days.",
    )


def g08(it: Work) -> Finding:
    law = it.world.routed("clark-s-base")
    return it.done(
        *(
            it.near(
                f"{experts} experts",
                dense_equivalent_params(law, it.q("params"), float(experts)),
                "parameters",
                f"e{experts}",
            )
            for experts in (8, 16, 32, 64, 128, 256)
        ),
        because="From the constants of the paper's table 3.",
    )


def g09(it: Work) -> Finding:
    params, used = it.q("params"), it.q("inference_tokens")
    use = 2.0 * used / it.q("relative_mfu")
    trained = {law: exact_tokens(it, law, used) for law in LAWS}
    return it.done(
        *(
            row
            for law, tokens in trained.items()
            for row in (
                it.near(f"{law}: tokens", tokens, "tokens", f"{law}_tokens"),
                it.near(f"{law}: over 20 a parameter", overtraining_factor(params, tokens), "times", f"{law}_factor"),
                it.near(f"{law}: use over training", use / (6.0 * tokens), "times", f"{law}_ratio"),
            )
        ),
        because="A root of the exact condition, checked against a thousand neighbours in the tests.",
    )


def g10(it: Work) -> Finding:
    params, context = it.q("params"), it.q("context_len")
    machines = (("h100-sxm", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "fp4"))
    kept = {
        (chip.name, dtype): bb.kv_bytes_per_token_from_crossover(
            params, context, chip.flop_per_s(dtype), chip.hbm_bytes_per_s
        )
        for chip, dtype in ((it.world.chip(name), dtype) for name, dtype in machines)
    }
    return it.done(
        it.near(
            "600 FLOP per byte",
            bb.kv_bytes_per_token_from_crossover(params, context, it.q("raw"), 1.0),
            "B/token",
            "said",
        ),
        *(
            it.near(f"{name} {dtype.upper()}", kv, "B/token", f"{name.removesuffix('-sxm')}_{dtype}")
            for (name, dtype), kv in kept.items()
        ),
        because="The same price step says four different caches on four machines.",
    )


def g11(it: Work) -> Finding:
    chip = it.world.chip("h100-sxm")
    flop, hbm, quoted = chip.flop_per_s("bf16"), chip.hbm_bytes_per_s, {MODEL: "deepseek", "llama-3.1-70b": "llama"}
    return it.done(
        *(
            it.near(
                model.name,
                bb.crossover_context(model.active_params, model.kv_bytes_per_token(2.0), flop, hbm),
                "tokens",
                quoted[model.name],
            )
            for model in (it.world.model(name) for name in quoted)
        ),
        because="The ledger rounds the active parameters to 37 and 70 billion.",
    )


def g12(it: Work) -> Finding:
    return it.done(
        *(it.near(f"k = {k} at 30 %", equal_cost_ratio(float(k), it.q("m")), "times", f"k{k}") for k in (2, 3, 6)),
        it.near("α at a third, k = 3", equal_cost_ratio(3.0, it.q("third")), "times", "alpha"),
        it.near("β at a third", equal_cost_ratio(2.0, it.q("third")), "times", "beta"),
        because="Machine time is FLOP over MFU.",
    )


def g13(it: Work) -> Finding:
    return it.done(
        *(
            it.near(
                f"{experts:.0f} experts, {layers:.0f} layers",
                bb.scale_up_over_scale_out_time(it.q("ratio"), experts, layers),
                "times",
                name,
            )
            for name, experts, layers in (
                ("e8", 8.0, 1.0),
                ("e16", 16.0, 1.0),
                ("e32", 32.0, 1.0),
                ("e3", 3.0, 1.0),
                ("e3_two", 3.0, 2.0),
            )
        ),
        because="Three experts on one layer are not enough, on two they are.",
    )


def g14(it: Work) -> Finding:
    equal = bb.attention_equals_weights_context
    heads, width = it.q("heads"), it.q("head_dim")
    llama, deepseek = it.world.model("llama-3.1-70b"), it.world.model(MODEL)
    return it.done(
        it.near("Llama 3.1 70B", equal(llama.active_params, attention_slope(llama)), "tokens", "llama"),
        it.near(
            "100 B, 80 layers",
            equal(it.q("params"), bb.attention_flop_per_context_token(it.q("layers"), heads, width, width)),
            "tokens",
            "many",
        ),
        it.near(
            "100 B, 1 layer",
            equal(it.q("params"), bb.attention_flop_per_context_token(1.0, heads, width, width)),
            "tokens",
            "one",
        ),
        it.near("DeepSeek V3 absorbed", equal(deepseek.active_params, attention_slope(deepseek)), "tokens", "absorbed"),
        it.near(
            "DeepSeek V3 expanded",
            equal(deepseek.active_params, bb.attention_flop_per_context_token(61.0, 128.0, it.q("qk"), it.q("v"))),
            "tokens",
            "expanded",
        ),
        because="From the shapes of the catalogue.",
    )


def g15(it: Work) -> Finding:
    return it.done(
        *(
            it.near(f"{context:.0f} tokens", context / bb.sparse_read_tokens(context), "times", name)
            for name, context in (("short", 200e3), ("middle", 1e6), ("long", 100e6))
        ),
        because="The root of the context.",
    )


def g16(it: Work) -> Finding:
    usd = it.q("usd_per_hour")
    return it.done(
        it.near(
            "2,400 sequences in 20 ms",
            bb.cost_per_token_usd(it.q("batch_size"), it.q("interval_s"), usd) * 1e6,
            "USD",
            "large",
        ),
        it.near("128,000 tokens a second", bb.cost_per_token_usd(it.q("rate"), 1.0, usd) * 1e6, "USD", "at_rate"),
        it.near("one sequence in 20 ms", bb.cost_per_token_usd(1.0, it.q("interval_s"), usd) * 1e6, "USD", "one"),
        because="Rent of a pass over its tokens.",
    )


def g17(it: Work) -> Finding:
    return it.done(
        *(it.near(name, it.world.tier(name).drain_s, "s", name) for name in it.claim.numbers),
        because="From the parts of the catalogue.",
    )


def q4(it: Work) -> Finding:
    rack, model, context = it.world.cluster(RACK), it.world.model(FRONTIER), it.q("context_len")
    flop, hbm = rack.num_chips * rack.chip.flop_per_s("fp4"), rack.num_chips * rack.chip.hbm_bytes_per_s
    total, active, kv = model.total_params, model.active_params, model.kv_bytes_per_token()
    knee = bb.balance_batch_with_kv(bb.dimensionless_ridge(flop, hbm, 0.5), total, active, 0.5, context, kv)
    bends = knee < float("inf")
    around = knee if bends else bb.balance_batch(bb.dimensionless_ridge(flop, hbm, 0.5), total / active)
    weights = bb.weight_fetch_s(total, 0.5, hbm)

    def at(batch: float) -> tuple[Computed, ...]:
        where = f"at {format_count(round(batch))} {plural(round(batch), 'sequence')}"
        cache, compute = bb.kv_fetch_s(batch, context, kv, hbm), bb.compute_s(batch, active, flop)
        bold = bb.pass_s(batch, total, active, 0.5, context, kv, flop, hbm)
        return (
            it.show(f"weights {where}", weights, "s"),
            it.show(f"cache {where}", cache, "s"),
            it.show(f"arithmetic {where}", compute, "s"),
            it.identity(f"pass {where}", bold, max(weights + cache, compute), "s"),
        )

    batches = (1.0, around / 16.0, around / 4.0, around, 2.0 * around, 4.0 * around)
    until = f"up to {format_count(knee)} sequences" if bends else "at every batch"
    return it.done(
        it.true("cache and weights meet the ray of arithmetic", bends),
        *(row for batch in batches for row in at(batch)),
        because=f"Weights are flat at {format_seconds(weights)}, cache and arithmetic are rays; the bold line is "
        f"weights and cache {until}{', arithmetic from there on' if bends else ''}. The frontier model of the "
        f"catalogue on {RACK} in FP4 with {format_count(context)} tokens of context.",
    )


def q12(it: Work) -> Finding:
    stages, micro = it.q("stages"), it.q("micro_batches")
    bubble = bb.flush_bubble_share(stages, micro)
    stale = bb.stale_updates(stages, micro)
    model, rack = it.world.model("llama-3.1-405b"), it.world.cluster(RACK)
    kept = model.total_params * it.q("weight_bytes") / stages
    return it.done(
        it.near("idle share with a stop after each batch", bubble, "share", "bubble"),
        it.least("updates that the first stage misses without the stop", stale, "", it.q("any")),
        it.show("weights of a stage of Llama 3.1 405B in BF16", kept, "B"),
        it.show("versions kept without the stop, relative", stale, "times"),
        it.show("memory of a chip of the rack", rack.chip.hbm_bytes, "B"),
        because="The gradients of a batch are summed and the weights changed before the next forward. Without the "
        f"stop nothing is idle, but the first stage computes with weights that lack {stale:g} "
        f"{'update' if stale == 1 else 'updates'}, and keeps as many older versions for its backward; the stop costs "
        f"{format_percent(bubble)}, less with more micro-batches (C63).",
    )


def layer_reads(model: Model, context_len: float) -> list[float]:
    """Cache that each layer reads per token, with the rarer kinds spread evenly among the others [bytes]."""
    placed: list[tuple[float, float]] = []
    for group in sorted(model.layer_groups, key=lambda group: group.count):
        one = dataclasses.replace(model, layer_groups=(dataclasses.replace(group, count=1),))
        reads = float(one.kv_read_bytes(context_len))
        placed += [((index + 0.5) / group.count, reads) for index in range(group.count)]
    return [reads for _, reads in sorted(placed)]


def q14(it: Work) -> Finding:
    models = [it.world.model(name) for name in ("gemma-3-27b", "gpt-oss-120b", "llama-3.1-405b")]
    over = {
        model.name: bb.stage_imbalance(layer_reads(model, it.q("context_len")), int(it.q("stages")))
        for model in models
        if isinstance(model, Model)
    }
    found = [f"{times:.3g} in {name}" for name, times in over.items()]
    return it.done(
        *(
            it.least(
                f"cache read by the busiest of 4 stages over the mean, {name}",
                times,
                "times",
                it.q("uneven"),
                when=f"layers are as in {name}",
            )
            for name, times in over.items()
        ),
        it.show(
            "bytes between stages if layers attend to the outputs of all earlier stages", it.q("stages") / 2.0, "times"
        ),
        because="Stages have to be cut from equal layers: where window and global layers take turns the busiest stage "
        f"reads {', '.join(found)} times the mean; residuals over several layers cross more than one cut. Each such "
        "idea has to be fitted to the stages first, which slows research (C79).",
    )
