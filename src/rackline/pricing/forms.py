"""Price from architecture and back on the ideal roofline: closed forms of the price per token.

A chip rented at q dollars per second, sold at X = (1 + margin) / utilisation times its bare cost, does

    input token:   p_in  = X · q · 2 N_active / (mfu · flop_per_s)
    output token:  p_out = X · q · max(2 N_active / (mfu · flop_per_s), bytes / (share · hbm_bytes_per_s))

where bytes is what one output token makes the memory read: its share of the weights and its own KV cache.
"""

from __future__ import annotations

import numpy as np

from rackline.checked import Num, checked, plain
from rackline.passes.features import Array, as_array


def price_over_cost(margin: float, utilisation: float) -> float:
    """X, what is asked over what it costs.

    X = (1 + margin) / utilisation

    Args:
        margin: price over the cost at that utilisation, less 1 [ratio].
        utilisation: share of the chip-hours that are sold [fraction].
    """
    return (1.0 + margin) / utilisation


def input_usd_per_token(
    active_params: Num, flop_per_s: Num, mfu: Num, usd_per_chip_s: Num, price_over_cost: Num
) -> Num:
    """Price of one prompt token: prefill is bound by compute.

    p_in = X * q * 2 * N_active / (mfu * flop_per_s)

    Args:
        active_params: N_active [elements], any shape.
        flop_per_s: dense peak of a chip [FLOP/s], broadcasts.
        mfu: share of the peak that prefill reaches [fraction], broadcasts.
        usd_per_chip_s: q, rent of the chip [USD/s], broadcasts.
        price_over_cost: X = (1 + margin) / utilisation [ratio], broadcasts.

    Returns:
        USD per token, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: attention's own products are left out (C05, C111).

    Sources: lecture C105, C106, C107.

    >>> round(input_usd_per_token(100e9, 2e15, 0.5, 2 / 3600, 2.0) * 1e6, 3)
    0.222
    """
    n, f, m, q, x = checked(
        "input_usd_per_token",
        active_params=active_params,
        flop_per_s=flop_per_s,
        mfu=mfu,
        usd_per_chip_s=usd_per_chip_s,
        price_over_cost=price_over_cost,
    )
    return plain(x * q * 2.0 * n / (m * f))


def output_usd_per_token(
    active_params: Num,
    bytes_per_output_token: Num,
    flop_per_s: Num,
    mfu: Num,
    hbm_bytes_per_s: Num,
    hbm_share: Num,
    usd_per_chip_s: Num,
    price_over_cost: Num,
) -> Num:
    """Price of one generated token: the slower of its products and its reads.

    p_out = X * q * max(2 * N_active / (mfu * flop_per_s), bytes / (hbm_share * hbm_bytes_per_s))

    Args:
        active_params, flop_per_s, mfu, usd_per_chip_s, price_over_cost: as in `input_usd_per_token`.
        bytes_per_output_token: weights over the batch plus KV of the context [bytes], broadcasts.
        hbm_bytes_per_s: memory bandwidth of a chip [bytes/s], broadcasts.
        hbm_share: share of it that decode reaches [fraction], broadcasts.

    Returns:
        USD per token, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: `pass_s` of the blackboard with measured shares of the peaks.

    Sources: lecture C10, C97, C107.

    >>> round(output_usd_per_token(100e9, 1e9, 2e15, 0.5, 3e12, 0.75, 2 / 3600, 2.0) * 1e6, 3)
    0.494
    """
    b, w, s, q, x = checked(
        "output_usd_per_token",
        bytes_per_output_token=bytes_per_output_token,
        hbm_bytes_per_s=hbm_bytes_per_s,
        hbm_share=hbm_share,
        usd_per_chip_s=usd_per_chip_s,
        price_over_cost=price_over_cost,
    )
    compute = input_usd_per_token(active_params, flop_per_s, mfu, usd_per_chip_s, price_over_cost)
    return plain(np.maximum(compute, x * q * b / (s * w)))


def active_params_from_input_price(
    usd_per_token: Num, flop_per_s: Num, mfu: Num, usd_per_chip_s: Num, price_over_cost: Num
) -> Num:
    """Active parameters of a model whose prompt tokens have this price.

    N_active = p_in * mfu * flop_per_s / (2 * X * q)

    Args:
        usd_per_token: p_in [USD], any shape.
        flop_per_s, mfu, usd_per_chip_s, price_over_cost: as in `input_usd_per_token`.

    Returns:
        Elements, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: `input_usd_per_token`.

    Sources: lecture C104, C107.

    >>> p = input_usd_per_token(100e9, 2e15, 0.5, 2 / 3600, 2.0)
    >>> round(active_params_from_input_price(p, 2e15, 0.5, 2 / 3600, 2.0) / 1e9, 6)
    100.0
    """
    p, f, m, q, x = checked(
        "active_params_from_input_price",
        usd_per_token=usd_per_token,
        flop_per_s=flop_per_s,
        mfu=mfu,
        usd_per_chip_s=usd_per_chip_s,
        price_over_cost=price_over_cost,
    )
    return plain(p * m * f / (2.0 * x * q))


