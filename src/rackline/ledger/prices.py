"""Segment 6: what price steps and ratios say of a model, and long contexts (C96 to C115)."""

from __future__ import annotations

from rackline.arch import Model
from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.ledger.work import FRONTIER, RACK, Finding, Work, attention_slope
from rackline.pricing import PriceSheet
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_count, format_percent, format_seconds

GEMINI, OPUS = "google-gemini-3.1-pro", "anthropic-claude-opus-4.6"


def output_over_input(sheet: PriceSheet) -> float:
    """Price of an output token over that of an input token."""
    tier = sheet.of_mode("standard")[0]
    return (tier.output_usd or 0.0) / (tier.input_usd or 1.0)


def c96(it: Work) -> Finding:
    low, high = it.world.sheet(GEMINI).of_mode("standard")[:2]
    output = (high.output_usd or 0.0) / (low.output_usd or 1.0)
    read = (high.input_usd or 0.0) / (low.input_usd or 1.0)
    return it.done(
        it.near("context of the step", high.above_context_len, "tokens", "context_len"),
        it.near("output above over below", output, "times", "rise", when="it is the price of output"),
        it.near("input above over below", read, "times", "rise", when="it is the price of input"),
        because=f"Above the step output costs {output:.3g} times as much, input {read:.3g} times.",
    )


