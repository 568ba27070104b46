"""Run the commands of docs/tutorials and README: `uv run python bench/tutorials.py [--check] [NAME...]`.

A `bash` fence holds one command, the `text` fence behind it lines of what it prints at 80 columns; `...` stands for
lines that are left out. Without `--check` the numbers of the shown lines are filled in again; with it they are
compared. A line of which the words have changed is an error in both: the prose has to be read again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stored_outputs import differences, mask

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
LEFT_OUT = "..."
_INSTALLS = ("pip", "uv")  # how a page begins, not what it shows
_PAIR = re.compile(r"^```bash\n(?P<command>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.M | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command with the lines of its output that a page shows; `start` and `end` are their place in the page."""

    words: list[str]
    lines: list[str]
    start: int
    end: int


def commands(text: str) -> Iterator[Shown]:
    """Commands of a page with what is shown of each."""
    for match in _PAIR.finditer(text):
        words = shlex.split(match["command"].replace("\\\n", " "))
        if words[0] in _INSTALLS and not match["shown"]:
            continue
        shown = match["shown"] or ""
        start = match.start("shown") if match["shown"] else match.end()
        yield Shown(words=words, lines=shown.splitlines(), start=start, end=start + len(shown))


def output(words: list[str], folder: Path) -> str:
    """What a rackline command prints at 80 columns; it has to succeed."""
    from rackline.cli.main import run

    if words[:1] != ["rackline"]:
        raise SystemExit(f"a tutorial runs rackline, not: {shlex.join(words)}")
    before, place, held = dict(os.environ), Path.cwd(), io.StringIO()
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(held), contextlib.redirect_stderr(io.StringIO()) as said:
            code = run(words[1:])
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ |= before
    if code:
        raise SystemExit(f"{shlex.join(words)}: exit {code}\n{said.getvalue()}")
    return held.getvalue()


def fresh(shown: Shown, printed: str) -> list[str]:
    """The shown lines with the numbers of a fresh output.

    Raises:
        ValueError: a line that the output does not have, or has in another order.
    """
    left = [line.rstrip() for line in printed.splitlines()]
    found: list[str] = []
    for line in shown.lines:
        if line == LEFT_OUT or not line.strip():
            found.append(line)
            continue
        at = next((place for place, other in enumerate(left) if mask(other) == mask(line)), None)
        if at is None:
            raise ValueError(f"{shlex.join(shown.words)} no longer prints: {line}")
        found.append(left[at])
        left = left[at + 1 :]
    return found


def work(path: Path, *, store: bool) -> list[str]:
    """Faults of a page; its numbers are filled in if `store`."""
    text, faults, pieces, end = path.read_text(encoding="utf-8"), list[str](), list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        for shown in commands(text):
            printed = output(shown.words, Path(folder))
            try:
                lines = fresh(shown, printed)
            except ValueError as error:
                faults.append(f"{path.name}: {error}")
                continue
            for before, after in zip(shown.lines, lines, strict=True):
                faults += [f"{path.name}: {one}" for one in ([] if store else differences(before, after))]
            pieces += [text[end : shown.start], *(f"{line}\n" for line in lines)]
            end = shown.end
    if store and not faults:
        path.write_text("".join(pieces) + text[end:], encoding="utf-8")
    return faults


def main() -> int:
    """Run all tutorials, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="tutorials without .md, or README; all by default")
    parser.add_argument("--check", action="store_true", help="compare with the shown lines and store nothing")
    given = parser.parse_args()
    faults: list[str] = []
    pages = {path.stem: path for path in (*sorted(TUTORIALS.glob("*.md")), ROOT / "README.md")}
    for path in [pages[name] for name in given.names or pages]:
        faults += work(path, store=not given.check)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
