"""Price sheets side by side, their changes in time, and where they contradict each other or physics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, assert_never

import numpy as np

from rackline.arch import AnyModel, model
from rackline.pricing.reading import Conflict, Inference, PriceChange, Reading
from rackline.pricing.sheet import PriceSheet
from rackline.pricing.unknowns import Range, Unknowns

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
    """

    model: str
    active_params: float
    kv_bytes_per_token: Range

    @classmethod
    def of(cls, found: AnyModel, context_len: float = _CONTEXT_LEN) -> Truth:
        """Properties at a context length."""
        narrow, wide = (float(found.kv_bytes(context_len, size)) / context_len for size in _KV_ELEMENT_BYTES)
        return cls(
            model=found.name,
            active_params=float(found.active_params),
            kv_bytes_per_token=Range(low=narrow, high=wide),
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
    return below + ((values[None, :] == values[:, None]).sum(axis=1) - 1) / 2.0


def price_changes(sheet: PriceSheet, unknowns: Unknowns) -> tuple[PriceChange, ...]:
    """Compare each earlier price with the present standard one.

    Compute per dollar of the best chip over the median chip, at one data type, stands for what newer chips explain;
    the best data type over the next wider one on a chip the most that one step in precision explains. A model, margin
    or utilisation that changed must account for the rest.

    Sources: lecture C104 (price follows cost); C107 (input price is compute).
    """
    standard = sheet.standard
    if standard is None or standard.input_usd is None or standard.output_usd is None:
        return ()
    hardware, precision = _gains(unknowns)
    found: list[PriceChange] = []
    for old in sheet.history:
        given, made = old.input_usd / standard.input_usd, old.output_usd / standard.output_usd
        found.append(
            PriceChange(
                name=old.name,
                input_ratio=given,
                output_ratio=made,
                hardware_gain=hardware,
                precision_gain=precision,
                left_over=given / (hardware * precision),
                text=_text(given, made, hardware, precision),
            )
        )
    return tuple(found)


def _gains(unknowns: Unknowns) -> tuple[float, float]:
    """Compute per dollar of the best chip over the median one at one data type; of a type over the next wider one."""
    per_dollar: dict[str, list[float]] = {}
    steps = [1.0]
    for offer in unknowns.offers:
        mine = [offer.chip.flop_per_s(dtype) for dtype in unknowns.dtypes if offer.chip.supports(dtype)]
        steps += [b / a for a, b in itertools.pairwise(mine) if b > a]
        for dtype in unknowns.dtypes:
            if offer.chip.supports(dtype):
                per_dollar.setdefault(dtype, []).append(offer.chip.flop_per_s(dtype) / offer.usd_per_chip_hour)
    return max(float(np.max(rates) / np.median(rates)) for rates in per_dollar.values()), max(steps)


def _text(given: float, made: float, hardware: float, precision: float) -> str:
    if given < 1.0:
        return f"input rose {1 / given:.2g} times and output {1 / made:.2g} times: cost did not; margin or scarcity did"
    if given == 1.0 and made == 1.0:
        return "no change"
    words = f"input fell {given:.2g} times, output {made:.2g} times"
    if abs(given / made - 1.0) > 0.05:
        words += ", by different factors: memory and compute costs moved apart"
    if given <= hardware:
        return f"{words}: newer chips alone can explain it ({hardware:.2g} times the compute per dollar)"
    if given <= hardware * precision:
        return f"{words}: newer chips ({hardware:.2g}) and one step in precision ({precision:.2g}) can explain it"
    left = given / (hardware * precision)
    return (
        f"{words}: more than newer chips ({hardware:.2g}) and a step in precision ({precision:.2g}) explain together; "
        f"at least {left:.2g} times came from a smaller model, less margin or more utilisation"
    )


def conflicts(
    sheet: PriceSheet, unknowns: Unknowns, inferences: Sequence[Inference], price_over_cost: Range
) -> tuple[Conflict, ...]:
    """Every contradiction that the sheet shows.

    Sources: ledger N46 (step against output price), N47 (longest context), N48 (input steps too).
    """
    return (*_step(sheet, price_over_cost), *_kv(inferences), *_batch(inferences, unknowns))


def _step(sheet: PriceSheet, price_over_cost: Range) -> Iterator[Conflict]:
    standard, step = sheet.standard, sheet.step
    if standard is None or step is None or not standard.output_usd:
        return
    at = step.above_context_len
    if standard.input_usd and standard.output_usd > 1.2 * standard.input_usd:
        ratio = standard.output_usd / standard.input_usd
        yield Conflict(
            claims="N46: C99 against C107",
            text=f"the step says that decode is bound by compute up to {at:,.0f} tokens, the output price that "
            f"memory takes {ratio:.3g} times as long as compute; both hold only if output carries {ratio:.3g} "
            "times the margin of input or the step is not the crossover",
        )
    if step.output_usd and sheet.max_context_len and sheet.max_context_len > at:
        rise = step.output_usd / standard.output_usd
        last = max(tier.above_context_len for tier in sheet.of_mode("standard"))
        grows = sheet.max_context_len / at
        if last == at and grows > rise * 1.05:
            needs = grows / rise
            inside = "within" if price_over_cost.low <= needs <= price_over_cost.high else "outside"
            yield Conflict(
                claims="N47: C98",
                text=f"output rises {rise:.3g} times at {at:,.0f} tokens, but dense attention costs {grows:.3g} "
                f"times as much at the longest prompt of {sheet.max_context_len:,.0f}; that is paid at "
                f"{needs:.2g} times the cost at the step ({inside} the range of price over cost), or with fewer "
                "bytes read per token of context",
            )
    if step.output_usd and step.input_usd and standard.input_usd:
        given, made = step.input_usd / standard.input_usd, step.output_usd / standard.output_usd
        if abs(given / made - 1.0) > 0.05:
            yield Conflict(
                claims="N48: C96",
                text=f"above {at:,.0f} tokens input rises {given:.3g} times and output {made:.3g} times; a KV "
                "crossover raises output alone",
            )


def fitting_tiers(inferences: Sequence[Inference]) -> tuple[str, ...]:
    """Memory tiers in which the price of keeping a token likely pays for KV bytes that another price likely says.

    Sources: lecture C116, C120.
    """
    kept, intervals = _kept(inferences), _intervals(inferences)
    return tuple(
        dict.fromkeys(
            each.method.rsplit(" ", 1)[-1]
            for each in kept
            if any(each.likely.overlaps(interval.likely) for interval in intervals)
        )
    )


def _kept(inferences: Sequence[Inference]) -> list[Inference]:
    return [i for i in inferences if i.quantity == "kv_bytes_per_token" and ", if kept in " in i.method]


def _direct(inferences: Sequence[Inference]) -> list[Inference]:
    """KV bytes that rest on no memory tier and not on the lecture's numbers."""
    kv = [i for i in inferences if i.quantity == "kv_bytes_per_token" and "lecture" not in i.method]
    return [i for i in kv if ", if kept in " not in i.method]


def _intervals(inferences: Sequence[Inference]) -> list[Inference]:
    return [i for i in _direct(inferences) if i.bound == "interval"]


def _kv(inferences: Sequence[Inference]) -> Iterator[Conflict]:
    """KV bytes from different prices that have no value in common, or likely none."""
    for one, other in itertools.combinations(_direct(inferences), 2):
        how = ""
        if _apart(one, other, (one.low, one.high), (other.low, other.high)):
            how = "cannot agree"
        elif _apart(one, other, (one.likely_low, one.likely_high), (other.likely_low, other.likely_high)):
            how = "hardly agree"
        if how:
            yield Conflict(
                claims=f"{one.claim} against {other.claim}",
                text=f"KV bytes per token {how}: {_span(one)} by {one.method}, {_span(other)} by {other.method}",
            )
    kept, fits = _kept(inferences), fitting_tiers(inferences)
    if kept and _intervals(inferences) and not fits:
        spans = ", ".join(f"{i.method} {_span(i)}" for i in _intervals(inferences))
        yield Conflict(
            claims="C116 against C99, C107",
            text=f"the price of keeping a token is likely that of no memory tier: KV bytes per token by {spans}",
        )
    elif fits == ("hbm",):
        yield Conflict(
            claims="C116 against C120",
            text="keeping a token is likely priced like the chip's own memory; in host memory, flash or on disk "
            "the same price would be many times the cost",
        )


def _apart(one: Inference, other: Inference, span: tuple[float, float], other_span: tuple[float, float]) -> bool:
    """Whether two spans have no value in common; one that is an upper bound reaches down to 0."""
    low = 0.0 if one.bound == "at most" else span[0]
    return low > other_span[1] or (0.0 if other.bound == "at most" else other_span[0]) > span[1]


def _span(inference: Inference) -> str:
    match inference.bound:
        case "at most":
            return f"at most {inference.likely_high:,.0f}"
        case "interval" | "at least":
            return f"{inference.likely_low:,.0f} to {inference.likely_high:,.0f}"
    assert_never(inference.bound)


def _batch(inferences: Sequence[Inference], unknowns: Unknowns) -> list[Conflict]:
    x = unknowns.price_over_cost
    return [
        Conflict(
            claims="C12",
            text=f"{i.method} of {i.low:.3g} times needs more price over cost than the ranges allow ({x.high:.3g})",
        )
        for i in inferences
        if i.quantity == "price_over_cost" and i.low > x.high
    ]
