"""Whether a plan is the optimum: what it costs when one neighbour of the answer is fixed.

    uv run python bench/optimum.py [--count 60] [--seed 36] [--first 0] [docs/measured/optimum.json]

Each of `count` random questions is answered, then asked again with one thing fixed: another budget of tokens or
admission, the layout of the answer or one next to it, the other kind of serving, one precision of several, a cap of
running sequences next to the answer's. None may cost less. Where one does by more than `RESOLVED`, to which rates are
found, both are served again with `SEEDS` other random seeds: the highest rate of each with the same arrivals. The pair
is a miss where the interval of the mean of the logarithm of their costs, with Student's t, lies above a tie.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import rackline as rl
from rackline.api.plan import Planned
from rackline.errors import RacklineError
from rackline.files import write_text
from rackline.search import Choice, Plan
from rackline.search.choice import TIE
from rackline.search.estimates import MORE_SLOTS
from rackline.search.served import Group, Service, group_of
from rackline.search.sustained_rate import SustainedRate, sustained_rate

RESOLVED = 0.005
SEEDS = (11, 12, 13, 14, 15)
_T = 2.776  # Student's t of 95 % with four degrees of freedom
MODELS = (
    ("llama-3.1-8b", "dgx-h100", (1, 2, 8)),
    ("llama-3.1-70b", "dgx-h100", (4, 8)),
    ("llama-3.1-70b", "dgx-b200", (2, 8)),
    ("qwen3-30b-a3b", "dgx-h200", (1, 4)),
    ("gpt-oss-120b", "dgx-b200", (1, 3, 8)),
    ("gemma-3-27b", "mi300x-8", (2, 8)),
    ("qwen3-235b-a22b", "dgx-h200", (8, 16)),
    ("deepseek-v3", "gb200-nvl72", (24, 72)),
)
LENGTHS = (("1k", 100), ("2k", 500), ("6k", 400), ("500", 1000), ("16k", 300))
LIMITS: tuple[dict[str, str], ...] = (
    {"tpot": "30ms"},
    {"tpot": "50ms", "ttft": "2s"},
    {"tpot": "50ms@p99", "ttft": "2s@p99"},
    {"tpot": "40ms@p90", "ttft": "4s"},
    {"ttft": "1s@p99"},
    {"tpot": "100ms", "ttft": "10s"},
)
MORE: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"serving": "aggregated"},
    {"cache_hit": "60%"},
    {"precision": ["any"]},
    {"calibration": "vllm"},
    {"calibration": "sglang"},
    {"calibration": "trtllm"},
    {"own_layout": True},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A question with one neighbour fixed.

    Args:
        question: arguments of `rackline.plan`.
        fixed: what was fixed.
        cost, fixed_cost: of the answer, and with the neighbour fixed [USD per million output tokens].
        low, high: interval of ln(cost / fixed cost) with other arrivals; None where the neighbour is not cheaper.
        outcome: as dear, within the resolution, within the interval, miss, or no answer.
    """

    question: dict[str, Any]
    fixed: str
    cost: float
    fixed_cost: float | None
    outcome: str
    low: float | None = None
    high: float | None = None


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Random questions, as arguments of `rackline.plan`."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    for _ in range(count):
        model, on, sizes = draw.choice(MODELS)
        prompt, answer = draw.choice(LENGTHS)
        asked: dict[str, Any] = {"model": model, "on": on, "chips": draw.choice(sizes), "input": prompt}
        asked |= {"output": answer, **draw.choice(LIMITS), **draw.choice(MORE)}
        if asked.pop("own_layout", False):
            asked["layout"] = f"tp={min(asked['chips'], draw.choice((2, 4, 8)))}"
        found.append(asked)
    return found


