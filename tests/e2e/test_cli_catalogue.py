"""Catalogue commands beyond plain lists: ridge points, caches, memory tiers, comparisons."""

from __future__ import annotations

import pytest

from helpers import call, call_json
from rackline.cli.main import run


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_ridge_points_and_drain_times_of_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    """G01 and G02."""
    found = {(r["chip"], r["dtype"]): r for r in call_json(capsys, "chips", "--ridge")["ridges"]}
    for chip, dtype, ridge in (
        ("h100-sxm", "bf16", 295),
        ("h100-sxm", "fp8", 295),
        ("b200-sxm", "bf16", 281),
        ("b200-sxm", "fp4", 281),
        ("h200-sxm", "bf16", 206),
        ("a100-sxm-40gb", "bf16", 201),
        ("a100-sxm-80gb", "bf16", 153),
        ("gb300", "fp4", 469),
    ):
        assert found[chip, dtype]["ridge"] == pytest.approx(ridge, abs=1)
    for chip, drain_ms in (
        ("a100-sxm-40gb", 25.7),
        ("h100-sxm", 23.9),
        ("h200-sxm", 29.4),
        ("gb300", 36.0),
        ("rubin", 13.1),
        ("tpu-v5e", 19.5),
        ("tpu-v7", 26.1),
    ):
        # the ledger divides the printed gigabytes; drivers report between those and as many binary ones
        assert 0.99 * drain_ms <= 1e3 * found[chip, "bf16"]["drain_s"] <= 1.01 * drain_ms * 2**30 / 1e9


def test_caches_of_all_models(capsys: pytest.CaptureFixture[str]) -> None:
    data = call_json(capsys, "models", "--kv", "--on", "h100", "--dtype", "bf16")
    found = {m["model"]: m for m in data["models"]}
    assert len(found) > 60
    assert found["deepseek-v3"]["kv_bytes_per_token"]["bf16"] == 70272
    # dense attention: the closed form of the lecture, 2 N W / (F kappa)
    dense = found["llama-3.1-70b"]
    active = 69.503e9
    assert dense["crossover_context"] == pytest.approx(2 * active * 3.35e12 / (989e12 * 327680), rel=1e-3)
    assert found["deepseek-v3.2"]["crossover_context"] > found["deepseek-v3"]["crossover_context"]
    assert found["nemotron-3-nano-30b-a3b"]["state_bytes"] > 0
    assert found["mistral-7b"]["kv_bytes"]["32000"] == found["mistral-7b"]["kv_bytes"]["128000"]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize(
    "arguments",
    [("chips", "--ridge"), ("models", "--kv"), ("memory",), ("memory", "hdd"), ("compare", "h100", "b200", "mi355x")],
    ids=" ".join,
)
def test_tables_fit_the_terminal(
    arguments: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = call(capsys, *arguments)
    assert len(out.splitlines()) > 5
    assert max(map(len, out.splitlines())) <= width


def test_compare_gives_ratios_to_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    data = call_json(capsys, "compare", "h100", "b200")
    assert data["kind"] == "chips"
    first, second = data["sides"]
    assert set(first["ratios"].values()) <= {1.0, None}
    assert second["ratios"]["hbm_bytes_per_s"] == pytest.approx(8.0 / 3.35)
    assert second["ratios"]["fp4_flop_per_s"] is None
    assert second["values"]["flop_per_usd"] == pytest.approx(3600 * 2250e12 / 2.90)
    clusters = call_json(capsys, "compare", "dgx-h100", "gb200-nvl72")
    assert clusters["sides"][1]["ratios"]["num_chips"] == 9.0
    models = call_json(capsys, "compare", "deepseek-v3", "deepseek-ai/DeepSeek-V4-Pro")
    assert models["kind"] == "models"
    assert models["sides"][1]["ratios"]["kv_bytes_long"] < 0.2


def test_compare_plans_deployments(capsys: pytest.CaptureFixture[str]) -> None:
    data = call_json(
        capsys,
        "compare",
        "qwen3-8b@dgx-h100",
        "qwen3-8b@dgx-h200",
        "--input",
        "2k",
        "--output",
        "200",
        "--tpot",
        "20ms",
        "--calibration",
        "vllm",
    )
    assert data["kind"] == "deployments"
    assert all(side["values"]["tpot_s"] <= 0.02 for side in data["sides"])
    slower, faster = (side["values"]["output_tokens_per_s_per_chip"] for side in data["sides"])
    assert faster > slower


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "h100"), "two or more of one kind"),
        (("compare", "h100", "b2000"), "chip: got 'b2000'"),
        (("compare", "h100", "llama-3.1-8b"), "chip: got 'llama-3.1-8b'"),
        (("compare", "nothing-like-it", "h100"), "compare: got 'nothing-like-it'"),
        (("compare", "qwen3-8b@dgx-h100", "h100"), "deployment: got 'h100', allowed: MODEL@CLUSTER"),
        (("models", "--kv", "--dtype", "fp7"), "--dtype: got 'fp7'"),
        (("models", "--kv", "--on", "v100", "--dtype", "fp8"), "data type of v100-sxm: got 'fp8'"),
        (("chips", "h1000", "--ridge"), "chip: got 'h1000'"),
        (("memory", "tape"), "memory tier: got 'tape'"),
    ],
)
def test_bad_words_are_refused_in_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *arguments)
