"""The functions of the commands, each found or created on demand: `rackline.cli.commands:infer_prices`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rackline.api.verbs import Entry, entries, order
from rackline.cli import web as door
from rackline.late import late

with late:
    from rackline.cli import command

ALL_OPTIONS = "_with_all_options"
"""Behind the name of a command: the same command, whose help shows every option."""


@cache
def commands() -> dict[str, Entry]:
    """What the help says of each command, in its order: the questions, and `web`, which is none."""
    return dict(sorted({**entries(), "web": door.ENTRY}.items(), key=lambda each: order(each[1])))


def __getattr__(name: str) -> Callable[..., None]:
    """The command of a question by its Python name, or `web`."""
    wanted = name.removesuffix(ALL_OPTIONS)
    for known, one in commands().items():
        if one.function == wanted:
            if one is door.ENTRY:
                return door.web

            return command.command(known, all_options=wanted != name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
