"""Notebooks run, their stored outputs are those of a fresh run, and they can be read without running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 400_000
LIMIT_S = 1200


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_the_four_subjects() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"serving", "training", "prices", "your-own-machine"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_readable_without_running(path: Path) -> None:
    """Text and outputs are there, every figure also as an image, and no folder of the machine that ran it."""
    assert path.stat().st_size < MOST_BYTES
    assert len(cells(path, "markdown")) >= 3
    outputs = [output for cell in cells(path, "code") for output in cell["outputs"]]
    assert outputs
    assert not [one for one in outputs if one["output_type"] == "error"]
    figures = [one["data"] for one in outputs if any("vegalite" in kind for kind in one.get("data", {}))]
    assert figures
    for data in figures:
        assert "".join(data["image/svg+xml"]).lstrip().startswith("<svg")
    assert str(ROOT) not in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.part("notebooks")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_a_fresh_run(path: Path) -> None:
    """Words equal, numbers within 2 % (bench/notebooks.py --check); in a process of its own, for its warnings."""
    words = [sys.executable, str(ROOT / "bench" / "notebooks.py"), "--check", path.stem]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
