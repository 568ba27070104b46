"""Commands that give one number agree: plan, compare, what-if × 1, explain, fit, price and simulate."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import call_json
from rackline.arch import model
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.pricing.costs import TokenCosts
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import stack_of
from rackline.serving.steady import steady_state
from rackline.serving.workload import Workload

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
BLOCK = 16  # tokens
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
    layout, estimate = layout_of(best), best["estimate"]
    step = call_json(
        capsys,
        "explain", name, "--on", on, "--precision", label, "--layout", layout,
        "--batch", str(estimate["batch_size"]), "--context", str(given + made / 2),
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
    assert run["kv_tokens_per_rank"] >= (given + made) * estimate["batch_size"] * 0.99 / (
        best["layout"]["attention_dp"] * best["layout"]["pp"]
    )


@pytest.mark.parametrize(("name", "on", "label", "given", "made"), DEPLOYMENTS)
def test_fit_and_simulate_hold_as_many_requests(
    name: str, on: str, label: str, given: int, made: int, capsys: pytest.CaptureFixture[str]
) -> None:
    row = call_json(capsys, "fit", name, "--on", on, "--precision", label, "--context", str(given + made))["rows"][0]
    layout = layout_of(row)
    run = call_json(
        capsys,
        "simulate", name, "--on", on, "--precision", label, "--layout", layout, "--replicas", "1",
        "--rate", "1", "--requests", "2", "--input", str(given), "--output", str(made),
    )["deployment"]  # fmt: skip
    slots = row["layout"]["attention_dp"] * row["layout"]["pp"]
    held = run["kv_tokens_per_rank"] // BLOCK // -(-(given + made) // BLOCK) * slots
    if name == "gpt-oss-120b":  # its windows take room beside the blocks, which this answer does not give
        assert 0.9 * held < row["max_concurrency"] < held
    else:
        assert row["max_concurrency"] == held


@pytest.mark.parametrize(("name", "on", "label", "given", "made"), DEPLOYMENTS)
def test_a_price_is_made_of_the_times_of_a_plan(name: str, on: str, label: str, given: int, made: int) -> None:
    """A price adds full batches and full passes; a plan mixes the same two times and waits."""
    found, place = model(name), cluster(on)
    one = Deployment(
        model=found,
        cluster=place,
        layout=parse_layout("tp=8", found),
        precision=precision(label, found, place.chip),
        calibration=calibration("auto", place.chip),
    )
    costs = TokenCosts.of(one)
    workload = Workload(input_len=given, output_len=made)
    batch, step_s = costs.decode_batch(workload.mean_context)
    stack = stack_of(one.calibration, place.chip.hbm_bytes)
    state = steady_state(engine_of(one, stack), workload, costs.mode, batch)
    assert step_s == pytest.approx(state.decode_s, rel=1e-12)
    assert costs.prefill_chip_s(given) * given / one.layout.tp == pytest.approx(state.prompt_s, rel=1e-12)


SIDES = (
    (("llama-3.1-8b", "dgx-h100"), ("llama-3.1-70b", "dgx-h200")),
    (("qwen3-32b", "dgx-h100"), ("llama-3.1-8b", "l40s-8")),
)


@pytest.mark.parametrize("pair", SIDES)
def test_compare_and_what_if_are_the_plan(
    pair: tuple[tuple[str, str], ...], capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["--input", "1k", "--output", "200", "--tpot", "30ms"]
    sides = call_json(capsys, "compare", *(f"{name}@{on}" for name, on in pair), *request)["sides"]
    for side, (name, on) in zip(sides, pair, strict=True):
        best = call_json(capsys, "plan", name, "--on", on, *request)["best"]
        speed = f"hbm_bandwidth={cluster(on).chip.hbm_bytes_per_s / 1e12!r}TB/s"
        varied = call_json(capsys, "plan", name, "--on", on, *request, "--what-if", speed)["points"]
        for key in ("tpot_s", "ttft_s", "requests_per_s", "batch_size", "num_chips", "output_tokens_per_s_per_chip",
                    "usd_per_mtok_input", "usd_per_mtok_output", "usd_per_mtok_output_all_in"):  # fmt: skip
            if best[key] is None:
                assert side["values"][key] is None
                assert varied[0]["best"][key] is None
                continue
            assert side["values"][key] == pytest.approx(best[key], rel=1e-12), key
            assert varied[0]["best"][key] == pytest.approx(best[key], rel=1e-12), key