def neighbours(asked: dict[str, Any], plan: Plan) -> Iterator[dict[str, Any]]:
    """Options of the question that fix one thing next to the answer, or the answer's own."""
    best = plan.best
    if best is None:
        return
    apart = best.serving == "disaggregated"
    layouts = {"layout": best.layout} | ({"prefill_layout": best.prefill_pool.layout} if best.prefill_pool else {})
    for option, layout in layouts.items():
        if option in asked or "layout" in asked:  # which both pools keep
            continue
        own = {name: getattr(layout, name) for name in ("tp", "pp", "attention_dp", "ep", "moe_tp")}
        yield {option: ",".join(f"{name}={value}" for name, value in own.items())}
        for name in ("tp", "pp", "attention_dp"):
            for value in (own[name] // 2, own[name] * 2):
                if value >= 1 and layout.chips_per_replica // own[name] * value <= asked["chips"]:
                    yield {option: f"{name}={value}"}
    if not apart and "mode" not in asked:
        mode = best.mode
        budget = mode.max_batched_tokens
        for one in (budget // 4, budget // 2, budget, budget * 2):
            if 256 <= one <= 16384:
                yield {"mode": [f"chunked={one}"]}
        yield {"mode": [f"prefill_first={budget}"]}
    if apart and "serving" not in asked:
        yield {"serving": "aggregated"}
    if len(plan.system.precisions) > 1:
        for precision in plan.system.precisions:
            yield {"precision": [precision.label]}


def served(asked: dict[str, Any]) -> Plan | None:
    """The plan; None where the question is refused."""
    given = dict(asked)
    try:
        found = rl.plan(given.pop("model"), **given).result
    except RacklineError:
        return None
    assert isinstance(found, Planned)
    return found.plan


def looked_at(asked: dict[str, Any]) -> list[Found]:
    """The answer against each of its neighbours."""
    plan = served(asked)
    if plan is None or plan.best is None:
        return [Found(question=asked, fixed="", cost=math.nan, fixed_cost=None, outcome="no answer")]
    same = {} if "calibration" in asked else {"calibration": plan.system.calibration.name}
    found: list[Found] = []
    for fixed in neighbours(asked, plan):
        other = served({**asked, **same, **fixed})
        name = ", ".join(f"{key}={value}" for key, value in fixed.items())
        found.append(_compared(asked, name, plan, None if other is None else other.best))
    room = 2 * plan.best.engine.sequences_per_rank + MORE_SLOTS  # less is what memory holds
    for slots in (plan.best.max_num_seqs // 2, min(plan.best.max_num_seqs * 2, room)):
        if plan.best.sustained is not None and slots and room >= slots != plan.best.max_num_seqs:
            held = sustained_rate(plan.best.estimate, service_of(plan), max_num_seqs=slots)
            capped = plan.best.with_sustained_rate(held) if isinstance(held, SustainedRate) else None
            found.append(_compared(asked, f"max_num_seqs={slots}", plan, capped))
    return found


def _compared(asked: dict[str, Any], fixed: str, plan: Plan, other: Choice | None) -> Found:
    assert plan.best is not None
    cost = plan.best.usd_with_leftover
    if other is None:
        return Found(question=asked, fixed=fixed, cost=cost, fixed_cost=None, outcome="no answer")
    then = Found(question=asked, fixed=fixed, cost=cost, fixed_cost=other.usd_with_leftover, outcome="as dear")
    gain = math.log(cost / other.usd_with_leftover)
    if gain <= 0.0:
        return then
    if gain <= RESOLVED:
        return replace(then, outcome="within the resolution")
    if plan.best.sustained is None or other.sustained is None:
        return replace(then, outcome="not simulated")
    low, high = paired_interval(plan, plan.best, other)
    return replace(then, low=low, high=high, outcome="miss" if low > TIE else "within the interval")


def service_of(plan: Plan) -> Service:
    """What is served."""
    return Service(system=plan.system, prefill_system=plan.system, demand=plan.demand)


def paired_interval(plan: Plan, best: Choice, other: Choice) -> tuple[float, float]:
    """Interval of ln(cost of the best / cost of the other), both at their highest rate with the same arrivals."""
    gains: list[float] = []
    service = service_of(plan)
    for seed in SEEDS:
        costs: list[float] = []
        for one in (best, other):
            group = group_of(one.estimate, service, one.max_num_seqs)
            rate = highest(group, plan, one, seed)
            costs.append(one.usd_with_leftover * one.requests_per_s / rate)
        gains.append(math.log(costs[0] / costs[1]))
    middle, half = float(np.mean(gains)), _T * float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    return middle - half, middle + half


def highest(group: Group, plan: Plan, choice: Choice, seed: int) -> float:
    """The highest rate within the limits with one seed, to half of what is resolved [requests/s]."""

    limits = plan.demand.limits.of_predictions(choice.layout_kind)

    def holds(rate: float) -> bool:
        run = group.serve(rate, choice.tpot_s, seed)
        return not run.queue_grows and max(run.over_limits(limits).values(), default=0.0) <= 1.0

    low, high = 0.5 * choice.requests_per_s, 1.5 * choice.requests_per_s
    while high > low * (1.0 + 0.5 * RESOLVED):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def main() -> None:
    """Ask, compare, print each miss and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=36)
    parser.add_argument("--first", type=int, default=0, help="index of the first question")
    parser.add_argument("path", type=Path, nargs="?")
    args = parser.parse_args()
    began, found = time.process_time(), list[Found]()
    for asked in questions(args.count, args.seed)[args.first :]:
        some = looked_at(asked)
        found += some
        print(json.dumps(asked), dict(Counter(one.outcome for one in some)), flush=True)
        for one in some:
            if one.outcome not in ("as dear", "no answer", "within the resolution"):
                print("   ", one.outcome, one.fixed, one.cost, one.fixed_cost, one.low, one.high, flush=True)
    counts = Counter(one.outcome for one in found)
    print(json.dumps({**counts, "cpu_s": round(time.process_time() - began)}))
    if args.path:
        data = {"seed": args.seed, "counts": counts, "found": [asdict(one) for one in found]}
        write_text(args.path, json.dumps(data, indent=1) + "\n", what="path")


if __name__ == "__main__":
    main()
