"""Memory of each chip: weights, KV cache, activations, what the server reserves, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

import numpy as np

from rackline.arch import AggregateModel, AnyModel, DenseFfn, Model, media_of
from rackline.arch.kinds import STATE_BYTES
from rackline.errors import InputError
from rackline.hardware import Chip
from rackline.parallel.layout import Layout, Sharding
from rackline.parallel.precision import Precision, storage_bytes
from rackline.parallel.work import (
    adapter_bytes,
    expert_width,
    most_sequences,
    tower_activation_bytes,
    tower_bytes,
    tower_layout,
)
from rackline.passes.features import Array, FloatLike, as_array, is_traced

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

    Sources: start-up logs of vLLM, SGLang and TensorRT-LLM; see docs/accuracy/memory.md.
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


_FAR = float(1 << 22)  # a context at which windows are full and only unbounded caches grow
_FOUR_BITS = 0.6  # bytes of an element with its share of a block's scale, and less
_NODE = 8.0  # chips beyond which no log shows what collectives keep
_FP4_WIDE, _FP4_NARROW = 256.0, 128.0  # what kernels of 4-bit experts pad the outer and the inner width to
_LARGE, _PIECE, _SPLIT = 10.0 * 2**20, 2.0 * 2**20, 1.0 * 2**20  # bytes: large tensors, their pieces, rests kept whole
_ROUNDING_BYTES = 1.0  # differences below are of floating point


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on the fullest chip by kind; floats, or arrays of one shape.

    Args:
        weights: by parameter kind [bytes].
        kv_cache, activations: [bytes].
        runtime: kernels, workspaces, buffers of collectives, captured graphs [bytes].
        kv_room: memory left for the cache by the server's rule, in whole blocks; negative if weights do not fit
            [bytes].
        total: chip memory as the driver reports it [bytes].
    """

    json_keys: ClassVar = (
        "weights_bytes=weight_total",
        "weights_by_kind_bytes=weights",
        "kv_cache_bytes=kv_cache",
        "activations_bytes=activations",
        "runtime_bytes=runtime",
        "free_bytes=free",
        "usable_bytes=usable",
        "hbm_bytes=total",
    )

    weights: dict[str, FloatLike]
    kv_cache: FloatLike
    activations: FloatLike
    runtime: FloatLike
    kv_room: FloatLike
    total: float

    @property
    def weight_total(self) -> FloatLike:
        """All weights of the chip [bytes]."""
        return sum(self.weights.values(), 0.0)

    @property
    def used(self) -> FloatLike:
        """Everything in memory [bytes]."""
        return self.weight_total + self.kv_cache + self.activations + self.runtime

    @property
    def usable(self) -> FloatLike:
        """Usable memory: weights, activations, runtime and the room for the cache [bytes]."""
        return self.weight_total + self.activations + self.runtime + self.kv_room

    @property
    def free(self) -> FloatLike:
        """Room for the cache minus the cache; negative when it does not fit [bytes]."""
        left = as_array(self.kv_room) - self.kv_cache
        rounded = np.where(np.abs(left) < _ROUNDING_BYTES, 0.0, left)
        return float(rounded) if rounded.ndim == 0 else rounded


