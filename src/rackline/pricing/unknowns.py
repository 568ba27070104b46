"""What a price sheet does not say: chip, precision, rent, margin, utilisation, efficiency; each as a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rackline.catalog import names
from rackline.errors import InputError, require
from rackline.hardware import Chip, Cluster, chip
from rackline.parallel.precision import STORAGE_BYTES
from rackline.passes.features import Array, as_array
from rackline.pricing.forms import price_over_cost

_LEAST_HBM = 80e9  # chips below this serve no large model


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A low and a high end, both above 0."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require(
            0 < self.low <= self.high < float("inf"),
            what="range",
            given=f"{self.low:g}..{self.high:g}",
            allowed="0 < low <= high, both finite",
        )

    @property
    def middle(self) -> float:
        """Geometric mean: the middle of a range whose ends are known as ratios."""
        return (self.low * self.high) ** 0.5

    def overlaps(self, other: Range) -> bool:
        """Whether the two have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def holds(self, value: float, slack: float = 1e-9) -> bool:
        """Whether a value lies inside, up to rounding."""
        return self.low * (1 - slack) <= value <= self.high * (1 + slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A chip at a rent [USD/hour]."""

    chip: Chip
    usd_per_chip_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Unknowns drawn at random, each in equal ratios over its range; arrays of one length.

    Args:
        flop_per_s, hbm_bytes_per_s, hbm_bytes, ridge: of the chip and data type drawn.
        usd_per_chip_s: rent with its factor [USD/s].
        price_over_cost: (1 + margin) / utilisation [ratio].
        utilisation, mfu, hbm_share, kv_share: [fraction].
        context_len: [tokens].
        input_over_output: uncached prompt tokens per output token [ratio].
        output_split: where the cost of an output token lies between its least (that of a prompt token) and its most
            (all that its request costs), 0 to 1 [fraction].
        step_over_crossover, total_over_active, kv_over_compute: [ratio].
        share: of a range that has no name here, 0 to 1 [fraction].
    """

    flop_per_s: Array
    hbm_bytes_per_s: Array
    hbm_bytes: Array
    ridge: Array
    usd_per_chip_s: Array
    price_over_cost: Array
    utilisation: Array
    mfu: Array
    hbm_share: Array
    kv_share: Array
    context_len: Array
    input_over_output: Array
    output_split: Array
    step_over_crossover: Array
    total_over_active: Array
    kv_over_compute: Array
    share: Array

    def within(self, span: Range) -> Array:
        """Values in equal ratios over another range."""
        return span.low * (span.high / span.low) ** self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknowns:
    """Ranges of all that the price of a token depends on besides the model.

    The defaults are assumptions: rents are the catalogue's contract prices up to about the on-demand price; margins run
    from none to three times the cost; utilisation and shares of the peaks are what servers are reported to reach. The
    shortest context and the fewest prompt tokens per output token are those of the use `chat`, measured by Azure (1,155
    and 211 tokens); the most prompt tokens are those of `agents`, whose cached ones do not count (0.41 · 8,600 / 180).

    Args:
        offers: chips that may serve, with their rents.
        dtypes: of weights and products; those that a chip does not have are left out for it.
        rent_factor: rent paid over the catalogue's [ratio].
        margin: price over cost, less 1, at the stated utilisation; 0 is allowed as the low end [ratio].
        utilisation: share of the chip-hours that are sold [fraction].
        mfu: of prefill [fraction].
        hbm_share: of the memory bandwidth that decode reaches [fraction].
        context_len: served, on average, where the sheet does not say [tokens].
        kv_share: of the bytes that an output token reads, what is KV cache [fraction].
        input_over_output: uncached prompt tokens per output token of the requests [ratio].
        step_over_crossover: where a provider puts the context step, over the crossover [ratio].
        total_over_active: of mixtures of experts [ratio].
        kv_over_compute: KV slope over compute slope at the normal batch of a fast mode [ratio].
    """

    offers: tuple[Offer, ...]
    dtypes: tuple[str, ...] = ("bf16", "fp8", "fp4")
    rent_factor: Range = field(default_factory=lambda: Range(low=1.0, high=2.0))
    margin: tuple[float, float] = (0.0, 3.0)
    utilisation: Range = field(default_factory=lambda: Range(low=0.3, high=0.9))
    mfu: Range = field(default_factory=lambda: Range(low=0.2, high=0.7))
    hbm_share: Range = field(default_factory=lambda: Range(low=0.4, high=0.9))
    context_len: Range = field(default_factory=lambda: Range(low=1260.0, high=16e3))
    kv_share: Range = field(default_factory=lambda: Range(low=0.1, high=0.9))
    input_over_output: Range = field(default_factory=lambda: Range(low=5.5, high=20.0))
    step_over_crossover: Range = field(default_factory=lambda: Range(low=0.5, high=2.0))
    total_over_active: Range = field(default_factory=lambda: Range(low=8.0, high=40.0))
    kv_over_compute: Range = field(default_factory=lambda: Range(low=0.01, high=0.9))

    def __post_init__(self) -> None:
        low, high = self.margin
        require(
            0 <= low <= high < float("inf"),
            what="margin",
            given=f"{low:g}..{high:g}",
            allowed="0 <= low <= high, both finite",
        )
        for name in ("utilisation", "mfu", "hbm_share", "kv_share"):
            require(
                getattr(self, name).high <= 1.0,
                what=name,
                given=getattr(self, name).high,
                allowed="shares above 0 to 1",
                nearest="1",
            )
        require(
            self.points,
            what="chips and data types",
            given=", ".join(self.dtypes),
            allowed=f"a data type that {', '.join(offer.chip.name for offer in self.offers) or 'a chip'} has",
        )

    @property
    def price_over_cost(self) -> Range:
        """X = (1 + margin) / utilisation."""
        low, high = self.margin
        return Range(low=price_over_cost(low, self.utilisation.high), high=price_over_cost(high, self.utilisation.low))

    @property
    def points(self) -> tuple[tuple[Offer, str], ...]:
        """Each chip with each data type that it has."""
        return tuple((offer, dtype) for offer in self.offers for dtype in self.dtypes if offer.chip.supports(dtype))

    @property
    def flop_per_s(self) -> Array:
        """Dense peak of each point [FLOP/s]."""
        return as_array(np.array([offer.chip.flop_per_s(dtype) for offer, dtype in self.points]))

    @property
    def hbm_bytes_per_s(self) -> Array:
        """Memory bandwidth of each point [bytes/s]."""
        return as_array(np.array([offer.chip.hbm_bytes_per_s for offer, _ in self.points]))

    @property
    def usd_per_chip_s(self) -> Array:
        """Catalogue rent of each point [USD/s]."""
        return as_array(np.array([offer.usd_per_chip_hour / 3600.0 for offer, _ in self.points]))

    @property
    def ridge(self) -> Array:
        """Dimensionless ridge of each point: multiplies in the time of one weight read."""
        width = np.array([STORAGE_BYTES[dtype] for _, dtype in self.points])
        return self.flop_per_s / 2.0 * width / self.hbm_bytes_per_s

    def draws(self, generator: np.random.Generator, count: int = 4096) -> Draws:
        """Combinations of the unknowns drawn independently.

        Args:
            generator: where the random numbers come from.
            count: how many [count].
        """

        def spread(span: Range) -> Array:
            return span.low * (span.high / span.low) ** generator.random(count)

        pick = generator.integers(0, len(self.points), count)
        low, high = self.margin
        margin = spread(Range(low=1.0 + low, high=1.0 + high))
        rent, utilisation = self.usd_per_chip_s[pick] * spread(self.rent_factor), spread(self.utilisation)
        return Draws(
            flop_per_s=self.flop_per_s[pick],
            hbm_bytes_per_s=self.hbm_bytes_per_s[pick],
            hbm_bytes=np.array([offer.chip.hbm_bytes for offer, _ in self.points])[pick],
            ridge=self.ridge[pick],
            usd_per_chip_s=rent,
            price_over_cost=margin / utilisation,
            utilisation=utilisation,
            mfu=spread(self.mfu),
            hbm_share=spread(self.hbm_share),
            kv_share=spread(self.kv_share),
            context_len=spread(self.context_len),
            step_over_crossover=spread(self.step_over_crossover),
            total_over_active=spread(self.total_over_active),
            kv_over_compute=spread(self.kv_over_compute),
            share=generator.random(count),
            input_over_output=spread(self.input_over_output),
            output_split=generator.random(count),
        )


def offer_of(on: Cluster) -> Offer:
    """The chip of a cluster at the cluster's rent.

    Raises:
        InputError: a cluster without a price.
    """
    if on.usd_per_chip_hour is None:
        raise InputError(what="price", given="nothing", allowed=f"USD per chip-hour: {on.name} has none")
    return Offer(chip=on.chip, usd_per_chip_hour=on.usd_per_chip_hour)


def default_offers(chips: Sequence[str] | None = None) -> tuple[Offer, ...]:
    """Chips of the catalogue that have a rent and hold at least 80 GB.

    Args:
        chips: names to keep instead; aliases are allowed.

    Raises:
        UnknownNameError: a chip that does not exist.
        InputError: a chip without a rent.
    """
    if chips is None:
        known = [chip(name) for name in names("chips")]
        kept = [one for one in known if one.usd_per_chip_hour is not None and one.hbm_bytes >= _LEAST_HBM]
    else:
        kept = [chip(name) for name in dict.fromkeys(chips)]
    offers: list[Offer] = []
    for one in kept:
        if one.usd_per_chip_hour is None:
            priced = ", ".join(offer.chip.name for offer in default_offers())
            raise InputError(what="--chip", given=one.name, allowed=f"a chip with a rent: {priced}")
        offers.append(Offer(chip=one, usd_per_chip_hour=one.usd_per_chip_hour))
    return tuple(offers)


def default_unknowns(chips: Sequence[str] | None = None) -> Unknowns:
    """All ranges at their defaults, on the given chips or the default ones."""
    return Unknowns(offers=default_offers(chips))
