"""Prices: every context pays, and reading a sheet finds the deployment that it was made from."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from helpers import token_costs
from rackline.hardware import cluster
from rackline.pricing import (
    EarnedAt,
    Offered,
    OneDeployment,
    PriceSheet,
    PriceTier,
    PromptLengths,
    Range,
    Rent,
    Terms,
    TokenCosts,
    default_unknowns,
    forms,
    offer_prices,
    read_prices,
    request_cost_usd,
)
from rackline.pricing.sheet import CacheWrite
from rackline.pricing.unknowns import Unknowns, offer_of
from rackline.serving import blackboard

DEPLOYMENTS = (
    ("llama-3.1-70b", "tp=8", "dgx-h100", "fp8", "generic"),
    ("llama-3.1-8b", "tp=1", "dgx-h100", "bf16", "auto"),
    ("deepseek-v3", "attention_dp=8,ep=8", "dgx-h200", "fp8", "auto"),
    ("gpt-oss-120b", "tp=2", "dgx-b200", "native", "generic"),
    ("qwen3-235b-a22b", "attention_dp=4,ep=8,tp=2", "dgx-h200", "fp8", "generic"),
    ("lecture-frontier", "tp=64", "gb200-nvl72", "fp4", "unit"),
    ("llama-3.1-70b", "tp=4,pp=2", "dgx-h100", "bf16", "unit"),
)


@cache
def costs(index: int) -> TokenCosts:
    name, layout, on, label, numbers = DEPLOYMENTS[index]
    return token_costs(name, layout, on=on, label=label, calibration=numbers)


@cache
def offered(
    index: int, margin: float, steps: tuple[float, ...] = (2e3, 8e3, 32e3), earned_at: EarnedAt = "longest"
) -> Offered:
    price = cluster(DEPLOYMENTS[index][2]).usd_per_chip_hour
    assert price is not None
    terms = Terms(margin=margin, utilisation=0.6, tpot_s=0.1, fast_ratios=(1.5, 2.0), earned_at=earned_at)
    return offer_prices(OneDeployment(costs=costs(index)), Rent(usd_per_chip_hour=price), terms, steps=steps)


def as_sheet(found: Offered) -> PriceSheet:
    """The prices as those of a provider; tiers that are not sold are left out."""
    sold = [tier for tier in found.tiers if not tier.reason]
    writes = tuple(
        CacheWrite(name=f"{cache.lifetime_s:g}s", lifetime_s=cache.lifetime_s, usd=cache.write_usd)
        for cache in found.caches
    )
    tiers = tuple(
        PriceTier(
            name=tier.name,
            mode=tier.mode,
            above_context_len=tier.from_len,
            input_usd=tier.input_usd,
            output_usd=tier.output_usd,
            cached_input_usd=tier.cached_input_usd,
            cache_writes=writes if tier.mode == "standard" and tier.from_len == 0.0 else (),
        )
        for tier in sold
    )
    longest = max(tier.until_len for tier in sold)
    return PriceSheet(name="offered", provider="", sold_as="", date="", tiers=tiers, max_context_len=longest)


@settings(max_examples=150)
@given(
    st.integers(0, len(DEPLOYMENTS) - 1),
    st.sampled_from(["standard", "batch", "flex", "priority", "fast"]),
    st.sampled_from([0.0, 0.3]),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_price_covers_cost_at_every_context(index: int, mode: str, margin: float, where: float, much: float) -> None:
    """C98: what a request of any prompt and answer pays is at least what it costs, margin included."""
    sheet = offered(index, margin)
    prompt = float(np.rint(32e3**where))
    answer = float(np.rint(sheet.terms.output_len**much))
    sold = (tier for tier in sheet.tiers if tier.mode == mode and not tier.reason)
    tier = next((tier for tier in sold if tier.from_len < prompt <= tier.until_len), None)
    assume(tier is not None)
    assert tier is not None
    limit = {"standard": 0.1, "flex": 0.1, "batch": None}.get(mode, tier.tpot_s)
    used = 1.0 if mode in ("batch", "flex") else sheet.terms.utilisation
    cost = float(np.asarray(request_cost_usd(costs(index), sheet.rent, prompt, answer, limit, used))[0])
    paid = tier.input_usd * prompt + tier.output_usd * answer
    assert paid >= (1.0 + margin) * cost * (1 - 1e-9)


@pytest.mark.parametrize("index", range(len(DEPLOYMENTS)))
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_the_margin_is_earned_over_the_lengths_of_a_tier(index: int, margin: float) -> None:
    """Prompts drawn at random: what they pay over what their tokens cost, each at its own length."""
    sheet = offered(index, margin, earned_at="mean")
    rng = np.random.default_rng(7)
    for tier in (tier for tier in sheet.tiers if not tier.reason):
        assert tier.way is not None
        low = max(tier.from_len, 128.0)
        lengths = low * (tier.until_len / low) ** rng.random(4000)
        used = sheet.terms.used(tier.mode)
        usd = sheet.rent.usd_per_chip_hour / 3600.0 / used
        paid = tier.input_usd * lengths + tier.output_usd * sheet.terms.output_len
        context = float(lengths.mean()) + sheet.terms.output_len
        room = float(costs(index).mode.max_batched_tokens)
        takes = lengths * costs(index).prefill_chip_s(np.maximum(lengths, room))
        makes = sheet.terms.output_len * costs(index).decode_chip_s(context, tier.way.tpot_limit_s)
        earned = float(np.sum(paid)) / (usd * float(np.sum(takes + makes))) - 1.0
        assert earned == pytest.approx(margin, abs=0.03), tier.name
        assert tier.margin == pytest.approx(margin, abs=1e-9)
        assert tier.way.lengths.mean == PromptLengths(from_len=tier.from_len, until_len=tier.until_len).mean
        assert tier.way.lengths.mean == pytest.approx(lengths.mean(), rel=0.05)


@pytest.mark.parametrize("index", range(len(DEPLOYMENTS)))
def test_cost_of_a_token_never_falls_with_context(index: int) -> None:
    lengths = np.geomspace(1.0, 64e3, 97)
    for limit in (None, 0.1):
        decode = costs(index).decode_chip_s(lengths, limit)
        finite = decode[np.isfinite(decode)]
        assert (np.diff(finite) >= -1e-9 * finite[1:]).all()
        assert not np.isfinite(decode[len(finite) :]).any()  # once nothing fits, nothing longer fits
    long = np.geomspace(costs(index).mode.max_batched_tokens, 1e6, 30)
    prefill = costs(index).prefill_chip_s(long)
    assert (np.diff(prefill) >= -1e-9 * prefill[1:]).all()


@pytest.mark.parametrize("index", range(len(DEPLOYMENTS)))
def test_modes_are_ordered(index: int) -> None:
    """Batch is the cheapest, then flex, standard and fast; longer contexts and slower answers are never dearer."""
    sheet = offered(index, 0.3)
    by_mode = {
        mode: [t for t in sheet.tiers if t.mode == mode] for mode in ("batch", "flex", "standard", "priority", "fast")
    }
    for batch, flex, standard, priority, fast in zip(*by_mode.values(), strict=True):
        if standard.reason:
            continue
        assert batch.output_usd <= flex.output_usd * (1 + 1e-12) < standard.output_usd
        assert batch.input_usd == pytest.approx(standard.input_usd * 0.6)
        if not fast.reason:
            assert fast.output_usd >= priority.output_usd >= standard.output_usd
            assert fast.tpot_s <= standard.tpot_s / 2.0 * (1 + 1e-9)
            assert priority.tpot_s <= standard.tpot_s / 1.5 * (1 + 1e-9)
        assert standard.cached_input_usd <= standard.input_usd
    for tiers in by_mode.values():
        sold = [tier for tier in tiers if not tier.reason]
        assert [t.output_usd for t in sold] == sorted(t.output_usd for t in sold)
        assert [t.input_usd for t in sold] == pytest.approx(sorted(t.input_usd for t in sold), rel=1e-12)


# ------------------------------------------------------------------------------- reading what was made


def one(ends: Range, share: float) -> float:
    return ends.low * (ends.high / ends.low) ** share


SHARE = st.floats(0.0, 1.0)


@settings(max_examples=150)
@given(
    st.floats(8, 12.5),
    st.floats(0.0, 1.0),
    st.lists(SHARE, min_size=8, max_size=8),
    st.booleans(),
)
def test_reading_a_made_sheet_contains_what_made_it(
    log_params: float, point: float, shares: list[float], with_batch: bool
) -> None:
    """Closed forms: any architecture, chip, precision, rent, margin, utilisation and efficiency inside the ranges."""
    u = default_unknowns()
    offer, dtype = u.points[min(int(point * len(u.points)), len(u.points) - 1)]
    flop, hbm = offer.chip.flop_per_s(dtype), offer.chip.hbm_bytes_per_s
    rent = offer.usd_per_chip_hour / 3600 * one(u.rent_factor, shares[0])
    margin = u.margin[0] + (u.margin[1] - u.margin[0]) * shares[1]
    utilisation, mfu = one(u.utilisation, shares[2]), one(u.mfu, shares[3])
    hbm_share, context = one(u.hbm_share, shares[4]), one(u.context_len, shares[5])
    kv_share, step_over = one(u.kv_share, shares[6]), one(u.step_over_crossover, shares[7])
    x = (1 + margin) / utilisation
    params = 10**log_params
    # decode bound by memory at the served context: between 1 and 20 times the compute time
    compute_s = 2 * params / (mfu * flop)
    read = compute_s * (1.01 + 19 * shares[5]) * hbm_share * hbm
    kv = read * kv_share / context
    crossover = blackboard.crossover_context(params, kv, mfu * flop, hbm_share * hbm)
    assume(crossover * step_over < 1e9)
    given_usd = forms.input_usd_per_token(params, flop, mfu, rent, x)
    made_usd = forms.output_usd_per_token(params, read, flop, mfu, hbm, hbm_share, rent, x)
    tiers = [
        PriceTier(name="a", mode="standard", input_usd=given_usd, output_usd=made_usd),
        PriceTier(
            name="b",
            mode="standard",
            above_context_len=crossover * step_over,
            input_usd=given_usd,
            output_usd=made_usd * 1.5,
        ),
    ]
    if with_batch:
        tiers.append(PriceTier(name="c", mode="batch", input_usd=given_usd * utilisation))
    reading = read_prices(PriceSheet(name="made", provider="", sold_as="", date="", tiers=tuple(tiers)), u)
    truths = [
        ("active_params", "input price", params),
        ("bytes_per_output_token", "output price", read),
        ("kv_bytes_per_token", "output price", kv),
        ("crossover_context", "context step", crossover),
        ("kv_bytes_per_token", "context step", kv),
        ("decode_mfu", "output over input price", mfu * given_usd / made_usd),
    ]
    for quantity, method, truth in truths:
        found = reading.find(quantity, method)
        assert found is not None, (quantity, method, reading.missing)
        assert found.range.holds(truth, 1e-6), (quantity, method, truth, found)
    if with_batch:
        least = reading.find("price_over_cost")
        assert least is not None
        assert least.low <= x * (1 + 1e-9)


def effective(index: int, sheet: Offered) -> tuple[float, float, float]:
    """MFU of prefill, share of the bandwidth and share of KV that a deployment really has at its longest context."""
    cost, d = costs(index), costs(index).deployment
    tier = next(t for t in sheet.tiers if t.mode == "standard")
    dtype = {"bf16": "bf16", "fp8": "fp8", "fp4": "fp4"}.get(d.precision.linear_weights, "bf16")
    peak = d.cluster.chip.flop_per_s(dtype)
    room = float(cost.mode.max_batched_tokens)
    prefill = float(cost.prefill_chip_s(max(tier.until_len, room))[0])
    end = tier.until_len + sheet.terms.output_len
    decode = float(cost.decode_chip_s(end, sheet.terms.tpot_s)[0])
    kv = float(cost.kv_bytes(end))
    held = d.memory(sequences=0.0, context_len=0.0)
    weights = float(held.weight_total) * cost.num_chips / tier.batch_size
    read = weights + kv
    return 2 * d.model.active_params / (prefill * peak), read / decode / d.cluster.chip.hbm_bytes_per_s, kv / read


@pytest.mark.parametrize("index", range(len(DEPLOYMENTS)))
def test_reading_the_sheet_of_a_deployment_contains_its_model(index: int) -> None:
    """The engine's own sheets, with all of its overheads: the efficiencies are put in, the rest stays unknown."""
    sheet = offered(index, 0.3, (8e3,))
    d = costs(index).deployment
    mfu, hbm_share, kv_share = effective(index, sheet)
    assert 0 < kv_share < 1

    def about(value: float) -> Range:
        return Range(low=min(value / 1.5, 1.0), high=min(value * 1.5, 1.0))

    unknowns: Unknowns = replace(
        default_unknowns([d.cluster.chip.name]),
        offers=(offer_of(d.cluster),),
        mfu=about(mfu),
        hbm_share=about(hbm_share),
        kv_share=Range(low=kv_share / 1.5, high=min(kv_share * 1.5, 1.0)),
    )
    reading = read_prices(as_sheet(sheet), unknowns)
    active = reading.find("active_params")
    assert active is not None
    assert active.range.holds(d.model.active_params), (active, d.model.active_params)
    kv = reading.find("kv_bytes_per_token", "output price")
    assert kv is not None
    end = 8e3 + sheet.terms.output_len
    truth = float(costs(index).kv_bytes(end)) / end
    assert kv.range.holds(truth), (kv, truth)
