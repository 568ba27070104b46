"""Parts that are left out while their sources have not changed depend on all that they could notice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import parts

pytest_plugins = ("pytester",)
ROOT = parts.ROOT


def test_every_part_has_tests_and_every_mark_is_a_part() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    marks = {name for text in texts for name in re.findall(r'mark\.part\("([\w-]+)"\)', text)}
    assert marks == parts.PARTS.keys() - {parts.TYPES}


def test_types_depend_on_all_modules_and_no_test() -> None:
    found = {path for path in parts.sources(parts.TYPES) if path.suffix == ".py"}
    assert found - {ROOT / name for name in parts.ALWAYS} == {*(ROOT / "src").rglob("*.py")}


@pytest.mark.parametrize(
    ("part", "inside", "outside"),
    [
        (
            "lab",
            ["lab/cipher.py", "lab/prose.txt", "passes/routing.py", "training/schedules/dualpipe.py", "errors.py"],
            ["api/plan.py", "cli/main.py", "web/app.py", "pricing/forward.py"],
        ),
        (
            "bars",
            ["fitting/run.py", "passes/calibration.py", "catalog/data/calibrations/vllm.toml"],
            ["search/plan.py", "cli/main.py", "simulation/run.py"],
        ),
        ("notebooks", ["api/plan.py", "search/served.py", "catalog/data/chips/h100-sxm.toml"], []),
    ],
)
def test_a_part_depends_on_what_its_tests_import(part: str, inside: list[str], outside: list[str]) -> None:
    found = {path.relative_to(ROOT).as_posix() for path in parts.sources(part)}
    assert {f"src/rackline/{name}" for name in inside} | {"uv.lock", "tests/conftest.py"} <= found
    assert found.isdisjoint(f"src/rackline/{name}" for name in outside)


def test_the_site_depends_on_pages_and_docstrings_but_not_on_what_functions_do() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in parts.sources("site")}
    assert {"mkdocs.yml", "docs/index.md", "bench/docs_site.py", "tests/docs/test_site.py"} <= found
    one = 'class A:\n    x: int = 1\n    def f(self, a=1):\n        """Says."""\n        return a\n'
    assert parts.outline(one) == parts.outline(one.replace("return a", "return 2 * a"))
    for before, after in (("Says", "Said"), ("a=1", "a=2"), ("x: int = 1", "x: int = 2"), ("def f", "async def f")):
        assert parts.outline(one) != parts.outline(one.replace(before, after)), before


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rackline.search import plan\n"
        "from rackline import errors\ndef f(name):\n    import rackline.lab.moe\n    return 'rackline.lab.cipher'\n"
    )
    assert parts.imported(file) == {
        "rackline",
        "rackline.errors",
        "rackline.lab",
        "rackline.lab.moe",
        "rackline.lab.cipher",
    }
    for line in ("import rackline as rl", "import importlib\nimportlib.import_module(name)"):
        file = tmp_path / f"{len(line)}.py"
        file.write_text(line)
        assert len(parts.imported(file)) > 350, line
    file.write_text('importlib.import_module(f"rackline.lab.{name}")')
    parts.imported.cache_clear()
    assert {name.split(".")[1] for name in parts.imported(file) if "." in name} == {"lab"}


def test_only_what_was_stored_as_it_is_now_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GREEN", tmp_path / "green.json")
    monkeypatch.setattr(parts, "fingerprint", lambda part: f"{part} as it is")
    assert parts.unchanged() == []
    assert parts.main(["store"]) == 0
    assert parts.unchanged() == list(parts.PARTS)
    monkeypatch.setattr(parts, "fingerprint", lambda part: "other" if part == "lab" else f"{part} as it is")
    assert parts.unchanged() == [part for part in parts.PARTS if part != "lab"]
    assert parts.main(["something"]) == 2


def test_a_part_that_is_left_out_says_so(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option as the project's own conftest reads it, in a process of its own: in this one modules that pytester
    forgets behind it would be imported again, and later tests would find two of each."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\nmarkers = part(name)\n")
    pytester.makepyfile("import pytest\n@pytest.mark.part('lab')\ndef test_a(): assert 0\ndef test_b(): pass\n")
    usual = ("-p", "no:randomly", "-p", "no:schemathesis")
    pytester.runpytest_subprocess(*usual).assert_outcomes(passed=1, failed=1)
    found = pytester.runpytest_subprocess(*usual, "--skip-parts", "site,lab")
    found.assert_outcomes(passed=1, skipped=1)
    found.stdout.fnmatch_lines(["1 skipped: lab: *unchanged*"])
