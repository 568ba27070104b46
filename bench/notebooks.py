"""Outputs of the notebooks of docs/notebooks, stored by `bench/refresh_docs.py --only notebooks`."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from shown import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
LIMIT_S = 300


def run(path: Path) -> Any:
    """Return a notebook with the outputs of a fresh kernel, run in its folder."""
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
    """Return an output as text, without markup."""
    if output.output_type == "stream":
        return str(output.text)
    data = output.get("data", {})
    if "text/html" in data:
        return unescape(re.sub(r"<style.*?</style>|<[^>]+>", " ", data["text/html"], flags=re.S))
    return str(data.get("text/plain", ""))


def texts(notebook: Any) -> list[str]:
    """Return the text of the outputs of each code cell."""
    return ["\n".join(map(words_of, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]
