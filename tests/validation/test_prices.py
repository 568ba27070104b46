"""What prices reveal of open models: the page has a row for each, and its claims hold."""

from __future__ import annotations

from pathlib import Path

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
prices = load_script(Path(__file__).with_name("prices.py"))


def test_accuracy_page_has_the_rows_of_the_table() -> None:
    page = (ROOT / "docs" / "accuracy" / "prices.md").read_text(encoding="utf-8")
    shown = page.split(prices.BEGIN)[1].split(prices.END)[0].strip()
    shape = load_script("shown").shape
    assert shape(shown) == shape(prices.table()), "run bench/refresh_docs.py"


def test_the_models_of_the_issue_are_compared() -> None:
    models = {row.model for row in prices.rows()}
    assert {"deepseek-v3", "llama-3.1-70b", "gpt-oss-120b", "qwen3-235b-a22b", "kimi-k2"} <= models


def test_what_the_page_says_of_active_parameters() -> None:
    active = [row for row in prices.rows() if row.quantity == "active_params"]
    assert all(row.certain == row.hosts for row in active)
    assert max(max(row.factor, 1 / row.factor) for row in active) < 4.5
    spans = [row.cheapest.high / row.cheapest.low for row in active]
    assert 1e3 < min(spans) <= max(spans) < 1e4


def test_what_the_page_says_of_kv_bytes() -> None:
    kv = [row for row in prices.rows() if row.quantity == "kv_bytes_per_token"]
    assert all(row.certain == row.hosts for row in kv)
    assert {row.model for row in kv if row.likely < row.hosts} == {"llama-3.1-8b"}
    spans = [row.cheapest.high / row.cheapest.low for row in kv]
    assert 1e5 < min(spans) <= max(spans) < 1e6
