"""`rackline simulate` by its entry point."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from rackline.api.answer import Served, Watch, answer
from rackline.api.simulate_options import SimulateQuestion
from rackline.cli.main import run

BASE = ["simulate", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "2", "--requests", "60"]
MADE = [*BASE, "--rate", "5", "--input", "500", "--output", "50"]


def test_json_has_the_keys_that_programs_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MADE, "--json", "--slo", "ttft=1s", "--compare", "policy=prefill-first,replicas=1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["requests"] == data["finished"] == 60
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert {"mean", "p50", "p90", "p99"} <= set(data[name])
        assert set(data[name]["p99_interval"]) == {"low", "high"}
    assert data["output_tokens_per_s"] > 0
    assert data["slo_attainment"] == 1.0
    assert data["compared"]["policy=prefill-first,replicas=1"]["deployment"]["policy"] == "prefill_first"


def test_other_clusters_are_compared_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MADE, "--compare", "on=dgx-h200,chips=1", "--compare", "on=rtx-4090-8,chips=1"]) == 0
    text = capsys.readouterr().out
    for words in ("on=dgx-h200", "chips=1", "time per output token, p99", "per M output, all-in"):
        assert words in text
    assert run([*MADE, "--json", "--compare", "on=dgx-h200,chips=4"]) == 0
    other = json.loads(capsys.readouterr().out)["compared"]["on=dgx-h200,chips=4"]
    assert (other["deployment"]["cluster"], other["deployment"]["num_chips"]) == ("dgx-h200", 4)


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, trace, series = tmp_path / "a.svg", tmp_path / "b.json", tmp_path / "c.csv"
    for kind in ("cdf", "served", "percentiles"):
        words = ["--plot", str(plot), "--plot-kind", kind, "--trace-passes", str(trace), "--series", str(series)]
        assert run([*MADE, *words]) == 0
        assert "<path" in plot.read_text()
    assert "latency" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]
    assert len(series.read_text().splitlines()) == 61


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*BASE, "--rate", "5"], "--input"),
        (BASE, "--trace, --rate and --users"),
        ([*MADE, "--policy", "chunkd"], "nearest: chunked"),
        ([*MADE, "--router", "robin"], "nearest: round-robin"),
        ([*MADE, "--slo", "ttfft=2s"], "nearest: ttft=2s"),
        ([*MADE, "--replicas", "9"], "up to 2 chips"),
        ([*MADE, "--compare", "polcy=fcfs"], "nearest: policy"),
        ([*MADE, "--compare", "on=dgx-h20"], "nearest: dgx-h200"),
        ([*MADE, "--plot-kind", "pdf", "--plot", "x.json"], "nearest: cdf"),
        ([*MADE, "--plot-kind", "cdf"], "together with --plot FILE"),
        ([*BASE, "--trace", "no-such-file.csv"], "no-such-file.csv"),
        ([*MADE, "--kv-tokens", "100"], "KV cache capacity"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_capacity_and_pools(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MADE, "--capacity", "ttft=2s@p90", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rate_per_s"] > 5
    words = ["--prefill-replicas", "1", "--speculate", "3", "--prefix-caching", "--tier", "host=10GB@20GB/s"]
    assert run([*MADE, *words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["finished"] == 60
    assert data["deployment"]["prefill_replicas"] == 1


def test_more_requests_than_can_be_served_and_ranks_that_wait_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "deepseek-v3", "--on", "gb200-nvl72", "--layout", "attention_dp=8,ep=8", "--replicas", "1"]
    words += ["--policy", "prefill-first", "--rate", "30", "--requests", "800", "--input", "4k", "--output", "200"]
    words += ["--lengths", "uniform", "--max-num-seqs", "16"]
    assert run(words) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "could start" in shown
    assert "waited when the last one came" in shown
    assert "ranks step together" in shown
    assert "shorter chunks" not in shown  # advice that no run of theirs backs
    assert "--compare" in shown
    assert run(MADE) == 0
    shown = capsys.readouterr().out
    assert "could start" not in shown
    assert "ranks step together" not in shown


def test_a_series_is_the_same_as_parquet_and_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    polars = pytest.importorskip("polars")
    parquet, table = tmp_path / "run.parquet", tmp_path / "run.csv"
    for file in (parquet, table):
        assert (
            run(
                [
                    *BASE,
                    "--rate",
                    "50",
                    "--input",
                    "500",
                    "--output",
                    "200",
                    "--kv-tokens",
                    "1600",
                    "--series",
                    str(file),
                ]
            )
            == 0
        )
    assert "preemptions" in capsys.readouterr().out
    one, two = polars.read_parquet(parquet), polars.read_csv(table)
    assert one.shape == (60, 9)
    assert one.columns == two.columns
    assert one["preemptions"].sum() > 0
    assert one.equals(two.cast(dict(one.schema)))


def test_a_series_of_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    file = tmp_path / "run.parquet"
    assert run([*BASE, "--rate", "5", "--input", "500", "--output", "1", "--series", str(file)]) == 0
    assert polars.read_parquet(file)["tpot_s"].is_nan().all()


def test_parquet_without_polars_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    assert run([*MADE, "--series", str(tmp_path / "run.parquet")]) == 2
    error = capsys.readouterr().err
    assert "rackline[sweep]" in error
    assert "run.csv" in error
    assert error.count("\n") == 1


def test_progress_names_the_server_where_there_are_several() -> None:
    asked: dict[str, Any] = {"on": "dgx-h100", "chips": 1, "rate": "5", "input": 100, "output": 10, "requests": 20}
    told: list[str] = []

    class Told(Watch):
        def serving(self, what: str) -> AbstractContextManager[Served | None]:
            told.append(what)
            return super().serving(what)

    answer(SimulateQuestion("llama-3.1-8b", **asked), Told())
    answer(SimulateQuestion("llama-3.1-8b", **asked, compare=["chips=2"]), Told())
    assert told[0] == "serving 20 requests"
    assert [text.partition(" (")[0] for text in told[1:]] == ["serving 20 requests"] * 2
    assert all(text.endswith(")") for text in told[1:])
