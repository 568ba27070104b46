"""Who may import whom, and what a command may load before it knows what it has to do."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = {
    "fastapi",
    "hypothesis",
    "jax",
    "matplotlib",
    "pandas",
    "pint",
    "plotly",
    "polars",
    "scipy",
    "sympy",
    "vl_convert",
}


def run_import_linter(config: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [str(command), "--config", str(config), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_imports_go_downward_only() -> None:
    result = run_import_linter(ROOT / "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr


def test_contract_notices_an_upward_import(tmp_path: Path) -> None:
    """The same contract turned upside down must break: otherwise it checks nothing."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = "\n    ".join(reversed(contract["layers"]))
    config = tmp_path / "upside_down.ini"
    config.write_text(
        "[importlinter]\nroot_package = rackline\n\n"
        "[importlinter:contract:upside-down]\nname = upside down\ntype = layers\n"
        f"containers = rackline\nlayers =\n    {layers}\n"
    )
    result = run_import_linter(config)
    assert result.returncode != 0
    assert "is not allowed to import" in result.stdout


def imports_from(path: Path) -> list[ast.ImportFrom]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]


def test_no_module_imports_from_a_package_that_imports_it() -> None:
    """Packages run when a name of theirs is asked for: a module asking its own package would find itself half run."""
    found: list[str] = []
    for package in sorted((ROOT / "src" / "rackline").glob("*/**/__init__.py")):
        name = ".".join(package.parent.relative_to(ROOT / "src").parts)
        if any((node.module or "").startswith(f"{name}.") for node in imports_from(package)):
            others = (path for path in sorted(package.parent.glob("*.py")) if path != package)
            asked = ((path, node) for path in others for node in imports_from(path) if node.module == name)
            found += [f"{path.relative_to(ROOT)}:{node.lineno}" for path, node in asked]
    assert not found


def test_no_late_import_names_a_module_that_its_package_hides() -> None:
    """`with late: from rackline.search import plan` gives the module, or the function if the package has run."""
    hidden: dict[str, set[str]] = {}
    for package in (ROOT / "src" / "rackline").glob("*/**/__init__.py"):
        handed_out = {name.asname or name.name for node in imports_from(package) for name in node.names}
        name = ".".join(package.parent.relative_to(ROOT / "src").parts)
        hidden[name] = handed_out & {path.stem for path in package.parent.glob("*.py")}
    assert "plan" in hidden["rackline.search"]
    found: list[str] = []
    for path in sorted((ROOT / "src" / "rackline").rglob("*.py")):
        blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.With)]
        late_imports = [
            node for block in blocks if ast.unparse(block.items[0]) == "late" for node in block.body
            if isinstance(node, ast.ImportFrom)
        ]  # fmt: skip
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno} {name.name}"
            for node in late_imports
            for name in node.names
            if name.name in hidden.get(node.module or "", ())
        ]
    assert not found


@pytest.mark.parametrize("module", ["rackline", "rackline.cli.main"])
def test_start_up_loads_nothing_heavy(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stderr
    loaded = set(json.loads(result.stdout))
    assert module.partition(".")[0] in loaded
    assert not loaded & HEAVY, f"import {module} loads {sorted(loaded & HEAVY)}; import them where they are used"
