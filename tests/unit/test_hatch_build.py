"""The build hook chooses a compiler and a platform, and what it makes is a wheel of that platform."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from rackline.simulation import native

ROOT = Path(__file__).resolve().parents[2]


def _hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hook = _hook()
here = f"{platform.system()}-{platform.machine()}".lower()
compiles = pytest.mark.skipif(not hook.system_compiler(os.environ), reason="no C compiler")


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH holds no program."""
    return {"PATH": str(tmp_path)}


@compiles
def test_the_systems_compiler_comes_first() -> None:
    chosen = hook.plan(os.environ)
    assert not chosen.needs_zig
    assert chosen.command[0] in (os.environ.get("CC", "cc"), "gcc", "clang")
    assert chosen.tag.split("_")[0] in ("linux", "macosx", "win")


@pytest.mark.skipif(here not in hook.TARGETS or platform.libc_ver()[0] == "", reason="zig is not used here")
def test_without_a_compiler_the_build_requires_zig(no_compiler: dict[str, str]) -> None:
    chosen = hook.plan(no_compiler)
    assert chosen.needs_zig
    assert not chosen.required
    assert chosen.tag == hook.TARGETS[here].tag
    assert "-mcpu=baseline" in chosen.command


def test_a_compiler_that_cannot_make_a_library_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    assert hook.system_compiler({"PATH": str(tmp_path)}) == ()


def test_no_other_compiler_is_tried_where_one_is_named() -> None:
    assert hook.system_compiler({**os.environ, "CC": "no-such-compiler -O"}) == ()


@compiles
def test_the_named_compiler_may_have_options() -> None:
    named = hook.system_compiler(os.environ)[0]
    assert hook.system_compiler({**os.environ, "CC": f"{named} -g0"})[:2] == (named, "-g0")


def test_where_zig_is_not_published_nothing_is_required(
    no_compiler: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "sparc")
    assert hook.plan(no_compiler) == hook.Plan()


@pytest.mark.parametrize("name", hook.TARGETS)
def test_a_target_is_compiled_with_zig_or_not_at_all(name: str) -> None:
    chosen = hook.plan({**os.environ, "RACKLINE_TARGET": name})
    assert chosen.needs_zig
    assert chosen.required
    assert chosen.tag.startswith(("manylinux_2_17_", "macosx_11_0_", "win_"))  # what the package index takes


def test_targets_are_named() -> None:
    assert hook.plan({**os.environ, "RACKLINE_TARGET": "none"}) == hook.Plan()
    with pytest.raises(ValueError, match="linux-x86_64"):
        hook.plan({"RACKLINE_TARGET": "amiga"})


@compiles
def test_errors_of_the_compiler_are_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.c"
    wrong.write_text("int broken(", encoding="utf-8")
    assert "wrong.c" in hook.compile_library(
        hook.system_compiler(os.environ), wrong, tmp_path / "replica.so", os.environ
    )


@pytest.mark.slow
@compiles
@pytest.mark.parametrize("target", [None, "none"])
def test_wheels(target: str | None, tmp_path: Path) -> None:
    """With a compiler the library is in the wheel, and loads; without one the wheel is for every platform."""
    pytest.importorskip("hatchling")
    environment = {**os.environ, "RACKLINE_TARGET": target} if target else os.environ
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    tag = "any" if target else hook.plan(os.environ).tag
    assert wheel.name.endswith(f"-py3-none-{tag}.whl")
    assert ("Simulations will run in Python" in done.stdout + done.stderr) == bool(target)
    names = zipfile.ZipFile(wheel).namelist()
    libraries = [name for name in names if Path(name).suffix in (".so", ".dll")]
    assert libraries == ([] if target else [f"{hook.FOLDER}/{native._NAME}"])
    if libraries:
        zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
        script = "from rackline.simulation import native; print(native.library_path(), native.slow_because())"
        loaded = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert loaded.stdout.strip() == str(tmp_path / "unpacked" / libraries[0]), loaded.stderr
