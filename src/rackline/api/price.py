"""`price`: what to charge for a deployment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.demand import USUAL_OUTPUT, fleet_question, requests_of, sold_to
from rackline.api.model_options import media_of, with_media
from rackline.api.price_question import PriceQuestion
from rackline.api.resolve import check_context, resolve
from rackline.api.selling import SearchedWays, offer_of, rent_of
from rackline.api.stacks import estimated_by, stacks_of
from rackline.api.uses import Use, use_lines
from rackline.api.watch import Watch
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike
    from rackline.bands.stacks import Stacks
    from rackline.pricing import Offered
    from rackline.report.figure import Figure
    from rackline.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A price sheet with what it is for.

    Args:
        offered: the sheet.
        use: the lengths and limits that a use gave; None where none was named.
        stacks: all that were asked, where none was named; None where there is no choice.
    """

    json_keys: ClassVar = ("*offered", "use", "stacks")

    offered: Offered
    use: Use | None = None
    stacks: Stacks | None = None


def _text(answer: Answer[PriceQuestion, Priced], width: int) -> Iterable[Any]:
    from rich.text import Text

    from rackline.report.pricing_report import demand_report, offered_report

    found = answer.result.offered
    yield offered_report(found)
    if found.demand is not None:
        yield ""
        yield demand_report(found.demand, found.terms)
    yield from use_lines(answer.result.use)
    line = _interval(answer)
    if line:
        yield Text(line, style="dim")


def _interval(answer: Answer[PriceQuestion, Priced]) -> str:
    """What measured servers of this kind deviate by, of the first tier that is sold."""
    from rackline.bands.intervals import interval_line, of_deployment

    tiers = answer.result.offered.tiers
    sold = next((tier for tier in tiers if tier.deployment and not tier.reason), None)
    if sold is None or sold.deployment is None:
        return ""
    usd = {"usd_per_mtok_input": sold.input_usd * 1e6, "usd_per_mtok_output": sold.output_usd * 1e6}
    line = interval_line(of_deployment(sold.deployment, usd))
    return f"{sold.name}: {line}" if line else ""


def _summary(answer: Answer[PriceQuestion, Priced]) -> str:
    from rackline.units import format_usd

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


def _figure(answer: Answer[PriceQuestion, Priced]) -> Figure:
    from rackline.report.pricing_figures import offered_figure

    return offered_figure(answer.result.offered)


def _modes(answer: Answer[PriceQuestion, Priced]) -> Figure:
    from rackline.report.pricing_figures import modes_figure

    return modes_figure(answer.result.offered)


@asks(
    PriceQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    figures={"price": _figure, "modes": _modes},
    interval=_interval,
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
    media = media_of(asked, watch)

    def system_of(calibration: CalibrationLike) -> System:
        found = resolve(replace(asked, calibration=calibration), watch)
        return replace(found, model=with_media(found.model, media))

    systems = [system_of(one) for one in stacks_of(asked, watch) or [asked.calibration]]
    rent = rent_of(
        systems[0].cluster,
        purchase_usd=asked.purchase,
        years=asked.years,
        usd_per_kwh=asked.electricity_price,
        pue=asked.pue,
    )
    from rackline.bands.intervals import headroom_of
    from rackline.parallel import matching_layouts
    from rackline.pricing import Terms, offer_prices

    steps, output_len = asked.contexts, asked.output or USUAL_OUTPUT
    check_context(systems[0].model, max(steps) + output_len, watch)
    terms = Terms(
        margin=asked.margin,
        earned_at="longest" if asked.margin_at == "longest" else "mean",
        utilisation=asked.utilisation,
        output_len=output_len,
        tpot_s=asked.tpot,
        fast_ratios=asked.fast,
        lifetimes_s=asked.lifetimes,
        mixture=mixture,
    )

    def ways_of(system: System) -> SearchedWays:
        cluster = replace(system.cluster, usd_per_chip_hour=rent.usd_per_chip_hour)
        layouts = matching_layouts(asked.layout, system.model, cluster.num_chips)
        headroom = headroom_of(asked.confidence, system)
        return SearchedWays(system=replace(system, cluster=cluster), layouts=layouts, headroom=headroom)

    first = terms.prompts(0.0, steps[0])
    with watch.moving("searching for the cheapest deployment of the first tier under each stack"):
        system, stacks = estimated_by(asked, systems, lambda one: offer_of(ways_of(one), first, terms, rent), watch)
    model, cluster, ways = system.model, system.cluster, ways_of(system)
    with watch.moving("searching for the cheapest deployment of each mode and context tier"):
        found = offer_prices(ways, rent, terms, steps=list(steps))
    if found.deployment is None:
        raise InputError(
            what="deployment",
            given=f"{model.name} on {cluster.name}",
            allowed=f"one that fits: {found.tiers[0].reason}",
        )
    if of_traffic is not None:
        one = replace(of_traffic, price=rent.usd_per_chip_hour, rent=None)
        one = one if stacks is None else replace(one, calibration=stacks.taken)
        found = sold_to(one, found, ways, list(steps), watch)
    return Priced(offered=found, use=use, stacks=stacks)
