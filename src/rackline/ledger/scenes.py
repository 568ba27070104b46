"""What the chapters of the guided lecture show: figures computed by the library, and facts that their texts name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rackline.display.axes import Measure
from rackline.hardware import scale_up_cables
from rackline.ledger import pipelines, racks
from rackline.ledger.drawings import Drawing, line_drawing, row_drawing, spread
from rackline.ledger.said import claims
from rackline.ledger.work import FRONTIER, HOPPER, RACK, Work, World
from rackline.parallel import Deployment, Layout, precision
from rackline.parallel.exchange import dispatch_traffic
from rackline.passes import calibration
from rackline.serving import blackboard as bb
from rackline.serving.curve import decode_batch
from rackline.training.schedules import equal_stages, schedule
from rackline.units import format_bytes, format_rate, format_seconds, format_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a chapter shows.

    Args:
        drawings: by name.
        facts: numbers of the catalogue, written out, that the texts name.
        values: numbers of steps that no claim computes, by step [SI].
    """

    drawings: Mapping[str, Drawing]
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, float] = field(default_factory=dict[str, float])


def work(world: World, claim: str) -> Work:
    return Work(next(one for one in claims() if one.id == claim), world)


def batch(world: World) -> Scene:
    """A decode step of the frontier model: its time and cost by batch, its cache by context."""
    model, rack = world.model(FRONTIER), world.cluster(RACK)
    deployed = Deployment(
        model=model,
        cluster=rack,
        layout=Layout(tp=64),
        precision=precision("fp8", model, rack.chip),
        calibration=calibration("unit", rack.chip),
    )
    table, chips = deployed.table(), deployed.layout.chips_per_replica
    of = "The lecture's frontier model in FP8 on 64 chips of a GB200 rack, at peak rates"
    batches = spread(1.0, 16384.0, 100.0, 2500.0, 10000.0)
    flop, hbm = chips * rack.chip.flop_per_s("fp8"), chips * rack.chip.hbm_bytes_per_s
    total, active, kv = model.total_params, model.active_params, model.kv_bytes_per_token()
    ridge = bb.dimensionless_ridge(flop, hbm, 1.0)
    crossover = float(bb.crossover_context(active, kv, flop, hbm))

    def parts(sequences: float, context_len: float) -> tuple[float, float, float]:
        found = table.time(decode_batch(deployed, sequences, context_len))
        compute, memory = (sum(row.resource_s.get(one, 0.0) for row in found.rows) for one in ("compute", "hbm"))
        return found.seconds, compute, memory

    def step(context_len: float) -> Drawing:
        whole, compute, memory = np.transpose([parts(float(one), context_len) for one in batches])
        return line_drawing(
            "Time of a decode step",
            f"{of}, {f'{context_len:,.0f} tokens of context' if context_len else 'without a cache'}",
            ("batch: sequences of a replica", "count"),
            ("time of a decode step", "seconds"),
            batches,
            {"the step": whole, "arithmetic": compute, "memory": memory},
            least=1e-5,
        )

    first = step(0.0)
    seconds = np.asarray(first.curves["the step"])
    usd = 1e6 * np.asarray(bb.cost_per_token_usd(batches, seconds, chips * (rack.usd_per_chip_hour or math.nan)))
    contexts = spread(1e3, 1e6)
    cached = [table.time(decode_batch(deployed, 16384.0, float(one))) for one in contexts]
    rows = [sum(row.resource_s["hbm"] for row in one.rows if row.name == "kv_cache") for one in cached]
    rent = f"{format_usd(rack.usd_per_chip_hour or math.nan)} an hour for a chip"
    return Scene(
        drawings={
            "step": first,
            "long": step(crossover / 2.0),
            "cost": line_drawing(
                "Cost of a million output tokens",
                f"{of}, without a cache, {rent}",
                ("batch: sequences of a replica", "count"),
                ("cost of a million output tokens", "usd"),
                batches,
                {"cost": usd},
            ),
            "context": line_drawing(
                "Cache and arithmetic of a step",
                f"{of}, 16,384 sequences",
                ("context length [tokens]", "count"),
                ("time in a decode step", "seconds"),
                contexts,
                {"reading the cache": rows, "arithmetic": parts(16384.0, 0.0)[1]},
            ),
        },
        facts={
            "share": format_bytes(total / chips),
            "rate": format_rate(rack.chip.hbm_bytes_per_s),
            "ridge": f"{ridge:.4g}",
            "sparsity": f"{total / active:.3g}",
            "half": f"{crossover / 2.0:,.0f}",
        },
        values={
            "floor": float(bb.latency_floor_s(total, 1.0, hbm)),
            "crowd": float(bb.pass_s(100.0, total, active, 1.0, 0.0, kv, flop, hbm))
            / float(bb.pass_s(1.0, total, active, 1.0, 0.0, kv, flop, hbm)),
            "crossover": crossover,
        },
    )


