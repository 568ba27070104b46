"""An attention kind: its interface and the usual answers, so that the pass table needs no branch per kind.

Each kind is a file in `rackline.arch.kinds`. docs/how-to/attention-kind.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from rackline.arch.products import FloatLike, IntLike, Projection

STATE_BYTES = 4.0
"""Bytes of an element of a recurrent state, which is kept in fp32."""

LATENT_KERNELS = ("mla", "sparse", "compressed", "compressed_sparse")
"""Kernels of many heads over one shared vector a token."""


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


class Core:
    """One kernel over a cache or a state: a row when decoding and a row when prefilling.

    What has no value here each kind says itself, as a field, a property or a method.

    Args:
        kind: short label: rows and features of one kind share it ("full", "window_128", "mla").
        kernel: which calibration its kernels have: "attention", "mla" or one of its own (see `PARENT_CLASS`).
        num_q_heads, num_kv_heads: heads of queries, and of keys and values [count].
        heads_are_copied: whether every chip of a tp group keeps all query heads instead of its share.
        window: tokens that a query sees; None for the whole context [tokens].
        entry_elements: elements of a cache entry that every chip of a tp group keeps whole [elements].
        kv_entries_per_token: cache entries that one new token adds: 1, less where tokens are compressed, 0 where a
            cache is shared.
        cache_bytes_per_element: bytes of a cached element where the kind fixes them [bytes]; None: as the deployment
            says.
        state_elements_per_head: recurrent state of one sequence and head [elements]; 0 for softmax attention.
        decode_flop_per_pair: FLOP of one query head against one cached token when decoding [FLOP].
        prefill_flop_per_pair: FLOP of one query head against one key when prefilling [FLOP].
        bytes_per_pair: bytes that pass memory for each query-key pair, all heads together: scores that a later kernel
            reads.
        state_flop_per_token: FLOP of one head on the state for one decoded token [FLOP].
        chunk_flop_per_token: FLOP of one head for one prompt token beside the pairs [FLOP].
        decode_io_elements: query read and output written per query head and token when decoding [elements].
        prefill_io_elements: elements moved per token when prefilling: (per query head, per KV head).
    """

    __slots__ = ()

    kind: str
    kernel: str = always("attention")
    num_q_heads: int
    num_kv_heads: int
    heads_are_copied: bool = always(False)  # heads are spread, one is never cut
    window: Any = None
    entry_elements: int = always(0)
    kv_entries_per_token: float = always(1.0)
    cache_bytes_per_element: float | None = always(None)
    state_elements_per_head: int = always(0)
    decode_flop_per_pair: float
    prefill_flop_per_pair: float = same_as("decode_flop_per_pair")
    bytes_per_pair: float = always(0.0)  # scores stay on the chip
    state_flop_per_token: float = always(0.0)
    chunk_flop_per_token: float = always(0.0)
    decode_io_elements: float
    prefill_io_elements: tuple[float, float]

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """Elements of one cache entry on each of tp chips, per layer [elements]."""
        return self.entry_elements * np.ones_like(np.asarray(tp, dtype=float))

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """Cache entries that a sequence of this context holds: what each token added [tokens]."""
        return context_len * self.kv_entries_per_token

    def state_elements(self, tp: IntLike) -> FloatLike:
        """Recurrent state of one sequence on each of tp chips, per layer [elements]."""
        return np.ceil(self.num_q_heads / np.asarray(tp, dtype=float)) * self.state_elements_per_head

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """Cache entries that one decoded token reads at this context: all of it, or the window [tokens]."""
        return context_len if self.window is None else np.minimum(context_len, self.window)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Causal query-key pairs of a chunk of new tokens behind a prefix [pairs per sequence]."""
        return windowed_pairs(chunk_tokens, prefix_tokens, self.window)


class Attention(Core):
    """What the rest of the library asks of an attention kind: its own core, its projections, further cores.

    The usual answers are those of a cache entry per token, heads cut by tp, and nothing else beside the core.

    Args:
        may_be_zero: parameters without a default that may be 0 in a file.
        expands_prefix: whether a chunk expands the re-read tokens of its prefix as well.
        extra_kernels: launches of small kernels per layer beyond those of a plain one [count].
        convolution: channels and width of the short convolution before a recurrent state [elements, tokens]; None
            without.
    """

    __slots__ = ()

    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    expands_prefix: bool = always(False)
    extra_kernels: float = always(0.0)
    convolution: Any = always(None)

    def problem(self) -> str | None:
        """What is inconsistent in the parameters, as a sentence; None if nothing is."""
        return None

    def cores(self) -> tuple[Core, ...]:
        """Kernels of the layer: this one, then what it needs beside it (an indexer); () for a layer without any."""
        return (self,)

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Matrix products on every token of a pass."""
        raise NotImplementedError

    def expansion(self) -> Projection | None:
        """Matrix product on every decoded token and every prefilled token (MLA's kv_b).

        None where keys and values are cached as they are used.
        """
        return None

    def extra_params(self) -> int:
        """Norms, sinks and other small parameters of one layer [elements]."""
        return 0


class Stateful(Attention):
    """Usual answers of a kind whose only memory is a recurrent state: no cache, no pairs of tokens."""

    __slots__ = ()

    kv_entries_per_token = always(0.0)
    decode_flop_per_pair = always(0.0)

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """0."""
        return 0.0 * context_len

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """0: no pairs of tokens."""
        return 0.0 * np.asarray(chunk_tokens, dtype=float)
