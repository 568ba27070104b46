"""`price`: what to charge for a deployment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.demand import USUAL_OUTPUT, fleet_question, requests_of, sold_to
from rackline.api.model_options import media_of, with_media
from rackline.api.price_question import PriceQuestion
from rackline.api.resolve import check_context, resolve
from rackline.api.selling import SearchedWays, rent_of
from rackline.api.uses import Use, use_lines
from rackline.api.verbs import Entry
from rackline.api.watch import Watch
from rackline.errors import InputError
from rackline.late import late
from rackline.units import format_usd

with late:
    from rackline import parallel, pricing
    from rackline.bands import intervals
    from rackline.report import figure, pricing_figures, pricing_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A price sheet with what it is for.

    Args:
        offered: the sheet.
        use: the lengths and limits that a use gave; None where none was named.
    """

    json_keys: ClassVar = ("*offered", "use")

    offered: pricing.Offered
    use: Use | None = None


def _text(answer: Answer[PriceQuestion, Priced], width: int) -> Iterable[Any]:
    from rich.text import Text

    found = answer.result.offered
    yield pricing_report.offered_report(found, width=width)
    if found.demand is not None:
        yield ""
        yield pricing_report.demand_report(found.demand, found.terms)
    yield from use_lines(answer.result.use)
    line = _interval(answer)
    if line:
        yield Text(line, style="dim")


def _interval(answer: Answer[PriceQuestion, Priced]) -> str:
    """What measured servers of this kind deviate by, of the first tier that is sold."""
    tiers = answer.result.offered.tiers
    sold = next((tier for tier in tiers if tier.deployment and not tier.reason), None)
    if sold is None or sold.deployment is None:
        return ""
    usd = {"usd_per_mtok_input": sold.input_usd * 1e6, "usd_per_mtok_output": sold.output_usd * 1e6}
    line = intervals.interval_line(intervals.of_deployment(sold.deployment, usd))
    return f"{sold.name}: {line}" if line else ""


def _summary(answer: Answer[PriceQuestion, Priced]) -> str:
    found = answer.result.offered
    standard = next((tier for tier in found.tiers if tier.mode == "standard"), found.tiers[0])
    deployment = standard.deployment
    if deployment is None or standard.reason:
        return standard.reason
    return (
        f"{format_usd(standard.input_usd * 1e6)} in and {format_usd(standard.output_usd * 1e6)} out a million tokens "
        f"({standard.name}), {deployment.model.name} on {deployment.cluster.name} with {deployment.layout.label()}"
    )


def _rows(answer: Answer[PriceQuestion, Priced]) -> Iterable[Any]:
    return answer.result.offered.tiers


def _figure(answer: Answer[PriceQuestion, Priced]) -> figure.Figure:
    return pricing_figures.offered_figure(answer.result.offered)


def _modes(answer: Answer[PriceQuestion, Priced]) -> figure.Figure:
    return pricing_figures.modes_figure(answer.result.offered)


@asks(
    PriceQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    figures={"price": _figure, "modes": _modes},
    interval=_interval,
    entry=Entry(
        group="Decide",
        place=2,
        line="What to charge: input, output, cache, batch, fast modes.",
        usual=("layout", "precision", "contexts", "output", "margin", "utilisation", "tpot", "rent"),
        request={"model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1"},
        is_long=True,
        sweep_s=1.0,
        sweep_results="tiers.0.",
        view={
            "id": "charge",
            "place": 10,
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
    if question.purchase is not None and (question.rent is not None or question.price is not None):
        raise InputError(what="purchase", given=question.purchase, allowed="instead of `rent` or `price`")
    asked, use, mixture = requests_of(question)
    of_traffic = fleet_question(asked)
    system = resolve(asked, watch)
    system = replace(system, model=with_media(system.model, media_of(asked, watch)))
    rent = rent_of(
        system.cluster,
        purchase_usd=asked.purchase,
        years=asked.years,
        usd_per_kwh=asked.electricity_price,
        pue=asked.pue,
    )

    steps, output_len = asked.contexts, asked.output or USUAL_OUTPUT
    check_context(system.model, max(steps) + output_len, watch)
    model, cluster = system.model, system.cluster
    ways = SearchedWays(
        system=replace(system, cluster=replace(cluster, usd_per_chip_hour=rent.usd_per_chip_hour)),
        layouts=parallel.matching_layouts(asked.layout, model, cluster.num_chips),
    )
    terms = pricing.Terms(
        margin=asked.margin,
        earned_at="longest" if asked.margin_at == "longest" else "mean",
        utilisation=asked.utilisation,
        output_len=output_len,
        tpot_s=asked.tpot,
        fast_ratios=asked.fast,
        lifetimes_s=asked.lifetimes,
        mixture=mixture,
    )
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
        found = sold_to(one, found, ways, list(steps), watch)
    return Priced(offered=found, use=use)
