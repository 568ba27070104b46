"""Segments 1 and 2: trains of batches, traffic, what sparsity is worth, and experts on racks (C24 to C51)."""

from __future__ import annotations

from dataclasses import dataclass

from rackline.arch import Model
from rackline.arch.kinds import MoeFfn
from rackline.catalog import names
from rackline.hardware import fat_tree, rack_bill, scale_up_cables, scale_up_path
from rackline.ledger.work import HBM_CHIPS, HOPPER, RACK, Finding, Work, ridge
from rackline.parallel.exchange import ExpertRouting, combine_traffic, dispatch_traffic
from rackline.scaling import dense_equivalent_params, routed_total_params
from rackline.serving import blackboard as bb
from rackline.serving.capacity import TrainLine, arrivals_to_fill_per_s, share_of_fleet
from rackline.units import format_bytes, format_count, format_percent, format_rate, format_seconds


def c24(it: Work) -> Finding:
    made = bb.tokens_per_s(it.q("batch_size"), it.q("interval_s")) * it.q("interval_s")
    return it.done(
        it.identity("tokens of one pass", made, it.q("batch_size"), "tokens"),
        because="In decoding one pass makes one token for each sequence, so the batch counts both.",
    )


def c25(it: Work) -> Finding:
    value = ridge(it.world.chip("gb200"), "fp4")
    small = bb.balance_batch_with_kv(value, 8e9, 1e9, 0.5, 0.0, 0.0)
    large = bb.balance_batch_with_kv(value, 8e9 * it.q("scale"), 1e9 * it.q("scale"), 0.5, 0.0, 0.0)
    return it.done(
        it.identity("balanced batch of a model 100 times as large", large, small, "sequences"),
        because="Size cancels as long as the cache is left out; on the chip it depends through R.",
    )


def c26(it: Work) -> Finding:
    drain = it.world.cluster(RACK).chip.drain_s
    return it.done(
        it.near("drain time of a chip of the rack", drain, "s", "interval_s"),
        because=f"The memory of a Blackwell chip is read once in {format_seconds(drain)}.",
    )


def c27(it: Work) -> Finding:
    interval, places = it.q("interval_s"), int(it.q("capacity"))
    return it.done(
        *(
            it.near(
                f"worst with {load:.3g} requests for each place",
                TrainLine(interval_s=interval, capacity=places, arrivals_per_s=load * places / interval).worst_s,
                "s",
                "worst_s",
                when=f"{load:.3g} requests come for each place",
            )
            for load in (it.q("light_load"), it.q("heavy_load"))
        ),
        it.show("mean while no train is full", bb.train_latency(interval).mean_s, "s"),
        because="Just missed and ridden is two intervals, one and a half on average; once trains are full the wait "
        "grows.",
    )


def c28(it: Work) -> Finding:
    drains = {name: it.world.chip(name).drain_s for name in HBM_CHIPS}
    low, high = min(drains.values()), max(drains.values())
    return it.done(
        *(it.near(name, seconds, "s", "interval_s") for name, seconds in drains.items()),
        because=f"Reading the whole memory takes {format_seconds(low)} to {format_seconds(high)}, by chip.",
    )


def c29(it: Work) -> Finding:
    said, rubin = bb.hbm_drain_s(it.q("hbm_bytes"), it.q("hbm_bytes_per_s")), it.world.chip("rubin")
    return it.done(
        it.near("288 GB at 20 TB/s", said, "s", "interval_s"),
        it.near("Rubin in the catalogue", rubin.drain_s, "s", "interval_s"),
        because=f"The catalogue's Rubin reads {format_bytes(rubin.hbm_bytes)} at {format_rate(rubin.hbm_bytes_per_s)}.",
    )


def c30(it: Work) -> Finding:
    rubin = bb.hbm_drain_s(it.q("hbm_bytes"), it.q("hbm_bytes_per_s"))
    reads = {name: it.q("interval_s") / it.world.chip(name).drain_s for name in ("rubin", "h100-sxm", "gb200", "gb300")}
    low, high = min(reads, key=reads.__getitem__), max(reads, key=reads.__getitem__)
    return it.done(
        it.near(f"full reads in 30 ms at {format_seconds(rubin)} each", it.q("interval_s") / rubin, "times", "reads"),
        *(it.near(f"on {name}", value, "times", "reads") for name, value in reads.items()),
        because=f"In 30 ms the memory is read {reads[low]:.3g} times on {low}, {reads[high]:.3g} times on {high}.",
    )


