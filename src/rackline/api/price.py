"""`price`: what to charge for a deployment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, ClassVar

import numpy as np
import rich.text

from rackline.api.answer import Answer, Watch, asks
from rackline.api.engines import engines_of, estimated_by
from rackline.api.groups import (
    CALIBRATION,
    CONFIDENCE,
    MOST_MARGIN,
    PUE,
    SEARCHED_ENGINE,
    Served,
)
from rackline.api.model_options import MediaQuestion, media_of, with_media
from rackline.api.plan_parts import PlanQuestion, plan_inputs, plan_question_of, traffic_of
from rackline.api.prices import offer_of, rent_of
from rackline.api.question import (
    MOST_USD,
    CalibrationLike,
    Limit,
    MaybeLayout,
    MaybeNumber,
    MaybeText,
    Number,
    Numbers,
    Text,
    defaults,
    limit,
    option,
    question,
    shared,
    tokens,
)
from rackline.api.resolve import check_context, resolve
from rackline.api.traffic import Use, mixture_of, record_of, use_lines, with_use
from rackline.api.verbs import Entry
from rackline.errors import InputError, UnknownNameError, require
from rackline.late import late
from rackline.units import format_usd

with late:
    from rackline import catalog, parallel, pricing, system as systems_of
    from rackline.bands import bands, engine_costs, spread
    from rackline.pricing import costs, margins, offered, searched
    from rackline.report import pricing_figures, pricing_report
    from rackline.search import extensions
    from rackline.serving import workload


@question
class PriceQuestion(Served, MediaQuestion):
    """What to charge for a deployment: input, output, cached input, cache writes, batch, flex and fast modes?"""

    layout: MaybeLayout = option(
        "text",
        "parallel layout such as tp=8; by default the cheapest of each mode and context tier",
        default=None,
    )
    engine: Text = shared(SEARCHED_ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    margin: Number = option(
        "fraction",
        "margin over cost (price / cost − 1), such as 30%",
        default="30%",
        unit="1",
        maximum=MOST_MARGIN,
        zero=True,
    )
    utilisation: Number = option(
        "fraction", "utilisation: share of chip-hours filled by standard traffic", default="60%", unit="1"
    )
    contexts: Numbers = tokens(
        "longest prompt of each context tier, such as 32k,200k,1M", default="32k,128k", several=True
    )
    output: MaybeNumber = tokens("output tokens that a request adds to the context; 1k by default", default=None)
    tpot: Limit = limit("time per output token in the standard mode (50ms by default)", "50ms")
    fast: Numbers = option(
        "count",
        "speed-ups of the fast modes over the standard one, such as 1.5,2.5; below 2 a mode is called priority",
        default="1.5,2.5",
        unit="1",
        minimum=1.0,
        maximum=1e3,
        several=True,
    )
    lifetimes: Numbers = option(
        "seconds",
        "lifetimes of cache writes, such as 5min,1h",
        default="5min,1h,24h",
        unit="s",
        maximum=1e10,
        several=True,
    )
    margin_at: str = option(
        "text",
        "which prompts earn the margin: mean (all prompts of a tier together, as many in each doubling of the length) "
        "or longest (so that no prompt of a tier is sold below its cost)",
        default="mean",
        choices=("mean", "longest"),
    )
    purchase: MaybeNumber = option(
        "usd",
        "purchase price per chip with its share of host, network and building, in USD, instead of a rent",
        default=None,
        unit="USD",
        maximum=1e9,
    )
    years: Number = option(
        "count", "depreciation period of purchased hardware", default="4", unit="year", maximum=100.0
    )
    electricity_price: Number = option(
        "usd",
        "electricity price in USD per kWh; an assumption",
        default="0.08",
        unit="USD/kWh",
        maximum=MOST_USD,
        zero=True,
    )
    pue: Number = shared(PUE, default="1")
    against: MaybeText = option(
        "text",
        "a provider's prices to compare with the costs, for each mode and context tier: a price sheet, a TOML file, "
        "or a provider that sells the model",
        default=None,
    )
    confidence: MaybeNumber = shared(CONFIDENCE, default=None)


USUAL_OUTPUT, USUAL_TPOT_S = 1000.0, 0.05
_TRAFFIC = ("traffic", "requests", "users")


def requests_of(question: PriceQuestion) -> tuple[PriceQuestion, Use | None, workload.Mixture | None]:
    """The question with its answers' length and its limit, what a use gave, and the lengths of the requests.

    Raises:
        InputError: lengths that are given in two ways, prompts beyond the last context tier.
    """
    use, mixture = None, mixture_of(question, "output")
    if mixture is not None:
        question = replace(question, output=mixture.mean(mixture.output_len))
    if question.use is not None:
        question, use = with_use(question)
        output_len = question.output or USUAL_OUTPUT
        prompts = np.array([record_of(question.use).input_len])
        mixture = mixture or workload.Mixture.of(1.0, prompts, np.array([output_len]), name=use.name)
    elif question.tpot is None:
        question = replace(question, tpot=USUAL_TPOT_S)
    if question.output is None:
        question = replace(question, output=USUAL_OUTPUT)
    longest = float(mixture.input_len.max()) if mixture is not None else 0.0
    last = max(question.contexts)
    if longest > last:
        tiers = ",".join(f"{step:.0f}" for step in (*question.contexts, longest))
        raise InputError(
            what="contexts",
            given=f"{last:.0f}",
            allowed=f"tiers that hold every prompt, up to {longest:,.0f} tokens",
            nearest=tiers,
        )
    return question, use, mixture


def fleet_question(question: PriceQuestion) -> PlanQuestion | None:
    """The plan whose fleet serves the traffic of a question; None without traffic.

    Raises:
        InputError: two kinds of traffic, an option of traffic without it, a utilisation beside it.
    """
    files = question.mix is not None or question.trace is not None
    first = min(question.contexts)
    plain = question.use is None and not files
    one = plan_question_of(
        question,
        output=None if files else question.output,
        **({"input": costs.PromptLengths(from_len=0.0, until_len=first).mean} if plain else {}),
    )

    traffic, _ = traffic_of(one, workload.Workload(input_len=1.0, output_len=max(question.output or 2.0, 2.0)))
    if traffic is None:
        return None
    if question.utilisation != defaults(type(question))["utilisation"]:
        (name,) = question.given(*_TRAFFIC)
        raise InputError(
            what="utilisation",
            given=question.utilisation,
            allowed=f"either a utilisation or `{name}`, from which it follows",
        )
    return one


def sold_to(
    one: PlanQuestion, sheet: pricing.Offered, ways: searched.SearchedWays, steps: Sequence[float], watch: Watch
) -> pricing.Offered:
    """The sheet at the utilisation that traffic leaves: its requests pay the rent of their fleet with the margin.

    Args:
        one: the plan of the fleet.
        ways: to which the sheet's prices belong, at any utilisation.
        steps: longest prompt of each context tier [tokens].
    """
    full, _ = with_use(one)
    asked = plan_inputs(full, watch)
    with watch.moving("planning the fleet that serves the traffic"):
        found = asked.plan()
    fleet, work, best = (
        extensions.plan_fleet(asked.traffic, found, None, asked.users),
        asked.demand.workload,
        found.best,
    )
    if fleet is None or fleet.usd_per_hour is None or best is None:
        watch.warn(f"no fleet serves this traffic, utilisation is assumed: {found.reason}")
        return sheet
    of_one = workload.Mixture.of(1.0, np.array([work.input_len]), np.array([work.output_len]))
    mixture = work.mixture or of_one
    paid = sheet.request_usd(mixture, work.cache_hit)
    if paid is None or isnan(paid):
        watch.warn("some of these requests are not sold, utilisation is assumed")
        return sheet
    terms, rate = sheet.terms, fleet.traffic.tokens_per_s / work.output_len
    needed = fleet.usd_per_hour / 3600.0 * (1.0 + terms.margin)
    used = min(terms.utilisation * paid * rate / needed, 1.0)
    again = pricing.offer_prices(ways, sheet.rent, replace(terms, utilisation=used), steps=steps)
    return replace(
        again,
        demand=offered.Demand(
            fleet=fleet,
            engine=best.label(),
            input_len=work.input_len,
            cached_len=work.cached_tokens,
            output_len=work.output_len,
            request_usd=again.request_usd(mixture, work.cache_hit) or paid,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A price sheet with what it is for.

    Args:
        offered: the sheet.
        use: the lengths and limits that a use gave; None where none was named.
        engines: the engine of the sheet and the estimates of the others for the first tier; None without a choice.
        against: margins of a provider's prices over the sheet, which then holds costs; None where none was named.
    """

    json_keys: ClassVar = ("*offered", "use", "engines", "against")

    offered: pricing.Offered
    use: Use | None = None
    engines: engine_costs.ComparedEngines | None = None
    against: margins.Sold | None = None


