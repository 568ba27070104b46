"""Each public name of the library is a row of docs/nomenclature.md, with its unit.

`uv run python tests/architecture/test_nomenclature.py` prints the rows that are missing, ready to fill in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "rackline"
TABLE = ROOT / "docs" / "nomenclature.md"

# A name that ends so has this unit, everywhere. The first match counts.
UNIT_OF_ENDING = (
    ("flop_per_s", "FLOP/s"),
    ("bytes_per_s", "B/s"),
    ("bytes_per_s_each_way", "B/s"),
    ("tokens_per_s", "token/s"),
    ("bytes_per_token", "B/token"),
    ("usd_per_chip_hour", "USD/h"),
    ("joules_per_flop", "J/FLOP"),
    ("_bytes", "B"),
    ("_flop", "FLOP"),
    ("_fraction", "1"),
    ("_usd", "USD"),
    ("_w", "W"),
)
# Units that exist only at the boundary: in units.py and on screen.
FOREIGN_UNIT = re.compile(r"(^|_)(flops|ms|us|ns|kb|mb|gb|tb|kib|mib|gib|tib|gflop|tflop|pflop|kw|mw)(_|$)")
BOUNDARY = {"units.py"}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def functions_and_fields(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Line and name of each public parameter and annotated class field, without going into functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if is_public(node.name) or node.name in {"__init__", "__call__"}:
                arguments = node.args
                for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                    if argument.arg not in {"self", "cls"} and is_public(argument.arg):
                        yield argument.lineno, argument.arg
        elif isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from functions_and_fields(node.body)
            for item in node.body:
                if (
                    isinstance(item, ast.AnnAssign)
                    and isinstance(item.target, ast.Name)
                    and is_public(item.target.id)
                    and "ClassVar" not in ast.unparse(item.annotation)
                ):
                    yield item.lineno, item.target.id
        elif isinstance(node, ast.If | ast.Try):
            yield from functions_and_fields(node.body)


@cache
def public_names() -> dict[str, str]:
    """Public names of the library and the first place of each, private modules left out."""
    names: dict[str, str] = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).parts
        if any(part.startswith("_") and part != "__init__.py" for part in parts):
            continue
        for line, name in functions_and_fields(ast.parse(path.read_text(encoding="utf-8")).body):
            names.setdefault(name, f"{'/'.join(parts)}:{line}")
    return names


def table_rows() -> list[tuple[str, str, str]]:
    """Rows (name, unit, meaning) of all tables of docs/nomenclature.md whose first cell is `code`."""
    rows: list[tuple[str, str, str]] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"`\w+`", cells[0]):
            assert len(cells) == 3, f"a row has name, unit and meaning: {line}"
            rows.append((cells[0].strip("`"), cells[1], cells[2]))
    return rows


def missing_names() -> dict[str, str]:
    known = {name for name, _, _ in table_rows()}
    return {name: place for name, place in sorted(public_names().items()) if name not in known}


def test_names_are_read_from_the_source() -> None:
    source = """
class Thing:
    size_bytes: float
    _hidden: int
    def method(self, batch_size: int, *, _private: int = 0) -> None: ...
    def _own(self, inner: int) -> None: ...
class _Private:
    other: int
def outer(context_len):
    def local(parameter): ...
"""
    names = {name for _, name in functions_and_fields(ast.parse(source).body)}
    assert names == {"size_bytes", "batch_size", "context_len"}


def test_every_public_name_has_a_row() -> None:
    missing = missing_names()
    listing = "\n".join(f"  {name} ({place})" for name, place in missing.items())
    assert not missing, f"{len(missing)} public names are missing in docs/nomenclature.md:\n{listing}"


def test_no_row_names_what_is_gone() -> None:
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in SRC.rglob("*.py"))))
    gone = [name for name, _, _ in table_rows() if name not in words]
    assert not gone, f"docs/nomenclature.md has rows for names that src no longer has: {gone}"


def test_rows_are_complete_and_unique() -> None:
    rows = table_rows()
    assert len(rows) > 50
    assert all(unit and meaning for _, unit, meaning in rows)
    names = [name for name, _, _ in rows]
    assert not {name for name in names if names.count(name) > 1}, "a name has one row"


def test_unit_follows_from_the_name() -> None:
    wrong: list[str] = []
    for name, unit, _ in table_rows():
        for ending, expected in UNIT_OF_ENDING:
            if name.endswith(ending) or name == ending.removeprefix("_"):
                if unit != expected:
                    wrong.append(f"{name}: {unit}, should be {expected}")
                break
        else:
            if name.endswith("_s") and "_per_" not in name and unit != "s":
                wrong.append(f"{name}: {unit}, should be s")
    assert not wrong, wrong


def test_units_inside_are_si() -> None:
    foreign = {n: p for n, p in public_names().items() if FOREIGN_UNIT.search(n) and p.split(":")[0] not in BOUNDARY}
    assert not foreign, f"SI units and `flop` inside; these names say otherwise: {foreign}"


if __name__ == "__main__":
    for missing_name, where in missing_names().items():
        print(f"| `{missing_name}` |  | {where} |")
