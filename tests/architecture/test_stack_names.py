"""Stacks are data: their names stand in the catalogue, not in Python.

Launch commands and readers of their results are written for each stack by name, and help texts may mention them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rackline.catalog import names

SRC = Path(__file__).resolve().parents[2] / "src" / "rackline"
FILES = sorted(SRC.rglob("*.py"))
IDS = [str(path.relative_to(SRC)) for path in FILES]
WRITTEN_FOR_THEM = ("search/launch.py", "search/kubernetes.py", "search/dynamo.py", "validation/importers.py",
                    "validation/requests.py", "validation/tuning_table.py", "validation/rl_table.py",
                    "validation/adapters_table.py", "validation/rl_parts_table.py",
                    "validation/result_files.py", "api/validate_question.py", "api/observe.py")  # fmt: skip
FALLBACK = "generic"  # no stack, but the numbers of all of them
MOST_WORDS = 3  # of a key; longer texts are prose


def stacks() -> frozenset[str]:
    """Names of all stacks of the catalogue."""
    return frozenset((*names("stacks"), *names("training_stacks"))) - {FALLBACK}


def named(tree: ast.AST) -> list[str]:
    """Short texts with the name of a stack in them."""
    return [
        f"line {node.lineno}: {node.value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(words := node.value.split()) <= MOST_WORDS
        and not stacks().isdisjoint(words)
    ]


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_no_stack_is_named_in_python(path: Path) -> None:
    if str(path.relative_to(SRC)) in WRITTEN_FOR_THEM:
        return
    assert named(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_the_test_finds_names() -> None:
    one = next(iter(stacks()))
    assert named(ast.parse(f'x = "permute {one}"\ny = name == "{one}"\nz = "the numbers of {one} and of others"'))
    assert not named(ast.parse('x = "permute"'))


def test_exempt_files_exist_and_need_it() -> None:
    for name in WRITTEN_FOR_THEM:
        assert named(ast.parse((SRC / name).read_text(encoding="utf-8"))), name
