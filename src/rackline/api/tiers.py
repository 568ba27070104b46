"""`tiers`: where to keep the KV cache of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api import fields as shared
from rackline.api import traffic_fields as traffic
from rackline.api.answer import Answer, asks
from rackline.api.model_question import ModelQuestion
from rackline.api.option import MOST_SECONDS, Quantity, layout_text, numbers, option, si, tokens
from rackline.api.repeats import repeats_of
from rackline.api.resolve import check_context, resolve
from rackline.api.selling import CALIBRATION, MOST_MARGIN, costs_of, rent_of
from rackline.api.watch import Watch

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Quantities, Settings
    from rackline.parallel import Deployment
    from rackline.pricing import CheapestSpan, KeepingCost
    from rackline.pricing.cache import HeldPrice, KeptLine
    from rackline.pricing.prefixes import KeptPrefixes, Repeats
    from rackline.report.figure import Figure

_PLANNED_OUTPUT_LEN = 1000.0  # of the request for which the cheapest layout is looked for
_TRAFFIC = "Traffic that repeats"
USUAL_HOLDS_S = (300.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersQuestion(ModelQuestion):
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again?"""

    ask: ClassVar[str] = "tiers"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    prompt: Quantity = field(
        default="8k",
        metadata=tokens("prompt tokens of the cache entry, such as 8k; of traffic, those of its mean prompt"),
    )
    hold_time: Quantities | None = field(
        default=None,
        metadata=option(
            "seconds",
            "holding time, such as 5min; may be repeated; by default 5 minutes, an hour and a day",
            unit="s",
            maximum=1e10,
            several=True,
            repeated=True,
        ),
    )
    reuses: Quantity = field(
        default="1",
        metadata=option(
            "count", "number of times it is loaded while it is held", unit="count", minimum=1.0, maximum=1e9
        ),
    )
    max_load_time: Quantity | None = field(
        default=None,
        metadata=option(
            "seconds",
            "longest load time, such as 100ms; slower tiers are left out",
            unit="s",
            maximum=MOST_SECONDS,
        ),
    )
    margin: Quantity = field(
        default="30%",
        metadata=option("fraction", "margin over cost of the prices shown", unit="1", maximum=MOST_MARGIN, zero=True),
    )
    utilisation: Quantity = field(
        default="60%", metadata=option("fraction", "utilisation: share of chip-hours sold", unit="1")
    )
    trace: str | None = field(
        default=None,
        metadata=option(
            "text", "recorded requests with hashes of their prefixes, such as Mooncake's traces", group=_TRAFFIC
        ),
    )
    turns: Quantity | None = field(default=None, metadata=shared.within(traffic.TURNS, _TRAFFIC))
    rate: Quantity | None = field(
        default=None,
        metadata=option("text", "with `turns`: conversations started per second", unit="1/s", group=_TRAFFIC),
    )
    input: Quantity | None = field(
        default=None, metadata=tokens("with `turns`: mean tokens of a message", group=_TRAFFIC)
    )
    output: Quantity | None = field(
        default=None, metadata=tokens("with `turns`: mean tokens of an answer", group=_TRAFFIC)
    )
    think_time: Quantity = field(default="1min", metadata=shared.within(shared.THINK_TIME, _TRAFFIC))
    system_prompt: Quantity = field(default="0", metadata=shared.within(traffic.SYSTEM_PROMPT, _TRAFFIC))
    tool_calls: Quantity | None = field(default=None, metadata=shared.within(traffic.TOOL_CALLS, _TRAFFIC))
    tool_time: Quantity = field(default="0s", metadata=shared.within(traffic.TOOL_TIME, _TRAFFIC))
    tool_output: Quantity | None = field(default=None, metadata=shared.within(traffic.TOOL_OUTPUT, _TRAFFIC))
    session_lengths: str = field(default="geometric", metadata=shared.within(traffic.SESSION_LENGTHS, _TRAFFIC))
    sheet: str | None = field(
        default=None,
        metadata=option(
            "text",
            "price sheet at which the same prompts are bought, such as claude-opus-4.6, by lifetime of its writes",
            group=_TRAFFIC,
        ),
    )
    layout: LayoutLike | None = field(
        default=None,
        metadata=option("text", "parallel layout such as tp=8; by default the cheapest for this prompt"),
    )
    precision: str = field(default="native", metadata=shared.PRECISION)
    calibration: CalibrationLike = field(default="auto", metadata=CALIBRATION)
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    rent: str | None = field(default=None, metadata=shared.RENT)
    set: Settings | None = field(default=None, metadata=shared.SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What it costs to keep a prompt.

    Args:
        deployment: that computes it.
        lines: of each tier, cost over the time that it is held.
        spans: the cheapest tier by time.
        hold_times_s: the times that were asked for [s].
        prompt_len: tokens of the entry [tokens].
        entry_bytes: its size [bytes].
        reuses: how often it is brought back [count].
        price_over_cost: of the prices shown [1].
        traffic: what keeping the prefixes of traffic costs; None without traffic.
    """

    json_keys: ClassVar = (
        "deployment",
        "prompt_len",
        "entry_bytes",
        "reuses",
        "price_over_cost",
        "tiers",
        "envelope=spans",
        "hold_times",
        "traffic",
    )

    deployment: Deployment
    lines: tuple[KeepingCost, ...]
    spans: tuple[CheapestSpan, ...]
    hold_times_s: tuple[float, ...]
    prompt_len: float
    entry_bytes: float
    reuses: float
    price_over_cost: float
    traffic: KeptPrefixes | None = None

    @property
    def tiers(self) -> tuple[KeptLine, ...]:
        """Cost of each tier by million tokens."""
        from rackline.pricing.cache import KeptLine

        return tuple(KeptLine(cost=line, prompt_len=self.prompt_len) for line in self.lines)

    @property
    def hold_times(self) -> tuple[HeldPrice, ...]:
        """The cheapest tier at each time that was asked for."""
        from rackline.pricing.cache import held_price

        return tuple(
            held_price(
                self.lines,
                self.spans,
                hold,
                prompt_len=self.prompt_len,
                reuses=self.reuses,
                price_over_cost=self.price_over_cost,
            )
            for hold in self.hold_times_s
        )

    @property
    def title(self) -> str:
        """What computes the prompt."""
        one = self.deployment
        return f"{one.model.name} on {one.cluster.name}, {one.layout.label()}, {one.precision.short()}"


def _text(answer: Answer[TiersQuestion, Kept], width: int) -> Iterable[Any]:
    from rackline.report.pricing_report import tiers_report

    found = answer.result
    yield tiers_report(
        found.lines,
        found.spans,
        found.hold_times_s,
        title=found.title,
        entry_bytes=found.entry_bytes,
        prompt_len=found.prompt_len,
        reuses=found.reuses,
        price_over_cost=found.price_over_cost,
        width=width,
    )
    if found.traffic is not None:
        from rackline.report.prefix_report import prefixes_report

        yield prefixes_report(found.traffic)


def _summary(answer: Answer[TiersQuestion, Kept]) -> str:
    from rackline.pricing.cache import cheapest
    from rackline.units import format_seconds

    found = answer.result
    parts = [f"{cheapest(found.spans, hold).name} for {format_seconds(hold)}" for hold in found.hold_times_s]
    return f"cheapest: {', '.join(parts)}; {found.title}"


def _rows(answer: Answer[TiersQuestion, Kept]) -> Iterable[Any]:
    return answer.result.hold_times


def _figure(answer: Answer[TiersQuestion, Kept]) -> Figure:
    from rackline.report.pricing_figures import tiers_figure

    found = answer.result
    return tiers_figure(found.lines, found.spans, title=found.title, prompt_len=found.prompt_len, reuses=found.reuses)


@asks(TiersQuestion, text=_text, summary=_summary, rows=_rows, figures={"cost": _figure})
def tiers(question: TiersQuestion, watch: Watch) -> Kept:
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again.

    Gives the cheapest tier by how long the entry is held, the break-even times, the tier that the drain-time rule
    picks, and what a write, a hit and storage should cost.

    Example:
        >>> import rackline as rl
        >>> rl.tiers("llama-3.1-70b", on="dgx-h100", hold_time=["5min", "1h"]).result.hold_times_s
        (300.0, 3600.0)
    """
    resolved = resolve(question, watch)
    rent = rent_of(resolved.cluster)
    repeating = repeats_of(question)
    prompt_len = si(question.prompt) if repeating is None else repeating[1].input_len
    check_context(resolved.model, prompt_len, watch)
    from rackline.pricing import Terms, envelope, keeping_lines
    from rackline.serving.workload import Workload

    request = Workload(input_len=prompt_len, output_len=_PLANNED_OUTPUT_LEN)
    costs = costs_of(resolved, layout_text(question.layout), request, watch)
    lines = keeping_lines(costs, rent, prompt_len, fetch_s=si(question.max_load_time))
    holds_s = numbers(question.hold_time) or USUAL_HOLDS_S
    return Kept(
        deployment=costs.deployment,
        lines=tuple(lines),
        spans=envelope(lines, si(question.reuses)),
        hold_times_s=holds_s,
        prompt_len=prompt_len,
        entry_bytes=float(costs.kv_bytes(prompt_len)),
        reuses=si(question.reuses),
        price_over_cost=Terms(margin=si(question.margin), utilisation=si(question.utilisation)).price_over_cost,
        traffic=None if repeating is None else _kept_traffic(question, *repeating, lines, holds_s, prompt_len),
    )


def _kept_traffic(
    question: TiersQuestion,
    name: str,
    repeats: Repeats,
    lines: Sequence[KeepingCost],
    holds_s: Sequence[float],
    prompt_len: float,
) -> KeptPrefixes:
    """What keeping the prefixes of the traffic costs."""
    from rackline.pricing import price_sheet
    from rackline.pricing.cache import RECOMPUTE
    from rackline.pricing.prefixes import HeldBy, KeptPrefixes, best_lifetime, bought_lifetimes, lifetime_cost

    standard = None if question.sheet is None else price_sheet(question.sheet).standard
    return KeptPrefixes(
        name=name,
        input_len=repeats.input_len,
        unlimited_share=repeats.found(inf),
        computed_usd_per_mtok=next(line for line in lines if line.name == RECOMPUTE).retrieve_usd * 1e6 / prompt_len,
        lifetimes=tuple(lifetime_cost(lines, repeats, prompt_len, ttl_s) for ttl_s in holds_s),
        best=best_lifetime(lines, repeats, prompt_len),
        devices=tuple(
            HeldBy(tier=line.name, capacity_tokens=fits, hit_share=repeats.found_in(fits))
            for line in lines
            if line.capacity_bytes and (fits := line.capacity_bytes / line.entry_bytes * prompt_len)
        ),
        bought=() if standard is None else bought_lifetimes(standard, repeats),
    )
