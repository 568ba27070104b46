"""Segment 6, second half: in which memory a cache is kept, and for how long (C110, C116 to C123), and the scene of
the segment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rackline.hardware import MemoryTier, hbm_of
from rackline.ledger.drawings import line_drawing, row_drawing, spread
from rackline.ledger.prices import GEMINI, OPUS, output_over_input
from rackline.ledger.scenes import Scene, work
from rackline.ledger.work import RACK, Computed, Finding, Work, World
from rackline.pricing.cache import KeepingCost, envelope, keeping_cost, recompute_cost, tier_by_drain
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.pricing.prefixes import Repeats, bought_lifetimes, lifetime_cost
from rackline.pricing.sheet import CacheWrite
from rackline.serving import blackboard as bb
from rackline.simulation import Sessions
from rackline.simulation.reuse import SessionHits, session_hits
from rackline.units import format_bytes, format_count, format_percent, format_rate, format_seconds, format_usd

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
    said = [write for write in tier.cache_writes if write.lifetime_s == it.q("lifetime_s")]
    others = [
        f"{write.name} is {write.usd / (tier.input_usd or 1.0):.3g} times the base price"
        for write in tier.cache_writes
        if write not in said
    ]
    timed = [write for write in tier.cache_writes if write.lifetime_s is not None]
    rows: list[Computed] = []
    if len(timed) >= 2 and tier.input_usd and tier.cached_input_usd is not None:
        pause_s = (tier.input_usd - tier.cached_input_usd) / _slope(timed)
        rows = [
            it.show("pause after which recomputing is cheaper", pause_s, "s"),
            *(
                row
                for bought in bought_lifetimes(tier, talks_repeat())
                for row in (
                    it.show(f"found of conversations within {format_seconds(bought.ttl_s)}", bought.hit_share, "share"),
                    it.show(f"saved by the write for {bought.name}", bought.saving, "share"),
                )
            ),
        ]
    return it.done(
        it.near("input", (tier.input_usd or 0.0) * 1e6, "USD", "input_usd"),
        *(
            it.near(f"write for {write.name}", write.usd * 1e6, "USD", "write_usd")
            if write in said
            else it.show(f"write for {write.name}", write.usd * 1e6, "USD")
            for write in tier.cache_writes
        ),
        *rows,
        because=f"From the price list; not read out was that {' and '.join(others) or 'there is no other'}.",
    )


def _slope(timed: Sequence[CacheWrite]) -> float:
    """What a second of keeping a token costs by the writes of the shortest and the longest lifetime [USD]."""
    first, last = timed[0], timed[-1]
    return storage_usd_per_token_s(first.usd, first.lifetime_s or 0.0, last.usd, last.lifetime_s or 0.0)


MEANT = (("5 minutes", "short_s", "nvme"), ("1 hour", "long_s", "disk"))
"""Lifetimes that are sold, the claim's names of them, and the memory that the lecture guessed for each."""


def c120(it: Work) -> Finding:
    found = [keeping_cost(tier, 1e9) for tier in (hbm(it), *(it.world.tier(name) for name in BESIDE))]
    ruled = {label: tier_by_drain(found, it.q(name)) for label, name, _ in MEANT}
    repeats = talks_repeat()
    of_talks = talk_lines(it.world, BESIDE, repeats.input_len)
    kept = {label: lifetime_cost(of_talks, repeats, repeats.input_len, it.q(name)).tier for label, name, _ in MEANT}
    drains = [f"{label} is nearest to {tier.name}" for label, tier in ruled.items()]
    cheapest = [f"{tier} for {label}" for label, tier in kept.items()]
    return it.done(
        *(
            it.true(
                f"{label} is {wanted}: drain time says {ruled[label].name}",
                ruled[label].tier == wanted,
                when=f"{label} are meant",
            )
            for label, _, wanted in MEANT
        ),
        *(
            it.true(
                f"{label} is {wanted}: cheapest for conversations is {kept[label]}",
                it.world.tier(kept[label]).tier == wanted,
                when=f"{label} are the lifetime of conversations, by cost",
            )
            for label, _, wanted in MEANT
        ),
        because=f"By drain times {' and '.join(drains)}; a disk takes {format_seconds(it.world.tier(DISK).drain_s)}. "
        f"Prefixes of conversations, each kept that long after its last use, cost least in {' and '.join(cheapest)}.",
    )


