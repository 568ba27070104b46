"""Two commands that give the same number give the same number: plan, compare, what-if × 1, explain and simulate."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import call_json

# model, cluster, precision, input, output
DEPLOYMENTS = [
    (name, on, label, given, made)
    for name, on, label in (
        ("llama-3.1-8b", "dgx-h100", "bf16,kv=bf16"),
        ("llama-3.1-70b", "dgx-h100", "fp8,kv=fp8"),
        ("llama-3.1-70b", "dgx-h200", "bf16,kv=fp8"),
        ("qwen3-32b", "dgx-h100", "fp8,kv=bf16"),
        ("gpt-oss-120b", "dgx-h200", "native,kv=bf16"),
        ("mixtral-8x7b", "dgx-h100", "fp8,kv=fp8"),
        ("qwen3-235b-a22b", "dgx-h200", "fp8,kv=fp8"),
        ("llama-3.1-405b", "dgx-b200", "fp8,kv=fp8"),
        ("llama-3.1-8b", "l40s-8", "fp8,kv=fp8"),
        ("deepseek-v3", "dgx-b200", "fp8,kv=fp8"),
    )
    for given, made in ((1000, 200), (4000, 500))
]
PARTS = ("tp", "pp", "ep", "moe_tp", "attention_dp")


def layout_of(best: dict[str, Any]) -> str:
    return ",".join(f"{part}={best['layout'][part]}" for part in PARTS)


@pytest.mark.parametrize(("name", "on", "label", "given", "made"), DEPLOYMENTS)
def test_commands_agree(
    name: str, on: str, label: str, given: int, made: int, capsys: pytest.CaptureFixture[str]
) -> None:
    best = call_json(
        capsys,
        "plan", name, "--on", on, "--input", str(given), "--output", str(made), "--precision", label,
        "--serving", "aggregated", "--mode", "chunked=2048",
    )["best"]  # fmt: skip
    assert best is not None
    layout, steady = layout_of(best), best["steady"]
    step = call_json(
        capsys,
        "explain", name, "--on", on, "--precision", label, "--layout", layout,
        "--batch", str(steady["batch_size"]), "--context", str(given + made / 2),
    )  # fmt: skip
    assert step["seconds"] == pytest.approx(best["decode"]["seconds"], rel=1e-9)
    assert step["binds"] == best["binding"]
    run = call_json(
        capsys,
        "simulate", name, "--on", on, "--precision", label, "--layout", layout,
        "--rate", repr(best["requests_per_s"]), "--requests", "50", "--input", str(given), "--output", str(made),
        "--policy", "chunked", "--max-batched-tokens", "2048", "--memory-fraction", "0.9",
        "--max-num-seqs", str(best["max_num_seqs"]),
    )["deployment"]  # fmt: skip
    assert run["num_chips"] == best["num_chips"]
    assert run["max_num_seqs"] == best["max_num_seqs"]
    # the cache of the simulated server holds what the plan has in flight
    assert run["kv_tokens_per_rank"] >= (given + made) * steady["batch_size"] * 0.99 / (
        best["layout"]["attention_dp"] * best["layout"]["pp"]
    )


@pytest.mark.parametrize(("name", "on"), [("llama-3.1-8b", "dgx-h100"), ("llama-3.1-70b", "dgx-h200")])
def test_compare_and_what_if_are_the_plan(name: str, on: str, capsys: pytest.CaptureFixture[str]) -> None:
    request = ["--input", "1k", "--output", "200", "--tpot", "30ms"]
    best = call_json(capsys, "plan", name, "--on", on, *request)["best"]
    sides = call_json(capsys, "compare", f"{name}@{on}", f"{name}@{on}", *request)["sides"]
    speed = {"dgx-h100": "3.35TB/s", "dgx-h200": "4.8TB/s"}[on]
    varied = call_json(capsys, "plan", name, "--on", on, *request, "--what-if", f"hbm_bandwidth={speed}")["points"]
    for key in ("tpot_s", "ttft_s", "requests_per_s", "batch_size", "num_chips", "output_tokens_per_s_per_chip",
                "usd_per_mtok_input", "usd_per_mtok_output", "usd_per_mtok_output_all_in"):  # fmt: skip
        assert sides[0]["values"][key] == pytest.approx(best[key], rel=1e-12), key
        assert varied[0]["best"][key] == pytest.approx(best[key], rel=1e-12), key
