"""Audits of reported results: what tables are read as, identities, bounds, machines, and planted faults found again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from planted_faults import FAULTS, planted, reported
from rackline.cli.main import run as command
from rackline.errors import InputError
from rackline.validation.audit import VERDICTS, Auditor, audit_figure, checks, identities, spreads
from rackline.validation.cases import Case
from rackline.validation.importers import Given
from rackline.validation.reported import (
    QUANTITIES,
    Reported,
    completed,
    guessed,
    mappings,
    of_case,
    read_reported,
    tables_of,
)
from rackline.validation.run import read_cases
from scripts import load_script

MEASURED = Path("../shared/measured/serving.jsonl")
HEAD = "Model,GPU,Concurrency,ISL,OSL,TTFT (ms),TPOT (ms),Output tok/s"
GOOD = "meta-llama/Llama-3.1-8B-Instruct,h100-sxm,16,1024,256,120,8.9,1690"


def row_of(**values: float) -> Reported:
    """A row of an 8B model on an H100."""
    usual = {"input_len": 1024.0, "output_len": 256.0, "concurrency": 16.0, "num_chips": 1.0}
    names = {"model": "meta-llama/Llama-3.1-8B-Instruct", "chip": "h100-sxm", "stack": "vllm"}
    return completed(Reported(row_id="a", where="t, row 1", values={**usual, **values}, texts=names), Given())


def keys_of(row: Reported) -> dict[str, str]:
    """Failed checks of a row with the verdict of each."""
    return {one.key: one.verdict for one in Auditor().audit([row])[0].findings}


def test_checks_have_sources_and_name_reported_quantities() -> None:
    assert len({one.key for one in identities()} | set(checks())) == len(identities()) + len(checks()) >= 20
    for one in identities():
        assert one.source
        assert one.low < 1.0 < one.high
        assert one.never >= 1.0
        for product in one.products:
            assert set(product.replace("/", "").split()) <= {*QUANTITIES, "request_s", "sum_len"}
    for one in checks().values():
        assert one.source
        assert one.title


@pytest.mark.parametrize(
    ("heading", "quantity", "unit"),
    [
        ("Mean TTFT (ms)", "ttft_s", 1e-3), ("mean_tpot_ms", "tpot_s", 1e-3), ("ITL [us]", "tpot_s", 1e-6),
        ("Output throughput (tok/s)", "output_tokens_per_s", 1.0), ("tok/s/GPU", "tokens_per_s_per_chip", 1.0),
        ("tok/s/user", "user_tokens_per_s", 1.0), ("Total Token throughput (tok/s)", "total_tokens_per_s", 1.0),
        ("request_throughput", "requests_per_s", 1.0), ("total_output_tokens", "output_tokens", 1.0),
        ("max_concurrency", "concurrency", 1.0), ("completed", "requests", 1.0), ("ISL", "input_len", 1.0),
        ("Benchmark duration (s)", "duration_s", 1.0), ("# GPUs", "num_chips", 1.0), ("GPU", "chip", 1.0),
        ("TP", "layout", 1.0), ("P99 TTFT (ms)", "", 1.0), ("colour", "", 1.0),
    ],
)  # fmt: skip
def test_headings_are_guessed(heading: str, quantity: str, unit: float) -> None:
    assert (guessed(heading).quantity, guessed(heading).unit) == (quantity, unit)


def test_tables_of_three_kinds_hold_the_same() -> None:
    head, cells = HEAD.split(","), GOOD.split(",")
    markdown = f"text\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}\n| {' | '.join(cells)} |\n"
    page = "".join(f"<tr>{''.join(f'<td>{one}</td>' for one in row)}</tr>" for row in (head, cells))
    expected = [[head, cells]]
    assert tables_of(f"{HEAD}\n{GOOD}\n", ".csv") == expected
    assert tables_of(markdown, ".md") == expected
    assert tables_of(f"<html><table>{page}</table>", ".html") == expected
    assert tables_of("<td>lost<table><td><table> x <tr>", ".html") == []


def test_a_good_row_passes_and_what_physics_says_of_others() -> None:
    assert keys_of(row_of(ttft_s=0.12, tpot_s=8.9e-3, output_tokens_per_s=1690.0)) == {}
    assert keys_of(row_of(ttft_s=0.12, tpot_s=8.9e-3, output_tokens_per_s=2 * 1690.0))["little"] == "impossible"
    assert keys_of(row_of(ttft_s=0.12, tpot_s=8.9e-3, output_tokens_per_s=600.0))["little"] == "explained"
    assert keys_of(row_of(tpot_s=2e-3))["decode"] == "explained"  # nobody says that there are no drafts
    plain = row_of(tpot_s=2e-3)
    assert keys_of(replace(plain, texts={**plain.texts, "speculative": "none"}))["decode"] == "impossible"
    assert keys_of(row_of(ttft_s=2e-3, tpot_s=8.9e-3))["prefill"] == "explained"
    big = completed(replace(plain, texts={**plain.texts, "model": "meta-llama/Llama-3.1-70B-Instruct"}), Given())
    assert keys_of(big)["memory"] == "impossible"
    assert keys_of(row_of(ttft_s=0.12, tpot_s=8.9e-3, concurrency=2000.0))["cache-room"] == "impossible"
    waits_a_little = row_of(ttft_s=2.69, tpot_s=0.03, concurrency=2000.0)  # 26 % of a request
    assert keys_of(waits_a_little)["cache-room"] == "explained"


def test_a_row_without_a_layout_is_held_to_the_fastest_one() -> None:
    # 70 GB of fp8 weights over 4 x 3.35 TB/s: 5.2 ms a token at least, where one chip of four replicas takes 21 ms
    big = {"model": "meta-llama/Llama-3.1-70B-Instruct", "precision": "fp8"}

    def row(tpot_s: float) -> Reported:
        plain = row_of(num_chips=4.0, concurrency=32.0, input_len=1024.0, output_len=1024.0, tpot_s=tpot_s)
        return completed(replace(plain, texts={**plain.texts, **big}), Given())

    assert "decode" not in keys_of(row(0.02))
    assert "decode" in keys_of(row(0.004))


def test_work_beyond_the_peak_is_explained_by_the_cache_that_lifts_it() -> None:
    row = row_of(requests_per_s=500.0, input_len=8000.0)
    found = next(one for one in Auditor().audit([row])[0].findings if one.key == "work")
    assert found.number > 1.0
    assert f"{1.0 - 1.0 / found.number:.0%}" in found.text


def test_a_first_token_that_is_too_early_is_explained_by_a_cache_unless_there_is_none() -> None:
    early = row_of(ttft_s=0.03, tpot_s=8.9e-3)
    found = next(one for one in Auditor().audit([early])[0].findings if one.key == "spread")
    assert found.verdict == "explained"
    assert f"a cache that holds {1.0 - found.number:.0%} of the prompt's tokens" in found.text
    assert keys_of(replace(early, texts={**early.texts, "prefix": "none"}))["spread"] == "implausible"


def test_copied_rows_and_slow_machines() -> None:
    first = row_of(ttft_s=0.12345, tpot_s=8.9123e-3)
    copies = Auditor().audit([first, replace(first, values={**first.values, "concurrency": 17.0})])
    assert all("copied" in {one.key for one in row.findings} for row in copies)
    again = Auditor().audit([first, first])  # the same run twice is no fraud
    assert not any(row.findings for row in again)
    slow = [row_of(ttft_s=0.2 + n / 10, tpot_s=17e-3 + n / 1e4, concurrency=12.0 + n) for n in range(4)]
    assert all("machine" in {one.key for one in row.findings} for row in Auditor().audit(slow))
    assert not any("machine" in {one.key for one in row.findings} for row in Auditor().audit(slow[:3]))


def test_spread_counts_what_lies_further_out() -> None:
    spread = load_script("planted_faults").spread_of("tpot_s", np.exp(np.linspace(-1.0, 1.0, 1001)).tolist())
    assert spread.beyond(1.0) == pytest.approx(0.5, abs=0.01)
    assert spread.beyond(math.exp(0.9)) == pytest.approx(0.05, abs=0.01)
    assert spread.beyond(100.0) == spread.beyond(0.01) == 0.5 / 1001
    assert spreads()["tpot_s"].count > 1000


def test_shipped_spread_is_that_of_the_measured_files() -> None:
    if not MEASURED.exists():
        pytest.skip("needs ../shared/measured")
    cases = read_cases([MEASURED]).cases
    found = Auditor().audit([of_case(case) for case in cases])
    inside = [one.beyond is not None and one.beyond > 0.025 for one in found]
    assert np.mean(inside) > 0.85
    assert np.mean([one.verdict != "plausible" for one in found]) <= 0.05


@pytest.mark.slow
def test_planted_faults_are_found() -> None:
    if not MEASURED.exists():
        pytest.skip("needs ../shared/measured")
    auditor, rng = Auditor(), np.random.default_rng(7)
    tables: dict[tuple[str, ...], list[Reported]] = {}
    for one in auditor.audit([of_case(case) for case in read_cases([MEASURED]).cases]):
        if one.verdict == "plausible" and one.row.values["num_chips"] > 1:
            tables.setdefault(one.row.machine, []).append(one.row)
    usable = [table for table in tables.values() if len(table) >= 4]
    assert len(FAULTS) == 30
    found = 0
    for fault in FAULTS:
        for _ in range(4):
            table = usable[int(rng.integers(len(usable)))]
            found += auditor.audit(planted(fault, table, int(rng.integers(len(table))), rng))[0].verdict != "plausible"
    assert found >= 0.9 * 4 * len(FAULTS)
    good = auditor.audit([reported(row, rng) for table in usable for row in table])
    assert np.mean([one.verdict != "plausible" for one in good]) <= 0.06


def test_results_of_load_generators_and_columns_by_mapping(tmp_path: Path) -> None:
    result = {"model_id": "meta-llama/Llama-3.1-8B-Instruct", "max_concurrency": 16, "completed": 200,
              "duration": 29.0, "total_input_tokens": 204800, "total_output_tokens": 51200, "mean_ttft_ms": 120.0,
              "mean_tpot_ms": 8.9, "output_throughput": 3400.0}  # fmt: skip
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    given = Given(chip="h100-sxm", num_chips=1)
    rows, columns = read_reported([file], "vllm", given, {})
    assert isinstance(rows[0].case, Case)
    assert {"duration_s", "output_tokens", "output_tokens_per_s"} <= set(rows[0].values)
    assert {"little", "duration"} <= set(keys_of(rows[0]))
    assert {one.quantity for one in columns} >= {"ttft_s", "tpot_s"}
    table = tmp_path / "t.csv"
    table.write_text(f"{HEAD},Wait\n{GOOD},3\n")
    rows, columns = read_reported([table], None, Given(), mappings(["Wait=duration_s:min", "TTFT (ms)="]))
    assert rows[0].values["duration_s"] == 180.0
    assert "ttft_s" not in rows[0].values
    assert [one.given for one in columns].count(True) == 2


@pytest.mark.parametrize(
    "given", ["Wait", "=ttft_s", "Wait=ttft", "Wait=ttft_s:parsec", "Wait=ttft_s:-1", "Nobody=ttft_s"]
)
def test_bad_mappings_say_what_is_allowed(given: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(f"{HEAD},Wait\n{GOOD},3\n")
    with pytest.raises(InputError, match="allowed"):
        rl.audit(str(table), map=[given])


@pytest.mark.parametrize("text", ["", "x", "a,b\n", "\0", "| a |\n", '{"a": 1', "a,b\n1e999,nan\n"])
@pytest.mark.parametrize("suffix", [".csv", ".md", ".html", ".json", ".jsonl"])
def test_files_without_results_end_in_one_line(
    text: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"t{suffix}"
    file.write_text(text)
    assert command(["audit", str(file)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_screen_json_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text(f"{HEAD}\n{GOOD}\n{GOOD.replace('1690', '9000')}\n")
    answer = rl.audit(str(table))
    assert answer.result.verdicts == {**dict.fromkeys(VERDICTS, 0), "plausible": 1, "impossible": 1}
    figure = audit_figure(answer.result.rows)
    assert "1 impossible" in figure.description
    command(["audit", str(table), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["rows"][1]["verdict"] == "impossible"


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [("s", 1.0), ("sec", 1.0), ("seconds", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("min", 60.0)],
)
def test_units_of_times_in_headings_and_options(unit: str, seconds: float) -> None:
    assert guessed(f"Mean TTFT ({unit})").unit == seconds
    (mapped,) = mappings([f"Latency=ttft_s:{unit}"]).values()
    assert (mapped.quantity, mapped.unit, mapped.given) == ("ttft_s", seconds, True)


def test_a_time_without_a_unit_is_in_seconds_and_a_factor_is_a_number_above_zero() -> None:
    assert guessed("Mean TTFT").unit == 1.0
    assert mappings(["Latency=ttft_s"])["Latency"].unit == 1.0
    assert mappings(["Latency=ttft_s:0.5"])["Latency"].unit == 0.5
    for factor in ("0", "-1", "1e12", "nan", "fortnights"):
        with pytest.raises(InputError, match="unit of --map: got"):
            mappings([f"Latency=ttft_s:{factor}"])