def weight_bytes(model: AnyModel, layout: Sharding, precision: Precision) -> dict[str, FloatLike]:
    """Weights on the fullest chip by parameter kind [bytes]."""
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    if isinstance(model, AggregateModel):
        return {"all": model.total_params * storage_bytes(precision.linear_weights) / tp}
    linear, expert, other = (
        storage_bytes(stored)
        for stored in (precision.linear_weights, precision.expert_weights, precision.other_weights)
    )
    d, held = model.d_model, dict[str, FloatLike]()
    # a stage holds ceil(layers / pp) of the layers; groups of different layers are counted in proportion
    share = np.ceil(model.num_layers / pp) / model.num_layers

    def add(kind: str, value: FloatLike) -> None:
        held[kind] = held.get(kind, 0.0) + value

    for group in model.layer_groups:
        layers = group.count * share
        attention = sum((p.shard_weights(tp) for p in group.attention.projections(d)), 0.0)
        expansion = group.attention.expansion()
        if expansion is not None:
            attention = attention + expansion.shard_weights(tp)
        add("attention", layers * attention * linear)
        add("norm", layers * (model.norms_of(group) * model.norm_params_per_norm) * 2.0)
        ffn = group.ffn
        if isinstance(ffn, DenseFfn):
            add("ffn", layers * sum((p.shard_weights(tp) for p in ffn.projections(d)), 0.0) * linear)
            continue
        local = np.ceil(ffn.num_experts / as_array(layout.ep))
        cut_width = expert_width(ffn.d_expert, layout.moe_tp, precision.expert_weights)
        one = ffn.matrices * _stored(ffn.expert_d_in(d), _FP4_WIDE, expert) * _stored(cut_width, _FP4_NARROW, expert)
        add("experts", layers * local * one * expert)
        if ffn.bias:  # not quantised
            inner = (ffn.matrices - 1) * _stored(cut_width, _FP4_NARROW, expert)
            outer = _stored(ffn.expert_d_in(d), _FP4_WIDE, expert)
            add("experts", layers * local * (inner + outer) * other)
        add("router", layers * ffn.router_params(d) * other)
        if ffn.d_latent:
            add("latent", layers * ffn.latent_params(d) * linear)
        shared = ffn.shared()
        if shared is not None:
            cut = sum((p.shard_weights(tp) for p in shared.projections(d)), 0.0)
            add("shared_experts", layers * cut * expert)
    table = model.vocab_size * d / tp * other
    # the first stage holds the embedding, the last the head: with pp > 1 the fullest chip has one of the two
    add("embedding", table + model.learned_positions * d * other)
    if not model.tied_embeddings:
        add("head", np.where(pp > 1, 0.0, table))
    if model.draft is not None:
        own = tower_layout(model.draft, layout)
        held["draft"] = sum(weight_bytes(model.draft, own, _draft_precision(model.draft)).values(), 0.0)
    return {**held, **tower_bytes(model, layout), **adapter_bytes(model, layout)}


def _draft_precision(draft: Model) -> Precision:
    """Data types of a draft model: 8 bits a weight where it is stored so, else bf16."""
    stored = "fp8" if draft.native_precision.startswith("fp8") else "bf16"
    return Precision(label=draft.native_precision, linear_weights=stored, expert_weights=stored)


def _stored(width: FloatLike, multiple: float, element_bytes: float) -> FloatLike:
    """A width as it is kept: experts of 4 bits in whole tiles.

    Sources: vLLM logs 65.97 GiB for gpt-oss-120b (issue 23278) and 13.72 GiB for gpt-oss-20b, whose checkpoints have
        60.8 and 12.8: experts of 2880 times 2880 are kept as 3072 times 2944. vllm 0.33.0,
        layers/fused_moe/oracle/mxfp4.py:866, and sglang 0.5.23, srt/layers/quantization/mxfp4.py:465, round to 128 and
        256 for Marlin; the kernels of other backends to 64 or 128.
    """
    return as_array(width) if element_bytes > _FOUR_BITS else np.ceil(as_array(width) / multiple) * multiple