def c97(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, kv = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, model.kv_bytes_per_token()
    star = bb.crossover_context(model.active_params, kv, flop, hbm)

    def cost(context: float) -> float:
        return bb.cost_floor_usd(model.active_params, context, kv, flop, hbm, 1.0)

    return it.done(
        it.show("bend of the frontier model on GB200 in FP4", star, "tokens"),
        it.identity("cost at half of it over that at none", cost(star / 2) / cost(0.0), 1.0, "times"),
        it.identity(
            "cost at twice of it over that at none", cost(it.q("twice") * star) / cost(0.0), it.q("twice"), "times"
        ),
        because="Flat, one bend, then a line, as long as attention's own arithmetic is left out (C111).",
    )


def c98(it: Work) -> Finding:
    longest, star = it.world.sheet(GEMINI).max_context_len or it.q("context_len"), it.q("context_len")
    return it.done(
        *(
            it.most(
                f"cost at {format_count(context)} tokens over that at the step",
                max(1.0, context / star),
                "times",
                it.q("rise"),
                when=f"contexts end at {format_count(context)} tokens",
            )
            for context in (it.q("middle_context"), longest)
        ),
        because=f"Half as much again pays for contexts up to {format_count(it.q('rise') * star)}; at "
        f"{format_count(longest)} dense attention costs {longest / star:.2g} times as much, which only a margin "
        "covers.",
    )


def c99(it: Work) -> Finding:
    chip, params, context = it.world.chip("h100-sxm"), it.q("params"), it.q("context_len")
    flop, hbm = chip.flop_per_s("bf16"), chip.hbm_bytes_per_s
    kv = bb.kv_bytes_per_token_from_crossover(params, context, flop, hbm)
    return it.done(
        it.identity(
            "context at which that cache crosses", bb.crossover_context(params, kv, flop, hbm), context, "tokens"
        ),
        *(
            it.identity(
                f"cache over arithmetic at batch {format_count(batch)}",
                bb.kv_fetch_s(batch, context, kv, hbm) / bb.compute_s(batch, params, flop),
                1.0,
                "times",
            )
            for batch in (1e3, 1e6)
        ),
        because="The batch cancels once weights are negligible; W over Φ is in bytes per multiply.",
    )


def c100(it: Work) -> Finding:
    params, context = it.q("params"), it.q("context_len")
    raw = 2.0 * it.q("ridge")  # FLOP per byte if a weight is one byte
    chips = (("h100-sxm", "fp8"), ("h100-sxm", "bf16"), ("b200-sxm", "fp4"), ("b200-sxm", "fp8"))
    ridges = {f"{raw:,.0f} FLOP/B, as was said": (raw, 1.0)} | {
        f"{chip.ridge_point(dtype):,.0f} FLOP/B ({chip.name} {dtype.upper()})": (
            chip.flop_per_s(dtype),
            chip.hbm_bytes_per_s,
        )
        for chip, dtype in ((it.world.chip(name), dtype) for name, dtype in chips)
    }
    return it.done(
        *(
            it.near(
                label, bb.kv_bytes_per_token_from_crossover(params, context, flop, hbm), "B/token", "kv_bytes_per_token"
            )
            for label, (flop, hbm) in ridges.items()
        ),
        because="The 300 counts multiplies per weight; bytes of cache need FLOP per byte, which depends on the data "
        "type.",
        units=True,
    )


def c101(it: Work) -> Finding:
    models = [it.world.model(name) for name in ("llama-3.1-70b", "qwen3-32b", "deepseek-v3")]
    kept = {
        model.name: (_full_cache(model) * it.q("element_bytes"), model.kv_bytes_per_token(it.q("element_bytes")))
        for model in models
        if isinstance(model, Model)
    }
    return it.done(
        *(
            row
            for name, (formula, held) in kept.items()
            for row in (
                it.identity(f"keys and values of {name}", formula, held, "B/token", when=f"the model is {name}"),
                it.show(f"what {name} keeps", held, "B/token"),
            )
        ),
        because="It counts elements of full keys and values, to be multiplied by bytes; MLA keeps a latent from which "
        "each head makes its own.",
    )


def _full_cache(model: Model) -> float:
    """Elements of the keys and values of all heads of all layers for one token."""
    kind = next(iter(model.attention_kinds().values()))
    if isinstance(kind, GroupedQueryAttention):
        return bb.kv_bytes_per_token(model.num_layers, kind.num_kv_heads, kind.head_dim, 1.0)
    width = float(getattr(kind, "v_head_dim", 0.0))  # each head of latent attention has keys and values of its own
    return bb.kv_bytes_per_token(model.num_layers, model.num_q_heads, width, 1.0)


def c102(it: Work) -> Finding:
    one, two = (bb.kv_bytes_per_token(it.q("layers"), it.q("heads"), it.q("head_dim"), width) for width in (1.0, 2.0))
    return it.done(
        *(
            it.near(f"{label}, against {said}", value, "B/token", name)
            for label, value in (("1 byte per element", one), ("BF16", two))
            for said, name in (("1,667", "said"), ("2 KB", "rounded"))
        ),
        because=f"It gives {one:,.0f} elements, {format_percent(one / it.q('said') - 1.0)} above 1,667, and bytes only "
        "at one byte per element.",
        units=True,
    )


def c103(it: Work) -> Finding:
    newest = ("nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "deepseek-v4-pro")
    names = (*newest, "qwen3.5-397b-a17b", "deepseek-v3", "llama-3.1-70b")
    kept = {name: it.world.model(name).kv_bytes_per_token(1.0) for name in names}
    low, high = min(kept, key=kept.__getitem__), max(kept, key=kept.__getitem__)
    return it.done(
        it.near(
            "one global cache for all layers, 8 bit",
            bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), 1.0),
            "B/token",
            "kv_bytes_per_token",
            when="one cache serves all layers, in 8 bits",
        ),
        *(
            it.near(f"{name}, 8 bit", held, "B/token", "kv_bytes_per_token", when=f"it is that of {name}, in 8 bits")
            for name, held in kept.items()
        ),
        because=f"Of these open models {low} keeps least ({format_bytes(kept[low])}: most of its layers have no "
        f"cache), {high} most ({format_bytes(kept[high])}).",
    )


def c105(it: Work) -> Finding:
    ratios = {name: output_over_input(it.world.sheet(name)) for name in (OPUS, GEMINI, "openai-gpt-5.4")}
    return it.done(
        *(it.near(name, ratio, "times", "ratio") for name, ratio in ratios.items()),
        because=f"These list prices are at {min(ratios.values()):.3g} to {max(ratios.values()):.3g}.",
    )


def c106(it: Work) -> Finding:
    chip, model = it.world.chip("h100-sxm"), it.world.model("llama-3.1-70b")
    flop = chip.flop_per_s("bf16")
    one, many = (bb.compute_s(it.q("batch_size"), model.active_params, flop, n) for n in (1.0, it.q("tokens")))
    hbm = chip.hbm_bytes_per_s
    memory = bb.memory_s(it.q("batch_size"), model.total_params, 2.0, 4096.0, model.kv_bytes_per_token(), hbm)
    return it.done(
        it.identity("arithmetic with 512 tokens over 1", many / one, it.q("tokens"), "times"),
        it.show("useful share of the arithmetic with 1 token", one / max(one, memory), "share"),
        it.least("with 512 tokens", many / max(many, memory), "share", 1.0),
        because="Weights and earlier cache are read once per pass, so more new tokens fill the arithmetic.",
    )


