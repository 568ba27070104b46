"""The answer of `plan` on one screen, at several widths and through a pipe."""

from __future__ import annotations

import io
import re
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from rackline.report.deployments_report import MOST_LINES
from rackline.search import Plan

MIX = "share,input,output\n0.8,500,200\n0.2,3000,400\n"
LIMITS = {"tpot": "50ms", "ttft": "2s"}
SHORT = {"input": "1k", "output": 200}
# questions of different kinds: what they ask for makes other parts of the answer long
QUESTIONS: dict[str, dict[str, Any]] = {
    "pools": {"model": "llama-3.1-70b", "on": "dgx-h100", "input": "2k", "output": 500, "tpot": "40ms", "ttft": "2s"},
    "experts": {"model": "gpt-oss-120b", "on": "dgx-h100", "input": "4k", "output": "1k", "chips": 4, "tpot": "20ms"},
    "experts on a rack": {"model": "deepseek-v3", "on": "gb200-nvl72", "chips": 16, "tpot": "30ms@p99", **SHORT},
    "unpriced": {"model": "llama-3.1-8b", "on": "tpu-v7-64", "chips": 4, **SHORT},
    "nothing fits": {"model": "llama-3.1-405b", "on": "l40s-8", **SHORT},
    "limits that nothing meets": {"model": "llama-3.1-70b", "on": "dgx-h100", "tpot": "1ms", **SHORT},
    "long prompts": {"model": "llama-3.1-8b", "on": "dgx-h200", "chips": 1, "input": "20k", "output": 99, "ttft": "9s"},
    "another vendor": {"model": "llama-3.1-70b", "on": "mi355x-8", **SHORT, **LIMITS},
    "one card": {"model": "qwen3-8b", "on": "rtx-4090"},
    "users and several lengths": {
        "model": "llama-3.1-8b", "on": "dgx-h100", "mix": MIX, "users": 2000, "think_time": "9s",
    },
    "chips left over": {
        "model": "llama-3.1-8b", "on": "dgx-h100", "layout": "pp=3", "any_layout": True, "serving": "aggregated",
        "input": "2k", "output": 200, **LIMITS,
    },
    "prompts on other chips": {
        "model": "llama-3.1-8b", "on": "dgx-h200", "chips": 4, "prefill_on": "dgx-h100", "prefill_chips": 4, **SHORT,
        "tpot": "8ms", "ttft": "500ms",
    },
}  # fmt: skip
_UNIT = re.compile(r"\s*(%|[mµn]?s|h|d|[kMGT]?i?B|W|kW|×)(\s|$|[,;)])")
_NUMBER = re.compile(r"(^|[\s$(])[\d.,]*\d[kMGT]?$")


@cache
def answered(name: str) -> Any:
    question = dict(QUESTIONS[name])
    if "mix" in question:
        file = Path(tempfile.mkdtemp()) / "mix.csv"
        file.write_text(question["mix"])
        question["mix"] = str(file)
    return rl.plan(question.pop("model"), **question)


def answer(name: str) -> Plan:
    return answered(name).result.plan


def printed(name: str, width: int, *, terminal: bool = True) -> str:
    """The whole answer as the command line prints it."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    for part in answered(name).text(width):
        console.print(part)
    return out.getvalue()


def fleet_lines(name: str) -> int:
    """Lines of what was asked for beside the answer."""
    return 16 if answered(name).result.fleet is not None else 0


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", QUESTIONS)
def test_it_fits_and_nothing_is_cut(name: str, width: int, terminal: bool) -> None:
    lines = printed(name, width, terminal=terminal).splitlines()
    assert not any("…" in line for line in lines)
    assert max(len(line) for line in lines) <= width
    if width >= 100:
        before, _, _ = "\n".join(lines).partition("\nTo simulate it again:")  # the command is as long as it has options
        assert len(before.rstrip().splitlines()) <= MOST_LINES + fleet_lines(name)
    for line, after in pairwise(lines):
        assert not (_NUMBER.search(line.rstrip(" │")) and _UNIT.match(after.strip(" │"))), (line, after)


def test_questions_of_many_kinds_have_answers_of_many_kinds() -> None:
    assert len(QUESTIONS) == 12
    plans = {name: answer(name) for name in QUESTIONS}
    assert {name for name, plan in plans.items() if plan.best is None} == {"nothing fits", "limits that nothing meets"}
    assert {plan.best.serving for plan in plans.values() if plan.best} == {"aggregated", "disaggregated"}
    left = plans["chips left over"].best
    assert left is not None
    assert left.leftover is not None


def test_it_says_what_to_run_what_it_gives_and_costs_what_limits_it_and_what_is_second() -> None:
    text, best = printed("pools", 100), answer("pools").best
    assert best is not None
    assert best.prefill_pool is not None
    assert best.decode_pool is not None
    used = f"{best.decode_pool.num_chips} decode + {best.prefill_pool.num_chips} prefill of 8"
    flat = " ".join(text.split())
    for part in (
        "llama-3.1-70b on dgx-h100", f"{best.requests_per_s:.3g}", "limit", "p99", used, "8 paid",
        "reserved for three years", "an hour", "limits", "waits for", "memory of the fullest chip", "second",
        "one engine for both", "next", "--full", "launch rules of",
    ):  # fmt: skip
        assert part in flat, part


@pytest.mark.parametrize(("name", "named"), [("pools", True), ("long prompts", False)])
def test_a_prefill_pass_is_named_where_chips_only_prefill(name: str, named: bool) -> None:
    assert ("a prefill pass" in " ".join(printed(name, 160).split())) == named


def test_without_a_price_nothing_is_in_dollars() -> None:
    text = printed("unpriced", 100)
    assert "$" not in text
    assert "chip-hours" in text


def test_without_an_answer_it_says_why() -> None:
    text = printed("nothing fits", 100)
    assert "Nothing fits" in text
    assert "second" not in text
