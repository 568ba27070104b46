"""Segment 6, first half: what price steps and ratios say of a model (C96 to C114)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rackline.arch import Model
from rackline.arch.attention import Attention
from rackline.ledger.parts import FRONTIER, RACK, attention_slope
from rackline.ledger.work import Finding, Work
from rackline.pricing import PriceSheet
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_count

GEMINI, OPUS = "google-gemini-3.1-pro", "anthropic-claude-opus-4.6"


def output_over_input(sheet: PriceSheet) -> float:
    """Price of an output token over that of an input token."""
    tier = sheet.of_mode("standard")[0]
    return (tier.output_usd or 0.0) / (tier.input_usd or 1.0)


def c96(it: Work) -> Finding:
    low, high = it.world.sheet(GEMINI).of_mode("standard")[:2]
    it.near("context of the step", high.above_context_len, "tokens", "context_len")
    it.near("output above over below", (high.output_usd or 0.0) / (low.output_usd or 1.0), "times", "rise")
    it.near("input above over below", (high.input_usd or 0.0) / (low.input_usd or 1.0), "times", "rise")
    return it.done("Output rises by half, input doubles.", only_if="output tokens are meant")


def c97(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, kv = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, model.kv_bytes_per_token()
    star = bb.crossover_context(model.active_params, kv, flop, hbm)

    def cost(context: float) -> float:
        return bb.cost_floor_usd(model.active_params, context, kv, flop, hbm, 1.0)

    it.show("bend of the frontier model on GB200 in FP4", star, "tokens")
    it.same("cost at half of it over that at none", cost(star / 2) / cost(0.0), 1.0)
    it.same("cost at twice of it over that at none", cost(it.q("twice") * star) / cost(0.0), it.q("twice"))
    return it.done("Flat, one bend, then a line, as long as attention's own arithmetic is left out (C111).")


def c98(it: Work) -> Finding:
    sheet = it.world.sheet(GEMINI)
    longest = sheet.max_context_len or it.q("context_len")
    star = it.q("context_len")
    for label, context in (("300K", 1.5 * star), ("the longest prompt it sells", longest)):
        it.most(f"cost at {label} over that at the step", max(1.0, context / star), "times", it.q("rise"))
    return it.done(
        f"Half as much again pays for contexts up to 300 thousand; at {format_count(longest)} dense attention costs "
        f"{longest / star:.2g} times as much.",
        only_if="contexts end at 300 thousand tokens, or the price has a margin",
    )


def c99(it: Work) -> Finding:
    chip = it.world.chip("h100-sxm")
    flop, hbm = chip.flop_per_s("bf16"), chip.hbm_bytes_per_s
    kv = bb.kv_bytes_per_token_from_crossover(it.q("params"), it.q("context_len"), flop, hbm)
    it.same(
        "context at which that cache crosses",
        bb.crossover_context(it.q("params"), kv, flop, hbm),
        it.q("context_len"),
        "tokens",
    )
    for batch in (1e3, 1e6):
        cache = bb.kv_fetch_s(batch, it.q("context_len"), kv, hbm)
        it.same(
            f"cache over arithmetic at batch {format_count(batch)}",
            cache / bb.compute_s(batch, it.q("params"), flop),
            1.0,
        )
    return it.done("The batch cancels once weights are negligible; W over Φ is in bytes per multiply.")


def c100(it: Work) -> Finding:
    params, context = it.q("params"), it.q("context_len")
    raw = 2.0 * it.q("ridge")  # FLOP per byte if a weight is one byte
    it.near(
        "600 FLOP per byte",
        bb.kv_bytes_per_token_from_crossover(params, context, raw, 1.0),
        "B/token",
        "kv_bytes_per_token",
    )
    for name, dtype in (("h100-sxm", "fp8"), ("h100-sxm", "bf16"), ("b200-sxm", "fp4"), ("b200-sxm", "fp8")):
        chip = it.world.chip(name)
        kv = bb.kv_bytes_per_token_from_crossover(params, context, chip.flop_per_s(dtype), chip.hbm_bytes_per_s)
        it.near(f"{name} {dtype.upper()}", kv, "B/token", "kv_bytes_per_token")
    return it.done(
        "The 300 counts multiplies per weight; bytes of cache need FLOP per byte, which depends on the data type.",
        units="FLOP per byte of about 600, an FP8 machine",
    )


def c101(it: Work) -> Finding:
    for name in ("llama-3.1-70b", "qwen3-32b", "deepseek-v3"):
        model = it.world.model(name)
        if isinstance(model, Model):
            kind = next(iter(model.attention_kinds().values()))
            formula = bb.kv_bytes_per_token(
                model.num_layers, model.num_kv_heads, _head_dim(kind), it.q("element_bytes")
            )
            it.same(name, formula, model.kv_bytes_per_token(it.q("element_bytes")), "B/token")
    return it.done(
        "It counts elements of grouped-query attention, to be multiplied by bytes; MLA keeps a latent instead.",
        only_if="keys and values are stored in full",
    )


def _head_dim(kind: Attention) -> float:
    return float(getattr(kind, "head_dim", getattr(kind, "v_head_dim", 128)))


def c102(it: Work) -> Finding:
    for label, width in (("1 byte an element", 1.0), ("BF16", 2.0)):
        value = bb.kv_bytes_per_token(it.q("layers"), it.q("heads"), it.q("head_dim"), width)
        it.near(label, value, "B/token", "said")
        it.near(f"{label}, against 2 KB", value, "B/token", "rounded")
    return it.done(
        "It gives 2,048 elements, 23 % above 1,667, and bytes only at one byte an element.",
        units="1 byte an element, rounded to 2 KB",
    )


def c103(it: Work) -> Finding:
    shared = bb.kv_bytes_per_token(1.0, it.q("heads"), it.q("head_dim"), 1.0)
    it.near("one global cache for all layers, 8 bit", shared, "B/token", "kv_bytes_per_token")
    kept: dict[str, float] = {}
    newest = ("nemotron-3-super-120b-a12b", "deepseek-v4-pro")
    for name in (*newest, "qwen3.5-397b-a17b", "deepseek-v3", "llama-3.1-70b"):
        kept[name] = it.world.model(name).kv_bytes_per_token(1.0)
        it.near(f"{name}, 8 bit", kept[name], "B/token", "kv_bytes_per_token")
    return it.done(
        f"The newest open models keep {format_bytes(min(kept.values()))} or a little more, by compression or by few "
        f"layers with a cache; those before them up to {format_bytes(max(kept.values()))}.",
        only_if="layers share a cache, compress it or mostly have none",
    )


def c105(it: Work) -> Finding:
    for name in (OPUS, GEMINI, "openai-gpt-5.4"):
        it.near(name, output_over_input(it.world.sheet(name)), "times", "ratio")
    return it.done("List prices of late 2026 are at five to eight.")


def c106(it: Work) -> Finding:
    chip, model = it.world.chip("h100-sxm"), it.world.model("llama-3.1-70b")
    flop = chip.flop_per_s("bf16")
    one, many = (bb.compute_s(it.q("batch_size"), model.active_params, flop, n) for n in (1.0, it.q("tokens")))
    it.same("arithmetic with 512 tokens over 1", many / one, it.q("tokens"), "times")
    hbm = chip.hbm_bytes_per_s
    memory = bb.memory_s(it.q("batch_size"), model.total_params, 2.0, 4096.0, model.kv_bytes_per_token(), hbm)
    it.show("useful share of the arithmetic with 1 token", one / max(one, memory), "%")
    it.least("with 512 tokens", many / max(many, memory), "%", 1.0)
    return it.done("Weights and earlier cache are read once per pass, so more new tokens fill the arithmetic.")


def c107(it: Work) -> Finding:
    for name in (OPUS, GEMINI):
        ratio = output_over_input(it.world.sheet(name))
        it.near(f"{name}: tokens per pass at the crossing", ratio, "tokens", "ratio")
        it.near(f"{name}: MFU of decoding over prefill", 1.0 / ratio, "%", "mfu")
    return it.done(
        "With equal margins the ratio of prices is that of times; it contradicts a bend at 200 thousand tokens (N46).",
        only_if="output costs five times input and both carry the same margin",
    )


def c109(it: Work) -> Finding:
    for name in (OPUS, GEMINI):
        tier = it.world.sheet(name).of_mode("standard")[0]
        it.near(name, (tier.cached_input_usd or 0.0) / (tier.input_usd or 1.0), "", "hit_over_base")
    opus = it.world.sheet(OPUS).of_mode("standard")[0]
    for write in opus.cache_writes:
        it.least(f"{OPUS}: write of {write.name} over base", write.usd / (opus.input_usd or 1.0), "", 1.0)
    return it.done("List prices have these ratios.")


def c111(it: Work) -> Finding:
    heads, width = it.q("heads"), it.q("head_dim")
    for label, layers in (("100 B with one global layer", it.q("global_layers")), ("100 B with 80", it.q("layers"))):
        slope = bb.attention_flop_per_context_token(layers, heads, width, width)
        it.least(label, bb.attention_equals_weights_context(it.q("params"), slope), "tokens", it.q("millions"))
    for name in ("llama-3.1-70b", "deepseek-v3"):
        model = it.world.model(name)
        context = bb.attention_equals_weights_context(model.active_params, attention_slope(model))
        it.least(name, context, "tokens", it.q("millions"))
    return it.done(
        "Attention equals the weights at millions of tokens only if a single layer sees the whole context; in models "
        "whose layers all do it is thousands.",
        only_if="few layers attend to the whole context",
    )


def c112(it: Work) -> Finding:
    ridge = it.world.chip("h100-sxm").ridge_point("bf16")
    for name in ("llama-3.1-70b", "deepseek-v3"):
        model = it.world.model(name)
        per_byte = attention_slope(model) / model.kv_bytes_per_token(2.0)
        it.most(f"{name}: slope of arithmetic over that of memory on H100", per_byte / ridge, "%", it.q("far_below"))
    return it.done(
        "Grouped-query attention does a few FLOP for each byte of cache; absorbed MLA does hundreds, near the ridge.",
        only_if="attention is grouped-query, not absorbed MLA",
    )


def c113(it: Work) -> Finding:
    model = it.world.model(FRONTIER)
    stars: list[float] = []
    for name, dtype in (("a100-sxm-80gb", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "fp4")):
        chip = it.world.chip(name)
        stars.append(
            bb.crossover_context(
                model.active_params, model.kv_bytes_per_token(), chip.flop_per_s(dtype), chip.hbm_bytes_per_s
            )
        )
        it.show(f"bend of the frontier model on {name} in {dtype.upper()}", stars[-1], "tokens")
    it.most("bend on B200 over A100", stars[-1] / stars[0], "times", it.q("growth"))
    return it.done("Arithmetic in narrower types has grown faster than bandwidth, so the bend has come down.")


def c114(it: Work) -> Finding:
    rack = it.world.cluster(RACK)
    room = rack.num_chips * rack.chip.hbm_bytes
    for name, width in ((FRONTIER, 1.0), ("deepseek-v3", 1.0), ("llama-3.1-70b", 2.0)):
        model = it.world.model(name)
        kv = it.q("context_len") * model.kv_bytes_per_token(width)
        it.most(f"cache of {name}", kv, "B", room)
        it.show("to read it with the whole rack", kv / (rack.num_chips * rack.chip.hbm_bytes_per_s), "s")
    return it.done(
        "One such context fits into a rack if the cache is small per token, and takes it whole.",
        only_if="the cache is compressed or shared",
    )


def c115(it: Work) -> Finding:
    context = it.q("context_len")
    saved = context / bb.sparse_read_tokens(context)
    it.show("saved at 100 M tokens", saved, "times")
    reads = bb.sparse_read_tokens(context)
    it.most("tokens read at 100 M against 200 K dense", reads, "tokens", it.q("crossover"))
    it.true("yet the reads keep growing", bool(np.isfinite(saved)) and bb.sparse_read_tokens(4 * context) > reads)
    return it.done(
        f"A root reads {format_count(reads)} of 100 million tokens, and twice as many at four times the context."
    )


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "C96": c96,
    "C97": c97,
    "C98": c98,
    "C99": c99,
    "C100": c100,
    "C101": c101,
    "C102": c102,
    "C103": c103,
    "C105": c105,
    "C106": c106,
    "C107": c107,
    "C109": c109,
    "C111": c111,
    "C112": c112,
    "C113": c113,
    "C114": c114,
    "C115": c115,
}
