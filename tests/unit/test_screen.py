"""What stands on a terminal while work goes on, and what is asked there."""

from __future__ import annotations

import io
import sys
import time

import pytest

from rackline.cli import screen
from rackline.cli.screen import Bars, asked


class Terminal(io.StringIO):
    """A screen or a keyboard."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error becomes a terminal of 120 columns; pytest has taken its place before each part of a test."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    for name, value in {"COLUMNS": "120", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_bar_counts_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with Bars().counting("the first", "planned") as done:
        done("llama", 3, 7)
    said = terminal.getvalue()
    assert "the first" in said
    assert "planned llama" in said
    assert "3/7" in said
    assert "0:00:00" in said


def test_a_bar_of_requests_is_told_of_only_where_someone_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with Bars().serving("serving 9 requests") as done:
        assert done is not None
        done(4, 9, 1.5)
    assert "serving 9 requests" in terminal.getvalue()
    assert "4/9" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Bars().serving("serving 9 requests") as done:
        assert done is None


def test_a_bar_of_points_has_their_rate_and_those_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with Bars().computing("sweep") as done:
        time.sleep(0.02)
        done(1000, 4000, 0)
    assert "1,000 of 4,000 points, " in terminal.getvalue()
    assert "points, 0/s" not in terminal.getvalue()
    assert "failed" not in terminal.getvalue()
    with Bars().computing("sweep") as done:
        done(2000, 4000, 3)
    assert ", 3 failed" in terminal.getvalue()


def test_a_moving_bar_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with Bars().moving("reading"):
        pass
    assert terminal.getvalue() == ""
    monkeypatch.setattr(screen, "_PROGRESS_AFTER_S", 0.01)
    with Bars().moving("reading"):
        end = time.monotonic() + 20.0
        while not terminal.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert "reading" in terminal.getvalue()


def test_nothing_is_drawn_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars().counting("the first", "planned") as done:
        done("llama", 3, 7)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [("y\n", True), (" YES \n", True), ("\n", False), ("n\n", False), ("", False)],
)
def test_a_reader_agrees_by_yes_alone(typed: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert asked("This costs $3.") is agreed
    assert terminal.getvalue() == "This costs $3.\nGo on? [y/N] "


def test_nobody_agrees_where_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert asked("This costs $3.") is False
    assert terminal.getvalue() == ""
