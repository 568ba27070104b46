"""Cost and output of a pass: dollars per token, its lower bound, tokens per second, batch trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLatency:
    """Time from a request's arrival to the end of the pass that carries it.

    Args:
        mean_s: mean over arrivals that are uniform in the interval [s].
        worst_s: for a request that just missed a train [s].
    """

    mean_s: float | NDArray[np.float64]
    worst_s: float | NDArray[np.float64]


def cost_per_token_usd(batch_size: Num, pass_seconds: Num, usd_per_hour: Num) -> Num:
    """Price of one generated token: rent of the chips during a pass, shared by its sequences.

    cost = usd_per_hour / 3600 * t_pass / B

    Args:
        batch_size: B, tokens that one pass generates [count], any shape.
        pass_seconds: time of the pass [s], broadcasts.
        usd_per_hour: rent of all chips of the pass [USD/hour], broadcasts.

    Returns:
        USD per token, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: the chips are always busy; prefill is paid elsewhere.

    Sources: lecture C10.

    >>> round(cost_per_token_usd(2400.0, 0.020, 72 * 2.0) * 1e6, 2)
    0.33
    """
    b, t, usd = checked(
        "cost_per_token_usd", batch_size=batch_size, pass_seconds=pass_seconds, usd_per_hour=usd_per_hour
    )
    return plain(usd / SECONDS_PER_HOUR * t / b)


def cost_floor_usd(
    active_params: Num,
    context_len: Num,
    kv_bytes_per_token: Num,
    flop_per_s: Num,
    hbm_bytes_per_s: Num,
    usd_per_hour: Num,
) -> Num:
    """Lower bound of the cost per token over all batch sizes: its own products, or reads of its own KV.

    floor = usd_per_hour / 3600 * max(2 * N_active / flop_per_s, L * kv_bytes_per_token / hbm_bytes_per_s)

    Args:
        active_params: N_active [elements], any shape.
        context_len: L [tokens], 0 allowed, broadcasts.
        kv_bytes_per_token: KV cache of one token over all layers [bytes], 0 allowed, broadcasts.
        flop_per_s: dense compute rate of all chips of the pass [FLOP/s], broadcasts.
        hbm_bytes_per_s: memory bandwidth of the same chips [bytes/s], broadcasts.
        usd_per_hour: rent of the same chips [USD/hour], broadcasts.

    Returns:
        USD per token, broadcast shape.

    Raises:
        InputError: a value that is negative or not finite, or a 0 where none is allowed.

    Assumes: `pass_s`. Below the crossover context the floor is reached at the balance batch with KV; above it
        only approached.

    Sources: lecture C11, C12, C97.

    >>> round(cost_floor_usd(100e9, 0.0, 2048.0, 72 * 5e15, 72 * 8e12, 144.0) * 1e6, 4)
    0.0222
    """
    n, c, k, f, w, usd = checked(
        "cost_floor_usd",
        zero=("context_len", "kv_bytes_per_token"),
        active_params=active_params,
        context_len=context_len,
        kv_bytes_per_token=kv_bytes_per_token,
        flop_per_s=flop_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
        usd_per_hour=usd_per_hour,
    )
    return plain(usd / SECONDS_PER_HOUR * np.maximum(2.0 * n / f, c * k / w))


def tokens_per_s(batch_size: Num, pass_seconds: Num) -> Num:
    """Output tokens per second of all chips that share one pass.

    rate = B / t_pass

    Args:
        batch_size: B [count], any shape.
        pass_seconds: time from one pass to the next [s], broadcasts.

    Returns:
        Tokens per second, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: every slot of the batch is filled.

    Sources: lecture C32.

    >>> tokens_per_s(2000.0, 1 / 64)
    128000.0
    """
    b, t = checked("tokens_per_s", batch_size=batch_size, pass_seconds=pass_seconds)
    return plain(b / t)


def train_latency(interval_s: Num, ride_s: Num | None = None) -> TrainLatency:
    """Latency when a batch departs every fixed interval, full or not.

    mean = T / 2 + ride;  worst = T + ride

    Args:
        interval_s: T, time between departures [s], any shape.
        ride_s: time of the pass itself [s], broadcasts; the interval when not given.

    Returns:
        Mean and worst latency in seconds, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: arrivals are uniform in the interval, and each finds a place on the next train.

    Sources: lecture C26, C27 (40 ms at 20 ms intervals).

    >>> train_latency(0.020)
    TrainLatency(mean_s=0.03, worst_s=0.04)
    """
    t, ride = checked("train_latency", interval_s=interval_s, ride_s=interval_s if ride_s is None else ride_s)
    return TrainLatency(mean_s=plain(t / 2.0 + ride), worst_s=plain(t + ride))
