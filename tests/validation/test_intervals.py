"""Shipped intervals hold nine in ten of what they were not made from, and at least seven in ten of each file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rackline.validation.page import marks
from scripts import load_script

intervals = load_script(Path(__file__).with_name("intervals.py"))
needs_cases = pytest.mark.skipif(not all(file.exists() for file in intervals.FILES), reason="needs ../shared/measured")
LEAST = 0.7  # the fewest are 33 cases: one of them more or less outside is no finding


@pytest.mark.slow
@needs_cases
def test_the_page_has_the_rows_of_the_table() -> None:
    begin, end = intervals.SHIPPED
    shown = intervals.PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip()
    shape = load_script("shown").shape
    assert shape(shown) == shape(intervals.shipped_markdown(intervals.found())), "run bench/refresh_docs.py"


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
