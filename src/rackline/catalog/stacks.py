"""Records of serving stacks: what an engine does around its kernels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rackline.catalog.base import Count, CountOrZero, Fraction, NonNegative, Positive, Record, SourcedRecord, Text

Admission = Literal["chunked", "prefill_first", "decode_first"]


class StackDefaults(Record):
    """Defaults of a stack that hold for some of its versions, or on chips with some memory.

    Args:
        before: Versions below this one, such as "0.8"; all when it is missing.
        hbm_from_bytes: Chips with at least so much memory [bytes].
        hbm_below_bytes: Chips with less memory [bytes].
        admission: As of the stack; like all that follow, unchanged when it is missing.
        max_batched_tokens: As of the stack [tokens].
        max_num_seqs: As of the stack [sequences].
        eager_decode: As of the stack.
        eager_s_per_layer: As of the stack [s].
        prefill_slowdown: As of the stack [ratio].
        runtime_bytes: As of the stack [bytes].
        graph_bytes: As of the stack [bytes].
        logit_bytes: As of the stack [bytes].
        graph_tokens: As of the stack [tokens].
        prompt_graph_tokens: As of the stack [tokens].
        host_s_per_step: As of the stack [s].
        host_s_per_sequence: As of the stack [s].
        sample_bytes_per_logit: As of the stack [bytes].
        untuned_experts: As of the stack.
        untuned_slowdown: As of the stack [ratio].
    """

    before: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    hbm_from_bytes: Positive | None = None
    hbm_below_bytes: Positive | None = None
    admission: Admission | None = None
    max_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    eager_decode: bool | None = None
    eager_s_per_layer: NonNegative | None = None
    prefill_slowdown: Annotated[float, Field(ge=1.0)] | None = None
    runtime_bytes: NonNegative | None = None
    graph_bytes: NonNegative | None = None
    logit_bytes: NonNegative | None = None
    graph_tokens: CountOrZero | None = None
    prompt_graph_tokens: CountOrZero | None = None
    host_s_per_step: NonNegative | None = None
    host_s_per_sequence: NonNegative | None = None
    sample_bytes_per_logit: NonNegative | None = None
    untuned_experts: tuple[Text, ...] | None = None
    untuned_slowdown: Annotated[float, Field(ge=1.0)] | None = None


class StackRecord(SourcedRecord):
    """A serving stack: its defaults, and a few numbers fitted to measured servers.

    Args:
        admission: How prompts enter: "chunked", "prefill_first" or "decode_first".
        max_batched_tokens: Tokens of a pass of one rank [tokens].
        max_num_seqs: Sequences that one rank decodes at most [sequences].
        memory_fraction: Share of HBM that the server uses [fraction].
        fraction_of: What memory_fraction is of: "memory" (all that the server holds), "free" (the cache, of what the
            rest leaves) or "static" (weights and cache).
        reserve: Cache that must be free for a request to start: "chunk" (of its next pass) or "final" (of the whole
            request, so that none is ever put back).
        context_bytes: Memory of the process before weights are loaded (CUDA context), which the fraction of "free" and
            "static" does not reach [bytes].
        runtime_bytes: Loaded kernels and workspaces [bytes].
        communication_bytes: Buffers of the collectives, for each chip of the group [bytes].
        graph_bytes: Captured CUDA graphs, where the stack counts them before it sizes the cache [bytes].
        logit_bytes: Memory of one logit while tokens of max_num_seqs sequences are drawn [bytes].
        rank_skew_s: Time that ranks wait for each other at an all-reduce, per log2 of their number [s].
        prefill_slowdown: Time of prompt work over that of the kernels alone [ratio].
        eager_s_per_layer: Least time of a layer in a pass with prompts, which no CUDA graph covers [s].
        eager_decode: Whether decode steps run without CUDA graphs as well, so that the same least time holds for them.
        rearranged_from_ep: Expert-parallel ranks from which the stack's published launch commands rearrange experts by
            popularity; none where they do not [count].
        redundant_experts: Copies of popular experts where they are rearranged [count].
        graph_tokens: Tokens of the largest pass that CUDA graphs hold, with prompts or without; where it is 0, graphs
            hold decode steps of any size and no pass with prompts [tokens].
        prompt_graph_tokens: Tokens of the largest pass with prompts that CUDA graphs hold in pieces, where decode
            steps have graphs of their own [tokens].
        host_s_per_step: Time of the host in each step that the chip waits for [s].
        host_s_per_sequence: Time of the host for each sequence in a step (sampling, detokenising, streaming), which
            hides behind the chip as far as it is shorter [s].
        sample_bytes_per_logit: Memory traffic of a logit while a token is drawn by top-p from all of them; greedy
            decoding has none [bytes].
        untuned_experts: Chip generation and data type of experts whose kernels have no tuned configuration.
        untuned_slowdown: Time of such kernels over that of the tuned ones in the tables [ratio].
        first_token_s: Time to first token beyond the passes: tokenizer, scheduling, network [s].
        first_token_equal_s: The same where a benchmark's requests all have one length [s]; first_token_s if missing.
        burst_share: Share of the other requests' prompts that a request waits for in a closed loop: a benchmark starts
            all of them at once, and engines that prefill first keep them in step [fraction].
        synchrony: Share of prompts that arrive together when their cohort has ended, not between decode steps
            [fraction].
        handover_s: Time to first token between a prefill and a decode worker beyond the transfer of the KV cache: two
            more queues, the router, connections [s].
        pool_burst_share: Share of the other requests' prompts that a request waits for in a closed loop of pools
            [fraction].
        neighbour_passes: Whether only sequences of neighbouring slots share a pass, as in llama.cpp with a cache for
            each sequence; the simulator knows it, closed forms do not.
        fallback_rank: Place among the stacks whose kernels were measured, which stand in for one another; none for a
            stack without measured kernels.
        graph_all_reduce: Implementation of the custom all-reduce that the stack captures in CUDA graphs, as the
            tables name it; empty without one.
        fused_all_reduce: Whether servers are launched with an all-reduce fused into the norm, so that tables of the
            custom one of older versions do not describe them; the newest version's stands in.
        separate_quantise: Data types of products whose activations the stack quantises in a kernel of its own; the
            other stacks fuse it into the kernel before.
        static_batch_version: Version that drove single batches step by step where a source states none; empty for the
            newest.
        defaults: What differs in some versions or on some chips; later entries win.
    """

    admission: Admission
    max_batched_tokens: Count
    max_num_seqs: Count
    memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)]
    fraction_of: Literal["memory", "free", "static"] = "memory"
    reserve: Literal["chunk", "final"] = "chunk"
    context_bytes: NonNegative = 0.0
    runtime_bytes: NonNegative = 0.0
    communication_bytes: NonNegative = 0.0
    graph_bytes: NonNegative = 0.0
    logit_bytes: NonNegative = 0.0
    rank_skew_s: NonNegative = 0.0
    prefill_slowdown: Annotated[float, Field(ge=1.0)] = 1.0
    eager_s_per_layer: NonNegative = 0.0
    eager_decode: bool = False
    rearranged_from_ep: Count | None = None
    redundant_experts: int = Field(default=0, ge=0)
    graph_tokens: CountOrZero = 0
    prompt_graph_tokens: CountOrZero = 0
    host_s_per_step: NonNegative = 0.0
    host_s_per_sequence: NonNegative = 0.0
    sample_bytes_per_logit: NonNegative = 0.0
    untuned_experts: tuple[Text, ...] = ()
    untuned_slowdown: Annotated[float, Field(ge=1.0)] = 1.0
    first_token_s: NonNegative = 0.0
    first_token_equal_s: NonNegative | None = None
    burst_share: Fraction = 0.0
    synchrony: Fraction = 0.0
    handover_s: NonNegative = 0.0
    pool_burst_share: Fraction = 0.0
    neighbour_passes: bool = False
    fallback_rank: Count | None = None
    graph_all_reduce: str = ""
    fused_all_reduce: bool = False
    separate_quantise: tuple[Text, ...] = ()
    static_batch_version: str = ""
    defaults: tuple[StackDefaults, ...] = ()
