"""A what-if asks the plan's own question at each value: nothing that was asked is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from helpers import model
from rackline.api.what_if import setting
from rackline.cli.main import run
from rackline.errors import InputError

SMALL: dict[str, Any] = {
    "on": "dgx-h100",
    "chips": 1,
    "layout": "tp=1",
    "serving": "aggregated",
    "precision": "fp8",
    "input": 1000,
    "output": 100,
    "tpot": "20ms",
    "mode": "chunked=2048",
}
OWN = "hbm_bandwidth=3.35TB/s"
CASES: dict[str, dict[str, Any]] = {
    "turns": {"turns": 2, "think_time": "2s"},
    "joules": {"objective": "joules", "power_cap": "600W"},
    "of the best": {
        "speculate": "2=2.2",
        "users": 3000,
        "engine": "vllm",
        "launch": True,
        "set": "peak_flop_per_s.bf16=2e15",
    },
}


def _data(**more: Any) -> dict[str, Any]:
    return rl.plan("llama-3.1-8b", **SMALL, **more).to_dict()


@pytest.mark.parametrize("case", CASES)
def test_the_value_it_already_has_changes_nothing(case: str) -> None:
    plain = _data(**CASES[case])
    (point,) = _data(**CASES[case], what_if=OWN)["points"]
    assert plain["objective"] == CASES[case].get("objective", "dollars")
    assert point["best"] is not None
    for key in ("best", "fleet", "speculation", "attention_ffn", "power_caps", "prefixes", "launch"):
        assert point[key] == plain[key], key


def test_experts_apart_are_asked_at_each_value() -> None:
    asked: dict[str, Any] = {
        **SMALL,
        "chips": 16,
        "layout": "attention_dp=8,ep=8",
        "tpot": "100ms",
        "attention_ffn": True,
    }
    found = rl.plan("qwen3-235b-a22b", **asked).to_dict()["attention_ffn"]
    data = rl.plan("qwen3-235b-a22b", **asked, what_if="hbm_bandwidth=3.35TB/s").to_dict()
    assert found is not None
    assert data["points"][0]["attention_ffn"] == found


def test_the_terminal_shows_what_was_asked_at_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--on dgx-h100 --chips 1 --layout tp=1 --serving aggregated --precision fp8 --input 1000 --output 100"
    more = ["--tpot", "20ms", "--speculate", "2=2.2", "--what-if", "hbm_bandwidth=3TB/s,4TB/s"]
    assert run(["plan", "llama-3.1-8b", *words.split(), *more]) == 0
    text = capsys.readouterr().out
    for value in ("3TB/s", "4TB/s"):
        assert f"hbm_bandwidth = {value}" in text
    assert text.count("speculative decoding on the chosen") == 2


def test_a_list_of_users_shows_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    asked = {"ask": "plan", "model": "llama-3.1-8b", **SMALL, "users": [3000, 6000]}
    file.write_text(json.dumps([asked]), encoding="utf-8")
    few, many = (one.answer for one in rl.ask(str(file)).result.answers)
    assert few is not None
    assert many is not None
    lines = [one.verb.summary(one) for one in (few, many)]
    assert lines[0] != lines[1]
    assert [one.result.fleet.copies for one in (few, many)] == [
        int(line.split(" copies")[0].split()[-1]) for line in lines
    ]


def test_one_engine_and_two_pools_have_a_column_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")  # at 80 titles break into lines
    asked = {**SMALL, "chips": 4, "ttft": "2s", "serving": "both", "what_if": "hbm_bandwidth=2TB/s,3.35TB/s"}
    points = rl.plan("llama-3.1-8b", **asked).to_dict()["points"]
    cost = "usd_per_mtok_output_all_in"
    for point in points:
        kinds = [point[kind] for kind in ("aggregated", "pools")]
        served = [kind[cost] for kind in kinds if kind["basis"] == "simulated"]
        assert point["best"][cost] == min(served)
        assert kinds[0][cost] != kinds[1][cost]
    words = ["plan", "llama-3.1-8b"]
    for name, value in asked.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "one engine  two pools" in shown
    assert "were another: $/Mtok of one engine and of two pools" in " ".join(shown.split())
    ends = [points[-1][kind][cost] / points[0][kind][cost] for kind in ("aggregated", "pools")]
    assert f"one engine {ends[0]:.3g} times the cost, two pools {ends[1]:.3g} times" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("kv_bytes_per_token", "0.5", "architecture.attention.num_kv_heads=1"),  # fewer bytes than one head has
        (
            "kv_bytes_per_token",
            "128Ki",
            "architecture.attention.num_kv_heads=8",
        ),  # 32 layers, 8 heads of 128
        ("kv_bytes_per_token", "64Ki", "architecture.attention.num_kv_heads=4"),
        ("kv_bytes_per_token", "900k", "architecture.attention.num_kv_heads=32"),  # as many as query heads
        ("hbm_bandwidth", "4TB/s", "chip.hbm_bytes_per_s=4TB/s"),
    ],
)
def test_a_value_of_a_what_if_is_a_setting(name: str, value: str, expected: str) -> None:
    found = setting(name, value, model("llama-3.1-8b"))
    assert found == expected or found.endswith(expected.removeprefix("chip."))


def test_experts_for_a_ratio_of_total_to_active_parameters() -> None:
    mixture = model("deepseek-v3")
    found = int(setting("total_over_active", str(mixture.total_over_active), mixture).rpartition("=")[2])
    assert abs(found - 256) <= 8  # those that it has, in eights
    with pytest.raises(InputError, match=r"total_over_active: got 0\.1, allowed: at least 1"):
        setting("total_over_active", "0.1", mixture)
    with pytest.raises(InputError, match="allowed: a mixture of experts"):
        setting("total_over_active", "4", model("llama-3.1-8b"))
