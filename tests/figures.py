"""One figure of every kind, from small answers; each answer is found once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from helpers import cluster, model, planned, system, token_costs
from rackline.display.axes import nothing_figure
from rackline.display.figure import Figure
from rackline.fitting.report import KindErrors, errors_figure
from rackline.ledger.table import ledger, verdicts_figure
from rackline.ledger.work import Finding
from rackline.parallel import SERVER, Routing, parse_layout, precision
from rackline.passes import Batch, StepPolicy, calibration
from rackline.pricing import (
    KeepingCost,
    Offered,
    OneDeployment,
    Reading,
    Rent,
    TokenCosts,
    all_sheets,
    keeping_lines,
    offer_prices,
    read_all,
)
from rackline.report.budget_report import lifetime_figure, quality_figure
from rackline.report.compare_report import Side, cluster_side
from rackline.report.explain_figures import curves_figure, memory_figure, roofline_figure, waterfall_figure
from rackline.report.explain_report import Explanation
from rackline.report.memory_report import memory_over_time
from rackline.report.plan_figures import capacity_figure, compare_figure, pareto_figure, rejected_figure, what_if_figure
from rackline.report.pricing_figures import modes_figure, offered_figure, readings_figure, tiers_figure
from rackline.report.simulate_figures import (
    occupancy_figure,
    percentiles_figure,
    served_figure,
    tails_figure,
    timeline_figure,
)
from rackline.report.train_report import mfu_figure, pipeline_figure, pipeline_of_plan, step_figure, train_memory_figure
from rackline.scaling import Budget, PhaseMfu, Usage, budget, loss_law
from rackline.search import Plan
from rackline.search.plan import WhatIfPoint
from rackline.search.train import TrainPlan, train_plan
from rackline.serving.capacity import Capacity, capacity
from rackline.serving.workload import Workload
from rackline.simulation import POLICIES, PlainClock, Pool, RankSpec, Requests, Result, simulate
from rackline.system import Constraints
from rackline.training.schedules import Timeline, equal_stages, schedule
from rackline.training.system import TrainingSystem
from rackline.validation.report import parity_figure
from rackline.validation.scoreboard import Score, Scoreboard

RENT = Rent(usd_per_chip_hour=2.0)


@cache
def a_plan() -> Plan:
    rack = cluster("dgx-h100")
    return planned(
        model("llama-3.1-8b"),
        rack,
        Workload(input_len=1000, output_len=200),
        calibration=calibration("auto", rack.chip),
        constraints=Constraints(tpot_s=0.02),
    )


def what_ifs() -> list[WhatIfPoint]:
    return [
        WhatIfPoint(
            value=f"{number:g}TB/s", number=number, setting=f"chip.hbm_bytes_per_s={number:g}TB/s", plan=a_plan()
        )
        for number in (2.0, 4.0)
    ]


@cache
def costs() -> TokenCosts:
    return token_costs("llama-3.1-70b", "tp=8", on="dgx-h100", label="fp8")


@cache
def tiers() -> list[KeepingCost]:
    return list(keeping_lines(costs(), RENT, 8e3))


@cache
def offered() -> Offered:
    return offer_prices(OneDeployment(costs=costs()), RENT, steps=(8e3, 32e3))


@cache
def readings() -> list[Reading]:
    return list(read_all(all_sheets()[:12]))


@cache
def a_run(pace: float = 1.0) -> Result:
    generator = np.random.default_rng(1)
    count = 120
    requests = Requests(
        arrival_s=np.cumsum(generator.exponential(0.05, count)),
        input_len=generator.integers(20, 400, count),
        output_len=generator.integers(1, 60, count),
    )
    clock = PlainClock(base_s=0.005 * pace, per_prompt_token_s=1e-5)
    return simulate(requests, Pool(clock=clock, spec=RankSpec(pool_tokens=20_000), policy=POLICIES.find("chunked")))


@cache
def a_budget(feasible: bool = True) -> Budget:
    law = loss_law("besiroglu")
    return budget(
        law,
        1.95,
        Usage(inference_tokens=1e14),
        mfu=PhaseMfu(pretrain=0.4, rl=0.12, inference=0.12),
        peak_flop_per_s=1e15,
        unique_tokens=None if feasible else 1e9,
    )


@cache
def timeline(name: str = "zb-v") -> Timeline:
    kind = schedule(name)
    return kind.run(4, 8, equal_stages(kind, 4, 1.0, 1.0, 1.0))


@cache
def board() -> Scoreboard:
    groups = {"kind": "serve", "model": "m", "chip": "c", "stack": "s", "version": "s 1", "precision": "p", "op": ""}
    rows = [
        ("tpot_s", 0.02, 0.022),
        ("tpot_s", 0.03, 0.027),
        ("ttft_s", 0.5, 0.6),
        ("output_tokens_per_s", 900.0, 990.0),
    ]
    scores = [
        Score(case_id=str(index), where="x", metric=metric, measured=measured, predicted=predicted, groups=groups)
        for index, (metric, measured, predicted) in enumerate(rows)
    ]
    return Scoreboard(calibration="auto", num_cases=len(scores), scores=tuple(scores), unsupported=())


@cache
def explained(policy: StepPolicy = "serial") -> Explanation:
    serves, layout = (
        system("deepseek-v3", routing=Routing()),
        parse_layout("pp=2,ep=8,attention_dp=8", model("deepseek-v3")),
    )
    batch = Batch(decode_sequences=32.0, context_len=4e3, group_tokens=256.0)
    held = serves.deployment(layout).memory(sequences=512.0, context_len=4e3)
    return Explanation.of(serves, layout, batch, batch_size=512, memory=held, policy=policy)


@cache
def fitting(context_len: float = 32e3) -> Capacity:
    rack = cluster("dgx-h100")
    found = model("llama-3.1-70b")
    return capacity(found, rack, precision("bf16", found, rack.chip), context_len=context_len)


@cache
def a_train_plan() -> TrainPlan:
    rack = cluster("dgx-h100").with_num_chips(64)
    system = TrainingSystem.of(
        model("llama-3.1-70b"), rack, stack="megatron-bridge", global_batch_sequences=64, seq_len=8192
    )
    return train_plan(
        system, fixed={"tp": 8, "pp": 4, "cp": 1}, schedules=["1f1b"], recompute=["none", "selective", "full"]
    )


@cache
def sides() -> list[Side]:
    return [cluster_side(cluster(name)) for name in ("dgx-h100", "gb200-nvl72", "mi355x-8")]


@cache
def verdicts() -> list[Finding]:
    return list(ledger(segment=3))


@cache
def tiers_of_a_prompt() -> Figure:
    from rackline.pricing import envelope

    return tiers_figure(tiers(), envelope(tiers(), 4.0), title="a prompt", prompt_len=8e3, reuses=4.0)


def two_runs() -> dict[str, Result]:
    return {"this": a_run(), "slower": a_run(2.0)}


def kinds() -> tuple[KindErrors, ...]:
    some = {"groups": 3, "median_error": 0.05, "p90_error": 0.2, "ideal_median_error": 0.4, "ideal_p90_error": 0.8}
    untested = {"family_median_error": math.nan, "family_p90_error": math.nan}
    return (
        KindErrors(kind="moe", **some, **untested),
        KindErrors(kind="mla", **some, family_median_error=0.06, family_p90_error=0.3),
    )


MAKERS: dict[str, Callable[[], Figure]] = {
    "front": lambda: pareto_figure(a_plan()),
    "rejected": lambda: rejected_figure(a_plan()),
    "what-if": lambda: what_if_figure("hbm_bandwidth", what_ifs()),
    "tiers": tiers_of_a_prompt,
    "price": lambda: offered_figure(offered()),
    "prices by mode": lambda: modes_figure(offered()),
    "price map": lambda: readings_figure(readings()),
    "tails": lambda: tails_figure({"this": a_run()}),
    "tails of two": lambda: tails_figure(two_runs()),
    "timeline": lambda: timeline_figure(two_runs()),
    "occupancy": lambda: occupancy_figure(two_runs()),
    "percentiles": lambda: percentiles_figure(two_runs()),
    "served": lambda: served_figure(two_runs()),
    "lifetime": lambda: lifetime_figure(a_budget(), asked="loss 1.95"),
    "lifetime without answer": lambda: lifetime_figure(a_budget(feasible=False), asked="loss 1.95"),
    "quality": lambda: quality_figure(a_budget(), asked="loss 1.95"),
    "pipeline": lambda: pipeline_figure(timeline(), title="the schedule zb-v"),
    "pipeline of a plan": lambda: pipeline_of_plan(a_train_plan()),
    "memory over a step": lambda: memory_over_time(a_train_plan()),
    "step": lambda: step_figure(a_train_plan()),
    "missing MFU": lambda: mfu_figure(a_train_plan()),
    "memory of training": lambda: train_memory_figure(a_train_plan()),
    "roofline": lambda: roofline_figure(explained()),
    "waterfall": lambda: waterfall_figure(explained()),
    "waterfall of streams": lambda: waterfall_figure(explained("overlap")),
    "memory": lambda: memory_figure(explained()),
    "batch": lambda: curves_figure(explained(), SERVER),
    "batch where nothing fits": lambda: curves_figure(explained(), replace(SERVER, memory_fraction=0.01)),
    "errors": lambda: errors_figure(kinds(), 1234),
    "what fits": lambda: capacity_figure(fitting(), hbm_bytes=cluster("dgx-h100").chip.hbm_bytes),
    "what does not fit": lambda: capacity_figure(fitting(1e8), hbm_bytes=cluster("dgx-h100").chip.hbm_bytes),
    "nothing": lambda: nothing_figure("a question", "no layout is possible"),
    "compare": lambda: compare_figure(sides(), what="clusters"),
    "verdicts": lambda: verdicts_figure(verdicts()),
    "parity": lambda: parity_figure(board()),
}


@cache
def figure(name: str) -> Figure:
    """A figure of the library by name."""
    return MAKERS[name]()
