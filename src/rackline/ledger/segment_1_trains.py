"""Segment 1, second half: trains of batches, traffic, and what sparsity is worth (C24 to C37)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackline.ledger.parts import FRONTIER, HBM_CHIPS, RACK, ridge
from rackline.ledger.work import Finding, Work
from rackline.scaling import dense_equivalent_params
from rackline.serving import blackboard as bb
from rackline.serving.trains import TrainLine, arrivals_to_fill_per_s, share_of_fleet
from rackline.units import format_count, format_seconds


def c24(it: Work) -> Finding:
    made = bb.tokens_per_s(it.q("batch_size"), it.q("interval_s")) * it.q("interval_s")
    it.near("tokens of one pass", made, "", "batch_size")
    return it.done("In decoding one pass makes one token for each sequence, so the batch counts both.")


def c25(it: Work) -> Finding:
    value = ridge(it.world.chip("gb200"), "fp4")
    small = bb.balance_batch_with_kv(value, 8e9, 1e9, 0.5, 0.0, 0.0)
    large = bb.balance_batch_with_kv(value, 8e9 * it.q("scale"), 1e9 * it.q("scale"), 0.5, 0.0, 0.0)
    it.same("balanced batch of a model 100 times as large", large, small, "sequences")
    return it.done("Size cancels as long as the cache is left out; on the chip it depends through R.")


def c26(it: Work) -> Finding:
    it.near("drain time of a chip of the rack", it.world.cluster(RACK).chip.drain_s, "s", "interval_s")
    return it.done("The memory of a Blackwell chip is read once in about the interval that was said.")


def c27(it: Work) -> Finding:
    interval, places = it.q("interval_s"), int(it.q("capacity"))
    for label, load in (
        ("half of the places taken", it.q("light_load")),
        ("more arrivals than places", it.q("heavy_load")),
    ):
        line = TrainLine(interval_s=interval, capacity=places, arrivals_per_s=load * places / interval)
        it.near(f"worst with {label}", line.worst_s, "s", "worst_s")
    it.show("mean with half of the places taken", bb.train_latency(interval).mean_s, "s")
    return it.done(
        "Just missed and ridden is two intervals, one and a half in the mean; once trains are full the wait grows.",
        only_if="fewer requests come than the trains can carry",
    )


def c28(it: Work) -> Finding:
    drains = {name: it.world.chip(name).drain_s for name in HBM_CHIPS}
    for name, seconds in drains.items():
        it.near(name, seconds, "s", "interval_s")
    low, high = min(drains.values()), max(drains.values())
    return it.done(f"Reading the whole memory takes {format_seconds(low)} to {format_seconds(high)}, by chip.")


def c29(it: Work) -> Finding:
    it.near("288 GB at 20 TB/s", bb.hbm_drain_s(it.q("hbm_bytes"), it.q("hbm_bytes_per_s")), "s", "interval_s")
    it.near("Rubin in the catalogue", it.world.chip("rubin").drain_s, "s", "interval_s")
    return it.done("The division is right; announced bandwidths of 20 to 22 TB/s give 13 to 14 ms.")


def c30(it: Work) -> Finding:
    rubin = bb.hbm_drain_s(it.q("hbm_bytes"), it.q("hbm_bytes_per_s"))
    it.near("full reads in 30 ms on Rubin", it.q("interval_s") / rubin, "", "reads")
    for name in ("rubin", "h100-sxm", "gb200", "gb300"):
        it.near(f"on {name}", it.q("interval_s") / it.world.chip(name).drain_s, "", "reads")
    return it.done("30 ms are two reads where one takes 15 ms; on chips of 24 to 36 ms they are about one.")


def c31(it: Work) -> Finding:
    places = it.q("capacity")
    needed = arrivals_to_fill_per_s(places, it.q("time_s"))
    it.show("arrivals that fill 2,000 places in 100 ms", needed, "per s")
    running = arrivals_to_fill_per_s(places, it.q("output_len") * it.q("interval_s"))
    it.show("arrivals that keep 2,000 places filled with answers of 500 tokens", running, "per s")
    it.most("of what would fill them once", running / needed, "%", 1.0)
    return it.done(
        f"A place is kept for a whole answer, so {format_count(running)} requests a second keep them filled."
    )


def c32(it: Work) -> Finding:
    batch = it.q("batch_size")
    it.near("at 64 passes a second", bb.tokens_per_s(batch, 1.0 / it.q("passes_per_s")), "tokens/s", "tokens_per_s")
    it.near("at 20 ms", bb.tokens_per_s(batch, it.q("interval_s")), "tokens/s", "tokens_per_s")
    it.near("at 15 ms", bb.tokens_per_s(batch, it.q("short_s")), "tokens/s", "tokens_per_s")
    drain = it.world.cluster(RACK).chip.drain_s
    it.near("at the drain time of a Blackwell chip", bb.tokens_per_s(batch, drain), "tokens/s", "tokens_per_s")
    return it.done("64 passes a second mean 15.6 ms each.", only_if="a pass takes about 15 ms")


def c33(it: Work) -> Finding:
    system = it.q("system_tokens_per_s")
    for label, fleet in (
        ("100 M tokens/s", it.q("low_fleet_tokens_per_s")),
        ("980 T tokens a month", it.q("month_tokens") / it.q("month_s")),
        ("1.3 Q tokens a month", it.q("later_month_tokens") / it.q("month_s")),
    ):
        it.near(f"systems for {label}", 1.0 / share_of_fleet(system, fleet), "", "systems")
    return it.done(
        "Google's published monthly tokens are 380 to 500 million a second, prompts included.",
        only_if="the traffic is about 100 million tokens a second",
    )


def c34(it: Work) -> Finding:
    law = it.world.routed("clark-s-base")
    size = dense_equivalent_params(law, it.q("active_params"), it.q("num_experts"))
    it.near("dense size by the published fit", size, "", "dense_params")
    return it.done("The fit of the paper's table gives the dense size that was read off its figure.")


def c35(it: Work) -> Finding:
    law, params = it.world.routed("clark-s-base"), it.q("active_params")
    it.near("64 experts", dense_equivalent_params(law, params, it.q("num_experts")) / params, "times", "gain")
    it.near(
        "100 experts", dense_equivalent_params(law, params, it.q("guessed_experts")) / params, "times", "guessed_gain"
    )
    most = dense_equivalent_params(law, params, 1e9) / params
    it.show("any number of experts", most, "times")
    return it.done(
        f"The law bends at about 300 experts: no number of them is worth more than {most:.2g} times the size.",
        only_if="64 experts are worth 4 times; a tenfold gain does not exist in that law",
    )


def c36(it: Work) -> Finding:
    law, params, step = it.world.routed("clark-s-base"), it.q("active_params"), it.q("step")
    it.near("8 experts", dense_equivalent_params(law, params, step) / params, "times", "first")
    it.near("64 experts", dense_equivalent_params(law, params, step * step) / params, "times", "second")
    return it.done("Eight times the experts are worth a little less than a doubling, in both steps.")


def c37(it: Work) -> Finding:
    chip, active = it.world.chip("gb200"), it.q("active_params")
    value = ridge(chip, "fp4")

    def weights_per_token(ratio: float) -> float:
        return bb.weight_fetch_s(ratio * active, 0.5, chip.hbm_bytes_per_s) / bb.balance_batch(value, ratio)

    it.same("weight reads per token at balance", weights_per_token(it.q("high")), weights_per_token(it.q("low")), "s")
    rack = it.world.cluster(RACK)
    held = bb.chip_memory(it.q("high") * active, 0.5, 0.0, 0.0, 0.0, float(rack.num_chips)).weights_bytes
    it.most("weights per chip at 32 times", float(held), "B", rack.chip.hbm_bytes)
    frontier = it.world.model(FRONTIER)
    it.show(
        "users needed at balance", bb.balance_batch(value, frontier.total_params / frontier.active_params), "sequences"
    )
    return it.done("At its own balanced batch a sparser model reads as much per token, if there are that many users.")


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "C24": c24,
    "C25": c25,
    "C26": c26,
    "C27": c27,
    "C28": c28,
    "C29": c29,
    "C30": c30,
    "C31": c31,
    "C32": c32,
    "C33": c33,
    "C34": c34,
    "C35": c35,
    "C36": c36,
    "C37": c37,
}
