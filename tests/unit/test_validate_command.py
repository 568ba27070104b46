"""`rackline validate`: what goes where, and with which exit status."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline import validation
from rackline.cli.main import run
from rackline.validation import cases as case_module

ROOT = Path(__file__).resolve().parents[2]
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
        (["--import", "vllm"], "error: files: got 'nothing'"),
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


def test_a_line_of_a_compressed_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "cases.jsonl.gz"
    packed.write_bytes(gzip.compress(f"{json.dumps(CASE)}\n{{\n".encode()))
    assert call(packed, "--calibration", "unit") == 0
    assert "warning: cases.jsonl.gz, line 2: line: got a truncated or broken JSON object" in capsys.readouterr().err


def test_without_files_the_shipped_cases_are_scored(
    cases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command and from Python alike; of the shipped files one stands in, which takes no time."""
    monkeypatch.setattr(validation, "shipped_cases", lambda: (cases,))
    assert call("--calibration", "unit") == 0
    screen = capsys.readouterr().out
    assert screen.startswith("1 of 3 cases predicted")
    assert "cases/README.md" in screen
    assert "worst cases, and where" not in screen
    answers = rl.validate(calibration="unit"), rl.validate(str(cases), calibration="unit")
    boards = [answer.to_dict()["metrics"] for answer in answers]
    assert boards[0] == boards[1]


def test_an_installation_without_cases_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(case_module, "case_folder", lambda: tmp_path)
    assert call() == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: case files: got 'none', allowed: files of")


def test_shipped_cases_are_those_at_the_root_of_the_clone() -> None:
    assert {file.parent for file in validation.shipped_cases()} == {ROOT / "cases"}
    assert len(validation.shipped_cases()) == 5


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
