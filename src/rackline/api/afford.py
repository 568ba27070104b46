"""`afford`: what a monthly budget buys, or what users cost a month, over models, clusters and ways to pay."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from rich.text import Text

from rackline.api.answer import Answer, Watch, asks
from rackline.api.engines import engine_inputs
from rackline.api.groups import ModelQuestion, Planned
from rackline.api.plan_parts import PlanQuestion, plan_inputs, plan_question_of
from rackline.api.question import MaybeNumber, MaybeWhole, Texts, option, question, whole
from rackline.api.resolve import ANY_ENGINE
from rackline.api.traffic import Use, limits_lines, use_lines, with_use
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.late import late
from rackline.pricing.terms import Quality
from rackline.units import format_count, format_seconds, format_usd, several

with late:
    from rackline import hardware, search
    from rackline.display import column, wording
    from rackline.pricing import bought, terms
    from rackline.report import choice_report, pricing_figures
    from rackline.search import engine_choice

_MOST_PLANS = 24


@question
class AffordQuestion(Planned, ModelQuestion):
    """What does a budget buy, or what do users cost a month?"""

    models: Texts = option(
        "text",
        "models to choose among: catalogue names, Hugging Face ids or files",
        several=True,
        kw_only=False,
    )
    on: Texts = option(
        "text",
        "clusters to choose among: catalogue names or TOML files; may be repeated",
        several=True,
        repeated=True,
    )
    budget: MaybeNumber = option(
        "usd_per_month",
        "largest budget, such as 40k/month or 480k/year; without `users` or `requests` the answer is how many users "
        "it serves",
        default=None,
        unit="USD/month",
        maximum=1e12,
    )
    survive: MaybeWhole = whole(
        "number of hosts that may fail while the limits still hold: spare copies replace theirs",
        minimum=0,
        maximum=1000,
        default=None,
    )
    availability: MaybeNumber = option(
        "fraction",
        "share of the time in which enough hosts serve, such as 99.9%, by published failure rates of hosts",
        default=None,
        unit="1",
        minimum=0.5,
        maximum=0.999999,
    )
    terms: Texts = option(
        "text",
        "ways to pay: on-demand, reserved-1y, reserved-3y, contract, spot or owned; by default all with a known price "
        "for the chip; may be repeated",
        default=None,
        several=True,
        repeated=True,
    )

    def check_options(self) -> None:
        """Refuse a question that has neither a budget nor a load, and two kinds of load or of price.

        Raises:
            InputError: such options.
        """
        require(
            self.given("budget", "users", "requests"),
            what="budget",
            given="nothing",
            allowed="`budget`, `users` or `requests`",
            nearest="40k/month",
        )
        self.either("users", "requests")
        self.refuse("traffic", allowed="`users` or `requests`")
        if self.given("rent", "price") and self.terms:
            raise InputError(what="terms", given=self.terms[0], allowed="either `terms`, or `rent` or `price`")
        pairs = len(self.models) * len(self.on)
        require(
            pairs <= _MOST_PLANS,
            what="models",
            given=f"{pairs} pairs",
            allowed=f"at most {_MOST_PLANS} of model and cluster",
        )
        super().check_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One model on one cluster.

    Args:
        model, cluster: their names.
        engine: that serves it.
        layout: of one replica; empty where nothing serves it within the limits.
        reason: why nothing does; empty otherwise.
        tpot_s: mean time per output token [s].
        ttft_s: mean time to the first token [s].
        usd_per_mtok_output_all_in: of the plan, at the rent or price of the question, else the default [USD per million
            output tokens].
        quality: a public score of the model; None without one.
        ways: the fleet under each way to pay.
        best: the one of them that serves most users within the budget, or that costs least; None without any.
    """

    json_keys: ClassVar = (
        "model",
        "cluster",
        "engine",
        "layout",
        "reason",
        "tpot_s",
        "ttft_s",
        "usd_per_mtok_output_all_in",
        "quality",
        "ways",
        "best",
    )

    model: str
    cluster: str
    engine: str
    layout: str = ""
    reason: str = ""
    tpot_s: float | None = None
    ttft_s: float | None = None
    usd_per_mtok_output_all_in: float | None = None
    quality: Quality | None = None
    ways: tuple[bought.Bought, ...] = ()

    @property
    def best(self) -> bought.Bought | None:
        """The best way to pay."""
        return bought.cheapest(self.ways)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Where it stands: most users first, then fewest dollars."""
        best = self.best
        return (True, 0.0, 0.0) if best is None else (False, -(best.users or 0.0), best.usd_per_month)

    @property
    def name(self) -> str:
        """Model and cluster."""
        return f"{self.model}@{self.cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Afforded:
    """What a budget buys of each model on each cluster.

    Args:
        offers: the best first: most users within the budget, or least dollars a month; those that do not serve last.
        wanted: users, requests and budget that were asked for.
        use: what the use added to the question.
    """

    offers: tuple[Offer, ...]
    wanted: bought.Wanted
    use: Use


def _head(found: Afforded) -> tuple[str, list[str]]:
    """The answer in a line, and lines that explain it."""
    offer = found.offers[0]
    best, wanted = offer.best, found.wanted
    if best is None:
        return _none(found), []
    pause = f"who pause {format_seconds(wanted.think_s)}" if wanted.think_s else "who ask again at once"
    users = "" if best.users is None else f"{best.users:,.0f} users {pause}, "
    answer = f"{users}{format_usd(best.usd_per_month)} a month, {best.terms}"
    lines = [
        f"{best.num_chips:,} chips at {format_usd(best.usd_per_chip_hour)} an hour, {offer.layout}, {offer.engine}; "
        f"{format_seconds(offer.tpot_s or 0.0)} a token, {format_seconds(offer.ttft_s or 0.0)} to the first"
    ]
    if best.spare_copies:
        lines.append(
            f"{several(best.copies, 'copy', 'copies')} to serve, {best.spare_copies:,} to stand by for hosts that fail"
        )
    if best.bound_months:
        of = "bought for about" if best.terms.startswith("owned") else "bound to"
        lines.append(f"{of} {format_usd(best.bound_usd)} over {best.bound_months} months")
    costs = ((best.usd_per_user, "user"), (best.usd_per_request, "request"))
    each = [f"{format_usd(usd)} a {what}" for usd, what in costs if usd is not None]
    lines.append(", ".join([f"{format_count(best.requests_per_month)} requests a month", *each]))
    demand = next((one for one in offer.ways if one.terms == "on demand"), None)
    if demand is not None and demand is not best and demand.copies:
        lines.append(f"on demand the same service costs {format_usd(demand.usd_per_month)} a month"
                     if wanted.users or wanted.requests_per_s else
                     f"on demand the budget buys {demand.users or 0.0:,.0f} users")  # fmt: skip
    elif demand is not None and not demand.copies:
        lines.append(f"on demand the smallest fleet costs {format_usd(demand.least_usd)} a month")
    return answer, lines


def _none(found: Afforded) -> str:
    """Why nothing can be afforded."""
    ways = [(way.least_usd, offer, way) for offer in found.offers for way in offer.ways]
    if not ways:
        return f"nothing serves: {found.offers[0].reason}"
    if found.wanted.users or found.wanted.requests_per_s:
        least = min((way.usd_per_month, offer.name, way.terms) for _, offer, way in ways)
        return f"the budget does not pay for it: the least is {format_usd(least[0])} a month ({least[1]}, {least[2]})"
    usd, offer, way = min(ways, key=lambda one: one[0])
    return f"the budget buys no whole unit: the smallest is {format_usd(usd)} a month ({offer.name}, {way.terms})"


def _text(answer: Answer[AffordQuestion, Afforded], width: int) -> Iterable[Any]:
    found = answer.result
    said, lines = _head(found)
    wanted = found.wanted
    asked = {
        f"{wanted.users or 0:,.0f} users": wanted.users,
        f"{wanted.requests_per_s or 0.0:g} requests/s": wanted.requests_per_s,
        f"at most {format_usd(wanted.budget_usd or 0.0)} a month": wanted.budget_usd,
    }
    body = Text.assemble((said, "bold"), *(f"\n{line}" for line in lines))
    below = ", ".join(text for text, given in asked.items() if given)
    box = wording.Box(body, found.offers[0].name, below, "red" if found.offers[0].best is None else "green")
    yield from limits_lines(found.use)
    yield column.spaced([box, *_sheets(found)])
    yield from use_lines(found.use)


def _sheets(found: Afforded) -> list[column.Sheet[Any]]:
    of_offers: list[column.Column[Offer]] = [
        column.Column("model", "model"),
        column.Column("cluster", "on"),
        column.Column("best.users", "users", "whole"),
        column.Column("best.usd_per_month", "$ a month", "USD"),
        column.Column("best.usd_per_user", "a user", "USD"),
        column.Column("best.usd_per_request", "a request", "USD", priority=1),
        column.Column("best.num_chips", "chips", "whole"),
        column.Column(
            "best.terms",
            "paid",
            "words",
            lambda offer: offer.best.terms if offer.best else offer.reason or "beyond the budget",
        ),
        column.Column("tpot_s", "a token", "s", priority=2),
        column.Column("quality.score", "MMLU-Pro", "1", priority=1),
    ]
    of_ways: list[column.Column[bought.Bought]] = [
        column.Column("terms", "paid", "words"),
        column.Column("usd_per_chip_hour", "$ a chip-hour", "USD"),
        column.Column("num_chips", "chips", "whole"),
        column.Column("users", "users", "whole"),
        column.Column("usd_per_month", "$ a month", "USD", lambda way: way.usd_per_month if way.copies else None),
        column.Column("least_usd", "smallest fleet", "USD", priority=2),
        column.Column("usd_per_user", "a user", "USD"),
        column.Column("usd_per_request", "a request", "USD", priority=1),
        column.Column("bound_usd", "bound to", "USD", lambda way: way.bound_usd or None, priority=1),
        column.Column("break_even_months", "buying pays after, months", "1"),
        column.Column(
            "within_budget", "within", "text", lambda way: {True: "yes", False: "no", None: "-"}[way.within_budget]
        ),
    ]
    first = found.offers[0]
    title = "models and clusters, the best way to pay for each"
    scores = {offer.quality.source: offer.quality.date for offer in found.offers if offer.quality}
    source = "; ".join(f"score: {source}, {date}" for source, date in scores.items())
    offers = column.Sheet("offers", of_offers, found.offers, title, source)
    estimated = ", ".join(one.terms for one in first.ways if one.estimated)
    captions = [f"estimated prices: {estimated}"] if estimated else []
    if all(way.break_even_months is None for way in first.ways):
        captions.append("when buying pays is not known: the power of a machine with these chips is in no file")
    ways = column.Sheet("ways", of_ways, first.ways, f"ways to pay for {first.name}", "; ".join(captions))
    return [offers, ways] if first.ways else [offers]


@asks(
    AffordQuestion,
    text=_text,
    summary=lambda answer: _head(answer.result)[0],
    rows=lambda answer: [
        {"model": offer.model, "cluster": offer.cluster, "chosen": way is answer.result.offers[0].best, **asdict(way)}
        for offer in answer.result.offers
        for way in offer.ways
    ],
    figures={
        "ways": lambda answer: pricing_figures.afford_figure(
            [(offer.name, way) for offer in answer.result.offers for way in offer.ways], answer.result.wanted
        )
    },
    simulates=True,
    entry=Entry(
        group="Decide",
        place=2,
        line="What a monthly budget buys, or what users cost a month.",
        usual=("on", "budget", "users", "think-time", "terms", "for", "input", "output", "tpot", "ttft", "precision"),
        request={"models": ["llama-3.1-8b"], "on": ["l40s-8"], "budget": "5k/month", "layout": "tp=1"},
        is_long=True,
        sweep_s=8.0,
        examples="""
    rackline afford llama-3.1-70b --on dgx-h100 --budget 40k/month
    rackline afford llama-3.1-70b qwen2.5-72b --on dgx-h100 --on dgx-h200 \\
      --users 500 --think-time 20s
    rackline afford llama-3.1-8b --on l40s-8 --budget 5k/month --terms spot --terms on-demand
    rackline afford llama-3.1-70b --on dgx-h100 --users 2000 --peak-over-mean 1.8
