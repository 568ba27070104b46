"""Shipped intervals hold nine in ten of what they were not made from; each group of thirty at least three quarters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rackline.validation.page import marks
from scripts import load_script

intervals = load_script(Path(__file__).with_name("intervals.py"))
needs_cases = pytest.mark.skipif(
    not all(file.exists() for file in intervals.FILES), reason="the measured cases are not beside this checkout"
)
LEAST = 0.75


@pytest.mark.slow
@needs_cases
def test_the_page_shows_the_table_of_today() -> None:
    begin, end = intervals.SHIPPED
    shown = intervals.PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip()
    assert shown == intervals.shipped_markdown(intervals.found()), "run tests/validation/intervals.py"


@pytest.mark.slow
@needs_cases
def test_files_of_thirty_cases_are_held() -> None:
    files = [one for one in intervals.found() if one.by == "file" and one.num_cases >= 30]
    assert len(files) >= 10
    assert {(one.metric, one.group) for one in files if one.share < LEAST} == set()
    assert sum(one.share * one.num_cases for one in files) / sum(one.num_cases for one in files) > 0.85


@pytest.mark.parametrize(("left_out", "least"), [("model", 0.87), ("laboratory", 0.75)])
def test_what_is_stored_of_models_and_laboratories_left_out(left_out: str, least: float) -> None:
    """Of laboratories left out, bands of both times hold too little, as the page says."""
    begin, end = marks(f"intervals left out by {left_out}")
    table = intervals.PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| (\d+) \| ([\d.]+)% \|", table, re.M)
    assert {"tpot_s", "ttft_s", "request_s"} <= {metric for metric, _, _ in rows}
    assert [metric for metric, _, share in rows if float(share) < 100 * least] == []
    assert "Groups of 30 cases and more under 75%" in table
