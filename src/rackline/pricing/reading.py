"""What was read from a price sheet: intervals, what could not be read, and what contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rackline.pricing.unknowns import Range

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

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "quantity": self.quantity,
            "unit": self.unit,
            "method": self.method,
            "low": self.low,
            "high": self.high,
            "likely_low": self.likely_low,
            "likely_high": self.likely_high,
            "bound": self.bound,
            "claim": self.claim,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A quantity that could not be read, and why."""

    quantity: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return {"quantity": self.quantity, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two readings of one sheet that cannot both hold.

    Args:
        claims: of the ledger or names of the two readings.
        text: what contradicts, with numbers.
    """

    claims: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return {"claims": self.claims, "text": self.text}


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

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"lifetime_s": self.lifetime_s, "rule_tier": self.rule_tier, "rule_drain_s": self.rule_drain_s}


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

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "input_ratio": self.input_ratio,
            "output_ratio": self.output_ratio,
            "hardware_gain": self.hardware_gain,
            "precision_gain": self.precision_gain,
            "left_over": self.left_over,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that one sheet reveals.

    Args:
        sheet, provider, sold_as, date: which sheet.
        model: catalogue name, None for a closed model.
        inferences, missing, conflicts, kept_in, changes: see the classes.
        fitting_tiers: memory tiers whose cost the price of keeping a token likely pays.
        problems: prices that could not be used.
    """

    sheet: str
    provider: str
    sold_as: str
    date: str
    model: str | None
    inferences: tuple[Inference, ...]
    missing: tuple[Missing, ...]
    conflicts: tuple[Conflict, ...]
    kept_in: tuple[KeptIn, ...]
    changes: tuple[PriceChange, ...]
    fitting_tiers: tuple[str, ...]
    problems: tuple[str, ...]

    def find(self, quantity: str, method: str = "") -> Inference | None:
        """The first inference of a quantity whose method begins so."""
        return next((i for i in self.inferences if i.quantity == quantity and i.method.startswith(method)), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "sheet": self.sheet,
            "provider": self.provider,
            "sold_as": self.sold_as,
            "date": self.date,
            "model": self.model,
            "inferences": [inference.as_dict() for inference in self.inferences],
            "not_inferred": [missing.as_dict() for missing in self.missing],
            "conflicts": [conflict.as_dict() for conflict in self.conflicts],
            "kept_in": [kept.as_dict() for kept in self.kept_in],
            "fitting_tiers": list(self.fitting_tiers),
            "price_changes": [change.as_dict() for change in self.changes],
            "problems": list(self.problems),
        }
