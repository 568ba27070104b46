"""What a price sheet says of the model and its host: ranges of its quantities, and whether the host earns money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rackline.arch import model
from rackline.hardware import MemoryTier
from rackline.passes.features import Array, as_array
from rackline.pricing.forms import input_usd_per_token, output_usd_per_token
from rackline.pricing.sheet import PriceSheet, PriceTier
from rackline.pricing.unknowns import Draws, Range, Unknowns

Bound = Literal["interval", "at most", "at least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """An interval for one quantity.

    Args:
        quantity: what ("active_params", "kv_bytes_per_token", ...).
        unit: its unit.
        method: which prices it comes from.
        low, high: ends of the interval; every combination of the unknowns gives a value inside.
        likely_low, likely_high: eight of ten combinations drawn at random give a value between these.
        bound: "interval", or "at most" where only the high end means something, or "at least".
        claim: claim of the lecture's ledger that it follows.
        note: what it rests on.
    """

    quantity: str
    unit: str
    method: str
    low: float
    high: float
    likely_low: float
    likely_high: float
    bound: Bound = "interval"
    claim: str = ""
    note: str = ""

    @property
    def range(self) -> Range:
        """The interval as a range."""
        return Range(low=self.low, high=self.high)

    @property
    def likely(self) -> Range:
        """The likely interval as a range."""
        return Range(low=self.likely_low, high=self.likely_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A quantity that could not be read, and why."""

    quantity: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two readings of one sheet that cannot both hold.

    Args:
        claims: of the ledger or names of the two readings.
        text: what contradicts, with numbers.
    """

    claims: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIn:
    """The tier that a cache lifetime points to.

    Args:
        lifetime_s: how long the provider keeps an entry [s].
        rule_tier: name of the tier whose drain time is nearest (C121).
        rule_drain_s: that drain time [s].
    """

    lifetime_s: float
    rule_tier: str
    rule_drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """What a change from an earlier price to the present one implies.

    Args:
        name: of the earlier price.
        input_ratio, output_ratio: earlier over present price; above 1 is a cut [ratio].
        hardware_gain: most that newer chips at the same data type explain [ratio].
        precision_gain: most that halving the width of weights explains [ratio].
        left_over: of the input cut, what neither explains: a smaller model, less margin, more utilisation [ratio].
        text: the same as a sentence.
    """

    name: str
    input_ratio: float
    output_ratio: float
    hardware_gain: float
    precision_gain: float
    left_over: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that one sheet reveals.

    Args:
        sheet, provider, sold_as, date: which sheet.
        model: catalogue name, None for a closed model.
        prices: usable prices of the sheet, by mode and context.
        verdict: whether the host earns money.
        inferences, missing, conflicts, kept_in, changes: see the classes.
        fitting_tiers: memory tiers whose cost the price of keeping a token likely pays.
        problems: prices that could not be used.
    """

    json_keys: ClassVar = (
        "sheet",
        "provider",
        "sold_as",
        "date",
        "model",
        "prices",
        "verdict",
        "inferences",
        "not_inferred=missing",
        "conflicts",
        "kept_in",
        "fitting_tiers",
        "price_changes=changes",
        "problems",
    )

    sheet: str
    provider: str
    sold_as: str
    date: str
    model: str | None
    prices: tuple[PriceTier, ...]
    verdict: Verdict
    inferences: tuple[Inference, ...]
    missing: tuple[Missing, ...]
    conflicts: tuple[Conflict, ...]
    kept_in: tuple[KeptIn, ...]
    changes: tuple[PriceChange, ...]
    fitting_tiers: tuple[str, ...]
    problems: tuple[str, ...]

    def find(self, quantity: str, method: str = "") -> Inference | None:
        """The first inference of a quantity whose method begins with a text."""
        return next((i for i in self.inferences if i.quantity == quantity and i.method.startswith(method)), None)


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


Earns = Literal["yes", "likely yes", "likely no", "no", "unknown"]