def c31(it: Work) -> Finding:
    places = it.q("capacity")
    needed = arrivals_to_fill_per_s(places, it.q("time_s"))
    own = arrivals_to_fill_per_s(places, it.q("output_len") * it.world.cluster(RACK).chip.drain_s)
    fleet = it.q("fleet_tokens_per_s") / it.q("output_len")
    return it.done(
        it.show("arrivals that fill 2,000 places in 100 ms", needed, "requests/s"),
        it.show("arrivals that keep one system full with answers of 500 tokens", own, "requests/s"),
        it.show("arrivals of a fleet of 100 M tokens/s", fleet, "requests/s"),
        *(
            it.most(
                f"time to fill 2,000 places from {label}", places / arrivals, "s", it.q("time_s"), when=f"it is {label}"
            )
            for label, arrivals in (
                ("one system's own share of the traffic", own),
                ("all traffic of that fleet", fleet),
            )
        ),
        because=f"A place is kept for a whole answer, so {format_count(own)} requests a second keep a system full, and "
        f"from empty they take {format_seconds(places / own)} to fill it; 100 ms take {format_count(needed)} a second.",
    )


def c32(it: Work) -> Finding:
    passes = {
        "1/64 s": 1.0 / it.q("passes_per_s"),
        "20 ms": it.q("interval_s"),
        "15 ms": it.q("short_s"),
        "as long as a Blackwell chip reads its memory": it.world.cluster(RACK).chip.drain_s,
    }
    return it.done(
        *(
            it.near(
                f"with passes of {label}",
                bb.tokens_per_s(it.q("batch_size"), pass_s),
                "tokens/s",
                "tokens_per_s",
                when=f"a pass takes {label}",
            )
            for label, pass_s in passes.items()
        ),
        because="64 passes a second mean 15.6 ms each.",
    )


def c33(it: Work) -> Finding:
    month, later = (it.q(name) / it.q("month_s") for name in ("month_tokens", "later_month_tokens"))
    fleets = {
        "100 M tokens/s": it.q("low_fleet_tokens_per_s"),
        "980 T tokens a month": month,
        "1.3 Q tokens a month": later,
    }
    return it.done(
        *(
            it.near(
                f"systems for {label}",
                1.0 / share_of_fleet(it.q("system_tokens_per_s"), fleet),
                "systems",
                "systems",
                when=f"the traffic is {label}",
            )
            for label, fleet in fleets.items()
        ),
        because=f"Google's published monthly tokens are {format_count(month)} and later {format_count(later)} a "
        "second, prompts included.",
    )


def c34(it: Work) -> Finding:
    size = dense_equivalent_params(it.world.routed("clark-s-base"), it.q("active_params"), it.q("num_experts"))
    return it.done(
        it.near("dense size by the published fit", size, "parameters", "dense_params"),
        because=f"The fit of the paper's table gives {format_count(size)} for what was read off its figure.",
    )


def c35(it: Work) -> Finding:
    law, params, routed = it.world.routed("clark-s-base"), it.q("active_params"), it.q("routed_share")
    counted, published = "all parameters are those of experts", "experts stand in every other layer, as in the paper"
    experts = it.q("num_experts")
    whole, total = (routed_total_params(params, experts, share) / params for share in (1.0, routed))
    most = dense_equivalent_params(law, params, 1e9) / params
    return it.done(
        *(
            it.near(
                f"worth of {number:.0f} experts",
                dense_equivalent_params(law, params, number) / params,
                "times",
                name,
                when=f"{number:.0f} experts are meant",
            )
            for number, name in ((experts, "gain"), (it.q("guessed_experts"), "guessed_gain"))
        ),
        it.identity("all parameters, were they all those of experts", whole, experts, "times", when=counted),
        it.near("all parameters, with every other layer routed", total, "times", "num_experts", when=published),
        it.show("worth of any number of experts", most, "times"),
        because=f"64 is the number of experts: with every other layer routed the model has {total:.3g} times the "
        f"parameters. The law bends at about {law.experts_max:.0f} experts; no number of them is worth more than "
        f"{most:.2g} times.",
    )


