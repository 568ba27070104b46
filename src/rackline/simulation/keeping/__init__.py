"""What becomes of a session's KV cache between its calls, one policy a file: a new file with a KEEPING is registered by
itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rackline.simulation.policies import found_in, names_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """A policy as data.

    Args:
        name: short name.
        place: where the blocks of a call that has ended go: they stay in HBM until memory is needed, move to the first
            tier behind it at once, or are freed.
        source: publication or engine.
    """

    name: str
    place: Literal["hbm", "tier", "nowhere"]
    source: str = ""


def keeping_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    return names_in(__path__)


def keeping(name: str) -> Keeping:
    """Find a policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    return found_in(__name__, __path__, "keeping", name)
