"""Eviction policies of the prefix cache, one file each; a new file with an EVICTION is registered automatically."""

from __future__ import annotations

import importlib
import pkgutil

from rackline.errors import UnknownNameError, nearest_names
from rackline.simulation.evictions.base import BlockUse, Eviction

__all__ = ["BlockUse", "Eviction", "eviction", "eviction_names"]


def eviction_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    found = (module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    return tuple(sorted(name.replace("_", "-") for name in found))


def eviction(name: str) -> Eviction:
    """Find an eviction policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    known = eviction_names()
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in known:
        near = nearest_names(wanted, known, 1)
        raise UnknownNameError(what="eviction", given=name, allowed=", ".join(known), nearest=near[0] if near else None)
    return importlib.import_module(f"{__name__}.{wanted.replace('-', '_')}").EVICTION
