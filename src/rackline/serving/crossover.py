"""The lecture's tables over the catalogue: ridge points of chips, crossover context and balance batch of models."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rackline.arch import AnyModel
from rackline.hardware import Chip
from rackline.serving.blackboard import balance_batch, dimensionless_ridge

LONGEST_CONTEXT = 1e9
"""Contexts beyond a billion tokens count as infinite."""

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
    found: list[Ridge] = []
    for each in chips:
        for dtype in ("bf16", "fp8", "fp4"):
            units = "fp16" if dtype == "bf16" and not each.supports("bf16") else dtype
            if not each.supports(units):
                continue
            rate = each.flop_per_s(units)
            found.append(
                Ridge(
                    chip=each.name,
                    dtype=units,
                    flop_per_byte=rate / each.hbm_bytes_per_s,
                    ridge=float(dimensionless_ridge(rate, each.hbm_bytes_per_s, _WIDTHS[units])),
                    drain_s=each.drain_s,
                )
            )
    return found


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
    brentq: Any = importlib.import_module("scipy.optimize").brentq  # takes 0.1 s to import

    return float(brentq(excess, 0.0, LONGEST_CONTEXT, rtol=1e-9))


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
        balance_batch=float(balance_batch(ridge, max(1.0, model.total_over_active))),
    )
