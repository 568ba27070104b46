"""Whole answers, one or two for each command, are the stored examples in `answers/`.

They are computed with frozen numbers (`frozen.py`), so a better calibration, stack or band changes none of them. What
a change of the shipped numbers does is shown by `bench/moved.py`. After a change that is meant to alter words or
formulas, write the examples anew and read the diff:

    uv run python tests/golden/test_stored_answers.py write             # all of them
    uv run python tests/golden/test_stored_answers.py write plan train
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path += [str(HERE), str(TESTS.parent / "bench")]
from frozen import package_with_frozen_numbers  # noqa: E402
from leaves import differences  # noqa: E402

ANSWERS = HERE / "answers"
QUESTIONS: dict[str, str] = tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8"))
REL_TOLERANCE = 1e-4  # stored numbers have five digits
PAGE_WIDTH = 160  # columns of the stored files


@contextmanager
def answering() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Start a process with frozen numbers; yields the function that asks it for the answer to a question."""
    with tempfile.TemporaryDirectory() as folder:
        package_with_frozen_numbers(Path(folder))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(TESTS)))}
        command = [sys.executable, str(HERE / "examples.py")]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            to_process, from_process = process.stdin, process.stdout

            def answer(name: str) -> dict[str, Any]:
                to_process.write(f"{name}\n")
                to_process.flush()
                return json.loads(from_process.readline() or pytest.fail(f"the process ended at {name}"))

            yield answer
            to_process.close()


@pytest.fixture(scope="module")
def answer() -> Iterator[Callable[[str], dict[str, Any]]]:
    with answering() as asked:
        yield asked


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_is_the_stored_example(name: str, answer: Callable[[str], dict[str, Any]]) -> None:
    stored = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    changed = list(differences(stored, answer(name), REL_TOLERANCE))
    assert not changed, "\n".join(
        [*changed[:20], f"{len(changed)} places differ; the head of this file says what to do"]
    )


def test_each_stored_example_belongs_to_a_question() -> None:
    assert {file.stem for file in ANSWERS.glob("*.json")} == set(QUESTIONS)


def laid_out(value: Any, indent: int = 0) -> str:
    """Return JSON in which whatever fits stands on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + indent <= PAGE_WIDTH or not isinstance(value, dict | list):
        return short
    inside = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {laid_out(item, indent + 1)}" for key, item in value.items()]
    else:
        parts = [laid_out(item, indent + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(inside + part for part in parts) + f"\n{' ' * indent}{closing}"


def main(words: list[str]) -> int:
    """Write the examples anew."""
    names = words[1:] or list(QUESTIONS)
    if words[:1] != ["write"] or not set(names) <= set(QUESTIONS):
        print(__doc__)
        return 2
    for file in ANSWERS.glob("*.json"):
        if file.stem not in QUESTIONS:
            file.unlink()
    with answering() as asked:
        for name in names:
            file = ANSWERS / f"{name}.json"
            file.write_text(laid_out(asked(name)) + "\n", encoding="utf-8")
            print(f"{name}: {file.stat().st_size / 1e3:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
