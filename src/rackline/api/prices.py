"""`infer-prices`, and what `tiers` and `price` share: the rent of a chip, and the cheapest deployment for a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import MOST_MARGIN
from rackline.api.question import MaybeNumber, Question, Texts, option, question
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.late import late
from rackline.plain import plain
from rackline.units import format_count, parse_fraction

with late:
    from rackline import hardware, parallel, pricing, search, system as systems
    from rackline.pricing import searched
    from rackline.report import pricing_figures, pricing_report
    from rackline.search import engine_choice
    from rackline.serving import workload


@question
class InferPricesQuestion(Question):
    """What do public prices reveal: active parameters, KV bytes per token, decode MFU, batches, memory tiers?"""

    sheets: Texts = option(
        "text",
        "price sheets (catalogue name or TOML file), or models, which stand for all their hosts",
        default=None,
        several=True,
        kw_only=False,
    )
    all: bool = option("switch", "all sheets of the catalogue", default=False)
    chip: Texts = option(
        "text",
        "chip that the provider may use; may be repeated; by default every chip with a known rent and at least 80 GB",
        default=None,
        several=True,
        repeated=True,
    )
    precision: Texts = option(
        "text",
        "serving precision: bf16, fp8 or fp4; may be repeated; all by default",
        default=None,
        several=True,
        repeated=True,
    )
    margin: str | None = option("text", "margin over cost (price / cost − 1), such as 20%..80%", default=None, unit="1")
    utilisation: str | None = option(
        "text", "utilisation: share of chip-hours sold, such as 40%..70%", default=None, unit="1"
    )
    active: MaybeNumber = option(
        "count", "active parameters, if known, such as 100B", default=None, unit="count", maximum=1e15
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """What sheets reveal.

    Args:
        sheets: the reading of each.
        compared: what hosts of open models ask against what is known of these.
    """

    sheets: tuple[pricing.Reading, ...]
    compared: tuple[pricing.Compared, ...]


def _text(answer: Answer[InferPricesQuestion, Inferred], width: int) -> Iterable[Any]:
    readings = answer.result.sheets
    if len(readings) > 3:
        yield pricing_report.readings_table(readings)
    else:
        for index, reading in enumerate(readings):
            if index:
                yield ""
            yield pricing_report.reading_report(reading)
    if answer.result.compared:
        yield ""
        yield pricing_report.compared_report(answer.result.compared)


def _summary(answer: Answer[InferPricesQuestion, Inferred]) -> str:
    parts: list[str] = []
    for reading in answer.result.sheets[:3]:
        active = next((one for one in reading.inferences if one.quantity == "active_params"), None)
        ends = "" if active is None else f"{format_count(active.likely_low)} to {format_count(active.likely_high)}"
        known = f" likely {ends} active parameters" if ends else ""
        earns = "" if reading.verdict.earns == "unknown" else f", earns money: {reading.verdict.earns}"
        parts.append(f"{reading.sheet}{known}{earns}")
    more = len(answer.result.sheets) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


@asks(
    InferPricesQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: [
        {"sheet": reading.sheet, **plain(one)} for reading in answer.result.sheets for one in reading.inferences
    ],
    figures={"map": lambda answer: pricing_figures.readings_figure(answer.result.sheets)},
    entry=Entry(
        group="Understand",
        place=4,
        line="What public prices reveal: parameters, KV bytes, batches.",
        request={"sheets": ["google-gemini-3.1-pro"]},
        view={
            "id": "prices",
            "place": 10,
            "title": "Prices",
            "question": "What do public prices reveal?",
            "claims": ["C97", "C98", "C99", "C100", "C104", "C105", "C107"],
            "figures": ["map"],
            "fields": {
                "sheets": "anthropic-claude-opus-4.6",
                "margin": "0.5",
                "utilisation": "0.6",
                "chip": "",
                "precision": "",
            },
            "stop": "sheets",
            "stops": [
                "anthropic-claude-opus-4.6",
                "deepinfra-deepseek-v3",
                "deepinfra-llama-3.1-70b",
                "fireworks-kimi-k2",
            ],
            "suggested": {"sheets": "sheets"},
            "optional": {"label": "Margin and utilisation", "fields": ["margin", "utilisation"]},
            "drawn": {"map": "What prices reveal"},
            "sliders": {
                "margin": {"low": 0.01, "high": 10, "kind": "share"},
                "utilisation": {"low": 0.1, "high": 1, "kind": "share"},
            },
        },
        examples="""
    rackline infer-prices gemini-3.1-pro
    rackline infer-prices deepseek-v3
    rackline infer-prices claude-opus-4.6 --chip gb200 --margin 20%..100%
    rackline infer-prices --all --plot prices.html
