"""Segments 3 and 4: pipelines of racks, the memory of a chip, and the size of a domain (C53 to C78)."""

from __future__ import annotations

import itertools
import math

from rackline.arch import Model
from rackline.hardware import scale_out_path
from rackline.ledger.racks import MODEL, exchange_over_arithmetic, mixture, ranks_in_use, up_over_out
from rackline.ledger.work import HOPPER, RACK, Computed, Finding, Work
from rackline.parallel.exchange import ExpertRouting, dispatch_traffic
from rackline.serving import blackboard as bb
from rackline.serving.blackboard import ChipMemory
from rackline.units import format_bytes, format_count, format_seconds


def c53(it: Work) -> Finding:
    over, even, rack = exchange_over_arithmetic(it, it.q("stages")), it.q("even"), it.world.cluster(RACK)
    model = it.world.model(MODEL)
    out = (rack.scale_out or rack.scale_up).bytes_per_s_each_way
    # a ring over racks sends a chip's share of the gradients twice; its rack holds all parameters once
    gradients_s = 2.0 * it.q("gradient_bytes") * model.total_params / rack.scale_up.size / out
    step_s = 6.0 * model.active_params * it.q("step_tokens") / it.q("chips") / rack.chip.flop_per_s("fp8")
    label = "exchange over arithmetic"
    return it.done(
        it.most(f"{label}, experts in one rack", over.experts, "times", even),
        it.least(f"{label}, experts over two racks", over.experts_apart, "times", even),
        it.least(f"{label}, tensor parallelism over the chips of a rack", over.hidden, "times", even),
        it.most(f"{label}, pipeline over racks", over.layers, "times", even),
        it.most(f"{label}, data parallelism over racks, a step of its training", gradients_s / step_s, "times", even),
        because=f"What a layer of {MODEL} sends for a token, over the time of its arithmetic in FP8: experts fit one "
        f"rack and are {over.experts_apart:.3g} times over it in two; summing the results of cut experts takes "
        f"{over.hidden:.3g} times the arithmetic; stages and replicas send little beyond the rack.",
    )


def c54(it: Work) -> Finding:
    models = [it.world.model(name) for name in ("llama-3.1-405b", "gpt-3-175b", MODEL, "kimi-k2")]
    known = [model for model in models if isinstance(model, Model)]
    kinds: dict[bool, list[str]] = {}
    for model in known:
        kinds.setdefault(model.is_moe, []).append(str(model.num_layers))
    found = [f"{'mixtures' if moe else 'dense models'} {' and '.join(layers)}" for moe, layers in kinds.items()]
    return it.done(
        *(it.near(model.name, model.num_layers, "layers", "layers") for model in known),
        because=f"Of these, {', '.join(found)}.",
    )


def c55(it: Work) -> Finding:
    experts, layers, ratio = float(mixture(it).experts_per_token), it.q("layers"), it.q("ratio")
    ratios = {name: up_over_out(it, name) for name in (HOPPER, RACK)}
    gains = {name: bb.scale_up_over_scale_out_time(ratio, experts, layers) for name, ratio in ratios.items()}
    found = [f"{gains[name]:.3g} at a ratio of {ratio:.3g}" for name, ratio in ratios.items()]
    return it.done(
        it.least(
            "8 experts, 1 layer, ratio 8",
            bb.scale_up_over_scale_out_time(ratio, it.q("experts"), layers),
            "times",
            it.q("enough"),
            when=f"the network is {ratio:g} times slower, as was said",
        ),
        *(
            it.least(
                f"DeepSeek V3 on {name}, 1 layer",
                gain,
                "times",
                it.q("enough"),
                when=f"it is {ratios[name]:.3g} times slower, as on {name}",
            )
            for name, gain in gains.items()
        ),
        because=f"The ratio of bandwidths has to come from the machine: one layer of {experts:g} experts gives "
        f"{' and '.join(found)}.",
    )


