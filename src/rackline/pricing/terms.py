"""Ways to pay for chips: on demand, reserved, spot, owned; mixtures of two, and when buying has paid for itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

from rackline.errors import require, unknown_name
from rackline.files import shipped_toml
from rackline.hardware import RENT_KINDS, Cluster, RentKind, most_w, rent_of
from rackline.serving.fleet import HOURS_PER_MONTH

TermKind = Literal["on_demand", "reserved_1y", "reserved_3y", "contract", "spot", "owned"]
_TITLES: dict[TermKind, str] = {**RENT_KINDS, "spot": "spot"}
_MONTHS: dict[TermKind, int] = {"reserved_1y": 12, "reserved_3y": 36, "contract": 12, "owned": 48}
_RENTED: tuple[RentKind, ...] = ("on_demand", "reserved_1y", "reserved_3y", "contract", "owned")
_ELASTIC, _NOT_ESTIMATED = ("on_demand",), ("contract",)  # an index of contracts is no offer for other chips
TERM_KINDS: tuple[TermKind, ...] = get_args(TermKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One way to pay for a chip.

    Args:
        kind: on_demand, reserved_1y, reserved_3y, contract, spot or owned.
        usd_per_chip_hour: price while it is held [USD/h].
        how: kind, date and origin in words.
        estimated: whether no price of this kind is published for the chip.
        capacity: share of the hours that are paid in which it serves [1].
        months: for which it is bound; of what is owned, over which it is written off [months].
    """

    kind: TermKind
    usd_per_chip_hour: float
    how: str
    estimated: bool = False
    capacity: float = 1.0
    months: int = 0

    @property
    def title(self) -> str:
        """The kind in words."""
        return _TITLES[self.kind]

    @property
    def is_elastic(self) -> bool:
        """Whether chips come and go by the hour at this price."""
        return self.kind in _ELASTIC

    @property
    def is_rented(self) -> bool:
        """Whether somebody else owns the chips."""
        return self.kind in (*_RENTED[:-1], "spot")


@cache
def stored() -> dict[str, Any]:
    """What `terms.toml` says: prices of spot and power, capital of machines, quality of models, each with sources."""
    return shipped_toml("rackline.pricing", "terms.toml")


def serving_share(taken_back: float, return_s: float) -> float:
    """Share of the time in which an instance serves that is taken back now and then and replaced.

    Equation:
        up / (up + down), up = -month / ln(1 - p): the mean time between two interruptions at which a share p of
        instances is interrupted within a month.

    Args:
        taken_back: share of instances that are taken back within a month, p [1].
        return_s: from then until the replacement serves [s].

    >>> round(serving_share(0.05, 420.0), 6)
    0.999992
    """
    if taken_back <= 0.0:
        return 1.0
    up_s = -HOURS_PER_MONTH * 3600.0 / math.log1p(-taken_back)
    return up_s / (up_s + return_s)


def terms_of(name: str) -> tuple[Terms, ...]:
    """The ways to pay for a chip of the catalogue, in the order of `TERM_KINDS`; none where it has no price.

    Spot is a measured share of the price on demand.

    >>> [(one.kind, one.usd_per_chip_hour) for one in terms_of("h100-sxm")][:2]
    [('on_demand', 2.95), ('reserved_1y', 2.35)]
    """
    found = [
        Terms(
            kind=kind,
            usd_per_chip_hour=rent.usd_per_chip_hour,
            how=rent.how,
            estimated=rent.estimated,
            months=_MONTHS.get(kind, 0),
        )
        for kind in _RENTED
        if (rent := rent_of(name, kind)) is not None and not (rent.estimated and kind in _NOT_ESTIMATED)
    ]
    demand = next((one for one in found if one.kind in _ELASTIC), None)
    if demand is not None:
        spot = stored()["spot"]
        ratio, taken_back = spot["ratio_to_on_demand"], spot["interruptions_per_month"]
        found.insert(
            len(found) - 1,
            Terms(
                kind="spot",
                usd_per_chip_hour=ratio * demand.usd_per_chip_hour,
                how=f"spot, estimated: {ratio:g} × {demand.how}; {taken_back:.0%} of instances taken back a month",
                estimated=True,
                capacity=serving_share(taken_back, spot["return_s"]),
            ),
        )
    return tuple(found)


def asked_terms(kind: TermKind, usd_per_chip_hour: float, how: str) -> Terms:
    """Return the terms of a kind of rent or a price that a question names.

    Args:
        usd_per_chip_hour: price while the chip is held [USD/h].
        how: kind, date and origin in words.
    """
    return Terms(kind=kind, usd_per_chip_hour=usd_per_chip_hour, how=how, months=_MONTHS.get(kind, 0))


def find_terms(cluster: Cluster, kinds: tuple[str, ...]) -> tuple[Terms, ...]:
    """The ways to pay for the chips of a cluster, of some kinds.

    Args:
        kinds: such as ("on-demand", "owned"); empty for all that are known.

    Raises:
        InputError: an unknown kind; the nearest is named.
    """
    known = [one.replace("_", "-") for one in TERM_KINDS]
    for kind in kinds:
        if kind not in known:
            raise unknown_name("terms", kind, known)
    wanted = {kind.replace("-", "_") for kind in kinds}
    return tuple(one for one in terms_of(cluster.chip.name) if not wanted or one.kind in wanted)


