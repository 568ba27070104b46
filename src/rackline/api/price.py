"""`price`: what to charge for a deployment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api import fields as shared
from rackline.api.answer import Answer, asks
from rackline.api.demand import USUAL_OUTPUT, fleet_question, requests_of, sold_to
from rackline.api.media import MediaQuestion, media_of, with_media
from rackline.api.option import MOST_USD, Quantity, latency, layout_text, numbers, option, si, tokens
from rackline.api.resolve import check_context, resolve
from rackline.api.selling import CALIBRATION, MOST_MARGIN, SearchedWays, rent_of
from rackline.api.uses import Use, use_lines
from rackline.api.watch import Watch
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Quantities, Settings
    from rackline.pricing import Offered
    from rackline.report.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuestion(MediaQuestion):
    """What to charge for a deployment: input, output, cached input, cache writes, batch, flex and fast modes?"""

    ask: ClassVar[str] = "price"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    layout: LayoutLike | None = field(
        default=None,
        metadata=option(
            "text",
            "parallel layout such as tp=8; by default the cheapest of each mode and context tier",
        ),
    )
    precision: str = field(default="native", metadata=shared.PRECISION)
    calibration: CalibrationLike = field(default="auto", metadata=CALIBRATION)
    margin: Quantity = field(
        default="30%",
        metadata=option(
            "fraction", "margin over cost (price / cost − 1), such as 30%", unit="1", maximum=MOST_MARGIN, zero=True
        ),
    )
    utilisation: Quantity = field(
        default="60%",
        metadata=option("fraction", "utilisation: share of chip-hours filled by standard traffic", unit="1"),
    )
    contexts: Quantities = field(
        default="32k,128k",
        metadata=tokens("longest prompt of each context tier, such as 32k,200k,1M", several=True),
    )
    use: str | None = field(default=None, metadata=shared.USE)
    output: Quantity | None = field(
        default=None, metadata=tokens("output tokens that a request adds to the context; 1k by default")
    )
    mix: str | None = field(default=None, metadata=shared.MIX)
    trace: str | None = field(default=None, metadata=shared.TRACE)
    tpot: Quantity | None = field(
        default=None,
        metadata=latency("limit on time per output token in the standard mode, of the mean; 50ms by default"),
    )
    fast: Quantities = field(
        default="1.5,2.5",
        metadata=option(
            "count",
            "speed-ups of the fast modes over the standard one, such as 1.5,2.5; below 2 a mode is called priority",
            unit="1",
            minimum=1.0,
            maximum=1e3,
            several=True,
        ),
    )
    lifetimes: Quantities = field(
        default="5min,1h,24h",
        metadata=option("seconds", "lifetimes of cache writes, such as 5min,1h", unit="s", maximum=1e10, several=True),
    )
    memory_fraction: Quantity = field(default="0.9", metadata=shared.MEMORY_FRACTION)
    power_cap: Quantity | None = field(default=None, metadata=shared.POWER_CAP)
    margin_at: str = field(
        default="mean",
        metadata=option(
            "text",
            "prompts at which the margin is earned: mean (all of a tier, as many in each doubling of the length) or "
            "longest (no prompt of a tier is sold below its cost)",
            choices=("mean", "longest"),
        ),
    )
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    rent: str | None = field(default=None, metadata=shared.RENT)
    purchase: Quantity | None = field(
        default=None,
        metadata=option(
            "usd_per_hour",
            "purchase price per chip with its share of host, network and building, in USD, instead of a rent",
            unit="USD",
            maximum=1e9,
        ),
    )
    years: Quantity = field(
        default="4", metadata=option("count", "depreciation period of purchased hardware", unit="year", maximum=100.0)
    )
    electricity_price: Quantity = field(
        default="0.08",
        metadata=option(
            "usd_per_hour",
            "electricity price in USD per kWh; an assumption",
            unit="USD/kWh",
            maximum=MOST_USD,
            zero=True,
        ),
    )
    pue: Quantity = field(default="1", metadata=shared.PUE)
    traffic: Quantity | None = field(default=None, metadata=shared.TRAFFIC)
    requests: Quantity | None = field(default=None, metadata=shared.REQUESTS)
    users: Quantity | None = field(default=None, metadata=shared.USERS)
    think_time: Quantity | None = field(default=None, metadata=shared.within(shared.THINK_TIME, shared.FLEET))
    peak_over_mean: Quantity | None = field(default=None, metadata=shared.PEAK_OVER_MEAN)
    set: Settings | None = field(default=None, metadata=shared.SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A price sheet with what it is for.

    Args:
        offered: the sheet.
        use: the lengths and limits that a use gave; None where none was named.
    """

    json_keys: ClassVar = ("*offered", "use")

    offered: Offered
    use: Use | None = None


def _text(answer: Answer[PriceQuestion, Priced], width: int) -> Iterable[Any]:
    from rackline.report.pricing_report import demand_report, offered_report

    found = answer.result.offered
    yield offered_report(found, width=width)
    if found.demand is not None:
        yield ""
        yield demand_report(found.demand, found.terms)
    yield from use_lines(answer.result.use)
    yield from _interval_text(found)


def _interval_text(found: Offered) -> Iterable[Any]:
    """What measured servers of this kind deviate by, of the first tier that is sold."""
    from rich.text import Text

    from rackline.validation.intervals import interval_line, of_deployment

    sold = next((tier for tier in found.tiers if tier.deployment and not tier.reason), None)
    if sold is None or sold.deployment is None:
        return
    usd = {"usd_per_mtok_input": sold.input_usd * 1e6, "usd_per_mtok_output": sold.output_usd * 1e6}
    line = interval_line(of_deployment(sold.deployment, usd))
    if line:
        yield Text(f"{sold.name}: {line}", style="dim")


def _summary(answer: Answer[PriceQuestion, Priced]) -> str:
    from rackline.units import format_usd

    found = answer.result.offered
    standard = next((tier for tier in found.tiers if tier.mode == "standard"), found.tiers[0])
    deployment = standard.deployment
    if deployment is None:
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


@asks(PriceQuestion, text=_text, summary=_summary, rows=_rows, figures={"price": _figure, "modes": _modes})
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
    resolved = resolve(asked, watch)
    resolved = replace(resolved, model=with_media(resolved.model, media_of(asked, watch)))
    rent = rent_of(
        resolved.cluster,
        purchase_usd=si(asked.purchase),
        years=si(asked.years),
        usd_per_kwh=si(asked.electricity_price),
        pue=si(asked.pue),
    )
    from rackline.parallel import matching_layouts
    from rackline.pricing import Terms, offer_prices

    steps, output_len = numbers(asked.contexts), si(asked.output) or USUAL_OUTPUT
    check_context(resolved.model, max(steps) + output_len, watch)
    model, cluster = resolved.model, resolved.cluster
    ways = SearchedWays(
        resolved=replace(resolved, cluster=replace(cluster, usd_per_chip_hour=rent.usd_per_chip_hour)),
        layouts=matching_layouts(layout_text(asked.layout), model, cluster.num_chips),
        memory_fraction=si(asked.memory_fraction),
    )
    terms = Terms(
        margin=si(asked.margin),
        earned_at="longest" if asked.margin_at == "longest" else "mean",
        utilisation=si(asked.utilisation),
        output_len=output_len,
        tpot_s=si(asked.tpot),
        fast_ratios=numbers(asked.fast),
        lifetimes_s=numbers(asked.lifetimes),
        mixture=mixture,
    )
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
        found = sold_to(one, found, ways, list(steps), watch)
    return Priced(offered=found, use=use)
