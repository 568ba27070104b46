"""Rules that each source file keeps by itself."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(SRC.rglob("*.py"))
IDS = [str(path.relative_to(SRC)) for path in FILES]
MAX_PARAMETERS = 12
MAX_POSITIONAL = 4


def test_source_files_are_found() -> None:
    assert any(path.name == "units.py" for path in FILES)


def test_names_of_test_files_are_unique() -> None:
    """The test folders are no packages, so pytest cannot collect two files of one name in one run."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_many_parameters_are_keywords_of_a_public_function(path: Path) -> None:
    """ruff allows 12 parameters (see pyproject.toml); what is exempt there has to read well where it is called."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        positional = len(node.args.posonlyargs) + len(node.args.args)
        if positional + len(node.args.kwonlyargs) > MAX_PARAMETERS:
            assert not node.name.startswith("_"), f"{path.relative_to(SRC)}: {node.name} takes too many parameters"
            assert positional <= MAX_POSITIONAL, f"{path.relative_to(SRC)}: {node.name} needs keywords"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_no_assert_statement(path: Path) -> None:
    """`python -O` drops asserts, so they cannot guard input: raise one of rackline.errors."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not lines, f"{path.relative_to(SRC)}: assert on lines {lines}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "the module needs a docstring"


# what gathers while it works; every other dataclass is a value
GATHERING = {"Held", "Shortlist", "TwoPools", "TableClock", "Table", "_Reader", "FitCases", "Predictor", "Resolver"}
MEASURING = ("lab", "sweeps")  # what runs there gathers as a rule


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_dataclasses_are_frozen_and_slotted(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef):
            continue
        for made in map(ast.unparse, node.decorator_list):
            if made.startswith("dataclass"):
                assert "slots=True" in made, f"{path.relative_to(SRC)}: {node.name} has no slots"
                frozen = "frozen=True" in made or path.relative_to(SRC).parts[1] in MEASURING
                assert frozen or node.name in GATHERING, f"{path.relative_to(SRC)}: {node.name} is not frozen"
