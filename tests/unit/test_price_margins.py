"""Margins of a provider's prices: modes, context tiers, cached input, cache writes, storage; bad input."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from rackline.errors import InputError
from rackline.pricing.margins import sheet_of, steps_of

SHEET = """
name = "mine"
full_name = "a model of mine"
provider = "me"
sold_as = "m-1"
date = "2026-11-25"
max_context_len = 24000

[[tiers]]
name = "standard"
mode = "standard"
usd_per_mtok_input = 0.01
usd_per_mtok_output = 0.3
usd_per_mtok_cached_input = 0.001
usd_per_mtok_hour_storage = 0.01
cache_writes = [{ name = "5min", lifetime_s = 300, usd_per_mtok = 0.0125 }]

[[tiers]]
name = "long"
mode = "standard"
above_context_len = 12000
usd_per_mtok_input = 0.02
usd_per_mtok_output = 0.6

[[tiers]]
name = "batch"
mode = "batch"
usd_per_mtok_input = 0.005
usd_per_mtok_output = 0.15

[[tiers]]
name = "fast"
mode = "fast"
usd_per_mtok_input = 0.06
usd_per_mtok_output = 1.8
speed_ratio = 2.0

[[sources]]
fields = ["*"]
kind = "vendor"
citation = "a test"
"""
ASKED: dict[str, Any] = {
    "on": "dgx-h100", "layout": "tp=1,pp=1", "precision": "bf16", "calibration": "vllm", "tpot": "40ms",
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sheet") / "mine.toml"
    path.write_text(SHEET, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found(file: Path) -> Any:
    return rl.price("llama-3.1-8b", against=str(file), utilisation="50%", **ASKED)


def test_each_mode_and_tier_of_the_sheet_has_its_margin(found: Any) -> None:
    rows = {(row.served_as, row.until_len): row for row in found.result.against.tiers}
    assert {mode for mode, _ in rows} == {"standard", "batch", "fast 2x"}
    assert {until for mode, until in rows if mode == "standard"} == {12_000.0, 24_000.0}
    paid = {key: row.priced_as for key, row in rows.items()}
    assert paid["standard", 12_000.0] == "standard"
    assert paid["standard", 24_000.0] == "long"
    assert paid["batch", 24_000.0] == "batch"
    for row in rows.values():
        if row.verdict == "not served":
            continue
        prompt = next(
            tier.way.lengths.mean for tier in found.result.offered.tiers if tier.until_len == row.until_len and tier.way
        )
        price = prompt * row.price_input_usd + 1000 * row.price_output_usd
        cost = prompt * row.cost_input_usd + 1000 * row.cost_output_usd
        assert row.margin == pytest.approx(price / cost - 1, rel=1e-6)
        assert row.margin_low < row.margin < row.margin_high
        expected = "earns" if row.margin_low >= 0 else "loses" if row.margin_high < 0 else row.verdict
        assert row.verdict == expected


def test_long_prompts_cost_more_and_cached_ones_less(found: Any) -> None:
    short, long = [row for row in found.result.against.tiers if row.mode == "standard"]
    assert long.cost_output_usd > short.cost_output_usd
    assert short.cost_cached_usd < short.cost_input_usd
    assert short.margin_cached == pytest.approx(1e-9 / short.cost_cached_usd - 1)
    assert long.margin_cached is None  # the long tier has no price of hits


def test_writes_and_storage_are_held_against_their_cost(found: Any) -> None:
    write, storage = found.result.against.writes
    assert (write.what, write.lifetime_s, storage.what) == ("write", 300.0, "storage")
    for row in (write, storage):
        assert row.margin == pytest.approx(row.usd_per_mtok_price / row.usd_per_mtok_cost - 1)
    # a write computes the prompt
    first = found.result.against.tiers[0]
    assert write.usd_per_mtok_cost >= first.usd_per_mtok_input_cost


def test_the_utilisation_at_which_it_pays_pays(file: Path, found: Any) -> None:
    first = found.result.against.tiers[0]
    assert 0.05 < first.pays_from < 1.0
    again = rl.price("llama-3.1-8b", against=str(file), utilisation=first.pays_from, **ASKED).result.against.tiers[0]
    assert again.margin == pytest.approx(0.0, abs=1e-6)
    assert again.pays_from == pytest.approx(first.pays_from)
    screen = StringIO()
    Console(width=120, file=screen).print(*found.text(120))
    assert "pays from" in screen.getvalue()
    assert "on demand" in screen.getvalue()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"against": "bedrok"}, "nearest: bedrock"),
        ({"against": "bedrock-llama-3.1-8"}, "nearest: bedrock-llama-3.1-8b"),
        ({"against": "bedrock", "margin": "20%"}, "either `against`"),
        ({"against": "none.toml"}, "none.toml"),
    ],
)
def test_bad_input(given: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rl.price("llama-3.1-8b", **ASKED, **given)


def test_a_provider_stands_for_its_sheet_of_the_model() -> None:
    assert sheet_of("bedrock", "gpt-oss-20b").name == "bedrock-gpt-oss-20b"
    assert steps_of(sheet_of("novita", "llama-3.1-8b"), (8e3, 128e3)) == (8000.0, 16384.0)


def test_without_prices_the_figure_says_so() -> None:
    from rackline.report.pricing_figures import margins_figure

    assert "no prices" in margins_figure(None).description
