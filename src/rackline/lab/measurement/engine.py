"""What `measure` asks of an engine: single passes of a stated batch, and requests served in real time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rackline.lab.transformer import Shape
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.simulation import Requests

Dtype = Literal["fp32", "bf16"]
WorkKind = Literal["decode", "prefill", "mixed"]
WORK_KINDS: tuple[WorkKind, ...] = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one pass computes.

    Args:
        sequences: that decode one token each [sequences].
        context_len: tokens that each of them has in the cache [tokens].
        prompt_tokens: new tokens of one prompt [tokens].
    """

    sequences: int = 0
    context_len: int = 0
    prompt_tokens: int = 0

    @property
    def kind(self) -> WorkKind:
        """Which of the three it is."""
        if not self.prompt_tokens:
            return "decode"
        return "mixed" if self.sequences else "prefill"

    def batch(self) -> Batch:
        """The same for a pass table."""
        return batch_of([self])


def batch_of(works: list[Work]) -> Batch:
    """Several passes as one batch of shape (passes,)."""
    import numpy as np

    prompts = np.array([float(work.prompt_tokens) for work in works])
    return Batch(
        decode_sequences=np.array([float(work.sequences) for work in works]),
        context_len=np.array([float(work.context_len) for work in works]),
        prefill_sequences=np.minimum(prompts, 1.0),
        chunk_tokens=prompts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest passes of an engine.

    Args:
        sequences: that decode together [sequences].
        context_len: of one of them, with what it adds [tokens].
        prompt_tokens: of one pass [tokens].
    """

    sequences: int
    context_len: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How an engine serves.

    Args:
        admission: of prompts, as in a stack of the catalogue.
        max_num_seqs: sequences in progress [sequences].
        max_batched_tokens: tokens of a pass [tokens].
        prompt_tokens: of the requests of the proof [tokens].
        neighbour_passes: whether only sequences of neighbouring slots share a pass, as in a stack of the catalogue.
    """

    admission: Literal["chunked", "prefill_first"]
    max_num_seqs: int
    max_batched_tokens: int
    prompt_tokens: int
    neighbour_passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTimes:
    """What clients saw, a value a request [s].

    Args:
        ttft_s: arrival to first token.
        e2e_s: arrival to last token.
    """

    ttft_s: Array
    e2e_s: Array


class Engine(Protocol):
    """An engine with a random-weight model, ready to run passes."""

    @property
    def name(self) -> str: ...

    @property
    def versions(self) -> dict[str, str]:
        """Name → version of what runs."""
        ...

    @property
    def shape(self) -> Shape:
        """Of its model."""
        ...

    @property
    def dtype(self) -> Dtype:
        """Of weights and cache."""
        ...

    @property
    def context_block(self) -> int:
        """Cached tokens that attention reads at once [tokens]."""
        ...

    @property
    def in_a_row(self) -> int:
        """Timings of one pass that follow each other: more than one where its contexts take long to compute."""
        ...

    @property
    def limits(self) -> Limits: ...

    @property
    def scheduler(self) -> Scheduler: ...

    def prepare(self, works: Sequence[Work]) -> None:
        """Do what only first passes of these kinds do, such as compiling."""
        ...

    def seconds(self, work: Work) -> float:
        """Time of one pass [s]."""
        ...

    def serve(self, requests: Requests) -> ServedTimes:
        """Serve requests in real time; each arrives at its time."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...
