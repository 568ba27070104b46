"""Policies of a folder, one a file: their names, and one by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any

from rackline.errors import UnknownNameError, nearest_names


def names_in(paths: Iterable[str]) -> tuple[str, ...]:
    """Names of all policies of a package, with hyphens.

    Args:
        paths: of its modules; `base` holds what they share.
    """
    found = (module.name for module in pkgutil.iter_modules(paths) if module.name != "base")
    return tuple(sorted(name.replace("_", "-") for name in found))


def found_in(package: str, paths: Iterable[str], what: str, name: str) -> Any:
    """What the module of a policy holds under the name of its kind.

    Args:
        package: with a module for each policy.
        what: kind, such as "eviction"; the module has it in capitals.
        name: with hyphens or underscores.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    known = names_in(paths)
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in known:
        near = nearest_names(wanted, known, 1)
        raise UnknownNameError(what=what, given=name, allowed=", ".join(known), nearest=near[0] if near else None)
    return getattr(importlib.import_module(f"{package}.{wanted.replace('-', '_')}"), what.upper())
