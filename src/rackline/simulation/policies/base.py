"""What a scheduling policy says; the engine of `rackline.simulation.replica` runs any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["arrival", "prompt_len", "priority"]
Passes = Literal["mixed", "prompts_first", "batch"]
Reserve = Literal["chunk", "prompt", "final"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published policy as data.

    Args:
        name: short name.
        order: who is next in the waiting queue: by arrival, the shortest prompt, or the most urgent tier.
        passes: "mixed" puts prompts and decoding sequences into one pass; with "prompts_first" prompts have passes of
            their own while decoding waits; "batch" admits only when nothing runs.
        chunked: whether a prompt may be cut to what is left of a pass; else it enters whole.
        reserve: cache that must be free for admission: of the next chunk, of the whole prompt, or of the whole request.
        interval_s: passes start at multiples of this time only, 0 for at once [s].
        source: who published it.
    """

    name: str
    order: Order = "arrival"
    passes: Passes = "mixed"
    chunked: bool = True
    reserve: Reserve = "chunk"
    interval_s: float = 0.0
    source: str = ""
