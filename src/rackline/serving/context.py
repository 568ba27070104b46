"""Context parallelism: several chips split one long prompt, or one long KV cache, that is too large for one chip.

The ranks of a context group hold the same weights. In prefill each rank has 1/cp of a prompt's tokens, split so that
all ranks have the same number of query-key pairs, and the keys and values of the other ranks come over the links: an
all-gather fetches them before attention, or a ring passes them on block by block while attention runs. In decode each
rank has 1/cp of the cache (split-KV over chips): queries go to all ranks of the group, and partial outputs with their
softmax sums come back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rackline.arch import Attention, Model
from rackline.hardware import Cluster
from rackline.parallel.precision import Precision, storage_bytes
from rackline.passes import Batch
from rackline.passes import features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.line import row_seconds
from rackline.passes.numbers import row_numbers
from rackline.passes.row import Row
from rackline.serving.steady import Engine, behind
from rackline.serving.workload import Workload

CollectiveName = Literal["all_gather", "all_to_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGroup:
    """Ranks that share a context.

    Args:
        cp: ranks of the group [count].
        tp: chips of one rank; arrays over layouts allowed [count].
    """

    cp: int
    tp: FloatLike = 1.0


def prefill_chunk(workload: Workload, max_batched_tokens: float, cp: int = 1) -> Batch:
    """The pass of one rank of a context group, full of prompt tokens.

    A group processes cp · B tokens per pass. Of a chunk of C tokens a rank has C/cp, with as many query-key pairs as
    the other ranks: pairs = (C/cp) · (prefix + C/2), so its own prefix is (C - C/cp)/2 longer.

    Args:
        max_batched_tokens: B, new tokens per pass on one rank [tokens].
        cp: ranks that share a prompt [count].

    >>> one, four = (prefill_chunk(Workload(input_len=8192.0, output_len=2), 2048.0, cp) for cp in (1, 4))
    >>> four.prefill_tokens, four.prefix_tokens + four.chunk_tokens / 2
    (2048.0, 4096.0)
    """
    new = workload.new_tokens
    chunk = min(new, max_batched_tokens * cp)
    mine = chunk / cp
    return Batch(
        prefill_sequences=max_batched_tokens / mine,
        chunk_tokens=mine,
        prefix_tokens=workload.prefix_tokens + (new - chunk) / 2.0 + (chunk - mine) / 2.0,
    )


def kv_exchange_bytes(
    model: Model, precision: Precision, workload: Workload, max_batched_tokens: float, group: ContextGroup
) -> Array:
    """Keys and values that reach one chip from the other ranks of its group in a full prefill pass [bytes].

    This is (cp - 1)/cp of all keys that its queries attend to: those of the pass and those of earlier chunks.

    Args:
        max_batched_tokens: new tokens per pass on one rank [tokens].
    """
    tokens = max_batched_tokens * group.cp
    chunk = min(workload.new_tokens, tokens)
    prompts = tokens / chunk
    seen = prompts * (chunk + workload.prefix_tokens + (workload.new_tokens - chunk) / 2.0)
    return as_array(seen * (group.cp - 1) / group.cp * _kv_bytes_per_token(model, precision, group.tp))


def split_kv_bytes(model: Model, sequences: FloatLike, group: ContextGroup) -> Array:
    """Queries and partial outputs that one chip sends in a decode pass of a group [bytes].

    Each rank holds the new tokens of 1/cp of the group's `sequences` and sends their queries to the cp - 1 other ranks;
    it returns the partial outputs for the queries of the others, with one softmax sum per head.
    """
    others = (group.cp - 1) / group.cp
    total: FloatLike = 0.0
    for attention, count in _kinds(model):
        heads = np.ceil(attention.num_q_heads / as_array(group.tp))
        # the kernel reads queries and writes outputs in bf16; 4 bytes of softmax sum per head
        total = total + count * heads * (attention.decode_io_elements * 2.0 + 4.0)
    return as_array(sequences * others * total)


def _kinds(model: Model) -> list[tuple[Attention, int]]:
    return [(group.attention, group.count) for group in model.layer_groups]


def _kv_bytes_per_token(model: Model, precision: Precision, tp: FloatLike) -> FloatLike:
    size = storage_bytes(precision.kv_cache)
    return sum((count * attention.kv_elements_per_token(tp) * size for attention, count in _kinds(model)), 0.0)


def exchange_s(
    engine: Engine, cluster: Cluster, num_bytes: FloatLike, group: ContextGroup, op_class: CollectiveName
) -> Array:
    """Time of one exchange per layer, over the fabric level that joins a context group [s].

    Args:
        num_bytes: bytes of all layers, per chip and direction [bytes].
        op_class: operation class whose calibration applies. An all-gather forwards cp - 1 messages in sequence; in an
            all-to-all every rank is one message away.
    """
    inside = as_array(as_array(group.tp) * group.cp <= cluster.scale_up.size)
    if cluster.scale_out is None:
        inside = np.ones_like(inside)
    steps = engine.num_layers * (1.0 if op_class == "all_to_all" else group.cp - 1.0)
    row = Row(
        name="context_exchange",
        group="context parallel",
        op_class=op_class,
        dtype="bf16",
        scale_up={f.ONE: num_bytes * inside},
        scale_out={} if cluster.scale_out is None else {f.ONE: num_bytes * (1.0 - inside)},
        launches={f.ONE: float(engine.num_layers)},
        group_size=float(group.cp),
        scale_up_steps=steps * inside,
        scale_out_steps=steps * (1.0 - inside),
    )
    return as_array(row_seconds(row_numbers(row, engine.table.calibration, cluster.chip, cluster), {f.ONE: 1.0}))


def context_prefill_s(
    engine: Engine,
    model: Model,
    cluster: Cluster,
    precision: Precision,
    workload: Workload,
    max_batched_tokens: float,
    group: ContextGroup,
    *,
    two_batch_overlap: bool = False,
) -> Array:
    """Time of a full prefill pass of a context group, with an all-gather of keys and values, kernels only [s].

    Returns:
        Shape () or (layouts, 1).

    Assumes: experts see the tokens of all ranks, as without context parallelism.
    Sources: all-gather context parallelism, Llama 3, arXiv:2407.21783 section 3.3.2; for MLA the latent is sent, and
    expanded on every rank.
    """
    batch = prefill_chunk(workload, max_batched_tokens, group.cp)
    device = engine.seconds(batch, engine.time_table(two_batch_overlap), two_batch_overlap=two_batch_overlap)
    if group.cp == 1:
        return device
    sent = kv_exchange_bytes(model, precision, workload, max_batched_tokens, group)
    extra = exchange_s(engine, cluster, sent, group, "all_gather")
    return device + (extra[:, None] if extra.ndim else extra)


def context_decode_s(
    engine: Engine,
    model: Model,
    cluster: Cluster,
    workload: Workload,
    sequences: FloatLike,
    group: ContextGroup,
    *,
    threads: int = 1,
) -> Array:
    """Time of a decode pass of a context group with `sequences` sequences in all, each cache split cp ways [s].

    Args:
        sequences: sequences of the group [sequences], scalar or (1, points).

    Returns:
        Broadcast shape of the engine's tables and `sequences`.

    Assumes: the tokens of the group are spread evenly over its ranks between the attention layers.
    Sources: flash-decoding's split over keys, across chips instead of cores; Helix parallelism, arXiv:2507.07120.
    """
    n = as_array(sequences)
    ranks = as_array(engine.attention_dp)
    whole = Batch(decode_sequences=n, context_len=workload.mean_context / group.cp, group_tokens=n / group.cp * ranks)
    features = dict(engine.table.features(whole))
    features[f.TOKENS] = n / group.cp
    features[f.LOGIT_ROWS] = n / group.cp
    times = engine.time_table(False)
    device = (times.seconds(features, threads=threads) + engine.skew_s()) * engine.stage_imbalance
    if group.cp > 1:
        tp = as_array(group.tp)
        sent = split_kv_bytes(model, n, replace(group, tp=tp[:, None] if tp.ndim else tp))
        wide = replace(group, tp=tp[:, None] if tp.ndim else tp)
        device = device + exchange_s(engine, cluster, sent, wide, "all_to_all")
    return behind(device, engine.host_s(n / group.cp, n / group.cp, prompts=False))
