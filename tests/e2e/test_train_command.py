"""`rackline train` as a person or a program calls it, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from helpers import call
from rackline.cli.main import run
from rackline.search.train import timeline_of

TRAIN = ["train", "llama-3.1-70b", "--on", "dgx-h100", "--chips", "64", "--global-batch", "1Mi", "--seq", "8Ki"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return json.loads(call(capsys, *arguments, "--json"))


def test_issue_command_answers_with_days_and_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys,
        *("train", "llama-3.1-405b", "--on", "dgx-h100", "--chips", "16384"),
        *("--tokens", "15.6T", "--global-batch", "16M"),
    )
    assert found["candidates_evaluated"] >= 50_000
    assert found["elapsed_s"] < 12.0
    assert (found["global_batch_sequences"], found["global_batch_tokens"]) == (2048, 2048 * 8192)
    best = found["best"]
    for key in ("layout", "step_s", "breakdown", "memory", "mfu", "hfu", "tokens_per_s_per_chip", "levels", "binding"):
        assert key in best
    assert best["memory"]["total_bytes"] <= 80e9
    assert 0.3 < best["mfu"] <= best["hfu"] < 0.7
    hours = 15.6e12 / (2048 * 8192) * best["step_s"] / 3600 / found["reliability"]["goodput"]
    assert best["days"] == pytest.approx(hours / 24)
    assert best["kwh"] == pytest.approx(hours * 16384 * best["wall_w"] / 1000.0, rel=1e-6)
    assert best["step_s"] <= min(one["step_s"] for one in found["others"])
    assert {one["group"] for one in best["levels"]} >= {"pipeline", "data"}


def test_parts_of_a_step_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    best = answer(capsys, *TRAIN, "--layout", "tp=4,pp=4,virtual_pp=5")["best"]
    parts = best["breakdown"]
    micro_batches = 128 / (best["layout"]["dp"] * best["layout"]["micro_batch"])
    whole = micro_batches * parts["stage_s"] + sum(
        parts[f"{name}_s"] for name in ("bubble", "data", "optimizer", "fixed")
    )
    assert best["tuned_s"] == pytest.approx(whole)
    memory = best["memory"]
    assert memory["total_bytes"] == pytest.approx(
        sum(v for k, v in memory.items() if k.endswith("_bytes") and k != "total_bytes")
    )


def test_a_run_goes_at_the_pace_of_published_ones_and_the_tuned_one_is_an_option_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = ["--layout", "tp=4,pp=4,virtual_pp=5,cp=2,micro_batch=1,zero=1", "--tokens", "1T"]
    found, tuned = answer(capsys, *TRAIN, *fixed), answer(capsys, *TRAIN, *fixed, "--pace", "tuned")
    practice, one, other = found["practice"], found["best"], tuned["best"]
    assert tuned["practice"] is None
    assert one["tuned_s"] == other["step_s"]
    for name in ("step_s", "days", "usd"):
        assert one[name] == pytest.approx(practice["slowdown"] * other[name])
    assert one["mfu"] == pytest.approx(other["mfu"] / practice["slowdown"])
    assert one["chip_w"] <= other["chip_w"]  # what is lost draws idle power
    for none in (["--stack", "unit"], ["--stack", "llama-3"], ["--lora", "16"]):
        assert answer(capsys, *TRAIN, *none)["practice"] is None
    screen = call(capsys, *TRAIN, *fixed)
    assert "published over tuned" in screen
    assert "--pace tuned" in screen


def test_report_shows_layout_time_memory_pipeline_and_levels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot, trace = tmp_path / "pipeline.svg", tmp_path / "pipeline.json"
    text = call(
        capsys,
        *(*TRAIN, "--layout", "tp=4,pp=4", "--schedule", "zb-h1", "--trace", str(trace)),
        *("--plot", str(plot), "--plot-kind", "pipeline"),
    )
    for part in ("zb-h1", "MFU", "memory of the fullest chip", "gradient of weights", "which level", "scale-up"):
        assert part in text
    assert plot.read_text().count("<path") > 100
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1, 2, 3}


def test_full_recompute_costs_hardware_flop(capsys: pytest.CaptureFixture[str]) -> None:
    plain, again = (
        answer(capsys, *TRAIN, "--layout", "tp=8,pp=4,micro_batch=1", "--recompute", name)["best"]
        for name in ("none", "full")
    )
    assert again["step_s"] > plain["step_s"]
    assert again["hfu"] > 1.25 * again["mfu"]
    assert plain["hfu"] == plain["mfu"]
    assert again["memory"]["activations_bytes"] < plain["memory"]["activations_bytes"]


def test_out_of_memory_is_an_answer_with_the_nearest_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "train", "llama-3.1-405b", "--on", "dgx-h100", "--chips", "8", "--global-batch", "1Mi")
    assert found["best"] is None
    assert "GB on a chip, has 86 GB" in found["reason"]
    assert found["nearest"]["recompute"] == "full"
    assert "Nothing fits" in call(
        capsys, "train", "llama-3.1-405b", "--on", "dgx-h100", "--chips", "8", "--global-batch", "1Mi"
    )


def test_skewed_experts_are_slower_and_a_capacity_factor_bounds_it(capsys: pytest.CaptureFixture[str]) -> None:
    moe = ["train", "qwen3-30b-a3b", "--on", "dgx-h100", "--chips", "16", "--global-batch", "512Ki", "--seq", "4Ki"]
    moe += ["--layout", "ep=8,tp=1,pp=1,cp=1,micro_batch=1,zero=1", "--recompute", "full"]
    even, skewed, cut = (
        answer(capsys, *moe, *more)["best"]["step_s"]
        for more in ([], ["--expert-load", "2"], ["--expert-load", "2", "--capacity-factor", "1.25"])
    )
    assert even < cut < skewed


def test_adapters_train_a_fraction_of_the_states_in_two_thirds_of_the_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = ["--layout", "tp=4,pp=4,virtual_pp=5,cp=2,micro_batch=1,zero=1", "--recompute", "none", "--pace", "tuned"]
    whole, adapters = (answer(capsys, *TRAIN, *fixed, *more)["best"] for more in ([], ["--lora", "16"]))
    assert 0.75 < adapters["step_s"] / whole["step_s"] < 0.9  # 0.89 was measured on a Llama of 3B (torchtune, A100)
    few = answer(capsys, *TRAIN, *fixed, "--lora", "16", "--lora-targets", "qkv")["best"]
    assert 0.6 < few["step_s"] / whole["step_s"] < 0.8
    for name in ("gradients_bytes", "optimizer_bytes"):
        assert adapters["memory"][name] < 0.02 * whole["memory"][name]
    assert adapters["memory"]["weights_bytes"] == pytest.approx(whole["memory"]["weights_bytes"], rel=0.01)
    assert adapters["breakdown"]["data_s"] < 0.02 * whole["breakdown"]["data_s"]


def test_a_batch_that_replicas_cannot_share_is_moved_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    """64M tokens are 15,625 sequences of 4,096, an odd number: 512 chips use 16,384."""
    run_ = ["train", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "512", "--seq", "4Ki", "--global-batch"]
    moved, exact = answer(capsys, *run_, "64M"), answer(capsys, *run_, "67108864")
    assert moved["asked_batch_tokens"] == 64e6
    assert exact["asked_batch_tokens"] == exact["global_batch_tokens"] == 67108864
    for found in (moved, exact):
        assert (found["global_batch_sequences"], found["global_batch_tokens"]) == (16384, 16384 * 4096)
    assert moved["best"] == exact["best"]
    assert "moved from 15,625 to 16,384 sequences" in " ".join(call(capsys, *run_, "64M").split())
    assert "moved from" not in call(capsys, *run_, "67108864")


def test_only_schedules_that_the_stack_has_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *TRAIN)
    assert found["schedules"] == ["1f1b", "interleaved"]
    assert {one["layout"]["schedule"] for one in (found["best"], *found["others"])} <= {"1f1b", "interleaved"}
    named = answer(capsys, *TRAIN, "--schedule", "zb-h1", "--layout", "pp=4")
    assert named["best"]["layout"]["schedule"] == "zb-h1"
    sharded = answer(capsys, *TRAIN, "--stack", "llm-foundry")
    assert sharded["schedules"] == []
    assert sharded["best"]["layout"]["pp"] == 1


def test_llama_3_fits_in_its_published_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """430 TFLOP/s per chip in 9.7 to 10.5 s a step (attention counted or not); the cheapest recompute that fits."""
    best = answer(
        capsys,
        *("train", "llama-3.1-405b", "--on", "dgx-h100", "--chips", "8192", "--global-batch", "16Mi", "--seq", "8Ki"),
        *("--stack", "llama-3", "--layout", "tp=8,pp=16,cp=1,dp=64,micro_batch=1,zero=1"),
    )["best"]
    assert best["layout"]["recompute"] == "modules"
    rate = 6 * 405e9 * 16 * 2**20 / best["step_s"] / 8192
    assert rate == pytest.approx(430e12, rel=0.15)


REFUSED: list[tuple[list[str], tuple[str, ...]]] = [
    ([*TRAIN, "--layout", "tp=3"], ("tp=3 does not divide", "nearest")),
    ([*TRAIN, "--layout", "tp=4,pp=5"], ("to divide 64 chips", "nearest: 60 chips")),
    (
        [*TRAIN, "--layout", "tp=1,pp=1,micro_batch=3"],
        ("a global batch of 128 sequences", "nearest: a global batch of"),
    ),
    ([*TRAIN, "--layout", "virtual_pp=2,pp=1"], ("virtual_pp needs pp of at least 2",)),
    ([*TRAIN, "--layout", "ep=8"], ("a dense model has no ep",)),
    ([*TRAIN, "--layout", "tq=8"], ("nearest: tp=8",)),
    ([*TRAIN, "--layout", "zero=4"], ("0, 1, 2 or 3",)),
    ([*TRAIN[:4], "--chips", "1e6", *TRAIN[6:]], ("1 to 32768", "nearest: 32768")),
    ([*TRAIN[:-4], "--global-batch", "1", "--seq", "8Ki"], ("at least one sequence",)),
    ([*TRAIN, "--stack", "llm-foundry", "--layout", "pp=4"], ("the stack has none", "nearest: pp=1")),
    ([*TRAIN, "--stack", "hai-llm", "--layout", "pp=4,dp=16,micro_batch=8"], ("dualpipe", "use --schedule for others")),
    ([*TRAIN, "--schedule", "zb-h3"], ("--schedule", "nearest: zb-h")),
    ([*TRAIN, "--recompute", "ful"], ("nearest: full",)),
    ([*TRAIN, "--stack", "nemoo"], ("--stack", "nearest: nemo")),
    ([*TRAIN, "--precision", "fp9"], ("--precision", "nearest: fp8")),
    ([*TRAIN, "--optimizer", "adamm"], ("nearest: adam",)),
    ([*TRAIN, "--tokens", "0"], ("--tokens",)),
    ([*TRAIN, "--expert-load", "0.5"], ("--expert-load",)),
    ([*TRAIN, "--plot", "a.gif"], ("--plot", ".svg")),
    (["train", "lecture-frontier", *TRAIN[2:]], ("layers are known",)),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=lambda value: " ".join(value)[-40:])
def test_refusal_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], parts: tuple[str, ...]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


PIPELINE = ["train", "llama-3.1-70b", "--on", "gb200-nvl72", "--chips", "4096", "--global-batch", "16M",
            "--precision", "fp8", "--layout", "tp=2,pp=2,virtual_pp=40,dp=1024"]  # fmt: skip


def test_one_bubble_in_an_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The share under the drawn pipeline is that of the step; sends that the stack hides are hidden in both."""
    best = answer(capsys, *PIPELINE)["best"]
    share = best["breakdown"]["bubble_s"] / best["step_s"]
    figure = tmp_path / "pipeline.svg"
    shown = " ".join(call(capsys, *PIPELINE, "--plot", str(figure), "--plot-kind", "pipeline").split())
    (drawn,) = re.findall(r"([\d.]+) % of the step waits", shown)
    (listed,) = re.findall(r"pipeline bubble [\d.]+ ms ([\d.]+) %", shown)
    assert float(drawn) == pytest.approx(100 * share, rel=0.01)
    assert float(listed) == pytest.approx(100 * share, abs=0.051)  # one decimal
    assert f"{drawn} % of the step waits" in figure.read_text(encoding="utf-8")


