"""The interface of an attention kind, so that the pass table needs no branch per kind.

Each kind is a file in `rackline.arch.kinds`. docs/how-to/attention-kind.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from rackline.arch.products import FloatLike, IntLike, Projection

STATE_BYTES = 4.0
"""Bytes of an element of a recurrent state, which is kept in fp32."""

LATENT_KERNELS = ("mla", "sparse", "compressed", "compressed_sparse")
"""Kernels of many heads over one shared vector a token."""


class Core(Protocol):
    """One kernel over a cache or a state: a row when decoding and a row when prefilling."""

    @property
    def kind(self) -> str:
        """Short label: rows and features of one kind share it ("full", "window_128", "mla")."""
        ...

    @property
    def kernel(self) -> str:
        """Which calibration its kernels have: "attention", "mla" or one of its own (see `PARENT_CLASS`)."""
        ...

    @property
    def num_q_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def heads_are_copied(self) -> bool:
        """Whether every chip of a tp group keeps all query heads instead of its share."""
        ...

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """Elements of one cache entry on each of tp chips, per layer [elements]."""
        ...

    @property
    def kv_entries_per_token(self) -> float:
        """Cache entries that one new token adds: 1, less where tokens are compressed, 0 where a cache is shared."""
        ...

    @property
    def cache_bytes_per_element(self) -> float | None:
        """Bytes of a cached element where the kind fixes them [bytes]; None: as the deployment says."""
        ...

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """Cache entries that a sequence of this context holds [tokens]."""
        ...

    def state_elements(self, tp: IntLike) -> FloatLike:
        """Recurrent state of one sequence on each of tp chips, per layer [elements]; 0 for softmax attention."""
        ...

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """Cache entries that one decoded token reads at this context [tokens]."""
        ...

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Causal query-key pairs of a chunk of new tokens behind a prefix [pairs per sequence]."""
        ...

    @property
    def decode_flop_per_pair(self) -> float:
        """FLOP of one query head against one cached token when decoding [FLOP]."""
        ...

    @property
    def prefill_flop_per_pair(self) -> float:
        """FLOP of one query head against one key when prefilling [FLOP]."""
        ...

    @property
    def bytes_per_pair(self) -> float:
        """Bytes that pass memory for each query-key pair, all heads together: scores that a later kernel reads."""
        ...

    @property
    def state_flop_per_token(self) -> float:
        """FLOP of one head on the state for one decoded token [FLOP]."""
        ...

    @property
    def chunk_flop_per_token(self) -> float:
        """FLOP of one head for one prompt token beside the pairs [FLOP]."""
        ...

    @property
    def decode_io_elements(self) -> float:
        """Query read and output written per query head and token when decoding [elements]."""
        ...

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Elements moved per token when prefilling: (per query head, per KV head)."""
        ...


class Attention(Core, Protocol):
    """What the rest of the library asks of an attention kind: its own core, its projections, further cores."""

    @property
    def window(self) -> int | None: ...

    def cores(self) -> tuple[Core, ...]:
        """Kernels of the layer: this one, then what it needs beside it (an indexer); () for a layer without any."""
        ...

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Matrix products on every token of a pass."""
        ...

    def expansion(self) -> Projection | None:
        """Matrix product on every decoded token and every prefilled token (MLA's kv_b)."""
        ...

    @property
    def expands_prefix(self) -> bool:
        """Whether a chunk expands the re-read tokens of its prefix as well."""
        ...

    def extra_params(self) -> int:
        """Norms, sinks and other small parameters of one layer [elements]."""
        ...

    @property
    def extra_kernels(self) -> float:
        """Launches of small kernels per layer beyond those of a plain one [count]."""
        ...

    @property
    def convolution(self) -> tuple[int, int] | None:
        """Channels and width of the short convolution before a recurrent state [elements, tokens]; None without."""
        ...


def windowed_pairs(chunk_tokens: FloatLike, prefix_tokens: FloatLike, window: FloatLike | None) -> FloatLike:
    """Causal query-key pairs of `chunk_tokens` new tokens behind `prefix_tokens` earlier ones.

    pairs = sum over i = 1..n of min(p + i, w)

    Args:
        chunk_tokens: n, new tokens [tokens], any shape.
        prefix_tokens: p, earlier tokens of the same sequence [tokens], same shape.
        window: w, how many tokens a query may see, itself included [tokens]; None means all.

    Returns:
        Pairs [count], broadcast shape.

    Assumes: the self pair counts; n² becomes n(n+1)/2.

    >>> float(windowed_pairs(4.0, 0.0, None)), float(windowed_pairs(4.0, 0.0, 2))
    (10.0, 7.0)
    """
    n, p = np.asarray(chunk_tokens, dtype=float), np.asarray(prefix_tokens, dtype=float)
    if window is None:
        return n * p + n * (n + 1) / 2
    growing = np.clip(window - p, 0.0, n)
    return growing * p + growing * (growing + 1) / 2 + (n - growing) * window


def always(value: Any) -> Any:
    """A property of a kind that has one value for all of its layers."""
    return property(lambda kind: value)


def formula(value: Callable[[Any], Any]) -> Any:
    """A property of a kind as a formula of its fields and of its other properties."""
    return property(value)


def same_as(name: str) -> Any:
    """A property of a kind that is another of its properties or fields under the name that the pass table uses."""
    return property(attrgetter(name))


class Kind:
    """Usual answers of an attention kind: a cache entry per token, heads cut by tp, nothing else beside the core."""

    __slots__ = ()

    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def problem(self) -> str | None:
        """What is inconsistent in the parameters, as a sentence; None if nothing is."""
        return None

    kernel = always("attention")

    def cores(self) -> tuple[Core, ...]:
        """The kind itself."""
        return (cast("Core", self),)

    heads_are_copied = always(False)  # heads are spread, one is never cut

    kv_entries_per_token = always(1.0)

    cache_bytes_per_element = always(None)  # as the deployment says

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """What each token added."""
        return context_len * self.kv_entries_per_token

    def expansion(self) -> Projection | None:
        """None: keys and values are cached as they are used."""
        return None

    expands_prefix = always(False)

    window: Any = None  # the whole context is read

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """All of the context, or the window."""
        return context_len if self.window is None else np.minimum(context_len, self.window)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """See `windowed_pairs`."""
        return windowed_pairs(chunk_tokens, prefix_tokens, self.window)

    prefill_flop_per_pair: Any = same_as("decode_flop_per_pair")

    def extra_params(self) -> int:
        """0."""
        return 0

    extra_kernels = always(0.0)

    convolution = always(None)

    def state_elements(self, tp: IntLike) -> FloatLike:
        """0: no recurrent state."""
        return np.zeros_like(np.asarray(tp, dtype=float))

    bytes_per_pair = always(0.0)  # scores stay on the chip

    state_flop_per_token = always(0.0)

    chunk_flop_per_token = always(0.0)


class Stateful(Kind):
    """Usual answers of a kind whose only memory is a recurrent state: no cache, no pairs of tokens."""

    __slots__ = ()

    kv_entries_per_token = always(0.0)

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """0: nothing is cached per token."""
        return np.zeros_like(np.asarray(tp, dtype=float))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """0."""
        return 0.0 * context_len

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """0: no pairs of tokens."""
        return 0.0 * np.asarray(chunk_tokens, dtype=float)

    decode_flop_per_pair = always(0.0)