def c107(it: Work) -> Finding:
    ratios = {name: output_over_input(it.world.sheet(name)) for name in (OPUS, GEMINI)}
    whens = {name: f"output costs {ratio:.3g} times input, as at {name}" for name, ratio in ratios.items()}
    return it.done(
        *(
            row
            for name, ratio in ratios.items()
            for row in (
                it.near(f"{name}: tokens per pass at the crossing", ratio, "tokens", "ratio", when=whens[name]),
                it.near(f"{name}: MFU of decoding over prefill", 1.0 / ratio, "share", "mfu", when=whens[name]),
            )
        ),
        because="With equal margins the ratio of prices is that of times; it contradicts a bend at 200 thousand "
        "tokens (N46).",
    )


def c109(it: Work) -> Finding:
    tiers = {name: it.world.sheet(name).of_mode("standard")[0] for name in (OPUS, GEMINI)}
    return it.done(
        *(
            it.near(name, (tier.cached_input_usd or 0.0) / (tier.input_usd or 1.0), "times", "hit_over_base")
            for name, tier in tiers.items()
        ),
        *(
            it.least(
                f"{OPUS}: write of {write.name} over base", write.usd / (tiers[OPUS].input_usd or 1.0), "times", 1.0
            )
            for write in tiers[OPUS].cache_writes
        ),
        because="Reading a cache is cheaper than computing it again; writing pays for the place as well.",
    )


def c111(it: Work) -> Finding:
    heads, width = it.q("heads"), it.q("head_dim")
    made_up = {
        f"a model of 100 B with {layers:.0f} global {'layer' if layers == 1 else 'layers'}": (
            it.q("params"),
            bb.attention_flop_per_context_token(layers, heads, width, width),
        )
        for layers in (it.q("global_layers"), it.q("layers"))
    }
    models = [it.world.model(name) for name in ("llama-3.1-70b", "deepseek-v3")]
    known = {model.name: (model.active_params, attention_slope(model)) for model in models}
    equal = {
        name: float(bb.attention_equals_weights_context(params, slope))
        for name, (params, slope) in {**made_up, **known}.items()
    }
    low, high = min(equal, key=equal.__getitem__), max(equal, key=equal.__getitem__)
    return it.done(
        *(
            it.least(
                f"weights and attention are equal, {name}", context, "tokens", it.q("millions"), when=f"it is {name}"
            )
            for name, context in equal.items()
        ),
        because=f"It depends on how many layers see the whole context: equal at {format_count(equal[low])} tokens in "
        f"{low}, at {format_count(equal[high])} in {high}.",
    )


def c112(it: Work) -> Finding:
    ridge = it.world.chip("h100-sxm").ridge_point("bf16")
    kinds = {"llama-3.1-70b": "grouped-query", "deepseek-v3": "absorbed MLA"}
    models = [it.world.model(name) for name in kinds]
    per_byte = {model.name: attention_slope(model) / model.kv_bytes_per_token(2.0) for model in models}
    found = [f"{flop:.3g} in {name}" for name, flop in per_byte.items()]
    return it.done(
        *(
            it.most(
                f"{name}: slope of arithmetic over that of memory on H100",
                flop / ridge,
                "share",
                it.q("far_below"),
                when=f"attention is {kinds[name]}, as in {name}",
            )
            for name, flop in per_byte.items()
        ),
        because=f"Attention does {' and '.join(found)} FLOP for each byte of cache; the ridge is at {ridge:.3g}.",
    )