def _text(answer: Answer[PriceQuestion, Priced], width: int) -> Iterable[Any]:
    found, against = answer.result.offered, answer.result.against
    yield pricing_report.offered_report(found) if against is None else pricing_figures.sold_report(against, found)
    if found.demand is not None:
        yield ""
        yield pricing_report.demand_report(found.demand, found.terms)
    yield from use_lines(answer.result.use)
    line = _interval(answer)
    if line:
        yield rich.text.Text(line, style="dim")


def _interval(answer: Answer[PriceQuestion, Priced]) -> str:
    """What measured servers of this kind deviate by, of the first tier that is sold."""
    sold = next((tier for tier in answer.result.offered.tiers if tier.deployment and not tier.reason), None)
    if sold is None or sold.deployment is None:
        return ""
    usd = {"usd_per_mtok_input": sold.input_usd * 1e6, "usd_per_mtok_output": sold.output_usd * 1e6}
    line = bands.interval_line(bands.of_deployment(sold.deployment, usd))
    return f"{sold.name}: {line}" if line else ""


def _spread(tier: pricing.SoldTier) -> tuple[float, float] | None:
    """Costs of 90 % of measured servers of the kind of a tier, over the predicted one; None where unknown."""
    if tier.deployment is None:
        return None
    pools = tier.way is not None and tier.way.prefill is not None
    known = bands.of_deployment(tier.deployment, {"usd_per_mtok_output_all_in": 1.0}, pools=pools)
    return (known[0].low, known[0].high) if known else None


