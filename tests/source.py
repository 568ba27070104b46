"""The package as text and as syntax trees, each file read once, for the tests that hold a rule on all of them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"


@cache
def source_files() -> dict[str, Path]:
    """Source files by their path inside of src."""
    return {path.relative_to(SRC).as_posix(): path for path in sorted(SRC.rglob("*.py"))}


@cache
def tree_of(name: str) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse(source_files()[name].read_text(encoding="utf-8"))


def broken(rule: Callable[[ast.Module], list[str]]) -> list[str]:
    """Every breach of a rule, with the file it stands in."""
    return [f"{name}: {breach}" for name in source_files() for breach in rule(tree_of(name))]
