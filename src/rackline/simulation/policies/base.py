"""A scheduling policy as data; the engine of `rackline.simulation.replica` runs any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

Passes = Literal["mixed", "prompts_first", "batch"]
Reserve = Literal["chunk", "prompt", "final"]


class Waiting(Protocol):
    """What the order of a policy may ask about requests, by their number."""

    @property
    def input_len(self) -> Sequence[int]: ...

    def is_urgent(self, request: int) -> int: ...


Order = Callable[[Waiting, int], float]
"""(requests, number of one) → its place: the lowest is next, equal ones by arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published policy as data.

    Args:
        name: short name.
        order: who is next in the waiting queue; None is by arrival.
        preempts_last_of_order: whether memory is taken from the running request that is last in that order; else from
            the one that was admitted last.
        passes: "mixed" puts prompts and decoding sequences into one pass; with "prompts_first" prompts have passes of
            their own while decoding waits; "batch" admits only when nothing runs.
        chunked: whether a prompt may be cut to what is left of a pass; else it enters whole.
        reserve: cache that must be free for admission: of the next chunk, of the whole prompt, or of the whole request.
        interval_s: passes start at multiples of this time only, 0 for at once [s].
        source: who published it.
    """

    name: str
    order: Order | None = None
    preempts_last_of_order: bool = False
    passes: Passes = "mixed"
    chunked: bool = True
    reserve: Reserve = "chunk"
    interval_s: float = 0.0
    source: str = ""


def reserved_tokens(reserve: Reserve, *, chunk: int, prompt: int, final: int) -> int:
    """Tokens whose cache must be free before a request is admitted [tokens].

    Args:
        chunk, prompt, final: of its next chunk and what is cached, of the whole prompt, of the whole request [tokens].
    """
    match reserve:
        case "chunk":
            return chunk
        case "prompt":
            return prompt
        case "final":
            return final
    assert_never(reserve)
