"""Python in the README, in docs/ and in the docstrings of src runs and shows what it prints.

One test a page: the examples of a page share their names and run in order, and so do the numbers of the prose that
bench/refresh_docs.py fills in. On a page words are compared, and numbers within 20 %: a better calibration moves them.
In a docstring every digit counts. Sybil's own Python parser leaves `pycon` fences out without a word, so fences are
also counted by themselves and compared. Pages that take long run nightly.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PAGES: list[Path] = load_script("shown").pages()
NIGHTLY = ("docs/racks.md", "docs/questions.md")  # what-ifs of a plan at several domains; a plan of every kind
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


SYBIL = load_script("fill_docs").sybil_of_docs(OPTIONS)


def python_fences(text: str) -> Iterator[tuple[int, int]]:
    """First and last line (from 1) of each fence whose language begins with `py`, by a scan of our own."""
    opened: tuple[str, int, bool] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        found = re.match(r"[ \t>*-]*(`{3,}|~{3,})\s*(\S*)", line)
        if not found:
            continue
        marks, language = found.groups()
        if opened is None:
            opened = (marks, number, language.lower().startswith("py"))
        elif marks.startswith(opened[0]) and not language:
            if opened[2]:
                yield opened[1], number
            opened = None
    if opened is not None and opened[2]:
        yield opened[1], len(text.splitlines())


def fences_without_example(path: Path) -> list[int]:
    """Lines of the Python fences in which sybil found nothing to run."""
    lines = [example.line for example in SYBIL.parse(path).examples()]
    fences = python_fences(path.read_text(encoding="utf-8"))
    return [first for first, last in fences if not any(first <= line <= last for line in lines)]


def test_scan_and_sybil_on_a_sample(tmp_path: Path) -> None:
    """Each kind of fence is found by the scan; one in a language that sybil does not know is reported."""
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```pycon\n>>> x\n1\n>>> x + 1\n2\n```\n\n"
        "```python\n>>> x\n1\n```\n\n```bash\nls\n```\n\n```py\ny = 1\n```\n"
    )
    assert [first for first, _ in python_fences(page.read_text())] == [1, 5, 12, 21]
    assert fences_without_example(page) == [21]
    assert len(list(SYBIL.parse(page).examples())) == 4


def test_a_wrong_example_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(Exception, match=r"Expected:\s+3"):
        run_page(page)
    page.write_text("```pycon\n>>> ('hbm', 2)\n('compute', 2)\n```\n")
    with pytest.raises(Exception, match=r"Expected:\s+\('compute', 2\)"):
        run_page(page)


def test_a_wrong_number_fails(tmp_path: Path) -> None:
    """A number in the prose sees the names of the fences before it; one inside of a fence is text."""
    page = tmp_path / "page.md"
    text = "```python\nx = 3\n```\n\nIt is <!--= f'{x} s' -->3 s<!--/-->.\n\n```text\n<!--= y -->1<!--/-->\n```\n"
    page.write_text(text)
    run_page(page)
    page.write_text(text.replace("3 s<", "4 s<"))
    with pytest.raises(Exception, match="computed is '3 s'"):
        run_page(page)


def test_a_number_that_moved_a_little_passes_and_is_filled_in(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = (
        "```pycon\n>>> 10.2, 'hbm'\n(10.1, 'hbm')\n\n```\n\nIt is <!--= f'{10.2} ms' -->10.1 ms<!--/-->.\n\n"
        "```python\n>>> 20.4 / 2\n10.1\n```\n"
    )
    page.write_text(text)
    run_page(page)
    filled = load_script("fill_docs").filled(page)
    assert filled == text.replace("(10.1", "(10.2").replace("-->10.1", "-->10.2").replace("\n10.1\n", "\n10.2\n")


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("29.7 ms", "29.9 ms", True),
        ("$0.99M a month", "$1.01M a month", True),
        ("0.004 of it", "0.005 of it", True),
        ("29.7 ms", "59.9 ms", False),
        ("8 chips", "16 chips", False),
        ("8 chips", "8 hosts", False),
        ("tp=4, 8 chips", "tp=4", False),
    ],
)
def test_what_is_the_same(shown: str, printed: str, is_same: bool) -> None:
    assert load_script("shown").same(shown, printed) == is_same


def run_page(path: Path) -> None:
    for example in SYBIL.parse(path).examples():
        example.evaluate()


def test_sybil_collects_every_python_fence() -> None:
    silent = {page.relative_to(ROOT).as_posix(): fences_without_example(page) for page in PAGES}
    assert {page: lines for page, lines in silent.items() if lines} == {}, "use `python` or `pycon`"


def with_python(page: Path) -> bool:
    text = page.read_text(encoding="utf-8")
    return "<!--= " in text or any(python_fences(text))


def nightly_if_long(page: Path) -> Any:
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=pytest.mark.nightly if name in NIGHTLY else ())


@pytest.mark.parametrize("path", [nightly_if_long(page) for page in PAGES if with_python(page)])
def test_page_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path)


def docstring_sessions() -> Iterator[tuple[str, str, int, str]]:
    """Module, name, line and text of each docstring of src that has a doctest."""
    for path in sorted(SRC.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if ">>> " not in source:
            continue
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=True)
                if text and ">>> " in text:
                    name = module if isinstance(node, ast.Module) else f"{module}.{node.name}"
                    yield module, name, node.body[0].lineno, text


SESSIONS = list(docstring_sessions())


@pytest.mark.parametrize(("module", "name", "line", "text"), SESSIONS, ids=[f"{s[1]}:{s[2]}" for s in SESSIONS])
def test_docstring_examples(
    module: str, name: str, line: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some examples write files
    imported = importlib.import_module(module)
    hasattr(imported, "__all__")  # one that is late runs when something of it is asked for
    names = dict(vars(imported))
    session = doctest.DocTestParser().get_doctest(text, names, name, f"{module}", line)
    assert session.examples, "`>>> ` in the docstring, but no example"
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(session, out=report.append)
    assert result.failed == 0, "".join(report)


def test_docstrings_have_examples() -> None:
    """A guard on the collection: the library's formulas carry doctests."""
    assert len(SESSIONS) >= 10
