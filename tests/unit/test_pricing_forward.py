"""Prices from a deployment: rent and purchase, terms, tiers that cannot be sold, caches, energy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers import token_costs
from rackline.errors import InputError
from rackline.hardware import memory_tier, wall_w
from rackline.passes import Batch
from rackline.pricing import (
    OneDeployment,
    Rent,
    Terms,
    TokenCosts,
    keeping_lines,
    offer_prices,
    purchase_usd_per_hour,
    request_cost_usd,
)
from rackline.pricing.cache import RECOMPUTE
from rackline.pricing.offered import SoldTier, coinciding_contexts, coinciding_modes
from rackline.serving import blackboard

RENT = Rent(usd_per_chip_hour=2.0, power_w_per_chip=1730.0, pue=1.2)


@pytest.fixture(scope="module")
def costs() -> TokenCosts:
    return token_costs("llama-3.1-70b", "tp=8", on="dgx-h100", label="fp8")


def test_prices_scale_with_margin_rent_and_utilisation(costs: TokenCosts) -> None:
    base = offer_prices(OneDeployment(costs=costs), RENT, Terms(margin=0.0, utilisation=1.0), steps=(32e3,)).tiers[0]
    other = offer_prices(
        OneDeployment(costs=costs), Rent(usd_per_chip_hour=4.0), Terms(margin=0.5, utilisation=0.5), steps=(32e3,)
    ).tiers[0]
    assert other.input_usd == pytest.approx(base.input_usd * 2 * 1.5 / 0.5)
    assert other.output_usd == pytest.approx(base.output_usd * 2 * 1.5 / 0.5)


def test_a_price_is_the_rent_of_its_chip_seconds(costs: TokenCosts) -> None:
    """An hour has 3,600 seconds: in a request's cost, in prices of tokens, in margins, in what a cache saves."""
    chip_usd_s = 2.0 / 3600.0
    chip_s = costs.request_chip_s(4000.0, 500.0, 0.05)
    assert request_cost_usd(costs, RENT, 4000.0, 500.0, 0.05, 0.5) == pytest.approx(chip_usd_s / 0.5 * chip_s)
    terms = Terms(margin=0.5, utilisation=0.8, earned_at="longest")
    offered = offer_prices(OneDeployment(costs=costs), RENT, terms, steps=(32e3,))
    tier = offered.tiers[0]
    assert tier.way is not None
    assert tier.input_usd == pytest.approx(chip_usd_s * 1.5 / 0.8 * tier.way.input_chip_s)
    assert tier.margin == pytest.approx(0.5)
    assert tier.margin_at_longest == pytest.approx(0.5)
    again = chip_usd_s * float(costs.prefill_chip_s(32e3)[0])
    lines = {line.name: line for line in keeping_lines(costs, RENT, 32e3)}
    for cache in offered.caches:
        assert cache.saves == pytest.approx(again / (float(lines[cache.tier].usd(cache.lifetime_s, 1.0)) / 32e3))
        if lines[cache.tier].hold_usd_per_s:
            assert cache.hold_usd == pytest.approx(lines[cache.tier].hold_usd_per_s * cache.lifetime_s / 32e3)
    assert lines[RECOMPUTE].retrieve_usd == pytest.approx(again * 32e3)


def test_energy_is_power_times_chip_time(costs: TokenCosts) -> None:
    tier = offer_prices(
        OneDeployment(costs=costs), RENT, Terms(utilisation=0.5, earned_at="longest"), steps=(32e3,)
    ).tiers[0]
    chip_s = float(costs.prefill_chip_s(32e3)[0]) * 1e6
    on, power = costs.deployment.cluster, tier.way.power
    assert power is not None
    assert on.chip.power is not None
    busy_w, idle_w = wall_w(on, power.chip_w), wall_w(on, on.chip.power.idle_w)
    assert 110.0 < power.chip_w <= 700.0
    assert tier.kwh_per_mtok_input == pytest.approx(chip_s * (busy_w + idle_w) * 1.2 / 3.6e6)


def test_costs_meet_the_blackboard_under_the_unit_calibration() -> None:
    """C10, C97: chip-seconds of a token of an aggregate model are those of `pass_s`."""
    costs = token_costs("lecture-frontier", "tp=64", on="gb200-nvl72", label="fp4", calibration="unit")
    deployment = costs.deployment
    context = 50e3
    batch, step = costs.decode_batch(context)
    chip = deployment.cluster.chip
    ideal = blackboard.pass_s(
        float(batch[0]), 800e9, 100e9, 0.5625, context, 2048.0, 64 * chip.flop_per_s("fp4"), 64 * chip.hbm_bytes_per_s
    )
    assert float(step[0]) == pytest.approx(ideal, rel=2e-2)  # the table also writes the new token's KV
    assert float(costs.decode_chip_s(context)[0]) == pytest.approx(float(step[0]) * 64 / float(batch[0]))
    assert float(costs.prefill_chip_s(8e3)[0]) == pytest.approx(2 * 100e9 / chip.flop_per_s("fp4"), rel=0.35)


@pytest.mark.parametrize("chunks", [1, 2, 5, 16])
def test_a_long_prompt_costs_what_its_chunks_cost(costs: TokenCosts, chunks: int) -> None:
    """Oracle: every chunk in a pass of its own, behind those before it."""
    room = costs.mode.max_batched_tokens
    times = costs.engine.time_table(costs.mode.two_batch_overlap)
    passes = [
        Batch(prefill_sequences=1.0, chunk_tokens=float(room), prefix_tokens=float(number * room))
        for number in range(chunks)
    ]
    seconds = [costs.engine.seconds(one, times, two_batch_overlap=costs.mode.two_batch_overlap) for one in passes]
    whole = sum(float(costs.engine.with_prompts_s(0.0, one)) for one in seconds)
    assert float(costs.prefill_chip_s(chunks * room)[0]) * chunks * room == pytest.approx(8 * whole, rel=1e-3)