def c56(it: Work) -> Finding:
    times = {name: bb.scale_up_over_scale_out_time(it.q("ratio"), it.q(name), 1.0) for name in ("few", "some", "many")}
    real = up_over_out(it, RACK)
    return it.done(
        *(
            row
            for name, gain in times.items()
            for row in (
                it.near(f"{it.q(name):.0f} experts", gain, "times", f"of_{name}"),
                it.least(f"{it.q(name):.0f} experts against one", gain, "times", it.q("enough")),
            )
        ),
        it.show(f"experts that one layer needs on {RACK}", real / 2.0, ""),
        because=f"That is at a ratio of {it.q('ratio'):g}; {RACK} has one of {real:.3g}.",
    )


def c57(it: Work) -> Finding:
    drawn = ExpertRouting(
        num_ranks=ranks_in_use(it), num_experts=mixture(it).num_experts, experts_per_token=int(it.q("drawn"))
    )
    real = ExpertRouting(
        num_ranks=ranks_in_use(it), num_experts=mixture(it).num_experts, experts_per_token=mixture(it).experts_per_token
    )
    return it.done(
        it.near(
            "GPUs that a token with 3 experts goes to",
            float(dispatch_traffic(drawn, 1.0, 1.0).sent[0].sum()),
            "chips",
            "copies",
        ),
        it.show(f"with {real.experts_per_token}", float(dispatch_traffic(real, 1.0, 1.0).sent[0].sum()), "chips"),
        because="A token is sent once to each GPU that holds one of its experts, a few fewer than it has experts.",
    )


def c58(it: Work) -> Finding:
    experts, layers = float(mixture(it).experts_per_token), it.q("layers")
    gains = {
        name: bb.scale_up_over_scale_out_time(up_over_out(it, name), experts, layers)
        for name in ("h800-8", HOPPER, RACK)
    }
    needed = max(1, *(math.ceil(layers / gain) for gain in gains.values()))
    return it.done(
        *(it.least(name, gain, "times", it.q("enough")) for name, gain in gains.items()),
        because="It depends on how much slower the network is than the links inside; on all of these it takes "
        f"{needed} {'layer' if needed == 1 else 'layers'} a stage.",
    )


def c59(it: Work) -> Finding:
    """Bytes that all chips of a domain send for a token of one layer, and the time beside that of its arithmetic."""
    over, even = exchange_over_arithmetic(it, it.q("stages")), it.q("even")
    label = "exchange over arithmetic, cut along"
    return it.done(
        it.most(f"{label} layers", over.layers, "times", even),
        it.most(f"{label} experts", over.experts, "times", even),
        it.least(f"{label} hidden width (d_ff)", over.hidden, "times", even),
        it.least(f"{label} width (d_model)", over.width, "times", even),
        because=f"Bytes that {ranks_in_use(it)} chips send for a token of a layer of DeepSeek V3 in FP8, over the time "
        "of its arithmetic. A cut through a width sums all results over all chips, one along layers or experts moves a "
        "token a few times.",
    )


def c60(it: Work) -> Finding:
    stages, rack = it.q("stages"), it.world.cluster(RACK)
    chips = float(rack.num_chips)
    one = bb.chip_memory(it.q("total_params"), 1.0, 0.0, 0.0, 0.0, chips, 1.0).weights_bytes
    four = bb.chip_memory(it.q("total_params"), 1.0, 0.0, 0.0, 0.0, chips, stages).weights_bytes
    whole = bb.weight_fetch_s(it.q("total_params"), 1.0, rack.chip.hbm_bytes_per_s, chips)
    staged = stages * bb.weight_fetch_s(it.q("total_params") / stages, 1.0, rack.chip.hbm_bytes_per_s, chips)
    return it.done(
        it.near("weights per chip with 4 stages over 1", four / one, "share", "share"),
        it.identity("reads of one token through all stages", staged, whole, "s"),
        because="Each stage reads its share in turn, so the time of a token is the sum and the memory a share.",
    )


