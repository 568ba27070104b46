"""Eviction policies of the prefix cache, one file each; a new file with an EVICTION is registered automatically."""

from __future__ import annotations

from rackline.simulation.evictions.base import BlockUse, Eviction
from rackline.simulation.registry import found_in, names_in

__all__ = ["BlockUse", "Eviction", "eviction", "eviction_names"]


def eviction_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    return names_in(__path__)


def eviction(name: str) -> Eviction:
    """Find an eviction policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    return found_in(__name__, __path__, "eviction", name)
