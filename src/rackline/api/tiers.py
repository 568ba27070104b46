"""`tiers`: where to keep the KV cache of a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api import fields as shared
from rackline.api.answer import Answer, asks
from rackline.api.model_question import ModelQuestion
from rackline.api.option import MOST_SECONDS, Quantity, layout_text, numbers, option, si, tokens
from rackline.api.resolve import check_context, resolve
from rackline.api.selling import CALIBRATION, MOST_MARGIN, costs_of, rent_of
from rackline.api.watch import Watch

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Quantities, Settings
    from rackline.parallel import Deployment
    from rackline.pricing import CheapestSpan, KeepingCost
    from rackline.pricing.cache import HeldPrice, KeptLine
    from rackline.report.figure import Figure

_PLANNED_OUTPUT_LEN = 1000.0  # of the request for which the cheapest layout is looked for
USUAL_HOLDS_S = (300.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersQuestion(ModelQuestion):
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again?"""

    ask: ClassVar[str] = "tiers"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    prompt: Quantity = field(default="8k", metadata=tokens("prompt tokens of the cache entry, such as 8k"))
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
    )

    deployment: Deployment
    lines: tuple[KeepingCost, ...]
    spans: tuple[CheapestSpan, ...]
    hold_times_s: tuple[float, ...]
    prompt_len: float
    entry_bytes: float
    reuses: float
    price_over_cost: float

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
    prompt_len = si(question.prompt)
    check_context(resolved.model, prompt_len, watch)
    from rackline.pricing import Terms, envelope, keeping_lines
    from rackline.serving.workload import Workload

    request = Workload(input_len=prompt_len, output_len=_PLANNED_OUTPUT_LEN)
    costs = costs_of(resolved, layout_text(question.layout), request, watch)
    lines = keeping_lines(costs, rent, prompt_len, fetch_s=si(question.max_load_time))
    return Kept(
        deployment=costs.deployment,
        lines=tuple(lines),
        spans=envelope(lines, si(question.reuses)),
        hold_times_s=numbers(question.hold_time) or USUAL_HOLDS_S,
        prompt_len=prompt_len,
        entry_bytes=float(costs.kv_bytes(prompt_len)),
        reuses=si(question.reuses),
        price_over_cost=Terms(margin=si(question.margin), utilisation=si(question.utilisation)).price_over_cost,
    )