def c61(it: Work) -> Finding:
    step = bb.ring_step(it.q("pass_s"), it.q("stages"), 1.0, it.q("batch_size"))
    return it.done(
        it.near("idle share with one batch in flight", step.idle_share, "share", "idle"),
        because="One batch is in one stage at a time.",
    )


def c62(it: Work) -> Finding:
    stages, pass_s, batch = it.q("stages"), it.q("pass_s"), it.q("batch_size")
    free = bb.ring_step(pass_s, stages, stages, batch, 0.0).token_s / pass_s
    hop = it.q("hop_s")
    slow = bb.ring_step(pass_s, stages, stages, batch, hop).token_s / pass_s
    label = f"hops of {format_seconds(hop)}"
    return it.done(
        it.identity("time per token over one rack, free hops", free, 1.0, "times", when="hops take no time"),
        it.near(f"time per token over one rack, {label}", slow, "times", "neutral", when=f"there are {label}"),
        because="With as many micro-batches as stages none is idle; what the hops take is added (C74).",
    )


def c63(it: Work) -> Finding:
    return it.done(
        it.near(
            "4 stages, 4 micro-batches", bb.flush_bubble_share(it.q("stages"), it.q("micro_batches")), "share", "bubble"
        ),
        it.show("4 stages, 32 micro-batches", bb.flush_bubble_share(it.q("stages"), 32.0), "share"),
        because="More micro-batches shrink the bubble of a flushed pipeline; only other schedules remove it.",
    )


def c65(it: Work) -> Finding:
    rooms = {
        on.name: on.num_chips * on.chip.hbm_bytes for on in [it.world.cluster(name) for name in (RACK, "gb300-nvl72")]
    }
    needed = float(bb.chip_memory(it.q("params"), 1.0, 0.0, 0.0, 0.0, 1.0).weights_bytes)
    return it.done(
        *(
            it.least(f"many tens of terabytes on {name}", room, "B", it.q("many_tens_bytes"))
            for name, room in rooms.items()
        ),
        it.near("the weights of 1 T parameters at one byte", needed, "B", "needed_bytes"),
        it.most("their room in one rack", needed, "B", rooms[RACK]),
        because=f"A rack holds {format_bytes(rooms[RACK])}; the conclusion needs no more than {format_bytes(needed)}.",
    )


def held(it: Work, stages: float, context_len: float | None = None) -> ChipMemory:
    """What one chip of the example holds."""
    return bb.chip_memory(
        it.q("total_params"),
        1.0,
        it.q("micro_batch"),
        it.q("context_len") if context_len is None else context_len,
        it.q("kv_bytes_per_token"),
        it.q("experts"),
        stages,
    )


def c66(it: Work) -> Finding:
    """HBM at prices of DRAM, over what making a superchip costs and over what renting it does."""
    chip, ddr, rack = it.world.chip("gb200"), it.world.tier("ddr5-host"), it.world.cluster(RACK)
    usd_per_byte = (ddr.usd_per_byte or 0.0) * it.q("hbm_over_ddr")
    hbm_usd = chip.hbm_bytes * usd_per_byte
    host_usd = it.q("host_bytes_per_chip") * (ddr.usd_per_byte or 0.0)
    rent = (rack.usd_per_chip_hour or 0.0) * it.q("life_s") / 3600.0
    made, paid = "it is the share of what making the chips costs", "it is the share of what clouds pay for the chips"
    return it.done(
        it.near(
            "HBM at twice the price of DDR5, of the parts of a GB200",
            hbm_usd * it.q("chips_per_board") / it.q("board_usd"),
            "share",
            "half",
            when=made,
        ),
        it.near(
            "HBM and host memory, of the rent of four years", (hbm_usd + host_usd) / rent, "share", "half", when=paid
        ),
        it.show("HBM of a chip", hbm_usd, "USD"),
        it.show("rent of four years", rent, "USD"),
        because="Parts of a GB200 superchip are put at 13,500 dollars (an analyst's estimate of June 2026), HBM at one "
        "to two times the price of server DDR5 (TrendForce, December 2025). Sales of phones and what clouds invest are "
        "surveyed by others, and no formula gives them.",
    )


