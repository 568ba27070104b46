"""A scheduling policy as data; the engine of `rackline.simulation.replica` runs any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, assert_never

Passes = Literal["mixed", "prompts_first", "batch"]
Reserve = Literal["chunk", "prompt", "final"]


class Waiting(Protocol):
    """What the order of a policy may depend on, by the index of a request."""

    @property
    def input_len(self) -> Sequence[int]: ...

    def is_urgent(self, request: int) -> int: ...


Order = Callable[[Waiting, int], float]
"""(requests, index of one) → its key: the lowest is next, equal ones in the order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """When the ranks that run their passes together admit prompts; prompts are never held where nothing decodes.

    Args:
        some_passes: passes that prompts are held at most while a rank has none [passes].
        all_passes: passes that they are held once every rank has one, for more to join them [passes].
        idle_releases: whether a rank with nothing to decode releases the prompts of all.
        counts_always: whether passes count towards `some_passes` in which no rank has a prompt.
        holds_chunks: whether prompts of which a part has run are held as well.
        every: prompts run in each pass whose number is a multiple of this; 0 for any pass [passes].
        decodes_after: passes without prompts after each that had some [passes].
    """

    some_passes: int = 0
    all_passes: int = 0
    idle_releases: bool = False
    counts_always: bool = False
    holds_chunks: bool = True
    every: int = 0
    decodes_after: int = 0

    def of(self, passes: int) -> Alignment:
        """The same with another number of passes; where there are two, in the same ratio to each other."""
        most = max(self.some_passes, self.every, self.decodes_after)
        return replace(
            self,
            some_passes=passes if self.some_passes else 0,
            all_passes=round(self.all_passes * passes / most),
            every=passes if self.every else 0,
            decodes_after=passes if self.decodes_after else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published scheduling policy as data.

    Args:
        name: short name.
        order: key of the waiting queue; None is the order of arrival.
        preempts_last_of_order: whether the running request that is last in that order is preempted; else the one that
            was admitted last.
        passes: "mixed" puts prompts and decoding sequences of a rank into one pass; "prompts_first" runs the prompts of
            a rank while its decoding waits (other ranks go on to decode beside it, unless they draft); "batch" admits
            requests only when none is running.
        chunked: whether a prompt may be split to fit the token budget of a pass.
        reserve: cache that must be free for admission: that of the next chunk, of the whole prompt, or of the whole
            request.
        interval_s: passes start only at multiples of this time; 0 starts them at once [s].
        alignment: how ranks wait for each other with their prompts; None admits them at once.
        source: publication.
    """

    name: str
    order: Order | None = None
    preempts_last_of_order: bool = False
    passes: Passes = "mixed"
    chunked: bool = True
    reserve: Reserve = "chunk"
    interval_s: float = 0.0
    alignment: Alignment | None = None
    source: str = ""


def reserved_tokens(reserve: Reserve, *, chunk: int, prompt: int, final: int) -> int:
    """Cache that must be free before a request is admitted [tokens].

    Args:
        chunk, prompt, final: tokens up to the end of its next chunk, of the whole prompt, of the whole request
            [tokens].
    """
    match reserve:
        case "chunk":
            return chunk
        case "prompt":
            return prompt
        case "final":
            return final
    assert_never(reserve)
