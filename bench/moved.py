"""Report what a change of the code or of the shipped numbers does to about 300 answers.

    uv run python bench/moved.py main .            # a git revision and this folder
    uv run python bench/moved.py ../before ../after --rows 20
    uv run python bench/moved.py main . --only plan --only price

BEFORE and AFTER are folders of a checkout or git revisions. The report begins with the decisions, orders and refusals
that changed. Then it says how many numbers moved, the median and the largest move. It never fails because of a move:
a person reads it and says in the commit what moved.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leaves import ABSENT, close, is_number, leaf_pairs  # a sibling in this folder

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS: dict[str, str] = tomllib.loads((ROOT / "bench" / "moved_questions.toml").read_text(encoding="utf-8"))
FILES = (ROOT / "tests" / "golden" / "asked", ROOT / "tests" / "fixtures" / "agents")
NOT_COMPARED = frozenset({"elapsed_s", "rackline_version", "schema_version", "question"})
TOLERANCE = 1e-9  # a smaller relative move is rounding
NUMBER = re.compile(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?")
SHORT = 60  # characters; a longer text is a sentence, in which numbers are left out

Answer = dict[str, Any]


def main() -> int:
    """Ask both trees and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="a folder or a git revision")
    parser.add_argument("after", metavar="AFTER", nargs="?", default=".", help="a folder or a git revision")
    parser.add_argument("--only", action="append", metavar="VERB", help="only questions of this command")
    parser.add_argument("--rows", type=int, default=10, help="how many of the largest moves to list")
    options = parser.parse_args()
    names = [name for name, command in QUESTIONS.items() if not options.only or command.split()[0] in options.only]
    with tree(options.before) as before, tree(options.after) as after, ThreadPoolExecutor() as threads:
        answers = [threads.submit(ask_tree, folder, names) for folder in (before, after)]
        print("\n".join(report(*(answer.result() for answer in answers), rows=options.rows)))
    return 0


@contextlib.contextmanager
def tree(name: str) -> Iterator[Path]:
    """Yield the folder of a checkout; a git revision is checked out into a temporary one."""
    if (Path(name) / "src" / "rackline").is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", checkout, name], check=True)
        try:
            yield checkout
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", checkout], check=True)


def ask_tree(folder: Path, names: list[str]) -> dict[str, Answer]:
    """Return the answers of a tree by the name of the question, asked in a process of its own."""
    environment = os.environ | {
        "PYTHONPATH": str(folder / "src"), "RACKLINE_CATALOGUE": os.devnull + "/catalogue", "NO_COLOR": "1"
    }  # fmt: skip
    answers: dict[str, Answer] = {}
    with subprocess.Popen(
        [sys.executable, __file__, "ask", *names], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, answer = json.loads(line)
            answers[name] = answer
            if sys.stderr.isatty():
                print(f"\r{folder.name}: {len(answers)} of {len(names)}", end="", file=sys.stderr)
    if set(answers) != set(names):
        sys.exit(f"{folder}: the process ended at question {len(answers) + 1} of {len(names)}")
    return answers


def ask(names: list[str]) -> None:
    """Print the answer to each question as a line of JSON, computed by the rackline that is on the path."""
    from rackline.cli.main import run

    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "asked"  # answers name it
            for source in FILES:
                shutil.copytree(source, folder, dirs_exist_ok=True)
            os.chdir(folder)
            *preparing, last = (shlex.split(command) for command in QUESTIONS[name].split(" && "))
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                for command in preparing:
                    run(command)
                out.seek(0)
                out.truncate()
                status = run([*last, "--json"])
            os.chdir(ROOT)
        try:
            data = json.loads(out.getvalue())
        except ValueError:
            data = None
        print(json.dumps([name, {"status": status, "message": err.getvalue().strip(), "answer": data}]), flush=True)


@dataclass(slots=True)
class Changes:
    """What differs between two answers to one question.

    Args:
        decisions: places whose text, order or presence differs, as "place: before → after".
        moves: relative moves of numbers with their places.
        numbers: how many numbers were compared [count].
    """

    decisions: list[str] = field(default_factory=list[str])
    moves: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    numbers: int = 0


def compare(before: Answer, after: Answer) -> Changes:
    """Return what differs between two answers."""
    changes = Changes()
    for place, old, new in leaf_pairs(before, after, skip=NOT_COMPARED):
        if old is ABSENT or new is ABSENT:
            changes.decisions.append(f"{place}: {'new' if old is ABSENT else 'gone'}")
        elif is_number(old) and is_number(new):
            changes.numbers += 1
            if not close(old, new, TOLERANCE):
                move = abs(new - old) / max(abs(old), abs(new))
                changes.moves.append((move, f"{place} {old:.5g} → {new:.5g}"))
        elif isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > SHORT:
            if NUMBER.sub("#", old) != NUMBER.sub("#", new):
                changes.decisions.append(f"{place}: {old!r} → {new!r}")
        elif old != new:
            changes.decisions.append(f"{place}: {old!r} → {new!r}")
    return changes


def report(before: dict[str, Answer], after: dict[str, Answer], *, rows: int) -> Iterator[str]:
    """Yield the lines of the report."""
    changes = {name: compare(before[name], after[name]) for name in before}
    decided = {name: change for name, change in changes.items() if change.decisions}
    moved = {name: change for name, change in changes.items() if change.moves}
    yield (
        f"{len(before)} questions: {len(decided)} changed a decision, an order, a text or a refusal; "
        f"{len(moved.keys() - decided.keys())} changed numbers alone; "
        f"{len(before) - len(moved.keys() | decided.keys())} are the same."
    )
    for name, change in decided.items():
        yield f"\n{name}: rackline {QUESTIONS[name]}"
        yield from (f"  {line[:300]}" for line in change.decisions[:rows])
        if len(change.decisions) > rows:
            yield f"  and {len(change.decisions) - rows} more places"
    moves = [(size, f"{name}: {place}") for name, change in changes.items() for size, place in change.moves]
    total = sum(change.numbers for change in changes.values())
    yield f"\n{len(moves):,} of {total:,} numbers moved, in {len(moved)} questions."
    if moves:
        sizes = [size for size, _ in moves]
        yield f"Median move {statistics.median(sizes):.3%}, largest {max(sizes):.3%}:"
        yield from (f"  {size:9.3%}  {place}" for size, place in sorted(moves, reverse=True)[:rows])


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        ask(sys.argv[2:])
    else:
        sys.exit(main())
