"""`infer_prices`: what public prices reveal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import MOST_MARGIN
from rackline.api.question import MaybeNumber, Question, Texts, option, question
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.late import late
from rackline.plain import plain
from rackline.units import format_count, parse_fraction

with late:
    from rackline import pricing
    from rackline.report import pricing_figures, pricing_report


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
        "chip the provider may use; may be repeated; by default every chip with a rent and at least 80 GB",
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
    if question.all == bool(sheets):
        raise InputError(
            what="infer-prices", given=", ".join(sheets) or "nothing", allowed="names of sheets or models, or `all`"
        )

    unknowns = _unknowns(question)
    chosen = pricing.all_sheets() if question.all else [sheet for name in sheets for sheet in pricing.find_sheets(name)]
    readings = pricing.read_all(chosen, unknowns, question.active)
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
    if ends[1] < ends[0]:
        raise InputError(what=name, given=text, allowed="LOW..HIGH", nearest=f"{high}..{low}")
    return ends[0], ends[1]
