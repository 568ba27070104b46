"""Prices of chips by kind: one kind throughout an answer, missing ones estimated and said."""

from __future__ import annotations

import pytest

import rackline as rl
from rackline.catalog import names
from rackline.errors import InputError
from rackline.hardware import chip_record, cluster, rent_of, rented
from rackline.hardware.chip import RENT_KINDS


def test_the_price_of_the_catalogue_is_one_of_a_known_kind() -> None:
    for name in names("chips"):
        record = chip_record(name)
        assert (record.usd_per_chip_hour is None) == (record.rent_kind is None), name
        kept = record.rents.get(record.rent_kind) if record.rent_kind else None
        assert kept is None or kept.usd_per_chip_hour == record.usd_per_chip_hour, name


def test_a_published_price_is_used_as_it_is() -> None:
    found = rent_of("h100-sxm", "on_demand")
    assert found is not None
    assert (found.usd_per_chip_hour, found.estimated) == (2.95, False)
    assert found.how == "on demand, 2026-05"


def test_a_missing_price_is_estimated_from_the_ratio_of_both_kinds_elsewhere() -> None:
    found = rent_of("mi300x", "on_demand")
    assert found is not None
    assert found.estimated
    both = [chip_record(name).rents for name in ("b200-sxm", "h100-sxm", "h200-sxm")]
    ratios = sorted(one["on_demand"].usd_per_chip_hour / one["reserved_3y"].usd_per_chip_hour for one in both)
    assert found.usd_per_chip_hour == pytest.approx(1.55 * ratios[1])
    assert "estimated" in found.how
    assert "3 chips" in found.how


def test_a_chip_without_a_price_has_none_of_any_kind() -> None:
    assert rent_of("wse3", "owned") is None if "wse3" in names("chips") else rent_of("cerebras-wse3", "owned") is None
    bare = rented(cluster("wse3-1"), "on_demand")
    assert bare.usd_per_chip_hour is None
    assert bare.rent == "no price on demand is known"


@pytest.mark.parametrize("kind", RENT_KINDS)
def test_a_cluster_is_rented_at_its_chips_price(kind: str) -> None:
    found, price = rented(cluster("dgx-h100"), kind), rent_of("h100-sxm", kind)  # type: ignore[arg-type]
    if price is None:
        assert found.usd_per_chip_hour is None
    else:
        assert found.usd_per_chip_hour == price.usd_per_chip_hour
        assert found.rent == price.how


def test_chips_are_compared_at_prices_of_one_kind() -> None:
    mixed = rl.compare(["h100-sxm", "l40s"]).result
    assert mixed.prices.startswith("prices: ")
    assert "estimated" in mixed.prices
    same = rl.compare(["h100-sxm", "b200-sxm"]).result
    assert same.prices == "prices: reserved for three years"
    asked = rl.compare(["h100-sxm", "b200-sxm"], rent="on-demand").result
    assert [side.values["usd_per_chip_hour"] for side in asked.sides] == [2.95, 5.5]
    assert asked.prices == "prices: on demand"


def test_clusters_are_compared_at_prices_of_one_kind() -> None:
    found = rl.compare(["dgx-h100", "l40s-8"], rent="owned").result
    assert found.sides[0].values["usd_per_chip_hour"] == 1.3
    assert "l40s-8" in found.prices


def test_a_plan_says_what_kind_of_price_it_uses() -> None:
    question = {"on": "dgx-h100", "input": "1k", "output": 200, "serving": "aggregated", "layout": "tp=8"}
    listed = rl.plan("llama-3.1-8b", **question).result.plan
    dear = rl.plan("llama-3.1-8b", **question, rent="on-demand").result.plan
    assert listed.system.cluster.rent == "reserved for three years"
    assert dear.system.cluster.rent == "on demand, 2026-05"
    assert listed.best is not None
    assert dear.best is not None
    ratio = dear.best.usd_per_mtok_output_all_in / listed.best.usd_per_mtok_output_all_in
    assert ratio == pytest.approx(2.95 / 1.3)


def test_bad_kinds_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="on-demand"):
        rl.compare(["h100-sxm", "b200-sxm"], rent="on-demnd")
    with pytest.raises(InputError, match="price"):
        rl.plan("llama-3.1-8b", on="dgx-h100", input="1k", output=200, price=2.0, rent="owned")