def c113(it: Work) -> Finding:
    model, machines = it.world.model(FRONTIER), (("a100-sxm-80gb", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "fp4"))
    active, kv = model.active_params, model.kv_bytes_per_token()
    short, long = it.q("short_context"), it.q("long_context")
    rates = {
        f"{chip.name} in {dtype.upper()}": (chip.flop_per_s(dtype), chip.hbm_bytes_per_s)
        for chip, dtype in ((it.world.chip(name), dtype) for name, dtype in machines)
    }

    def over_short(context: float, flop: float, hbm: float) -> float:
        cost, least = (bb.cost_floor_usd(active, tokens, kv, flop, hbm, 1.0) for tokens in (context, short))
        return cost / least

    stars = [f"{format_count(bb.crossover_context(active, kv, *rate))} on {at}" for at, rate in rates.items()]
    return it.done(
        *(
            row
            for at, when, rate in ((at, f"it is served on {at}", rate) for at, rate in rates.items())
            for row in (
                it.most(
                    f"a token at 200K over one at 8K on {at}",
                    over_short(long, *rate),
                    "times",
                    it.q("about_as_much"),
                    when=when,
                ),
                it.least(
                    f"one at 1 M over one at 8K on {at}",
                    over_short(it.q("beyond") * long, *rate),
                    "times",
                    it.q("much_more"),
                    when=when,
                ),
            )
        ),
        because="200 thousand is a balanced point where a token there costs little more than one at 8 thousand and "
        f"one at a million much more. The bend of the frontier model is at {', '.join(stars)}.",
    )


REACH = "bytes that a query reads of 262,144 tokens"
SLOPE = "slope of the bytes over context, both logarithmic"


def c114(it: Work) -> Finding:
    rack = it.world.cluster(RACK)
    room, per_s = rack.num_chips * rack.chip.hbm_bytes, rack.num_chips * rack.chip.hbm_bytes_per_s
    widths = {FRONTIER: 1.0, "deepseek-v3": 1.0, "llama-3.1-70b": 2.0}
    held = {
        name: it.q("context_len") * it.world.model(name).kv_bytes_per_token(width) for name, width in widths.items()
    }
    reach, slope = it.world.seen("sparse", REACH), it.world.seen("sparse", SLOPE)
    share = reach.measured / (it.q("reach_len") * it.q("entry_bytes"))
    share *= (it.q("context_len") / it.q("reach_len")) ** (slope.measured - 1.0)
    return it.done(
        *(
            row
            for name, kv in held.items()
            for row in (
                it.most(f"cache of {name}", kv, "B", room, when=f"the cache is that of {name}"),
                it.most(
                    f"to read all of it, {name}",
                    kv / per_s,
                    "s",
                    it.q("interval_s"),
                    when=f"the cache is that of {name}",
                ),
            )
        ),
        it.most(
            "tokens that attention reads of it which grows as the lab's did",
            share * it.q("context_len"),
            "tokens",
            it.q("today"),
        ),
        because=f"A rack has {format_bytes(room)} for weights and one such context, and a pass takes "
        f"{format_seconds(it.q('interval_s'))}. The lab's sparse attention read as the power {slope.measured:.3g} of "
        f"the context up to {format_count(it.q('reach_len'))} tokens; continued that far it reads "
        f"{format_percent(share)} of 100 million, less than dense attention at today's {format_count(it.q('today'))}, "
        "if quality allows (C115).",
    )


RECALL, TEXT = "right answers in recall: own block alone less dense", "loss on text: own block alone less dense"


def c115(it: Work) -> Finding:
    context = it.q("context_len")
    reads = bb.sparse_read_tokens(context)
    slope, recall, text = (it.world.seen("sparse", name) for name in (SLOPE, RECALL, TEXT))
    finding, going_on = "something far back has to be found", "text of 128 characters is continued"
    return it.done(
        it.show("saved at 100 M tokens", context / reads, "times"),
        it.near("power of the context with which reads grew in the lab", slope.measured, "", "root"),
        it.most("tokens read at 100 M against 200 K dense", reads, "tokens", it.q("crossover")),
        it.seen_most("right answers with its own block alone, less dense", recall, "", -it.q("worse"), when=finding),
        it.seen_least("loss with its own block alone, less dense [nats]", text, "", it.q("worse_nats"), when=going_on),
        because=f"A root reads {format_count(reads)} of 100 million tokens, and twice as many at four times the "
        f"context. In the lab a model that sees its own block alone gives {-100 * recall.measured:.0f} of 100 right "
        f"answers less where something has to be found; its loss on text differs by {text.measured:+.3f} nats "
        f"({text.low:+.3f} to {text.high:+.3f}).",
    )
