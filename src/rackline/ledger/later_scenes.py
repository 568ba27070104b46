"""What the later chapters of the guided lecture show: over-training, prices and ciphers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rackline.arch import Model
from rackline.ledger import caches, ciphers, prices, training
from rackline.ledger.drawings import line_drawing, row_drawing, spread
from rackline.ledger.scenes import Scene, work
from rackline.ledger.work import World
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.report.axes import DAY
from rackline.scaling import (
    chinchilla_tokens,
    compute_optimal_of_params,
    equal_cost_ratio,
    flop_over_life,
    lifetime_tokens,
    loss,
    optimal_tokens_of_params,
    tokens_for_loss,
    train_flop,
)
from rackline.serving import blackboard as bb
from rackline.units import format_bytes, format_count, format_percent, format_rate, format_seconds, format_usd


def overtraining(world: World) -> Scene:
    """Tokens of a life, ratios of equal costs, and the training that is cheapest over life."""
    fleet, life, equal, exact, chance = (work(world, one) for one in ("C91", "C92", "C87", "C89", "C90"))
    days = spread(DAY, 365.0 * DAY, life.q("time_s"))
    sizes, at = spread(1e9, 1e13, exact.q("params")), exact.q("params")
    law, used = world.law("besiroglu"), exact.q("inference_tokens")
    third = equal.q("third")
    shares = spread(0.1, 1.0, third, count=61)
    per_param = 2.0 * used / exact.q("relative_mfu")
    best = training.exact_tokens(exact, "besiroglu", used)
    smaller = spread(at / 3.0, 4.0 * at, count=241)
    tokens_of = np.asarray(tokens_for_loss(law, smaller, loss(law, at, best)))
    fits = (tokens_of > 1e13) & (tokens_of < 1e16)  # elsewhere nobody trains
    order = np.argsort(tokens_of[fits])
    trained, params = tokens_of[fits][order], smaller[fits][order]
    in_all: NDArray[np.float64] = flop_over_life(params, trained, per_param)
    dearer = float(np.interp(used, trained, in_all) / in_all.min())
    chances = np.linspace(0.05, 1.0, 20)
    derated = np.asarray(optimal_tokens_of_params(law, at, per_param * chances))
    rule = {"20 a parameter": chinchilla_tokens(sizes)}
    by_law = compute_optimal_of_params(law, sizes).tokens
    even = chance.q("probability")
    half = float(optimal_tokens_of_params(law, at, per_param * even)) / best
    return Scene(
        drawings={
            "life": line_drawing(
                "Tokens that are given out",
                f"{format_count(life.q('tokens_per_s'))} tokens a second of one model, "
                f"{format_count(fleet.q('tokens_per_s'))} of a fleet",
                ("time in use", "seconds"),
                ("tokens", "count"),
                days,
                {
                    what: [lifetime_tokens(one.q("tokens_per_s"), float(span)) for span in days]
                    for what, one in (("one model", life), ("a whole fleet", fleet))
                },
            ),
            "optimal": line_drawing(
                "Tokens of training at least FLOP",
                "use left out",
                ("active parameters", "count"),
                ("tokens of training", "count"),
                sizes,
                {**rule, "Besiroglu's law": by_law},
            ),
            "over": line_drawing(
                "Tokens of training, with and without use",
                "one model, two months of use",
                ("active parameters", "count"),
                ("tokens of training", "count"),
                sizes,
                {"as many as in use": used, **rule},
            ),
            "ratio": line_drawing(
                "Tokens of pre-training for each token of a phase that costs as much",
                "pre-training takes 6 FLOP a parameter and token",
                ("efficiency of the phase over that of pre-training", "share"),
                ("tokens of pre-training for each", "number"),
                shares,
                {f"{k:g} FLOP a token": equal_cost_ratio(k, shares) for k in (2.0, equal.q("rl_flop"), 6.0)},
                log="y",
            ),
            "cost": line_drawing(
                "FLOP over life at equal quality",
                f"Besiroglu's law; {format_count(used)} tokens of use at a third of the efficiency",
                ("tokens of training", "count"),
                ("FLOP, at the efficiency of training", "power"),
                trained,
                {
                    "in all": in_all,
                    "training": train_flop(params, trained),
                    "use": per_param * params,
                },
            ),
            "chance": line_drawing(
                "Tokens of training by the chance that the model is used",
                f"Besiroglu's law, {format_count(at)} parameters",
                ("chance that the model is shipped", "share"),
                ("tokens over those of a sure use", "share"),
                chances,
                {"tokens": derated / derated[-1], "in proportion": chances},
                log="",
            ),
        },
        facts={
            "rate": format_count(life.q("tokens_per_s")),
            "size": format_count(at),
            "used": format_count(used),
            "rule": format_count(float(chinchilla_tokens(at))),
            "law": format_count(float(compute_optimal_of_params(law, at).tokens)),
            "other": f"{per_param / (6.0 * training.exact_tokens(exact, 'chinchilla', used)):.3g}",
            "part": format_percent(best / used),
            "dearer": f"{dearer:.3g}",
            "power": f"{math.log(half) / math.log(even):.2g}",
        },
    )


def price(world: World) -> Scene:
    """What prices say of a cache and of passes, and in which memory a cache is kept."""
    step, bend, open_models, useful, tiers = (work(world, one) for one in ("C98", "C100", "C103", "C106", "C121"))
    gemini, opus = world.sheet(prices.GEMINI), world.sheet(prices.OPUS).of_mode("standard")[0]
    star, rise = step.q("context_len"), step.q("rise")
    longest = gemini.max_context_len or star
    contexts = spread(1e3, longest, star, star * 1.001)
    bends = spread(1e3, 1e7, bend.q("context_len"))
    hopper, blackwell = world.chip("h100-sxm"), world.chip("b200-sxm")
    per_byte = {
        "600 FLOP a byte, as was said": 2.0 * bend.q("ridge"),
        "H100 in BF16": hopper.ridge_point("bf16"),
        "B200 in FP4": blackwell.ridge_point("fp4"),
    }

    def kept(flop_per_byte: float, context_len: Any) -> Any:
        return bb.kv_bytes_per_token_from_crossover(bend.q("params"), context_len, flop_per_byte, 1.0)

    known = {
        "Nemotron 3 Nano": "nemotron-3-nano-30b-a3b",
        "DeepSeek-V4 Pro": "deepseek-v4-pro",
        "Qwen3.5 397B": "qwen3.5-397b-a17b",
        "DeepSeek-V3": "deepseek-v3",
        "Llama 3.1 70B": "llama-3.1-70b",
    }
    ratio = prices.output_over_input(world.sheet(prices.OPUS))
    per_pass = spread(1.0, 64.0, count=49)
    tokens = spread(1.0, 512.0, count=61)
    llama, sequences = world.model("llama-3.1-70b"), useful.q("batch_size")
    compute = np.asarray(bb.compute_s(sequences, llama.active_params, hopper.flop_per_s("bf16"), tokens))
    read = bb.memory_s(sequences, llama.total_params, 2.0, 4096.0, llama.kv_bytes_per_token(), hopper.hbm_bytes_per_s)
    lines = dict(zip(("HBM", "DDR5", "NVMe flash", "dense flash", "disk"), caches.lines(tiers), strict=True))
    held = spread(1.0, 1e6, tiers.q("long_s"))
    timed = [write for write in opus.cache_writes if write.lifetime_s is not None]
    slope = storage_usd_per_token_s(
        timed[0].usd, timed[0].lifetime_s or 0.0, timed[-1].usd, timed[-1].lifetime_s or 0.0
    )
    paused = spread(60.0, 2e4, count=241)
    hit, miss = (1e6 * (one or math.nan) for one in (opus.cached_input_usd, opus.input_usd))
    disk, cheap = world.tier(caches.DISK), min(lines.items(), key=lambda one: float(one[1].usd(tiers.q("long_s"))))
    return Scene(
        drawings={
            "context": line_drawing(
                "Cost and price of an output token, that of a short context being 1",
                f"arithmetic and cache take equally long at {star:,.0f} tokens; price of Gemini 3.1 Pro",
                ("context length [tokens]", "count"),
                ("over that of a short context", "number"),
                contexts,
                {"cost": np.maximum(1.0, contexts / star), "price": np.where(contexts > star, rise, 1.0)},
            ),
            "cache": line_drawing(
                "Cache of a token by where the bend is",
                f"{format_count(bend.q('params'))} active parameters, a large batch",
                ("context at the bend [tokens]", "count"),
                ("cache of a token", "bytes"),
                bends,
                {name: kept(one, bends) for name, one in per_byte.items()},
            ),
            "models": row_drawing(
                "Cache of a token",
                "one byte an element",
                ("cache of a token", "bytes"),
                {"what prices say": kept(2.0 * bend.q("ridge"), bend.q("context_len"))}
                | {name: world.model(one).kv_bytes_per_token(1.0) for name, one in known.items()},
            ),
            "pass": line_drawing(
                "Time of a token by the tokens of a pass",
                "prices of Claude Opus 4.6 taken as costs; arithmetic is 1",
                ("tokens of a sequence in a pass", "count"),
                ("time of a token over its arithmetic", "number"),
                per_pass,
                {"memory": ratio / per_pass, "arithmetic": 1.0},
            ),
            "useful": line_drawing(
                "Share of the arithmetic that is used",
                f"Llama 3.1 70B in BF16 on H100s at peak rates, {sequences:.0f} sequences of 4,096 tokens",
                ("new tokens of a sequence in a pass", "count"),
                ("share of the arithmetic that is used", "share"),
                tokens,
                {"used": compute / np.maximum(compute, read)},
            ),
            "drains": row_drawing(
                "Time to read a whole device once",
                "capacity over bandwidth, of data sheets",
                ("time to read all of it", "seconds"),
                {name: one.drain_s or math.nan for name, one in lines.items()},
            ),
            "tiers": line_drawing(
                "Cost of keeping a cache and reading it once",
                f"{format_bytes(tiers.q('entry_bytes'))} of cache, devices at their price by the hour",
                ("time held", "seconds"),
                ("cost", "usd"),
                held,
                {name: one.usd(held) for name, one in lines.items()},
            ),
            "pause": line_drawing(
                "Price of a million input tokens that were sent before",
                "Claude Opus 4.6: what is kept costs by the hour what the two writes differ by",
                ("time since they were sent", "seconds"),
                ("price of a million tokens", "usd"),
                paused,
                {"kept, and read": hit + 1e6 * slope * paused, "recomputed": miss},
                log="x",
            ),
        },
        facts={
            "longest": f"{longest:,.0f}",
            "covers": f"{rise * star:,.0f}",
            "bf16": format_bytes(float(kept(per_byte["H100 in BF16"], bend.q("context_len")))),
            "fp4": format_bytes(float(kept(per_byte["B200 in FP4"], bend.q("context_len")))),
            "nano": format_bytes(world.model(known["Nemotron 3 Nano"]).kv_bytes_per_token(1.0)),
            "said": format_bytes(open_models.q("kv_bytes_per_token")),
            "ratio": f"{ratio:.3g}",
            "share": format_percent(1.0 / ratio),
            "capacity": format_bytes(disk.capacity_bytes),
            "rate": format_rate(disk.bytes_per_s),
            "nvme": format_seconds(world.tier(caches.FLASH).drain_s),
            "cheapest": cheap[0],
            "hit": format_usd(hit),
            "miss": format_usd(miss),
            **{f"write_{one.name}": format_usd(1e6 * one.usd) for one in timed},
        },
    )


def mixing(world: World) -> Scene:
    """How rounds and layers mix, what can be undone, and what reversible layers cost."""
    it, flips, feistel, probe, layers, trade = (
        work(world, one) for one in ("Q26", "C127", "C130", "Q27", "C132", "C133")
    )
    rounds = np.arange(1.0, 7.0)

    def depends(reads: NDArray[np.bool_]) -> list[float]:
        return [float((np.linalg.matrix_power(reads.astype(float), int(one)) > 0.0).mean()) for one in rounds]

    gemma = cast("Model", world.model("gemma-3-27b"))
    window = next(one.window for one in gemma.attention_kinds().values() if one.window)
    context = it.q("context_len")
    windows = np.unique(np.rint(spread(256.0, context, window, count=61)))
    last = int(flips.q("rounds"))
    counts = (1, last, *range(2, last))  # in the order in which the claim draws
    shares = dict(zip(counts, ciphers.flipped_shares(flips, counts), strict=True))
    tried = 1 << ciphers.BITS
    function: Callable[[Any], Any] = ciphers.rounds_of(int(feistel.q("rounds")))[0]
    found = function(np.arange(tried))
    _, firsts = np.unique(found, return_index=True)
    inputs = spread(1.0, tried, count=49)
    words, answers, hidden = ciphers.words_to_read(probe)
    steps = [1, 2, 4, 8, 16, 32, 64, 128, 200]
    read = {
        name: [bb.reading_accuracy(one, answers, num_bits=32, steps=count) for count in steps]
        for name, one in (("words", words), ("ciphertexts", hidden))
    }
    depth = np.array([2.0**power for power in range(2, 8)] + [layers.q("many")])
    depth.sort()
    once, again = train_flop(1.0, 1.0), train_flop(1.0, 1.0) + 2.0
    llama, chip = world.model("llama-3.1-70b"), world.chip("h100-sxm")
    lengths = spread(128.0, 131072.0, trade.q("context_len"), count=61)
    return Scene(
        drawings={
            "mixing": line_drawing(
                "Pairs of bytes of which one depends on the other",
                "16 bytes of AES: rows are shifted, columns are mixed",
                ("rounds", "count"),
                ("share of all pairs", "share"),
                rounds,
                {
                    "shifted and mixed": depends(ciphers.cipher_reads()),
                    "all pairs": 1.0,
                    "bytes replaced alone": depends(np.eye(16, dtype=bool)),
                },
                log="",
            ),
            "window": line_drawing(
                "Layers until the last token depends on the first",
                f"{context:,.0f} tokens, each layer with the same window",
                ("tokens that a layer sees", "count"),
                ("layers", "count"),
                windows,
                {"layers": [bb.layers_to_reach(context, float(one)) for one in windows]},
            ),
            "flips": line_drawing(
                "Output bits that one input bit flips",
                f"a Feistel cipher of 32 bits, mean of {flips.q('samples'):.0f} words",
                ("rounds", "count"),
                ("share of the output bits", "share"),
                sorted(shares),
                {"flipped": [shares[one] for one in sorted(shares)], "a coin for each": 0.5},
                log="",
            ),
            "taken": line_drawing(
                "Values that a round function takes",
                f"{ciphers.BITS} bits in and out; inputs tried in order",
                ("inputs tried", "count"),
                ("different values", "count"),
                inputs,
                {"values": [np.count_nonzero(firsts < one) for one in np.floor(inputs)], "one an input": inputs},
            ),
            "probe": line_drawing(
                "Right answers of a linear probe",
                f"{len(words):,} words of 32 bits, trained on half of them, asked of the others",
                ("steps of training", "count"),
                ("share of right answers", "share"),
                steps,
                {**read, "guessing": 0.5},
                log="x",
            ),
            "depth": line_drawing(
                "Outputs of layers that are stored for the backward pass",
                "one for each layer, or the two halves of the last",
                ("layers", "count"),
                ("outputs stored", "count"),
                depth,
                {
                    name: [bb.stored_activations(int(one), reversible) for one in depth]
                    for name, reversible in (("ordinary", False), ("reversible", True))
                },
            ),
            "again": row_drawing(
                "Arithmetic of a step of training",
                "of each parameter and token",
                ("FLOP", "number"),
                {"ordinary": once, "reversible": again},
                log="",
            ),
            "cache": line_drawing(
                "A context recomputed, or read from the cache",
                "Llama 3.1 70B in BF16 on one H100's rates",
                ("context length [tokens]", "count"),
                ("time", "seconds"),
                lengths,
                {
                    "recomputed": bb.compute_s(1.0, llama.active_params, chip.flop_per_s("bf16"), lengths),
                    "read": bb.kv_fetch_s(1.0, lengths, llama.kv_bytes_per_token(2.0), chip.hbm_bytes_per_s),
                },
            ),
        },
        facts={
            "context": f"{context:,.0f}",
            "window": f"{window:,.0f}",
            "layers": str(gemma.num_layers),
            "one": format_percent(shares[1]),
            "tried": f"{tried:,}",
            "words": format_percent(read["words"][-1]),
            "growth": f"{layers.q('many') / layers.q('few'):g}",
            "once": f"{once:g}",
            "more": f"{again - once:g}",
        },
    )
