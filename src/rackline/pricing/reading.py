"""What was read from a price sheet: intervals, what could not be read, and what contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rackline.pricing.sheet import PriceTier
from rackline.pricing.unknowns import Range
from rackline.pricing.verdict import Verdict

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
