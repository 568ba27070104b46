"""Ways to pay for chips, each against another way to work it out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.pricing.terms import (
    TERM_KINDS,
    blend,
    find_terms,
    owning,
    quality_of,
    serving_share,
    spare_hosts,
    stored,
    terms_of,
)


@settings(max_examples=40, deadline=None)
@given(
    base=st.floats(0.2, 5.0), over=st.floats(1.0, 6.0), peak=st.floats(1.0, 2.0), units=st.floats(0.3, 40.0)
)  # the price on demand is `over` times that of the base
def test_no_other_base_is_cheaper(base: float, over: float, peak: float, units: float) -> None:
    """The closed form against a day of 4,000 moments in whole units, and every number of units that may be held."""
    on_demand = base * over
    load = units / peak * (1.0 + (peak - 1.0) * np.cos((np.arange(4000) + 0.5) * np.pi / 4000))
    needed = np.maximum(np.ceil(load - 1e-9), 1.0)
    held = np.arange(math.ceil(units) + 1)[:, None]
    usd = held[:, 0] * base + on_demand * np.maximum(needed - held, 0.0).mean(axis=1)
    found = blend(base, on_demand, peak, units)
    assert found.units == math.ceil(units)
    assert found.usd_per_hour * found.units == pytest.approx(usd.min(), rel=2e-3)
    assert usd[found.held] == pytest.approx(usd.min(), rel=2e-3)


def test_a_load_that_does_not_swing_is_held() -> None:
    assert blend(1.3, 2.95, 1.0, 12.0).usd_per_hour == pytest.approx(1.3)


def test_a_peak_of_more_than_twice_the_mean_is_refused() -> None:
    with pytest.raises(InputError, match="1 to 2"):
        blend(1.3, 2.95, 2.5, 12.0)


def test_instances_that_are_taken_back() -> None:
    """Interruptions at the rate of 5 % a month, drawn."""
    rate = -math.log(0.95) / 730.0
    up = np.random.default_rng(1).exponential(1.0 / rate, 200_000)
    assert serving_share(0.05, 3600.0 * 24) == pytest.approx(up.mean() / (up.mean() + 24.0), rel=2e-3)
    assert serving_share(0.0, 1e6) == 1.0


def test_ways_to_pay_for_an_h100() -> None:
    usd = {one.kind: one.usd_per_chip_hour for one in terms_of("h100-sxm")}
    assert usd["on_demand"] == 2.95
    assert usd["reserved_3y"] == 1.3
    assert usd["spot"] == pytest.approx(2.95 * stored()["spot"]["ratio_to_on_demand"])
    assert set(usd) <= set(TERM_KINDS)
    assert [one.kind for one in find_terms(cluster("dgx-h100"), ("owned", "on-demand"))] == ["on_demand", "owned"]


def test_an_unknown_way_to_pay_names_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest: reserved-1y"):
        find_terms(cluster("dgx-h100"), ("reserve-1y",))


def test_when_buying_has_paid() -> None:
    """Renting and owning, month by month."""
    found = owning(cluster("dgx-b200"))
    assert found is not None
    assert found.quoted
    assert found.capital_usd == 449_000 / 8
    assert found.running_usd_per_hour == pytest.approx(2.17 * 0.08)
    months = found.break_even_months(5.5)
    assert months is not None
    own = found.capital_usd + months * 730.0 * found.running_usd_per_hour
    assert own == pytest.approx(months * 730.0 * 5.5)
    assert found.break_even_months(0.1) is None
    pcie = cluster("l40s-8")  # nobody says what its machine draws: its chips at their limit, by the usual machine
    draws = owning(pcie)
    assert draws is not None
    assert draws.running_usd_per_hour == pytest.approx(0.08 * 0.585, rel=0.01)
    assert owning(replace(pcie, chip=replace(pcie.chip, power=None))) is None


def test_capital_that_no_quote_states_makes_the_price_of_owning() -> None:
    found = owning(cluster("dgx-h100"))
    assert found is not None
    assert not found.quoted
    hours = 730.0 * found.months
    assert found.capital_usd / hours + found.running_usd_per_hour == pytest.approx(1.3)


@pytest.mark.parametrize(("hosts", "availability"), [(1, 0.99), (8, 0.999), (76, 0.999), (500, 0.9999)])
def test_spares_against_drawn_failures(hosts: int, availability: float) -> None:
    spare = spare_hosts(hosts, availability)
    rates = stored()["hosts"]
    days = rates["repair_s"] / 86400.0
    down = days / (1.0 / rates["failures_per_day"] + days)
    rng = np.random.default_rng(0)
    for spares, enough in ((spare, True), (spare - 1, False)):
        if spares >= 0:
            failed = rng.binomial(hosts + spares, down, 2_000_000)
            share = float((failed <= spares).mean())
            assert (share >= availability - 3.0 * math.sqrt(availability * (1 - availability) / 2e6)) is enough


def test_scores_say_where_they_are_from() -> None:
    found = quality_of("deepseek-v3")
    assert found is not None
    assert (found.benchmark, found.score, found.date) == ("MMLU-Pro", 75.9, "2024-12")
    assert found.source
    assert quality_of("gpt-j-6b") is None


def test_each_stored_number_has_a_source() -> None:
    for name, table in stored().items():
        if isinstance(table, dict) and name not in ("capital",):
            stated = {field for source in table["sources"] for field in source["fields"]}
            assert stated == set(table) - {"sources"}
    assert {chip for source in stored()["capital_sources"] for chip in source["chips"]} == set(stored()["capital"])
