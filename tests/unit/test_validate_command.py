"""`rackline validate`: what goes where, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.cli.main import run

CASE: dict[str, Any] = {
    "id": "a",
    "kind": "serve",
    "model": "llama-3.1-8b",
    "chip": "h100-sxm",
    "num_chips": 1,
    "precision": "fp8",
    "layout": {},
    "input_len": 1000,
    "output_len": 100,
    "concurrency": 8,
    "measured": {"tpot_s": 0.006, "ttft_s": 0.05},
}


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join([json.dumps(CASE), json.dumps({**CASE, "id": "b", "model": "nobody"}), '{"id": "c"']))
    return path


def call(*words: object) -> int:
    """Exit status of `rackline validate WORDS`."""
    try:
        return run(["validate", *map(str, words)])
    except SystemExit as status:
        return int(status.code or 0)


def test_bad_cases_are_named_on_standard_error_and_counted(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(cases, "--calibration", "unit", "--json") == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (data["cases"], data["supported"]) == (3, 1)
    assert data["metrics"]["tpot_s"]["supported"] == 1
    assert [entry["id"] for entry in data["unsupported"]] == ["cases.jsonl, line 3", "b"]
    assert "warning: cases.jsonl, line 2: model: got 'nobody'" in err
    assert "warning: cases.jsonl, line 3: line: got a truncated or broken JSON object" in err


def test_strict_exits_1_after_printing_everything(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(cases, "--calibration", "unit", "--strict") == 1
    out = capsys.readouterr().out
    assert "1 of 3 cases predicted" in out
    assert "tpot_s" in out
    assert "2 cases without prediction" in out
    cases.write_text(json.dumps(CASE))
    assert call(cases, "--calibration", "unit", "--strict") == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.jsonl"], "error: case file: got 'nowhere.jsonl'"),
        ([], "error: files: got 'nothing'"),
        (["CASES", "--calibration", "vlm"], "error: --calibration"),
        (["CASES", "--plot", "x.gif"], "error: --plot"),
        (["CASES", "--stored", "nowhere.json"], "error: --stored"),
        (["CASES", "--chip", "h100-sxm"], "error: --chip: got 'h100-sxm', allowed: only with --import"),
        (["CASES", "--import", "vlm"], "error: "),
    ],
)
def test_bad_options_exit_2_with_one_line(
    cases: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert call(*[cases if word == "CASES" else word for word in words]) == 2
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith(expected)
    assert "Traceback" not in err
    assert out == ""


def test_parity_plot_is_written(cases: Path, tmp_path: Path) -> None:
    assert call(cases, "--calibration", "unit", "--plot", tmp_path / "parity.html") == 0
    page = (tmp_path / "parity.html").read_text(encoding="utf-8")
    assert "vegaEmbed" in page
    assert "predicted over measured" in page.lower()


def test_stored_scoreboard_fails_when_it_was_better(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "scoreboard.json"
    assert call(cases, "--calibration", "unit", "--write-stored", stored) == 0
    assert call(cases, "--calibration", "unit", "--stored", stored) == 0
    data = json.loads(stored.read_text())
    data["metrics"]["tpot_s"]["median_abs_error"] /= 2
    stored.write_text(json.dumps(data))
    capsys.readouterr()
    assert call(cases, "--calibration", "unit", "--stored", stored, "--json") == 1
    out, err = capsys.readouterr()
    assert "worse: tpot_s: median error" in err
    assert json.loads(out)["worse"]


def test_imported_results_can_be_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "max_concurrency": 8,
        "completed": 10,
        "total_input_tokens": 10000,
        "total_output_tokens": 1000,
        "mean_ttft_ms": 50.0,
        "mean_tpot_ms": 6.0,
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    target = tmp_path / "imported.jsonl"
    words = ["--import", "vllm", tmp_path / "result.json", "--chip", "h100-sxm", "--num-chips", "1"]
    assert call(*words, "-o", target) == 0
    assert capsys.readouterr().out == ""
    assert call(target, "--calibration", "unit", "--strict") == 0
    capsys.readouterr()
    assert call(*words) == 0
    assert capsys.readouterr().out == target.read_text()
