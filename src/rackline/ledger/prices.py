"""Segment 6: what price steps and ratios say of a model, and where to keep a cache (C96 to C123)."""

from __future__ import annotations

import itertools

from rackline.arch import Model
from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.hardware import MemoryTier, hbm_of
from rackline.ledger.work import FRONTIER, RACK, Computed, Finding, Work, World, attention_slope
from rackline.pricing import PriceSheet
from rackline.pricing.cache import KeepingCost, envelope, keeping_cost, recompute_cost, tier_by_drain
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.pricing.prefixes import Repeats, bought_lifetimes, lifetime_cost
from rackline.serving import blackboard as bb
from rackline.simulation import Sessions
from rackline.simulation.reuse import SessionHits, session_hits
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
        it.near("output above over below", output, "times", "rise", when="output tokens are meant"),
        it.near("input above over below", read, "times", "rise", when="input tokens are meant"),
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
    rows: list[Computed] = []
    for name in ("llama-3.1-70b", "qwen3-32b", "deepseek-v3"):
        model = it.world.model(name)
        if isinstance(model, Model):
            formula = _full_cache(model) * it.q("element_bytes")
            kept = model.kv_bytes_per_token(it.q("element_bytes"))
            rows.append(
                it.identity(f"keys and values of {name}", formula, kept, "B/token", when=f"the model is {name}")
            )
            rows.append(it.show(f"what {name} keeps", kept, "B/token"))
    return it.done(
        *rows,
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
    shared = bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), 1.0)
    newest = ("nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "deepseek-v4-pro")
    names = (*newest, "qwen3.5-397b-a17b", "deepseek-v3", "llama-3.1-70b")
    kept = {name: it.world.model(name).kv_bytes_per_token(1.0) for name in names}
    low, high = min(kept, key=kept.__getitem__), max(kept, key=kept.__getitem__)
    return it.done(
        it.near(
            "one global cache for all layers, 8 bit",
            shared,
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
    equal: dict[str, float] = {}
    for layers in (it.q("global_layers"), it.q("layers")):
        slope = bb.attention_flop_per_context_token(layers, heads, width, width)
        name = f"a model of 100 B with {layers:.0f} global {'layer' if layers == 1 else 'layers'}"
        equal[name] = float(bb.attention_equals_weights_context(it.q("params"), slope))
    for name in ("llama-3.1-70b", "deepseek-v3"):
        model = it.world.model(name)
        equal[name] = float(bb.attention_equals_weights_context(model.active_params, attention_slope(model)))
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
    model = it.world.model(FRONTIER)
    active, kv = model.active_params, model.kv_bytes_per_token()
    short, long = it.q("short_context"), it.q("long_context")
    stars: list[str] = []
    rows: list[Computed] = []
    for name, dtype in (("a100-sxm-80gb", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "fp4")):
        chip = it.world.chip(name)
        flop, hbm, at = chip.flop_per_s(dtype), chip.hbm_bytes_per_s, f"{name} in {dtype.upper()}"
        star = bb.crossover_context(active, kv, flop, hbm)
        dearer = bb.cost_floor_usd(active, long, kv, flop, hbm, 1.0) / bb.cost_floor_usd(
            active, short, kv, flop, hbm, 1.0
        )
        when = f"it is served on {at}"
        rows.append(
            it.most(f"a token at 200K over one at 8K on {at}", dearer, "times", it.q("about_as_much"), when=when)
        )
        again = bb.cost_floor_usd(active, it.q("beyond") * long, kv, flop, hbm, 1.0)
        dear = again / bb.cost_floor_usd(active, short, kv, flop, hbm, 1.0)
        rows.append(it.least(f"one at 1 M over one at 8K on {at}", dear, "times", it.q("much_more"), when=when))
        stars.append(f"{format_count(star)} on {at}")
    return it.done(
        *rows,
        because="200 thousand is a balanced point where a token there costs little more than one at 8 thousand and "
        f"one at a million much more. The bend of the frontier model is at {', '.join(stars)}.",
    )


def c114(it: Work) -> Finding:
    rack = it.world.cluster(RACK)
    room, per_s = rack.num_chips * rack.chip.hbm_bytes, rack.num_chips * rack.chip.hbm_bytes_per_s
    widths = {FRONTIER: 1.0, "deepseek-v3": 1.0, "llama-3.1-70b": 2.0}
    held = {
        name: it.q("context_len") * it.world.model(name).kv_bytes_per_token(width) for name, width in widths.items()
    }
    return it.done(
        *(
            row
            for name, kv in held.items()
            for row in (
                it.most(
                    f"cache of {name} at {widths[name]:g} B per element",
                    kv,
                    "B",
                    room,
                    when=f"the cache is that of {name}",
                ),
                it.show("to read it with the whole rack", kv / per_s, "s"),
            )
        ),
        because=f"A rack has {format_bytes(room)} for weights and one such context.",
    )


def c115(it: Work) -> Finding:
    context = it.q("context_len")
    saved = context / bb.sparse_read_tokens(context)
    reads = bb.sparse_read_tokens(context)
    return it.done(
        it.show("saved at 100 M tokens", saved, "times"),
        it.most("tokens read at 100 M against 200 K dense", reads, "tokens", it.q("crossover")),
        it.true("yet the reads keep growing", bb.sparse_read_tokens(4 * context) > reads, by_definition=True),
        because=f"A root reads {format_count(reads)} of 100 million tokens, and twice as many at four times the "
        "context.",
    )


MODEL, CHIP = "llama-3.1-70b", "h100-sxm"
USD_PER_CHIP_HOUR = 2.0
TALKS = Sessions(turns=5, think_s=60.0, system_tokens=1024)
_RATE_PER_S, _MESSAGE_TOKENS, _ANSWER_TOKENS = 1.0, 300.0, 400.0


def talks_repeat() -> Repeats:
    """How conversations of five turns with pauses of a minute repeat their prompts."""

    def hits(**within: float) -> SessionHits:
        return session_hits(
            TALKS, rate_per_s=_RATE_PER_S, message_tokens=_MESSAGE_TOKENS, answer_tokens=_ANSWER_TOKENS, **within
        )

    return Repeats(
        found=lambda ttl_s: hits(ttl_s=ttl_s).hit_share,
        held_s=lambda ttl_s: hits(ttl_s=ttl_s).held_s,
        found_in=lambda tokens: hits(capacity_tokens=tokens).hit_share,
        input_len=hits().input_len,
    )


def talk_lines(world: World, tiers: tuple[str, ...], prompt_len: float) -> list[KeepingCost]:
    """Cost lines of a prompt in each tier, and of computing it again at the full rate of a chip.

    Args:
        tiers: of the catalogue.
        prompt_len: of the prompt [tokens].
    """
    model, chip = world.model(MODEL), world.chip(CHIP)
    seconds = bb.compute_s(1.0, model.active_params, chip.flop_per_s("bf16"), prompt_len)
    held = float(model.kv_bytes(prompt_len))
    again = recompute_cost(USD_PER_CHIP_HOUR / 3600.0 * seconds, seconds)
    return [*(keeping_cost(world.tier(name), held) for name in tiers), again]


FLASH, DISK, DDR = "nvme-4tb", "hdd-20tb", "ddr5-host"
BESIDE = (DDR, FLASH, "qlc-31tb", DISK)


def hbm(it: Work) -> MemoryTier:
    """Memory of a chip of the rack, at the rent of the chip."""
    rack = it.world.cluster(RACK)
    return hbm_of(rack.chip, rack.usd_per_chip_hour)


def lines(it: Work) -> list[KeepingCost]:
    """Cost lines of HBM, DDR, flash, dense flash and disk for the entry of the claim."""
    return [keeping_cost(tier, it.q("entry_bytes")) for tier in (hbm(it), *(it.world.tier(name) for name in BESIDE))]


def c110(it: Work) -> Finding:
    chip, model = it.world.chip("h100-sxm"), it.world.model("llama-3.1-70b")
    seconds = bb.compute_s(1.0, model.active_params, chip.flop_per_s("bf16"), it.q("tokens"))
    said = it.q("usd_per_hour") / 3600.0 * seconds
    cost = recompute_cost(said, seconds)
    return it.done(
        it.identity("10,000 tokens of Llama 70B at 2 dollars an hour", cost.retrieve_usd, said, "USD"),
        it.identity("held for nothing", cost.hold_usd_per_s, 0.0, "USD"),
        because="At the full rate of the chip; a real prefill takes a few times longer.",
    )


def c116(it: Work) -> Finding:
    tier = hbm(it)
    cost = keeping_cost(tier, it.q("entry_bytes"))
    said = it.q("entry_bytes") / tier.capacity_bytes * (tier.usd_per_hour or 0.0) / 3600.0 * it.q("hold_s")
    return it.done(
        it.identity("1 GB for 5 minutes in HBM", cost.hold_usd_per_s * it.q("hold_s"), said, "USD"),
        it.identity("brought back for", cost.retrieve_usd, 0.0, "USD"),
        because="What occupies the memory occupies that share of the chip, as no other sequence fits there.",
    )


def c117(it: Work) -> Finding:
    tier = it.world.tier(DDR)
    cost = keeping_cost(tier, it.q("entry_bytes"))
    per_s = (tier.usd_per_hour or 0.0) / 3600.0
    dear = keeping_cost(hbm(it), it.q("entry_bytes"))
    return it.done(
        it.identity(
            "1 GB for 5 minutes in DDR",
            cost.hold_usd_per_s * it.q("hold_s"),
            it.q("entry_bytes") / tier.capacity_bytes * per_s * it.q("hold_s"),
            "USD",
        ),
        it.identity("brought back for", cost.retrieve_usd, it.q("entry_bytes") / tier.bytes_per_s * per_s, "USD"),
        it.show("HBM over DDR, to hold", dear.hold_usd_per_s / cost.hold_usd_per_s, "times"),
        because="The device is rented by the hour, so its share of time is what reading costs.",
    )


def c118(it: Work) -> Finding:
    found = lines(it)
    names = ", ".join(f"{span.cost.name} from {format_seconds(span.from_s)}" for span in envelope(found))

    def brought_back(cheap: KeepingCost, dear: KeepingCost) -> Computed:
        label, usd = f"{cheap.name}, to bring back", cheap.retrieve_usd
        return it.least(label, usd, "USD", dear.retrieve_usd) if dear.retrieve_usd else it.show(label, usd, "USD")

    return it.done(
        *(
            row
            for dear, cheap in itertools.pairwise(found)
            for row in (
                it.most(
                    f"{cheap.name} over {dear.name}, to hold", cheap.hold_usd_per_s / dear.hold_usd_per_s, "times", 1.0
                ),
                brought_back(cheap, dear),
            )
        ),
        because=f"By the prices of the catalogue the cheapest are {names}.",
    )


def c119(it: Work) -> Finding:
    tier = it.world.sheet(OPUS).of_mode("standard")[0]
    others: list[str] = []
    rows: list[Computed] = []
    for write in tier.cache_writes:
        if write.lifetime_s == it.q("lifetime_s"):
            rows.append(it.near(f"write for {write.name}", write.usd * 1e6, "USD", "write_usd"))
        else:
            rows.append(it.show(f"write for {write.name}", write.usd * 1e6, "USD"))
            others.append(f"{write.name} is {write.usd / (tier.input_usd or 1.0):.3g} times the base price")
    timed = [write for write in tier.cache_writes if write.lifetime_s is not None]
    rows2: list[Computed] = []
    if len(timed) >= 2 and tier.input_usd and tier.cached_input_usd is not None:
        first, last = timed[0], timed[-1]
        slope = storage_usd_per_token_s(first.usd, first.lifetime_s or 0.0, last.usd, last.lifetime_s or 0.0)
        rows2.append(
            it.show("pause after which recomputing is cheaper", (tier.input_usd - tier.cached_input_usd) / slope, "s")
        )
        for bought in bought_lifetimes(tier, talks_repeat()):
            rows2.append(
                it.show(f"found of conversations within {format_seconds(bought.ttl_s)}", bought.hit_share, "share")
            )
            rows2.append(it.show(f"saved by the write for {bought.name}", bought.saving, "share"))
    return it.done(
        it.near("input", (tier.input_usd or 0.0) * 1e6, "USD", "input_usd"),
        *rows,
        *rows2,
        because=f"From the price list; not read out was that {' and '.join(others) or 'there is no other'}.",
    )


def c120(it: Work) -> Finding:
    found = [keeping_cost(tier, 1e9) for tier in (hbm(it), *(it.world.tier(name) for name in BESIDE))]
    drains: list[str] = []
    rows: list[Computed] = []
    for label, name, wanted in (("5 minutes", "short_s", "nvme"), ("1 hour", "long_s", "disk")):
        tier = tier_by_drain(found, it.q(name))
        rows.append(
            it.true(f"{label} is {wanted}: drain time says {tier.name}", tier.tier == wanted, when=f"{label} are meant")
        )
        drains.append(f"{label} is nearest to {tier.name}")
    repeats = talks_repeat()
    lines_of_talks = talk_lines(it.world, BESIDE, repeats.input_len)
    cheapest: list[str] = []
    rows2: list[Computed] = []
    for label, name, wanted in (("5 minutes", "short_s", "nvme"), ("1 hour", "long_s", "disk")):
        kept = lifetime_cost(lines_of_talks, repeats, repeats.input_len, it.q(name))
        kind = it.world.tier(kept.tier).tier
        when = f"{label} are the lifetime of conversations, by cost"
        rows2.append(
            it.true(f"{label} is {wanted}: cheapest for conversations is {kept.tier}", kind == wanted, when=when)
        )
        cheapest.append(f"{kept.tier} for {label}")
    disk = it.world.tier(DISK).drain_s
    return it.done(
        *rows,
        *rows2,
        because=f"By drain times {' and '.join(drains)}; a disk takes {format_seconds(disk)}. Prefixes of "
        f"conversations, each kept that long after its last use, cost least in {' and '.join(cheapest)}.",
    )


def c121(it: Work) -> Finding:
    found = lines(it)
    spans = envelope(found)
    costs: list[str] = []
    rows: list[Computed] = []
    for label, name in (("5 minutes", "short_s"), ("1 hour", "long_s")):
        by_rule = tier_by_drain(found, it.q(name))
        over = float(by_rule.usd(it.q(name))) / min(float(line.usd(it.q(name))) for line in found)
        what = f"cost of the rule's tier over the cheapest, {label} ({by_rule.name})"
        rows.append(it.most(what, over, "times", it.q("small_factor"), when=f"it is held for {label}"))
        costs.append(f"{over:.3g} times the least for {label}")
    repeats = talks_repeat()
    of_talks = talk_lines(it.world, BESIDE, repeats.input_len)
    rows2: list[Computed] = []
    for label, name in (("5 minutes", "short_s"), ("1 hour", "long_s")):
        ruled = tier_by_drain(of_talks, it.q(name))
        again = of_talks[-1]
        least, taken = (
            lifetime_cost(among, repeats, repeats.input_len, it.q(name)).usd_per_mtok_prompt
            for among in (of_talks, [ruled, again])
        )
        what = f"the same for all prompts of conversations, {label} ({ruled.name})"
        rows2.append(
            it.most(what, taken / least, "times", it.q("small_factor"), when=f"conversations are kept for {label}")
        )
    ends = ", ".join(f"{span.cost.name} from {format_seconds(span.from_s)}" for span in spans)
    return it.done(
        *rows,
        *rows2,
        because=f"The rule's tier costs {' and '.join(costs)} for one entry that is read once; by prices the cheapest "
        f"are {ends}. In all the prompts of conversations computing what is not found costs most, and the tier little.",
    )


def c122(it: Work) -> Finding:
    size = it.q("entry_bytes")
    return it.done(
        *(
            it.identity(tier.name, tier.held_share_s(size, tier.drain_s), tier.read_s(size), "s")
            for tier in (hbm(it), *(it.world.tier(name) for name in BESIDE))
        ),
        because="Held for the drain time an entry occupies the device as long as one read does, at any size.",
    )


def c123(it: Work) -> Finding:
    return it.done(
        it.near("HBM of a chip of the rack", hbm(it).drain_s, "s", "hbm_s"),
        *(
            it.near(name, it.world.tier(name).drain_s, "s", quoted)
            for name, quoted in ((DDR, "ddr_s"), (FLASH, "flash_s"), ("qlc-31tb", "disk_s"), (DISK, "disk_s"))
        ),
        because=f"A flash drive takes {format_seconds(it.world.tier(FLASH).drain_s)}, a dense one "
        f"{format_seconds(it.world.tier('qlc-31tb').drain_s)} and a disk "
        f"{format_seconds(it.world.tier(DISK).drain_s)}.",
    )
