"""Compare the answers of one machine under different instruction sets, BLAS kernels and numbers of threads.

    uv run python bench/processors.py [--setting NAME]... [QUESTION...]

OpenBLAS, NumPy and the C library choose their kernels by what the processor can do, and kernels differ in the last bit.
Environment variables make them choose those of another processor. Each setting is a process that asks the questions of
tests/e2e/processors.toml. Their answers must equal those of the first setting: numbers to 1e-9 of themselves, texts
exactly. Prints what differs. Exit status 1 where anything does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leaves import differences  # a sibling in this folder

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT / "tests" / "e2e" / "processors.toml"
TOLERANCE = 1e-9  # a thousandth of what six digits on a screen show, a million times the rounding of one product
SHOWN = 8  # differences of one question


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one process believes about its processor.

    Args:
        variables: of its environment.
        missing: what the machine lacks for it; empty where it can run.
    """

    variables: dict[str, str]
    missing: str = ""


def settings() -> dict[str, Setting]:
    """Return all settings by name; the first is what the others are compared with."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    not_x86 = "" if x86 else "kernels of x86-64 only"
    no_avx2 = not_x86 or ("" if " avx2" in flags else "the processor has no AVX2")
    no_avx512 = not_x86 or ("" if " avx512f" in flags else "the processor has no AVX-512")
    wide = [name for name in _optional_features() if name.startswith(("AVX512", "X86_V4"))]
    one_thread, two_threads = {"OPENBLAS_NUM_THREADS": "1"}, {"OPENBLAS_NUM_THREADS": "2"}
    old_blas = {"OPENBLAS_CORETYPE": "Prescott" if x86 else "ARMV8"}
    old_numpy = {"NPY_DISABLE_CPU_FEATURES": " ".join(_optional_features())}
    old_libm = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F"}
    return {
        "own": Setting(variables=one_thread),
        "haswell": Setting(variables={"OPENBLAS_CORETYPE": "Haswell"} | one_thread, missing=no_avx2),
        "skylakex": Setting(variables={"OPENBLAS_CORETYPE": "SkylakeX"} | one_thread, missing=no_avx512),
        "prescott": Setting(variables={"OPENBLAS_CORETYPE": "Prescott"} | one_thread, missing=not_x86),
        "no-avx512": Setting(variables={"NPY_DISABLE_CPU_FEATURES": " ".join(wide)} | one_thread, missing=no_avx512),
        "no-avx2": Setting(variables=old_numpy | one_thread, missing=no_avx2),
        "two-threads": Setting(variables=two_threads),
        "oldest": Setting(variables=old_blas | old_numpy | old_libm | two_threads),
    }


def _optional_features() -> list[str]:
    """Return the instruction sets that this machine has and NumPy can do without."""
    from numpy._core import _multiarray_umath as numpy_core  # pyright: ignore[reportPrivateUsage]

    core: Any = numpy_core
    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]


def questions() -> tuple[dict[str, str], list[str]]:
    """Return the commands by name, and the names of the few that a quick comparison asks."""
    table = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    return table["questions"], table["quick"]


def ask(names: Sequence[str]) -> dict[str, Any]:
    """Ask questions in this process and return status, text and data of each."""
    sys.path.append(str(ROOT / "tests"))
    from asking import asking
    from helpers import run_command

    commands, _ = questions()
    answers: dict[str, Any] = {}
    for name in names:
        with asking() as place:
            ran = run_command(shlex.split(commands[name]), place.folder)
            text = (ran.out + ran.err).replace(str(place.folder), "FOLDER")
            data = [answer.to_dict() for answer in place.answers]
        answers[name] = {"status": ran.status, "text": text.splitlines(), "data": data}
    return answers


@cache
def answers_under(name: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Ask questions in a process of its own under one setting."""
    others = ("OPENBLAS", "NPY_", "GLIBC_TUNABLES", "OMP_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    command = [sys.executable, __file__, "--ask", *names]
    ran = subprocess.run(command, env=clean | settings()[name].variables, stdout=subprocess.PIPE, check=True)
    return json.loads(ran.stdout)


def compare(names: Sequence[str], wanted: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Ask questions under settings, say what differs from the first of them, and return how many answers do."""
    every = settings()
    able = [name for name in wanted if not every[name].missing]
    for name in wanted:
        if every[name].missing:
            say(f"{name}: left out, {every[name].missing}")
    usual, *others = able
    first = answers_under(usual, tuple(names))
    moved = 0
    for other in others:
        second = answers_under(other, tuple(names))
        for name in names:
            lines = list(differences(first[name], second[name], TOLERANCE))
            moved += bool(lines)
            for line in lines[:SHOWN]:
                say(f"{other}: {name}: {line}")
            if len(lines) > SHOWN:
                say(f"{other}: {name}: {len(lines)} differences")
    say(f"{len(names)} questions under {', '.join(able)}: {moved} answers differ from those under {usual}")
    return moved


def main() -> int:
    """Compare, or ask in one of the processes."""
    commands, _ = questions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="QUESTION", help="of tests/e2e/processors.toml; all by default")
    parser.add_argument("--setting", action="append", choices=list(settings()), help="all by default")
    parser.add_argument("--ask", action="store_true", help="write the answers of this process as JSON")
    options = parser.parse_args()
    names = options.names or list(commands)
    if options.ask:
        json.dump(ask(names), sys.stdout)
        return 0
    return int(compare(names, options.setting or list(settings())) > 0)


if __name__ == "__main__":
    sys.exit(main())
