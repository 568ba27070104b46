"""A thousand wrong inputs end in an answer or in one short line; `bench/fuzz.py` tries more."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import KINDS, fuzz, problem

from rackline.cli import main

BATCH, BATCHES = 50, 4


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_inputs_are_answered_or_refused(kind: str, batch: int, tmp_path: Path) -> None:
    bad = fuzz(kind, BATCH, 1000 + batch, tmp_path)
    assert not bad, f"{len(bad)} end badly, first: {bad[0][0]}\n{bad[0][1]}"


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
