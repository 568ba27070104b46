"""Commands shown in the README and in docs/ are accepted, and those of the first pages run and exit as shown.

Fences in `bash` or `sh` are read; each line that begins with `rackline`, or `uv run rackline`, also after
`pip install uv &&`, is taken in order. Each command is read up to its question: option names and values, names of
models and clusters. README's and start.md's are answered as well; nightly, those of every page, in one folder a page
as a reader would do it. A comment `# exits 2` at the end of a line says that the command is expected to exit with that
status.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import run_command
from parsed import commands_of_line, parsed, refused
from rackline.errors import RacklineError
from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"  # answered in test_tutorials.py
PAGES: list[Path] = load_script("shown").pages()
ANSWERED_HERE = ("README.md", "docs/start.md")
COMMAND = re.compile(r"^(?:\$ )?(?:pip install uv && )?(?:uv run )?(?=rackline(?:\s|$))")
ANY = re.compile(r"(?=\S)")
MOST_WORDS_OF_README = 650
NEEDS_A_SHELL = re.compile(r"[|&;<>`$~]|\w\*")  # others run in this process, where all is loaded already
EXITS = re.compile(r"#\s*exits (\d+)\s*$")
TIME_LIMIT_S = 1200
# (page, language of its fences) -> why its commands are not run here
ELSEWHERE = {
    ("docs/measure.md", "console"): "measures for a minute and asks for other engines: tests/lab/test_measure.py",
    ("docs/observe.md", "console"): "asks a live server: tests/lab/test_observe.py",
    (
        "docs/how-to/find-why-a-server-is-slow.md",
        "console",
    ): "asks a live server: tests/lab/test_observe.py",
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


def fences_of(page: str, text: str, command: re.Pattern[str] = COMMAND) -> list[Fence]:
    """Fences that hold at least one such command, what stands before it left out; lines go on after a backslash."""
    fences: list[Fence] = []
    pattern = re.compile(r"^(?P<marks>`{3,}|~{3,})(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=marks)", re.M | re.S)
    for match in pattern.finditer(text):
        lines = match["body"].replace("\\\n", " ").splitlines()
        commands = tuple(command.sub("", line) for line in lines if command.match(line))
        if commands:
            line = text.count("\n", 0, match.start()) + 1
            fences.append(Fence(page=page, line=line, language=match["language"].strip(), commands=commands))
    return fences


FENCES = [
    fence for page in PAGES for fence in fences_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]
# README's questions run with their answers in test_tutorials.py
ANSWERED = {shlex.join(one.words) for one in load_script("tutorials").commands(PAGES[0].read_text(encoding="utf-8"))}
SHOWN = [fence for fence in FENCES if fence.language in {"bash", "sh"}]
RUN = [
    fence
    for fence in SHOWN
    if TUTORIALS not in (ROOT / fence.page).parents
    if fence.page != "README.md" or fence.commands[0] not in ANSWERED
]


def run_fence(fence: Fence, folder: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    for command in fence.commands:
        shown = EXITS.search(command)
        where, expected = f"{fence.page}:{fence.line}: {command}", int(shown[1]) if shown else 0
        if not NEEDS_A_SHELL.search(command):
            ran = run_command(shlex.split(command, comments=True)[1:], folder)
            assert ran.status == expected, f"{where}\nexit {ran.status}\n{ran.err}"
            continue
        result = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        assert result.returncode == expected, f"{where}\nexit {result.returncode}\n{result.stderr}"
        assert "Traceback" not in result.stderr, f"{where}\n{result.stderr}"


def test_commands_are_read_from_fences() -> None:
    text = (
        "```bash\npip install uv && uv run rackline chips\nuv run pytest\nrackline plan a \\\n  --on b # exits 2\n```\n"
    )
    (fence,) = fences_of("page.md", text)
    assert fence.commands == ("rackline chips", "rackline plan a    --on b # exits 2")
    assert EXITS.search(fence.commands[1])


def test_readme_is_a_front_page() -> None:
    """A picture, two commands for a fresh machine, three questions with their answers, and not more to read."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS_OF_README
    fresh, tests, *asked = [fence for fence in fences_of("README.md", text, ANY) if fence.language == "bash"]
    assert fresh.commands[0].startswith("pip install uv && uv run rackline plan ")
    assert tests.commands == ("uv run --group dev pytest",)
    assert len(asked) == 3
    assert len(re.findall(r"^```bash\nrackline .*\n```\n\n```text\n", text, re.M)) == 3, "each with its answer"
    assert "<picture>" in text.partition("```")[0]


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


@pytest.mark.parametrize("page", sorted({fence.page for fence in SHOWN}))
def test_commands_are_accepted(page: str, tmp_path: Path) -> None:
    copy_examples(page, tmp_path)
    for fence in SHOWN:
        for command in fence.commands if fence.page == page else ():
            exits = EXITS.search(command)
            for words in commands_of_line(EXITS.sub("", command)):
                refusal = refused(parsed(words, tmp_path))
                where = f"{page}:{fence.line}: {command}"
                assert refusal is None or (exits and refusal.status == int(exits[1])), f"{where}\n{refusal.err}"


def test_a_wrong_option_value_or_name_is_not_accepted(tmp_path: Path) -> None:
    def status(line: str) -> int:
        refusal = refused(parsed(next(commands_of_line(line)), tmp_path))
        return 0 if refusal is None else refusal.status

    right = "rackline explain llama-3.1-8b --on dgx-h100 --batch 32 --context 8k --layout tp=1"
    assert status(f"{right} | head -3 > file.txt") == 0
    assert status(f"{right} --no-such-option 3") == 2
    assert status(right.replace("8k", "8 furlongs")) == 2
    with pytest.raises(RacklineError, match=r"lama-3.1-8b"):
        status(right.replace("llama", "lama"))


def copy_examples(page: str, folder: Path) -> None:
    """Copy the examples that lie beside a page."""
    for kind in ("*.csv", "*.jsonl", "classes.toml"):
        for file in (ROOT / page).parent.glob(kind):
            shutil.copy(file, folder)


def nightly_unless_first(page: str) -> Any:
    return pytest.param(page, marks=() if page in ANSWERED_HERE else pytest.mark.nightly)


@pytest.mark.parametrize("page", [nightly_unless_first(page) for page in sorted({fence.page for fence in RUN})])
def test_commands_exit_as_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKLINE_CATALOGUE", str(tmp_path / "catalogue"))
    copy_examples(page, tmp_path)
    for fence in RUN:
        if fence.page == page:
            run_fence(fence, tmp_path)