def c121(it: Work) -> Finding:
    found = lines(it)
    repeats = talks_repeat()
    of_talks = talk_lines(it.world, BESIDE, repeats.input_len)
    alone = {
        label: (ruled.name, float(ruled.usd(it.q(name))) / min(float(line.usd(it.q(name))) for line in found))
        for label, name, ruled in ((label, name, tier_by_drain(found, it.q(name))) for label, name, _ in MEANT)
    }

    def in_talks(name: str) -> tuple[str, float]:
        ruled = tier_by_drain(of_talks, it.q(name))
        least, taken = (
            lifetime_cost(among, repeats, repeats.input_len, it.q(name)).usd_per_mtok_prompt
            for among in (of_talks, [ruled, of_talks[-1]])
        )
        return ruled.name, taken / least

    talks = {label: in_talks(name) for label, name, _ in MEANT}
    costs = [f"{over:.3g} times the least for {label}" for label, (_, over) in alone.items()]
    ends = ", ".join(f"{span.cost.name} from {format_seconds(span.from_s)}" for span in envelope(found))
    return it.done(
        *(
            it.most(
                f"cost of the rule's tier over the cheapest, {label} ({name})",
                over,
                "times",
                it.q("small_factor"),
                when=f"it is held for {label}",
            )
            for label, (name, over) in alone.items()
        ),
        *(
            it.most(
                f"the same for all prompts of conversations, {label} ({name})",
                over,
                "times",
                it.q("small_factor"),
                when=f"conversations are kept for {label}",
            )
            for label, (name, over) in talks.items()
        ),
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


def price(world: World) -> Scene:
    """What prices say of a cache and of passes, and in which memory a cache is kept."""
    step, bend, open_models, useful, tiers = (work(world, one) for one in ("C98", "C100", "C103", "C106", "C121"))
    gemini, opus = world.sheet(GEMINI), world.sheet(OPUS).of_mode("standard")[0]
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
    ratio = output_over_input(world.sheet(OPUS))
    per_pass = spread(1.0, 64.0, count=49)
    tokens = spread(1.0, 512.0, count=61)
    llama, sequences = world.model("llama-3.1-70b"), useful.q("batch_size")
    compute = np.asarray(bb.compute_s(sequences, llama.active_params, hopper.flop_per_s("bf16"), tokens))
    read = bb.memory_s(sequences, llama.total_params, 2.0, 4096.0, llama.kv_bytes_per_token(), hopper.hbm_bytes_per_s)
    kept_in = dict(zip(("HBM", "DDR5", "NVMe flash", "dense flash", "disk"), lines(tiers), strict=True))
    held = spread(1.0, 1e6, tiers.q("long_s"))
    timed = [write for write in opus.cache_writes if write.lifetime_s is not None]
    paused = spread(60.0, 2e4, count=241)
    hit, miss = (1e6 * (one or math.nan) for one in (opus.cached_input_usd, opus.input_usd))
    disk, cheap = world.tier(DISK), min(kept_in.items(), key=lambda one: float(one[1].usd(tiers.q("long_s"))))
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
                {name: one.drain_s or math.nan for name, one in kept_in.items()},
            ),
            "tiers": line_drawing(
                "Cost of keeping a cache and reading it once",
                f"{format_bytes(tiers.q('entry_bytes'))} of cache, devices at their price by the hour",
                ("time held", "seconds"),
                ("cost", "usd"),
                held,
                {name: one.usd(held) for name, one in kept_in.items()},
            ),
            "pause": line_drawing(
                "Price of a million input tokens that were sent before",
                "Claude Opus 4.6: what is kept costs by the hour what the two writes differ by",
                ("time since they were sent", "seconds"),
                ("price of a million tokens", "usd"),
                paused,
                {"kept, and read": hit + 1e6 * _slope(timed) * paused, "recomputed": miss},
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
            "nvme": format_seconds(world.tier(FLASH).drain_s),
            "cheapest": cheap[0],
            "hit": format_usd(hit),
            "miss": format_usd(miss),
            **{f"write_{one.name}": format_usd(1e6 * one.usd) for one in timed},
        },
    )
