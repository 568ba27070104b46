"""The scoreboard of the open cases: it must not get worse, and docs/accuracy/groups.md shows it.

After a change that makes it better, or worse for a good reason, store it again:

    uv run rackline validate \
        ../shared/measured/{serving,serving_disaggregated,static_batch,max_throughput,training}.jsonl \
        --write-stored tests/validation/scoreboard.json --write-docs docs/accuracy
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rackline.validation import Scoreboard, validate
from rackline.validation.page import markdown, marks, read_stored, worse_than

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT.parent / "shared" / "measured"
STORED = Path(__file__).with_name("scoreboard.json")
LEAST_SUPPORTED = {"serve": 0.97, "serve-disaggregated": 0.97, "static-batch": 0.95, "max-throughput": 0.95}
MOST_SECONDS = 60.0  # of the processor: a third of that on a quiet one, minutes where cases are predicted one by one


@pytest.fixture(scope="module")
def scoreboard() -> tuple[Scoreboard, float]:
    stored = read_stored(STORED)
    files = [MEASURED / name for name in stored["files"]]
    if not all(file.exists() for file in files):
        pytest.skip("the measured cases are not beside this checkout")
    start = time.process_time()
    return validate(files, stored["calibration"]), time.process_time() - start


@pytest.mark.slow
def test_no_band_is_wider_than_stored(scoreboard: tuple[Scoreboard, float]) -> None:
    assert worse_than(read_stored(STORED), scoreboard[0]) == []


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


def test_accuracy_page_shows_the_stored_scoreboard() -> None:
    page = (ROOT / "docs" / "accuracy" / "groups.md").read_text(encoding="utf-8")
    begin, end = marks("scoreboard")
    shown = page.split(begin)[1].split(end)[0].strip()
    assert shown == markdown(read_stored(STORED)), "store it again, as the head of this file says"
