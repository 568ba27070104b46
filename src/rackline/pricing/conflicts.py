"""Readings of one price sheet that contradict each other or the model they come from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import assert_never

from rackline.pricing.reading import Conflict, Inference
from rackline.pricing.sheet import PriceSheet
from rackline.pricing.unknowns import Range, Unknowns


def conflicts(
    sheet: PriceSheet, unknowns: Unknowns, inferences: Sequence[Inference], price_over_cost: Range
) -> tuple[Conflict, ...]:
    """Every contradiction that the sheet shows.

    Sources: ledger N46 (step against output price), N47 (longest context), N48 (input steps too).
    """
    found: list[Conflict] = []
    standard, step = sheet.standard, sheet.step
    if standard is not None and step is not None:
        found += _step(sheet, price_over_cost)
    found += _kv(inferences)
    found += _batch(inferences, unknowns)
    return tuple(found)


def _step(sheet: PriceSheet, price_over_cost: Range) -> list[Conflict]:
    found: list[Conflict] = []
    standard, step = sheet.standard, sheet.step
    if standard is None or step is None or not standard.output_usd:
        return found
    at = step.above_context_len
    if standard.input_usd and standard.output_usd > 1.2 * standard.input_usd:
        ratio = standard.output_usd / standard.input_usd
        found.append(
            Conflict(
                claims="N46: C99 against C107",
                text=f"the step says that decode is bound by compute up to {at:,.0f} tokens, the output price that "
                f"memory takes {ratio:.3g} times as long as compute; both hold only if output carries {ratio:.3g} "
                "times the margin of input or the step is not the crossover",
            )
        )
    if step.output_usd and sheet.max_context_len and sheet.max_context_len > at:
        rise = step.output_usd / standard.output_usd
        last = max(tier.above_context_len for tier in sheet.of_mode("standard"))
        grows = sheet.max_context_len / at
        if last == at and grows > rise * 1.05:
            needs = grows / rise
            inside = "within" if price_over_cost.low <= needs <= price_over_cost.high else "outside"
            found.append(
                Conflict(
                    claims="N47: C98",
                    text=f"output rises {rise:.3g} times at {at:,.0f} tokens, but dense attention costs {grows:.3g} "
                    f"times as much at the longest prompt of {sheet.max_context_len:,.0f}; that is paid at "
                    f"{needs:.2g} times the cost at the step ({inside} the range of price over cost), or with fewer "
                    "bytes read per token of context",
                )
            )
    if step.output_usd and step.input_usd and standard.input_usd:
        given, made = step.input_usd / standard.input_usd, step.output_usd / standard.output_usd
        if abs(given / made - 1.0) > 0.05:
            found.append(
                Conflict(
                    claims="N48: C96",
                    text=f"above {at:,.0f} tokens input rises {given:.3g} times and output {made:.3g} times; a KV "
                    "crossover raises output alone",
                )
            )
    return found


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


def _kv(inferences: Sequence[Inference]) -> list[Conflict]:
    """KV bytes from different prices that have no value in common, or likely none."""
    found: list[Conflict] = []
    for one, other in itertools.combinations(_direct(inferences), 2):
        how = ""
        if _apart(one, other, (one.low, one.high), (other.low, other.high)):
            how = "cannot agree"
        elif _apart(one, other, (one.likely_low, one.likely_high), (other.likely_low, other.likely_high)):
            how = "hardly agree"
        if how:
            found.append(
                Conflict(
                    claims=f"{one.claim} against {other.claim}",
                    text=f"KV bytes per token {how}: {_span(one)} by {one.method}, {_span(other)} by {other.method}",
                )
            )
    kept, fits = _kept(inferences), fitting_tiers(inferences)
    if kept and _intervals(inferences) and not fits:
        spans = ", ".join(f"{i.method} {_span(i)}" for i in _intervals(inferences))
        found.append(
            Conflict(
                claims="C116 against C99, C107",
                text=f"the price of keeping a token is likely that of no memory tier: KV bytes per token by {spans}",
            )
        )
    elif fits == ("hbm",):
        found.append(
            Conflict(
                claims="C116 against C120",
                text="keeping a token is likely priced like the chip's own memory; in host memory, flash or on disk "
                "the same price would be many times the cost",
            )
        )
    return found


def _apart(one: Inference, other: Inference, span: tuple[float, float], other_span: tuple[float, float]) -> bool:
    """Whether two spans have no value in common; one that is an upper bound reaches down to 0."""
    low = 0.0 if one.bound == "at most" else span[0]
    other_low = 0.0 if other.bound == "at most" else other_span[0]
    return low > other_span[1] or other_low > span[1]


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
