"""What the chapters of the guided lecture show: figures computed by the library, and facts that their texts name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rackline.arch import Model
from rackline.hardware import scale_up_cables
from rackline.ledger import ciphers, prices, racks, training
from rackline.ledger.drawings import Drawing, spread
from rackline.ledger.said import claims
from rackline.ledger.work import FRONTIER, HOPPER, RACK, Work, World
from rackline.parallel import Deployment, Layout, precision
from rackline.parallel.exchange import dispatch_traffic
from rackline.passes import calibration
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.report.axes import DAY, Measure
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
from rackline.serving.curve import decode_batch
from rackline.training.schedules import equal_stages, schedule
from rackline.units import format_bytes, format_count, format_percent, format_rate, format_seconds, format_usd

Floats = NDArray[np.float64]


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


def _work(world: World, claim: str) -> Work:
    return Work(next(one for one in claims() if one.id == claim), world)


def _values(values: Any) -> tuple[float, ...]:
    return tuple(float(one) for one in np.atleast_1d(np.asarray(values, dtype=np.float64)))


def _lines(
    title: str,
    of: str,
    x: tuple[str, Any],
    y: tuple[str, Any],
    places: Floats | Sequence[float],
    curves: Mapping[str, Any],
    *,
    log: str = "xy",
    least: float | None = None,
) -> Drawing:
    """Curves; a single number is a level line."""
    places = np.asarray(places, dtype=np.float64)
    return Drawing(
        title=title,
        of=of,
        x=Measure(field="x", title=x[0], kind=x[1]),
        y=Measure(field="y", title=y[0], kind=y[1]),
        places=_values(places),
        curves={name: _values(np.broadcast_to(values, places.shape)) for name, values in curves.items()},
        log=log,
        least=least,
    )


def _rows(title: str, of: str, y: tuple[str, Any], values: Mapping[str, float], *, log: str = "y") -> Drawing:
    """A value for each of several things."""
    return Drawing(
        title=title,
        of=of,
        form="rows",
        x=Measure(field="series", title=""),
        y=Measure(field="y", title=y[0], kind=y[1]),
        places=(0.0,),
        curves={name: (value,) for name, value in values.items()},
        log=log,
    )


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
        return _lines(
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
            "cost": _lines(
                "Cost of a million output tokens",
                f"{of}, without a cache, {rent}",
                ("batch: sequences of a replica", "count"),
                ("cost of a million output tokens", "usd"),
                batches,
                {"cost": usd},
            ),
            "context": _lines(
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
    it, crossing = _work(world, "C57"), _work(world, "C47")
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
            "copies": _lines(
                "Chips that a token is sent to",
                f"{moe.num_experts} experts, evenly on {ranks} chips, chosen at random",
                ("experts of a token", "count"),
                ("chips it is sent to", "count"),
                chosen,
                {"chips": reached, "as many as experts": chosen},
            ),
            "crossing": _lines(
                "Share of the traffic that leaves its domain",
                f"{of}, {chips} chips",
                ("chips in a domain", "count"),
                ("share that leaves its domain", "share"),
                domains,
                {"leaves its domain": [one.crossing_share for one in traffic]},
                log="x",
            ),
            "time": _lines(
                "Time of an exchange, that of one domain being 1",
                f"{of}, {chips} chips, {slower:g} times slower links between domains",
                ("chips in a domain", "count"),
                ("time over that of one domain", "number"),
                domains,
                {"exchange": seconds / seconds[-1]},
            ),
            "network": _rows(
                "Links inside over the network outside",
                "bandwidth of a chip, each way",
                ("times faster", "number"),
                {name: racks.up_over_out(it, on.name) for name, on in joined.items()},
                log="",
            ),
            "handover": _lines(
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
            "cables": _lines(
                "Links of a domain",
                f"GB200, {level.links_per_chip} links a chip to its switches",
                ("chips in a domain", "count"),
                ("links from chips to switches", "count"),
                half,
                {"links": [scale_up_cables(level, int(one)) or math.nan for one in half]},
                log="",
            ),
            "room": _rows("Memory of a domain", "HBM of all chips together", ("memory", "bytes"), rooms),
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
_EQUAL = (1.0, 1.0, 1.0)  # forward, gradient of the input, gradient of the weights


def pipeline(_: World) -> Scene:
    """Schedules of a pipeline of four equal stages: who works when, the bubble, what is held."""
    named = {"GPipe": "gpipe", "1F1B": "1f1b", "ZB-H1": "zb-h1"}
    micro = (1, 2, 4, 8, 16, MANY)

    def ran(name: str, count: int) -> Any:
        one = schedule(named[name])
        return one.run(STAGES, count, equal_stages(one, STAGES, *_EQUAL))

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
            "bubble": _lines(
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
            "held": _lines(
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
    it, ring, hops, read = (_work(world, one) for one in ("C71", "C69", "C74", "C76"))
    stages, contexts = np.arange(1.0, 17.0), spread(1e3, 1e6, it.q("short_context"), it.q("context_len"))

    def held(pp: Any, context_len: Any) -> dict[str, Any]:
        found = racks.held(it, pp, context_len)
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
    one, pass_s, hop_s = racks.held(it, 1.0), hops.q("pass_s"), hops.q("hop_s")
    bandwidth = blackwell.chip.hbm_bytes_per_s / hopper.chip.hbm_bytes_per_s
    return Scene(
        drawings={
            "chip": _lines(
                "What a chip holds",
                f"{of}, 100,000 tokens each",
                ("stages of the pipeline, a rack each", "count"),
                ("memory of a chip", "bytes"),
                stages,
                held(stages, np.full_like(stages, it.q("context_len"))),
            ),
            "context": _lines(
                "What a chip holds with two stages",
                of,
                ("context length [tokens]", "count"),
                ("memory of a chip", "bytes"),
                contexts,
                held(np.full_like(contexts, it.q("stages")), contexts),
            ),
            "ring": _lines(
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
            "hops": _lines(
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
            "reading": _lines(
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


def overtraining(world: World) -> Scene:
    """Tokens of a life, ratios of equal costs, and the training that is cheapest over life."""
    fleet, life, equal, exact, chance = (_work(world, one) for one in ("C91", "C92", "C87", "C89", "C90"))
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
    in_all: Floats = flop_over_life(params, trained, per_param)
    dearer = float(np.interp(used, trained, in_all) / in_all.min())
    chances = np.linspace(0.05, 1.0, 20)
    derated = np.asarray(optimal_tokens_of_params(law, at, per_param * chances))
    rule = {"20 a parameter": chinchilla_tokens(sizes)}
    by_law = compute_optimal_of_params(law, sizes).tokens
    even = chance.q("probability")
    half = float(optimal_tokens_of_params(law, at, per_param * even)) / best
    return Scene(
        drawings={
            "life": _lines(
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
            "optimal": _lines(
                "Tokens of training at least FLOP",
                "use left out",
                ("active parameters", "count"),
                ("tokens of training", "count"),
                sizes,
                {**rule, "Besiroglu's law": by_law},
            ),
            "over": _lines(
                "Tokens of training, with and without use",
                "one model, two months of use",
                ("active parameters", "count"),
                ("tokens of training", "count"),
                sizes,
                {"as many as in use": used, **rule},
            ),
            "ratio": _lines(
                "Tokens of pre-training for each token of a phase that costs as much",
                "pre-training takes 6 FLOP a parameter and token",
                ("efficiency of the phase over that of pre-training", "share"),
                ("tokens of pre-training for each", "number"),
                shares,
                {f"{k:g} FLOP a token": equal_cost_ratio(k, shares) for k in (2.0, equal.q("rl_flop"), 6.0)},
                log="y",
            ),
            "cost": _lines(
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
            "chance": _lines(
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
    step, bend, open_models, useful, tiers = (_work(world, one) for one in ("C98", "C100", "C103", "C106", "C121"))
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
    lines = dict(zip(("HBM", "DDR5", "NVMe flash", "dense flash", "disk"), prices.lines(tiers), strict=True))
    held = spread(1.0, 1e6, tiers.q("long_s"))
    timed = [write for write in opus.cache_writes if write.lifetime_s is not None]
    slope = storage_usd_per_token_s(
        timed[0].usd, timed[0].lifetime_s or 0.0, timed[-1].usd, timed[-1].lifetime_s or 0.0
    )
    paused = spread(60.0, 2e4, count=241)
    hit, miss = (1e6 * (one or math.nan) for one in (opus.cached_input_usd, opus.input_usd))
    disk, cheap = world.tier(prices.DISK), min(lines.items(), key=lambda one: float(one[1].usd(tiers.q("long_s"))))
    return Scene(
        drawings={
            "context": _lines(
                "Cost and price of an output token, that of a short context being 1",
                f"arithmetic and cache take equally long at {star:,.0f} tokens; price of Gemini 3.1 Pro",
                ("context length [tokens]", "count"),
                ("over that of a short context", "number"),
                contexts,
                {"cost": np.maximum(1.0, contexts / star), "price": np.where(contexts > star, rise, 1.0)},
            ),
            "cache": _lines(
                "Cache of a token by where the bend is",
                f"{format_count(bend.q('params'))} active parameters, a large batch",
                ("context at the bend [tokens]", "count"),
                ("cache of a token", "bytes"),
                bends,
                {name: kept(one, bends) for name, one in per_byte.items()},
            ),
            "models": _rows(
                "Cache of a token",
                "one byte an element",
                ("cache of a token", "bytes"),
                {"what prices say": kept(2.0 * bend.q("ridge"), bend.q("context_len"))}
                | {name: world.model(one).kv_bytes_per_token(1.0) for name, one in known.items()},
            ),
            "pass": _lines(
                "Time of a token by the tokens of a pass",
                "prices of Claude Opus 4.6 taken as costs; arithmetic is 1",
                ("tokens of a sequence in a pass", "count"),
                ("time of a token over its arithmetic", "number"),
                per_pass,
                {"memory": ratio / per_pass, "arithmetic": 1.0},
            ),
            "useful": _lines(
                "Share of the arithmetic that is used",
                f"Llama 3.1 70B in BF16 on H100s at peak rates, {sequences:.0f} sequences of 4,096 tokens",
                ("new tokens of a sequence in a pass", "count"),
                ("share of the arithmetic that is used", "share"),
                tokens,
                {"used": compute / np.maximum(compute, read)},
            ),
            "drains": _rows(
                "Time to read a whole device once",
                "capacity over bandwidth, of data sheets",
                ("time to read all of it", "seconds"),
                {name: one.drain_s or math.nan for name, one in lines.items()},
            ),
            "tiers": _lines(
                "Cost of keeping a cache and reading it once",
                f"{format_bytes(tiers.q('entry_bytes'))} of cache, devices at their price by the hour",
                ("time held", "seconds"),
                ("cost", "usd"),
                held,
                {name: one.usd(held) for name, one in lines.items()},
            ),
            "pause": _lines(
                "Price of a million input tokens that were sent before",
                "Claude Opus 4.6: what is kept costs by the hour what the two writes differ by",
                ("time since they were sent", "seconds"),
                ("price of a million tokens", "usd"),
                paused,
                {"kept, and read": hit + 1e6 * slope * paused, "computed again": miss},
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
            "nvme": format_seconds(world.tier(prices.FLASH).drain_s),
            "cheapest": cheap[0],
            "hit": format_usd(hit),
            "miss": format_usd(miss),
            **{f"write_{one.name}": format_usd(1e6 * one.usd) for one in timed},
        },
    )


def mixing(world: World) -> Scene:
    """How rounds and layers mix, what can be undone, and what reversible layers cost."""
    it, flips, feistel, probe, layers, trade = (
        _work(world, one) for one in ("Q26", "C127", "C130", "Q27", "C132", "C133")
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
            "mixing": _lines(
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
            "window": _lines(
                "Layers until the last token depends on the first",
                f"{context:,.0f} tokens, each layer with the same window",
                ("tokens that a layer sees", "count"),
                ("layers", "count"),
                windows,
                {"layers": [bb.layers_to_reach(context, float(one)) for one in windows]},
            ),
            "flips": _lines(
                "Output bits that one input bit flips",
                f"a Feistel cipher of 32 bits, mean of {flips.q('samples'):.0f} words",
                ("rounds", "count"),
                ("share of the output bits", "share"),
                sorted(shares),
                {"flipped": [shares[one] for one in sorted(shares)], "a coin for each": 0.5},
                log="",
            ),
            "taken": _lines(
                "Values that a round function takes",
                f"{ciphers.BITS} bits in and out; inputs tried in order",
                ("inputs tried", "count"),
                ("different values", "count"),
                inputs,
                {"values": [np.count_nonzero(firsts < one) for one in np.floor(inputs)], "one an input": inputs},
            ),
            "probe": _lines(
                "Right answers of a linear probe",
                f"{len(words):,} words of 32 bits, trained on half of them, asked of the others",
                ("steps of training", "count"),
                ("share of right answers", "share"),
                steps,
                {**read, "guessing": 0.5},
                log="x",
            ),
            "depth": _lines(
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
            "again": _rows(
                "Arithmetic of a step of training",
                "of each parameter and token",
                ("FLOP", "number"),
                {"ordinary": once, "reversible": again},
                log="",
            ),
            "cache": _lines(
                "A context computed again, or read from the cache",
                "Llama 3.1 70B in BF16 on one H100's rates",
                ("context length [tokens]", "count"),
                ("time", "seconds"),
                lengths,
                {
                    "computed again": bb.compute_s(1.0, llama.active_params, chip.flop_per_s("bf16"), lengths),
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


SCENES: Mapping[str, Callable[[World], Scene]] = {
    "batch": batch,
    "racks": experts,
    "pipeline": pipeline,
    "memory": memory,
    "training": overtraining,
    "prices": price,
    "ciphers": mixing,
}
"""By chapter: what it shows."""