def allocator_bytes(model: AnyModel, layout: Sharding, precision: Precision) -> FloatLike:
    """Memory that PyTorch's caching allocator adds to the weights by rounding large tensors up [bytes].

    Equation:
        a tensor of 10 MiB and more gets whole pieces of 2 MiB; a rest of more than 1 MiB is given to others

    Assumes: products that read the same tokens are one tensor (q, k and v; gate and up), as engines store them.

    Sources: PyTorch, c10/cuda/CUDACachingAllocator (kMinLargeAlloc, kRoundLarge, kSmallSize); vLLM logs 13.9476 GiB a
        chip for Qwen2.5-14B on two (issue 13061), of which weights and rotary table are 13.787 and this 0.164.
    """
    if isinstance(model, AggregateModel):
        return 0.0
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    linear, expert = storage_bytes(precision.linear_weights), storage_bytes(precision.expert_weights)
    share = np.ceil(model.num_layers / pp) / model.num_layers
    total: FloatLike = 0.0
    for group in model.layer_groups:
        ffn = group.ffn
        tensors = [p.shard_weights(tp) * linear for p in group.attention.projections(model.d_model)]
        if isinstance(ffn, DenseFfn):
            tensors += [p.shard_weights(tp) * linear for p in ffn.projections(model.d_model)]
        else:
            outer = _stored(ffn.expert_d_in(model.d_model), _FP4_WIDE, expert)
            cut_width = expert_width(ffn.d_expert, layout.moe_tp, precision.expert_weights)
            inner = _stored(cut_width, _FP4_NARROW, expert)
            one = np.ceil(ffn.num_experts / as_array(layout.ep)) * outer * inner
            # each tensor has another that holds the scales of its blocks where there are any
            values = 0.5 if expert < _FOUR_BITS else float(np.floor(expert))
            parts = (values, expert - values) if expert > values else (values,)
            tensors += [one * matrices * part for matrices in (ffn.matrices - 1, 1) for part in parts]
        total = total + group.count * share * sum((_rounding(size) for size in tensors), 0.0)
    return total


def _rounding(size: FloatLike) -> FloatLike:
    """Bytes between a tensor and the piece of memory that it gets."""
    rest = np.ceil(as_array(size) / _PIECE) * _PIECE - size
    return np.where((as_array(size) >= _LARGE) & (rest <= _SPLIT), rest, 0.0)


def kv_bytes_per_sequence(model: AnyModel, layout: Sharding, precision: Precision, context_len: FloatLike) -> FloatLike:
    """KV cache of one sequence on the fullest chip of its attention-dp rank [bytes].

    With pp stages a chip holds its layers' share only, of pp times as many sequences (lecture C70).
    """
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    size = storage_bytes(precision.kv_cache)
    if isinstance(model, AggregateModel):
        return model.kv_bytes(context_len) / tp
    share = np.ceil(model.num_layers / pp) / model.num_layers
    total: FloatLike = 0.0
    for group in model.layer_groups:
        for core in group.attention.cores():
            held = core.kv_held_tokens(as_array(context_len)) * (core.cache_bytes_per_element or size)
            per_layer = core.kv_elements_per_token(tp) * held + core.state_elements(tp) * STATE_BYTES
            total = total + group.count * share * per_layer
    if model.draft is not None:
        own = tower_layout(model.draft, layout)
        total = total + kv_bytes_per_sequence(model.draft, own, _draft_precision(model.draft), context_len)
    return total


def activation_bytes(model: AnyModel, layout: Sharding, batched_tokens: FloatLike) -> FloatLike:
    """Live activations of the largest pass on one rank [bytes].

    A layer keeps the residual stream, its normalised copy and the block's output, beside the fused q, k, v, or the
    gate, the up projection and their product: 2 (3 d + 3 d_ff / tp) bytes per token of a dense model.

    Sources: vllm-project/vllm issue 10517, peak memory of Llama-3.1-8B at 20,000 and 29,000 tokens: 111 kB per token,
        2 (3 · 4096 + 3 · 14336) is 110.6 kB.
    """
    tokens = as_array(batched_tokens)
    if isinstance(model, AggregateModel):
        return 0.0 * tokens
    tp = as_array(layout.tp)
    widest: FloatLike = 0.0
    for group in model.layer_groups:
        inner = sum((p.shard_out(tp) for p in group.attention.projections(model.d_model)), 0.0)
        ffn = group.ffn
        if isinstance(ffn, DenseFfn):
            block = 3.0 * ffn.d_ff / tp
        else:
            group_ratio = as_array(layout.attention_dp) / as_array(layout.ep)
            per_pair = ffn.expert_d_in(model.d_model) * 2.0 + ffn.matrices * ffn.d_expert / as_array(layout.moe_tp)
            block = ffn.experts_per_token * group_ratio * per_pair
        widest = np.maximum(widest, np.maximum(inner, block))
    return tokens * 2.0 * (3.0 * model.d_model + widest)


