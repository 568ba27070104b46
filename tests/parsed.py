"""Commands that are read and checked but not answered: option names and values, names of models and clusters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import Ran, run_command
from rackline.api.answer import Watch
from rackline.api.groups import OnCluster
from rackline.api.resolve import named
from rackline.cli import command

_FILE = re.compile(r"[/\\]|\.(?:toml|json)$")  # what names a file or a repository of the Hub
_BETWEEN = {"&&", "||", "|", ";"}
_REDIRECTS = {"<", ">", ">>", "<<<"}


class Asked(BaseException):
    """Ends a command in place of its answer; carries the question."""

    def __init__(self, question: Any) -> None:
        super().__init__()
        self.question = question


def parsed(words: Sequence[str], folder: Path) -> Any:
    """Run a command of rackline up to its question.

    Args:
        words: behind `rackline`.
        folder: that it runs in.

    Returns:
        The question, or what ran where the command asks none, such as `--help` or a refusal.
    """

    def asked(question: Any, *_: Any) -> None:
        raise Asked(question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "answer_of", asked)
        try:
            return run_command(words, folder)
        except Asked as stopped:
            question = stopped.question
    is_named = isinstance(question, OnCluster) and question.model is not None  # `simulate --plan` names none
    if is_named and not any(map(_FILE.search, _names(question))):
        named(question, Watch())
    return question


def _names(question: OnCluster) -> Iterator[str]:
    yield from (value for value in (question.model, question.on) if isinstance(value, str))


def commands_of_line(line: str) -> Iterator[list[str]]:
    """Yield the rackline commands of a line of a shell, as words behind `rackline`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "=,@:%+^[]{}*~#!"
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if word in _BETWEEN:
            if words[:1] == ["rackline"]:
                yield words[1:]
            words = []
        elif word in _REDIRECTS:
            skip = True
        elif not skip:
            words.append(word)
        else:
            skip = False


def refused(outcome: Any) -> Ran | None:
    """Return what ran, if a command was refused before it asked its question."""
    return outcome if isinstance(outcome, Ran) and outcome.status else None
