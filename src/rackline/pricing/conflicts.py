"""Readings of one price sheet that contradict each other or the model they come from."""

from __future__ import annotations

from collections.abc import Sequence

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


def _kv(inferences: Sequence[Inference]) -> list[Conflict]:
    """KV bytes from different prices that have no value in common."""
    kv = [i for i in inferences if i.quantity == "kv_bytes_per_token" and "lecture" not in i.method]
    kept = [i for i in kv if ", if kept in " in i.method]
    direct = [i for i in kv if i not in kept]
    found: list[Conflict] = []
    for index, one in enumerate(direct):
        for other in direct[index + 1 :]:
            low_one = 0.0 if one.bound == "at most" else one.low
            low_other = 0.0 if other.bound == "at most" else other.low
            if low_one > other.high or low_other > one.high:
                found.append(
                    Conflict(
                        claims=f"{one.claim} against {other.claim}",
                        text=f"KV bytes a token: {one.method} says {_span(one)}, {other.method} says {_span(other)}",
                    )
                )
    intervals = [i for i in direct if i.bound == "interval"]
    if kept and intervals:
        low, high = max(i.likely_low for i in intervals), min(i.likely_high for i in intervals)
        fits = [i for i in kept if i.likely_low <= high and i.likely_high >= low]
        if low <= high and not fits:
            best = min(kept, key=lambda i: max(i.likely_low / high, low / i.likely_high))
            found.append(
                Conflict(
                    claims="C116 against C99, C107",
                    text=f"the price of keeping a token is likely that of no memory tier: other prices say {low:,.0f} "
                    f"to {high:,.0f} bytes, nearest is {best.method.rsplit(' ', 1)[-1]} with "
                    f"{best.likely_low:,.0f} to {best.likely_high:,.0f}",
                )
            )
        elif low <= high and all(i.method.endswith(" hbm") for i in fits):
            found.append(
                Conflict(
                    claims="C116 against C120",
                    text="keeping a token is likely priced like the chip's own memory; in host memory, flash or on "
                    "disk the same price would be many times the cost",
                )
            )
    return found


def _span(inference: Inference) -> str:
    if inference.bound == "at most":
        return f"at most {inference.high:,.0f}"
    return f"{inference.low:,.0f} to {inference.high:,.0f}"


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