_MEMORY = 0.9  # of a chip's memory that holds weights and KV cache, as engines set by default
_WEIGHTS = 0.5  # of that memory at most, or more chips share the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the standard prices of short prompts cover the cost of the model.

    Args:
        earns: "yes" and "no" hold in nine of ten combinations of the unknowns, "likely ..." in more than half;
            "unknown" where the model or a price is.
        text: the same as a sentence, with how.
        earning_share: combinations of the unknowns in which the host earns money [fraction].
        likely_margin_low, likely_margin_high: sales over rent, idle hours included, less 1, in eight of ten
            combinations [ratio].
        input_price_over_cost, output_price_over_cost: of one token at full use, the median [ratio].
    """

    earns: Earns
    text: str
    earning_share: float | None = None
    likely_margin_low: float | None = None
    likely_margin_high: float | None = None
    input_price_over_cost: float | None = None
    output_price_over_cost: float | None = None


def verdict_of(sheet: PriceSheet, draws: Draws) -> Verdict:
    """Compare standard prices with the cost of the sheet's model under every drawn combination of the unknowns.

    On the ideal roofline, with full batches: an output token of a context L takes its share kv(L) of the chip's KV
    cache for a step, in which the whole memory is read once, and at least as long as a prompt token. The margin is
    computed, so the margins that the readings suppose do not count here.

        c_in = q * 2 * N / (mfu * flop_per_s),  c_out = max(c_in, q * memory / (share * hbm_bytes_per_s) / batch)

    Raises:
        UnknownNameError: a model that the catalogue does not have.

    Assumes: `output_usd_per_token`; weights fill at most half of the memory; attention's products are left out.
    """
    standard = sheet.standard
    if sheet.model is None:
        return Verdict(earns="unknown", text="unknown: the model is not public, and readings suppose that it does")
    if standard is None or standard.input_usd is None or standard.output_usd is None:
        return Verdict(earns="unknown", text="unknown: no usable price of input and output")
    d, known = draws, model(sheet.model)
    given, made, r = standard.input_usd, standard.output_usd, d.input_over_output
    c_in = as_array(input_usd_per_token(known.active_params, d.flop_per_s, d.mfu, d.usd_per_chip_s, 1.0))
    weight_bytes = known.total_params * d.ridge * 2.0 * d.hbm_bytes_per_s / d.flop_per_s
    memory = _MEMORY * d.hbm_bytes
    chips = np.maximum(1.0, np.ceil(weight_bytes / (_WEIGHTS * memory)))
    kv = as_array(known.kv_bytes(d.context_len, 1.0)) * 2.0**d.share  # one to two bytes per element
    batch = (memory - weight_bytes / chips) / kv
    read = output_usd_per_token(
        known.active_params, memory / batch, d.flop_per_s, d.mfu, d.hbm_bytes_per_s, d.hbm_share, d.usd_per_chip_s, 1.0
    )
    c_out = as_array(read)
    sales_over_rent = (made + r * given) / (c_out + r * c_in) * d.utilisation
    low, high = (float(end) - 1.0 for end in np.quantile(sales_over_rent, (0.1, 0.9)))
    share = float(np.mean(sales_over_rent > 1.0))
    earns: Earns = "yes" if share >= 0.9 else "likely yes" if share > 0.5 else "likely no" if share > 0.1 else "no"
    over = float(np.median(given / c_in)), float(np.median(made / c_out))
    return Verdict(
        earns=earns,
        text=f"{earns}: in {100 * share:.0f} % of the assumed combinations; margin likely {100 * low:+,.0f} % "
        f"to {100 * high:+,.0f} %, idle hours included; sells input at {over[0]:.2g} times its cost at full use, "
        f"output at {over[1]:.2g} times",
        earning_share=share,
        likely_margin_low=low,
        likely_margin_high=high,
        input_price_over_cost=over[0],
        output_price_over_cost=over[1],
    )
