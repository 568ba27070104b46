"""Price sheets: what ships, and sheets with missing, negative or disordered prices."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rackline.catalog import model_record, names
from rackline.errors import CatalogError, UnknownNameError
from rackline.plain import plain
from rackline.pricing import all_sheets, find_sheets, price_sheet, read_all, read_prices

SHARED = Path(__file__).resolve().parents[3] / "shared" / "prices" / "api_prices_litellm.csv"

HEAD = """
name = "mine"
full_name = "a sheet"
provider = "me"
sold_as = "m-1"
date = "2026-11-21"
max_context_len = 1000000
"""
SOURCE = """
[[sources]]
fields = ["*"]
kind = "assumed"
citation = "made up for a test"
"""


def write(tmp_path: Path, body: str, history: str = "") -> str:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + body + history + SOURCE, encoding="utf-8")
    return str(path)


def tier(name: str, given: float | None, made: float | None, more: str = "") -> str:
    prices = "".join(
        f"usd_per_mtok_{what} = {value}\n" for what, value in (("input", given), ("output", made)) if value is not None
    )
    return f'\n[[tiers]]\nname = "{name}"\n{prices}{more}\n'


def test_many_models_ship_and_none_has_a_problem() -> None:
    sheets = all_sheets()
    assert len({(sheet.provider, sheet.sold_as) for sheet in sheets}) >= 60
    assert len([sheet for sheet in sheets if sheet.model is None]) >= 20  # closed models need no architecture
    # hosts that sell input and output at one price, or output below input, are not among them
    assert [sheet.name for sheet in sheets if sheet.problems] == []
    for sheet in sheets:
        assert sheet.standard is not None
        if sheet.model is not None:
            assert model_record(sheet.model).name == sheet.model


def test_open_models_are_sold_by_several_hosts() -> None:
    hosts: dict[str, set[str]] = {}
    for sheet in all_sheets():
        if sheet.model:
            hosts.setdefault(sheet.model, set()).add(sheet.provider)
    for model in ("deepseek-v3", "llama-3.1-70b", "gpt-oss-120b", "qwen3-235b-a22b", "kimi-k2"):
        assert len(hosts[model]) >= 4, model


def test_lecture_s_prices_and_ratios() -> None:  # C01, C96, C105, C109, C119; Y23
    opus = price_sheet("claude-opus-4.6")
    standard, fast = opus.standard, opus.of_mode("fast")[0]
    assert standard is not None
    assert standard.input_usd
    assert standard.output_usd
    assert standard.cached_input_usd
    assert fast.output_usd
    assert fast.output_usd / standard.output_usd == pytest.approx(6.0)
    assert fast.speed_ratio == 2.5
    assert standard.output_usd / standard.input_usd == pytest.approx(5.0)
    assert standard.cached_input_usd / standard.input_usd == pytest.approx(0.1)
    writes = {write.name: write.usd / standard.input_usd for write in standard.cache_writes}
    assert writes == pytest.approx({"5min": 1.25, "1h": 2.0})
    gemini = price_sheet("gemini-3.1-pro")
    assert gemini.standard
    assert gemini.step
    assert gemini.step.output_usd
    assert gemini.standard.output_usd
    assert gemini.step.above_context_len == 200e3
    assert gemini.step.output_usd / gemini.standard.output_usd == pytest.approx(1.5)
    assert gemini.step.input_usd == pytest.approx(2 * (gemini.standard.input_usd or 0))  # N48


def test_shipped_prices_are_those_of_the_table() -> None:
    if not SHARED.exists():
        pytest.skip("the shared price tables are not beside this checkout")
    rows: dict[str, dict[str, str]] = {}
    with SHARED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["model"], row)
    checked = 0
    from rackline.catalog import price_sheet_record

    for name in names("prices"):
        record = price_sheet_record(name)
        citation = record.sources[0].citation or ""
        key = citation.partition("the row ")[2]
        if key not in rows:
            continue
        first = record.tiers[0]
        assert first.usd_per_mtok_input == float(rows[key]["input_cost_usd_per_mtok"]), name
        assert first.usd_per_mtok_output == float(rows[key]["output_cost_usd_per_mtok"]), name
        checked += 1
    assert checked >= 70


def test_names_of_models_stand_for_all_their_hosts() -> None:
    assert len(find_sheets("deepseek-ai/DeepSeek-V3")) >= 6
    assert [sheet.name for sheet in find_sheets("gpt-5.4")] == ["openai-gpt-5.4"]
    with pytest.raises(UnknownNameError, match=r"nearest: .*gpt-5\.4"):
        find_sheets("gpt-5.44")
    with pytest.raises(UnknownNameError, match="existing file"):
        find_sheets("nowhere.toml")


def test_a_missing_price_leaves_the_rest(tmp_path: Path) -> None:
    reading = read_prices(price_sheet(write(tmp_path, tier("standard", None, 10.0))))
    assert "standard: no input price" in reading.problems
    assert reading.find("active_params") is None
    assert any(missing.quantity == "active_params" and "input price" in missing.reason for missing in reading.missing)
    assert reading.find("bytes_per_output_token") is not None
    reading = read_prices(price_sheet(write(tmp_path, tier("standard", 2.0, None))))
    assert reading.find("active_params") is not None
    assert reading.find("decode_mfu") is None


def test_a_negative_price_is_named_and_not_used(tmp_path: Path) -> None:
    more = "usd_per_mtok_cached_input = -0.1"
    reading = read_prices(price_sheet(write(tmp_path, tier("standard", 2.0, -1.0, more))))
    assert any("output price -1 is not above 0" in problem for problem in reading.problems)
    assert any("cached input price -0.1" in problem for problem in reading.problems)
    assert reading.find("active_params") is not None
    assert {missing.quantity for missing in reading.missing} >= {"decode_mfu", "cache hit", "bytes_per_output_token"}


def test_output_cheaper_than_input(tmp_path: Path) -> None:
    reading = read_prices(price_sheet(write(tmp_path, tier("standard", 2.0, 1.0))))
    assert any("output is cheaper than input" in problem for problem in reading.problems)
    assert any(missing.quantity == "decode_mfu" and "0.5 times input" in missing.reason for missing in reading.missing)
    kv = reading.find("kv_bytes_per_token")
    assert kv is not None
    assert kv.bound == "at most"


def test_tiers_out_of_order_are_sorted_and_named(tmp_path: Path) -> None:
    body = tier("long", 4.0, 18.0, "above_context_len = 200000") + tier("short", 2.0, 12.0)
    sheet = price_sheet(write(tmp_path, body))
    assert any("out of order of context" in problem for problem in sheet.problems)
    assert sheet.standard
    assert sheet.standard.name == "short"
    ordered = price_sheet(
        write(tmp_path, tier("short", 2.0, 12.0) + tier("long", 4.0, 18.0, "above_context_len = 200000"))
    )
    crossovers = [read_prices(each).find("crossover_context") for each in (sheet, ordered)]
    assert crossovers[0] == crossovers[1]
    assert crossovers[0] is not None


def test_other_disorder_is_named(tmp_path: Path) -> None:
    writes = '\n[[tiers.cache_writes]]\nname = "1h"\nlifetime_s = 3600\nusd_per_mtok = 10\n'
    writes += '\n[[tiers.cache_writes]]\nname = "5min"\nlifetime_s = 300\nusd_per_mtok = 6.25\n'
    body = tier("standard", 5.0, 25.0, writes) + tier("again", 5.0, 25.0)
    body += tier("beyond", 9.0, 30.0, "above_context_len = 2000000")
    history = '\n[[history]]\nname = "b"\nuntil = "2026-05-01"\nusd_per_mtok_input = 9\nusd_per_mtok_output = 30\n'
    history += '\n[[history]]\nname = "a"\nuntil = "2026-01-01"\nusd_per_mtok_input = 10\nusd_per_mtok_output = 0\n'
    sheet = price_sheet(write(tmp_path, body, history))
    text = " | ".join(sheet.problems)
    for part in ("out of order of lifetime", "same context", "beyond the longest prompt", "history a: a price"):
        assert part in text, part
    assert [each.name for each in (sheet.standard.cache_writes if sheet.standard else ())] == ["5min", "1h"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "tiers"),
        ('\n[[tiers]]\nname = "a"\nusd_per_mtok_input = "two"\n', "valid number"),
        ('\n[[tiers]]\nname = "a"\nusd_per_mtok_input = nan\n', "finite"),
        ('\n[[tiers]]\nname = "a"\nusd_per_mtok_imput = 2\n', "nearest: usd_per_mtok_input"),
        ('\n[[tiers]]\nname = "a"\n\n[[tiers]]\nname = "a"\n', "different names"),
    ],
)
def test_what_is_no_sheet_is_refused(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        price_sheet(write(tmp_path, body))


def test_reading_sheets_twice_gives_the_same() -> None:
    sheets = all_sheets()[:6]
    assert [plain(r) for r in read_all(sheets)] == [plain(r) for r in read_all(sheets)]
