"""Plans against their own promise: random questions, each answer served ten times longer with other arrivals.

    uv run python bench/promises.py [--count 100] [--seed 570] [--requests 40000] [--highest]

Each question asks for a plan at `--confidence 50%`. Its answer is simulated again at its own rate and slots over many
requests with another random seed. A promise holds if each limited latency is within its limit, is near if it is within
5 %, and is broken otherwise. With `--highest`, the highest rate at which the longer run still meets every limit within
5 % is found by bisection, and the promised rate is printed as a share of it. A rate whose queue grows does not pass,
whatever the limits. Limits are those that the plan held its predictions against: at a confidence of 50 % it corrects
them by what measured servers deviate in the median. Prints a line for each question, and at the end one JSON with the
counts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import rackline as rl
from rackline.errors import InputError
from rackline.search import Choice, Plan
from rackline.search.served import Service, Simulated, group_of
from rackline.system import Constraints

MODELS = (
    ("llama-3.1-8b", "dgx-h100"),
    ("llama-3.1-70b", "dgx-h100"),
    ("qwen3-8b", "dgx-h100"),
    ("qwen3-30b-a3b", "dgx-h200"),
    ("gpt-oss-20b", "dgx-b200"),
    ("phi-4", "mi300x-8"),
)
TPOT_MS, TTFT_S = (10, 200), (0.3, 5.0)
PLACES = ("@mean", "@p90", "@p99")
NEAR = 1.05
SEED = 77


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of one promise.

    Args:
        outcome: held, near, broken, infeasible, refused, or not simulated.
        detail: reason, or each limited latency of the longer run over its limit.
        share: promised rate over the highest that passes; None where it was not looked for [1].
    """

    outcome: str
    detail: str = ""
    share: float | None = None


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Draw questions, as arguments of `rackline.plan`."""
    draw = random.Random(seed)
    drawn: list[dict[str, Any]] = []
    for _ in range(count):
        name, on = draw.choice(MODELS)
        asked: dict[str, Any] = {"model": name, "on": on, "chips": draw.choice((1, 2, 4, 8)), "confidence": "50%"}
        asked |= {"output": round(2 * 750 ** draw.random()), "input": round(100 * 80 ** draw.random())}
        low_ms, high_ms = TPOT_MS
        low_s, high_s = TTFT_S
        tpot = f"{low_ms * (high_ms / low_ms) ** draw.random():.0f}ms{draw.choice(PLACES)}"
        ttft = f"{low_s * (high_s / low_s) ** draw.random():.2f}s{draw.choice(PLACES)}"
        limited = draw.choice(("both", "tpot", "ttft"))
        asked |= {} if limited == "ttft" else {"tpot": tpot}
        asked |= {} if limited == "tpot" else {"ttft": ttft}
        drawn.append(asked | draw.choice(({}, {"serving": "aggregated"})))
    return drawn


def check(asked: dict[str, Any], requests: int, *, highest: bool) -> Checked:
    """Ask for a plan, and serve its answer longer."""
    try:
        answer = rl.plan(**asked)
    except InputError as error:
        return Checked(outcome="refused", detail=str(error))
    plan = plan_of(answer)
    best = plan.best
    if best is None:
        return Checked(outcome="infeasible", detail=plan.reason)
    if best.sustained is None:
        return Checked(outcome="not simulated", detail=best.not_simulated)
    return served_longer(best, plan, requests, highest=highest)


def plan_of(answer: Any) -> Plan:
    """Return the plan of an answer to `rackline.plan`."""
    return answer.result.plan


def served_longer(best: Choice, plan: Plan, requests: int, *, highest: bool) -> Checked:
    """Simulate an answer again at its rate, with its slots and other arrivals."""
    service = Service(system=plan.system, prefill_system=plan.system, demand=plan.demand)
    group = group_of(best.estimate, service, best.max_num_seqs)
    limits = plan.demand.limits.of_predictions(best.estimate.layout_kind)

    def worst_at(rate: float) -> tuple[float, str]:
        ratios = ratios_of(group.serve(rate, best.tpot_s, SEED, requests), limits)
        return max(ratios.values(), default=0.0), ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())

    worst, detail = worst_at(best.requests_per_s)
    outcome = "held" if worst <= 1.0 else "near" if worst <= NEAR else "broken"
    share = share_of_highest(best.requests_per_s, lambda rate: worst_at(rate)[0] <= NEAR) if highest else None
    return Checked(outcome=outcome, detail=detail, share=share)


def ratios_of(run: Simulated, limits: Constraints) -> dict[str, float]:
    """Return each limited latency of a run over its limit; infinite for a queue that grows."""
    latencies = {"tpot_s": run.tpot_s, "ttft_s": run.ttft_s}
    ratios = {name: latencies[name].at(place) / limit_s for name, limit_s, place in limits.latencies()}
    return {"queue": math.inf} | ratios if run.queue_grows else ratios


def share_of_highest(rate: float, passes: Callable[[float], bool]) -> float:
    """Return a rate over the highest that passes, by steps of 4 % and then by bisection to 0.5 %."""
    low, high = rate, rate
    if passes(rate):
        while passes(high := low * 1.04) and high < 2.0 * rate:
            low = high
    else:
        while not passes(low := high / 1.04) and low > 0.5 * rate:
            high = low
    while high > low * 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if passes(middle) else (low, middle)
    return rate / low


def main() -> None:
    """Ask, check, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=570)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--highest", action="store_true")
    options = parser.parse_args()
    start, counts, shares = time.process_time(), Counter[str](), list[float]()
    for asked in questions(options.count, options.seed):
        checked = check(asked, options.requests, highest=options.highest)
        counts[checked.outcome] += 1
        shares += [] if checked.share is None else [checked.share]
        share = "" if checked.share is None else f"{checked.share:.3f} of the highest rate"
        print(checked.outcome, asked, checked.detail, share, flush=True)
    result: dict[str, Any] = {"questions": options.count, **counts, "cpu_s": round(time.process_time() - start)}
    if shares:
        result["median_share_of_highest"] = round(median(shares), 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
