"""Five hundred wrong inputs end in an answer or in one short line, nightly a thousand; `bench/fuzz.py` tries more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import KINDS, close, fuzz, problem

from rackline.cli import main

BATCH = 56


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """The server of requests ends with the last test."""
    yield
    close()


@pytest.mark.parametrize("batch", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_inputs_are_answered_or_refused(kind: str, batch: int, tmp_path: Path) -> None:
    found = fuzz(kind, BATCH, 1000 + batch, tmp_path)
    assert not found.bad, f"{len(found.bad)} end badly, first: {found.bad[0][0]}\n{found.bad[0][1]}"
    assert 0 < found.answered < BATCH  # neither all valid nor all refused at the door


def test_the_harness_sees_what_ends_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem(["chips", "h100-sxm"]) is None
    assert problem(["chips", "h1000"]) is None

    def broken(line: str) -> int:
        raise KeyError(line)

    monkeypatch.setattr(main, "_refuse", broken)
    assert "KeyError" in (problem(["chips", "h1000"]) or "")
    monkeypatch.setattr(main, "_refuse", lambda line: 3)
    assert problem(["chips", "h1000"]) == "exit status 3"
    monkeypatch.setattr(main, "_refuse", lambda line: 2)
    assert "0 error lines" in (problem(["chips", "h1000"]) or "")