def test_a_drawn_pipeline_waits_as_long_as_the_closed_form_says(capsys: pytest.CaptureFixture[str]) -> None:
    plan = rl.train("llama-3.1-70b", on="gb200-nvl72", chips=4096, global_batch="16M", precision="fp8",
                    layout="tp=2,pp=2,virtual_pp=40,dp=1024").result  # fmt: skip
    best = plan.best[0]
    assert timeline_of(plan, best).bubble_s == pytest.approx(best.step["bubble_s"], rel=0.35)


@pytest.mark.parametrize(
    ("name", "asked", "wanted"),
    [("llama-2-7b", None, 4096), ("llama-3.1-8b", None, 8192), ("llama-3.1-8b", "8k", 8000),
     ("llama-3.1-8b", "8Ki", 8192), ("llama-2-7b", "8Ki", 8192)],
)  # fmt: skip
def test_a_sequence_is_as_long_as_the_context_and_k_is_a_thousand(name: str, asked: str | None, wanted: int) -> None:
    given: dict[str, Any] = {} if asked is None else {"seq": asked}
    found = rl.train(name, on="dgx-h100", chips=8, global_batch="64k", layout="tp=8", **given)
    assert found.result.system.seq_len == wanted
    said = "k is 1000; 8Ki is 8,192" in " ".join(found.defaults)
    assert said == (asked == "8k")


