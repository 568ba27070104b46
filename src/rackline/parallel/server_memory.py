"""Memory that a server reserves beside weights and KV cache, and the base of its memory fraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rackline.passes.features import FloatLike

FractionOf = Literal["memory", "free", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """What a server keeps of a chip beside weights and cache.

    Args:
        memory_fraction: what the operator sets (vLLM's gpu_memory_utilization, SGLang's mem_fraction_static,
            TensorRT-LLM's free_gpu_memory_fraction).
        fraction_of: what memory_fraction is of: "memory" (all that the server holds is within it, as in vLLM), "free"
            (the cache gets it of what weights, activations and runtime leave, TensorRT-LLM) or "static" (weights and
            cache are within it, activations and runtime have the rest, SGLang).
        batched_tokens: of the largest pass of one rank [tokens].
        max_num_seqs: sequences whose tokens are drawn at once [sequences].
        context_bytes: of the process before weights are loaded; outside of the fraction [bytes].
        runtime_bytes: loaded kernels and workspaces [bytes].
        communication_bytes: buffers of the collectives, for each chip of the group [bytes].
        graph_bytes: captured CUDA graphs, where they are counted before the cache is sized [bytes].
        logit_bytes: memory of one logit while tokens are drawn [bytes].
        block_size: of the paged cache [tokens].

    Sources: start-up logs of vLLM, SGLang and TensorRT-LLM; see docs/accuracy.md, "What a server keeps".
    """

    memory_fraction: float = 0.9
    fraction_of: FractionOf = "memory"
    batched_tokens: FloatLike = 8192.0
    max_num_seqs: FloatLike = 1024.0
    context_bytes: float = 0.6e9
    runtime_bytes: float = 0.7e9
    communication_bytes: float = 0.25e9
    graph_bytes: float = 0.5e9
    logit_bytes: float = 12.0
    block_size: int = 16


SERVER = ServerMemory()