def spare_hosts(hosts: int, availability: float) -> int:
    """Hosts beyond those that are needed, so that enough of all serve for a share of the time [count].

    Equation:
        smallest s with P(Binomial(hosts + s, q) <= s) >= availability, q = T / (1 / λ + T): a host fails λ times a
        day and is replaced after T.

    Args:
        hosts: that are needed [count].
        availability: share of the time in which they are there, below 1 [1].

    Assumes: hosts fail independently; a failed rack or zone is not in it.
    Sources: `hosts` of `terms.toml`.

    >>> [spare_hosts(hosts, 0.999) for hosts in (1, 10, 100)]
    [0, 1, 1]
    """
    from scipy.special import bdtr

    rates = stored()["hosts"]
    repair_days = rates["repair_s"] / 86400.0
    down = repair_days / (1.0 / rates["failures_per_day"] + repair_days)
    spare = 0
    while float(bdtr(spare, hosts + spare, down)) < availability:
        spare += 1
    return spare


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Units of chips that are held all day, and more by the hour at the peak.

    Args:
        held, units: that are held, and that the peak needs [count].
        usd_per_hour: mean price of a unit that the peak needs, those by the hour at the hours that need them [USD/h].
    """

    held: int
    units: int
    usd_per_hour: float


def blend(base_usd_per_hour: float, peak_usd_per_hour: float, peak_over_mean: float, units: float) -> Blend:
    """The cheapest mixture of units that are held and units by the hour, for a load that swings once a day.

    Equation:
        load = mean (1 + a cos θ), a = peak over mean - 1. The j-th unit serves while the load exceeds j - 1 units,
        for a share q = acos(((j - 1) / mean - 1) / a) / π of the day, and costs min(base, q peak price).

    Args:
        base_usd_per_hour: of a unit that is held [USD/h].
        peak_usd_per_hour: of one by the hour [USD/h].
        peak_over_mean: 1 to 2: the load of the night is not below zero [ratio].
        units: that the load at the peak fills; the last may be filled in part [count].

    Assumes: units by the hour come and go at once.

    Raises:
        InputError: a peak of more than twice the mean.

    >>> blend(1.3, 2.5, 1.5, 12)
    Blend(held=8, units=12, usd_per_hour=1.1756...)
    """
    require(1.0 <= peak_over_mean <= 2.0, what="peak_over_mean", given=peak_over_mean, allowed="1 to 2", nearest="2")
    most = max(math.ceil(units - 1e-9), 1)
    below = np.arange(most) * peak_over_mean / units - 1.0  # load below each unit, over the mean and less it
    share = np.arccos(np.clip(below / max(peak_over_mean - 1.0, 1e-12), -1.0, 1.0)) / np.pi
    hourly = share * peak_usd_per_hour
    return Blend(
        held=int(np.sum(hourly >= base_usd_per_hour)),
        units=most,
        usd_per_hour=float(np.mean(np.minimum(hourly, base_usd_per_hour))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Owning:
    """What owning a chip takes.

    Args:
        capital_usd: of the chip with its share of machine and rack [USD].
        quoted: whether it is a public quote; else what the hourly price of owning leaves after power.
        running_usd_per_hour: power of chip, machine and site [USD/h].
        months: over which it is written off [months].
    """

    capital_usd: float
    quoted: bool
    running_usd_per_hour: float
    months: int

    def break_even_months(self, rent_usd_per_hour: float) -> float | None:
        """Months after which renting would have cost more than buying; None where it never does [months]."""
        saved = (rent_usd_per_hour - self.running_usd_per_hour) * HOURS_PER_MONTH
        return self.capital_usd / saved if saved > 0 else None


def owning(cluster: Cluster, usd_per_kwh: float | None = None) -> Owning | None:
    """Capital and running cost of a chip of a cluster; None where neither a price of owning nor its power is known.

    Args:
        usd_per_kwh: price of power; that of `terms.toml` by default [USD/kWh].
    """
    terms = next((one for one in terms_of(cluster.chip.name) if not one.is_rented), None)
    power_w = most_w(cluster)
    if terms is None or power_w is None:
        return None
    kwh = stored()["power"]["usd_per_kwh"] if usd_per_kwh is None else usd_per_kwh
    running = power_w / 1e3 * kwh
    quoted: float | None = stored()["capital"].get(cluster.chip.name)
    left = max(terms.usd_per_chip_hour - running, 0.0) * HOURS_PER_MONTH * terms.months
    return Owning(
        capital_usd=left if quoted is None else quoted,
        quoted=quoted is not None,
        running_usd_per_hour=running,
        months=terms.months,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """A public score of a model.

    Args:
        benchmark, score: its name, and the share of right answers [%].
        date, source: of the publication.
    """

    benchmark: str
    score: float
    date: str
    source: str


def quality_of(model: str) -> Quality | None:
    """The stored public score of a model of the catalogue; None without one.

    >>> quality_of("llama-3.1-70b").score
    66.4
    """
    for one in stored()["quality"]:
        if model in one["scores"]:
            return Quality(
                benchmark=one["benchmark"], score=one["scores"][model], date=one["date"], source=one["source"]
            )
    return None
