"""`rackline tiers`, `rackline price`, `rackline infer-prices` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import call
from rackline.cli.main import run

TIERS = ("tiers", "llama-3.1-70b", "--on", "dgx-h100", "--precision", "fp8", "--layout", "tp=8")
PRICE = ("price", "llama-3.1-70b", "--on", "dgx-h100", "--precision", "fp8", "--layout", "tp=8")


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(call(capsys, *arguments, "--json"))


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (TIERS, ("cheapest tier by how long", "nvme-4tb", "recompute", "5.00 min", "1.00 h", "1.00 d", "rule")),
        (
            PRICE,
            (
                "standard",
                "batch",
                "flex",
                "priority 1.5x",
                "fast 2.5x",
                "cache writes",
                "PUE",
                "utilisation 60 %",
                "the margin is earned over prompts of all lengths",
                "served in the cheapest way",
            ),
        ),
        (("infer-prices", "gemini-3.1-pro"), ("active params", "N46", "N47", "N48", "not revealed", "lecture's")),
        (("infer-prices", "deepseek-v3"), ("against the open models", "36.6B", "azure-deepseek-v3")),
        (("infer-prices", "--all"), ("88 price sheets", "openai-gpt-5.5", "against the open models")),
    ],
)
def test_tables_fit_the_terminal(
    width: int,
    arguments: tuple[str, ...],
    parts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call(capsys, *arguments)
    assert max(len(line) for line in text.splitlines()) <= width
    flat = " ".join(text.split())
    for part in parts:
        assert part in flat, part


def test_json_of_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, *TIERS, "--prompt", "16k", "--hold-time", "5min", "--hold-time", "1h", "--reuses", "3")
    assert found["prompt_len"] == 16000
    assert found["entry_bytes"] == pytest.approx(16000 * 80 * 2 * 8 * 128)
    assert [answer["hold_s"] for answer in found["hold_times"]] == [300, 3600]
    assert found["envelope"][0]["from_s"] == 0
    assert found["envelope"][-1]["until_s"] is None
    for answer in found["hold_times"]:
        least = min(
            each["usd_per_mtok_once"]
            + each["usd_per_mtok_hour_hold"] * answer["hold_s"] / 3600
            + 3 * each["usd_per_mtok_retrieve"]
            for each in found["tiers"]
        )
        assert answer["cost_usd_per_mtok"] == pytest.approx(least)
    quick = data(capsys, *TIERS, "--max-load-time", "50ms")
    assert all(each["fetch_s"] <= 0.05 for each in quick["tiers"] if each["name"] != "recompute")


def test_json_of_price(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, *PRICE, "--contexts", "8k,32k,10M", "--fast", "2", "--margin", "0", "--utilisation", "100%")
    modes = [(tier["mode"], tier["until_len"]) for tier in found["tiers"]]
    assert modes[:3] == [("standard", 8000), ("standard", 32000), ("standard", 1e7)]
    assert found["tiers"][2]["reason"]
    assert found["tiers"][2]["usd_per_mtok_input"] is None
    assert found["terms"]["price_over_cost"] == 1
    bought = data(capsys, *PRICE, "--purchase", "40000", "--years", "4", "--electricity-price", "0.1", "--pue", "1.2")
    hour = 40000 / (4 * 8766) + 1.73 * 1.2 * 0.1
    assert bought["terms"]["usd_per_chip_hour"] == pytest.approx(hour)
    assert bought["terms"]["rent_or_purchase"] == "purchase"


def test_json_of_infer_prices(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "infer-prices", "--all")
    assert len(found["sheets"]) >= 60
    for sheet in found["sheets"]:
        assert set(sheet) >= {"sheet", "inferences", "not_inferred", "conflicts", "price_changes", "problems"}
        for inference in sheet["inferences"]:
            assert 0 < inference["low"] <= inference["high"]
    assert {row["quantity"] for row in found["compared"]} == {"active_params", "kv_bytes_per_token"}
    narrow = data(capsys, "infer-prices", "gpt-5.4", "--chip", "gb200", "--precision", "fp8", "--margin", "50%")
    wide = data(capsys, "infer-prices", "gpt-5.4")

    def active(answer: Any) -> Any:
        return next(i for i in answer["sheets"][0]["inferences"] if i["quantity"] == "active_params")

    assert active(wide)["low"] < active(narrow)["low"] < active(narrow)["high"] < active(wide)["high"]


def test_the_sheet_is_printed_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(call(capsys, "infer-prices", "nebius-llama-3.1-8b").split())
    assert "$0.0200" in text
    assert "$0.0600" in text
    assert "does the host earn money?" in text
    found = data(capsys, "infer-prices", "nebius-llama-3.1-8b", "claude-opus-4.6")["sheets"]
    assert found[0]["prices"][0]["usd_per_mtok_output"] == pytest.approx(0.06)
    assert found[0]["verdict"]["earns"] == "likely no"
    assert found[1]["verdict"]["earns"] == "unknown"
    assert found[1]["prices"][0]["cache_writes"][0]["usd_per_mtok"] == pytest.approx(6.25)


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert "…" not in call(capsys, "infer-prices", "llama-3.1-8b")
    assert "…" not in call(capsys, "infer-prices", "--all")


def test_a_tier_of_a_small_batch_is_not_sold(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight H100 hold Llama-405B and few long sequences: within a limit and without one it is no tier to sell."""
    arguments = ("price", "llama-3.1-405b", "--on", "dgx-h100", "--precision", "fp8", "--layout", "tp=8")
    arguments = (*arguments, "--contexts", "8k,100k", "--fast", "1.5", "--margin-at", "longest")
    tiers = data(capsys, *arguments)["tiers"]
    for tier in tiers:
        assert bool(tier["reason"]) == (tier["batch_size"] < 16) == (tier["usd_per_mtok_output"] is None)
    long = [tier for tier in tiers if tier["until_len"] == 1e5 and not tier["reason"].startswith("no way is 1.5 times")]
    most = max(tier["batch_size"] for tier in long)
    assert all(tier["reason"].startswith("not sold: $") for tier in long)
    assert all(tier["reason"].endswith(f"memory holds no more than {most:,.0f}") for tier in long)
    text = " ".join(call(capsys, *arguments).split())
    assert long[0]["reason"] in text


