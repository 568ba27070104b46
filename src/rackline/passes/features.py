"""Features: the properties of a batch in which every entry of a pass table is linear.

All quantities are per attention-data-parallel rank (the busiest one) unless the name says group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

Array = NDArray[Any]  # float64 unless said otherwise
FloatLike = float | Array

ONE = "1"
TOKENS = "tokens"
LOGIT_ROWS = "logit_rows"
DECODE_SEQUENCES = "decode_sequences"
DECODE_TOKENS = "decode_tokens"
PREFILL_TOKENS = "prefill_tokens"
CHUNK_PREFIX_TOKENS = "chunk_prefix_tokens"
GROUP_TOKENS = "group_tokens"
EXPERT_TOKENS = "expert_tokens"
EXPERTS_TOUCHED = "experts_touched"
CHUNK_TOKENS = "chunk_tokens"
ADAPTERS_TOUCHED = "adapters_touched"
HAS_DECODE = "has_decode"
HAS_PREFILL = "has_prefill"


def kv_tokens(kind: str) -> str:
    """Name of the feature: KV tokens that the decoding sequences read, of one attention kind."""
    return f"kv_tokens:{kind}"


def kv_pairs(kind: str) -> str:
    """Name of the feature: pairs of a decoded token and a KV token that it reads, of one attention kind."""
    return f"kv_pairs:{kind}"


def attention_pairs(kind: str) -> str:
    """Name of the feature: query-key pairs of the prefill chunks, of one attention kind."""
    return f"attention_pairs:{kind}"


def max_context(kind: str) -> str:
    """Name of the feature: cached tokens that the longest sequence reads, of one attention kind."""
    return f"max_context:{kind}"


class ReadLaw(Protocol):
    """What features need from an attention kind (see `rackline.arch.Attention`)."""

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike: ...

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike: ...


class ExpertLaw(Protocol):
    """Tokens and experts of the busiest expert-parallel rank (see `rackline.passes.routing`)."""

    def expert_tokens(self, group_tokens: FloatLike) -> FloatLike: ...

    def experts_touched(self, group_tokens: FloatLike) -> FloatLike: ...


class AdapterLaw(Protocol):
    """Different low-rank adapters that the sequences of a pass use (see `rackline.arch.AppliedAdapter`)."""

    def adapters_touched(self, sequences: FloatLike) -> FloatLike: ...


@dataclass(frozen=True, slots=True)
class BlockwiseLaw:
    """What a kernel reads that goes through the cache in blocks, half a block more on average.

    Args:
        law: of the attention kind.
        block: tokens that are read at once [tokens].
    """

    law: ReadLaw
    block: int

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """KV tokens that the attention kind itself reads of a context half a block longer."""
        return self.law.kv_read_tokens(context_len + 0.5 * self.block)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Pairs of the attention kind itself."""
        return self.law.attention_pairs(chunk_tokens, prefix_tokens)


def is_traced(value: object) -> bool:
    """Whether a number is one that is written down (see `rackline.passes.javascript`)."""
    return isinstance(value, NDArrayOperatorsMixin)


def may_occur(amount: FloatLike) -> bool:
    """Whether an amount may be other than 0; an unknown one may."""
    return is_traced(amount) or bool(np.any(amount))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The work of one pass on one attention-dp rank; floats or arrays that broadcast together.

    Args:
        decode_sequences: sequences that decode [sequences].
        decode_tokens: tokens per decoding sequence in the pass: 1, and the drafts to verify [tokens].
        context_len: mean tokens already cached per decoding sequence [tokens].
        prefill_sequences: prompts with a chunk in this pass [sequences].
        chunk_tokens: new tokens per such prompt [tokens].
        prefix_tokens: tokens of the same prompt that are cached already [tokens].
        group_tokens: tokens of all attention-dp ranks together, which the experts see [tokens];
            None means that this rank is the only one.
    """

    decode_sequences: FloatLike = 0.0
    decode_tokens: FloatLike = 1.0
    context_len: FloatLike = 0.0
    prefill_sequences: FloatLike = 0.0
    chunk_tokens: FloatLike = 0.0
    prefix_tokens: FloatLike = 0.0
    group_tokens: FloatLike | None = None

    @property
    def prefill_tokens(self) -> FloatLike:
        """New prompt tokens of the pass [tokens]."""
        return self.prefill_sequences * self.chunk_tokens

    @property
    def tokens(self) -> FloatLike:
        """Tokens processed by the layers [tokens]."""
        return self.decode_sequences * self.decode_tokens + self.prefill_tokens

    def in_blocks(self, block: int) -> Batch:
        """The batch with contexts as read by a kernel that goes through the cache in blocks, the new token included.

        Args:
            block: tokens that are read at once [tokens].
        """
        if block == 1:
            return self
        return replace(self, context_len=(self.context_len // block + 1.0) * block)

    def features(
        self, kinds: Mapping[str, ReadLaw], experts: ExpertLaw | None = None, adapters: AdapterLaw | None = None
    ) -> dict[str, FloatLike]:
        """Compute every feature that is not zero.

        Args:
            kinds: attention kinds by label; empty for aggregate models, which use kind "all".
            experts: law of the busiest expert-parallel rank; None for dense models.
            adapters: law of the adapters that sequences use; None where there is at most one.

        Returns:
            Feature name → value, shapes as broadcast from the batch.
        """
        tokens = self.tokens
        decoded = self.decode_sequences * self.decode_tokens
        found: dict[str, FloatLike] = {
            ONE: 1.0,
            TOKENS: tokens,
            LOGIT_ROWS: decoded + self.prefill_sequences,
            DECODE_SEQUENCES: self.decode_sequences,
            DECODE_TOKENS: decoded,
        }
        if may_occur(self.decode_sequences):
            found[HAS_DECODE] = np.minimum(self.decode_sequences, 1.0)
            for label, kind in kinds.items():
                read = kind.kv_read_tokens(self.context_len)
                found[kv_tokens(label)] = self.decode_sequences * read
                found[kv_pairs(label)] = decoded * read
                found[max_context(label)] = found[HAS_DECODE] * read
            if not kinds:
                found[kv_tokens("all")] = self.decode_sequences * self.context_len
        if may_occur(self.prefill_tokens):
            some = np.minimum(self.prefill_tokens, 1.0)
            found |= {
                HAS_PREFILL: some,
                CHUNK_TOKENS: some * self.chunk_tokens,
                PREFILL_TOKENS: self.prefill_tokens,
                CHUNK_PREFIX_TOKENS: self.prefill_sequences * self.prefix_tokens,
            }
            for label, kind in kinds.items():
                pairs = kind.attention_pairs(self.chunk_tokens, self.prefix_tokens)
                found[attention_pairs(label)] = self.prefill_sequences * pairs
        if experts is not None:
            group = tokens if self.group_tokens is None else self.group_tokens
            found |= {
                GROUP_TOKENS: group,
                EXPERT_TOKENS: experts.expert_tokens(group),
                EXPERTS_TOUCHED: experts.experts_touched(group),
            }
        if adapters is not None:
            found[ADAPTERS_TOUCHED] = adapters.adapters_touched(self.decode_sequences + self.prefill_sequences)
        return found


def as_array(value: FloatLike) -> Array:
    """Float array view of a feature; a traced one (see `is_traced`) as it is."""
    return cast(Array, value) if is_traced(value) else np.asarray(value, dtype=np.float64)
