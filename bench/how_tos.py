"""Follow the how-tos literally in a clean clone with a new environment: `uv run python bench/how_tos.py [--write]`.

Clones the last commit, installs as the start page says, and runs what each page of docs/how-to shows: its `bash` fences
as they stand, then its Python, in an empty folder of its own. The wall time and the processor time of each stand in the
table of docs/how-to/README.md (`--write`). Commands of `console` fences need a server of one's own and are left out.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from release import ROOT, command, written  # a sibling in this folder

PAGES = ROOT / "docs" / "how-to"
TABLE = PAGES / "README.md"
LIMIT_S = 1800
INSTALL = "install"
FENCE = re.compile(r"^```(bash|python|pycon)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What became of one page, or of the installation."""

    name: str
    scripts: int
    wall_s: float
    cpu_s: float
    fault: str = ""


def names() -> list[str]:
    """The how-tos by the names of their files."""
    return sorted(path.stem for path in PAGES.glob("*.md") if path != TABLE)


def fences(text: str) -> tuple[list[str], str]:
    """Scripts for bash, and the Python of a page as one session."""
    scripts: list[str] = []
    session: list[str] = []
    for language, body in FENCE.findall(text):
        if language == "bash":
            scripts.append(body)
        elif language == "python":
            session.append(body)
        else:
            session.extend(line[4:] + "\n" for line in body.splitlines() if line.startswith((">>> ", "... ")))
    return scripts, "".join(session)


def timed(name: str, scripts: Sequence[str], folder: Path, binaries: Path) -> Followed:
    """Run scripts of bash one after the other in a folder, those of an environment found first."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    fault = ""
    try:
        for script in scripts:
            text = f'set -euo pipefail\nexport PATH="{binaries}:$PATH"\n{script}'
            command(["bash", "-c", text], cwd=folder, limit_s=LIMIT_S)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        fault = str(error)[-600:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Followed(name=name, scripts=len(scripts), wall_s=time.monotonic() - start, cpu_s=cpu_s, fault=fault)


def follow(page: Path, binaries: Path) -> Followed:
    """All that a page shows, in an empty folder; files that lie beside the page come along."""
    scripts, session = fences(page.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for file in page.parent.iterdir():
            if file.suffix in (".toml", ".csv", ".jsonl"):
                shutil.copy(file, folder)
        if session:
            (folder / "page.py").write_text(session, encoding="utf-8")
            scripts = [*scripts, "python page.py"]
        return timed(page.stem, scripts, folder, binaries)


def title(name: str) -> str:
    """The heading of a page."""
    return (PAGES / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def table(found: Sequence[Followed]) -> str:
    """What was followed as a Markdown table."""
    lines = ["| page | minutes:seconds | of the processor |", "|---|---:|---:|"]
    for one in found:
        first = one.name == INSTALL
        what = "clone and install ([start](../start.md))" if first else f"[{title(one.name)}]({one.name}.md)"
        minutes, seconds = divmod(round(one.wall_s), 60)
        took = f"{minutes}:{seconds:02} | {one.cpu_s:.0f} s" if one.scripts else "needs a server | -"
        lines.append(f"| {what} | {took} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Clone, install, follow, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="how-tos such as add-a-chip; all by default")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clean", help="where the clone is made")
    parser.add_argument("--write", action="store_true", help=f"put the table into {TABLE.relative_to(ROOT)}")
    given = parser.parse_args(arguments)
    clone: Path = given.folder.resolve()
    shutil.rmtree(clone, ignore_errors=True)
    clone.parent.mkdir(parents=True, exist_ok=True)
    install = f'git clone --quiet --no-local "{ROOT}" "{clone}"\ncd "{clone}"\nuv sync --quiet --all-extras'
    found = [timed(INSTALL, [install], clone.parent, Path("/usr/local/bin"))]
    for name in given.names or names():
        if found[0].fault:
            break
        found.append(follow(clone / "docs" / "how-to" / f"{name}.md", clone / ".venv" / "bin"))
        print(f"{name}: {found[-1].wall_s:.0f} s, {found[-1].cpu_s:.0f} s of CPU {found[-1].fault}", flush=True)
    shutil.rmtree(clone, ignore_errors=True)
    print(table(found))
    faults = [one for one in found if one.fault]
    if given.write and not faults and not given.names:
        page = TABLE.read_text(encoding="utf-8")
        TABLE.write_text(written(page, "followed", table(found)), encoding="utf-8")
    for one in faults:
        print(f"{one.name}: {one.fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