def c67(it: Work) -> Finding:
    params, batch, context, kv = (
        it.q(name) for name in ("total_params", "batch_size", "context_len", "kv_bytes_per_token")
    )
    said = params + batch * context * kv
    return it.done(
        *(
            it.identity(label, float(bb.chip_memory(params, width, batch, context, kv, 1.0).total_bytes), said, "B")
            for label, width in (("1 byte a weight", 1.0), ("half a byte", 0.5))
        ),
        because="Parameters are bytes only at one byte each.",
        units=True,
    )


def c68(it: Work) -> Finding:
    stages, experts = it.q("stages"), it.q("experts")
    batch = stages * it.q("micro_batch")
    said = (it.q("total_params") + batch * it.q("context_len") * it.q("kv_bytes_per_token")) / (experts * stages)
    return it.done(
        it.identity("per chip", float(held(it, stages).total_bytes), said, "B"),
        it.most("which fits", float(held(it, stages).total_bytes), "B", it.world.cluster(RACK).chip.hbm_bytes),
        because="With the batch of all stages the formula is that of C70.",
    )


def c69(it: Work) -> Finding:
    stages = it.q("stages")
    idle = [bb.ring_step(it.q("pass_s"), stages, m, it.q("micro_batch")).idle_share for m in (stages - 1, stages)]
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    return it.done(
        it.identity("idle share with one micro-batch fewer", idle[0], 1.0 / stages, "share"),
        it.identity("with as many as stages", idle[1], 0.0, "share"),
        it.near("sequences of a micro-batch", balance, "sequences", "train"),
        because="As many micro-batches as stages keep every stage at work; with hops one more is needed.",
    )


def c70(it: Work) -> Finding:
    memory = {stages: held(it, stages) for stages in (1.0, 2.0, 4.0, it.q("most_stages"))}
    weights, cache = float(memory[1.0].weights_bytes), float(memory[1.0].kv_bytes)
    return it.done(
        *(
            row
            for stages, one in memory.items()
            for row in (
                it.identity(f"weights times stages, P = {stages:.0f}", float(one.weights_bytes) * stages, weights, "B"),
                it.identity(f"cache, P = {stages:.0f}", float(one.kv_bytes), cache, "B"),
            )
        ),
        because=f"The cache stays {format_bytes(cache)} a chip at any number of stages.",
    )


def c71(it: Work) -> Finding:
    contexts = (it.q("context_len"), it.q("short_context"))
    memory = {f"{format_count(context)} tokens": held(it, it.q("stages"), context) for context in contexts}
    return it.done(
        *(
            it.most(
                f"weights over cache with 2 stages, {label}",
                float(one.weights_bytes / one.kv_bytes),
                "times",
                1.0,
                when=f"contexts have {label}",
            )
            for label, one in memory.items()
        ),
        because="The cache grows with context and batch, the weights do not.",
    )


def c72(it: Work) -> Finding:
    return it.done(
        it.identity(
            "cache per chip with 8 stages over 1",
            float(held(it, it.q("stages")).kv_bytes),
            float(held(it, 1.0).kv_bytes),
            "B",
        ),
        because="P times the sequences on 1/P of the layers is exactly one.",
    )


def c73(it: Work) -> Finding:
    sizes = {"DeepSeek V3": it.world.model(MODEL).total_params, "5 T parameters": it.q("large_params")}
    return it.done(
        *(
            it.most(
                f"{label} in FP8 on {on.name}",
                math.ceil(params * it.q("weight_bytes") / (on.num_chips * on.chip.hbm_bytes)),
                "stages",
                it.q("most_stages"),
            )
            for on in [it.world.cluster(name) for name in (RACK, HOPPER)]
            for label, params in sizes.items()
        ),
        because="Stages are needed only for what does not fit into one domain.",
    )


