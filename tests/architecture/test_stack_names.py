"""Stacks are data: their names stand in the catalogue, not in Python.

Launch commands and readers of their results are written for each stack by name, and help texts may mention them.
"""

from __future__ import annotations

import ast

from rackline.catalog import names
from source import source_files, tree_of

WRITTEN_FOR_THEM = ("search/launch.py", "search/launch_commands.py", "search/launch_plan.py", "search/kubernetes.py",
                    "validation/importers.py", "validation/observed_report.py",
                    "validation/requests.py", "validation/rl.py", "validation/tables.py",
                    "fitting/kernel_tables.py", "api/validate.py",
                    "api/observe.py")  # fmt: skip
FALLBACK = "generic"  # no stack, but the numbers of all of them
MOST_WORDS = 3  # of a key; longer texts are prose


def stacks() -> frozenset[str]:
    """Names of all stacks of the catalogue."""
    return frozenset((*names("stacks"), *names("training_stacks"))) - {FALLBACK}


def named(tree: ast.AST, known: frozenset[str]) -> list[str]:
    """Short texts with the name of a stack in them."""
    return [
        f"line {node.lineno}: {node.value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(words := node.value.split()) <= MOST_WORDS
        and not known.isdisjoint(words)
    ]


def test_no_stack_is_named_in_python() -> None:
    known = stacks()
    others = [name for name in source_files() if name.removeprefix("rackline/") not in WRITTEN_FOR_THEM]
    assert [f"{name}: {place}" for name in others for place in named(tree_of(name), known)] == []


def test_the_test_finds_names() -> None:
    known = stacks()
    one = next(iter(known))
    text = f'x = "permute {one}"\ny = name == "{one}"\nz = "the numbers of {one} and of others"'
    assert len(named(ast.parse(text), known)) == 2
    assert not named(ast.parse('x = "permute"'), known)


def test_exempt_files_exist_and_need_it() -> None:
    for name in WRITTEN_FOR_THEM:
        assert named(tree_of(f"rackline/{name}"), stacks()), name
