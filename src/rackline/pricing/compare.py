"""Open models sold by several hosts: readings of their prices against the known architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rackline.arch import AnyModel, model
from rackline.pricing.reading import Inference, Reading
from rackline.pricing.unknowns import Range

_CONTEXT_LEN = 4490.0  # the middle of the range that readings suppose
# KV caches are kept at one or two bytes per element (fp8, bf16).
_KV_ELEMENT_BYTES = (1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Known properties of a model.

    Args:
        model: catalogue name.
        active_params: active parameters [elements].
        kv_bytes_per_token: KV cache per token at one to two bytes per element [bytes].
        context_len: context length at which windows are counted [tokens].
    """

    model: str
    active_params: float
    kv_bytes_per_token: Range
    context_len: float

    @classmethod
    def of(cls, found: AnyModel, context_len: float = _CONTEXT_LEN) -> Truth:
        """Properties at a context length."""
        narrow, wide = (float(found.kv_bytes(context_len, size)) / context_len for size in _KV_ELEMENT_BYTES)
        return cls(
            model=found.name,
            active_params=float(found.active_params),
            kv_bytes_per_token=Range(low=narrow, high=wide),
            context_len=context_len,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One quantity of one model, compared with what its hosts' prices imply.

    Args:
        model, quantity: the model and the quantity.
        truth: the range of true values.
        cheapest: reading of the host with the lowest price, which competition pushed nearest to cost (C104).
        hosts: number of readings [count].
        certain, likely: hosts whose certain and likely interval holds a true value [count].
    """

    json_keys: ClassVar = (
        "model",
        "quantity",
        "true_low=truth.low",
        "true_high=truth.high",
        "cheapest_likely_low=cheapest.likely_low",
        "cheapest_likely_high=cheapest.likely_high",
        "hosts",
        "hosts_certain=certain",
        "hosts_likely=likely",
        "factor",
    )

    model: str
    quantity: str
    truth: Range
    cheapest: Inference
    hosts: int
    certain: int
    likely: int

    @property
    def factor(self) -> float:
        """Middle of the cheapest host's likely interval over the middle of the truth."""
        return self.cheapest.likely.middle / self.truth.middle


def compare(readings: Sequence[Reading], context_len: float = _CONTEXT_LEN) -> tuple[Compared, ...]:
    """Compare every open model among the readings, model by model, active parameters before KV bytes.

    Args:
        context_len: at which KV is counted; the middle of the range that the readings suppose [tokens].
    """
    found: list[Compared] = []
    for name in dict.fromkeys(reading.model for reading in readings if reading.model):
        truth = Truth.of(model(name), context_len)
        mine = [reading for reading in readings if reading.model == name]
        found += _compared(
            name, "active_params", "input", Range(low=truth.active_params, high=truth.active_params), mine
        )
        found += _compared(name, "kv_bytes_per_token", "output price", truth.kv_bytes_per_token, mine)
    return tuple(found)


def _compared(name: str, quantity: str, method: str, truth: Range, readings: Sequence[Reading]) -> list[Compared]:
    each = [inference for reading in readings if (inference := reading.find(quantity, method)) is not None]
    if not each:
        return []
    return [
        Compared(
            model=name,
            quantity=quantity,
            truth=truth,
            cheapest=min(each, key=lambda inference: inference.likely.middle),
            hosts=len(each),
            certain=sum(_holds(inference, inference.range, truth) for inference in each),
            likely=sum(_holds(inference, inference.likely, truth) for inference in each),
        )
    ]


def _holds(inference: Inference, interval: Range, truth: Range) -> bool:
    return truth.low <= interval.high if inference.bound == "at most" else interval.overlaps(truth)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 for fewer than three pairs or a constant.

    rho = Pearson's r of the ranks

    Sources: Spearman 1904.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    if len(first) < 3:
        return 0.0
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (first, second)]
    if min(rank.std() for rank in ranks) == 0.0:
        return 0.0
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 12)


def _ranks(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    below = (values[None, :] < values[:, None]).sum(axis=1)
    same = (values[None, :] == values[:, None]).sum(axis=1)
    return below + (same - 1) / 2.0
