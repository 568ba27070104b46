"""Run the notebooks of docs/notebooks: `uv run python bench/notebooks.py [--check] [NAME...]`.

Without `--check` their outputs are stored again. With it they are compared with the stored ones: words must be equal,
numbers within 2 % (`stored_outputs.TOLERANCE`), and pictures are not compared, for they follow from the numbers.
"""

from __future__ import annotations

import argparse
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from stored_outputs import differences

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
LIMIT_S = 300


def run(path: Path) -> Any:
    """The notebook with the outputs of a fresh kernel, in its folder."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name="python3", record_timing=False, coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )  # fmt: skip
    client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def words_of(output: Any) -> str:
    """What an output says as text, markup left out."""
    if output.output_type == "stream":
        return str(output.text)
    data = output.get("data", {})
    if "text/html" in data:
        return unescape(re.sub(r"<style.*?</style>|<[^>]+>", " ", data["text/html"], flags=re.S))
    return str(data.get("text/plain", ""))


def said(notebook: Any) -> list[str]:
    """Text of the outputs of each code cell."""
    return ["\n".join(map(words_of, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


def check(path: Path) -> list[str]:
    """What the stored outputs of a notebook say that a fresh run does not."""
    stored, found = said(nbformat.read(path, as_version=4)), said(run(path))
    return [
        f"{path.name}, code cell {number}: {one}"
        for number, (before, after) in enumerate(zip(stored, found, strict=True), start=1)
        for one in differences(before, after)
    ]


def main() -> int:
    """Run all notebooks, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks without .ipynb; all by default")
    parser.add_argument("--check", action="store_true", help="compare with the stored outputs and store nothing")
    given = parser.parse_args()
    failed = 0
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in given.names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        if given.check:
            found = check(path)
            print("\n".join(found) or f"{path.name}: as stored")
            failed += bool(found)
        else:
            nbformat.write(run(path), path)
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
