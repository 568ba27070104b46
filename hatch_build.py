"""Compile the loop of the simulator when a wheel is built or an editable install is made.

The system's C compiler does it where it works, and otherwise zig, which the build then requires as a package. Where
neither can, the wheel has no library and simulations run in Python. RACKLINE_TARGET changes that: one of `TARGETS`
compiles for that platform with zig, and fails where it cannot; `none` compiles nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src", "rackline", "simulation", "replica.c")
FOLDER = "rackline/simulation"  # of the library in a wheel
# products and sums are rounded as Python rounds them: no fused multiply-add, nothing for the builder's own processor
OPTIONS = ("-O2", "-ffp-contract=off", "-shared")
ZIG = "ziglang==0.17.1"
MACOS = "11.0"  # the first version on Arm
EMPTY = "".join(f"#include <{name}.h>\n" for name in ("math", "stdint", "stdlib", "string"))


class Target(NamedTuple):
    """A platform: zig's name of it, and the tag of its wheels."""

    zig: str
    tag: str


TARGETS = {
    "linux-x86_64": Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64"),
    "linux-aarch64": Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64"),
    "darwin-x86_64": Target(f"x86_64-macos.{MACOS}", "macosx_11_0_x86_64"),
    "darwin-arm64": Target(f"aarch64-macos.{MACOS}", "macosx_11_0_arm64"),
    "windows-amd64": Target("x86_64-windows-gnu", "win_amd64"),
}


class Plan(NamedTuple):
    """What compiles the loop, and for what: nothing where `command` is empty."""

    command: tuple[str, ...] = ()
    tag: str = ""
    needs_zig: bool = False
    required: bool = False


def plan(environment: Mapping[str, str]) -> Plan:
    """Choose the compiler and the platform.

    Raises:
        ValueError: RACKLINE_TARGET names no target.
    """
    wanted = environment.get("RACKLINE_TARGET", "")
    if wanted == "none":
        return Plan()
    if wanted:
        if wanted not in TARGETS:
            raise ValueError(f"RACKLINE_TARGET is {wanted!r}; it may be none or one of {', '.join(TARGETS)}")
        return zig_plan(TARGETS[wanted], required=True)
    compiler = system_compiler(environment)
    if compiler:
        return Plan(compiler, host_tag())
    here = TARGETS.get(f"{platform.system()}-{platform.machine()}".lower())
    is_musl = platform.system() == "Linux" and platform.libc_ver()[0] != "glibc"
    return Plan() if here is None or is_musl else zig_plan(here, required=False)


def zig_plan(target: Target, *, required: bool) -> Plan:
    """Compile with zig, for the oldest processors and systems of a target."""
    command = (sys.executable, "-m", "ziglang", "cc", "-target", target.zig, "-mcpu=baseline", "-s")
    return Plan(command, target.tag, needs_zig=True, required=required)


def system_compiler(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command of the first C compiler that makes a library; CC, if it is set, is the only one tried."""
    named = environment.get("CC")
    for command in [shlex.split(named)] if named else [["cc"], ["gcc"], ["clang"]]:
        if not shutil.which(command[0], path=environment.get("PATH")):
            continue
        if sys.platform == "darwin":  # for this Python's processor, and no newer system than the tag says
            command += ["-arch", platform.machine(), f"-mmacosx-version-min={MACOS}"]
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.c")
            empty.write_text(EMPTY, encoding="utf-8")
            if not compile_library(command, empty, Path(folder, "empty.so"), environment):
                return tuple(command)
    return ()


def host_tag() -> str:
    """The platform tag of what the system's compiler makes."""
    if sys.platform == "darwin":
        return f"macosx_{MACOS.replace('.', '_')}_{platform.machine()}"
    return re.sub(r"\W", "_", sysconfig.get_platform())


def compile_library(command: Sequence[str], source: Path, library: Path, environment: Mapping[str, str]) -> str:
    """Compile a library that holds its source's SHA-256; returns what went wrong, empty if nothing did."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    position = () if library.suffix == ".dll" else ("-fPIC",)
    words = [*command, *OPTIONS, *position, f'-DSOURCE_HASH="{digest}"', "-o", str(library), str(source), "-lm"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
            env={"ZIG_GLOBAL_CACHE_DIR": str(library.parent / "zig"), **environment},
        )  # fmt: skip
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 and library.is_file() else done.stderr.strip() or f"exit {done.returncode}"


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, and to an editable install beside its other files in site-packages."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return [ZIG] if plan(os.environ).needs_zig else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the loop, and name the platform of the wheel.

        Raises:
            RuntimeError: it cannot be compiled for the target that was asked for.
        """
        chosen = plan(os.environ)
        self.folder = tempfile.TemporaryDirectory(prefix="rackline-", ignore_cleanup_errors=True)
        library = Path(self.folder.name, "libreplica.dll" if chosen.tag.startswith("win") else "libreplica.so")
        if not chosen.command:
            wrong = "no C compiler was found"
        elif chosen.needs_zig and find_spec("ziglang") is None:
            wrong = f"neither a C compiler nor {ZIG} was found"
        else:
            wrong = compile_library(chosen.command, Path(self.root, SOURCE), library, os.environ)
        if wrong and chosen.required:
            raise RuntimeError(f"{SOURCE.name} cannot be compiled: {wrong}")
        if wrong:
            self.app.display_warning(f"Simulations will run in Python: {wrong}")
            return
        build_data["force_include_editable" if version == "editable" else "force_include"][str(library)] = (
            f"{FOLDER}/{library.name}"
        )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{chosen.tag}"  # an editable wheel keeps its own tag, and is never shared

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        self.folder.cleanup()
