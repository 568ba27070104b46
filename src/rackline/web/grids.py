"""Grids of results that views look up, and between which the sliders of a page without a server interpolate."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rackline.api.answer import answer
from rackline.api.budget import BudgetQuestion
from rackline.api.prices import rent_of
from rackline.api.tiers import TiersQuestion
from rackline.errors import InputError, RacklineError
from rackline.files import shipped_toml
from rackline.late import late
from rackline.passes.javascript import function

with late:
    from rackline import arch, catalog, hardware, parallel, pricing, scaling, validation
    from rackline.bands import bands
    from rackline.hardware import renting
    from rackline.parallel import exchange
    from rackline.pricing import cache, forms
    from rackline.training import schedules
    from rackline.validation import cases

_MOSTLY_OUTPUT = 4.0  # output over prompt tokens from which on a server's time per output token is about a decode step


@functools.cache
def _cases() -> dict[str, dict[str, Any]]:
    """The cases as they are written, by id."""
    lines = cases.published().read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@functools.cache
def beside(kind: str) -> list[dict[str, Any]]:
    """Published measurements that stand beside curves: entries of a kind of `measured.toml`."""
    return shipped_toml("rackline.web", "measured.toml")[kind]


def parity() -> dict[str, Any]:
    """Every measured value with the predicted one."""
    rows: list[dict[str, Any]] = []
    for score in validation.validate([cases.published()]).scores:
        case = _cases()[score.case_id]
        rows.append(
            {
                "id": score.case_id,
                "kind": case["kind"],
                "metric": score.metric,
                "measured": score.measured,
                "predicted": score.predicted,
                "model": catalog.canonical_name("models", score.groups["model"]) or score.groups["model"],
                "chip": score.groups["chip"],
                "stack": score.groups["stack"],
                "version": case.get("stack_version", ""),
                "precision": score.groups["precision"],
                "chips": case["num_chips"],
                "source": case["source"],
            }
        )
    return {"rows": rows}


def asked_prices() -> dict[str, Any]:
    """What hosts of open models ask for a million tokens of short prompts [USD]."""
    rows: list[dict[str, Any]] = []
    for sheet in pricing.all_sheets():
        tier = sheet.standard
        if sheet.model is not None and tier is not None:
            usd = {"input": tier.input_usd, "cached": tier.cached_input_usd, "output": tier.output_usd}
            per_mtok = {name: None if one is None else 1e6 * one for name, one in usd.items()}
            rows.append({"model": sheet.model, "provider": sheet.provider, "date": sheet.date, **per_mtok})
    return {"rows": rows}


def decode_points(deployment: parallel.Deployment) -> list[dict[str, Any]]:
    """Measured decode steps of a deployment: sequences, their mean context [tokens], the step [s].

    A static batch's time per token is its mean step. A server's time per output token contains the prefill of others:
    it counts where requests have at least four output tokens for each prompt token.
    """
    return [
        {
            "id": case["id"],
            "batch_size": case.get("batch_size") or case["concurrency"],
            "context_len": case["input_len"] + case["output_len"] / 2,
            "seconds": case["measured"].get("token_s") or case["measured"]["tpot_s"],
            "stack": f"{case['stack']} {case.get('stack_version', '')}".strip(),
            "source": case["source"],
        }
        for case in _cases().values()
        if _is_of(case, deployment) and _is_decode(case)
    ]


def _is_of(case: dict[str, Any], deployment: parallel.Deployment) -> bool:
    layout, chip = deployment.layout, deployment.cluster.chip
    if (case["chip"], case["num_chips"]) != (chip.name, layout.chips_per_replica):
        return False
    try:
        named = catalog.model_record(case["model"]).name
    except RacklineError:  # a model that only the case describes
        return False
    if named != deployment.model.name:
        return False
    types = parallel.precision(case["precision"], deployment.model, chip)
    degrees = {"tp": 1, "pp": 1, "attention_dp": 1, "ep": 1, **case["layout"]}
    same = all(getattr(layout, name) == degrees[name] for name in ("tp", "pp", "attention_dp", "ep"))
    return same and types.short() == deployment.precision.short()


def _is_decode(case: dict[str, Any]) -> bool:
    if case["kind"] == "static-batch":
        return "token_s" in case["measured"] and bool(case.get("output_len"))
    return case["kind"] == "serve" and case["output_len"] >= _MOSTLY_OUTPUT * case["input_len"]


STAGES = (2, 4, 8)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
FORWARD, BACKWARD, WEIGHT = 1.0, 1.0, 1.0  # the gradient of the input takes as long as forward, that of weights too
CLUSTERS = ("gb200-nvl72", "dgx-h100", "mi355x-8")
RANKS, DOMAINS = 64, (1, 2, 4, 8, 16, 32, 64)
TOKENS = (16, 128, 1024)
NUM_EXPERTS, EXPERTS_PER_TOKEN, TOKEN_BYTES = 256, 8, 7168


def pipelines() -> dict[str, Any]:
    """Every schedule, run with equal stages: its slots, its bubble, and the activations it holds."""
    runs: dict[str, dict[str, Any]] = {}
    for name, schedule in schedules.SCHEDULE_OF.items():
        for pp in STAGES:
            for micro_batches in MICRO_BATCHES:
                virtual = _virtual(schedule)
                durations = schedules.equal_stages(schedule, pp, FORWARD, BACKWARD, WEIGHT, virtual_pp=virtual)
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
    sources = {name: one.source for name, one in schedules.SCHEDULE_OF.items()}
    chunks = {name: _virtual(one) for name, one in schedules.SCHEDULE_OF.items()}
    measured = [
        {**bubble, "model": one["model"], "stages": one["stages"], "source": one["source"]}
        for one in beside("pipeline")
        for bubble in one["bubbles"]
    ]
    grid = {"schedules": sources, "virtual": chunks, "stages": STAGES, "microBatches": MICRO_BATCHES}
    return {**grid, "runs": runs, "measured": measured}


def _virtual(schedule: schedules.Schedule) -> int:
    """Chunks of a stage, where a schedule does not say [count]."""
    return 1 if schedule.chunks else 2


def racks() -> dict[str, Any]:
    """Exchange of a mixture of experts over domains of several sizes, with switches and cables.

    Assumes: 256 experts, 8 of them a token, 7,168 elements of a byte; a domain keeps the links that its chips have.
    """
    found: dict[str, Any] = {}
    for name in CLUSTERS:
        machine = hardware.cluster(name)
        beyond = machine.scale_out.bytes_per_s_each_way if machine.scale_out else math.inf
        cases: list[dict[str, Any]] = []
        for size in DOMAINS:
            routing = exchange.ExpertRouting(
                num_ranks=RANKS, num_experts=NUM_EXPERTS, experts_per_token=EXPERTS_PER_TOKEN, ranks_per_domain=size
            )
            traffic = exchange.dispatch_traffic(routing, 1.0, float(TOKEN_BYTES))
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
                    "cables": renting.scale_up_cables(level, RANKS) if size > 1 else 0,
                    "switches": renting.scale_up_switches(level, RANKS // size) if size > 1 else 0,
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
    """The band in which 90 % of the measured values lay, by quantity and kind of system."""
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
        for (metric, _), band in bands.shipped_bands().items()
    ]
    return {"bands": rows}


WITHIN: Mapping[str, float] = {"tiers": 0.01, "prices": 1e-6, "over-training": 0.002}
"""The largest relative difference of an interpolated number from the library's, by view; tests hold it."""

