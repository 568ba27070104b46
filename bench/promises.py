"""Plans against their own promise: random questions, each answer simulated again with other random seeds.

    uv run python bench/promises.py [--count 80] [--seed 1] [--repeats 2]

Checked of each: no error but of bad input; no nan or inf in the text or the JSON; the best was simulated, and holds its
limits within its intervals at its own rate and slots with other arrivals; else a reason. Prints a line for each
question that fails, and at the end one JSON with the counts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, cast

import numpy as np

import rackline as rl
from rackline.errors import InputError
from rackline.search import Choice, Plan
from rackline.search.served import Service, group_of

MODELS = (("llama-3.1-8b", "dgx-h100"), ("llama-3.1-70b", "dgx-h100"), ("qwen3-30b-a3b", "dgx-h200"))
LIMITS: tuple[dict[str, str], ...] = (
    {"use": "batch"},
    {"tpot": "20ms"},
    {"tpot": "50ms", "ttft": "1s"},
    {"tpot": "30ms@p99", "ttft": "2s@p99"},
    {"tpot": "40ms@p90"},
    {"ttft": "500ms@p99"},
    {"ttft": "300ms"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of one promise.

    Args:
        outcome: held, infeasible, or what is wrong with it.
        detail: reason, or each limited latency with other arrivals over its limit.
    """

    outcome: str
    detail: str = ""


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Random questions, as arguments of `rackline.plan`."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    for _ in range(count):
        name, on = draw.choice(MODELS)
        asked: dict[str, Any] = {"model": name, "on": on, "chips": draw.choice((1, 2, 4, 8))}
        asked |= {"output": draw.randint(2, 8), "input": round(100 * 160 ** draw.random())}
        asked |= {"calibration": draw.choice(("vllm", "sglang", "trtllm")), **draw.choice(LIMITS)}
        found.append(asked | draw.choice(({}, {"serving": "aggregated"})))
    return found


def check(asked: dict[str, Any], seeds: Sequence[int]) -> Checked:
    """Ask for a plan, and simulate its best again with each seed."""
    try:
        answer = rl.plan(**asked)
    except InputError as error:
        return Checked(outcome="refused", detail=str(error))
    plan = plan_of(answer)
    if not all_finite(answer.to_dict()):
        return Checked(outcome="not finite in JSON")
    if shown := re.search(r"(?i)\b(nan|inf)\b[^\n]*", printed(answer)):
        return Checked(outcome="not finite on screen", detail=shown.group())
    best = plan.best
    if best is None:
        reason = plan.reason or (plan.disaggregated.reason if plan.disaggregated else "")
        return Checked(outcome="infeasible" if reason else "no reason", detail=reason)
    if best.sustained is None:
        return Checked(outcome="not simulated", detail=best.not_simulated)
    return kept(best, plan, seeds)


def plan_of(answer: Any) -> Plan:
    """The plan of an answer to `rackline.plan`."""
    return answer.result.plan


def kept(best: Choice, plan: Plan, seeds: Sequence[int]) -> Checked:
    """Simulate an answer again at its rate, with its slots and other arrivals."""
    promised = best.sustained
    if promised is None:
        return Checked(outcome="not simulated", detail=best.not_simulated)
    service = Service(system=plan.system, prefill_system=plan.system, demand=plan.demand)
    group = group_of(best.estimate, service, best.max_num_seqs)
    first = {"tpot_s": promised.simulated.tpot_s, "ttft_s": promised.simulated.ttft_s}
    over: list[str] = []
    broken = False
    for seed in seeds:
        again = group.serve(best.requests_per_s, best.tpot_s, seed=seed)
        second = {"tpot_s": again.tpot_s, "ttft_s": again.ttft_s}
        broken |= again.queue_grows
        over += ["the queue grows"] if again.queue_grows else []
        for name, limit, percentile in plan.demand.limits.latencies():
            run = first[name]
            value, high = second[name].at(percentile), interval_of_another(run.values, percentile, run.runs)[1]
            broken |= value > max(limit, high)
            over.append(f"{name} {value / limit:.3f} (up to {high / limit:.3f})")
    return Checked(outcome="broken" if broken else "held", detail=", ".join(over))


def interval_of_another(values: Any, percentile: float | None, runs: int) -> tuple[float, float]:
    """90 % interval for a statistic of another run, from the means of blocks.

    Requests of one busy period are not independent, blocks of consecutive ones nearly are. Of a percentile, the share
    of requests beyond it is the mean, and the ends are the percentiles that are so far from it. Another run has noise
    of its own besides that of these.

    Args:
        values: latency of each request, in the order of arrival [s], (n,).
        percentile: the statistic; None for the mean.
        runs: independent runs that they are from [count].

    Sources: Woodruff 1952, percentiles by the share beyond them; Schmeiser 1982, batch means; Abramowitz and Stegun
    1964, 26.7.5, Student's t.
    """
    beyond = values if percentile is None else values > np.percentile(values, percentile)
    pieces = np.array_split(np.arange(len(values)), min(12 * runs, len(values)))
    blocks = [float(beyond[piece].mean()) for piece in pieces]
    normal = 1.645  # beyond so many standard deviations 5 % lie on either side
    freedom = max(len(blocks) - 1, 1)
    student = normal * (1.0 + (normal**2 + 1.0) / (4.0 * freedom))
    of_run = float(np.std(blocks)) * math.sqrt(len(blocks) / freedom) / math.sqrt(max(len(blocks) / runs, 1.0))
    half = student * of_run * math.sqrt(1.0 + 1.0 / runs)
    if percentile is None:
        return float(values.mean()) - half, float(values.mean()) + half
    ends = np.clip((percentile - 100.0 * half, percentile + 100.0 * half), 0.0, 100.0)
    low, value, high = np.percentile(values, (ends[0], percentile, ends[1]))
    # another run may lack the burst of a block, which may go on into its neighbours, or have more of the slowest
    worst = int(np.argmax(blocks))
    burst = np.concatenate(pieces[max(worst - 1, 0) : worst + 2])
    without = np.percentile(np.delete(values, burst), percentile) if len(burst) < len(values) else value
    reach = float(max(value - low, value - without, high - value))
    return float(value) - reach, float(value) + reach


def all_finite(data: Any) -> bool:
    """Whether plain data has finite numbers only."""
    match data:
        case dict():
            return all(all_finite(value) for value in cast("dict[str, Any]", data).values())
        case list() | tuple():
            return all(all_finite(value) for value in cast("list[Any]", data))
        case float():
            return math.isfinite(data)
        case _:
            return True


def printed(answer: Any) -> str:
    """The text of an answer as it is printed."""
    from rich.console import Console

    screen = Console(file=StringIO(), width=200)
    for part in answer.text(200):
        screen.print(part)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def main() -> None:
    """Ask, check, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    start, counts = time.process_time(), Counter[str]()
    for asked in questions(options.count, options.seed):
        try:
            found = check(asked, range(11, 11 + options.repeats))
        except Exception as error:  # any crash is what is looked for
            found = Checked(outcome="crashed", detail=f"{type(error).__name__}: {error}")
        counts[found.outcome] += 1
        if found.outcome not in ("held", "infeasible"):
            print(found.outcome, asked, found.detail, flush=True)
    print(json.dumps({"questions": options.count, **counts, "cpu_s": round(time.process_time() - start)}))


if __name__ == "__main__":
    main()
