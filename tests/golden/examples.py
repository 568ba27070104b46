"""Answers the questions of `questions.toml`: status, screen, data, files. Run in a process with frozen numbers.

Reads names from standard input, one a line, and writes the answer to each as one line of JSON.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

from asking import asking
from helpers import run_command

QUESTIONS: dict[str, str] = tomllib.loads(Path(__file__).with_name("questions.toml").read_text(encoding="utf-8"))
MOST_ROWS, SHOWN_ROWS = 8, 3  # of a list
VOLATILE = ("schema_version", "elapsed_s", "rackline_version", "question", "compiled_loop")


def lines_of(text: str, folder: Path) -> list[str]:
    """Return the lines of a screen without the folder and without spaces at their ends."""
    return [line.rstrip() for line in text.replace(f"{folder}/", "").splitlines()]


def example(name: str) -> dict[str, Any]:
    """Return what a command answers: status, screen, messages, data, and the text of each file that it writes.

    Commands before "&&" prepare the last one.
    """
    with asking() as here:
        *preparing, last = QUESTIONS[name].split(" && ")
        for command in preparing:
            assert run_command(shlex.split(command), here.folder).status == 0, command
        here.answers.clear()
        files_before = set(here.folder.iterdir())
        ran = run_command(shlex.split(last), here.folder)
        answer: dict[str, Any] = {
            "command": f"rackline {QUESTIONS[name]}",
            "status": ran.status,
            "screen": lines_of(ran.out, here.folder),
            "messages": lines_of(ran.err, here.folder),
        }
        if here.answers:
            answer["data"] = shortened(json.loads(json.dumps(here.answers[-1].to_dict(), default=str)))
        new_files = sorted(path for path in set(here.folder.iterdir()) - files_before if path.is_file())
        answer["files"] = {path.name: path.read_text(encoding="utf-8").splitlines() for path in new_files}
    return {key: value for key, value in answer.items() if value not in ([], {})}


def shortened(value: Any) -> Any:
    """Return plain data with five digits a number, and of a long list its first rows and the sum of all its numbers."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if not isinstance(value, list) or len(value) <= MOST_ROWS:
        return [shortened(item) for item in value] if isinstance(value, list) else value
    rows = [shortened(item) for item in value[:SHOWN_ROWS]]
    return {"rows": len(value), "first": rows, "sum": float(f"{sum_of_numbers(value):.5g}")}


def sum_of_numbers(value: Any) -> float:
    """Return the sum of all finite numbers in plain data."""
    if isinstance(value, dict):
        return math.fsum(sum_of_numbers(item) for key, item in value.items() if key not in VOLATILE)
    if isinstance(value, list):
        return math.fsum(map(sum_of_numbers, value))
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        print(json.dumps(example(line.strip())), flush=True)


if __name__ == "__main__":
    main()
