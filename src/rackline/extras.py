"""Packages that only some commands need: which extra of rackline brings them, and what is said where one is missing."""

from __future__ import annotations

import importlib
from typing import Any

from rackline.errors import InputError

_EXTRA_OF = {
    "fastapi": "web",
    "fsspec": "sweep",
    "jax": "lab",
    "jinja2": "web",
    "optax": "lab",
    "polars": "sweep",
    "ray": "ray",
    "starlette": "web",
    "uvicorn": "web",
    "vl_convert": "plot",
}
"""Module → the extra that installs it."""


def load_optional(module: str, *, what: str, instead: str = "", nearest: str | None = None) -> Any:
    """A module of an extra, loaded where it is needed.

    Args:
        module: its name, such as polars.
        what: who needs it, in the reader's words ("rackline sweep", "--plot").
        instead: what works without it; may be empty.
        nearest: the nearest value that works without it, if there is one.

    Returns:
        The module.

    Raises:
        InputError: it is not installed; the line names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(error, what=what, instead=instead, nearest=nearest) from None


def missing_extra(
    error: ModuleNotFoundError, *, what: str, instead: str = "", nearest: str | None = None
) -> InputError | ModuleNotFoundError:
    """What to say of a module that is not there: the extra that brings it, or the error itself where none does.

    Args:
        error: of the import.
        what, instead, nearest: as for `load_optional`.

    Returns:
        The error to raise.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    if extra is None:
        return error
    allowed = f"the extra {extra} (pip install 'rackline[{extra}]'; in a clone: uv run --extra {extra} rackline ...)"
    return InputError(
        what=what,
        given=f"no {module} in this environment",
        allowed=f"{instead}; {allowed}" if instead else allowed,
        nearest=nearest,
    )