def c36(it: Work) -> Finding:
    law, params, step = it.world.routed("clark-s-base"), it.q("active_params"), it.q("step")
    totals = [routed_total_params(params, step**n, it.q("routed_share")) / params for n in (1, 2)]
    return it.done(
        *(
            it.near(
                f"worth of {experts:.0f} experts",
                dense_equivalent_params(law, params, experts) / params,
                "times",
                name,
                when="experts are counted",
            )
            for experts, name in ((step, "first"), (step * step, "second"))
        ),
        it.near("all parameters with 8 experts", totals[0], "times", "step", when="parameters are counted"),
        it.near("and with 64 over 8", totals[1] / totals[0], "times", "step", when="parameters are counted"),
        because=f"Eight times the experts are about a doubling; they are {totals[0]:.3g} times the parameters at first "
        f"and {totals[1] / totals[0]:.3g} times then, because only every other layer is routed.",
    )


def c37(it: Work) -> Finding:
    chip, rack, active = it.world.chip("gb200"), it.world.cluster(RACK), it.q("active_params")
    low, high, value, flop = it.q("low"), it.q("high"), ridge(chip, "fp4"), chip.flop_per_s("fp4")

    def usd(ratio: float, batch: float) -> float:
        seconds = bb.pass_s(batch, ratio * active, active, 0.5, 0.0, 0.0, flop, chip.hbm_bytes_per_s)
        return bb.cost_per_token_usd(batch, seconds, 1.0)

    few, many = bb.balance_batch(value, low), bb.balance_batch(value, high)
    held = float(bb.chip_memory(high * active, 0.5, 0.0, 0.0, 0.0, float(rack.num_chips)).weights_bytes)
    served = it.q("fleet_tokens_per_s") * rack.chip.drain_s  # sequences that such a fleet serves at once
    return it.done(
        it.most(
            f"cost of a token, {high:.0f} times over {low:.0f} times",
            usd(high, many) / usd(low, few),
            "times",
            it.q("dearer"),
            when="users fill the larger batch",
        ),
        it.most(
            "the same in the smaller batch",
            usd(high, few) / usd(low, few),
            "times",
            it.q("dearer"),
            when="no more users come",
        ),
        it.most("the larger batch, of what a fleet of 100 M tokens/s serves at once", many / served, "share", 1.0),
        it.most(f"weights per chip at {high:.0f} times", held, "B", rack.chip.hbm_bytes),
        because=f"The balanced batch grows from {format_count(few)} to {format_count(many)} sequences; until it is "
        "filled the extra weights are paid by fewer tokens.",
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeShares:
    """Time in which a chip sends what one layer of a token asks for, over that of the layer's arithmetic, by cut.

    Args:
        experts: experts on the chips of one domain [1].
        experts_apart: half of them in another domain, whose share takes the network [1].
        hidden: the layer's hidden width over the chips of the domain, by ring all-reduces [1].
        width: its width over them [1].
        layers: stages of layers, each in its own domain [1].
    """

    experts: float
    experts_apart: float
    hidden: float
    width: float
    layers: float


def exchange_over_arithmetic(it: Work, stages: float = 2.0) -> ExchangeShares:
    """Exchange over arithmetic of DeepSeek V3 on the rack, in FP8.

    Args:
        stages: of the pipeline [count].
    """
    rack, model, moe, ranks = it.world.cluster(RACK), it.world.model(MODEL), mixture(it), ranks_in_use(it)
    if not isinstance(model, Model):
        raise TypeError(f"{MODEL} has no layers")
    near, far = (dispatch_traffic(routing(it, ranks, per), 1.0, 1.0) for per in (None, ranks // 2))
    copies, crossing = float(near.sent[0].sum()), float(far.crossing_share)
    token = 2.0 * model.d_model  # in BF16
    reduced = 2.0 * (ranks - 1)  # times that a ring all-reduce sends each element, summed over ranks
    gated = 2.0 * 2.0 * (moe.experts_per_token * moe.d_expert + moe.d_shared)  # gate and up in BF16
    up, out = rack.scale_up.bytes_per_s_each_way, (rack.scale_out or rack.scale_up).bytes_per_s_each_way
    per_layer = rack.chip.flop_per_s("fp8") * model.num_layers / float(model.flop_per_token(0.0))
    exchanged = 1.5 * token * copies  # FP8 out, BF16 back
    return ExchangeShares(
        experts=exchanged / up * per_layer,
        experts_apart=max(exchanged * crossing / out, exchanged * (1.0 - crossing) / up) * per_layer,
        hidden=token * reduced / up * per_layer,
        width=gated * reduced / up * per_layer,
        layers=token * (stages - 1.0) / model.num_layers / out * per_layer,
    )


def c39(it: Work) -> Finding:
    moe = mixture(it)
    over = moe.num_experts / moe.experts_per_token
    return it.done(
        it.near("experts per active expert of DeepSeek V3", over, "times", "experts_per_active"),
        because=f"{moe.experts_per_token} of {moe.num_experts} routed experts are active, which is 1 in {over:.3g}; "
        "shared ones are always active.",
    )


def c40(it: Work) -> Finding:
    rack, used = it.world.cluster(RACK), ranks_in_use(it)
    experts = mixture(it).num_experts
    return it.done(
        it.near("chips of the domain", rack.scale_up.size, "chips", "chips"),
        it.near(f"chips over which {experts} experts divide", used, "chips", "used"),
        it.near("experts per chip", experts / used, "", "per_chip"),
        because=f"{experts} experts divide over {used} of {rack.scale_up.size} chips; the rest is left out or holds "
        "copies.",
    )


def c41(it: Work) -> Finding:
    out = dispatch_traffic(routing(it, ranks_in_use(it)), 1.0, 1.0)
    total = float(out.sent.sum())
    equal = float(combine_traffic(out, 1.0).sent.sum()) / total
    mixed = float(combine_traffic(out, it.q("result_bytes_over_token_bytes")).sent.sum()) / total
    return it.done(
        it.identity("same data type both ways", equal, 1.0, "times", when="both directions use one data type"),
        it.near("FP8 there and BF16 back", mixed, "times", "equal", when="FP8 is sent and BF16 comes back"),
        because="The same copies travel both ways, but production sends FP8 and brings BF16 back.",
    )


def c42(it: Work) -> Finding:
    ranks = ranks_in_use(it)
    matrix = dispatch_traffic(routing(it, ranks), 1.0, 1.0).sent
    return it.done(
        it.near("ranks with a router", ranks, "chips", "routers"),
        it.true("every rank sends to every other", bool((matrix > 0.0).all()), by_definition=True),
        because="With a uniform router each pair of ranks exchanges tokens.",
    )


def c43(it: Work) -> Finding:
    ranks = int(it.q("ranks"))
    one = dispatch_traffic(routing(it, ranks), 1.0, 1.0)
    two = dispatch_traffic(routing(it, ranks, ranks // 2), 1.0, 1.0)
    level, over = it.world.cluster(RACK).scale_up, exchange_over_arithmetic(it)
    return it.done(
        it.identity("share that crosses in one rack", one.crossing_share, 0.0, "share"),
        it.least("chips of the domain", level.size, "chips", ranks),
        it.most("exchange over arithmetic, experts in one rack", over.experts, "times", it.q("even")),
        it.least("exchange over arithmetic, experts over two racks", over.experts_apart, "times", it.q("even")),
        because=f"In one domain nothing leaves it, and the exchange takes {over.experts:.3g} times the arithmetic of "
        f"{MODEL} in FP8. Over two {format_percent(two.crossing_share)} of the bytes take the slow links and "
        f"{over.experts_apart:.3g} times the arithmetic, which serving over several racks pays when it must.",
    )


def c44(it: Work) -> Finding:
    bill = rack_bill(it.world.cluster(RACK))
    return it.done(
        it.near("chips of a GB200 rack", bill.chips_per_rack, "chips", "chips"),
        *(
            (it.show("power of it with host, network and cooling", bill.rack_power_w, "W"),)
            if bill.rack_power_w is not None
            else ()
        ),
        because=f"A GB200 rack holds {bill.chips_per_rack:g} packages.",
    )


def c45(it: Work) -> Finding:
    path = scale_up_path(it.world.cluster(RACK).scale_up)
    return it.done(
        it.near("links from chip to chip", path.hops, "", "hops"), because=f"The path is {', '.join(path.stops)}."
    )


def c46(it: Work) -> Finding:
    joined = [it.world.cluster(name) for name in (HOPPER, "h800-8", RACK, "gb300-nvl72")]
    out = {on.name: on.scale_out.bytes_per_s_each_way for on in joined if on.scale_out is not None}
    networks = [f"{format_rate(rate)} on {name}" for name, rate in out.items()]
    return it.done(
        *(it.near(on.name, up_over_out(it, on.name), "times", "ratio") for on in joined if on.scale_out is not None),
        because=f"It follows from the network that a chip has beside the links: {', '.join(networks)}.",
    )


def c47(it: Work) -> Finding:
    ranks = int(it.q("ranks"))
    two = dispatch_traffic(routing(it, ranks, ranks // 2), 1.0, 1.0)
    slower = it.q("slower")
    times = two.seconds(slower, 1.0) / dispatch_traffic(routing(it, ranks), 1.0, 1.0).seconds(slower, 1.0)
    return it.done(
        it.near("share that crosses between two racks", two.crossing_share, "share", "share"),
        it.near(f"slower than one rack, links {slower:g} times slower", times, "times", "slowdown"),
        because=f"{format_percent(two.crossing_share)} of the bytes over links that are {slower:g} times slower take "
        f"{times:.3g} times as long.",
    )


def c48(it: Work) -> Finding:
    level = it.world.cluster(RACK).scale_up
    half, whole = scale_up_cables(level, level.size // 2), scale_up_cables(level, level.size)
    mesh = level.size * (level.size - 1) // 2
    tree = fat_tree(int(it.q("endpoints")), 64)
    pairs = it.q("endpoints") * (it.q("endpoints") - 1.0) / 2.0
    return it.done(
        *(
            (
                it.identity("links of the domain over those of half of it", whole / half, it.q("doubling"), "times"),
                it.least("links from each to each, over through switches", mesh / whole, "times", it.q("saves")),
            )
            if half and whole
            else ()
        ),
        it.least(
            "the same of 4,096 network cards, through a hierarchy", pairs / tree.num_cables, "times", it.q("saves")
        ),
        because=f"Each chip brings its own links, so {whole} grow with the chips; one from each to each would be "
        f"{format_count(mesh)} and grow with their square.",
    )


def c49(it: Work) -> Finding:
    hopper, blackwell = (it.world.cluster(name).scale_up.size for name in (HOPPER, RACK))
    rubin = [name for name in names("clusters") if "rubin" in name or name.startswith("vr")]
    sizes = {name: it.world.cluster(name).scale_up.size for name in rubin}
    packages = [f"{size} packages in {name}" for name, size in sizes.items()]
    return it.done(
        it.near("Hopper", hopper, "chips", "hopper"),
        it.near("Blackwell", blackwell, "chips", "blackwell"),
        *(
            row
            for name, size in sizes.items()
            for row in (
                it.near(name, size, "chips", "rubin"),
                it.near(f"{name} over Blackwell", size / blackwell, "times", "growth"),
            )
        ),
        because=f"The catalogue counts packages: {' and '.join(packages)}. Five hundred counts dies, four to a package "
        "of Rubin Ultra, and the fourfold growth is that over the dies of Vera Rubin, two to a package.",
    )


def c50(it: Work) -> Finding:
    hopper, rack = it.world.cluster(HOPPER), it.world.cluster(RACK)
    held, later = hopper.num_chips * hopper.chip.hbm_bytes, rack.num_chips * rack.chip.hbm_bytes
    return it.done(
        it.near("8 Hopper, 640 GB being GiB", held, "B", "hopper_bytes"),
        it.true("GB200 rack within 10 to 20 TB", it.q("low_bytes") <= later <= it.q("high_bytes")),
        it.show("GB200 rack", later, "B"),
        it.most("5 T parameters at 1 byte fit into it", it.q("large_params"), "B", later),
        it.least("1 T parameters at 1 byte outgrow 8 Hopper", it.q("gpt4_params"), "B", held),
        because=f"The rack has {format_bytes(later)}, eight Hoppers have {format_bytes(held)}.",
    )


def c51(it: Work) -> Finding:
    hopper, rack = it.world.cluster(HOPPER), it.world.cluster(RACK)
    room = {on.name: on.num_chips * on.chip.hbm_bytes for on in (hopper, rack)}
    return it.done(
        *(
            it.show(f"parameters that {name} holds in FP4", held / it.q("weight_bytes"), "parameters")
            for name, held in room.items()
        ),
        it.most("weights of DeepSeek V3 in FP8", it.world.model(MODEL).total_params * 1.0, "B", room[RACK]),
        because="All parameters have to fit into one domain unless stages are pipelined over several (C60).",
    )


def up_over_out(it: Work, name: str) -> float:
    """Bandwidth inside over bandwidth out of a domain."""
    on = it.world.cluster(name)
    return on.scale_up.bytes_per_s_each_way / (on.scale_out or on.scale_up).bytes_per_s_each_way
