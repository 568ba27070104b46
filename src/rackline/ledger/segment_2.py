"""Segment 2: a mixture of experts on racks (C39 to C51)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackline.arch import Model
from rackline.arch.ffn import MoeFfn
from rackline.catalog import names
from rackline.hardware import fat_tree, rack_bill, scale_up_cables, scale_up_path
from rackline.ledger.parts import HOPPER, RACK
from rackline.ledger.work import Finding, Work
from rackline.parallel.traffic import ExpertRouting, combine_traffic, dispatch_traffic
from rackline.units import format_bytes, format_percent

MODEL = "deepseek-v3"


def mixture(it: Work) -> MoeFfn:
    """The mixture layer of the model that the lecture speaks of."""
    model = it.world.model(MODEL)
    found = model.moe() if isinstance(model, Model) else None
    if found is None:
        raise TypeError(f"{MODEL} has no mixture layer")
    return found


def routing(it: Work, ranks: int, ranks_per_domain: int | None = None) -> ExpertRouting:
    """Its experts spread over ranks."""
    moe = mixture(it)
    return ExpertRouting(
        num_ranks=ranks,
        num_experts=moe.num_experts,
        experts_per_token=moe.experts_per_token,
        ranks_per_domain=ranks_per_domain,
    )


def ranks_in_use(it: Work) -> int:
    """The most chips of the rack over which the experts divide evenly."""
    chips, experts = it.world.cluster(RACK).scale_up.size, mixture(it).num_experts
    return max(count for count in range(1, chips + 1) if experts % count == 0)


def c39(it: Work) -> Finding:
    moe = mixture(it)
    it.near(
        "experts per active expert of DeepSeek V3", moe.num_experts / moe.experts_per_token, "", "experts_per_active"
    )
    it.show("active experts", moe.experts_per_token, "")
    return it.done("8 of 256 routed experts are active, which is 1 in 32; a shared one is always active.")


def c40(it: Work) -> Finding:
    rack, used = it.world.cluster(RACK), ranks_in_use(it)
    it.near("chips of the domain", rack.scale_up.size, "", "chips")
    it.near("chips over which 256 experts divide", used, "", "used")
    it.near("experts per chip", mixture(it).num_experts / used, "", "per_chip")
    return it.done(
        f"256 experts divide over {used} of {rack.scale_up.size} chips; the rest is left out or holds copies."
    )


def c41(it: Work) -> Finding:
    out = dispatch_traffic(routing(it, ranks_in_use(it)), 1.0, 1.0)
    total = float(out.sent.sum())
    it.near("same data type both ways", float(combine_traffic(out, 1.0).sent.sum()) / total, "times", "equal")
    mixed = float(combine_traffic(out, it.q("result_bytes_over_token_bytes")).sent.sum()) / total
    it.near("FP8 there and BF16 back", mixed, "times", "equal")
    return it.done(
        "The same copies travel both ways, but production sends FP8 and brings BF16 back.",
        only_if="both directions use one data type",
    )


def c42(it: Work) -> Finding:
    ranks = ranks_in_use(it)
    matrix = dispatch_traffic(routing(it, ranks), 1.0, 1.0).sent
    it.near("ranks with a router", ranks, "", "routers")
    it.true("every rank sends to every other", bool((matrix > 0.0).all()))
    return it.done("With a uniform router each pair of ranks exchanges tokens.")


def c43(it: Work) -> Finding:
    ranks = int(it.q("ranks"))
    one = dispatch_traffic(routing(it, ranks), 1.0, 1.0)
    two = dispatch_traffic(routing(it, ranks, ranks // 2), 1.0, 1.0)
    it.most("share that crosses in one rack", one.crossing_share, "%", 0.0)
    it.least("over two racks", two.crossing_share, "%", 0.1)
    level = it.world.cluster(RACK).scale_up
    it.least("chips of the domain", level.size, "", ranks)
    return it.done(
        f"In one domain nothing leaves it; over two {format_percent(two.crossing_share)} of the bytes take the slow "
        "links, which serving over several racks does all the same when it must."
    )


def c44(it: Work) -> Finding:
    bill = rack_bill(it.world.cluster(RACK))
    it.near("chips of a GB200 rack", bill.chips_per_rack, "", "chips")
    if bill.rack_power_w is not None:
        it.show("kW of it with host, network and cooling", bill.rack_power_w / 1e3, "kW")
    return it.done("A GB200 rack holds 72 packages.")


def c45(it: Work) -> Finding:
    path = scale_up_path(it.world.cluster(RACK).scale_up)
    it.near("links from chip to chip", path.hops, "", "hops")
    return it.done(f"The path is {', '.join(path.stops)}.")


def c46(it: Work) -> Finding:
    for name in (HOPPER, "h800-8", RACK):
        on = it.world.cluster(name)
        if on.scale_out is not None:
            it.near(name, on.scale_up.bytes_per_s_each_way / on.scale_out.bytes_per_s_each_way, "times", "ratio")
    return it.done("With 400 Gb/s a chip it is 9 on H100, less on H800 and 18 on GB200; 800 Gb/s halves that.")


def c47(it: Work) -> Finding:
    ranks = int(it.q("ranks"))
    one = dispatch_traffic(routing(it, ranks), 1.0, 1.0)
    two = dispatch_traffic(routing(it, ranks, ranks // 2), 1.0, 1.0)
    it.near("share that crosses between two racks", two.crossing_share, "%", "share")
    slower = it.q("slower")
    it.near(
        "slower than one rack, links 8 times slower",
        two.seconds(slower, 1.0) / one.seconds(slower, 1.0),
        "times",
        "slowdown",
    )
    return it.done("Half of the bytes over links that are eight times slower take four times as long.")


def c48(it: Work) -> Finding:
    level = it.world.cluster(RACK).scale_up
    half, whole = scale_up_cables(level, level.size // 2), scale_up_cables(level, level.size)
    if half and whole:
        it.show("links of the whole domain", whole, "")
        it.near("links of it over those of half of it", whole / half, "times", "doubling")
    tree = fat_tree(int(it.q("endpoints")), 64)
    it.show("switches that join 4,096 network cards", tree.num_switches, "")
    return it.done("Each chip brings its own links, so cables grow with the chips.")


def c49(it: Work) -> Finding:
    it.near("Hopper", it.world.cluster(HOPPER).scale_up.size, "", "hopper")
    blackwell = it.world.cluster(RACK).scale_up.size
    it.near("Blackwell", blackwell, "", "blackwell")
    for name in [name for name in names("clusters") if "rubin" in name or name.startswith("vr")]:
        size = it.world.cluster(name).scale_up.size
        it.near(name, size, "", "rubin")
        it.near(f"{name} over Blackwell", size / blackwell, "times", "growth")
    return it.done(
        "A Vera Rubin rack has 72 packages of two dies; 576 counts the dies of Rubin Ultra, 144 packages of four: "
        "twice Blackwell in packages, four times in dies.",
        only_if="dies are counted, and for Rubin Ultra",
    )


def c50(it: Work) -> Finding:
    hopper, rack = it.world.cluster(HOPPER), it.world.cluster(RACK)
    held, later = hopper.num_chips * hopper.chip.hbm_bytes, rack.num_chips * rack.chip.hbm_bytes
    it.near("8 Hopper, 640 GB being GiB", held, "B", "hopper_bytes")
    it.true("GB200 rack within 10 to 20 TB", it.q("low_bytes") <= later <= it.q("high_bytes"))
    it.show("GB200 rack", later, "B")
    it.most("5 T parameters at 1 byte", it.q("large_params"), "B", later)
    it.least("1 T parameters at 1 byte against 8 Hopper", it.q("gpt4_params"), "B", held)
    return it.done(f"{format_bytes(later)} hold 5 TB of weights with room for the cache; 8 Hopper do not hold 1 TB.")


def c51(it: Work) -> Finding:
    for name in (HOPPER, RACK):
        on = it.world.cluster(name)
        it.show(f"parameters that {name} holds in FP4", on.num_chips * on.chip.hbm_bytes / it.q("weight_bytes"), "")
    model = it.world.model(MODEL)
    rack = it.world.cluster(RACK)
    it.most("weights of DeepSeek V3 in FP8", model.total_params * 1.0, "B", rack.num_chips * rack.chip.hbm_bytes)
    return it.done("All parameters have to fit into one domain unless stages are pipelined over several (C60).")


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "C39": c39,
    "C40": c40,
    "C41": c41,
    "C42": c42,
    "C43": c43,
    "C44": c44,
    "C45": c45,
    "C46": c46,
    "C47": c47,
    "C48": c48,
    "C49": c49,
    "C50": c50,
    "C51": c51,
}
