"""Grids of results that views look up: pipelines, racks, and how close predictions came."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rackline.errors import InputError
from rackline.web.measured import beside

if TYPE_CHECKING:
    from rackline.training.schedules import Schedule

STAGES = (2, 4, 8)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
FORWARD, BACKWARD, WEIGHT = 1.0, 1.0, 1.0  # the gradient of the input takes as long as forward, that of weights too
CLUSTERS = ("gb200-nvl72", "dgx-h100", "mi355x-8")
RANKS, DOMAINS = 64, (1, 2, 4, 8, 16, 32, 64)
TOKENS = (16, 128, 1024)
NUM_EXPERTS, EXPERTS_PER_TOKEN, TOKEN_BYTES = 256, 8, 7168


def pipelines() -> dict[str, Any]:
    """Every schedule, run with equal stages: its slots, its bubble, and the activations it holds."""
    from rackline.training.schedules import SCHEDULE_OF, equal_stages

    runs: dict[str, dict[str, Any]] = {}
    for name, schedule in SCHEDULE_OF.items():
        for pp in STAGES:
            for micro_batches in MICRO_BATCHES:
                virtual = _virtual(schedule)
                durations = equal_stages(schedule, pp, FORWARD, BACKWARD, WEIGHT, virtual_pp=virtual)
                try:
                    timeline = schedule.run(pp, micro_batches, durations, virtual)
                except InputError:  # a number of micro-batches that the schedule does not take
                    continue
                runs[f"{name}/{pp}/{micro_batches}"] = {
                    "step": timeline.step_s,
                    "bubble": timeline.bubble_fraction,
                    "inFlight": schedule.in_flight(pp, micro_batches, schedule.num_chunks(virtual)),
                    "slots": [
                        [one.device, one.slot.op, one.slot.micro_batch, one.slot.chunk, one.start, one.end]
                        for one in timeline.events
                    ],
                }
    sources = {name: one.source for name, one in SCHEDULE_OF.items()}
    chunks = {name: _virtual(one) for name, one in SCHEDULE_OF.items()}
    measured = [
        {**bubble, "model": one["model"], "stages": one["stages"], "source": one["source"]}
        for one in beside("pipeline")
        for bubble in one["bubbles"]
    ]
    grid = {"schedules": sources, "virtual": chunks, "stages": STAGES, "microBatches": MICRO_BATCHES}
    return {**grid, "runs": runs, "measured": measured}


def _virtual(schedule: Schedule) -> int:
    """Chunks of a stage, where a schedule does not say [count]."""
    return 1 if schedule.chunks else 2


def racks() -> dict[str, Any]:
    """Exchange of a mixture of experts over domains of several sizes, with switches and cables.

    Assumes: 256 experts, 8 of them a token, 7,168 elements of a byte; a domain keeps the links that its chips have.
    """
    from dataclasses import replace

    from rackline.hardware import cluster
    from rackline.hardware.renting import scale_up_cables, scale_up_switches
    from rackline.parallel.traffic import ExpertRouting, dispatch_traffic

    found: dict[str, Any] = {}
    for name in CLUSTERS:
        machine = cluster(name)
        beyond = machine.scale_out.bytes_per_s_each_way if machine.scale_out else math.inf
        cases: list[dict[str, Any]] = []
        for size in DOMAINS:
            routing = ExpertRouting(
                num_ranks=RANKS, num_experts=NUM_EXPERTS, experts_per_token=EXPERTS_PER_TOKEN, ranks_per_domain=size
            )
            traffic = dispatch_traffic(routing, 1.0, float(TOKEN_BYTES))
            links = traffic.link_bytes()
            level = replace(machine.scale_up, size=size, num_switches=None)
            cases.append(
                {
                    "size": size,
                    "crossing": traffic.crossing_share,
                    "pair": float(traffic.sent[0, -1]),
                    "inside": float(links["scale_up_out"][0]),
                    "outside": float(links["scale_out_out"][0]),
                    "seconds": traffic.seconds(machine.scale_up.bytes_per_s_each_way, beyond),
                    "cables": scale_up_cables(level, RANKS) if size > 1 else 0,
                    "switches": scale_up_switches(level, RANKS // size) if size > 1 else 0,
                }
            )
        found[name] = {
            "title": machine.full_name or name,
            "size": machine.scale_up.size,
            "inside": machine.scale_up.bytes_per_s_each_way,
            "outside": None if math.isinf(beyond) else beyond,
            "cases": cases,
        }
    routed = {"experts": NUM_EXPERTS, "expertsPerToken": EXPERTS_PER_TOKEN, "tokenBytes": TOKEN_BYTES}
    return {"ranks": RANKS, "tokens": TOKENS, **routed, "clusters": found, "measured": beside("exchange")}


def accuracy() -> dict[str, Any]:
    """In which band 90 % of measured values lay, by what was measured on what."""
    from rackline.bands.bands import shipped_bands

    rows = [
        {
            "metric": metric,
            "stack": band.of.stack,
            "kind": band.of.kind,
            "chip": band.of.chip,
            "layout": band.of.layout,
            "group": band.of.text(),
            "low": band.low,
            "high": band.high,
            "cases": band.num_cases,
            "models": band.num_models,
        }
        for (metric, _), band in shipped_bands().items()
    ]
    return {"bands": rows}
