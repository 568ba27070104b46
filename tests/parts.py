"""Parts of the tests that depend on few sources: which of them need not run, because nothing below them has changed.

    uv run python tests/parts.py unchanged   # parts whose sources are those of the last full run (.ci/green.json)
    uv run python tests/parts.py store       # after a full run that passed: `.ci/run --all` does this
    uv run python tests/parts.py sources lab # what a part depends on

A part is made of the tests with its mark, `pytest.mark.part("lab")`. It depends on the files that hold them, on all
modules of rackline and helpers of the tests that these import, directly or not, also inside of functions, on the files
named in `PARTS`, and on the versions of all packages. A module that imports others by name (`rackline.api.answer` finds
the verbs so) stands for all of rackline. Without `.ci/green.json`, and in `pytest` without `--skip-parts`, all run.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GREEN = ROOT / ".ci" / "green.json"
ALWAYS = ("uv.lock", "pyproject.toml", "tests/conftest.py", "tests/parts.py")
DATA = "src/rackline/catalog/data/**/*"
# one loads packages of others, the other what an `import rackline` asks for, which is seen where that stands
_LOADERS = (ROOT / "src" / "rackline" / "late.py", ROOT / "src" / "rackline" / "__init__.py")
_MARK = re.compile(r'pytest\.mark\.part\("([\w-]+)"\)')
_BY_NAME = re.compile(r"import_module\((?:f\"([\w.]+)\.\{|(?!f?[\"']))")  # which module is only known when it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the tests of a part depend on beside what they import.

    Args:
        files: patterns from the root.
        outline: whether also on names, signatures, class bodies and docstrings of all modules, but not on what
            functions do.
    """

    files: tuple[str, ...] = ()
    outline: bool = False


TYPES = "types"  # pyright over src, which no test runs
PARTS = {
    "bars": Part(files=(DATA, "../shared/measured/ops/*.csv", "bench/fill_docs.py")),
    "lab": Part(files=(DATA, "src/rackline/lab/**/*.*")),
    "notebooks": Part(
        files=("docs/notebooks/*", "bench/notebooks.py", "bench/stored_outputs.py", "src/rackline/**/*.*")
    ),
    "site": Part(
        files=(
            *("docs/**/*.*", "mkdocs.yml", "bench/docs_*.py", "bench/site_look.py", "README.md", "CONTRIBUTING.md"),
            *("src/rackline/web/static/*.*", "src/rackline/web/templates/*.*"),  # one figure stands on its front
        ),
        outline=True,
    ),
    TYPES: Part(files=("src/**/*.py",)),
}


@cache
def _modules() -> dict[str, Path]:
    """Modules of rackline and helpers of the tests by name."""
    found = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "src").rglob("*.py")
    }
    return found | {path.stem: path for path in (ROOT / "tests").glob("*.py")}


def _for_types(tree: ast.Module) -> set[ast.AST]:
    """Nodes that only a type checker reads."""
    tests = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {inner for node in tests for line in node.body for inner in ast.walk(line)}


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules of ours that a file imports; all of rackline where names are only known when it runs."""
    if path in _LOADERS:
        return frozenset()
    text = path.read_text(encoding="utf-8")
    tree, known = ast.parse(text), _modules()
    typed, found = _for_types(tree), set[str]()
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            found |= set(known) if "rackline" in names else names  # import rackline as rl: loads what is asked of it
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)  # import_module("rackline.lab.cipher"), or a name that is looked up later
    for package in _BY_NAME.findall(text):
        found |= {name for name in known if name.startswith(package or "rackline")}
    packages = {".".join(name.split(".")[:count]) for name in found for count in range(2, name.count(".") + 2)}
    return frozenset((found | packages) & set(known))


def below(paths: Iterable[Path]) -> set[Path]:
    """Files with all that they import, directly or not."""
    known, seen, left = _modules(), set[Path](), list(paths)
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            left += [known[name] for name in imported(path)]
    return seen


def tests_of(part: str) -> list[Path]:
    """Files with tests of a part."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if part in _MARK.findall(path.read_text(encoding="utf-8"))]


def sources(part: str) -> list[Path]:
    """Files that a part depends on."""
    named = (path for pattern in (*ALWAYS, *PARTS[part].files) for path in ROOT.glob(pattern))
    kept = {path for path in named if path.is_file() and "__pycache__" not in path.parts}
    return sorted(kept | (set(tests_of(part)) if PARTS[part].outline else below(tests_of(part))))


class _Bodies(ast.NodeTransformer):
    """Leaves of each function its docstring."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [ast.Expr(ast.Constant(ast.get_docstring(node)))]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        node.body = [ast.Expr(ast.Constant(ast.get_docstring(node)))]
        return node


def outline(text: str) -> str:
    """A module without what its functions do."""
    return ast.dump(_Bodies().visit(ast.parse(text)))


def _contents(part: str) -> Iterator[bytes]:
    for path in sources(part):
        yield path.relative_to(ROOT).as_posix().encode()
        yield path.read_bytes()
    if PARTS[part].outline:
        for path in sorted((ROOT / "src").rglob("*.py")):
            yield outline(path.read_text(encoding="utf-8")).encode()


def fingerprint(part: str) -> str:
    """A hash of all that a part depends on."""
    found = hashlib.sha256()
    for content in _contents(part):
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()


def unchanged() -> list[str]:
    """Parts that depend on nothing that has changed since the last full run that passed."""
    stored = json.loads(GREEN.read_text(encoding="utf-8")) if GREEN.is_file() else {}
    return [part for part in PARTS if stored.get(part) == fingerprint(part)]


def main(words: list[str]) -> int:
    """Print or store."""
    match words:
        case ["unchanged"]:
            print(",".join(unchanged()))
        case ["store"]:
            found = {part: fingerprint(part) for part in PARTS}
            GREEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        case ["sources", part] if part in PARTS:
            print("\n".join(path.relative_to(ROOT).as_posix() for path in sources(part)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
