"""`price` sells what `plan` finds: pools, engines on chips that are left over, at the cost of the plan."""

from __future__ import annotations

from typing import Any

import pytest

import rackline as rl
from rackline.search import Choice, Plan

ASKED = {"output": 1000, "tpot": "50ms", "precision": "fp8"}
NO_OTHER_LIMIT = {"use": "batch"}  # a price limits the time per output token alone


def bare(name: str, on: str, until: str, **more: Any) -> Any:
    """The standard tier at its cost: no margin, every hour sold, prompts of one length."""
    found = rl.price(
        name, on=on, contexts=until, margin=0, utilisation=1, margin_at="longest", fast="2", **{**ASKED, **more}
    )
    return next(tier for tier in found.result.offered.tiers if tier.mode == "standard")


def estimated(monkeypatch: pytest.MonkeyPatch, name: str, on: str, length: str, **more: Any) -> Choice:
    """The best of a plan before it is simulated."""
    monkeypatch.setattr(Plan, "served", lambda self, *_: self)
    best = rl.plan(name, on=on, input=length, **{**ASKED, **NO_OTHER_LIMIT, **more}).result.plan.best
    assert best is not None
    return best


@pytest.mark.parametrize(
    ("name", "on", "length", "more"),
    [
        ("llama-3.1-70b", "dgx-h100", "8k", {"calibration": "vllm"}),
        pytest.param("qwen3-30b-a3b", "dgx-h200", "8k", {}, marks=pytest.mark.nightly),  # pools
        # pools of a mixture
        pytest.param("deepseek-v3", "gb200-nvl72", "4k", {"set": "num_chips=16"}, marks=pytest.mark.nightly),
        (
            "llama-3.1-8b",
            "dgx-h100",
            "2k",
            {"layout": "pp=3", "calibration": "vllm"},
        ),  # two of eight chips are left over
        ("llama-3.1-8b", "dgx-h100", "2k", {"set": "num_chips=3", "tpot": "8ms", "calibration": "vllm"}),
    ],
)
def test_price_at_cost_is_the_cost_of_the_plan(
    name: str, on: str, length: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    best = estimated(monkeypatch, name, on, length, **more)
    tier = bare(name, on, length, **more)
    assert tier.usd_per_mtok_output_all_in == pytest.approx(best.usd_with_leftover, rel=1e-9)
    assert tier.deployment.layout == best.layout
    assert (tier.way.prefill and tier.way.prefill.deployment.layout) == (best.prefill_pool and best.prefill_pool.layout)
    assert tier.tpot_s == pytest.approx(best.tpot_s, rel=1e-9)


def test_the_pairs_and_the_leftover_engines_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agreement above is about occurs in it."""
    pools = estimated(monkeypatch, "deepseek-v3", "gb200-nvl72", "4k", set="num_chips=16", calibration="sglang")
    assert pools.serving == "disaggregated"
    three = estimated(monkeypatch, "llama-3.1-8b", "dgx-h100", "2k", layout="pp=3", calibration="vllm")
    assert three.leftover is not None
    assert three.usd_with_leftover < three.usd_per_mtok_output_all_in


def test_price_at_cost_is_near_the_simulated_plan() -> None:
    """Within what measured servers deviate by, which is printed beside the plan."""
    best = rl.plan("llama-3.1-8b", on="dgx-h100", set="num_chips=1", input="2k", **ASKED, **NO_OTHER_LIMIT).to_dict()[
        "best"
    ]
    assert best["basis"] == "simulated"
    ends = best["intervals"]["usd_per_mtok_output_all_in"]
    assert (
        ends["low"]
        <= bare("llama-3.1-8b", "dgx-h100", "2k", set="num_chips=1").usd_per_mtok_output_all_in
        <= ends["high"]
    )


def test_a_tier_that_only_a_small_batch_serves_has_no_price() -> None:
    """Llama-70B with prompts of 128k on eight H100: seven sequences, which is said with what they would cost."""
    found = rl.price("llama-3.1-70b", on="dgx-h100", contexts="8k,128k", fast="2", calibration="vllm").result.offered
    tiers = {(tier.mode, tier.until_len): tier for tier in found.tiers}
    short, long = tiers["standard", 8e3], tiers["standard", 128e3]
    assert short.reason == ""
    assert short.batch_size >= 16
    assert long.batch_size < 16
    assert long.reason.startswith("not sold: $")
    assert f"a batch of {long.batch_size:,.3g} on {long.way.costs.num_chips} chips" in long.reason
    assert long.usd_per_mtok_output != long.usd_per_mtok_output  # NaN
    assert {tier.from_len for tier in found.tiers if not tier.reason} == {0.0}
