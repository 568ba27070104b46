"""Commands shown in the README and in docs/ run and exit as shown.

Fences in `bash` or `sh` are read; each line that begins with `rackline`, or `uv run rackline`, also after
`pip install uv &&`, runs in order, those of a page in one folder as a reader would do it, and must exit 0. A comment
`# exits 2` at the end of a line says that the command is expected to exit with that status.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"  # run with their outputs in test_tutorials.py
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if TUTORIALS not in page.parents),
]
COMMAND = re.compile(r"^(?:\$ )?(?:pip install uv && )?(?:uv run )?(?=rackline(?:\s|$))")
EXITS = re.compile(r"#\s*exits (\d+)\s*$")
TIME_LIMIT_S = 120
# (page, language of its fences) -> why its commands are not run here
ELSEWHERE = {
    ("docs/measure.md", "console"): "measures for a minute and asks for other engines: tests/lab/test_measure.py",
    ("docs/observe.md", "console"): "asks a live server: tests/lab/test_observe.py",
    ("docs/how-to/calibrate.md", "console"): "asks a live server: tests/lab/test_observe.py",
    ("docs/web-api.md", "text"): "serves until it is interrupted: tests/web/test_serving.py",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Commands of one fence of one page."""

    page: str
    line: int
    language: str
    commands: tuple[str, ...]


def fences_of(page: str, text: str) -> list[Fence]:
    """Fences that hold at least one rackline command; a line that ends in a backslash goes on."""
    fences: list[Fence] = []
    pattern = re.compile(r"^(?P<marks>`{3,}|~{3,})(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=marks)", re.M | re.S)
    for match in pattern.finditer(text):
        lines = match["body"].replace("\\\n", " ").splitlines()
        commands = tuple(COMMAND.sub("", line) for line in lines if COMMAND.match(line))
        if commands:
            line = text.count("\n", 0, match.start()) + 1
            fences.append(Fence(page=page, line=line, language=match["language"].strip(), commands=commands))
    return fences


FENCES = [
    fence for page in PAGES for fence in fences_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]
RUN = [fence for fence in FENCES if fence.language in {"bash", "sh"}]


def run_fence(fence: Fence, folder: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    for command in fence.commands:
        shown = EXITS.search(command)
        result = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        where = f"{fence.page}:{fence.line}: {command}"
        expected = int(shown[1]) if shown else 0
        assert result.returncode == expected, f"{where}\nexit {result.returncode}\n{result.stderr}"
        assert "Traceback" not in result.stderr, f"{where}\n{result.stderr}"


def test_commands_are_read_from_fences() -> None:
    text = (
        "```bash\npip install uv && uv run rackline chips\nuv run pytest\nrackline plan a \\\n  --on b # exits 2\n```\n"
    )
    (fence,) = fences_of("page.md", text)
    assert fence.commands == ("rackline chips", "rackline plan a    --on b # exits 2")
    assert EXITS.search(fence.commands[1])


def test_readme_shows_commands() -> None:
    assert any(fence.page == "README.md" for fence in RUN)


def test_every_command_fence_runs() -> None:
    """A command in another fence, or indented without a fence, would be shown but never run."""
    other = [
        f"{fence.page}:{fence.line}"
        for fence in FENCES
        if fence.language not in {"bash", "sh"} and (fence.page, fence.language) not in ELSEWHERE
    ]
    assert not other, f"use ```bash for commands: {other}"
    indented = [
        f"{page.name}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        if re.match(r"(?: {4}|\t)\s*(?:\$ )?(?:pip install uv && )?(?:uv run )?rackline\s", line)
    ]
    assert not indented, f"put these commands in a ```bash fence: {indented}"


@pytest.mark.parametrize("page", sorted({fence.page for fence in RUN}))
def test_commands_exit_as_shown(page: str, tmp_path: Path) -> None:
    for fence in RUN:
        if fence.page == page:
            run_fence(fence, tmp_path)