def experts(world: World) -> Scene:
    """Experts of DeepSeek V3 over chips and racks: copies, what crosses, how long it takes, what has to be wired."""
    it, crossing = work(world, "C57"), work(world, "C47")
    moe, level = racks.mixture(it), world.cluster(RACK).scale_up
    ranks, chips = racks.ranks_in_use(it), int(crossing.q("ranks"))
    chosen = np.unique(np.rint(np.geomspace(1, ranks, 41)))
    spread_over = racks.routing(it, ranks)
    reached = [
        float(dispatch_traffic(dataclasses.replace(spread_over, experts_per_token=int(one)), 1.0, 1.0).sent[0].sum())
        for one in chosen
    ]
    domains = [2**power for power in range(chips.bit_length())]
    traffic = [dispatch_traffic(racks.routing(crossing, chips, size), 1.0, 1.0) for size in domains]
    slower = crossing.q("slower")
    seconds = np.array([one.seconds(slower, 1.0) for one in traffic])
    named = {"8 H100": HOPPER, "8 H800": "h800-8", "GB200 rack": RACK, "GB300 rack": "gb300-nvl72"}
    joined = {name: world.cluster(one) for name, one in named.items()}
    up, out = (world.cluster(RACK).scale_up, world.cluster(RACK).scale_out or level)
    layers, each = np.arange(1.0, 9.0), float(moe.experts_per_token)
    real = racks.up_over_out(it, RACK)
    sizes = np.arange(8.0, level.size + 1.0, 8.0)
    half = np.unique([*sizes, level.size / 2.0])
    rooms = {name: on.num_chips * on.chip.hbm_bytes for name, on in joined.items() if name != "8 H800"}
    of = f"{moe.experts_per_token} of {moe.num_experts} experts a token (DeepSeek-V3)"
    return Scene(
        drawings={
            "copies": line_drawing(
                "Chips that a token is sent to",
                f"{moe.num_experts} experts, evenly on {ranks} chips, chosen at random",
                ("experts of a token", "count"),
                ("chips it is sent to", "count"),
                chosen,
                {"chips": reached, "as many as experts": chosen},
            ),
            "crossing": line_drawing(
                "Share of the traffic that leaves its domain",
                f"{of}, {chips} chips",
                ("chips in a domain", "count"),
                ("share that leaves its domain", "share"),
                domains,
                {"leaves its domain": [one.crossing_share for one in traffic]},
                log="x",
            ),
            "time": line_drawing(
                "Time of an exchange, that of one domain being 1",
                f"{of}, {chips} chips, {slower:g} times slower links between domains",
                ("chips in a domain", "count"),
                ("time over that of one domain", "number"),
                domains,
                {"exchange": seconds / seconds[-1]},
            ),
            "network": row_drawing(
                "Links inside over the network outside",
                "bandwidth of a chip, each way",
                ("times faster", "number"),
                {name: racks.up_over_out(it, on.name) for name, on in joined.items()},
                log="",
            ),
            "handover": line_drawing(
                "Traffic inside a rack over the hand-over to the next",
                f"{of}, sent there and back; one hand-over",
                ("layers on a rack", "count"),
                ("time inside over that between racks", "number"),
                layers,
                {
                    "network of GB200": bb.scale_up_over_scale_out_time(real, each, layers),
                    f"{slower:g} times slower, as was said": bb.scale_up_over_scale_out_time(slower, each, layers),
                    "as long": 1.0,
                },
            ),
            "cables": line_drawing(
                "Links of a domain",
                f"GB200, {level.links_per_chip} links a chip to its switches",
                ("chips in a domain", "count"),
                ("links from chips to switches", "count"),
                half,
                {"links": [scale_up_cables(level, int(one)) or math.nan for one in half]},
                log="",
            ),
            "room": row_drawing("Memory of a domain", "HBM of all chips together", ("memory", "bytes"), rooms),
        },
        facts={
            "up": format_rate(up.bytes_per_s_each_way),
            "out": format_rate(out.bytes_per_s_each_way),
            "links": f"{scale_up_cables(level, level.size) or 0:,}",
            "size": str(level.size),
            "half": str(level.size // 2),
            "hopper": format_bytes(rooms["8 H100"]),
            "real": f"{real:.3g}",
            "others": f"{racks.up_over_out(it, HOPPER):.3g}",
            "two": f"{bb.scale_up_over_scale_out_time(real, each, 2.0):.3g}",
        },
    )


STAGES, MANY = 4, 32  # of the lecture's drawing; micro-batches of the steps after it


def pipeline(_: World) -> Scene:
    """Schedules of a pipeline of four equal stages: who works when, the bubble, what is held."""
    named = {"GPipe": "gpipe", "1F1B": "1f1b", "ZB-H1": "zb-h1"}
    micro = (1, 2, 4, 8, 16, MANY)

    def ran(name: str, count: int) -> Any:
        one = schedule(named[name])
        # as long forward as for the gradient of the input and for that of the weights
        return one.run(STAGES, count, equal_stages(one, STAGES, 1.0, 1.0, 1.0))

    def slots(name: str, count: int, what: str) -> Drawing:
        kinds = {"F": "forward", "B": "backward", "W": "gradient of weights"}
        return Drawing(
            title="What each stage does when",
            of=f"{what}, {STAGES} equal stages",
            form="slots",
            x=Measure(field="start", title="time [forward passes]", kind="number"),
            y=Measure(field="stage", title="stage"),
            curves={},
            log="",
            slots=tuple(
                (one.device, kinds[one.slot.op], one.slot.micro_batch, one.start, one.end)
                for one in ran(name, count).events
            ),
        )

    of = f"{STAGES} equal stages, the backward pass twice as long as the forward one"
    held = {name: [schedule(named[name]).in_flight(STAGES, one, 1) for one in micro] for name in ("1F1B", "GPipe")}
    return Scene(
        drawings={
            "one": slots("1F1B", 1, "one batch"),
            "four": slots("GPipe", STAGES, "GPipe with four micro-batches"),
            "bubble": line_drawing(
                "Share of the step that stages wait",
                of,
                ("micro-batches", "count"),
                ("share of the step that waits", "share"),
                micro,
                {
                    "1F1B or GPipe": [ran("1F1B", one).bubble_fraction for one in micro],
                    "ZB-H1": [ran("ZB-H1", one).bubble_fraction for one in micro],
                },
                log="x",
            ),
            "held": line_drawing(
                "Activations that the fullest stage holds",
                of,
                ("micro-batches", "count"),
                ("activations held, in stages", "number"),
                micro,
                held,
                log="x",
            ),
        },
        facts={"stages": str(STAGES), "many": str(MANY)},
        values={
            "held": STAGES,
            # ZB-H1 leaves (P - 1)(F + B - W) idle, a third of (P - 1)(F + B + W) where all are equal (Qi et al., 2023)
            "zero": (STAGES - 1) / (3 * MANY + STAGES - 1) / float(bb.flush_bubble_share(STAGES, MANY)),
        },
    )


def memory(world: World) -> Scene:
    """What a chip holds by stages and context, what stages cost in time, and how long a domain reads its weights."""
    it, ring, hops, read = (work(world, one) for one in ("C71", "C69", "C74", "C76"))
    stages, contexts = np.arange(1.0, 17.0), spread(1e3, 1e6, it.q("short_context"), it.q("context_len"))

    def held(pp: Any, context_len: Any) -> dict[str, Any]:
        found = pipelines.held(it, pp, context_len)
        return {"in all": found.total_bytes, "weights": found.weights_bytes, "cache": found.kv_bytes}

    of = "700 billion parameters of one byte on 64 chips a stage, 2,400 sequences, 2,048 bytes of cache a token"
    under_way = np.arange(1.0, 9.0)
    chips = np.unique([*np.geomspace(1, 144, 31), 8, 72])
    hopper, blackwell = world.cluster(HOPPER), world.cluster(RACK)
    total = read.q("total_bytes")
    reading = {
        on.chip.full_name or on.chip.name: bb.weight_fetch_s(total, 1.0, on.chip.hbm_bytes_per_s, chips)
        for on in (hopper, blackwell)
    }
    one, pass_s, hop_s = pipelines.held(it, 1.0), hops.q("pass_s"), hops.q("hop_s")
    bandwidth = blackwell.chip.hbm_bytes_per_s / hopper.chip.hbm_bytes_per_s
    return Scene(
        drawings={
            "chip": line_drawing(
                "What a chip holds",
                f"{of}, 100,000 tokens each",
                ("stages of the pipeline, a rack each", "count"),
                ("memory of a chip", "bytes"),
                stages,
                held(stages, np.full_like(stages, it.q("context_len"))),
            ),
            "context": line_drawing(
                "What a chip holds with two stages",
                of,
                ("context length [tokens]", "count"),
                ("memory of a chip", "bytes"),
                contexts,
                held(np.full_like(contexts, it.q("stages")), contexts),
            ),
            "ring": line_drawing(
                "Share of the time that a stage waits",
                f"decoding through {ring.q('stages'):.0f} stages, each a rack",
                ("batches under way", "count"),
                ("share of the time that a stage waits", "share"),
                under_way,
                {
                    "waits": [
                        bb.ring_step(ring.q("pass_s"), ring.q("stages"), m, ring.q("micro_batch")).idle_share
                        for m in under_way
                    ]
                },
                log="",
            ),
            "hops": line_drawing(
                "Time of a token through a pipeline of racks",
                f"{format_seconds(pass_s)} of reading a token, {format_seconds(hop_s)} a hop",
                ("stages of the pipeline, a rack each", "count"),
                ("time of a token", "seconds"),
                stages,
                {
                    "with hops": bb.ring_step(pass_s, stages, stages, hops.q("batch_size"), hop_s).token_s,
                    "reading alone": pass_s,
                },
                log="x",
            ),
            "reading": line_drawing(
                "Time to read all weights once",
                f"{format_bytes(total)} of weights (DeepSeek-V3 in FP8), spread over the chips of a domain",
                ("chips in the domain", "count"),
                ("time to read the weights", "seconds"),
                chips,
                dict(zip(("H100", "GB200"), reading.values(), strict=True)),
            ),
        },
        facts={
            "weights": format_bytes(float(one.weights_bytes)),
            "cache": format_bytes(float(one.kv_bytes)),
            "total": format_bytes(total),
            "hopper": format_seconds(float(bb.weight_fetch_s(total, 1.0, hopper.chip.hbm_bytes_per_s, 8.0))),
            "chip": f"{bandwidth:.3g}",
            "both": f"{bandwidth * blackwell.scale_up.size / hopper.scale_up.size:.3g}",
        },
    )
