"""`tiers`: where to keep the KV cache of a prompt."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.repeats import evicting, repeats_of
from rackline.api.resolve import check_context, resolve
from rackline.api.selling import costs_of, rent_of
from rackline.api.tiers_question import TiersQuestion
from rackline.api.watch import Watch

if TYPE_CHECKING:
    from rackline.pricing import CheapestSpan, KeepingCost, TokenCosts
    from rackline.pricing.cache import HeldPrice, KeptLine
    from rackline.pricing.prefixes import KeptPrefixes, Repeats
    from rackline.report.figure import Figure

_PLANNED_OUTPUT_LEN = 1000.0  # of the request for which the cheapest layout is looked for
USUAL_HOLDS_S = (300.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What it costs to keep a prompt.

    Args:
        costs: of the deployment that computes it.
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
        "deployment=costs.deployment",
        "prompt_len",
        "entry_bytes",
        "reuses",
        "price_over_cost",
        "tiers",
        "envelope=spans",
        "hold_times",
        "traffic",
    )

    costs: TokenCosts
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
        one = self.costs.deployment
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
    system = resolve(question, watch)
    rent = rent_of(system.cluster)
    repeating = repeats_of(question)
    prompt_len = question.prompt if repeating is None else repeating[1].input_len
    check_context(system.model, prompt_len, watch)
    from rackline.pricing import Terms, envelope, keeping_lines
    from rackline.serving.workload import Workload

    request = Workload(input_len=prompt_len, output_len=_PLANNED_OUTPUT_LEN)
    costs = costs_of(system, question.layout, request, watch)
    if repeating is not None and question.eviction != "lru":
        repeating = (repeating[0], evicting(question, repeating[1], costs))
    lines = keeping_lines(costs, rent, prompt_len, fetch_s=question.max_load_time)
    holds_s = question.hold_time or USUAL_HOLDS_S
    return Kept(
        costs=costs,
        lines=tuple(lines),
        spans=envelope(lines, question.reuses),
        hold_times_s=holds_s,
        prompt_len=prompt_len,
        entry_bytes=float(costs.kv_bytes(prompt_len)),
        reuses=question.reuses,
        price_over_cost=Terms(margin=question.margin, utilisation=question.utilisation).price_over_cost,
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
    from rackline.pricing.prefixes import (
        HeldBy,
        KeptPrefixes,
        best_lifetime,
        bought_lifetimes,
        lifetime_cost,
        staged_lifetime,
    )

    pairs = [(before, after) for before, after in itertools.pairwise(sorted(holds_s)) if before < after]
    staged = (staged_lifetime(lines, repeats, prompt_len, times_s) for times_s in (*pairs, None))
    standard = None if question.sheet is None else price_sheet(question.sheet).standard
    return KeptPrefixes(
        name=name,
        input_len=repeats.input_len,
        unlimited_share=repeats.found(inf),
        computed_usd_per_mtok=next(line for line in lines if line.name == RECOMPUTE).retrieve_usd * 1e6 / prompt_len,
        lifetimes=tuple(lifetime_cost(lines, repeats, prompt_len, ttl_s) for ttl_s in holds_s),
        best=best_lifetime(lines, repeats, prompt_len),
        staged=tuple(one for one in staged if one is not None),
        devices=tuple(
            HeldBy(tier=line.name, capacity_tokens=fits, hit_share=repeats.found_in(fits))
            for line in lines
            if line.capacity_bytes and (fits := line.capacity_bytes / line.entry_bytes * prompt_len)
        ),
        eviction=repeats.eviction,
        bought=() if standard is None else bought_lifetimes(standard, repeats),
    )