def test_a_context_that_does_not_fit_is_an_answer_with_its_reason(costs: TokenCosts) -> None:
    tiers = offer_prices(OneDeployment(costs=costs), RENT, steps=(32e3, 1e8)).tiers
    short, long = [tier for tier in tiers if tier.mode == "standard"]
    assert not short.reason
    assert "does not fit" in long.reason
    assert np.isnan(long.input_usd)
    slow = offer_prices(OneDeployment(costs=costs), RENT, Terms(tpot_s=1e-5), steps=(32e3,))
    assert all("no batch meets" in t.reason for t in slow.tiers if t.mode == "standard")
    assert slow.caches == ()
    floor = offer_prices(OneDeployment(costs=costs), RENT, Terms(fast_ratios=(1000.0,)), steps=(32e3,)).tiers[-1]
    assert "latency floor" in floor.reason


def test_caches_get_cheaper_to_hold_and_dearer_to_fetch(costs: TokenCosts) -> None:
    offered = offer_prices(OneDeployment(costs=costs), RENT, Terms(lifetimes_s=(0.01, 300.0, 86400.0)), steps=(32e3,))
    assert [cache.tier for cache in offered.caches] == ["hbm of h100-sxm", "nvme-4tb", "hdd-20tb"]
    standard = offered.tiers[0]
    assert all(cache.write_usd >= standard.input_usd for cache in offered.caches)
    assert all(cache.saves > 1.0 for cache in offered.caches)
    assert 0 < standard.cached_input_usd < standard.input_usd
    assert offered.storage_usd_per_mtok_hour is not None


def test_only_tiers_that_are_back_in_time_are_used(costs: TokenCosts) -> None:
    slow = {line.name for line in keeping_lines(costs, RENT, 32e3)}
    quick = {line.name for line in keeping_lines(costs, RENT, 32e3, fetch_s=0.1)}
    assert {"hdd-20tb", "nvme-4tb"} <= slow
    assert "hdd-20tb" not in quick
    assert {"recompute", "hbm of h100-sxm"} <= quick
    one = keeping_lines(costs, RENT, 32e3, [memory_tier("nvme-4tb")])
    assert [line.name for line in one] == ["nvme-4tb", "recompute"]


def test_purchase_and_energy_make_an_hourly_cost() -> None:
    assert purchase_usd_per_hour(35_064.0, 4.0, 1000.0, 1.5, 0.10) == pytest.approx(1.0 + 0.15)
    assert purchase_usd_per_hour(35_064.0, 4.0, 1000.0, 1.5, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Terms(margin=-0.1), "margin"),
        (lambda: Terms(utilisation=0.0), "above 0 to 1"),
        (lambda: Terms(utilisation=1.1), "above 0 to 1"),
        (lambda: Terms(fast_ratios=(1.0,)), "above 1"),
        (lambda: Terms(lifetimes_s=(0.0,)), "at least 1 ms"),
        (lambda: Terms(output_len=0.0), "at least 1 token"),
        (lambda: Rent(usd_per_chip_hour=0.0), "above 0"),
        (lambda: Rent(usd_per_chip_hour=1.0, pue=0.9), "1 to 10"),
        (lambda: purchase_usd_per_hour(0.0, 4.0, 1.0, 1.0, 0.1), "above 0"),
        (lambda: purchase_usd_per_hour(1.0, 4.0, 1.0, 1.0, -0.1), "not negative"),
    ],
)
def test_bad_terms(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("steps", [(), (0.0,), (2e3, 1e3), (1e3, 1e3)])
def test_bad_context_tiers(costs: TokenCosts, steps: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="rising lengths"):
        offer_prices(OneDeployment(costs=costs), RENT, steps=steps)


def test_modes_that_cost_the_same_are_said_once_each() -> None:
    def sold(mode: str, usd: float, *, until: float = 8000.0, reason: str = "", name: str = "") -> Any:
        return SoldTier(
            name=name or mode, mode=mode, from_len=0.0, until_len=until, output_len=100.0, input_usd=usd,
            output_usd=4.0 * usd, reason=reason,
        )  # type: ignore[arg-type]  # fmt: skip

    free = Terms(tpot_s=None, utilisation=1.0)
    tiers = [sold("batch", 1.0), sold("flex", 1.0), sold("standard", 1.004), sold("fast", 1.004, name="fast 1.5x")]
    assert list(coinciding_modes(tiers, free)) == [
        "prompts to 8,000: flex costs what batch does: there is no limit to the time per output token",
        "prompts to 8,000: standard costs what flex does: at a utilisation of 100 % no hours are left over",
        "prompts to 8,000: fast 1.5x costs what standard does: the way that serves it costs no more per token",
    ]
    # half a percent is as written with three digits; a percent is not
    assert list(coinciding_modes([sold("flex", 1.0), sold("standard", 1.01)], free)) == []
    # a mode that cannot be sold has no price, and tiers of other lengths are no neighbours
    assert list(coinciding_modes([sold("batch", 1.0), sold("flex", 1.0, reason="nothing fits")], free)) == []
    assert list(coinciding_modes([sold("batch", 1.0), sold("flex", 1.0, until=9000.0)], free)) == []
    longer = [sold("standard", 1.0), sold("standard", 1.0, until=32000.0, name="standard above 8,000")]
    assert list(coinciding_contexts(longer)) == [
        "standard: prompts to 32,000 cost what those to 8,000 do: a step takes no longer and as many sequences fit"
    ]
    assert list(coinciding_contexts([longer[0], sold("standard", 1.02, until=32000.0)])) == []
