"""The functions of the commands, each made when it is called for: `rackline.cli.commands:infer_prices`."""

from __future__ import annotations

from collections.abc import Callable

from rackline.api.verbs import MODULES, function_name


def __getattr__(name: str) -> Callable[..., None]:
    """The command of a question by its Python name."""
    from rackline.cli.command import command

    for known in MODULES:
        if function_name(known) == name:
            return command(known)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
