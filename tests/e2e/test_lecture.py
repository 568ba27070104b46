"""`rackline lecture`: tables, one claim, JSON, another machine, refusals; and its page in the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rackline.cli.main import run
from rackline.ledger.table import ledger, page
from scripts import load_script

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lecture.md"


def test_page_is_current() -> None:
    """But for digits, which `bench/refresh_docs.py` writes."""
    shape = load_script("shown").shape
    assert shape(PAGE.read_text(encoding="utf-8")) == shape(page(ledger()))


def test_table_counts_the_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lecture", "--segment", "5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("C80", "C95", "16 claims", "holds only if"):
        assert words in out
    assert "C96" not in out


def test_one_claim_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lecture", "--claim", "C100"]) == 0
    out = capsys.readouterr().out
    for words in ("1,667 B/token", "3,387 B/token", "holds in these units", "h100-sxm", "1:37:36"):
        assert words in out


def test_json_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lecture", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["claims"]
    assert len(rows) == 173 + 22 + 27
    for row in rows:
        assert {"claim", "segment", "said", "formula", "quoted", "computed", "verdict", "reason"} <= set(row)


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    def verdict(*more: str) -> str:
        assert run(["lecture", "--claim", "C26", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["claims"][0]["verdict"]

    assert verdict() == "holds"
    assert verdict("--set", "gb200:hbm_bytes_per_s=16TB/s") == "does not hold"


def test_verdict_and_text_follow_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    def found(*more: str) -> dict[str, str]:
        assert run(["lecture", "--claim", "C78", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["claims"][0]

    before, after = found(), found("--set", "gb200:hbm_bytes_per_s=1TB/s")
    assert (before["verdict"], after["verdict"]) == ("holds", "does not hold")
    assert "1.16 ms" in before["reason"]
    assert "9.32 ms" in after["reason"]


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("Q4", ("6.94k sequences", "cache at 434 sequences", "arithmetic at 27.8k sequences")),
        ("Q12", ("42.9 %", "updates that the first stage misses", "weights of a stage of Llama 3.1 405B")),
        ("Q14", ("gemma-3-27b 1.19 times", "llama-3.1-405b 1.02 times", "slows research")),
        ("Q26", ("rounds of AES until each byte depends on each 2 rounds", "129 layers")),
        ("Q27", ("after training on words 100 %", "after training on their ciphertexts")),
        ("Q8", ("C20", "C21", "2.40k sequences")),
        ("N01", ("37.5 sequences", "sparsity is total over active")),
    ],
)
def test_one_command_answers_a_card_or_judges_a_summary(claim: str, words: tuple[str, ...]) -> None:
    """By subprocess, as a reader would."""
    command = [sys.executable, "-m", "rackline", "lecture", "--claim", claim]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    text = " ".join(done.stdout.replace("│", " ").split())
    for word in words:
        assert word in text
    data = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert data["claims"][0]["claim"] == claim


def test_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ledger.md"
    assert run(["lecture", "--segment", "7", "--page", str(file)]) == 0
    capsys.readouterr()
    assert file.read_text(encoding="utf-8").count("\n| **C") == 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--claim", "C200"], ("claim", "nearest: C")),
        (["--segment", "12"], ("--segment", "nearest: 11")),
        (["--segment", "two"], ("--segment",)),
        (["--segment", "2", "--claim", "C99"], ("of the segment",)),
        (["--set", "gb200:hbm_bytes_per=1"], ("nearest: gb200:hbm_bytes_per_s=1",)),
        (["--set", "gb20:hbm_bytes=1"], ("nearest: gb200:hbm_bytes=1",)),
        (["--set", "gb200:hbm_bytes_per_s=-1"], ("not negative",)),
        (["--page", "no/such/page.md"], ("--page",)),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lecture", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    for word in words:
        assert word in line
