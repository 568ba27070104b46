"""What a price change implies: the part that hardware and precision explain, and the residual."""

from __future__ import annotations

import itertools

import numpy as np

from rackline.pricing.reading import PriceChange
from rackline.pricing.sheet import PriceSheet
from rackline.pricing.unknowns import Unknowns


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
        left = given / (hardware * precision)
        found.append(
            PriceChange(
                name=old.name,
                input_ratio=given,
                output_ratio=made,
                hardware_gain=hardware,
                precision_gain=precision,
                left_over=left,
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
                rate = offer.chip.flop_per_s(dtype) / offer.usd_per_chip_hour
                per_dollar.setdefault(dtype, []).append(rate)
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
