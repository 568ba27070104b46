"""Ctrl-C: what is there is printed; a search ends with 130, without a traceback and without half files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackline.cli import command
from rackline.cli.main import run
from rackline.processes import held
from rackline.simulation import native
from rackline.validation.cases import published

SERVER = ["simulate", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "1"]
SERVE = [*SERVER, "--rate", "5", "--input", "100", "--output", "5"]
CASES = published()
SMALL = ["--on", "l40s-8", "--chips", "1", "--input", "1k", "--output", "10"]


@pytest.fixture(autouse=True)
def _interrupts_count() -> Iterator[None]:
    """A shell starts background jobs with the signal ignored, and Python leaves that as it is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_one_interruption_is_held_and_the_second_is_not() -> None:
    with held() as hold:
        press()
        finished = True
    assert finished
    assert hold.pressed

    def twice() -> None:
        with held():
            press()
            press()

    with pytest.raises(KeyboardInterrupt):
        twice()
    with pytest.raises(KeyboardInterrupt):
        press()  # as before


def test_pressed_while_the_answer_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = command.show

    def interrupted(*given: Any, **named: Any) -> None:
        press()
        shown(*given, **named)

    monkeypatch.setattr(command, "show", interrupted)
    series = tmp_path / "series.csv"
    assert run([*SERVE, "--requests", "20", "--series", str(series)]) == 130
    out, err = capsys.readouterr()
    assert "20 of 20 requests" in out
    assert "time to first token" in out
    assert err == ""
    assert len(series.read_text().splitlines()) == 21


@pytest.mark.skipif(native.library() is None, reason="the compiled loop is missing")
def test_pressed_in_the_compiled_loop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = native.library()
    advance = library.advance
    calls: list[float] = []

    def interrupted(address: int, until: float, passes: int) -> int:
        state = advance(address, until, 10)
        calls.append(until)
        if len(calls) == 2:
            press()
        return state

    monkeypatch.setattr(library, "advance", interrupted)
    assert run([*SERVE, "--requests", "100"]) == 0
    out = capsys.readouterr().out
    assert "interrupted: what follows is what was simulated so far" in out
    assert "of 100 requests" in out
    assert "100 of 100" not in out
    assert len(calls) == 2


def test_pressed_while_the_results_are_gathered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rackline.simulation import run as simulation_run

    gather = simulation_run.gather

    def interrupted(*given: Any, **named: Any) -> Any:
        press()
        return gather(*given, **named)

    monkeypatch.setattr(simulation_run, "gather", interrupted)
    assert run([*SERVE, "--requests", "20"]) == 0
    out = capsys.readouterr().out
    assert "20 of 20 requests" in out
    assert "interrupted" in out


_PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from rackline.api import {module}
from rackline.__main__ import run

def interrupted(*given, **named):
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass

{hook}
sys.argv = ["rackline", *sys.argv[1:]]
sys.exit(run())
"""


@pytest.mark.parametrize(
    ("words", "hook"),
    [
        (["plan", "llama-3.1-8b", *SMALL], "import rackline.search.inputs as it; it.plan; it.plan = interrupted"),
        (["validate", str(CASES)], "import rackline.validation as it; it.validate; it.validate = interrupted"),
        (["ask", "questions.toml"], "import rackline.api.ask as it; it.ask_one = interrupted"),
    ],
    ids=["plan", "validate", "ask"],
)
def test_pressed_in_the_middle_of_the_work(words: list[str], hook: str, tmp_path: Path) -> None:
    (tmp_path / "questions.toml").write_text('[[questions]]\nask = "chips"\n')
    plot = [] if words[0] == "ask" else ["--plot", "plot.json"]
    (tmp_path / "plot.json").write_text("old")
    program = _PROGRAM.format(module=words[0], hook=hook)
    done = subprocess.run(
        [sys.executable, "-c", program, *words, *plot], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == done.stderr == ""
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["plot.json", "questions.toml"]
    assert (tmp_path / "plot.json").read_text() == "old"
