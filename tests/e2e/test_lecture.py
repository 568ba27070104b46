"""`rackline lecture`: tables, one claim, JSON, another machine, refusals; and its page in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackline.cli.main import run
from rackline.ledger import ledger
from rackline.ledger.page import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lecture.md"


def test_page_is_current() -> None:
    """`rackline lecture --page docs/lecture.md` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page(ledger())


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
    assert len(rows) == 173
    for row in rows:
        assert {"claim", "segment", "said", "formula", "quoted", "computed", "verdict", "reason"} <= set(row)


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    def verdict(*more: str) -> str:
        assert run(["lecture", "--claim", "C26", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["claims"][0]["verdict"]

    assert verdict() == "holds"
    assert verdict("--set", "gb200:hbm_bytes_per_s=16TB/s") == "does not hold"


def test_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ledger.md"
    assert run(["lecture", "--segment", "7", "--page", str(file)]) == 0
    capsys.readouterr()
    assert file.read_text(encoding="utf-8").count("\n| **C") == 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--claim", "C200"], ("claim", "nearest: C")),
        (["--segment", "10"], ("--segment", "nearest: 9")),
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
