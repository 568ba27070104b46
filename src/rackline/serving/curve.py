"""Step time and cost of one deployment over batch size: balance points, fast and slow modes.

These are the questions of the closed forms in `rackline.serving.blackboard`, answered from a deployment's pass table by
root finding, so that they hold for any architecture, calibration and step policy.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rackline.errors import InputError
from rackline.parallel import Deployment
from rackline.passes import UNIT, Batch, StepPolicy
from rackline.passes.features import Array, FloatLike

_LARGEST = 1.0e9


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurve:
    """Decode step and cost of one replica by batch size.

    Args:
        batch_size: sequences on one replica (a pipeline micro-batch) [sequences], shape (points,).
        step_s: time of a decode step [s].
        usd_per_mtok_output: rent of the replica over its tokens [USD per million tokens], NaN without a price.
        tokens_per_s_per_chip, tokens_per_s_per_user: output per chip and per sequence [tokens/s].
    """

    batch_size: FloatLike
    step_s: FloatLike
    usd_per_mtok_output: FloatLike
    tokens_per_s_per_chip: FloatLike
    tokens_per_s_per_user: FloatLike


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChoice:
    """Another batch size of the same deployment, compared with the normal one.

    Args:
        batch_size: sequences on one replica [sequences].
        speed_ratio: tokens/s per user over that at the normal batch size [ratio].
        price_ratio: cost per token over that at the normal batch size [ratio].
        reason: why the requested ratio cannot be reached; empty if it can.
    """

    batch_size: float
    speed_ratio: float
    price_ratio: float
    reason: str = ""


def decode_batch(deployment: Deployment, batch_size: FloatLike, context_len: FloatLike) -> Batch:
    """The decode batch of one rank when a replica holds `batch_size` sequences."""
    per_rank = np.ceil(batch_size / deployment.layout.attention_dp)
    return Batch(decode_sequences=per_rank, context_len=context_len, group_tokens=1.0 * batch_size)


def batch_curve(
    deployment: Deployment,
    context_len: float,
    batch_size: Array | None = None,
    policy: StepPolicy | None = None,
) -> BatchCurve:
    """Decode step and cost over batch size.

    Args:
        context_len: cached tokens of each sequence [tokens].
        batch_size: batch sizes; by default 61 from 1 to 16384, logarithmically spaced [sequences], (points,).
    """
    points = np.unique(np.rint(np.geomspace(1, 16384, 61))) if batch_size is None else np.asarray(batch_size)
    step = deployment.table().seconds(decode_batch(deployment, points, context_len), policy)
    price = deployment.cluster.usd_per_chip_hour
    return curve_of_passes(deployment, points, step, math.nan if price is None else price)


def curve_of_passes(
    deployment: Deployment, batch_size: FloatLike, pass_s: FloatLike, usd_per_chip_hour: FloatLike
) -> BatchCurve:
    """Decode step and cost at batch sizes whose passes are known.

    Args:
        batch_size: sequences on one replica (a pipeline micro-batch) [sequences].
        pass_s: time of the pass with layers evenly on the stages [s].
        usd_per_chip_hour: rent of a chip [USD/hour].
    """
    step = pass_s * deployment.stage_imbalance
    chips = deployment.layout.chips_per_replica
    rate = batch_size * deployment.layout.pp / step
    return BatchCurve(
        batch_size=batch_size,
        step_s=step,
        usd_per_mtok_output=chips * usd_per_chip_hour / 3600.0 / rate * 1e6,
        tokens_per_s_per_chip=rate / chips,
        tokens_per_s_per_user=1.0 / step,
    )


def _step(deployment: Deployment, context_len: float, policy: StepPolicy | None) -> Callable[[float], float]:
    table = deployment.table()
    times = table.time_table(policy)
    ranks = deployment.layout.attention_dp

    def seconds(batch_size: float) -> float:
        batch = Batch(decode_sequences=max(batch_size / ranks, 1.0), context_len=context_len, group_tokens=batch_size)
        return float(times.seconds(table.features(batch))) * deployment.stage_imbalance

    return seconds


def _choice(step: Callable[[float], float], batch_size: float, normal_batch: float, reason: str = "") -> ModeChoice:
    """Compare a batch size with the normal one."""
    seconds, normal = step(batch_size), step(normal_batch)
    return ModeChoice(
        batch_size=batch_size,
        speed_ratio=normal / seconds,
        price_ratio=(seconds / batch_size) / (normal / normal_batch),
        reason=reason,
    )


def mode_at_speed(
    deployment: Deployment,
    normal_batch: float,
    speed_ratio: float,
    context_len: float,
    policy: StepPolicy | None = None,
) -> ModeChoice:
    """The largest batch size that is `speed_ratio` times as fast as the normal one (below 1: a slow mode).

    Raises:
        InputError: the ratio or the batch size is not positive.
    """
    _positive("normal_batch", normal_batch)
    _positive("speed_ratio", speed_ratio)
    step = _step(deployment, context_len, policy)
    normal = step(normal_batch)
    wanted = normal / speed_ratio
    fastest = step(1.0)
    if fastest > wanted:
        reason = f"latency floor: batch 1 is only {normal / fastest:.3g} times as fast"
        return _choice(step, 1.0, normal_batch, reason)
    return _choice(step, _root(lambda b: step(b) - wanted, 1.0, _LARGEST), normal_batch)


def mode_at_price(
    deployment: Deployment,
    normal_batch: float,
    price_ratio: float,
    context_len: float,
    policy: StepPolicy | None = None,
) -> ModeChoice:
    """The batch size whose tokens cost `price_ratio` times the normal ones (below 1: a slow mode).

    Raises:
        InputError: the ratio or the batch size is not positive.
    """
    _positive("normal_batch", normal_batch)
    _positive("price_ratio", price_ratio)
    step = _step(deployment, context_len, policy)
    normal = step(normal_batch)
    per_token = normal / normal_batch * price_ratio
    cheapest = step(_LARGEST) / _LARGEST
    if cheapest >= per_token:
        return ModeChoice(
            batch_size=np.inf,
            speed_ratio=0.0,
            price_ratio=cheapest / (normal / normal_batch),
            reason=f"cost floor: no batch size is cheaper than {cheapest / (normal / normal_batch):.3g} times normal",
        )
    if step(1.0) <= per_token:
        return _choice(step, 1.0, normal_batch, "batch 1 costs less than that")
    return _choice(step, _root(lambda b: per_token - step(b) / b, 1.0, _LARGEST), normal_batch)


def balance_batch(deployment: Deployment, context_len: float = 0.0) -> float:
    """Batch size at which compute takes as long as memory traffic under the blackboard policy (lecture C20, with KV
    C23).

    Args:
        context_len: context of each sequence; 0 leaves KV out [tokens].

    Returns:
        Sequences on one replica; infinite if KV reads take longer than compute at every batch size.
    """
    return _balance(deployment, lambda batch: (batch, context_len), 1.0)


def crossover_context(deployment: Deployment, batch_size: float = 1.0e7) -> float:
    """Context length at which the KV reads of a large batch take as long as its compute, L* (lecture C15) [tokens].

    Infinite where attention reads a bounded number of tokens or its own FLOP grow as fast.
    """
    return _balance(deployment, lambda context: (batch_size, context), 1.0, rising="memory")


def _balance(
    deployment: Deployment,
    point: Callable[[float], tuple[float, float]],
    start: float,
    rising: str = "compute",
) -> float:
    table = deployment.table().with_calibration(UNIT)
    ranks = deployment.layout.attention_dp

    def gap(value: float) -> float:
        batch_size, context_len = point(value)
        parts = table.time(
            Batch(
                decode_sequences=max(batch_size / ranks, 1e-9),
                context_len=context_len,
                group_tokens=batch_size,
            ),
            "blackboard",
        ).by_resource
        ahead = parts["compute"] - parts["hbm"]
        return ahead if rising == "compute" else -ahead

    if gap(_LARGEST) <= 0:
        return float("inf")
    if gap(start) >= 0:
        return start
    return _root(gap, start, _LARGEST)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function between two points, to a relative 1e-9."""

    def at(log: float) -> float:
        return function(math.exp(log))

    brentq: Any = importlib.import_module("scipy.optimize").brentq  # takes a tenth of a second to import

    if function(high) <= 0.0:
        return high
    return math.exp(brentq(at, math.log(low), math.log(high), xtol=1e-9))


def _positive(what: str, given: float) -> None:
    if not (given > 0 and np.isfinite(given)):
        raise InputError(what=what, given=given, allowed="a finite number above 0", nearest="1")
