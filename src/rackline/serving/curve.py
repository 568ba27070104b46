"""Step time and cost of one deployment over batch size, and its balance point.

These are the questions of the closed forms in `rackline.serving.blackboard`, answered from a deployment's pass table by
root finding, so that they hold for any architecture, calibration and step policy.

Below stand the lecture's tables over the catalogue: ridge points of chips, crossover context and balance batch of
models.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rackline.arch import AnyModel
from rackline.hardware import Chip
from rackline.parallel import Deployment
from rackline.passes import UNIT, Batch, StepPolicy
from rackline.passes.features import Array, FloatLike
from rackline.serving.blackboard.balance import balance_batch as balance_of
from rackline.serving.blackboard.roofline import dimensionless_ridge
from rackline.serving.capacity import LONGEST_CONTEXT
from rackline.serving.closed_loop import engine_of
from rackline.serving.steady import Engine

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


def balance_batch(deployment: Deployment, context_len: float = 0.0) -> float:
    """Batch size at which compute takes as long as memory traffic under the blackboard policy (lecture C20, with KV
    C23).

    Args:
        context_len: context of each sequence; 0 leaves KV out [tokens].

    Returns:
        Sequences on one replica; infinite if KV reads take longer than compute at every batch size.
    """
    table = deployment.table().with_calibration(UNIT)
    ranks = deployment.layout.attention_dp

    def gap(batch_size: float) -> float:
        batch = Batch(decode_sequences=max(batch_size / ranks, 1e-9), context_len=context_len, group_tokens=batch_size)
        parts = table.time(batch, "blackboard").by_resource
        return parts["compute"] - parts["hbm"]

    if gap(_LARGEST) <= 0:
        return float("inf")
    return 1.0 if gap(1.0) >= 0 else _root(gap, 1.0, _LARGEST)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function between two points, to a relative 1e-9."""

    def at(log: float) -> float:
        return function(math.exp(log))

    if function(high) <= 0.0:
        return high
    return math.exp(_brentq()(at, math.log(low), math.log(high), xtol=1e-9))


def _brentq() -> Any:
    """SciPy's bracketing root finder; its module takes a tenth of a second to import."""
    return importlib.import_module("scipy.optimize").brentq


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatch:
    """One batch, prefilled and decoded together: prefill_s, mean step token_s, total_s = prefill_s + (n - 1) token_s
    [s]."""

    prefill_s: float
    token_s: float
    total_s: float


def static_batch(
    deployment: Deployment, batch_size: float, input_len: float, output_len: float, engine: Engine | None = None
) -> StaticBatch:
    """One batch prefilled together, then decoded together.

    Args:
        batch_size: sequences, on all replicas together [sequences].
        input_len, output_len: prompt and output lengths [tokens].
    """
    sizes = (np.array([size], dtype=np.float64) for size in (batch_size, input_len, output_len))
    return static_batches(deployment, *sizes, engine=engine)[0]


def static_batches(
    deployment: Deployment, batch_size: Array, input_len: Array, output_len: Array, engine: Engine | None = None
) -> list[StaticBatch]:
    """Many independent static batches on one deployment; see `static_batch`.

    Args:
        batch_size: sequences, on all replicas together, (batches,) [sequences].
        input_len, output_len: prompt and output lengths, (batches,) [tokens].
    """
    engine = engine or engine_of(deployment)
    layout = deployment.layout
    per_rank = np.ceil(batch_size / (layout.attention_dp * layout.dp))
    times = engine.time_table(False)
    prompts = engine.seconds(Batch(prefill_sequences=per_rank, chunk_tokens=input_len), times, two_batch_overlap=False)
    prefill = engine.with_prompts_s(0.0, prompts)  # called in process, without a server
    step = Batch(decode_sequences=per_rank, context_len=input_len + output_len / 2.0)
    token = np.where(output_len > 1, engine.decode_s(step, times, two_batch_overlap=False), 0.0)
    total = prefill + np.maximum(output_len - 1.0, 0.0) * token
    rows = zip(prefill.tolist(), token.tolist(), total.tolist(), strict=True)
    return [StaticBatch(prefill_s=first, token_s=each, total_s=whole) for first, each, whole in rows]


_WIDTHS = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """The ridge point of one chip for one data type.

    Args:
        chip: catalogue name.
        dtype: data type of weights and matrix products.
        flop_per_byte: peak over bandwidth [FLOP/byte].
        ridge: the lecture's R, multiplies per weight read, which is the balance batch of a dense model [ratio].
        drain_s: time to read the whole memory once [s].
    """

    chip: str
    dtype: str
    flop_per_byte: float
    ridge: float
    drain_s: float


