"""More choice never costs more: random questions, each asked again with more chips, options, engines, or looser limits.

    uv run python bench/more_choice.py [--count 20] [--seed 575]

Prints the pairs in which the plan with more choice costs more than the other by over `SLACK`, and how many were asked.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import rackline as rl
from rackline.search.choice import TIE

SLACK = TIE + 0.04
"""A simpler deployment may cost 3 % more, and near its capacity a rate is known to some 4 % [1]."""
DEPLOYMENTS = (
    ("llama-3.1-8b", "dgx-h100"),
    ("qwen3-8b", "l40s-8"),
    ("qwen3-30b-a3b", "dgx-h200"),
    ("gpt-oss-20b", "dgx-b200"),
    ("phi-4", "mi300x-8"),
    ("llama-3.1-70b", "dgx-h100"),
)
Question = Mapping[str, Any]


class Pair(NamedTuple):
    """Two questions of which the second has more choice.

    Args:
        what: more of what.
        less, more: arguments of `rackline.plan`.
    """

    what: str
    less: Question
    more: Question


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Draw questions, as arguments of `rackline.plan`."""
    draw = random.Random(seed)
    drawn: list[dict[str, Any]] = []
    for _ in range(count):
        model, on = draw.choice(DEPLOYMENTS)
        lengths = {"input": round(100 * 60 ** draw.random()), "output": round(4 * 300 ** draw.random())}
        limits = {"tpot": f"{10 * 15 ** draw.random():.0f}ms", "ttft": f"{0.3 * 15 ** draw.random():.2f}s"}
        drawn.append({"model": model, "on": on, "chips": draw.choice((1, 2, 4)), **lengths, **limits})
    return drawn


def pairs(question: dict[str, Any]) -> Iterator[Pair]:
    """Return the pairs that a question is asked in."""
    tpot_ms, ttft_s = float(question["tpot"][:-2]), float(question["ttft"][:-1])
    yield Pair("chips", question, {**question, "chips": 2 * question["chips"]})
    yield Pair("time per output token", question, {**question, "tpot": f"{1.4 * tpot_ms:.0f}ms"})
    yield Pair("time to first token", question, {**question, "ttft": f"{1.5 * ttft_s:.2f}s"})
    yield Pair("requests that may be late", question, {**question, "tpot": f"{question['tpot']}@p90"})
    yield Pair("servers that may be late", {**question, "confidence": "90%"}, question)
    yield Pair("pools", {**question, "serving": "aggregated"}, question)
    yield Pair("data types", question, {**question, "precision": ["native", "fp8"]})
    yield Pair("layouts", {**question, "layout": "tp=1"}, question)
    for mode in ("chunked=512", "chunked=2048", "prefill-first=8192"):
        less = {**question, "serving": "aggregated"}
        yield Pair(f"schedulers than {mode}", {**less, "mode": mode}, less)


def cost_of(question: Question, known: dict[str, float | None]) -> float | None:
    """Return the cost of the answer of a question [USD per million output tokens]; None without one.

    Args:
        known: costs by question, to which this one is added.
    """
    key = json.dumps(dict(question), sort_keys=True)
    if key not in known:
        plan = rl.plan(**question).result.plan
        known[key] = None if plan.best is None else plan.cost_of(plan.best)
    return known[key]


def dearer(question: dict[str, Any]) -> list[str]:
    """Return the pairs of a question in which more choice costs more, each as a sentence."""
    known: dict[str, float | None] = {}
    broken: list[str] = []
    for pair in pairs(question):
        less, more = cost_of(pair.less, known), cost_of(pair.more, known)
        if less is not None and (more is None or more > less * (1.0 + SLACK)):
            broken.append(
                f"more {pair.what}: ${less:.4g} without, {more and f'${more:.4g}'} with it: {dict(pair.more)}"
            )
    return broken


def main() -> None:
    """Ask, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=575)
    options = parser.parse_args()
    start, asked, broken = time.process_time(), 0, 0
    for question in questions(options.count, options.seed):
        asked += sum(1 for _ in pairs(question))
        for sentence in dearer(question):
            broken += 1
            print(sentence, flush=True)
    print(f"{broken} of {asked} pairs broken, {time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
