"""Segment 6, second half: in which memory a cache is kept, and for how long (C110, C116 to C123)."""

from __future__ import annotations

import itertools

from rackline.hardware import MemoryTier, hbm_of
from rackline.ledger.prices import OPUS
from rackline.ledger.work import RACK, Computed, Finding, Work, World
from rackline.pricing.cache import KeepingCost, envelope, keeping_cost, recompute_cost, tier_by_drain
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.pricing.prefixes import Repeats, bought_lifetimes, lifetime_cost
from rackline.serving import blackboard as bb
from rackline.simulation import Sessions
from rackline.simulation.reuse import SessionHits, session_hits
from rackline.units import format_seconds

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