def ridges(chips: Sequence[Chip]) -> list[Ridge]:
    """Ridge points of chips for every data type whose width is known (ledger G01, G02).

    >>> from rackline.hardware import chip
    >>> [(r.dtype, round(r.ridge)) for r in ridges([chip("h100-sxm")])]
    [('bf16', 295), ('fp8', 295)]
    """
    units = [(each, "bf16" if each.supports("bf16") else "fp16") for each in chips]
    able = ((each, dtype) for each, wide in units for dtype in (wide, "fp8", "fp4") if each.supports(dtype))
    return [
        Ridge(
            chip=each.name,
            dtype=dtype,
            flop_per_byte=each.flop_per_s(dtype) / each.hbm_bytes_per_s,
            ridge=float(dimensionless_ridge(each.flop_per_s(dtype), each.hbm_bytes_per_s, _WIDTHS[dtype])),
            drain_s=each.drain_s,
        )
        for each, dtype in able
    ]


def model_crossover_context(
    model: AnyModel, *, flop_per_s: float, hbm_bytes_per_s: float, bytes_per_element: float
) -> float:
    """Context length at which reading one sequence's cache takes as long as its weight products, for any attention
    kind.

    read_bytes(L*) / hbm_bytes_per_s = 2 * N_active / flop_per_s

    Args:
        model: the model; reads of windows and of selected tokens are bounded, those of index keys and full layers grow.
        flop_per_s: dense compute rate [FLOP/s].
        hbm_bytes_per_s: memory bandwidth of the same chips [bytes/s].
        bytes_per_element: bytes per cached element, where the attention kind does not fix it [bytes].

    Returns:
        Tokens; infinite where the reads never grow that far, 0 where recurrent states alone take longer.

    Assumes: reads do not fall with the context; the batch is so large that weight reads are negligible.

    Sources: lecture C15, C97; for dense attention it equals `rackline.serving.blackboard.crossover_context`.

    >>> from rackline.arch import model
    >>> round(model_crossover_context(model("deepseek-v3"), flop_per_s=989e12, hbm_bytes_per_s=3.35e12,
    ...                               bytes_per_element=2.0))
    3531
    """
    budget = 2.0 * model.active_params / flop_per_s * hbm_bytes_per_s

    def excess(context: float) -> float:
        return float(np.asarray(model.kv_read_bytes(context, bytes_per_element))) - budget

    if excess(0.0) >= 0.0:
        return 0.0
    if excess(LONGEST_CONTEXT) < 0.0:
        return math.inf
    return float(_brentq()(excess, 0.0, LONGEST_CONTEXT, rtol=1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOfModel:
    """Cost of the context of one model.

    Args:
        model: catalogue name.
        kv_bytes_per_token: cache that one new token adds, by data type [bytes/token].
        state_bytes: recurrent state of a sequence [bytes].
        kv_bytes: cache of one sequence by context length, in the first data type [bytes].
        crossover_context: see `model_crossover_context` [tokens].
        balance_batch: sequences at which weight products take as long as weight reads [count].
    """

    model: str
    kv_bytes_per_token: dict[str, float]
    state_bytes: float
    kv_bytes: dict[int, float]
    crossover_context: float
    balance_batch: float


def cache_of_model(
    model: AnyModel, chip: Chip, *, dtype: str, kv_types: dict[str, float], contexts: Sequence[int]
) -> CacheOfModel:
    """Cache, crossover context and balance batch of one model on one chip.

    Args:
        model, chip: the model and the chip.
        dtype: data type of weights and matrix products on this chip.
        kv_types: data type → bytes per cached element; the first one is used for contexts and crossover.
        contexts: context lengths for which the cache is reported [tokens].
    """
    first = next(iter(kv_types.values()))
    rate = chip.flop_per_s(dtype)
    ridge = float(dimensionless_ridge(rate, chip.hbm_bytes_per_s, _WIDTHS[dtype]))
    return CacheOfModel(
        model=model.name,
        kv_bytes_per_token={name: float(model.kv_bytes_per_token(size)) for name, size in kv_types.items()},
        state_bytes=model.state_bytes(),
        kv_bytes={context: float(np.asarray(model.kv_bytes(float(context), first))) for context in contexts},
        crossover_context=model_crossover_context(
            model, flop_per_s=rate, hbm_bytes_per_s=chip.hbm_bytes_per_s, bytes_per_element=first
        ),
        # with tied embeddings, fewer parameters can be stored than multiplied: then it counts as dense
        balance_batch=float(balance_of(ridge, max(1.0, model.total_over_active))),
    )