def output_cost_over_price(input_over_output_price: Num, input_over_output: Num) -> tuple[Array, Array]:
    """Least and most that an output token may cost of what is charged for it, X apart: a request pays its own cost.

    A request of r prompt tokens per output token pays p_out + r * p_in for c_out + r * c_in. Its prompt costs
    something, and an output token costs no less than a prompt token:

        (p_out + r * p_in) / (1 + r) <= X * c_out <= p_out + r * p_in

    Args:
        input_over_output_price: p_in / p_out; 0 where only output is priced [ratio], any shape.
        input_over_output: r, uncached prompt tokens per output token [ratio], broadcasts.

    Returns:
        Both ends over p_out [ratio], broadcast shape.

    >>> [round(float(end), 3) for end in output_cost_over_price(0.25, 15.0)]
    [0.297, 4.75]
    """
    price, r = as_array(input_over_output_price), as_array(input_over_output)
    if not np.any(price):
        return np.ones_like(r), np.ones_like(r)
    most = 1.0 + r * price
    return most / (1.0 + r), most


def bytes_from_output_price(
    usd_per_token: Num, hbm_bytes_per_s: Num, hbm_share: Num, usd_per_chip_s: Num, price_over_cost: Num
) -> Num:
    """Bytes that the price of an output token pays to read.

    bytes = p_out * hbm_share * hbm_bytes_per_s / (X * q)

    Args:
        usd_per_token: p_out [USD], any shape.
        hbm_bytes_per_s, hbm_share, usd_per_chip_s, price_over_cost: as in `output_usd_per_token`.

    Returns:
        Bytes, broadcast shape: what is read where decode is bound by memory, an upper bound where it is not.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: `output_usd_per_token`.

    Sources: lecture C104, C107.

    >>> round(bytes_from_output_price(0.494e-6, 3e12, 0.75, 2 / 3600, 2.0) / 1e9, 2)
    1.0
    """
    p, w, s, q, x = checked(
        "bytes_from_output_price",
        usd_per_token=usd_per_token,
        hbm_bytes_per_s=hbm_bytes_per_s,
        hbm_share=hbm_share,
        usd_per_chip_s=usd_per_chip_s,
        price_over_cost=price_over_cost,
    )
    return plain(p * s * w / (x * q))


def kv_bytes_from_step(
    usd_per_token: Num,
    context_len: Num,
    hbm_bytes_per_s: Num,
    hbm_share: Num,
    usd_per_chip_s: Num,
    price_over_cost: Num,
) -> Num:
    """KV bytes per token of a model whose price steps up where reading the cache takes as long as the products.

    kv_bytes_per_token = p_in * hbm_share * hbm_bytes_per_s / (X * q * L)

    The compute rate and the active parameters of `kv_bytes_per_token_from_crossover` cancel against those that the
    input price reveals: what is left are dollars, bandwidth and the context.

    Args:
        usd_per_token: p_in below the step [USD], any shape.
        context_len: L, where the price steps up [tokens], broadcasts.
        hbm_bytes_per_s, hbm_share, usd_per_chip_s, price_over_cost: as in `output_usd_per_token`.

    Returns:
        Bytes per token, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: the step stands at the crossover; decode reaches the MFU of prefill below it.

    Sources: lecture C98, C99 with `input_usd_per_token` put in for N_active.

    >>> round(kv_bytes_from_step(0.2222e-6, 200e3, 3e12, 0.75, 2 / 3600, 2.0))
    2250
    """
    (length,) = checked("kv_bytes_from_step", context_len=context_len)
    total = bytes_from_output_price(usd_per_token, hbm_bytes_per_s, hbm_share, usd_per_chip_s, price_over_cost)
    return plain(total / length)


def storage_usd_per_token_s(
    usd_first: float, lifetime_first_s: float, usd_second: float, lifetime_second_s: float
) -> float:
    """Price of keeping a token for a second, from two writes of different lifetime.

    slope = (p_2 - p_1) / (t_2 - t_1)

    Args:
        usd_first, usd_second: prices of writing one token [USD].
        lifetime_first_s, lifetime_second_s: how long each keeps it [s].

    Returns:
        USD per token and second; what is left of the first price beyond the input price and the slope is the write.

    Raises:
        InputError: a value that is not positive, or equal lifetimes.

    Sources: lecture C119; ledger C116 (hold cost is linear in time).

    >>> round(storage_usd_per_token_s(6.25e-6, 300.0, 10e-6, 3600.0) * 3600 * 1e6, 2)
    4.09
    """
    a, s, b, t = checked(
        "storage_usd_per_token_s",
        usd_first=usd_first,
        lifetime_first_s=lifetime_first_s,
        usd_second=usd_second,
        lifetime_second_s=lifetime_second_s,
    )
    (_,) = checked("storage_usd_per_token_s", lifetime_gap_s=abs(t - s))
    return plain((b - a) / (t - s))
