"""Notebooks run, their stored outputs have the lines of a fresh run, and they can be read without running."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rackline as rl

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
BENCH = ROOT / "bench"
MOST_BYTES = 400_000
FRESH = """
import sys
from pathlib import Path
import nbformat
from notebooks import run, texts
from shown import missing

path = Path(sys.argv[1])
stored, fresh = texts(nbformat.read(path, as_version=4)), texts(run(path))
assert len(stored) == len(fresh)
gone = [line for before, after in zip(stored, fresh) for line in missing(before.splitlines(), after.splitlines())]
assert not gone, gone
"""


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_the_four_subjects() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"serving", "training", "prices", "your-own-machine"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_call_functions_that_exist_with_options_that_exist(path: Path) -> None:
    checked = 0
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.Call) and re.fullmatch(r"rl(\.\w+)+", name := ast.unparse(node.func)):
                function = functools.reduce(getattr, name.split(".")[1:], rl)
                known = inspect.signature(function).parameters.values()
                if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known):
                    unknown = {word.arg for word in node.keywords} - {one.name for one in known} - {None}
                    assert not unknown, f"{name} has no {unknown}"
                    checked += 1
    assert checked


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


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_fresh_run_prints_the_same_lines(path: Path) -> None:
    """Digits may differ; in a process of its own, for the warnings of the kernel."""
    done = subprocess.run([sys.executable, "-c", FRESH, str(path)], cwd=BENCH, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