""",
    ),
)
def afford(question: AffordQuestion, watch: Watch) -> Afforded:
    """What a monthly budget buys of each model on each cluster, under each way to pay for chips.

    Each pair is planned once; its cost per chip-hour does not change which layout is cheapest, so that ways to pay are
    arithmetic. With `users` or `requests` the least fleet is priced, else the largest that the budget pays for.

    Example:
        >>> import rackline as rl
        >>> found = rl.afford("llama-3.1-8b", on="l40s-8", budget="5k/month", layout="tp=1", serving="aggregated")
        >>> found.result.offers[0].best.usd_per_month <= 5000
        True
    """
    pairs = list(itertools.product(question.models, question.on))
    wanted = bought.Wanted(
        users=question.users,
        requests_per_s=question.requests,
        think_s=question.think_time or 0.0,
        peak_over_mean=question.peak_over_mean or 1.0,
        budget_usd=question.budget,
        survive_hosts=question.survive or 0,
        availability=question.availability,
    )
    offers: list[tuple[Offer, Use]] = []
    with watch.counting("planning the first", "planned") as done:
        for model, on in pairs:
            offers.append(_offer(question, model, on, wanted))
            done(offers[-1][0].name, len(offers), len(pairs))
    ranked = sorted((offer for offer, _ in offers), key=lambda one: one.rank)
    return Afforded(offers=tuple(ranked), wanted=wanted, use=offers[0][1])


def _offer(question: AffordQuestion, model: str, on: str, wanted: bought.Wanted) -> tuple[Offer, Use]:
    """The plan of one model on one cluster, and its fleet under each way to pay."""
    nobody = dict.fromkeys(("users", "requests", "think_time", "peak_over_mean"))
    asked, use = with_use(plan_question_of(question, model=model, on=on, **nobody))
    found = _plan(asked)
    offer = Offer(
        model=found.system.model.name,
        cluster=found.system.cluster.name,
        engine=found.system.stack.name,
        quality=terms.quality_of(found.system.model.name),
    )
    best = found.best
    if best is None:
        return replace(offer, reason=found.reason), use
    ways = _ways(question, found.system.cluster)
    require(
        ways,
        what="price",
        given="nothing",
        allowed=f"USD per chip-hour: {offer.cluster} has none",
        nearest="2.50",
    )
    return replace(
        offer,
        layout=choice_report.replicas_label(best),
        tpot_s=best.tpot_s,
        ttft_s=best.ttft_s,
        usd_per_mtok_output_all_in=best.whole.usd_per_mtok_output_all_in if found.priced else None,
        ways=bought.bought(found, wanted, ways),
    ), use


def _plan(question: PlanQuestion) -> search.Plan:
    """Return the plan under the default engine, or under the cheapest one."""
    watch = Watch()
    if question.engine != ANY_ENGINE:
        return plan_inputs(question, watch).plan()
    return engine_choice.choose_engine(engine_inputs(question, watch), cheapest=True).plan


def _ways(question: AffordQuestion, cluster: Any) -> tuple[terms.Terms, ...]:
    """The ways to pay that are asked for."""
    if question.given("rent", "price"):
        usd = cluster.usd_per_chip_hour
        kind = "on_demand" if question.rent is None else hardware.parse_rent_kind(question.rent)
        how = cluster.rent or "at the price that was given"
        return () if usd is None else (terms.asked_terms(kind, usd, how),)
    return terms.find_terms(cluster, question.terms)
