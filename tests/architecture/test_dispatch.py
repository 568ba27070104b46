"""No value of a Literal falls through silently: choices among its members end in `assert_never`.

Two forms are found: a `match` over texts without it, and one expression that a function compares with two or more
members of one Literal by `==`. A test of membership (`in`) and a look-up in a dict are no choice that falls through.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from source import broken, source_files, tree_of


def texts(node: ast.AST) -> frozenset[str]:
    """The texts of a constant or a tuple of constants."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return frozenset(one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str))


def literals_of(tree: ast.AST) -> Iterator[frozenset[str]]:
    """The members of each Literal of texts in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            members = texts(node.slice)
            if len(members) > 1:
                yield members


@cache
def literals() -> tuple[frozenset[str], ...]:
    """Of all files."""
    with_some = (name for name, path in source_files().items() if "Literal[" in path.read_text(encoding="utf-8"))
    found = (one for name in with_some for one in literals_of(tree_of(name)))
    return tuple(dict.fromkeys(found))


def compared(function: ast.AST) -> dict[str, set[str]]:
    """Expression → texts that a function compares it with by == or !=."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            members = texts(node.comparators[0])
            if members:
                found[ast.unparse(node.left)] |= members
    return found


def ends(node: ast.AST, subject: str) -> bool:
    """Whether `assert_never` of this expression stands inside."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "assert_never"
        and ast.unparse(call) == f"assert_never({subject})"
        for call in ast.walk(node)
    )


def falls_through(tree: ast.AST, known: tuple[frozenset[str], ...]) -> list[str]:
    """What a file chooses by a Literal without saying that nothing is left."""
    found: list[str] = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for subject, members in compared(function).items():
            of_one = any(members <= literal for literal in known)
            if len(members) > 1 and of_one and not ends(function, subject):
                found.append(f"line {function.lineno}: {function.name} compares {subject} with {sorted(members)}")
        for node in ast.walk(function):
            if not isinstance(node, ast.Match):
                continue
            values = [
                part for case in node.cases for part in ast.walk(case.pattern) if isinstance(part, ast.MatchValue)
            ]
            members = frozenset[str]().union(*(texts(one.value) for one in values))
            if (
                any(members <= literal for literal in known)
                and members
                and not ends(function, ast.unparse(node.subject))
            ):
                found.append(f"line {node.lineno}: match {ast.unparse(node.subject)}")
    return found


def test_choices_by_a_literal_end_in_assert_never() -> None:
    known = literals()
    assert known
    assert broken(lambda tree: falls_through(tree, known)) == []


CHAIN = """
def f(x):
    if x == "a":
        return 1
    if x == "b":
        return 2
    return 3
"""
MATCH = """
def f(x):
    match x:
        case "a" | "b":
            return 1
        case _:
            return 2
"""
ENDED = """
def f(x):
    match x:
        case "a" | "b" | "c":
            return 1
        case _:
            assert_never(x)
"""


@pytest.mark.parametrize(
    ("source", "bad"), [(CHAIN, 1), (MATCH, 1), (ENDED, 0), ('def f(x):\n    return x == "a"\n', 0)]
)
def test_the_test_finds_them(source: str, bad: int) -> None:
    assert len(falls_through(ast.parse(source), (frozenset({"a", "b", "c"}),))) == bad
