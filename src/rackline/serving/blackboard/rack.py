"""Memory of one chip of a rack, and whether a pipeline of racks is limited by the links between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain


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
    n, w, b, c, k, e, p = checked(
        "chip_memory",
        zero=("micro_batch_size", "context_len", "kv_bytes_per_token"),
        total_params=total_params,
        weight_bytes=weight_bytes,
        micro_batch_size=micro_batch_size,
        context_len=context_len,
        kv_bytes_per_token=kv_bytes_per_token,
        expert_parallel=expert_parallel,
        pipeline_stages=pipeline_stages,
    )
    weights = n * w / (e * p)
    # P micro-batches in flight, each with 1/P of the layers here
    kv = b * c * k / e
    return ChipMemory(weights_bytes=plain(weights), kv_bytes=plain(kv), total_bytes=plain(weights + kv))


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
    r, n, layers = checked(
        "scale_up_over_scale_out_time",
        scale_up_over_scale_out=scale_up_over_scale_out,
        active_experts=active_experts,
        layers_per_stage=layers_per_stage,
    )
    # 2: a token is dispatched to its experts and combined from them, but crosses to the next rack once
    return plain(2.0 * n * layers / r)
