"""Memory tiers with money: cost lines, their lower envelope, break-even times and the drain-time rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rackline.errors import InputError, UnknownNameError
from rackline.hardware import MemoryTier, chip, cluster, hbm_of, memory_tier
from rackline.pricing import (
    KeepingCost,
    break_even_s,
    cheapest,
    default_tiers,
    envelope,
    keeping_cost,
    recompute_cost,
    tier_by_drain,
)

ENTRY = 1.0e9


def line(name: str, fixed: float, hold: float, drain: float | None = 1.0) -> KeepingCost:
    return KeepingCost(name=name, tier="made up", once_usd=0.0, hold_usd_per_s=hold, retrieve_usd=fixed, drain_s=drain)


POSITIVE = st.floats(1e-9, 1e3)
LINES = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=8).map(
    lambda pairs: [line(str(i), fixed, hold) for i, (fixed, hold) in enumerate(pairs)]
)


@given(LINES, st.floats(0.0, 1e7), st.integers(1, 50))
def test_envelope_is_the_minimum_of_its_parts(lines: list[KeepingCost], kept_s: float, reuses: int) -> None:
    best = cheapest(envelope(lines, reuses), kept_s)
    least = min(float(each.usd(kept_s, reuses)) for each in lines)
    assert float(best.usd(kept_s, reuses)) == pytest.approx(least, rel=1e-9)


@given(LINES, st.integers(1, 50))
def test_reigns_cover_all_times_without_a_gap_and_flatten(lines: list[KeepingCost], reuses: int) -> None:
    spans = envelope(lines, reuses)
    assert spans[0].from_s == 0.0
    assert spans[-1].until_s == float("inf")
    for now, then in itertools.pairwise(spans):
        assert now.until_s == then.from_s
        assert then.cost.hold_usd_per_s < now.cost.hold_usd_per_s
        meet = now.until_s
        assert float(now.cost.usd(meet, reuses)) == pytest.approx(float(then.cost.usd(meet, reuses)), rel=1e-6)
        assert break_even_s(now.cost, then.cost, reuses) == pytest.approx(meet, rel=1e-6)


@given(st.floats(1e6, 1e15), st.floats(1e6, 1e14), st.floats(1e-4, 10.0), st.floats(1.0, 1e10))
def test_at_the_drain_time_holding_costs_as_much_as_bringing_back(
    capacity: float, bandwidth: float, usd: float, entry: float
) -> None:
    """C122: equal shares of the device at t = C / W, whatever it costs."""
    unit = MemoryTier(
        name="x",
        tier="nvme",
        capacity_bytes=capacity,
        bytes_per_s=bandwidth,
        write_bytes_per_s=bandwidth,
        usd_per_hour=usd,
    )
    cost = keeping_cost(unit, entry)
    assert cost.hold_usd_per_s * unit.drain_s == pytest.approx(cost.retrieve_usd, rel=1e-9)
    assert unit.held_share_s(entry, unit.drain_s) == pytest.approx(unit.read_s(entry), rel=1e-9)


@given(st.floats(0.05, 3.0), st.floats(1e-3, 1e6))
def test_drain_rule_is_the_envelope_where_hold_falls_as_retrieval_rises(step: float, kept_s: float) -> None:
    """C121: tiers with hold 1/x and retrieve x on a fine or coarse ladder of x; both pick the same rung."""
    ladder = np.exp(np.arange(-12.0, 12.0, step))
    lines = [line(f"{x:g}", fixed=x, hold=1.0 / x, drain=x * x) for x in ladder]
    rule, best = tier_by_drain(lines, kept_s), cheapest(envelope(lines), kept_s)
    assert float(rule.usd(kept_s)) == pytest.approx(float(best.usd(kept_s)), rel=1e-6)


@pytest.mark.parametrize(("hold_power", "fetch_power"), [(1.0, 2.0), (2.0, 1.0), (1.0, 1.5)])
def test_drain_rule_is_off_by_the_ratio_of_exponents_elsewhere(hold_power: float, fetch_power: float) -> None:
    """C80: the sum of x^b and x^-a is least where a times the one is b times the other, not where they are equal."""
    ladder = np.exp(np.arange(-6.0, 6.0, 0.01))
    lines = [
        line(f"{x:g}", fixed=x**fetch_power, hold=x**-hold_power, drain=x ** (hold_power + fetch_power)) for x in ladder
    ]
    best = cheapest(envelope(lines), 1.0)
    assert best.hold_usd_per_s * 1.0 / best.retrieve_usd == pytest.approx(fetch_power / hold_power, rel=0.05)
    rule = tier_by_drain(lines, 1.0)
    assert float(rule.usd(1.0)) > float(best.usd(1.0))


def test_g17_drain_times_of_real_parts() -> None:
    hour = 3600.0
    assert memory_tier("nvme-4tb").drain_s == pytest.approx(571, abs=1)
    for name, hours in (("qlc-31tb", 1.2), ("qlc-61tb", 2.4), ("qlc-123tb", 4.6), ("hdd-20tb", 19.5)):
        assert memory_tier(name).drain_s / hour == pytest.approx(hours, abs=0.06), name
    assert memory_tier("lpddr5x-grace").drain_s == pytest.approx(0.96)
    assert 1.0 < memory_tier("ddr5-host").drain_s < 10.0  # C123 says 1 to 10 s
    assert chip("h100-sxm").drain_s == pytest.approx(0.02553, abs=1e-5)  # 81,559 MiB


def test_real_tiers_follow_the_order_of_the_lecture() -> None:
    """C118: as holding gets cheaper, bringing back gets dearer: HBM, host memory, flash, disk, compute again."""
    lines = [keeping_cost(unit, ENTRY) for unit in default_tiers(cluster("dgx-h100"))]
    lines.append(recompute_cost(5e-4, 1.0))
    kinds = [span.cost.tier for span in envelope(lines)]
    assert kinds == ["hbm", "host_dram", "nvme", "disk", "recompute"]
    assert tier_by_drain(lines, 300.0).tier == "nvme"  # 5 minutes, against the lecture's flash of "about a minute"
    assert tier_by_drain(lines, 3600.0).tier == "qlc"  # an hour is no spinning disk (N53)
    assert tier_by_drain(lines, 86400.0).tier == "disk"


def test_grace_hosts_have_their_own_memory() -> None:
    with_grace = {unit.name for unit in default_tiers(cluster("gb200-nvl72"))}
    assert "lpddr5x-grace" in with_grace
    assert "ddr5-host" not in with_grace
    assert "lpddr5x-grace" not in {unit.name for unit in default_tiers(cluster("dgx-h100"))}


def test_more_reuses_never_favour_slower_tiers() -> None:
    lines = [keeping_cost(unit, ENTRY) for unit in default_tiers(cluster("dgx-h100"))]
    few, many = (cheapest(envelope(lines, n), 20.0) for n in (1, 1000))
    assert many.retrieve_usd <= few.retrieve_usd


def test_own_memory_needs_no_transfer_and_costs_the_rent() -> None:
    tier = hbm_of(chip("h100-sxm"), 3.0)
    cost = keeping_cost(tier, ENTRY)
    assert (cost.once_usd, cost.retrieve_usd, cost.fetch_s) == (0.0, 0.0, 0.0)
    assert cost.hold_usd_per_s == pytest.approx(3.0 / 3600 * ENTRY / (81559 * 2**20))


def test_fetch_time_counts_latency_and_the_narrower_of_unit_and_path() -> None:
    host = memory_tier("ddr5-host")
    assert host.reach_bytes_per_s == 63e9
    assert host.fetch_s(63e9) == pytest.approx(1.0, abs=1e-3)
    assert host.read_s(614.4e9) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_amounts(bad: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        keeping_cost(memory_tier("nvme-4tb"), bad)
    with pytest.raises(InputError, match="above 0"):
        tier_by_drain([line("a", 1.0, 1.0)], bad)
    with pytest.raises(InputError, match="at least 1"):
        envelope([line("a", 1.0, 1.0)], bad)


def test_missing_price_unknown_tier_and_nothing_to_choose_from() -> None:
    unpriced = hbm_of(chip("h20"))
    with pytest.raises(InputError, match="usd_per_hour"):
        keeping_cost(unpriced, ENTRY)
    with pytest.raises(UnknownNameError, match="nearest: hdd-20tb"):
        memory_tier("hdd-20t")
    with pytest.raises(InputError, match="at least one tier"):
        envelope([])
    with pytest.raises(InputError, match="drain time"):
        tier_by_drain([recompute_cost(1.0, 1.0)], 1.0)
