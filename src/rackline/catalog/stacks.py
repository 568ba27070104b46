"""Records of serving stacks: what an engine does around its kernels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rackline.catalog.base import Count, Fraction, NonNegative, SourcedRecord


class StackRecord(SourcedRecord):
    """A serving stack: its defaults, and a few numbers fitted to measured servers.

    Args:
        admission: How prompts enter: "chunked" or "prefill_first".
        max_batched_tokens: Tokens of a pass of one rank [tokens].
        max_num_seqs: Sequences that one rank decodes at most [sequences].
        memory_fraction: Share of HBM that the server uses [fraction].
        fraction_of_free: Whether memory_fraction is of what weights and activations leave, not of all HBM.
        rank_skew_s: Time that ranks wait for each other at an all-reduce, per log2 of their number [s].
        prefill_slowdown: Time of prompt work over that of the kernels alone [ratio].
        eager_s_per_layer: Least time of a layer in a pass with prompts, which no CUDA graph covers [s].
        eager_decode: Whether decode steps run without CUDA graphs as well, so that the same least time holds for them.
        routing_exponent: Power law of expert popularity; 0 is uniform.
        first_token_s: Time to first token beyond the passes: tokenizer, scheduling, network [s].
        first_token_equal_s: The same where a benchmark's requests all have one length [s]; first_token_s if missing.
        burst_share: Share of the other requests' prompts that a request waits for in a closed loop: a benchmark starts
            all of them at once, and engines that prefill first keep them in step [fraction].
        synchrony: Share of prompts that arrive together when their cohort has ended, not between decode steps
            [fraction].
    """

    admission: Literal["chunked", "prefill_first"]
    max_batched_tokens: Count
    max_num_seqs: Count
    memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)]
    fraction_of_free: bool = False
    rank_skew_s: NonNegative = 0.0
    prefill_slowdown: Annotated[float, Field(ge=1.0)] = 1.0
    eager_s_per_layer: NonNegative = 0.0
    eager_decode: bool = False
    routing_exponent: NonNegative = 0.0
    first_token_s: NonNegative = 0.0
    first_token_equal_s: NonNegative | None = None
    burst_share: Fraction = 0.0
    synchrony: Fraction = 0.0
