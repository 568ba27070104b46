"""Statistics of the scoreboard on numbers made by hand, the stored form and the page made from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rackline.errors import InputError
from rackline.plain import plain
from rackline.validation import Score, Scoreboard, Unsupported, statistics
from rackline.validation.page import (
    block_of,
    fill_block,
    markdown,
    marks,
    read_stored,
    stored_form,
    worse_groups,
    worse_than,
    write_stored,
)
from rackline.validation.report import parity_figure, worst_scores


def score(measured: float, predicted: float, name: str = "a", metric: str = "tpot_s", **groups: str) -> Score:
    known = {"kind": "serve", "model": "m", "chip": "c", "stack": "s", "version": "s 1", "precision": "p", "op": ""}
    return Score(
        case_id=name,
        where=f"x, line {name}",
        metric=metric,
        measured=measured,
        predicted=predicted,
        groups={**known, **groups},
    )


def board(*scores: Score, unsupported: tuple[Unsupported, ...] = ()) -> Scoreboard:
    return Scoreboard(
        calibration="auto", num_cases=len(scores) + len(unsupported), scores=scores, unsupported=unsupported
    )


LOST = Unsupported(
    case_id="z", kind="serve", where="x, line 9", cause="why", metrics=("tpot_s", "ttft_s"), chip="c", model="other"
)


def test_statistics_of_five_values() -> None:
    """Ratios 0.5, 0.9, 1.1, 1.3, 2.0: errors 0.5, 0.1, 0.1, 0.3, 1.0."""
    found = statistics([score(1.0, ratio) for ratio in (0.5, 0.9, 1.1, 1.3, 2.0)], unsupported=3)
    assert (found.n, found.supported) == (8, 5)
    assert found.median_abs_error == pytest.approx(0.3)
    assert found.p90_abs_error == pytest.approx(0.5 + 0.6 * 0.5)  # between the 4th and the 5th error
    assert found.share_within_20 == pytest.approx(2 / 5)
    assert found.bias == pytest.approx(0.1)


def test_a_value_at_exactly_20_percent_is_within() -> None:
    assert statistics([score(1.0, 1.2), score(1.0, 0.8), score(1.0, 1.201)]).share_within_20 == pytest.approx(2 / 3)


def test_nothing_predicted_is_not_a_number() -> None:
    found = statistics([], 4)
    assert (found.n, found.supported) == (4, 0)
    assert math.isnan(found.median_abs_error)


def test_each_measured_key_is_scored_by_itself_and_unsupported_ones_count() -> None:
    found = board(score(1.0, 1.1), score(1.0, 2.0, metric="ttft_s"), unsupported=(LOST,)).metrics
    assert {name: (stats.n, stats.supported) for name, stats in found.items()} == {
        "tpot_s": (2, 1),
        "ttft_s": (2, 1),
        "request_s": (1, 0),
    }
    assert found["tpot_s"].median_abs_error == pytest.approx(0.1)


def test_groups_split_by_every_name() -> None:
    found = board(score(1.0, 1.1, chip="c1"), score(1.0, 1.3, chip="c2"), unsupported=(LOST,)).groups
    chips = {group.group: group.stats for group in found if group.by == "chip" and group.metric == "tpot_s"}
    assert {name: (stats.n, stats.supported) for name, stats in chips.items()} == {
        "c1": (1, 1),
        "c2": (1, 1),
        "c": (1, 0),
    }
    models = {group.group for group in found if group.by == "model"}
    assert models == {"m", "other"}
    assert not [group for group in found if group.by == "op"]


def test_json_has_the_keys_that_programs_rely_on() -> None:
    data = plain(board(score(1.0, 1.1), unsupported=(LOST,)))
    assert set(data["metrics"]["tpot_s"]) == {
        "n",
        "supported",
        "median_abs_error",
        "p90_abs_error",
        "share_within_20",
        "bias",
    }
    assert data["unsupported"][0]["id"] == "z"
    assert data["unsupported"][0]["reason"] == "why"
    assert isinstance(data["groups"], list)


def test_memory_has_a_view_of_its_own_beside_times() -> None:
    both = parity_figure(board(score(1.0, 1.1, "a", "step_s"), score(8e10, 7e10, "a", "peak_bytes")))
    views = both.spec["hconcat"]
    assert [[row["measured"] for row in view["data"]["values"]] for view in views] == [[1.0], [8e10]]


def test_worst_are_ordered_by_ratio_and_one_a_case() -> None:
    scores = [
        score(1.0, 3.0, "over"),
        score(1.0, 0.2, "under"),
        score(1.0, 0.5, "under", metric="ttft_s"),
        score(1.0, 1.1, "fine"),
    ]
    assert [(s.case_id, s.metric) for s in worst_scores(scores, 2)] == [("under", "tpot_s"), ("over", "tpot_s")]


def test_stored_scoreboard_notices_what_got_worse(tmp_path: Path) -> None:
    before = board(*(score(1.0, ratio) for ratio in (1.10, 1.12, 1.14)))
    path = tmp_path / "scoreboard.json"
    write_stored(before, ["b.jsonl", "dir/a.jsonl"], path)
    stored = read_stored(path)
    assert stored["files"] == ["a.jsonl", "b.jsonl"]
    assert worse_than(stored, before) == []
    within = board(*(score(1.0, ratio + 0.005) for ratio in (1.10, 1.12, 1.14)))  # 0.12 * 1.05 = 0.126
    assert worse_than(stored, within) == []
    wider = board(*(score(1.0, ratio + 0.008) for ratio in (1.10, 1.12, 1.14)))
    assert [line.split(",")[0] for line in worse_than(stored, wider)] == [
        "tpot_s: median error 12.80%",
        "tpot_s: p90 error 14.40%",
    ]
    assert worse_than(stored, board(score(1.0, 1.1), score(1.0, 1.1))) == ["tpot_s: 2 supported cases, before 3"]
    assert worse_than(stored, board()) == ["tpot_s: is no longer scored"]


def stored_and_moved(errors: list[float], moved: list[float], path: Path) -> list[str]:
    """Store a board with one case an error, and list the groups that are worse on one with other errors."""
    write_stored(board(*(score(1.0, 1.0 + error) for error in errors)), [], path)
    return worse_groups(read_stored(path), board(*(score(1.0, 1.0 + error) for error in moved)))


@pytest.mark.parametrize(
    ("cases", "before", "now", "is_worse"),
    [
        (30, 0.10, 0.104, False),  # by 4 % of the error
        (30, 0.10, 0.106, True),  # by 6 % of the error
        (29, 0.10, 0.20, False),  # too few cases
        (30, 0.10, 0.02, False),  # better
        (30, 0.002, 0.0024, False),  # by 20 % of a tiny error, 0.04 percentage points
        (30, 0.002, 0.0026, True),  # by 0.06 percentage points
    ],
)
def test_groups_of_thirty_are_worse_by_more_than_a_twentieth_of_their_error(
    tmp_path: Path, cases: int, before: float, now: float, is_worse: bool
) -> None:
    worse = stored_and_moved([before] * cases, [now] * cases, tmp_path / "stored.json")
    assert bool(worse) == is_worse
    if is_worse:
        assert len(worse) == 6  # by kind, model, chip, stack, version and precision; no group by operation
        assert any(line.startswith("tpot_s of chip c: median error") for line in worse)


def test_a_group_that_lost_its_predictions_is_worse_however_good_the_rest_is(tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    assert stored_and_moved([0.1] * 40, [0.05] * 38, path) == []
    assert "tpot_s of model m: 37 supported cases, before 40" in stored_and_moved([0.1] * 40, [0.05] * 37, path)
    assert "tpot_s of stack s: 0 supported cases, before 40" in stored_and_moved([0.1] * 40, [], path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"metrics": 3}'])
def test_file_that_is_no_stored_scoreboard_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scoreboard.json"
    path.write_text(content)
    with pytest.raises(InputError, match="--stored"):
        read_stored(path)


def write_docs(stored: dict[str, Any], page: Path) -> None:
    name, text = block_of(stored)
    fill_block(page, *marks(name), text)


def test_page_block_is_replaced_and_the_rest_kept(tmp_path: Path) -> None:
    stored = json.loads(json.dumps(stored_form(board(score(1.0, 1.1), unsupported=(LOST,)), ["a.jsonl"])))
    page = tmp_path / "page.md"
    begin, end = marks("scoreboard")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    write_docs(stored, page)
    assert page.read_text() == f"before\n{begin}\n{markdown(stored)}\n{end}\nafter\n"
    assert "| tpot_s | 2 | 1 | 10.0 % | 10.0 % | 100.0 % | +10.0 % |" in markdown(stored)
    assert "| serve | 1 | why |" in markdown(stored)
    write_docs(stored, page)
    assert page.read_text().count(begin) == 1


def test_page_without_marks_is_an_error_and_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(InputError, match="scoreboard: begin"):
        write_docs(stored_form(board(score(1.0, 1.1)), []), page)
    assert page.read_text() == "nothing here\n"
