"""Fast and slow mode: the effect of a smaller or larger batch on speed and price.

Everything is relative to the compute time of one sequence. Two numbers describe a model on its chips:
``balance_batch`` B*, the balance without KV (the weight read costs as much as B* sequences of compute), and
``kv_over_compute`` k, the slope of the KV read over the slope of compute in the batch, which is L / L*
(`crossover_context`). Then

    t(B) = max(B* + k * B, B)          c(B) = t(B) / B = max(B* / B + k, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain, positive
from rackline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeTrade:
    """A mode compared with the normal one.

    Args:
        batch_size: sequences per pass of the mode [count]; NaN where no batch of at least 1 is feasible.
        speed_ratio: tokens per second and user over the normal mode's [ratio]; 2 = twice as fast.
        price_ratio: cost per token over the normal mode's [ratio]; NaN where batch_size is.
        feasible: whether there is such a batch.
        reason: why not, where it is not; empty when everything is feasible.
    """

    batch_size: float | NDArray[np.float64]
    speed_ratio: float | NDArray[np.float64]
    price_ratio: float | NDArray[np.float64]
    feasible: bool | NDArray[np.bool_]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeBatches:
    """The two batches that a published speed ratio and price ratio reveal.

    Args:
        normal_batch: sequences per pass in the normal mode [count].
        fast_batch: sequences per pass in the fast mode [count].
    """

    normal_batch: float | NDArray[np.float64]
    fast_batch: float | NDArray[np.float64]


def _time(batch: Any, balance: Any, k: Any) -> Any:
    return np.maximum(balance + k * batch, batch)


@positive(zero=("kv_over_compute",))
def batch_cost_ratio(batch_size: Num, balance_batch: Num, kv_over_compute: Num | float = 0.0) -> Num:
    """Cost per token at a batch over the cost floor.

    c(B) / c_min = max(B* / B + k, 1) / max(k, 1)

    Args:
        batch_size: B [count], any shape.
        balance_batch: B* without KV [count], broadcasts.
        kv_over_compute: k = L / L* [ratio], 0 = KV ignored, broadcasts.

    Returns:
        Ratio >= 1, broadcast shape; at B = 1 without KV it is B* itself.

    Raises:
        InputError: a value that is negative or not finite, or a batch of 0.

    Assumes: `pass_s`.

    Sources: lecture C11, C13.

    >>> batch_cost_ratio(1.0, 2400.0)
    2400.0
    """
    return plain(_time(batch_size, balance_batch, kv_over_compute) / batch_size / np.maximum(kv_over_compute, 1.0))


@positive(zero=("kv_over_compute",))
def max_speed_ratio(normal_batch: Num, balance_batch: Num, kv_over_compute: Num | float = 0.0) -> Num:
    """The highest speed-up of a user with a smaller batch, down to the latency floor.

    max speed = t(B_normal) / B* = max(1 + k * B_normal / B*, B_normal / B*)

    Args:
        normal_batch: sequences per pass in the normal mode [count], any shape.
        balance_batch: B* without KV [count], broadcasts.
        kv_over_compute: k = L / L* [ratio], broadcasts.

    Returns:
        Ratio >= 1, broadcast shape. Without KV it is 1 up to B* and B_normal / B* beyond.

    Raises:
        InputError: a value that is negative or not finite, or a batch of 0.

    Assumes: `pass_s`; the limit of few sequences, whose own KV is negligible.

    Sources: lecture C09, C14; ledger check G05.

    >>> max_speed_ratio(6000.0, 2400.0)
    2.5
    """
    return plain(_time(normal_batch, balance_batch, kv_over_compute) / balance_batch)


@positive(zero=("kv_over_compute",))
def max_speed_ratio_at_knee(kv_over_compute: Num) -> Num:
    """The highest speed-up with a smaller batch when the normal batch is where the cost reaches its floor.

    max speed = 1 / (1 - k)          the knee: B = B* / (1 - k)

    Args:
        kv_over_compute: k = L / L* [ratio], 0 allowed, any shape.

    Returns:
        Ratio >= 1; inf for k >= 1, where the floor is only approached.

    Raises:
        InputError: a value that is negative or not finite.

    Assumes: `pass_s`.

    Sources: lecture C14; ledger check G05.

    >>> max_speed_ratio_at_knee(0.6)
    2.5
    """
    below = kv_over_compute < 1.0
    return plain(np.where(below, 1.0 / np.where(below, 1.0 - kv_over_compute, 1.0), np.inf))


def mode_at_speed(
    normal_batch: Num, speed_ratio: Num, balance_batch: Num, kv_over_compute: Num | float = 0.0
) -> ModeTrade:
    """The cheapest batch that runs `speed_ratio` times as fast as the normal one, and what it costs.

    the largest B with t(B) <= t(B_normal) / speed_ratio

    Args:
        normal_batch: sequences per pass in the normal mode [count], any shape.
        speed_ratio: wanted speed over normal speed; below 1 asks for a slow mode [ratio], broadcasts.
        balance_batch: B* without KV [count], broadcasts.
        kv_over_compute: k = L / L* [ratio], 0 = KV ignored, broadcasts.

    Returns:
        The trade; `speed_ratio` is the one asked for.

    Raises:
        InputError: a value that is negative or not finite, or a 0 where none is allowed.

    Assumes: `pass_s`. Not a limit of one request's speed: speculative decoding changes t, not the batch.

    Sources: lecture C12, C14; ledger check G05.

    >>> mode_at_speed(6000.0, 2.0, 2400.0, 0.25).batch_size
    2400.0
    >>> mode_at_speed(6000.0, 3.0, 2400.0, 0.25).reason
    'faster than the latency floor allows'
    """
    normal, speed, star, k = np.broadcast_arrays(
        *checked(
            "mode_at_speed",
            zero=("kv_over_compute",),
            normal_batch=normal_batch,
            speed_ratio=speed_ratio,
            balance_batch=balance_batch,
            kv_over_compute=kv_over_compute,
        )
    )
    target = _time(normal, star, k) / speed
    room = target - star
    by_memory = np.divide(room, k, out=np.where(room >= 0.0, np.inf, -np.inf), where=k > 0.0)
    batch = np.minimum(target, by_memory)
    feasible = batch >= 1.0
    batch = np.where(feasible, batch, np.nan)
    # at the target time exactly, so the price is the ratio of the two t / B
    return _trade(batch, speed, normal / (batch * speed), feasible, "faster than the latency floor allows")


def mode_at_price(
    normal_batch: Num, price_ratio: Num, balance_batch: Num, kv_over_compute: Num | float = 0.0
) -> ModeTrade:
    """The fastest batch whose tokens cost `price_ratio` times the normal ones, and how fast it is.

    B = B* / (price_ratio * c(B_normal) - k)

    Args:
        normal_batch: sequences per pass in the normal mode [count], any shape.
        price_ratio: cost per token over the normal cost; below 1 asks for a slow mode [ratio], broadcasts.
        balance_batch: B* without KV [count], broadcasts.
        kv_over_compute: k = L / L* [ratio], 0 = KV ignored, broadcasts.

    Returns:
        The trade; `price_ratio` is the one asked for. Not feasible below the cost floor: this is why a slow
        mode hardly pays.

    Raises:
        InputError: a value that is negative or not finite, or a 0 where none is allowed.

    Assumes: `pass_s`; price follows cost.

    Sources: lecture C12, C14; ledger check G05 (100 times the price is no faster than 6 times).

    >>> trade = mode_at_price(6000.0, 6.0, 2400.0)
    >>> trade.batch_size, trade.speed_ratio
    (400.0, 2.5)
    """
    normal, price, star, k = np.broadcast_arrays(
        *checked(
            "mode_at_price",
            zero=("kv_over_compute",),
            normal_batch=normal_batch,
            price_ratio=price_ratio,
            balance_batch=balance_batch,
            kv_over_compute=kv_over_compute,
        )
    )
    cost = price * _time(normal, star, k) / normal
    # 1e-12: a price exactly at the floor must not fail because of rounding
    reachable = (cost >= 1.0 - 1e-12) & (cost > k)
    batch = np.where(reachable, star / np.where(reachable, cost - k, 1.0), np.nan)
    feasible = reachable & (batch >= 1.0)
    batch = np.where(feasible, batch, np.nan)
    speed = _time(normal, star, k) / _time(batch, star, k)
    return _trade(batch, speed, price, feasible, "below the cost floor, or above the cost of a batch of 1")


def mode_at_batch(
    normal_batch: Num, fast_batch: Num, balance_batch: Num, kv_over_compute: Num | float = 0.0
) -> ModeTrade:
    """Speed and price of one batch beside another.

    speed = t(B_normal) / t(B_fast);  price = c(B_fast) / c(B_normal)

    Args:
        normal_batch: sequences per pass in the normal mode [count], any shape.
        fast_batch: sequences per pass in the other mode [count], broadcasts.
        balance_batch: B* without KV [count], broadcasts.
        kv_over_compute: k = L / L* [ratio], 0 = KV ignored, broadcasts.

    Returns:
        The trade.

    Raises:
        InputError: a value that is negative or not finite, or a batch of 0.

    Assumes: `pass_s`.

    Sources: lecture C14; ledger check G05.

    >>> trade = mode_at_batch(6000.0, 400.0, 2400.0)
    >>> trade.speed_ratio, trade.price_ratio
    (2.5, 6.0)
    """
    normal, fast, star, k = np.broadcast_arrays(
        *checked(
            "mode_at_batch",
            zero=("kv_over_compute",),
            normal_batch=normal_batch,
            fast_batch=fast_batch,
            balance_batch=balance_batch,
            kv_over_compute=kv_over_compute,
        )
    )
    speed = _time(normal, star, k) / _time(fast, star, k)
    return _trade(fast, speed, normal / (fast * speed), np.ones(fast.shape, dtype=bool), "")


def mode_batches(
    speed_ratio: Num, price_ratio: Num, balance_batch: Num, kv_over_compute: Num | float = 0.0
) -> ModeBatches:
    """The normal and the fast batch of a provider who sells `speed_ratio` for `price_ratio`.

    B_normal = speed * price * B_fast, and the one B_fast that gives the speed

    Args:
        speed_ratio: speed of the fast mode over the normal one [ratio], above 1, any shape.
        price_ratio: cost per token of the fast mode over the normal one [ratio], above 1, broadcasts.
        balance_batch: B* without KV [count], broadcasts.
        kv_over_compute: k = L / L* [ratio], 0 = KV ignored, broadcasts.

    Returns:
        Both batches, broadcast shape. There is always exactly one pair; a fast batch below 1 says that the
        price is not for speed alone.

    Raises:
        InputError: a ratio that is not above 1, or a value that is negative or not finite.

    Assumes: `pass_s`; both modes have the same margin; the fast mode is memory bound, as it costs more.

    Sources: lecture C01, C14; ledger check G05.

    >>> mode_batches(2.5, 6.0, 2400.0)
    ModeBatches(normal_batch=6000.0, fast_batch=400.0)
    """
    speed, price, star, k = np.broadcast_arrays(
        *checked(
            "mode_batches",
            zero=("kv_over_compute",),
            speed_ratio=speed_ratio,
            price_ratio=price_ratio,
            balance_batch=balance_batch,
            kv_over_compute=kv_over_compute,
        )
    )
    for name, value in (("speed_ratio", speed), ("price_ratio", price)):
        if not (value > 1.0).all():
            low = float(value[~(value > 1.0)].flat[0])
            raise InputError(what=name, given=low, allowed="a ratio above 1", where="mode_batches")
    # The normal batch is speed * price * fast. If it is compute bound, its cost is 1 and the fast one's is
    # price = B* / fast + k. If not, B* + k * normal = speed * (B* + k * fast). Exactly one of the two holds.
    compute_bound = speed * price * (1.0 - k) >= price - k
    slope = np.where(compute_bound, price - k, k * speed * (price - 1.0))
    fast = np.where(compute_bound, 1.0, speed - 1.0) * star / slope
    return ModeBatches(normal_batch=plain(fast * speed * price), fast_batch=plain(fast))


def _trade(batch: Any, speed: Any, price: Any, feasible: Any, reason: str) -> ModeTrade:
    done = np.asarray(feasible)
    return ModeTrade(
        batch_size=plain(batch),
        speed_ratio=plain(speed),
        price_ratio=plain(price),
        feasible=bool(done) if done.ndim == 0 else done,
        reason="" if done.all() else reason,
    )
