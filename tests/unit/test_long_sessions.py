"""Conversations that outgrow the longest request of a model end there, and answers say how many do."""

from __future__ import annotations

import re
from math import inf
from typing import Any

import numpy as np
import pytest

import rackline as rl
from helpers import model
from rackline.simulation import Lengths, Sessions

MESSAGE, ANSWER = 1000, 500
LENGTHS = Lengths(input_len=MESSAGE, output_len=ANSWER)
WINDOW = 40_960  # max_position_embeddings of Qwen3-32B (huggingface.co/Qwen/Qwen3-32B)
TALK: dict[str, Any] = {"turns": 40, "input": MESSAGE, "output": ANSWER, "think_time": "10s"}


def told(answer: Any) -> float | None:
    """The share of conversations that end early, as an answer says it; None where it says nothing."""
    lines = [text for text in answer.warnings if "end early" in text]
    assert len(lines) <= 1
    if not lines:
        return None
    assert f"{WINDOW:,} tokens that qwen3-32b takes" in lines[0]
    found = re.match(r"([\d.]+) % of the conversations end early", lines[0])
    assert found is not None
    return float(found.group(1)) / 100.0


@pytest.mark.parametrize("turns", [5.0, 30.0, 100.0])
@pytest.mark.parametrize("window", [8192, WINDOW, 131_072])
def test_no_request_is_longer_than_the_window_and_the_share_is_the_geometric_law(turns: float, window: int) -> None:
    """A session of n turns on average reaches its (k+1)-th request with probability (1 - 1/n)^k."""
    sessions = Sessions(turns=turns, max_tokens=window)
    drawn = sessions.draw(np.random.default_rng(3), 5000, 1.0, LENGTHS)
    assert (drawn.input_len + drawn.output_len).max() <= window
    fitting = window // (MESSAGE + ANSWER)
    law = (1 - 1 / turns) ** fitting
    assert sessions.share_ended_early(LENGTHS) == pytest.approx(law if law > 1e-3 else 0.0)
    assert Sessions(turns=turns, max_tokens=inf).share_ended_early(LENGTHS) == 0.0


def test_the_share_is_that_of_agents_that_are_followed_one_by_one() -> None:
    """Agents of 6 turns with 3 calls each, lengths at random, followed with a coin at each step."""
    lengths = Lengths(input_len=400, output_len=200, spread="exponential")
    agents = Sessions(turns=6, tool_calls=3, tool_tokens=1200, system_tokens=2000, max_tokens=32_768)
    rng, early, number = np.random.default_rng(5), 0, 4000
    for _ in range(number):
        context, turns = 2000.0, rng.geometric(1 / 6)
        steps = [False] + [True] * (rng.geometric(1 / 4) - 1)
        for _ in range(turns - 1):
            steps += [False] + [True] * (rng.geometric(1 / 4) - 1)
        for place, is_tool in enumerate(steps):
            context += rng.exponential(1200 if is_tool else 400) + rng.exponential(200)
            if place and context > 32_768:
                early += 1
                break
    assert agents.share_ended_early(lengths) == pytest.approx(early / number, abs=0.03)


def test_sessions_of_one_length_end_early_all_or_none() -> None:
    for window, share in ((6000, 0.0), (5999, 1.0)):  # four turns need 4 × 1,500 tokens
        fixed = Sessions(turns=4, same_length=True, max_tokens=window)
        assert fixed.share_ended_early(LENGTHS) == share


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        (rl.plan, {"serving": "aggregated", "calibration": "vllm", "chips": 2}),
        (rl.simulate, {"layout": "tp=2", "chips": 2, "rate": 0.02, "requests": 120}),
        (rl.simulate, {"layout": "tp=2", "chips": 2, "agents": "turns", "concurrency": "2", "requests": 60}),
        (rl.tiers, {"rate": 0.1}),
    ],
)
def test_an_answer_says_how_many_sessions_end_early(verb: Any, more: dict[str, Any]) -> None:
    asked = {"on": "dgx-h100", **more}
    share = told(verb("qwen3-32b", **asked, **TALK))
    assert share == pytest.approx((1 - 1 / 40) ** (WINDOW // (MESSAGE + ANSWER)), abs=0.01)


def test_nothing_is_said_where_all_sessions_fit() -> None:
    assert told(rl.tiers("qwen3-32b", on="dgx-h100", rate=0.1, **{**TALK, "turns": 2})) is None


def test_prompts_of_a_plan_are_those_of_sessions_that_fit() -> None:
    """The mean prompt is below the window however long conversations would go on, and grows with it."""
    prompts = [
        rl.tiers(name, on="dgx-h100", rate=0.1, **{**TALK, "turns": 1000}).result.prompt_len
        for name in ("qwen3-32b", "llama-3.1-70b")
    ]
    for prompt, name in zip(prompts, ("qwen3-32b", "llama-3.1-70b"), strict=True):
        window = model(name).max_context_len
        assert window is not None
        assert 0.4 * window < prompt < 0.5 * window  # half of it, less a little, when all end there
