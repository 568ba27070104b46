"""The scoreboard of the shipped cases: no group of 30 cases or more may get worse by more than 5 % of its error.

`scoreboard.json` holds the errors of the last commit that stored them. After a change that makes them better, or worse
for a good reason, store them again:

    uv run rackline validate --write-stored tests/validation/scoreboard.json --write-docs docs/accuracy
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from rackline.validation import Scoreboard, shipped_cases, validate
from rackline.validation.page import marks, read_stored, worse_groups
from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).with_name("scoreboard.json")
LEAST_SUPPORTED = {
    "serve": 0.97, "serve-disaggregated": 0.97, "static-batch": 0.95, "max-throughput": 0.95, "train": 0.95,
}  # fmt: skip
MOST_SECONDS = 60.0  # of the processor: half of that on a quiet one, minutes where cases are predicted one by one


@pytest.fixture(scope="module")
def scoreboard() -> tuple[Scoreboard, float]:
    start = time.process_time()
    return validate(shipped_cases()), time.process_time() - start


@pytest.mark.slow
def test_no_group_of_thirty_cases_got_worse(scoreboard: tuple[Scoreboard, float]) -> None:
    stored = read_stored(STORED)
    compared = [row for row in stored["groups"] if row["supported"] >= 30]
    assert len(compared) > 100
    assert {row["metric"] for row in compared} >= {"tpot_s", "ttft_s", "output_tokens_per_s", "total_s", "step_s"}
    assert worse_groups(stored, scoreboard[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEAST_SUPPORTED)
def test_nearly_all_cases_are_supported(scoreboard: tuple[Scoreboard, float], kind: str) -> None:
    board = scoreboard[0]
    predicted = {(score.case_id, score.where) for score in board.scores if score.groups["kind"] == kind}
    missing = [case for case in board.unsupported if case.kind == kind]
    share = len(predicted) / (len(predicted) + len(missing))
    assert share >= LEAST_SUPPORTED[kind], {case.cause for case in missing}


@pytest.mark.slow
def test_everything_is_predicted_in_time(scoreboard: tuple[Scoreboard, float]) -> None:
    assert scoreboard[1] < MOST_SECONDS


def test_stored_errors_are_those_of_the_shipped_cases() -> None:
    stored = read_stored(STORED)
    assert stored["files"] == [file.name for file in shipped_cases()]
    assert stored["cases"] == sum(len(lines_of(file)) for file in shipped_cases())


def test_accuracy_page_has_a_row_for_each_metric_of_the_scoreboard() -> None:
    page = (ROOT / "docs" / "accuracy" / "groups.md").read_text(encoding="utf-8")
    begin, end = marks("scoreboard")
    shown = page.split(begin)[1].split(end)[0]
    for metric in read_stored(STORED)["metrics"]:
        assert f"\n| {metric} |" in shown


def lines_of(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode("utf-8").splitlines()


def test_each_shipped_case_has_one_id_and_a_source_whose_licence_is_known() -> None:
    """And only keys that are read, so that nobody looks for a meaning in them."""
    ship = load_script("ship_cases")
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    table = (ROOT / "cases" / "README.md").read_text(encoding="utf-8")
    cases = [json.loads(line) for file in (ROOT / "cases").rglob("*.jsonl.gz") for line in lines_of(file)]
    assert len({case["id"] for case in cases}) == len(cases)
    for case in cases:
        origin = ship.origin_of(case["source"])
        assert origin is not None, case["source"]
        assert ship.why_left_out(case) is None
        assert origin.title in table
        assert origin.title.partition(",")[0].partition(" (")[0] in notice
        assert ship.shipped_form(case) == case


def test_files_are_written_without_a_date_so_that_equal_cases_give_equal_bytes() -> None:
    ship = load_script("ship_cases")
    for file in shipped_cases():
        data = file.read_bytes()
        assert data[4:8] == bytes(4)
        assert gzip.decompress(ship.compress("\n".join(lines_of(file)) + "\n")) == gzip.decompress(data)


def test_the_scores_of_shipped_cases_are_not_mixed_with_cases_that_may_draft() -> None:
    names = {file.parent.name for file in shipped_cases()}
    assert names == {"cases"}
    assert (ROOT / "cases" / "not_scored" / "serving.jsonl.gz").is_file()
