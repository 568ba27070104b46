"""What all readings of a price sheet share: the unknowns, their random draws, and the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rackline.hardware import MemoryTier
from rackline.passes.features import Array
from rackline.pricing.reading import Bound, Inference, KeptIn, Missing
from rackline.pricing.sheet import PriceSheet
from rackline.pricing.unknowns import Draws, Range, Unknowns


class Reader:
    """One sheet under one set of unknowns.

    Args:
        sheet, unknowns: what is read, under what.
        draws: combinations of the unknowns.
        active_params: known ones, None when not [elements].
        units: memory tiers in which a cache may be kept.
    """

    def __init__(
        self,
        sheet: PriceSheet,
        unknowns: Unknowns,
        draws: Draws,
        active_params: float | None,
        units: Sequence[MemoryTier],
    ) -> None:
        self.sheet, self.unknowns, self.active_params, self.units = sheet, unknowns, active_params, units
        self.draws = draws
        self.inferences: list[Inference] = []
        self.missing: list[Missing] = []
        self.kept_in: list[KeptIn] = []
        self.price_over_cost = self._price_over_cost()
        drawn, x = self.draws, self.price_over_cost
        redrawn = x.low * (x.high / x.low) ** drawn.share
        self.drawn_x = np.where(drawn.price_over_cost < x.low, redrawn, drawn.price_over_cost)

    def add(
        self,
        quantity: str,
        unit: str,
        method: str,
        ends: tuple[float, float],
        drawn: Array | None = None,
        *,
        bound: Bound = "interval",
        claim: str = "",
        note: str = "",
    ) -> None:
        low, high = ends
        if not (low > 0 and np.isfinite(high)):
            self.miss(quantity, f"{method} gives no finite interval")
            return
        likely = ends
        if drawn is not None:  # rows are ways of pricing, each of which is as likely as the others
            lows, highs = np.quantile(drawn, (0.1, 0.9), axis=-1)
            likely = float(np.min(lows)), float(np.max(highs))
        self.inferences.append(
            Inference(
                quantity=quantity,
                unit=unit,
                method=method,
                low=low,
                high=high,
                likely_low=likely[0],
                likely_high=likely[1],
                bound=bound,
                claim=claim,
                note=note,
            )
        )

    def miss(self, quantity: str, reason: str) -> None:
        self.missing.append(Missing(quantity=quantity, reason=reason))

    @staticmethod
    def ends(low: Array | float, high: Array | float) -> tuple[float, float]:
        return float(np.min(low)), float(np.max(high))

    @property
    def rents(self) -> tuple[Array, Array]:
        """Lowest and highest rent of each point [USD/s]."""
        rent = self.unknowns.usd_per_chip_s
        return rent * self.unknowns.rent_factor.low, rent * self.unknowns.rent_factor.high

    def _price_over_cost(self) -> Range:
        """X, bounded below by the batch discount: batch input is not sold below its cost at full utilisation."""
        x = self.unknowns.price_over_cost
        standard = self.sheet.standard
        floor = x.low
        for mode in ("batch", "flex"):
            tiers = self.sheet.of_mode(mode)
            if standard is None or standard.input_usd is None or not tiers or not tiers[0].input_usd:
                continue
            least = standard.input_usd / tiers[0].input_usd
            if least >= 1.0:
                self.add(
                    "price_over_cost",
                    "ratio",
                    f"{mode} discount on input",
                    (least, least),
                    bound="at least",
                    claim="C12",
                    note=f"{mode} pays its own cost when it fills hours that nobody else bought",
                )
                floor = max(floor, least)
            else:
                self.miss(f"price over cost from {mode}", f"{mode} input costs more than standard")
        return Range(low=min(floor, x.high), high=x.high)
