"""Rules that each source file keeps by itself."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from source import broken, source_files, tree_of

TESTS = Path(__file__).resolve().parents[1]
MAX_PARAMETERS = 12
MAX_POSITIONAL = 4


def test_source_files_are_found() -> None:
    assert "rackline/units.py" in source_files()


def test_names_of_test_files_are_unique() -> None:
    """The test folders are no packages, so pytest cannot collect two files of one name in one run."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []


def too_many_parameters(tree: ast.Module) -> list[str]:
    """Functions that take more parameters than ruff allows (12, see pyproject.toml) and do not read well for it."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            positional = len(node.args.posonlyargs) + len(node.args.args)
            if positional + len(node.args.kwonlyargs) > MAX_PARAMETERS:
                if node.name.startswith("_"):
                    found.append(f"{node.name} takes too many parameters")
                if positional > MAX_POSITIONAL:
                    found.append(f"{node.name} needs keywords")
    return found


def asserts(tree: ast.Module) -> list[str]:
    """`python -O` drops asserts, so they cannot guard input: raise one of rackline.errors."""
    return [f"assert on line {node.lineno}" for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def changeable_dataclasses(tree: ast.Module, *, measuring: bool) -> list[str]:
    """Dataclasses without slots, those that can be changed where they have to be values, and those with more than
    four fields that can be filled by position."""
    found: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for made in map(ast.unparse, node.decorator_list):
            if made.startswith("dataclass"):
                if "slots=True" not in made:
                    found.append(f"{node.name} has no slots")
                if "frozen=True" not in made and not measuring and node.name not in GATHERING:
                    found.append(f"{node.name} is not frozen")
                num_fields = sum(isinstance(one, ast.AnnAssign) for one in node.body)
                if "kw_only=True" not in made and num_fields > 4 and node.name not in POSITIONAL:
                    found.append(f"{node.name} has {num_fields} fields that are no keywords")
    return found


# what gathers while it works; every other dataclass is a value
GATHERING = {
    "Held",
    "Shortlist",
    "TwoPools",
    "TableClock",
    "Table",
    "_Reader",
    "Calls",
    "Reading",
    "_Timed",
    "FitCases",
    "Predictor",
    "Resolver",
}
POSITIONAL = {"Column", "Sheet", "FitCases", "Kind"}  # written in long lists, or from arrays in their order
MEASURING = ("lab", "sweeps")  # what runs there gathers as a rule


def test_many_parameters_are_keywords_of_a_public_function() -> None:
    assert broken(too_many_parameters) == []


def test_no_assert_statement() -> None:
    assert broken(asserts) == []


def test_modules_say_what_they_are() -> None:
    assert [name for name in source_files() if not ast.get_docstring(tree_of(name))] == []


def test_dataclasses_are_frozen_and_slotted() -> None:
    found = [
        f"{name}: {breach}"
        for name in source_files()
        for breach in changeable_dataclasses(tree_of(name), measuring=name.split("/")[1] in MEASURING)
    ]
    assert found == []


def test_the_rules_find_what_breaks_them() -> None:
    many = ", ".join(f"a{number}" for number in range(MAX_PARAMETERS + 1))
    assert too_many_parameters(ast.parse(f"def f({many}): ...")) == ["f needs keywords"]
    assert too_many_parameters(ast.parse(f"def _f(*, {many}): ...")) == ["_f takes too many parameters"]
    assert too_many_parameters(ast.parse(f"def f(*, {many}): ...")) == []
    assert asserts(ast.parse("x = 1\nassert x")) == ["assert on line 2"]
    classes = ast.parse("@dataclass(slots=True)\nclass A: ...\n@dataclass(frozen=True)\nclass B: ...\n")
    assert changeable_dataclasses(classes, measuring=False) == ["A is not frozen", "B has no slots"]
    assert changeable_dataclasses(classes, measuring=True) == ["B has no slots"]
    fields = "; ".join(f"a{number}: int" for number in range(5))
    row = ast.parse(f"@dataclass(frozen=True, slots=True)\nclass C: {fields}")
    assert changeable_dataclasses(row, measuring=False) == ["C has 5 fields that are no keywords"]