def c74(it: Work) -> Finding:
    stages, batch = it.q("stages"), it.q("batch_size")
    step = bb.ring_step(it.q("pass_s"), stages, stages, batch, it.q("hop_s"))
    found = "A link carries few bytes of a hop for long"
    rack, model = it.world.cluster(RACK), it.world.model(MODEL)
    rows: list[Computed] = []
    if rack.scale_out is not None and isinstance(model, Model):
        path, sent = scale_out_path(rack.scale_out), batch * model.d_model * 2.0
        one, all_links = path.seconds(sent), path.seconds(sent / rack.num_chips)
        rows.append(it.near("2,000 rows of DeepSeek V3 over one link", one, "s", "hop_s", when="a hop uses one link"))
        rows.append(
            it.near("over the links of all chips", all_links, "s", "hop_s", when="a hop uses the links of all chips")
        )
        found = f"Over all links of a rack a hop takes {format_seconds(all_links)}, over one {format_seconds(one)}"
    return it.done(
        it.near("a token with four hops of 2.5 ms", step.token_s, "s", "token_s"),
        *rows,
        because=f"{found}; what is longer than that is software.",
    )


def c75(it: Work) -> Finding:
    few, many = (
        bb.ring_step(it.q("pass_s"), it.q(p), it.q(p), it.q("batch_size"), it.q("hop_s")).hop_s for p in ("low", "high")
    )
    return it.done(
        it.near("time between 8 stages over 2", many / few, "times", "growth"),
        because="A token needs every stage in turn.",
    )


def c76(it: Work) -> Finding:
    domains = {"hopper_s": it.world.cluster(HOPPER), "blackwell_s": it.world.cluster(RACK)}
    return it.done(
        *(
            it.near(
                on.name,
                bb.weight_fetch_s(it.q("total_bytes"), 1.0, on.chip.hbm_bytes_per_s, on.scale_up.size),
                "s",
                quoted,
            )
            for quoted, on in domains.items()
        ),
        because="All chips of the domain read at once; one token is in one stage at a time.",
    )


def c77(it: Work) -> Finding:
    chips = [it.world.chip(name) for name in ("a100-sxm-80gb", "h100-sxm", "b200-sxm", "gb300")]
    pairs = list(itertools.pairwise(chips))
    grown = [new.hbm_bytes_per_s / old.hbm_bytes_per_s for old, new in pairs]
    hopper, rack = it.world.cluster(HOPPER), it.world.cluster(RACK)
    domain = rack.scale_up.size / hopper.scale_up.size
    whole = rack.scale_up.size * rack.chip.hbm_bytes_per_s / (hopper.scale_up.size * hopper.chip.hbm_bytes_per_s)
    return it.done(
        *(
            row
            for (old, new), growth in zip(pairs, grown, strict=True)
            for row in (
                it.show(f"{old.name} to {new.name}", growth, "times"),
                it.true(f"{new.name} within 1.5 to 2", it.q("low") <= growth <= it.q("high")),
            )
        ),
        it.near("domain, Hopper to Blackwell", domain, "times", "domain"),
        it.show("both together", whole, "times"),
        because=f"The domain grew {domain:.3g} times and a chip by {min(grown):.2g} to {max(grown):.2g}; together "
        f"{whole:.3g} times from Hopper to Blackwell.",
    )


def c78(it: Work) -> Finding:
    params, domains = it.world.model(MODEL).total_params, [it.world.cluster(name) for name in (HOPPER, RACK)]
    eight, rack = (bb.weight_fetch_s(params, 1.0, on.chip.hbm_bytes_per_s, on.scale_up.size) for on in domains)
    return it.done(
        it.show(f"DeepSeek V3 in FP8 on {HOPPER}", eight, "s"),
        it.show(f"DeepSeek V3 in FP8 on {RACK}", rack, "s"),
        it.least("eight Hoppers over a rack", eight / rack, "times", it.q("slower")),
        because=f"Its floor is {format_seconds(eight)} on eight Hoppers, for any number of such boxes, and "
        f"{format_seconds(rack)} on a rack.",
    )
