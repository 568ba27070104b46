"""Eviction policies of the prefix cache as data, one file each: a new file with an EVICTION is registered by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rackline.simulation.policies import found_in, names_in


class BlockUse(NamedTuple):
    """What the key of a block may depend on.

    Args:
        uses: requests that used it since it was written [requests].
        written: its place in the order of writing [count].
        recompute_s: time to recompute it, with the attention to all tokens before it [s].
        floor: key of the block that was evicted last; 0 at first.
    """

    uses: int
    written: int
    recompute_s: float
    floor: float


Key = Callable[[BlockUse], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A published eviction policy as data.

    Args:
        name: short name.
        key: what a block is worth when it falls idle: the lowest is evicted first, equal ones least recently used
            first, and no block before those that follow it in a prompt. None evicts least recently used first.
        source: publication.
    """

    name: str
    key: Key | None = None
    source: str = ""


def eviction_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    return names_in(__path__)


def eviction(name: str) -> Eviction:
    """Find an eviction policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    return found_in(__name__, __path__, "eviction", name)