def _summary(answer: Answer[PriceQuestion, Priced]) -> str:
    found = answer.result.offered
    if answer.result.against is not None:
        return pricing_figures.verdicts_text(answer.result.against)
    standard = next((tier for tier in found.tiers if tier.mode == "standard"), found.tiers[0])
    deployment = standard.deployment
    if deployment is None or standard.reason:
        return standard.reason
    return (
        f"{format_usd(standard.input_usd * 1e6)} in and {format_usd(standard.output_usd * 1e6)} out a million tokens "
        f"({standard.name}), {deployment.model.name} on {deployment.cluster.name} with {deployment.layout.label()}"
    )


@asks(
    PriceQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: answer.result.offered.tiers,
    figures={
        "price": lambda answer: pricing_figures.offered_figure(answer.result.offered),
        "modes": lambda answer: pricing_figures.modes_figure(answer.result.offered),
        "margins": lambda answer: pricing_figures.margins_figure(answer.result.against),
    },
    interval=_interval,
    entry=Entry(
        group="Decide",
        place=2,
        line="What to charge: input, output, cache, batch, fast modes.",
        usual=("layout", "precision", "contexts", "output", "margin", "utilisation", "tpot", "rent", "against"),
        request={"model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1"},
        is_long=True,
        sweep_s=1.0,
        sweep_results="tiers.0.",
        view={
            "id": "charge",
            "place": 11,
            "title": "Charge",
            "question": "What should one charge?",
            "claims": ["C96", "C108", "C109", "C119"],
            "figures": ["price"],
            "fields": {
                "model": "deepseek-v3",
                "on": "gb200-nvl72",
                "layout": "ep=8,attention_dp=8",
                "margin": "0.5",
                "output": "",
            },
            "stop": "margin",
            "stops": ["0", "0.5"],
        },
        examples="""
    rackline price llama-3.1-70b --on dgx-h100 --precision fp8 --layout tp=8
    rackline price deepseek-v3 --on dgx-h200 --contexts 32k,128k \\
      --margin 50% --utilisation 40% --purchase 40000 --pue 1.2 --json
    rackline price llama-3.1-8b --on l40s-8 --layout tp=1,pp=1 --contexts 8k --against bedrock
""",
    ),
)
def price(question: PriceQuestion, watch: Watch) -> Priced:
    """What to charge: input, output, cached input, cache writes, batch, flex and fast modes.

    Each mode of each context tier is served in its own cheapest way, and the margin is earned over all prompts of the
    tier. With traffic it is earned over the rent of the fleet that serves it, its idle hours included.

    Example:
        >>> import rackline as rl
        >>> rl.price("llama-3.1-70b", on="dgx-h100", precision="fp8", layout="tp=8")
        <price: $... in and $... out a million tokens ...>
    """
    require(
        question.purchase is None or (question.rent is None and question.price is None),
        what="purchase",
        given=question.purchase,
        allowed="instead of `rent` or `price`",
    )
    sheet = None if question.against is None else _sheet(question, question.against)
    if sheet is not None:
        question = _at_cost(question, sheet)
    asked, use, mixture = requests_of(question)
    of_traffic = fleet_question(asked)
    media = media_of(asked, watch)

    resolved = [resolve(replace(asked, engine=engine), watch) for engine in engines_of(asked, watch)]
    systems = [replace(one, model=with_media(one.model, media)) for one in resolved]
    rent = rent_of(
        systems[0].cluster,
        purchase_usd=asked.purchase,
        years=asked.years,
        usd_per_kwh=asked.electricity_price,
        pue=asked.pue,
    )
    steps, output_len = asked.contexts, asked.output or USUAL_OUTPUT
    check_context(systems[0].model, max(steps) + output_len, watch)
    limits = systems_of.Constraints.of(asked.tpot, None)
    terms = pricing.Terms(
        margin=asked.margin,
        earned_at="longest" if asked.margin_at == "longest" else "mean",
        utilisation=asked.utilisation,
        output_len=output_len,
        tpot_s=limits.tpot_s,
        fast_ratios=asked.fast,
        lifetimes_s=asked.lifetimes,
        mixture=mixture,
    )

    def ways_of(system: systems_of.System) -> searched.SearchedWays:
        cluster = replace(system.cluster, usd_per_chip_hour=rent.usd_per_chip_hour)
        return searched.SearchedWays(
            system=replace(system, cluster=cluster),
            layouts=parallel.matching_layouts(asked.layout, system.model, cluster.num_chips),
            headroom=spread.headroom_of(asked.confidence, system),
        )

    ways_by_engine = {system.stack.name: ways_of(system) for system in systems}
    first = terms.prompts(0.0, steps[0])
    with watch.moving("searching for the cheapest deployment of the first tier under each engine"):
        system, engines = estimated_by(
            asked, systems, lambda system: offer_of(ways_by_engine[system.stack.name], first, terms, rent), watch
        )
    model, cluster, ways = system.model, system.cluster, ways_by_engine[system.stack.name]
    with watch.moving("searching for the cheapest deployment of each mode and context tier"):
        found = pricing.offer_prices(ways, rent, terms, steps=list(steps))
    if found.deployment is None:
        raise InputError(
            what="deployment",
            given=f"{model.name} on {cluster.name}",
            allowed=f"one that fits: {found.tiers[0].reason}",
        )
    if of_traffic is not None:
        one = replace(of_traffic, price=rent.usd_per_chip_hour, rent=None)
        one = one if engines is None else replace(one, engine=engines.taken)
        found = sold_to(one, found, ways, list(steps), watch)
    against = None if sheet is None else margins.margins(sheet, found, _spread)
    return Priced(offered=found, use=use, engines=engines, against=against)


def _sheet(question: PriceQuestion, name: str) -> pricing.PriceSheet:
    """The prices that costs are held against."""
    try:
        model = catalog.model_record(str(question.model)).name
    except UnknownNameError:  # a file or a repository, which no provider of the catalogue sells by this name
        model = str(question.model)
    return margins.sheet_of(name, model)


def _at_cost(question: PriceQuestion, sheet: pricing.PriceSheet) -> PriceQuestion:
    """The question at cost, with the context tiers, fast modes and lifetimes of a sheet."""
    usual = defaults(type(question))
    require(
        question.margin == usual["margin"],
        what="margin",
        given=question.margin,
        allowed="either `against`, which finds it, or `margin`",
    )
    lifetimes = {write.lifetime_s for tier in sheet.tiers for write in tier.cache_writes if write.lifetime_s}
    ratios = {tier.speed_ratio for tier in sheet.tiers if tier.speed_ratio}
    return replace(
        question,
        margin=0.0,
        contexts=margins.steps_of(sheet, question.contexts),
        lifetimes=tuple(sorted({*question.lifetimes, *lifetimes})),
        fast=tuple(sorted({*question.fast, *ratios})),
    )
