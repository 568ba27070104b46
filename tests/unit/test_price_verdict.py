"""Whether a host of an open model earns money: its prices against the cost of the model's tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rackline as rl
from rackline.pricing import all_sheets, compare, default_unknowns, price_sheet, read_all, read_prices
from rackline.pricing.sheet import PriceSheet


def at(name: str, times: float = 1.0) -> PriceSheet:
    """A sheet of the catalogue, its first prices times a number."""
    sheet = price_sheet(name)
    first = sheet.tiers[0]
    assert first.input_usd is not None
    assert first.output_usd is not None
    dearer = replace(first, input_usd=first.input_usd * times, output_usd=first.output_usd * times)
    return replace(sheet, tiers=(dearer, *sheet.tiers[1:]))


def test_every_host_of_an_open_model_gets_a_verdict_and_no_closed_one_does() -> None:
    readings = read_all(all_sheets())
    open_models = [reading for reading in readings if reading.model]
    assert len(open_models) > 50
    for reading in readings:
        verdict = reading.verdict
        assert (verdict.earning_share is None) == (reading.model is None)
        assert verdict.text
        if verdict.earning_share is not None:
            assert verdict.likely_margin_low is not None
            assert verdict.likely_margin_high is not None
            assert -1.0 < verdict.likely_margin_low < verdict.likely_margin_high
            assert ("likely" in verdict.earns) == (0.1 < verdict.earning_share < 0.9)
    assert len({reading.verdict.earns for reading in open_models}) >= 3


def test_the_margin_follows_the_price() -> None:
    """Margin + 1 is in proportion to the prices, so ten times the price makes every host rich."""
    one, ten = (read_prices(at("nebius-llama-3.1-8b", times)).verdict for times in (1.0, 10.0))
    assert one.likely_margin_low is not None
    assert ten.likely_margin_low is not None
    assert ten.likely_margin_low + 1.0 == pytest.approx(10.0 * (one.likely_margin_low + 1.0))
    assert one.earning_share is not None
    assert ten.earning_share is not None
    assert one.earning_share < ten.earning_share
    assert read_prices(at("nebius-llama-3.1-8b", 100.0)).verdict.earns == "yes"
    assert read_prices(at("nebius-llama-3.1-8b", 0.01)).verdict.earns == "no"


def test_a_dearer_chip_hour_costs_margin() -> None:
    cheap, dear = (
        replace(u, offers=tuple(replace(o, usd_per_chip_hour=o.usd_per_chip_hour * f) for o in u.offers))
        for u, f in ((default_unknowns(), 1.0), (default_unknowns(), 3.0))
    )
    sheet = price_sheet("nebius-qwen3-32b")
    low, high = read_prices(sheet, dear).verdict, read_prices(sheet, cheap).verdict
    assert low.likely_margin_high is not None
    assert high.likely_margin_high is not None
    assert (low.likely_margin_high + 1.0) * 3.0 == pytest.approx(high.likely_margin_high + 1.0)


def test_the_text_says_where_the_money_comes_from() -> None:
    """One price for both: the prompts pay for the answers."""
    verdict = read_prices(price_sheet("together-llama-3.1-8b")).verdict
    assert verdict.input_price_over_cost is not None
    assert verdict.output_price_over_cost is not None
    assert verdict.input_price_over_cost > 5.0 > verdict.output_price_over_cost
    assert "input at" in verdict.text
    assert "output at" in verdict.text


def test_a_request_pays_its_cost_not_each_of_its_tokens() -> None:
    """KV bytes read from the output price miss only at hosts that sell below the cost that the reading supposes."""
    readings = [reading for reading in read_all(all_sheets()) if reading.model]
    rows = {
        reading.sheet: next(row for row in compare([reading]) if row.quantity == "kv_bytes_per_token")
        for reading in readings
    }
    missed = {reading for reading in readings if not rows[reading.sheet].likely}
    assert {reading.verdict.earns for reading in missed} <= {"likely no", "no"}
    assert len(missed) <= 5
    assert sum(rows[reading.sheet].likely for reading in readings if reading.model == "llama-3.1-8b") >= 3


def test_the_answer_s_line_has_the_verdict() -> None:
    assert "earns money: likely no" in repr(rl.infer_prices("nebius-llama-3.1-8b"))
    assert "earns" not in repr(rl.infer_prices("claude-opus-4.6"))


def test_all_prices_of_the_sheet_are_in_the_reading() -> None:
    sheet = price_sheet("claude-opus-4.6")
    assert read_prices(sheet).prices == sheet.tiers
