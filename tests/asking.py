"""Commands that tests ask in a folder with all files that they read, and the answers that stand behind the screens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rackline.api import answer as answers
from rackline.api.answer import Answer
from rackline.cli import command, screen

TESTS = Path(__file__).resolve().parent
ASKED = TESTS / "golden" / "asked"
DOCS = TESTS.parent / "docs"
OF_DOCS = ("how-to/classes.toml", "how-to/results.csv", "how-to/servings.jsonl", "measured/observed-llama-cpp.jsonl")
WIDTH = "100"  # columns of the screen


@dataclass(slots=True)
class Asking:
    """Where commands run, the answers that they have shown, and the bars of their progress.

    Args:
        folder: with the files.
        answers: in their order.
        bars: of each its title and columns, how often it was told of, and what was told last;
            of descriptions, which come in any order from several processes, the first of the alphabet.
    """

    folder: Path
    answers: list[Answer[Any, Any]] = field(default_factory=list[Answer[Any, Any]])
    bars: list[list[Any]] = field(default_factory=list[list[Any]])

    @contextmanager
    def bar(self, title: str, *columns: str) -> Iterator[Callable[..., None]]:
        """A bar that nobody sees."""
        seen: list[Any] = [title, *columns, 0, {}]
        self.bars.append(seen)

        def update(**told: Any) -> None:
            told.pop("rate", None)  # which is the machine's
            if "description" in told:
                told["description"] = min(told["description"], seen[-1].get("description", told["description"]))
            seen[-2:] = seen[-2] + 1, told

        yield update


@contextmanager
def asking() -> Iterator[Asking]:
    """A folder of its own; time stands still, since screens say how long an answer took."""
    usual = command.show
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        found = Asking(Path(temporary).resolve() / "asked")

        def show(answer: Answer[Any, Any], *, json: bool) -> None:
            found.answers.append(answer)
            usual(answer, json=json)

        shutil.copytree(ASKED, found.folder)
        for file in [*(DOCS / name for name in OF_DOCS), *(TESTS / "fixtures" / "agents").glob("*.json*")]:
            shutil.copy(file, found.folder)
        patch.setattr(command, "show", show)
        patch.setattr(answers, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        patch.setattr(screen, "_bar", found.bar)
        patch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: 0.0))
        patch.setenv("COLUMNS", WIDTH)
        patch.setenv("RACKLINE_CATALOGUE", "catalogue")
        patch.delenv("NO_COLOR", raising=False)
        yield found