_DIGITS = 9
_SIZES = 91  # of a curve of budgets
_PRICE_OVER_COST = (1.0, 128.0)
_LINE = ("once_usd", "hold_usd_per_s", "retrieve_usd")


def axis_of(slider: Mapping[str, Any]) -> list[float]:
    """The values of a slider at which the library is asked, in equal ratios."""
    values = np.geomspace(float(slider["low"]), float(slider["high"]), int(slider["points"]))
    return [_rounded(float(one)) for one in values]


def tiers_grid(view: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Cost lines of keeping a prompt by its length, and the formulas that turn them into costs.

    Args:
        view: with the fields that are asked at first and its sliders.

    Returns:
        The data, and functions in JavaScript by name.
    """
    found: Any = answer(TiersQuestion.from_params(_asked(view))).result
    costs, rent = found.costs, rent_of(found.costs.deployment.cluster)
    lengths = axis_of(view["sliders"]["prompt"])
    by_length = [{one.name: one for one in pricing.keeping_lines(costs, rent, length)} for length in lengths]
    tiers = {
        name: {key: [_rounded(getattr(lines[name], key)) for lines in by_length] for key in (*_LINE, "fetch_s")}
        for name in by_length[0]
    }

    def usd(once_usd: float, hold_usd_per_s: float, retrieve_usd: float, kept_s: float, reuses: float) -> Any:
        line = pricing.KeepingCost(
            name="", tier="", once_usd=once_usd, hold_usd_per_s=hold_usd_per_s, retrieve_usd=retrieve_usd
        )
        return line.usd(kept_s, reuses)

    data = {
        "axes": {"prompt": lengths},
        "tiers": tiers,
        "drains": {name: line.drain_s for name, line in by_length[0].items()},
        "entry_bytes": [_rounded(float(costs.kv_bytes(length))) for length in lengths],
        "title": found.title,
    }
    functions = {
        "usd": function([*_LINE, "kept_s", "reuses"], usd),
        "drainDistance": function(["drain_s", "kept_s"], cache.drain_distance),
    }
    return data, functions


def prices_grid(view: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What each sheet reveals by price over cost, and what it reveals where that is not known; see `tiers_grid`."""
    unknowns = pricing.default_unknowns()
    ratios = [_rounded(one) for one in np.geomspace(*_PRICE_OVER_COST, 8).tolist()]

    def known(ratio: float) -> pricing.Unknowns:
        return replace(unknowns, margin=(ratio - 1.0, ratio - 1.0), utilisation=pricing.Range(low=1.0, high=1.0))

    sheets: dict[str, Any] = {}
    for name in view["stops"]:
        (sheet,) = pricing.find_sheets(name)
        readings = [pricing.read_prices(sheet, known(ratio)) for ratio in ratios]
        sheets[name] = {
            "unknown": _ends([pricing.read_prices(sheet, unknowns)]),
            "asSet": _ends(readings),
            "date": sheet.date,
            "known": _known(sheet.model),
        }
    data = {"axes": {"price_over_cost": ratios}, "sheets": sheets}
    return data, {"priceOverCost": function(["margin", "utilisation"], forms.price_over_cost)}


def _known(name: str | None) -> list[dict[str, Any]]:
    """What is known of an open model, where a byte or two of each element are kept."""
    from rackline.pricing.compare import Truth

    if name is None:
        return []
    truth = Truth.of(arch.model(name))
    ends = truth.kv_bytes_per_token
    return [
        {"model": name, "active_params": truth.active_params, "kv_bytes_per_token": one}
        for one in (ends.low, ends.high)
    ]


def _ends(readings: list[pricing.Reading]) -> list[dict[str, Any]]:
    """Quantities of the first reading, each with its ends in all of them."""
    return [
        {
            "quantity": one.quantity,
            "unit": one.unit,
            "method": one.method,
            "note": one.note,
            **{
                key: [_rounded(getattr(reading.find(one.quantity, one.method), key)) for reading in readings]
                for key in ("low", "high", "likely_low", "likely_high")
            },
        }
        for one in readings[0].inferences
        if all(reading.find(one.quantity, one.method) for reading in readings)
    ]


def over_training_grid(view: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Optima over life by FLOP of use per parameter, and that by traffic and months; see `tiers_grid`."""
    traffic, months = view["sliders"]["traffic"], view["sliders"]["months"]

    def asked(rate: float, span: float) -> Any:
        texts = {**_asked(view), "traffic": repr(rate), "months": repr(span)}
        return answer(BudgetQuestion.from_params(texts)).result.budget

    ends = [[float(one[end]) for end in ("low", "high")] for one in (traffic, months)]
    corners = [asked(rate, span).lifetime_flop_per_param for rate in ends[0] for span in ends[1]]
    # all else depends on that number alone, which the longest life and the most traffic make largest
    most = {**traffic, "high": traffic["high"] * months["high"] / months["low"]}
    budgets = [asked(rate, months["low"]) for rate in axis_of(most)]
    first, within = budgets[0], max(budgets[0].flat)
    optima = [float(one.optimum.params) for one in budgets]
    sizes = np.geomspace(min(optima) / 8.0, 3.0 * float(first.compute_optimal.params), _SIZES)
    tokens = np.asarray(scaling.tokens_for_loss(first.law, sizes, first.loss))
    sizes, tokens = sizes[np.isfinite(tokens)], tokens[np.isfinite(tokens)]
    data = {
        "uses": {"traffic": ends[0], "months": ends[1]},
        "used": corners,
        "axes": {"used": [one.lifetime_flop_per_param for one in budgets]},
        "sizes": _row(sizes),
        "tokens": _row(tokens),
        "optimum": {
            "active_params": _row(optima),
            "tokens": [_rounded(float(one.optimum.tokens)) for one in budgets],
            "flop": [_rounded(float(one.optimum.lifetime_flop)) for one in budgets],
            "usd": [_rounded(one.usd) for one in budgets],
            "overtraining_factor": [_rounded(one.overtraining_factor) for one in budgets],
            "compute_optimal_over_optimum": [_rounded(one.compute_optimal_over_optimum) for one in budgets],
            "flat_low": [_rounded(one.flat[within][0]) for one in budgets],
            "flat_high": [_rounded(one.flat[within][1]) for one in budgets],
        },
        "computeOptimal": {
            "active_params": _rounded(float(first.compute_optimal.params)),
            "tokens": _rounded(float(first.compute_optimal.tokens)),
        },
        "flat": within,
        "loss": first.loss,
        "law": first.law.name,
        "trained": [
            {"text": one.full_name, "active_params": one.active_params, "tokens": one.tokens}
            for one in scaling.trained()
        ],
    }
    return data, {"flop": function(["active_params", "tokens", "lifetime_flop_per_param"], scaling.flop_over_life)}


def _asked(view: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in view["fields"].items() if value}


def _row(values: Any) -> list[float | None]:
    return [_rounded(float(one)) for one in values]


def _rounded(value: float) -> Any:
    """A value rounded to the digits that interpolation deserves; None where there is no number."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


GRIDS: Mapping[str, Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, str]]]] = {
    "tiers": tiers_grid,
    "prices": prices_grid,
    "over-training": over_training_grid,
}
"""The function that makes the grid of each view."""
