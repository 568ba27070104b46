"""What a monthly budget buys of a planned service, and what users or requests cost a month, under each way to pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rackline.pricing.terms import Blend, Owning, Terms, blend, owning, spare_hosts
from rackline.search.extensions import plan_fleet
from rackline.search.plan import Plan
from rackline.serving.fleet import HOURS_PER_MONTH, Fleet, Traffic
from rackline.serving.open_loop import Population

_S_PER_MONTH = HOURS_PER_MONTH * 3600.0
_AS_MANY = 1e-3  # users that nobody would tell apart
_JUST_BELOW = 1.0 - 1e-9  # so that as many copies as were meant serve the users


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a service.

    Args:
        users: who are there at a time, each waiting for an answer or thinking; None where requests count [count].
        requests_per_s: mean request rate; None where users count, or nobody is named [requests/s].
        think_s: mean pause between an answer and the user's next request [s].
        peak_over_mean: of the busiest hour [ratio].
        budget_usd: a month; None without one [USD].
        survive_hosts: hosts that may fail while the limits still hold [count].
        availability: share of the time in which enough hosts serve; None where it is not asked [1].
    """

    users: float | None = None
    requests_per_s: float | None = None
    think_s: float = 0.0
    peak_over_mean: float = 1.0
    budget_usd: float | None = None
    survive_hosts: int = 0
    availability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A fleet under one way to pay.

    Args:
        terms: the way to pay, in words.
        usd_per_chip_hour: mean price of a chip that is held [USD/h].
        estimated: whether no price of this kind is published for the chip.
        copies: copies of the deployment that serve; 0 where the budget buys none [count].
        spare_copies: that stand by for hosts that fail [count].
        num_chips: chips that are paid for at the peak [count].
        users: on average, within the limits [count].
        requests_per_month: that these users make, or that were asked for [count].
        usd_per_month: for all chips that are paid for [USD].
        usd_per_user, usd_per_request: of those [USD].
        within_budget: whether it keeps the budget; None without one.
        least_usd: a month of the smallest fleet [USD].
        break_even_months: after which buying the chips would have cost less than these terms; None where it never
            does, or is not known [months].
        bound_months: for which one is bound; 0 where chips come and go [months].
        bound_usd: dollars to which one is bound: the capital of what is bought, else the rent of these months [USD].
    """

    terms: str
    usd_per_chip_hour: float
    estimated: bool
    copies: int
    spare_copies: int
    num_chips: int
    users: float | None
    requests_per_month: float
    usd_per_month: float
    usd_per_user: float | None
    usd_per_request: float | None
    within_budget: bool | None
    least_usd: float
    break_even_months: float | None
    bound_months: int = 0
    bound_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """A plan as copies that users load.

    Args:
        users_per_copy: at the peak, within the limits [count].
        requests_per_copy: at the peak [requests/s].
        chips_per_copy: that the smallest fleet holds [chips].
    """

    plan: Plan
    wanted: Wanted
    users_per_copy: float
    requests_per_copy: float
    chips_per_copy: int

    def spare_copies(self, copies: int) -> int:
        """Copies on the hosts that are held beyond those of a number of copies [count]."""
        cluster, chips = self.plan.system.cluster, self.chips_per_copy
        on_a_host = max(cluster.host_chips // chips, 1)
        hosts = self.wanted.survive_hosts
        if self.wanted.availability is not None:
            needed = math.ceil(copies * max(chips / cluster.host_chips, 1.0 / on_a_host))
            hosts = max(hosts, spare_hosts(needed, self.wanted.availability))
        return hosts * min(on_a_host, copies)  # a host fails with those of them that it holds

    @property
    def unit_chips(self) -> int:
        """Chips of the least that comes and goes: a rented unit, or as many as a copy needs [count]."""
        unit = self.plan.system.cluster.rented_chips
        return unit * math.ceil(self.chips_per_copy / unit)

    def mixed(self, base: Terms, by_the_hour: Terms, load: float) -> Blend:
        """Units that are held and units by the hour, for a load in copies at the peak."""
        copies = max(self.unit_chips // self.chips_per_copy, 1)  # of one unit
        return blend(base.usd_per_chip_hour, by_the_hour.usd_per_chip_hour, self.wanted.peak_over_mean, load / copies)

    def fleet(self, copies: int) -> Fleet:
        """The fleet of a number of copies that serve, with those that stand by."""
        copies += self.spare_copies(copies)
        users = copies * self.users_per_copy / self.wanted.peak_over_mean * _JUST_BELOW
        return _fleet(self.plan, self.wanted, users)


def _fleet(plan: Plan, wanted: Wanted, users: float) -> Fleet:
    traffic = Traffic(tokens_per_s=1.0, peak_over_mean=wanted.peak_over_mean)
    found = plan_fleet(traffic, plan, users=Population(users=max(users, 1.0), think_s=wanted.think_s))
    if found is None:
        raise ValueError("a plan without an answer has no fleet")
    return found


def bought(plan: Plan, wanted: Wanted, terms: Sequence[Terms]) -> tuple[Bought, ...]:
    """The fleet under each way to pay: that of the users or requests asked, else the largest within the budget.

    Where the load swings, the cheapest of the ways that bind is also mixed with chips on demand for the peak.

    Args:
        plan: with an answer.
        terms: ways to pay for the chips of its cluster.
    """
    one = _fleet(plan, wanted, 1.0)
    best = plan.best
    if one.interactive is None or best is None:
        raise ValueError("a plan without an answer buys nothing")
    service = _Service(
        plan=plan,
        wanted=wanted,
        users_per_copy=one.interactive.users_per_copy,
        requests_per_copy=one.copy_tokens_per_s / best.workload.output_len,
        chips_per_copy=one.num_chips,
    )
    owned = owning(plan.system.cluster)
    return (*[_under(service, one_term, owned) for one_term in terms], *_blended(service, terms))


def _under(service: _Service, terms: Terms, owned: Owning | None, peak_terms: Terms | None = None) -> Bought:
    """The fleet under one way to pay.

    Args:
        peak_terms: by the hour, for chips that only the peak needs; None where all are held.
    """
    wanted = service.wanted
    peak = wanted.peak_over_mean
    load = (  # in copies, at the peak
        wanted.users * peak / service.users_per_copy
        if wanted.users is not None
        else None
        if wanted.requests_per_s is None
        else wanted.requests_per_s * peak / service.requests_per_copy
    )

    def usd_a_month(copies: int) -> float:
        chips, usd = service.fleet(copies).billed_chips, terms.usd_per_chip_hour
        if peak_terms is None:
            return chips * usd * HOURS_PER_MONTH
        mixed = service.mixed(terms, peak_terms, copies if load is None else load)
        serve = min(mixed.units * service.unit_chips, chips)  # the rest stands by for hosts that fail
        return (serve * mixed.usd_per_hour + (chips - serve) * usd) * HOURS_PER_MONTH

    if load is not None:
        copies = max(1, math.ceil(load / terms.capacity - 1e-9))
    else:
        copies = _most_copies(usd_a_month, wanted.budget_usd or 0.0)
    chips = service.fleet(copies).billed_chips if copies else 0
    usd = usd_a_month(copies) if copies else 0.0
    users = None if wanted.requests_per_s is not None else wanted.users
    rate = wanted.requests_per_s
    if users is None and rate is None:
        users = copies * service.users_per_copy * terms.capacity / peak
    if rate is None:
        rate = _fleet(service.plan, wanted, users).requests_per_s if users else 0.0
    requests = (rate or 0.0) * _S_PER_MONTH
    even = None
    if owned is not None and terms.is_rented:
        even = owned.break_even_months(terms.usd_per_chip_hour)
    title, held = terms.title, chips
    if peak_terms is not None and copies:
        mixed = service.mixed(terms, peak_terms, copies if load is None else load)
        held = chips - (mixed.units - mixed.held) * service.unit_chips
        title = f"{title} for {held:,} of {chips:,} chips, {peak_terms.title} at the peak"
    if owned is not None and not terms.is_rented:
        bound = held * owned.capital_usd
    else:
        bound = held * terms.usd_per_chip_hour * HOURS_PER_MONTH * terms.months
    return Bought(
        terms=title,
        usd_per_chip_hour=usd / HOURS_PER_MONTH / chips if chips else terms.usd_per_chip_hour,
        estimated=terms.estimated or (peak_terms is not None and peak_terms.estimated),
        copies=copies,
        spare_copies=service.spare_copies(copies) if copies else 0,
        num_chips=chips,
        users=users,
        requests_per_month=requests,
        usd_per_month=usd,
        usd_per_user=usd / users if users else None,
        usd_per_request=usd / requests if requests else None,
        within_budget=None if wanted.budget_usd is None else copies > 0 and usd <= wanted.budget_usd,
        least_usd=usd_a_month(1),
        break_even_months=even if peak_terms is None else None,
        bound_months=terms.months,
        bound_usd=bound,
    )


def _most_copies(usd_a_month: Callable[[int], float], budget_usd: float) -> int:
    """The most copies whose chips that are paid for keep a budget; whole units make it a staircase."""
    if usd_a_month(1) > budget_usd:
        return 0
    low, high = 1, 2
    while usd_a_month(high) <= budget_usd:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if usd_a_month(middle) <= budget_usd else (low, middle)
    return low


def _blended(service: _Service, terms: Sequence[Terms]) -> tuple[Bought, ...]:
    """The cheapest way that binds for the base, on demand for the peak; none where a load does not swing by a unit."""
    wanted = service.wanted
    peak_terms = next((one for one in terms if one.is_elastic), None)
    base = min((one for one in terms if one.months), key=lambda one: one.usd_per_chip_hour, default=None)
    if peak_terms is None or base is None or not 1.0 < wanted.peak_over_mean <= 2.0:
        return ()
    if base.usd_per_chip_hour >= peak_terms.usd_per_chip_hour:
        return ()
    found = _under(service, base, owning(service.plan.system.cluster), peak_terms)
    return (found,) if found.terms != base.title and f"{found.num_chips:,} of" not in found.terms else ()


def cheapest(found: Sequence[Bought]) -> Bought | None:
    """The best of several: that which serves most users within the budget, else the one that costs least a month.

    Ways that serve as many users but for a thousandth, as spot does, count as equal.
    """
    there = [one for one in found if one.copies and one.within_budget is not False]
    most = max((one.users or 0.0 for one in there), default=0.0)
    there = [one for one in there if (one.users or 0.0) >= most * (1.0 - _AS_MANY)]
    return min(there, key=lambda one: one.usd_per_month, default=None)
