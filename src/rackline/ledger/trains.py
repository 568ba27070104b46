"""Segment 1, second half: trains of batches, traffic, and what sparsity is worth (C24 to C37)."""

from __future__ import annotations

from rackline.ledger.work import HBM_CHIPS, RACK, Finding, Work, ridge
from rackline.scaling import dense_equivalent_params, routed_total_params
from rackline.serving import blackboard as bb
from rackline.serving.capacity import TrainLine, arrivals_to_fill_per_s, share_of_fleet
from rackline.units import format_bytes, format_count, format_rate, format_seconds


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
    pass_s = it.world.cluster(RACK).chip.drain_s
    own = arrivals_to_fill_per_s(places, it.q("output_len") * pass_s)
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
    law = it.world.routed("clark-s-base")
    size = dense_equivalent_params(law, it.q("active_params"), it.q("num_experts"))
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