""",
    ),
)
def infer_prices(question: InferPricesQuestion, watch: Watch) -> Inferred:
    """What public prices reveal: active parameters, KV bytes per token, decode MFU, batches, memory tiers.

    Each answer is an interval, because chip, precision, rent, margin and utilisation are unknown; name some of them to
    narrow it. Readings that contradict each other are shown as conflicts.

    Example:
        >>> import rackline as rl
        >>> [reading.sheet for reading in rl.infer_prices("gemini-3.1-pro").result.sheets]
        ['google-gemini-3.1-pro']
    """
    sheets = question.sheets
    require(
        question.all != bool(sheets),
        what="infer-prices",
        given=", ".join(sheets) or "nothing",
        allowed="names of sheets or models, or `all`",
    )

    unknowns = _unknowns(question)
    chosen = pricing.all_sheets() if question.all else [sheet for name in sheets for sheet in pricing.find_sheets(name)]
    readings = pricing.read_all(chosen, unknowns, question.active)
    if question.active is not None and not any(reading.find("crossover_context") for reading in readings):
        raise InputError(
            what="active",
            given=format_count(question.active),
            allowed="only for prices that rise at a context length, such as gemini-3.1-pro",
        )
    return Inferred(sheets=tuple(readings), compared=tuple(pricing.compare(readings)))


def _unknowns(question: InferPricesQuestion) -> pricing.Unknowns:
    unknowns = pricing.default_unknowns(question.chip or None)
    dtypes = question.precision
    if dtypes:
        allowed = unknowns.dtypes
        for dtype in dtypes:
            if dtype not in allowed:
                raise InputError(what="precision", given=dtype, allowed=", ".join(allowed), nearest=allowed[0])
        unknowns = replace(unknowns, dtypes=tuple(d for d in allowed if d in dtypes))
    if question.margin is not None:
        low, high = _span(question.margin, "margin", maximum=MOST_MARGIN)
        unknowns = replace(unknowns, margin=(low, high))
    if question.utilisation is not None:
        low, high = _span(question.utilisation, "utilisation", maximum=1.0)
        unknowns = replace(unknowns, utilisation=pricing.Range(low=low, high=high))
    return unknowns


def _span(text: str, name: str, maximum: float) -> tuple[float, float]:
    """Read "20%..80%", or one value for both ends."""
    low, dots, high = text.partition("..")
    ends = [parse_fraction(part, name=name, maximum=maximum) for part in ((low, high) if dots else (low, low))]
    require(ends[1] >= ends[0], what=name, given=text, allowed="LOW..HIGH", nearest=f"{high}..{low}")
    return ends[0], ends[1]


def rent_of(
    cluster: hardware.Cluster,
    *,
    purchase_usd: float | None = None,
    years: float = 4.0,
    usd_per_kwh: float = 0.0,
    pue: float = 1.0,
) -> pricing.Rent:
    """What a chip-hour costs: the cluster's price, or what was bought.

    Args:
        purchase_usd: price of a chip with its share of the site; None for the cluster's rent [USD].
        years: of use of what was bought [year].
        usd_per_kwh: price of energy [USD/kWh].
        pue: power of the site over that of the machines [1].

    Raises:
        InputError: the cluster has no price, or no power where something was bought.
    """
    power = hardware.most_w(cluster)
    if purchase_usd is None:
        if cluster.usd_per_chip_hour is None:
            raise InputError(
                what="price", given="nothing", allowed=f"USD per chip-hour: {cluster.name} has none", nearest="2.50"
            )
        return pricing.Rent(
            usd_per_chip_hour=cluster.usd_per_chip_hour,
            power_w_per_chip=power,
            pue=pue,
            usd_per_kwh=usd_per_kwh,
            kind=cluster.rent,
        )
    if power is None:
        raise InputError(
            what=f"power of {cluster.name}",
            given="nothing",
            allowed="`set` power_w_per_chip=WATTS, which `purchase` needs",
        )
    paid = pricing.purchase_usd_per_hour(purchase_usd, years, power, pue, usd_per_kwh)
    return pricing.Rent(
        usd_per_chip_hour=paid, power_w_per_chip=power, pue=pue, usd_per_kwh=usd_per_kwh, how="purchase"
    )


def costs_of(
    system: systems.System,
    layout: str | None,
    request: workload.Workload,
    watch: Watch,
) -> pricing.TokenCosts:
    """Costs of the deployment on which this request costs least, among the layouts that were left free.

    A plan finds the cheapest of each kind of layout; of these the one with the least bare cost of the request counts.

    Args:
        system: in one precision.
        layout: the parts of it that are fixed.
        request: lengths of the request.

    Raises:
        InputError: none fits.
    """
    model, cluster = system.model, system.cluster
    among = search.SearchSpace(layouts=parallel.matching_layouts(layout, model, cluster.num_chips))
    with watch.moving("searching for the cheapest deployment"):
        engines = search.contenders(
            system, systems.Demand(workload=request), among, prefill=None, open_loop=False
        ).engines
    require(
        engines.contenders,
        what="deployment",
        given=f"{model.name} on {cluster.name}",
        allowed=f"one that fits: {engines.reason}",
    )
    found = [pricing.TokenCosts.of(system, one.layout) for one in engines.ranked]
    return min(found, key=lambda one: float(one.request_chip_s(request.input_len, request.output_len)[0]))


def offer_of(
    ways: searched.SearchedWays, lengths: pricing.PromptLengths, terms: pricing.Terms, rent: pricing.Rent
) -> engine_choice.Offer | str:
    """Return what the mean request of a tier costs in the standard mode under one engine, or why there is no way.

    Args:
        ways: under the engine.
        lengths: prompts of the tier.
    """
    way = ways.cheapest(lengths, terms.output_len, terms.tpot_s)
    if isinstance(way, str):
        return way
    deployment = way.costs.deployment
    steps = engine_choice.steps_of(
        deployment.layout,
        deployment.precision,
        batch_size=way.batch_size,
        context_len=lengths.mean + 0.5 * terms.output_len,
        prompt_tokens=min(lengths.mean, float(ways.system.stack.scheduler.max_batched_tokens)),
    )
    return engine_choice.Offer(
        cost=way.request_chip_s * rent.usd_per_chip_hour / 3600.0 / terms.output_len * 1e6,
        step=deployment.table().time(steps.batches["decode"]),
        pools=way.prefill is not None,
        steps=steps,
    )