@pytest.mark.parametrize("ending", ["svg", "json"])
def test_figures(ending: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for index, arguments in enumerate((TIERS, PRICE, ("infer-prices", "--all"))):
        file = tmp_path / f"{index}.{ending}"
        call(capsys, *arguments, "--plot", str(file))
        assert file.read_text(encoding="utf-8").startswith("<svg" if ending == "svg" else '{"$schema"')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("infer-prices",), "names of sheets or models, or --all"),
        (("infer-prices", "gpt-5.4", "--all"), "or --all"),
        (("infer-prices", "gpt-5.44"), "nearest: "),
        (("infer-prices", "gpt-5.4", "--chip", "h1000"), "nearest: h100-sxm"),
        (("infer-prices", "gpt-5.4", "--chip", "h20"), "a chip with a rent"),
        (("infer-prices", "gpt-5.4", "--precision", "fp6"), "bf16, fp8, fp4"),
        (("infer-prices", "gpt-5.4", "--margin", "80%..20%"), "nearest: 20%..80%"),
        (("infer-prices", "gpt-5.4", "--utilisation", "0..1"), "range"),
        (("infer-prices", "gpt-5.4", "--active", "-1"), "--active"),
        (("infer-prices", "nowhere.toml"), "an existing file"),
        ((*PRICE, "--contexts", "32k,8k"), "rising lengths"),
        ((*PRICE, "--contexts", ","), "--contexts"),
        ((*PRICE, "--utilisation", "0"), "--utilisation"),
        ((*PRICE, "--margin", "-1"), "--margin"),
        ((*PRICE, "--fast", "0.5"), "--fast"),
        ((*PRICE, "--pue", "0.5"), "--pue"),
        ((*PRICE, "--purchase", "0"), "--purchase"),
        ((*PRICE, "--lifetimes", "soon"), "--lifetimes"),
        ((*TIERS, "--hold-time", "0s"), "--hold-time"),
        ((*TIERS, "--reuses", "0"), "--reuses"),
        ((*TIERS, "--plot", "x.gif"), "nearest: x.svg"),
        (("tiers", "llama-3.1-405b", "--on", "tpu-v7-64"), "USD per chip-hour"),
        (("price", "llama-3.1-405b", "--on", "dgx-h100", "--precision", "bf16"), "one that fits"),
        (("price", "llama-3.1-8b", "--on", "l40s-8", "--purchase", "9000", "--set", "x=1"), "--set"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err, err


def test_a_broken_sheet_says_what_it_still_reveals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sheet = tmp_path / "mine.toml"
    sheet.write_text(
        'name = "mine"\nfull_name = "m"\nprovider = "me"\nsold_as = "m"\ndate = "2026-11-21"\n'
        '[[tiers]]\nname = "standard"\nusd_per_mtok_input = 2.0\nusd_per_mtok_output = -3.0\n'
        '[[sources]]\nfields = ["*"]\nkind = "assumed"\ncitation = "made up"\n',
        encoding="utf-8",
    )
    text = " ".join(call(capsys, "infer-prices", str(sheet)).split())
    assert "output price -3 is not above 0" in text
    assert "active params" in text
    assert "not revealed: decode_mfu" in text
