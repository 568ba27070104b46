"""The answer of `plan` on one screen, at several widths and through a pipe."""

from __future__ import annotations

import io
from functools import cache

import pytest
from rich.console import Console

import rackline as rl
from rackline.report.plan_summary import MOST_LINES, plan_summary
from rackline.search import Plan

QUESTIONS = {
    "pools": {"model": "llama-3.3-70b", "on": "dgx-h100", "input": "2k", "output": 500, "tpot": "50ms", "ttft": "2s"},
    "experts": {"model": "gpt-oss-120b", "on": "dgx-h100", "input": "4k", "output": "1k", "chips": 4, "tpot": "20ms"},
    "unpriced": {"model": "llama-3.1-8b", "on": "tpu-v7-64", "input": "1k", "output": 200, "chips": 4},
    "nothing": {"model": "llama-3.1-405b", "on": "l40s-8", "input": "1k", "output": 200},
}


@cache
def answer(name: str) -> Plan:
    question = dict(QUESTIONS[name])
    return rl.plan(question.pop("model"), **question).result.plan


def printed(name: str, width: int, *, terminal: bool = True) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    console.print(plan_summary(answer(name), width=width, elapsed_s=1.5))
    return out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", QUESTIONS)
def test_it_fits_and_nothing_is_cut(name: str, width: int, terminal: bool) -> None:
    text = printed(name, width, terminal=terminal)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    if width >= 100:
        assert len(text.splitlines()) <= MOST_LINES


def test_it_says_what_to_run_what_it_gives_and_costs_what_limits_it_and_what_is_second() -> None:
    text, best = printed("pools", 100), answer("pools").best
    assert best is not None
    flat = " ".join(text.split())
    for part in (
        "llama-3.1-70b on dgx-h100", f"{best.requests_per_s:.3g}", "of the limit", "p99", "8 paid",
        "reserved for three years", "an hour", "limits", "waits for", "memory of the fullest chip", "second",
        "one engine for both", "next", "--full", "launch rules of",
    ):  # fmt: skip
        assert part in flat, part


def test_without_a_price_nothing_is_in_dollars() -> None:
    text = printed("unpriced", 100)
    assert "$" not in text
    assert "chip-hours" in text


def test_without_an_answer_it_says_why() -> None:
    text = printed("nothing", 100)
    assert "Nothing fits" in text
    assert "second" not in text
