"""Time and cost of one pass: compute time, memory time, their maximum, the latency floor; dollars and tokens/s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain, positive


@positive()
def dimensionless_ridge(flop_per_s: Num, hbm_bytes_per_s: Num, weight_bytes: Num) -> Num:
    """Multiplies that a chip does in the time in which it reads one weight: the lecture's "300".

    R = (flop_per_s / 2) * weight_bytes / hbm_bytes_per_s

    Args:
        flop_per_s: peak dense rate of the data type [FLOP/s], any shape.
        hbm_bytes_per_s: memory bandwidth [bytes/s], broadcasts.
        weight_bytes: bytes per weight, 0.5 for FP4 [bytes], broadcasts.

    Returns:
        R [multiplies per weight read], broadcast shape. The raw FLOP per byte is 2 * R / weight_bytes.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: peak rates; the same R at each precision only where the rate doubles as the width halves.

    Sources: lecture C18, C19.

    >>> round(dimensionless_ridge(989e12, 3.35e12, 2.0), 1)
    295.2
    """
    return plain(flop_per_s / 2.0 * weight_bytes / hbm_bytes_per_s)


@positive()
def compute_s(batch_size: Num, active_params: Num, flop_per_s: Num, tokens_per_sequence: Num | float = 1.0) -> Num:
    """Time of the weight products of one pass.

    t_compute = 2 * B * n * N_active / flop_per_s

    Args:
        batch_size: B, sequences in the pass [count], any shape.
        active_params: N_active, parameters that one token is multiplied with [elements], broadcasts.
        flop_per_s: dense compute rate of all chips of the pass [FLOP/s], broadcasts.
        tokens_per_sequence: n, new tokens per sequence: 1 in decode, a chunk in prefill [tokens],
            broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: attention's own products are left out (C05; see `attention_equals_weights_context`).

    Sources: lecture C03, C106.

    >>> compute_s(250.0, 40e9, 1e15)
    0.02
    """
    return plain(2.0 * batch_size * tokens_per_sequence * active_params / flop_per_s)


@positive()
def weight_fetch_s(total_params: Num, weight_bytes: Num, hbm_bytes_per_s: Num, num_chips: Num | float = 1.0) -> Num:
    """Time to read all weights once with the memory of all chips of a scale-up domain.

    t_weights = N_total * weight_bytes / (S * hbm_bytes_per_s)

    Args:
        total_params: N_total, parameters that are stored [elements], any shape.
        weight_bytes: bytes per weight [bytes], broadcasts.
        hbm_bytes_per_s: memory bandwidth of one chip [bytes/s], broadcasts.
        num_chips: S, chips that hold one copy and read at the same time [count], broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: perfect sharding. Pipeline stages do not count in S: one token is in one stage at a time.

    Sources: lecture C04, C76.

    >>> round(weight_fetch_s(671e9, 1.0, 3.35e12, 8.0), 4)
    0.025
    """
    return plain(total_params * weight_bytes / (num_chips * hbm_bytes_per_s))


@positive(zero=("context_len", "kv_bytes_per_token"))
def kv_fetch_s(batch_size: Num, context_len: Num, kv_bytes_per_token: Num, hbm_bytes_per_s: Num) -> Num:
    """Time to read the KV cache of every sequence of the batch once.

    t_kv = B * L * kv_bytes_per_token / hbm_bytes_per_s

    Args:
        batch_size: B [count], any shape.
        context_len: L, tokens read per sequence [tokens], 0 allowed, broadcasts.
        kv_bytes_per_token: KV cache of one token over all layers [bytes], 0 allowed, broadcasts.
        hbm_bytes_per_s: memory bandwidth of all chips of the pass [bytes/s], broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: a value that is negative or not finite, or a batch or bandwidth of 0.

    Assumes: dense attention; for sparse attention pass the tokens it reads (`sparse_read_tokens`).

    Sources: lecture C04.

    >>> kv_fetch_s(100.0, 10_000.0, 2_000.0, 2e12)
    0.001
    """
    return plain(batch_size * context_len * kv_bytes_per_token / hbm_bytes_per_s)


def memory_s(
    batch_size: Num,
    total_params: Num,
    weight_bytes: Num,
    context_len: Num,
    kv_bytes_per_token: Num,
    hbm_bytes_per_s: Num,
) -> Num:
    """Memory time of one pass: all weights once and the KV cache of every sequence.

    t_memory = (N_total * weight_bytes + B * L * kv_bytes_per_token) / hbm_bytes_per_s

    Args:
        batch_size: B [count], any shape.
        total_params: N_total [elements], broadcasts.
        weight_bytes: bytes per weight [bytes], broadcasts.
        context_len: L [tokens], 0 allowed, broadcasts.
        kv_bytes_per_token: KV cache of one token over all layers [bytes], 0 allowed, broadcasts.
        hbm_bytes_per_s: memory bandwidth of all chips of the pass [bytes/s], broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: see `weight_fetch_s` and `kv_fetch_s`.

    Assumes: every weight is read even at batch 1 (for a mixture of experts: all experts are touched).

    Sources: lecture C04.

    >>> memory_s(1.0, 700e9, 1.0, 0.0, 2048.0, 72 * 8e12)
    0.0012152777777777778
    """
    return plain(
        weight_fetch_s(total_params, weight_bytes, hbm_bytes_per_s)
        + kv_fetch_s(batch_size, context_len, kv_bytes_per_token, hbm_bytes_per_s)
    )


def pass_s(
    batch_size: Num,
    total_params: Num,
    active_params: Num,
    weight_bytes: Num,
    context_len: Num,
    kv_bytes_per_token: Num,
    flop_per_s: Num,
    hbm_bytes_per_s: Num,
) -> Num:
    """Lower bound of one decode pass: the slower of compute and memory.

    t = max(t_compute, t_memory)

    Args:
        batch_size, total_params, active_params, weight_bytes: as in `compute_s` and `memory_s`, any shape.
        context_len, kv_bytes_per_token, flop_per_s, hbm_bytes_per_s: the same, all broadcast.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: see `compute_s` and `memory_s`.

    Assumes: compute and memory overlap perfectly over the whole pass.

    Sources: lecture C02, C08.

    >>> round(pass_s(2400.0, 700e9, 37e9, 0.5, 100e3, 2048.0, 720e15, 576e12), 6)
    0.001461
    """
    memory = memory_s(batch_size, total_params, weight_bytes, context_len, kv_bytes_per_token, hbm_bytes_per_s)
    return plain(np.maximum(compute_s(batch_size, active_params, flop_per_s), memory))


def attention_then_weights_s(
    batch_size: Num,
    total_params: Num,
    active_params: Num,
    weight_bytes: Num,
    context_len: Num,
    kv_bytes_per_token: Num,
    flop_per_s: Num,
    hbm_bytes_per_s: Num,
) -> Num:
    """Time of one decode pass when the KV cache read is not overlapped.

    t = t_kv + max(t_compute, t_weights)

    Args:
        batch_size, total_params, active_params, weight_bytes: as in `compute_s` and `memory_s`, any shape.
        context_len, kv_bytes_per_token, flop_per_s, hbm_bytes_per_s: the same, all broadcast.

    Returns:
        Seconds, broadcast shape; never below `pass_s`.

    Raises:
        InputError: see `compute_s` and `memory_s`.

    Assumes: attention runs before or after the weight products, never at the same time, and is memory bound.

    Sources: scaling book, "All About Transformer Inference" (general step time).

    >>> round(attention_then_weights_s(256.0, 30e9, 30e9, 1.0, 8192.0, 100e3, 16 * 197e12, 16 * 8.2e11), 4)
    0.0209
    """
    weights = weight_fetch_s(total_params, weight_bytes, hbm_bytes_per_s)
    products = np.maximum(compute_s(batch_size, active_params, flop_per_s), weights)
    return plain(kv_fetch_s(batch_size, context_len, kv_bytes_per_token, hbm_bytes_per_s) + products)


@positive()
def mfu(batch_size: Num, active_params: Num, flop_per_s: Num, pass_seconds: Num) -> Num:
    """Model FLOP utilisation: useful FLOP over what the chips could have done in the pass.

    MFU = t_compute / t_pass

    Args:
        batch_size: B [count], any shape.
        active_params: N_active [elements], broadcasts.
        flop_per_s: dense compute rate of all chips of the pass [FLOP/s], broadcasts.
        pass_seconds: time of the pass [s], broadcasts.

    Returns:
        Fraction, broadcast shape; above 1 says that `pass_seconds` is below the compute time.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: 2 FLOP per active parameter and token; attention's FLOP are not counted as useful.

    Sources: lecture C03, C16.

    >>> mfu(100.0, 1e9, 1e12, 0.4)
    0.5
    """
    return plain(compute_s(batch_size, active_params, flop_per_s) / pass_seconds)


def latency_floor_s(total_params: Num, weight_bytes: Num, hbm_bytes_per_s: Num) -> Num:
    """Lower bound of the time of a pass over all batch sizes: all parameters must be read once.

    t_floor = N_total * weight_bytes / hbm_bytes_per_s

    Args:
        total_params: N_total [elements], any shape.
        weight_bytes: bytes per weight [bytes], broadcasts.
        hbm_bytes_per_s: memory bandwidth of all chips of the pass [bytes/s], broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: `memory_s` at vanishing KV; a tiny batch of a mixture of experts may touch fewer experts.

    Sources: lecture C09.

    >>> latency_floor_s(70e9, 2.0, 8 * 3.5e12)
    0.005
    """
    return weight_fetch_s(total_params, weight_bytes, hbm_bytes_per_s)


@positive()
def hbm_drain_s(hbm_bytes: Num, hbm_bytes_per_s: Num) -> Num:
    """Time to read all of a memory once: the natural interval between passes.

    t_drain = capacity / bandwidth

    Args:
        hbm_bytes: capacity [bytes], any shape.
        hbm_bytes_per_s: bandwidth [bytes/s], broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: the memory is full of weights and KV, and a pass reads each byte once (C30).

    Sources: lecture C28, C29, C30.

    >>> hbm_drain_s(288e9, 20e12)
    0.0144
    """
    return plain(hbm_bytes / hbm_bytes_per_s)


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


@positive()
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
    return plain(usd_per_hour / SECONDS_PER_HOUR * pass_seconds / batch_size)


@positive(zero=("context_len", "kv_bytes_per_token"))
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
    return plain(
        usd_per_hour
        / SECONDS_PER_HOUR
        * np.maximum(2.0 * active_params / flop_per_s, context_len * kv_bytes_per_token / hbm_bytes_per_s)
    )


@positive()
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
    return plain(batch_size / pass_seconds)


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