def sampling_bytes(model: AnyModel, max_num_seqs: FloatLike, logit_bytes: float) -> FloatLike:
    """Logits, their fp32 copy, probabilities and what the sampler sorts [bytes].

    Equation:
        max_num_seqs · vocab_size · logit_bytes

    Each rank of a tp group has all logits, so the vocabulary is not sharded.

    Sources: vllm-project/vllm 0.11.0, v1/worker/gpu_model_runner.py:3183 and 3397: the profile run draws tokens of
        max_num_seqs sequences; `logit_bytes` of a version counts the tensors that are alive at once (its stack's file).
    """
    vocabulary = 0.0 if isinstance(model, AggregateModel) else float(model.vocab_size)
    return as_array(max_num_seqs) * vocabulary * logit_bytes


def communication_bytes(layout: Sharding, server: ServerMemory) -> FloatLike:
    """Buffers of the collectives of a group of chips [bytes].

    Assumes: they grow with the group up to eight chips; no log of wider groups was found.
    """
    group = as_array(layout.tp) * layout.attention_dp
    return np.where(group > 1, np.minimum(group, _NODE) * server.communication_bytes, 0.0)


def runtime_bytes(layout: Sharding, server: ServerMemory) -> FloatLike:
    """Kernels, workspaces, captured graphs, and buffers of the collectives [bytes]."""
    return server.runtime_bytes + server.graph_bytes + communication_bytes(layout, server)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSize:
    """KV cache of one sequence on the fullest chip: fixed_bytes + bytes_per_token · tokens.

    Args:
        fixed_bytes, bytes_per_token: as above [bytes].
        first_token_bytes: of a sequence of one token [bytes].
    """

    fixed_bytes: FloatLike
    bytes_per_token: FloatLike
    first_token_bytes: FloatLike

    def in_tokens(self, block_size: int) -> tuple[Array, Array]:
        """(bytes of a token of the pool, fixed part in such tokens).

        Where only windows and recurrent state are kept, a token is what the first one takes, and the fixed part at
        least one block.
        """
        grown, fixed, first = (as_array(x) for x in (self.bytes_per_token, self.fixed_bytes, self.first_token_bytes))
        grows = grown > 0
        alone = np.maximum(np.rint(fixed / np.where(first > 0, first, 1.0)), block_size)
        unit = np.where(grows, grown, fixed / alone)
        return unit, np.where(grows, np.rint(fixed / np.where(grows, grown, 1.0)), np.where(fixed > 0, alone, 0.0))

    def blocks_of(self, context_len: FloatLike, block_size: int) -> Array:
        """Blocks of the paged cache that a sequence takes [count]."""
        _, fixed = self.in_tokens(block_size)
        grown = np.where(as_array(self.bytes_per_token) > 0, np.ceil(as_array(context_len) / block_size), 0.0)
        return grown + np.ceil(fixed / block_size)


def kv_size(model: AnyModel, layout: Sharding, precision: Precision, longest: FloatLike = _FAR) -> KvSize:
    """Fixed cache of a sequence, and the cache that each token adds [bytes].

    Args:
        longest: context up to which windows are taken from the start; by default whole windows [tokens].

    Assumes: windows and recurrent state are taken whole from the start, as far as the longest context fills them.
    """
    first, at, one, two = (
        as_array(kv_bytes_per_sequence(model, layout, precision, far)) for far in (1.0, longest, _FAR, 2.0 * _FAR)
    )
    per_token = (two - one) / _FAR
    fixed = np.maximum(at - per_token * longest, 0.0)
    fixed = np.where(fixed > 1e-9 * np.maximum(at, 1.0), fixed, 0.0)
    return KvSize(fixed_bytes=fixed, bytes_per_token=per_token, first_token_bytes=first)


