"""The table of packages in docs/architecture.md, from the import contract and the packages' docstrings."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain

from shown import ROOT

SRC = ROOT / "src" / "rackline"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- packages: begin -->", "<!-- packages: end -->"


def levels() -> list[list[str]]:
    """Return the packages and modules on each level of the contract in pyproject.toml, the highest level first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [re.findall(r"\w+", line) for line in project["tool"]["importlinter"]["contracts"][0]["layers"]]


def names() -> Iterator[str]:
    """Yield packages and modules of the contract, the highest level first."""
    return chain.from_iterable(levels())


def purpose(name: str) -> str:
    """Return the first line of the docstring of a package or module."""
    file = SRC / name / "__init__.py" if (SRC / name).is_dir() else SRC / f"{name}.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def table() -> str:
    """Return the table in Markdown, a row per package or module of the highest level."""
    lines = ["| package | purpose | modules |", "|---|---|---:|"]
    for name in names():
        folder = SRC / name
        count = sum(path.name != "__init__.py" for path in folder.rglob("*.py")) if folder.is_dir() else 1
        lines.append(f"| `{name}` | {purpose(name)} | {count} |")
    return "\n".join(lines)