def test_k_is_a_thousand_in_every_question() -> None:
    """So that 128k tokens stay within a context of 131,072, and the exact limit is no warning either."""
    for context in ("128k", "128Ki"):
        assert not rl.fit("llama-3.1-8b", on="dgx-h100", context=context).warnings
    asks: dict[str, Any] = {"on": "dgx-h100", "chips": 8, "use": "batch", "layout": "tp=8"}
    planned = rl.plan("llama-3.1-8b", input="4k", output="1k", **asks).question
    assert (planned.input, planned.output) == (4000, 1000)
    trained = rl.train("llama-3.1-8b", on="dgx-h100", chips=8, global_batch="64k", seq="4k", layout="tp=8").question
    assert (trained.seq, trained.global_batch) == (4000, 64000)


def test_causal_mfu_stands_beside_the_usual_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-8B at 8,192: 6 N + 12 L H D s FLOP a token, and half of the attention with a causal mask."""
    ask = ["train", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "8", "--global-batch", "64Ki", "--layout", "tp=8"]
    best = answer(capsys, *ask)["best"]
    weights, square = 6 * (8.03e9 - 128256 * 4096), 12 * 32 * 32 * 128 * 8192
    wanted = (weights + square / 2) / (weights + square)
    assert best["mfu_causal"] / best["mfu"] == pytest.approx(wanted, rel=0.002)
    text = " ".join(call(capsys, *ask).split())
    assert re.search(r"MFU [\d.]+ % \(causal [\d.]+ %\)", text)
