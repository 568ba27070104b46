"""Disaggregated serving: one pool of replicas only prefills, another only decodes; the KV cache moves between them.

A prefill replica runs full passes of max_batched_tokens new tokens per rank; a decode replica runs passes without
prompts. With n prompt tokens to prefill, B tokens per pass, t the time of such a pass, R ranks and pp stages

    prompts/s of a prefill replica    R · pp · B / (n · t)
    requests/s of a decode replica    sequences / ((output_len - 1) · tpot)
    ttft = constant + waiting time and passes of the prompt (see `PrefillPasses`) + transfer

The prefill pool generates the first token, which counts once the cache has arrived.

Several chips can also split one long prompt, or one long KV cache, that is too large for one chip (context
parallelism). The ranks of a context group hold the same weights. In prefill each rank has 1/cp of a prompt's tokens,
split so that all ranks have the same number of query-key pairs, and the keys and values of the other ranks come over
the links: an all-gather fetches them before attention, or a ring passes them on block by block while attention runs. In
decode each rank has 1/cp of the cache (split-KV over chips): queries go to all ranks of the group, and partial outputs
with their softmax sums come back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rackline.arch import AnyModel, Model
from rackline.hardware import Cluster, FabricLevel
from rackline.parallel import Layout
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.parallel.precision import Precision, storage_bytes
from rackline.passes import Batch, features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.row import Row, row_numbers, row_seconds
from rackline.serving.steady import Engine, behind
from rackline.serving.workload import Workload

MOST_LOAD = 0.95  # of the prefill pool: beyond it, waiting grows without bound
_HALVINGS = 10  # bisections of the load, to a thousandth


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRate:
    """Rate of prefill replicas with full passes; arrays over layouts, or scalars.

    Args:
        pass_s: time of a full pass through all pipeline stages [s].
        service_s: time from the start of a prompt to its first token, in full passes [s].
        alone_s: the same, in passes with one prompt per rank [s].
        prompts_per_s: rate of one replica [requests/s].
        together: prompts that one replica processes at a time, at least 1 [requests].
        peers: ranks and pipeline stages over which they are spread [count].
    """

    pass_s: Array
    service_s: Array
    alone_s: Array
    prompts_per_s: Array
    together: Array
    peers: Array


def prefill_rate(
    engine: Engine,
    workload: Workload,
    max_batched_tokens: int,
    pp: FloatLike,
    *,
    two_batch_overlap: bool = False,
    cp: int = 1,
    replicated: FloatLike = 1.0,
    exchange_seconds: FloatLike = 0.0,
) -> PrefillRate:
    """Rate at which a prefill-only replica processes prompts.

    Args:
        max_batched_tokens: new tokens of a pass on one rank [tokens].
        pp: pipeline stages, each with a micro-batch in flight [count].
        cp: ranks that share a prompt [count].
        replicated: context-parallel ranks beyond the attention-dp ranks, for models without experts [count].
        exchange_seconds: exchange of keys and values within a context group, per pass [s].

    Returns:
        Arrays of shape () or (layouts,).
    """
    new, most = workload.new_tokens, float(max_batched_tokens)
    times = engine.time_table(two_batch_overlap)
    beyond = np.reshape(exchange_seconds, (-1, 1) if np.ndim(exchange_seconds) else ())

    def seconds(tokens: float) -> Array:
        batch = prefill_chunk(workload, tokens, cp)
        if np.ndim(engine.attention_dp) > 1:  # a column of layouts, as all that stands beside the passes is
            batch = replace(batch, prefill_sequences=as_array(batch.prefill_sequences).reshape(1))
        device = engine.seconds(batch, times, two_batch_overlap=two_batch_overlap)
        found = engine.with_prompts_s(0.0, device + beyond, tokens=tokens)
        return found[:, 0] if found.ndim > 1 else found  # (layouts, 1)

    pass_s = seconds(most)
    one_s = seconds(new / cp) if new < most * cp else pass_s
    ranks = as_array(engine.attention_dp)
    ranks = ranks[:, 0] if ranks.ndim > 1 else ranks
    rate = ranks * replicated * as_array(pp) * most / (new * pass_s)
    pieces = workload.mean_pieces(most * cp)
    service_s = pass_s * pieces
    return PrefillRate(
        pass_s=pass_s,
        service_s=service_s,
        alone_s=np.minimum(one_s, pass_s) * pieces,
        prompts_per_s=rate,
        together=np.maximum(rate * service_s, 1.0),
        peers=ranks * replicated / cp * as_array(pp),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPasses:
    """Waiting and service of randomly arriving prompts at a prefill replica; arrays that broadcast.

    A pass with x prompts per rank takes T(x) = alone + (full - alone) (x - 1) / (m / peers - 1). In consecutive passes
    each takes the prompts that arrived during the one before, so that with lambda prompts/s per replica

        tau = T(lambda tau)    from alone to full, the usual pass
        time = own pass + busy · tau / 2 · ((1 + c) · regular + v full / (m tau))
               + rho² full / (2 m (1 - rho)) · (near / k + v)

    busy = x / (x + exp(-x)), x = lambda tau; c is the variance of the passes, which lengthens them as a request sees
    them, v that of the prompts' lengths over the square of their mean. Arrivals that k replicas receive in turn are
    nearly regular: they wait for the rest of a pass only where more than one arrives in it, and 1 / k as long for room
    in it; lengths differ in turn as well. For equal lengths the result is within 15 % of the Markov chain of
    `rackline.serving.closed_loop` for 80 % of random replicas and loads, 31 % low and 48 % high at worst; for unlike
    ones 27 % low to 12 % high against the simulator where passes hold the mean prompt. It exists for the search, which
    has 10^5 pairs.

    Args:
        alone_s: T(1), over all passes of a prompt [s].
        full_s: the same, in full passes [s].
        together: m, prompts in a full pass [requests].
        peers: ranks and micro-batches over which they are spread [count].
        input_cv2: variance of the prompts' tokens over the square of their mean [1].

    Sources: Pollaczek 1930 for m = 1; Krämer and Langenbach-Belz 1976 for round-robin arrivals.
    """

    alone_s: FloatLike
    full_s: FloatLike
    together: FloatLike
    peers: FloatLike
    input_cv2: FloatLike = 0.0

    def prompt_s(self, load: FloatLike, in_turn: FloatLike = 1.0) -> Array:
        """Mean time from the arrival of a prompt to the end of its last pass [s].

        Args:
            load: rho, rate over that of full passes, below 1 [1].
            in_turn: k, replicas that receive the arrivals round-robin [count].

        >>> one = PrefillPasses(alone_s=1.0, full_s=1.0, together=1.0, peers=1.0)
        >>> [round(float(one.prompt_s(load)), 2) for load in (0.01, 0.5, 0.9)]
        [1.01, 1.48, 5.39]
        """
        rho, m, peers = as_array(load), as_array(self.together), as_array(self.peers)
        alone, full, k = as_array(self.alone_s), as_array(self.full_s), as_array(in_turn)
        each = np.maximum(m / peers, 1.0)
        rate = rho * m / full
        slope = np.where(each > 1.0, (full - alone) / np.maximum(each - 1.0, 1e-9), 0.0) / peers
        grown = rate * slope
        rounded = 0.5 * (peers - 1.0)  # a rank with one more prompt makes the others wait
        rest = np.maximum(1.0 - grown, 1e-9)
        tau = np.clip((alone + slope * (rounded - peers)) / rest, alone, full)
        come = rate * tau
        busy = come / (come + np.exp(-come))
        variance = slope * slope * come / k / np.maximum(1.0 - grown * grown, 1e-9) / (tau * tau)
        variance = np.where((come > 1.0) & (tau < full), np.minimum(variance, full / tau - 1.0), 0.0)
        own = np.minimum(tau * (1.0 + grown * variance), full)
        regular = 1.0 / k + (1.0 - 1.0 / k) * come**4 / (1.0 + come**4)
        near = np.exp(-2.0 * (1.0 - rho) / (3.0 * np.maximum(rho, 1e-9)) * (1.0 - 1.0 / k) ** 2)
        room = rho * rho * full / (2.0 * m * (1.0 - rho))
        unlike = as_array(self.input_cv2)
        lengths = unlike * full / (m * tau)  # of a pass: its prompts' share of it, each of a length of its own
        return own + busy * tau / 2.0 * ((1.0 + variance) * regular + lengths) + room * (near / k + unlike)

    def highest_load(self, limit_s: FloatLike, in_turn: FloatLike = 1.0) -> Array:
        """Highest load, up to MOST_LOAD, at which prompts take at most `limit_s` on average; 0 where there is none [1].

        Args:
            limit_s: part of the time to first token that is left for waiting and passes [s].
        """
        limit = as_array(limit_s)
        low, high = np.zeros(np.broadcast(limit, self.full_s, in_turn).shape), MOST_LOAD
        low = np.where(self.prompt_s(low + high, in_turn) <= limit, high, low)
        step = 0.5 * high
        for _ in range(_HALVINGS):
            tried = np.minimum(low + step, high)
            low = np.where(self.prompt_s(tried, in_turn) <= limit, tried, low)
            step *= 0.5
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """Transfer of the KV cache of one prompt between the pools.

    Args:
        kv_bytes: size of the prompt's cache [bytes].
        level: "scale_up" inside a domain, else "scale_out".
        seconds: latency, and the time of the slower end [s].
        chip_bytes_per_s: rate at which a decode chip receives its part, over the whole time [bytes/s].
    """

    kv_bytes: float
    level: str
    seconds: float
    chip_bytes_per_s: float


def kv_transfer(
    model: AnyModel,
    workload: Workload,
    precision: Precision,
    *,
    prefill_layout: Layout,
    decode_layout: Layout,
    prefill_link: FabricLevel,
    decode_link: FabricLevel,
) -> KvTransfer:
    """Time to transfer a prompt's KV cache from the prefill chips to the decode chips.

    Args:
        prefill_link, decode_link: fabric level over which the cache leaves and arrives.

    Assumes: each chip of the prefill rank sends its part when the prompt is complete; copies that tensor parallelism
    needs are sent to each decode chip separately.
    """
    whole = float(as_array(kv_bytes_per_sequence(model, Layout(), precision, workload.input_len)))
    sent = whole / (prefill_layout.tp * prefill_layout.pp)
    received = float(as_array(kv_bytes_per_sequence(model, decode_layout, precision, workload.input_len)))
    slower = max(sent / prefill_link.bytes_per_s_each_way, received / decode_link.bytes_per_s_each_way)
    seconds = slower + max(prefill_link.latency_s, decode_link.latency_s)
    return KvTransfer(
        kv_bytes=whole,
        level=prefill_link.name,
        seconds=seconds,
        chip_bytes_per_s=received / seconds,
    )


def shared_level(prefill_level: FabricLevel, num_chips: int, scale_out: FabricLevel | None) -> FabricLevel:
    """The fabric level that joins two pools of one cluster: the scale-up domain if both fit in it, else the network."""
    return prefill_level if num_chips <= prefill_level.size or scale_out is None else scale_out


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
    seen = (tokens / chunk) * (chunk + workload.prefix_tokens + (workload.new_tokens - chunk) / 2.0)
    size = storage_bytes(precision.kv_cache)
    entries = (each.count * each.attention.kv_elements_per_token(group.tp) * size for each in model.layer_groups)
    return as_array(seen * (group.cp - 1) / group.cp * sum(entries, 0.0))


def split_kv_bytes(model: Model, sequences: FloatLike, group: ContextGroup) -> Array:
    """Queries and partial outputs that one chip sends in a decode pass of a group [bytes].

    Each rank holds the new tokens of 1/cp of the group's `sequences` and sends their queries to the cp - 1 other ranks;
    it returns the partial outputs for the queries of the others, with one softmax sum per head.
    """
    others = (group.cp - 1) / group.cp
    # the kernel reads queries and writes outputs in bf16; 4 bytes of softmax sum per head
    kinds = [(each.attention, each.count) for each in model.layer_groups]
    total = sum(
        count * np.ceil(kind.num_q_heads / as_array(group.tp)) * (kind.decode_io_elements * 2.0 + 4.0)
        for kind, count in kinds
    )
    return as_array(sequences * others * total)


def exchange_s(
    engine: Engine,
    cluster: Cluster,
    num_bytes: FloatLike,
    group: ContextGroup,
    op_class: Literal["all_gather", "all_to_all"],
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
    features = {**engine.table.features(whole), f.TOKENS: n / group.cp, f.LOGIT_ROWS: n / group.cp}
    device = (engine.time_table(False).seconds(features, threads=threads) + engine.skew_s()) * engine.stage_imbalance
    if group.cp > 1:
        tp = as_array(group.tp)
        wide = replace(group, tp=tp[:, None] if tp.ndim else tp)
        device = device + exchange_s(engine, cluster, split_kv_bytes(model, n, wide), wide, "all_to_all")
    return behind(device, engine.host_s(n / group.cp, n / group.cp, prompts=False))
