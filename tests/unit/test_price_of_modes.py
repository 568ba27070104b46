"""`price`: each mode of each context tier in its own cheapest layout, with the margin that was asked for."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError
from rackline.pricing import Offered, SoldTier

MARGIN = 0.4


@cache
def sold(name: str, on: str, contexts: str, **more: Any) -> Offered:
    stack = {"gpt-oss-120b": "vllm", "deepseek-v3": "sglang"}.get(name, "trtllm")
    return rl.price(name, on=on, contexts=contexts, margin=MARGIN, calibration=stack, **more).result.offered


SOLD = (
    ("llama-3.1-8b", "dgx-h100", "8k,64k"),
    ("llama-3.1-70b", "dgx-b200", "32k"),
    ("gpt-oss-120b", "dgx-h200", "8k"),
    ("deepseek-v3", "gb200-nvl72", "32k"),
)


def modes(offered: Offered, until_len: float) -> dict[str, SoldTier]:
    return {
        tier.name.split(" above")[0]: tier for tier in offered.tiers if tier.until_len == until_len and not tier.reason
    }


def run_of(tier: SoldTier, tmp_path: Path) -> tuple[float, float, float]:
    """Requests a second of one simulated replica with all slots taken, and mean prompt and output of them."""
    assert tier.way is not None
    way = tier.way
    layout = way.costs.deployment.layout
    slots = int(way.batch_size)
    count, rng = max(12 * slots, 240), np.random.default_rng(3)
    low = way.lengths.shortest
    # shuffled quantiles: a sample of which the mean is that of the law
    given = rng.permutation(low * (tier.until_len / low) ** ((np.arange(count) + 0.5) / count))
    trace = tmp_path / "all-at-once.csv"
    lines = [f"{index * 1e-6:.6f},{round(length)},{way.output_len:.0f}" for index, length in enumerate(given)]
    trace.write_text("\n".join(["timestamp,input_tokens,output_tokens", *lines]) + "\n", encoding="utf-8")
    mode = way.costs.mode
    found: Any = rl.simulate(
        way.costs.deployment.model.name,
        on=way.costs.deployment.cluster.name,
        trace=str(trace),
        calibration=way.costs.system.calibration.name,
        layout=f"tp={layout.tp},pp={layout.pp}",
        precision=way.costs.deployment.precision.label,
        replicas=1,
        max_num_seqs=slots // (layout.attention_dp * layout.pp),
        policy={"chunked": "chunked", "prefill_first": "prefill-first"}[mode.admission],
        max_batched_tokens=mode.max_batched_tokens,
        reserve="final",
    ).result
    finish_s = np.asarray(found.run.result.finish_s, dtype=float)
    part = np.argsort(finish_s)[int(0.35 * count) : int(0.8 * count)]  # neither the first wave nor the last
    span = float(np.ptp(finish_s[part]))
    return (part.size - 1) / span, float(given[part].mean()), way.output_len


@pytest.mark.parametrize(
    ("name", "on", "contexts", "until_len", "mode"),
    [
        ("llama-3.1-8b", "dgx-h100", "8k,64k", 8e3, "standard"),
        ("llama-3.1-8b", "dgx-h100", "8k,64k", 64e3, "standard"),
        ("llama-3.1-8b", "dgx-h100", "8k,64k", 8e3, "fast 2.5x"),
        ("llama-3.1-70b", "dgx-h100", "32k,128k", 32e3, "standard"),
        ("llama-3.1-70b", "dgx-b200", "128k", 128e3, "batch"),
    ],
)
def test_a_simulated_server_earns_the_margin(
    name: str, on: str, contexts: str, until_len: float, mode: str, tmp_path: Path
) -> None:
    """Requests of all lengths of the tier through one replica: what they pay over the rent of the paid chips."""
    offered = sold(name, on, contexts)
    tier = modes(offered, until_len)[mode]
    assert tier.way is not None
    rate, prompts, outputs = run_of(tier, tmp_path)
    paid = rate * (prompts * tier.input_usd + outputs * tier.output_usd)
    chips = tier.way.costs.num_chips / tier.way.used_share
    rent = offered.rent.usd_per_chip_hour / 3600.0 * chips / offered.terms.used(tier.mode)
    assert paid / rent == pytest.approx(1.0 + MARGIN, rel=0.1)


def costs_the_same(one: SoldTier, other: SoldTier) -> bool:
    return [one.input_usd, one.output_usd] == pytest.approx([other.input_usd, other.output_usd])


@pytest.mark.parametrize("which", SOLD)
def test_prices_of_modes_are_ordered_and_cover_their_cost(which: tuple[str, str, str]) -> None:
    offered = sold(*which)
    for until_len in {tier.until_len for tier in offered.tiers}:
        found = modes(offered, until_len)
        order = [found[name] for name in ("batch", "flex", "standard", "priority 1.5x", "fast 2.5x") if name in found]
        assert len(order) >= 3
        for slower, faster in pairwise(order):
            assert slower.input_usd <= faster.input_usd * (1 + 1e-9)
            assert slower.output_usd <= faster.output_usd * (1 + 1e-9)
        for tier in order:
            assert tier.way is not None
            assert tier.margin is not None
            assert tier.margin >= MARGIN - 1e-9
            # flex earns more where batch, which has an estimate of its own, costs more
            assert tier.margin == pytest.approx(MARGIN, abs=0.02) or (
                tier.mode == "flex" and costs_the_same(tier, order[0])
            )
            assert tier.margin <= MARGIN + 0.1
            assert tier.cached_input_usd <= tier.input_usd
            if tier.mode in ("priority", "fast"):
                ratio = float(tier.name.split()[1].rstrip("x"))
                assert tier.tpot_s <= found["standard"].tpot_s / ratio * (1 + 1e-9)
        assert found["standard"].tpot_s <= 0.05
    assert all(cache.write_usd >= modes(offered, offered.tiers[0].until_len)["standard"].input_usd
               for cache in offered.caches)  # fmt: skip


def test_unequal_prompts_leave_out_pipeline_stages_unless_nothing_else_fits() -> None:
    """Measured once: 8 to 64k tokens through pp=2 reach 81 % of what a plan for their mean says."""
    offered = sold("llama-3.1-8b", "dgx-h100", "8k,64k")
    assert {tier.deployment.layout.pp for tier in offered.tiers if tier.deployment} == {1}
    asked = sold("llama-3.1-8b", "dgx-h100", "8k", layout="pp=2")
    assert {tier.deployment.layout.pp for tier in asked.tiers if tier.deployment} == {2}


def test_each_mode_and_tier_has_the_layout_of_its_own_plan() -> None:
    """The way of a tier is the cheapest engine of a plan for its mean request within its limit."""
    offered = sold("llama-3.1-70b", "dgx-h100", "32k,128k")
    assert len({tier.deployment and tier.deployment.layout for tier in offered.tiers}) > 1
    for tier in offered.tiers:
        assert tier.way is not None
        bare = tier.way.request_chip_s * offered.rent.usd_per_chip_hour / 3600.0
        for other in offered.tiers:  # no layout of another tier or mode serves it at less
            if other.until_len != tier.until_len or other.way is None:
                continue
            if tier.way.tpot_limit_s is None or other.tpot_s <= tier.way.tpot_limit_s:
                assert bare <= other.way.request_chip_s * offered.rent.usd_per_chip_hour / 3600.0 * 1.001


def test_prices_that_coincide_say_why() -> None:
    loose = sold("llama-3.1-8b", "dgx-h100", "8k", tpot="1s", utilisation=1)
    batch, flex = (next(tier for tier in loose.tiers if tier.mode == mode) for mode in ("batch", "flex"))
    assert batch.output_usd < flex.output_usd < 1.05 * batch.output_usd  # every slot taken, and random arrivals
    assert any("standard costs what flex does" in why and "no hours are left over" in why for why in loose.coincide)
    none = sold("llama-3.1-8b", "dgx-h100", "8k", use="batch")
    assert any("there is no limit to the time per output token" in why for why in none.coincide)
    tight = sold("llama-3.1-8b", "dgx-h100", "8k", tpot="8ms")
    assert not any("flex" in why for why in tight.coincide)


def test_the_longest_prompt_pays_for_itself_where_that_is_asked() -> None:
    mean = modes(sold("llama-3.1-70b", "dgx-b200", "8k"), 8e3)["standard"]
    longest = modes(sold("llama-3.1-70b", "dgx-b200", "8k", margin_at="longest"), 8e3)["standard"]
    assert longest.margin_at_longest == pytest.approx(MARGIN)
    assert mean.margin_at_longest is not None
    assert mean.margin_at_longest < MARGIN
    assert longest.usd_per_mtok_output_all_in > mean.usd_per_mtok_output_all_in


def test_rents_are_of_one_kind() -> None:
    reserved = sold("llama-3.1-8b", "dgx-h100", "8k", rent="reserved-3y")
    demand = sold("llama-3.1-8b", "dgx-h100", "8k", rent="on-demand")
    assert "reserved for three years" in reserved.rent.kind
    assert "on demand" in demand.rent.kind
    ratio = demand.rent.usd_per_chip_hour / reserved.rent.usd_per_chip_hour
    assert ratio > 1.5
    assert demand.tiers[0].input_usd / reserved.tiers[0].input_usd == pytest.approx(ratio, rel=1e-6)
    estimated = sold("llama-3.1-8b", "gb200-nvl72", "8k", rent="on-demand")
    assert "estimated" in estimated.rent.kind
    for refused in ({"rent": "owned", "price": 2.0}, {"rent": "owned", "purchase": 3e4}, {"rent": "on-demnd"}):
        with pytest.raises(InputError):
            sold("llama-3.1-8b", "dgx-h100", "8k", **refused)