def kv_room_bytes(
    model: AnyModel, layout: Sharding, precision: Precision, chip: Chip, server: ServerMemory
) -> tuple[FloatLike, dict[str, FloatLike], FloatLike, FloatLike]:
    """Bytes for the cache on the fullest chip by the rule of the server, before rounding to blocks.

    Equation:
        memory: fraction · program_bytes - weights - activations - runtime
        static: fraction · (program_bytes - context - buffers of collectives) - weights, and no more than what
            activations and runtime leave
        free: fraction · (program_bytes - context - weights - activations - runtime)

    Returns:
        (room, weights by kind, activations, runtime) [bytes].
    """
    weights = weight_bytes(model, layout, precision)
    held = sum(weights.values(), 0.0)
    working = np.maximum(
        activation_bytes(model, layout, server.batched_tokens),
        sampling_bytes(model, server.max_num_seqs, server.logit_bytes),
    )
    if (media := media_of(model)) is not None:
        working = np.maximum(working, max(tower_activation_bytes(part) for part in media.parts))
    around = runtime_bytes(layout, server) + allocator_bytes(model, layout, precision)
    given, fraction = chip.program_bytes, server.memory_fraction
    left = given - server.context_bytes - held - working - around
    started = given - server.context_bytes - communication_bytes(layout, server)
    match server.fraction_of:
        case "memory":
            room = fraction * given - held - working - around
        case "static":
            room = np.minimum(fraction * started - held, left)
        case "free":
            room = np.where(left > 0, fraction * left, left)
        case _:
            assert_never(server.fraction_of)
    return room, weights, working, around


def memory_use(
    model: AnyModel,
    layout: Sharding,
    precision: Precision,
    chip: Chip,
    server: ServerMemory = SERVER,
    *,
    sequences_per_rank: FloatLike,
    context_len: FloatLike,
) -> MemoryUse:
    """Memory of the fullest chip, with the cache in whole blocks.

    Args:
        server: memory reserved beside weights and KV cache, and the base of the memory fraction.
        sequences_per_rank: sequences with KV on one attention-dp rank, over all pipeline micro-batches [sequences].
        context_len: longest or reserved context of each [tokens].
    """
    room, weights, working, around = kv_room_bytes(model, layout, precision, chip, server)
    size = kv_size(model, layout, precision, np.maximum(as_array(context_len), 1.0))
    unit, _ = size.in_tokens(server.block_size)
    block = unit * server.block_size
    pp = as_array(layout.pp)
    whole = np.where(block > 0, np.floor(as_array(room) / pp / np.where(block > 0, block, 1.0)) * block * pp, room)
    return MemoryUse(
        weights=weights,
        kv_cache=size.blocks_of(context_len, server.block_size) * block * sequences_per_rank,
        activations=working,
        runtime=around,
        kv_room=np.where(as_array(room) > 0, whole, room),
        total=chip.hbm_bytes,
    )


def fitting_sequences(
    model: AnyModel,
    layout: Sharding,
    precision: Precision,
    chip: Chip,
    server: ServerMemory,
    context_len: FloatLike,
) -> Array:
    """Sequences of this context that fit on one attention-dp rank and micro-batch; everything else calls this.

    Equation:
        floor(blocks of the room / pp / blocks of a sequence), at most those whose adapters are resident

    Returns:
        Sequences, in the broadcast shape of layouts and contexts; 0 if weights do not fit.

    Raises:
        InputError: the model has no cache.
    """
    room = as_array(kv_room_bytes(model, layout, precision, chip, server)[0])
    longest = np.maximum(as_array(context_len), 1.0)
    size = kv_size(model, layout, precision, longest)
    unit, _ = size.in_tokens(server.block_size)
    each = size.blocks_of(longest, server.block_size)
    if not is_traced(each) and not np.all((unit > 0) & (each > 0)):
        raise InputError(what=model.name, given="no KV cache", allowed="a model with a KV cache or state")
    blocks = np.floor(np.maximum(room, 0.0) / as_array(layout.pp) / (unit * server.block_size))
    return np.minimum(np.floor(blocks / each), np.floor(most_sequences(model)))


def max_sequences(
    model: AnyModel,
    layout: Layout,
    precision: Precision,
    chip: Chip,
    server: ServerMemory = SERVER,
    *,
    context_len: float,
) -> int:
    """Sequences of this context that fit on one replica, all ranks and micro-batches; 0 when weights do not fit."""
    each = float(fitting_sequences(model, layout, precision, chip, server, context_len))
    return int(each) * layout.attention_dp * layout.pp
