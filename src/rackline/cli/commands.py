"""The functions of the commands, each found or created on demand: `rackline.cli.commands:infer_prices`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from rackline.api.verbs import MODULES, function_name

DOORS = ("web",)
"""Commands that are no questions, each in a module of its name."""

ALL_OPTIONS = "_with_all_options"
"""Behind the name of a command: the same command, whose help shows every option."""


def __getattr__(name: str) -> Callable[..., None]:
    """The command of a question by its Python name, or one that is no question."""
    wanted = name.removesuffix(ALL_OPTIONS)
    if wanted in DOORS:
        return getattr(import_module(f"rackline.cli.{wanted}"), wanted)
    from rackline.cli.command import command

    for known in MODULES:
        if function_name(known) == wanted:
            return command(known, all_options=wanted != name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
