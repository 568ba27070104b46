"""A rack and pipelines of racks: memory of a chip, exchange between experts, bubbles, links between racks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, plain, positive
from rackline.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipMemory:
    """Bytes that one chip holds.

    Args:
        weights_bytes: its share of the weights [bytes].
        kv_bytes: its share of the KV cache of all sequences in flight [bytes].
        total_bytes: both [bytes].
    """

    weights_bytes: float | NDArray[np.float64]
    kv_bytes: float | NDArray[np.float64]
    total_bytes: float | NDArray[np.float64]


@positive(zero=("micro_batch_size", "context_len", "kv_bytes_per_token"))
def chip_memory(
    total_params: Num,
    weight_bytes: Num,
    micro_batch_size: Num,
    context_len: Num,
    kv_bytes_per_token: Num,
    expert_parallel: Num,
    pipeline_stages: Num | float = 1.0,
) -> ChipMemory:
    """Weights and KV cache per chip of an expert-parallel rack in a pipeline of racks.

    c = N_total * weight_bytes / (E * P) + b * L * kv_bytes_per_token / E

    Args:
        total_params: N_total [elements], any shape.
        weight_bytes: bytes per weight [bytes], broadcasts.
        micro_batch_size: b, sequences of one micro-batch [count], 0 allowed, broadcasts.
        context_len: L [tokens], 0 allowed, broadcasts.
        kv_bytes_per_token: KV cache of one token over all layers [bytes], 0 allowed, broadcasts.
        expert_parallel: E, chips that share one stage [count], broadcasts.
        pipeline_stages: P [count], broadcasts.

    Returns:
        Bytes by kind, broadcast shape.

    Raises:
        InputError: a value that is negative or not finite, or a 0 where none is allowed.

    Assumes: perfect sharding; P micro-batches in flight, so that P cancels for the KV cache: each chip keeps
        1/P of the layers of P times as many sequences.

    Sources: lecture C67, C68, C69, C70, C72.

    >>> chip_memory(700e9, 1.0, 2400.0, 100e3, 2048.0, 64.0, 4.0)
    ChipMemory(weights_bytes=2734375000.0, kv_bytes=7680000000.0, total_bytes=10414375000.0)
    """
    weights = total_params * weight_bytes / (expert_parallel * pipeline_stages)
    # P micro-batches in flight, each with 1/P of the layers here
    kv = micro_batch_size * context_len * kv_bytes_per_token / expert_parallel
    return ChipMemory(weights_bytes=plain(weights), kv_bytes=plain(kv), total_bytes=plain(weights + kv))


@positive()
def scale_up_over_scale_out_time(scale_up_over_scale_out: Num, active_experts: Num, layers_per_stage: Num) -> Num:
    """Time of the traffic inside a rack over the time of the hop to the next rack of a pipeline.

    t_up / t_out = active_experts * layers_per_stage * 2 / (W_up / W_out)

    Args:
        scale_up_over_scale_out: W_up / W_out, bandwidths per chip, about 8 [ratio], any shape.
        active_experts: experts that each token is sent to [count], broadcasts.
        layers_per_stage: mixture layers between two hops [count], broadcasts.

    Returns:
        Ratio, broadcast shape; at least 1 means that the link between racks is not the bottleneck.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: each active expert is on another chip and tokens have the same width on both links.

    Sources: lecture C46, C55, C56.

    >>> scale_up_over_scale_out_time(8.0, 32.0, 1.0)
    8.0
    """
    # 2: a token is dispatched to its experts and combined from them, but crosses to the next rack once
    return plain(2.0 * active_experts * layers_per_stage / scale_up_over_scale_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStep:
    """One token of every sequence in a pipeline of stages whose last returns to the first.

    Args:
        token_s: time from one token of a sequence to its next [s].
        hop_s: of it, time between the stages [s].
        idle_share: share of each stage's time without work.
        tokens_per_s: of all micro-batches together [tokens/s].
    """

    token_s: float | NDArray[np.float64]
    hop_s: float | NDArray[np.float64]
    idle_share: float | NDArray[np.float64]
    tokens_per_s: float | NDArray[np.float64]


@positive(zero=("hop_seconds",))
def ring_step(
    pass_seconds: Num,
    pipeline_stages: Num,
    micro_batches: Num,
    micro_batch_size: Num,
    hop_seconds: Num | float = 0.0,
) -> RingStep:
    """Decode in a ring of stages: no change of latency except for the hops, and no idle time once micro-batches ≥
    stages.

    token = max(pass + P * hop, M * pass / P),   idle = 1 - M * pass / (P * token)

    Args:
        pass_seconds: time of a micro-batch through all layers, on the chips of one stage after the other [s].
        pipeline_stages: P [count], broadcasts.
        micro_batches: M in flight [count], broadcasts.
        micro_batch_size: sequences of one [count], broadcasts.
        hop_seconds: transfer from a stage to the next, and from the last to the first [s], 0 allowed, broadcasts.

    Returns:
        Times and shares, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite (0 allowed for hop_seconds).

    Assumes: equal stages; a stage sends while it works on the next micro-batch. With hops and M = P each stage waits P
    * hop in every round; M = P + 1 or more hide it, at the same time per token.

    Sources: lecture C60-C62, C69 (M = P), C74, C75 (hops add up).

    >>> ring_step(0.020, 4.0, 4.0, 2000.0).idle_share, ring_step(0.020, 4.0, 1.0, 2000.0).idle_share
    (0.0, 0.75)
    >>> round(ring_step(0.020, 4.0, 4.0, 2000.0, 0.0025).token_s, 4)
    0.03
    """
    hops = np.where(pipeline_stages > 1.0, pipeline_stages * hop_seconds, 0.0)
    token = np.maximum(pass_seconds + hops, micro_batches * pass_seconds / pipeline_stages)
    return RingStep(
        token_s=plain(token),
        hop_s=plain(hops + 0.0 * token),
        idle_share=plain(np.maximum(1.0 - micro_batches * pass_seconds / (pipeline_stages * token), 0.0)),
        tokens_per_s=plain(micro_batches * micro_batch_size / token),
    )


@positive()
def exchange_step_s(
    tokens_per_chip: Num,
    experts_per_token: Num,
    d_model: Num,
    link_bytes_per_s: Num,
    num_layers: Num,
    dispatch_bytes: Num | float = 1.0,
    combine_bytes: Num | float = 2.0,
    micro_batches: Num | float = 2.0,
) -> Num:
    """Least time per output token when the links between experts are always busy.

    t = layers * micro_batches * (dispatch + combine) * tokens * experts * d_model / W

    Args:
        tokens_per_chip: tokens of one micro-batch on one chip [tokens], any shape.
        experts_per_token: chips that each token is sent to, shared experts counted when they are remote [count].
        d_model: width of the residual stream [elements].
        link_bytes_per_s: link of one chip, each way [bytes/s].
        num_layers: layers with an exchange [count].
        dispatch_bytes, combine_bytes: bytes per element, 1 for fp8 and 2 for bf16 [bytes].
        micro_batches: micro-batches that take turns on the links; 2 if one computes while the other communicates
            [count].

    Returns:
        Time per output token [s], broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: every copy leaves the chip; no latency; compute is fully hidden.

    Sources: Zhao et al., ISCA 2025, arXiv:2505.09343 section 2.3.2: 14.76 ms on 400 Gb/s InfiniBand and 0.82 ms on
        GB200 NVL72, with 32 tokens, 9 experts and a width of 7000.

    >>> round(exchange_step_s(32.0, 9.0, 7000.0, 50e9, 61.0) * 1e3, 2)
    14.76
    >>> round(exchange_step_s(32.0, 9.0, 7000.0, 900e9, 61.0) * 1e3, 2)
    0.82
    """
    return plain(
        num_layers
        * micro_batches
        * (dispatch_bytes + combine_bytes)
        * tokens_per_chip
        * experts_per_token
        * d_model
        / link_bytes_per_s
    )


@positive(at_least_one=("pipeline_stages", "micro_batches"))
def flush_bubble_share(pipeline_stages: Num, micro_batches: Num) -> Num:
    """Idle share of a stage's time when the pipeline is flushed before the weights change.

    idle = (P - 1) / (M + P - 1)

    Args:
        pipeline_stages: P [count], any shape.
        micro_batches: M of one batch [count], broadcasts.

    Returns:
        Share, broadcast shape.

    Raises:
        InputError: less than one stage or micro-batch.

    Assumes: equal stages; the backward of a stage takes a fixed multiple of its forward; no overlap of batches.

    Sources: Huang et al. 2019, GPipe, arXiv:1811.06965; lecture C63 (4 stages, 4 micro-batches: 6 of 14 slots).

    >>> round(flush_bubble_share(4.0, 4.0), 3)
    0.429
    """
    return plain((pipeline_stages - 1.0) / (micro_batches + pipeline_stages - 1.0))


@positive(at_least_one=("pipeline_stages", "micro_batches"))
def stale_updates(pipeline_stages: Num, micro_batches: Num) -> Num:
    """Weight updates that a forward pass at the first stage misses when batches follow each other without a flush.

    u = ceil((P - 1) / M)

    Args:
        pipeline_stages: P [count], any shape.
        micro_batches: M of one batch [count], broadcasts.

    Returns:
        Updates [count], broadcast shape; the number of older weight versions kept for the backward pass.

    Raises:
        InputError: less than one stage or micro-batch.

    Assumes: one forward and one backward pass in turn (1F1B); a stage updates its weights as soon as it has all
    gradients of a batch.

    Sources: Harlap et al. 2018, PipeDream, arXiv:1806.03377; lecture C63, flash card Q12.

    >>> stale_updates(4.0, 4.0), stale_updates(4.0, 1.0), stale_updates(1.0, 8.0)
    (1.0, 3.0, 0.0)
    """
    return plain(np.ceil((pipeline_stages - 1.0) / micro_batches))


def stage_imbalance(layer_costs: Sequence[float], pipeline_stages: int) -> float:
    """Work of the busiest stage over the mean, with consecutive layers split into stages of nearly equal number.

    Args:
        layer_costs: work of each layer, in order, in any unit.
        pipeline_stages: P [count].

    Returns:
        Ratio, at least 1.

    Raises:
        InputError: fewer layers than stages, or no stage.

    Assumes: the first stages take the remaining layers.

    Sources: flash card Q14: layers that differ unbalance the stages.

    >>> stage_imbalance([1.0, 1.0, 1.0, 5.0], 2)
    1.5
    """
    require(
        1 <= pipeline_stages <= len(layer_costs),
        what="pipeline_stages",
        given=pipeline_stages,
        allowed=f"1 to {len(layer_costs)} layers",
    )
    stages = [float(part.sum()) for part in np.array_split(np.asarray(layer_costs, dtype=float), pipeline_stages)]
    return max(stages) * pipeline_stages / sum(stages)
