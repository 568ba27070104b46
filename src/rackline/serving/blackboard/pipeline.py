"""A pipeline of racks in inference, and the exchange between the experts of one layer: time, idle share, bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain


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
    t, p, m, b, h = checked(
        "ring_step",
        zero=("hop_seconds",),
        pass_seconds=pass_seconds,
        pipeline_stages=pipeline_stages,
        micro_batches=micro_batches,
        micro_batch_size=micro_batch_size,
        hop_seconds=hop_seconds,
    )
    hops = np.where(p > 1.0, p * h, 0.0)
    token = np.maximum(t + hops, m * t / p)
    return RingStep(
        token_s=plain(token),
        hop_s=plain(hops + 0.0 * token),
        idle_share=plain(np.maximum(1.0 - m * t / (p * token), 0.0)),
        tokens_per_s=plain(m * b / token),
    )


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
    n, k, d, w, layers, dispatch, combine, m = checked(
        "exchange_step_s",
        tokens_per_chip=tokens_per_chip,
        experts_per_token=experts_per_token,
        d_model=d_model,
        link_bytes_per_s=link_bytes_per_s,
        num_layers=num_layers,
        dispatch_bytes=dispatch_bytes,
        combine_bytes=combine_bytes,
        micro_batches=micro_batches,
    )
    return plain(layers * m * (dispatch + combine) * n * k * d / w)
