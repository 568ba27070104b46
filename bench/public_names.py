"""Writes what is derived from the questions: `__init__.pyi`, where type checkers find what `import rackline` hands out
when it is used, and the index of entries that the command line reads (`api/entries.json`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import rackline
from rackline.api.verbs import INDEX, index

STUB = Path(rackline.__file__).with_suffix(".pyi")


def stub() -> str:
    """The text of the stub: an import of each name that the package hands out, as ruff arranges them."""
    where: dict[str, str] = vars(rackline)["_where"]()  # the stub that is written does not have it
    lines = sorted(f"from {module} import {name} as {name}" for name, module in where.items())
    text = "\n".join(["# Written by bench/public_names.py; do not edit.", *lines, ""])
    for command in (("check", "--select", "I", "--fix-only", "--quiet"), ("format", "--quiet")):
        words = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text


def index_text() -> str:
    """The text of the index."""
    return json.dumps(index(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    INDEX.write_text(index_text())
    STUB.write_text(stub())
