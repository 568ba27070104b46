"""`tiers`: where to keep the KV cache of a prompt, and of traffic that repeats its prefixes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import (
    CALIBRATION,
    ENGINE,
    EVICTION,
    MOST_MARGIN,
    PRICE,
    RENT,
    THINK_TIME,
    OnCluster,
    Sessions,
)
from rackline.api.prices import costs_of, rent_of
from rackline.api.question import (
    MOST_SECONDS,
    CalibrationLike,
    MaybeLayout,
    MaybeNumber,
    MaybeText,
    Number,
    Numbers,
    Text,
    option,
    options,
    question,
    shared,
    tokens,
)
from rackline.api.resolve import check_context, resolve, window_of
from rackline.api.traffic import note_early_ends, repeating_of, sessions_of
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.late import late
from rackline.units import format_seconds, parse_per_second

with late:
    from rackline import pricing, simulation
    from rackline.pricing import cache as pricing_cache, prefixes
    from rackline.report import prefix_report, pricing_figures, pricing_report
    from rackline.serving import workload
    from rackline.simulation import evictions, hits_by_tier, reuse as simulation_reuse


_TRAFFIC = "Traffic that repeats"


@question
class TiersQuestion(Sessions, OnCluster):
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again?"""

    headings = dict.fromkeys(options(Sessions), _TRAFFIC)

    prompt: Number = tokens("prompt tokens of the cache entry, such as 8k; for traffic, its mean prompt", default="8k")
    hold_time: Numbers = option(
        "seconds",
        "holding time, such as 5min; may be repeated; by default 5 minutes, an hour and a day",
        default=None,
        unit="s",
        maximum=1e10,
        several=True,
        repeated=True,
    )
    reuses: Number = option(
        "count",
        "number of times the cache entry is loaded while it is held",
        default="1",
        unit="count",
        minimum=1.0,
        maximum=1e9,
    )
    max_load_time: MaybeNumber = option(
        "seconds",
        "longest load time, such as 100ms; slower tiers are left out",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
    )
    margin: Number = option(
        "fraction",
        "margin over cost of the prices shown",
        default="30%",
        unit="1",
        maximum=MOST_MARGIN,
        zero=True,
    )
    utilisation: Number = option("fraction", "utilisation: share of chip-hours sold", default="60%", unit="1")
    trace: str | None = option(
        "text",
        "recorded requests with hashes of their prefixes, such as Mooncake's traces",
        default=None,
        group=_TRAFFIC,
    )
    rate: MaybeText = option(
        "text", "with `turns`: conversations started per second", default=None, unit="1/s", group=_TRAFFIC
    )
    input: MaybeNumber = tokens("with `turns`: mean tokens of a message", default=None, group=_TRAFFIC)
    output: MaybeNumber = tokens("with `turns`: mean tokens of an answer", default=None, group=_TRAFFIC)
    think_time: MaybeNumber = shared(THINK_TIME, default="1min", group=_TRAFFIC)
    eviction: str = shared(EVICTION, default="lru", group=_TRAFFIC)
    sheet: str | None = option(
        "text",
        "price sheet of an API to compare with, such as claude-opus-4.6: what the same prompts cost there, by lifetime "
        "of its cache writes",
        default=None,
        group=_TRAFFIC,
    )
    layout: MaybeLayout = option(
        "text", "parallel layout such as tp=8; by default the cheapest for this prompt", default=None
    )
    engine: Text = shared(ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    price: MaybeNumber = shared(PRICE, default=None)
    rent: str | None = shared(RENT, default=None)

    def check_options(self) -> None:
        """Refuse options of conversations without any, and beside a trace.

        Raises:
            InputError: such options.
        """
        of_sessions = ("rate", "input", "output", "tool_calls", "tool_output")
        if self.trace is not None:
            self.refuse("turns", *of_sessions, allowed="only without `trace`")
        elif self.turns is None:
            self.refuse(*of_sessions, allowed="only with `turns`")
        super().check_options()


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

    costs: pricing.TokenCosts
    lines: tuple[pricing.KeepingCost, ...]
    spans: tuple[pricing.CheapestSpan, ...]
    hold_times_s: tuple[float, ...]
    prompt_len: float
    entry_bytes: float
    reuses: float
    price_over_cost: float
    traffic: prefixes.KeptPrefixes | None = None

    @property
    def tiers(self) -> tuple[pricing_cache.KeptLine, ...]:
        """Cost of each tier by million tokens."""
        return tuple(pricing_cache.KeptLine(cost=line, prompt_len=self.prompt_len) for line in self.lines)

    @property
    def hold_times(self) -> tuple[pricing_cache.HeldPrice, ...]:
        """The cheapest tier at each time that was asked for."""
        return tuple(
            pricing_cache.held_price(
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
    found = answer.result
    yield pricing_report.tiers_report(
        found.lines,
        found.spans,
        found.hold_times_s,
        title=found.title,
        entry_bytes=found.entry_bytes,
        prompt_len=found.prompt_len,
        reuses=found.reuses,
        price_over_cost=found.price_over_cost,
    )
    if found.traffic is not None:
        yield prefix_report.prefixes_report(found.traffic)


def _summary(answer: Answer[TiersQuestion, Kept]) -> str:
    found = answer.result
    parts = [
        f"{pricing_cache.cheapest(found.spans, hold).name} for {format_seconds(hold)}" for hold in found.hold_times_s
    ]
    return f"cheapest: {', '.join(parts)}; {found.title}"


@asks(
    TiersQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: answer.result.hold_times,
    figures={
        "cost": lambda answer: pricing_figures.tiers_figure(
            answer.result.lines,
            answer.result.spans,
            title=answer.result.title,
            prompt_len=answer.result.prompt_len,
            reuses=answer.result.reuses,
        )
    },
    entry=Entry(
        group="Decide",
        place=3,
        line="Where to keep the KV cache of a prompt, and for how long.",
        usual=("prompt", "hold_time", "reuses", "max_load_time", "layout", "precision", "set"),
        request={"model": "llama-3.1-70b", "on": "dgx-h100", "prompt": "100k", "layout": "tp=8"},
        sweep_s=0.5,
        sweep_results="tiers.0.",
        view={
            "id": "tiers",
            "place": 9,
            "title": "Tiers",
            "question": "Where should a prompt's cache wait?",
            "claims": ["C110", "C116", "C117", "C118", "C121", "C122", "C123"],
            "figures": ["cost"],
            "fields": {
                "model": "deepseek-v3",
                "on": "gb200-nvl72",
                "prompt": "64k",
                "reuses": "1",
                "hold_time": "1h",
                "layout": "pp=1,ep=8,attention_dp=8",
            },
            "drawn": {"cost": "Keeping the cache of a prompt: cost over the time held"},
            "sliders": {
                "prompt": {"low": 500, "high": 128000, "points": 25, "whole": True, "unit": "tokens"},
                "reuses": {"low": 1, "high": 1000, "whole": True, "unit": "times"},
                "hold_time": {"low": 1, "high": 31536000, "kind": "seconds"},
            },
        },
        examples="""
    rackline tiers deepseek-v3 --on dgx-h200 --prompt 16k
    rackline tiers llama-3.1-70b --on dgx-h100 \\
      --hold-time 5min --hold-time 1h --reuses 10 --max-load-time 200ms --plot tiers.svg
""",
    ),
)
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
    window = window_of(system.model)
    repeating = repeats_of(question, window)
    note_early_ends(question, system.model, 0, watch)
    prompt_len = question.prompt if repeating is None else repeating[1].input_len
    check_context(system.model, prompt_len, watch)

    request = workload.Workload(input_len=prompt_len, output_len=_PLANNED_OUTPUT_LEN)
    costs = costs_of(system, question.layout, request, watch)
    if repeating is not None and question.eviction != "lru":
        repeating = (repeating[0], evicting(question, window, repeating[1], costs))
    lines = pricing.keeping_lines(costs, rent, prompt_len, fetch_s=question.max_load_time)
    holds_s = question.hold_time or USUAL_HOLDS_S
    return Kept(
        costs=costs,
        lines=tuple(lines),
        spans=pricing.envelope(lines, question.reuses),
        hold_times_s=holds_s,
        prompt_len=prompt_len,
        entry_bytes=float(costs.kv_bytes(prompt_len)),
        reuses=question.reuses,
        price_over_cost=pricing.Terms(margin=question.margin, utilisation=question.utilisation).price_over_cost,
        traffic=None if repeating is None else _kept_traffic(question, *repeating, lines, holds_s, prompt_len),
    )


def _kept_traffic(
    question: TiersQuestion,
    name: str,
    repeats: prefixes.Repeats,
    lines: Sequence[pricing.KeepingCost],
    holds_s: Sequence[float],
    prompt_len: float,
) -> prefixes.KeptPrefixes:
    """What keeping the prefixes of the traffic costs."""
    pairs = [(before, after) for before, after in itertools.pairwise(sorted(holds_s)) if before < after]
    staged = (prefixes.staged_lifetime(lines, repeats, prompt_len, times_s) for times_s in (*pairs, None))
    standard = None if question.sheet is None else pricing.price_sheet(question.sheet).standard
    return prefixes.KeptPrefixes(
        name=name,
        input_len=repeats.input_len,
        unlimited_share=repeats.found(math.inf),
        computed_usd_per_mtok=next(line for line in lines if line.name == pricing_cache.RECOMPUTE).retrieve_usd
        * 1e6
        / prompt_len,
        lifetimes=tuple(prefixes.lifetime_cost(lines, repeats, prompt_len, ttl_s) for ttl_s in holds_s),
        best=prefixes.best_lifetime(lines, repeats, prompt_len),
        staged=tuple(one for one in staged if one is not None),
        devices=tuple(
            prefixes.HeldBy(tier=line.name, capacity_tokens=fits, hit_share=repeats.found_in(fits))
            for line in lines
            if line.capacity_bytes and (fits := line.capacity_bytes / line.entry_bytes * prompt_len)
        ),
        eviction=repeats.eviction,
        bought=() if standard is None else prefixes.bought_lifetimes(standard, repeats),
    )


def repeats_of(question: TiersQuestion, window: float) -> tuple[str, prefixes.Repeats] | None:
    """Name and repeats of the traffic of a question; None without traffic.

    Args:
        window: longest request that the model takes, at which conversations end [tokens].

    Raises:
        InputError: a trace without hashes, or lengths that are missing.
    """
    if question.trace is not None:
        return _recorded(question.trace)
    if question.turns is None:
        return None
    return _sessions(question, window)


def evicting(
    question: TiersQuestion, window: float, repeats: prefixes.Repeats, costs: pricing.TokenCosts
) -> prefixes.Repeats:
    """The repeats in devices from which another block than the least recently used leaves first.

    Args:
        window: as above [tokens].
        costs: of the deployment that recomputes a block.

    Raises:
        UnknownNameError: an unknown eviction policy.
    """
    traffic = repeating_of(question, window, question.trace)
    rate = traffic.requests_per_s if isinstance(traffic, hits_by_tier.RepeatingTrace) else _rate(question)
    if isinstance(traffic, hits_by_tier.RepeatingSessions):
        rate *= traffic.requests_of_one
    policy = evictions.EVICTIONS.find(question.eviction)
    cache = simulation.CacheConfig(
        prefix_caching=True, hash_tokens=traffic.hash_tokens, cache_rules=simulation.CacheRules(eviction=policy)
    )
    rules = simulation.pool_of(costs.deployment, costs.system.stack, cache=cache).spec.cache_rules

    def looked_up(tokens: float) -> float:
        room = hits_by_tier.MemoryRoom(name="device", capacity_tokens=tokens)
        within = hits_by_tier.hits_within(traffic, [room], rules, requests_per_s=rate, answer_tokens=0.0, answer_s=0.0)
        return within[0].hit_share

    most, enough = looked_up(math.inf), math.inf

    def found_in(tokens: float) -> float:
        nonlocal enough
        share = most if tokens >= enough else looked_up(tokens)
        enough = min(enough, tokens) if share >= most else enough
        return share

    return replace(repeats, found_in=found_in, eviction=policy.name)


def _recorded(trace: str) -> tuple[str, prefixes.Repeats]:
    reuse = simulation_reuse.reuse_in(trace)
    return Path(trace).name, prefixes.Repeats(
        found=lambda ttl_s: float(reuse.hit_share(ttl_s=ttl_s)),
        held_s=reuse.held_s,
        found_in=lambda tokens: float(reuse.hit_share(tokens // reuse.block_tokens)),
        input_len=reuse.input_len,
    )


def _sessions(question: TiersQuestion, window: float) -> tuple[str, prefixes.Repeats]:
    given = question.given(*_SUCH_AS)
    for name in _SUCH_AS:
        if name not in given:
            raise InputError(what=name, given="nothing", allowed=f"with `turns`, such as `{name}` {_SUCH_AS[name]}")
    sessions = sessions_of(question, window)
    rate = _rate(question)
    message, answer = question.input or 1.0, question.output or 1.0

    def hits(*, ttl_s: float = math.inf, capacity_tokens: float = math.inf) -> simulation_reuse.SessionHits:
        return simulation_reuse.session_hits(
            sessions,
            rate_per_s=rate,
            message_tokens=message,
            answer_tokens=answer,
            ttl_s=ttl_s,
            capacity_tokens=capacity_tokens,
        )

    return sessions.name, prefixes.Repeats(
        found=lambda ttl_s: hits(ttl_s=ttl_s).hit_share,
        held_s=lambda ttl_s: hits(ttl_s=ttl_s).held_s,
        found_in=lambda tokens: hits(capacity_tokens=tokens).hit_share,
        input_len=hits().input_len,
    )


def _rate(question: TiersQuestion) -> float:
    return parse_per_second(str(question.rate), name="rate", maximum=1e9)


_SUCH_AS = {"rate": "2", "input": "300", "output": "500"}
