"""The terminal report of a plan: its candidates, pools, attention and experts apart, speculation and what-ifs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rackline.display.column import Column, Predicted, Sheet, bars_sheet, facts, of_part, spaced, stacked
from rackline.display.terminal import Series, log_plot
from rackline.display.wording import (
    Prose,
    composed,
    money,
    money_name,
    percent,
    share,
    short_count,
    spread_over,
    written,
)
from rackline.parallel import MemoryUse
from rackline.plain import follow
from rackline.report.choice_report import (
    BASIS_OF_ONE,
    bands_sheet,
    choice_panel,
    estimate_line,
    key_numbers,
    nothing_panel,
    other_kind,
    replica_label,
    replicas_label,
    served_table,
    trust_line,
)
from rackline.report.explain_report import pass_sheet, resources_line
from rackline.search import Candidate, Choice, Plan, PoolPair
from rackline.search.extensions import AttentionFfnSplit, SpeculationRow
from rackline.search.misfit import Misfit
from rackline.search.plan import Tried, WhatIfPoint
from rackline.serving.workload import Mixture
from rackline.system import Risk
from rackline.units import format_bytes, format_seconds, several, spaced_quantity

LEVELS = {"scale_up": "the scale-up domain", "scale_out": "the network"}


def pool_table(choice: Choice, handover_s: float) -> Group | None:
    """Return chips, load and memory of each pool, and what moving a request between them takes; None of one engine.

    Args:
        handover_s: that a request waits for beside its passes and its cache [s].
    """
    pair = choice.estimate
    if not isinstance(pair, PoolPair):
        return None
    pools = (pair.decode, pair.prefill)
    rows: list[tuple[str, ...]] = [
        ("chips", *(f"{one.num_chips}" for one in pools)),
        ("step, prompt", *(format_seconds(one.seconds) for one in pools)),
        ("requests/s it could serve", *(written(one.requests_per_s) for one in pools)),
        ("load", *(percent(choice.requests_per_s / one.requests_per_s) for one in pools)),
    ]
    first = choice.inside.prefill_memory
    if first is not None:
        held = (choice.inside.memory, first)
        rows += [
            ("free memory", *(format_bytes(float(one.free)) for one in held)),
            ("KV cache", *(format_bytes(float(one.kv_cache)) for one in held)),
        ]
    columns: list[Column[Any]] = [Column("quantity")]
    columns += [Column(name, name, "figures") for name in ("decode", "prefill")]
    sent = pair.transfer
    how = f"{format_bytes(sent.kv_bytes)} over {LEVELS[sent.level]} in {format_seconds(sent.seconds)}"
    table = Sheet("pools", columns, rows, title="the two pools")
    handed = "" if not handover_s else f"; handing a request over takes {format_seconds(handover_s)} more (fitted)"
    return Group(table, Prose(f"KV cache of a prompt: {how}{handed}", style="dim"))


FRONT_ROWS = 12
_SAME_COST = 1e-4  # the rate of an answer has five digits


def plan_report(
    plan: Plan,
    risk: Risk | None,
    *,
    bands: Sequence[Predicted] = (),
    width: int,
    elapsed_s: float,
    misfit: Misfit | None = None,
) -> Group:
    """Everything that `rackline plan --full` prints.

    Args:
        risk: how surely the best keeps its limits; None where that is not known.
        bands: of the best.
        width: columns of the terminal.
        elapsed_s: wall time of the search [s].
        misfit: what would make it fit, where nothing does.
    """
    best = plan.best
    parts: list[RenderableType | None] = [nothing_panel(plan, misfit)]
    if best is not None:
        parts = [
            choice_panel(plan, best, risk),
            key_numbers(plan, best),
            bands_sheet(bands, best, plan.demand.limits, priced=plan.priced, risk=risk) if bands else None,
            stacked(served_table(best), estimate_line(best), other_kind(plan)),
            pool_table(best, plan.system.stack.arrivals.handover_s) if best.serving == "disaggregated" else None,
            memory_table(best.inside.memory, "memory of the fullest chip"),
            *_passes(plan, best),
            _floors(plan, best),
        ]
    if plan.pareto:
        parts += [_front_table(plan), front_plot(plan, width)]
    if len(plan.ranked) > 1 and plan.aggregated is not None:
        parts.append(_ranked(plan))
    return spaced([*parts, _rejected(plan), _footer(plan, elapsed_s)])


def memory_table(memory: MemoryUse, title: str) -> Sheet[Any]:
    """What the fullest chip holds, by kind."""
    weights = sorted(memory.weights.items(), key=lambda item: -float(item[1]))
    kinds = [
        *((f"weights: {kind.replace('_', ' ')}", float(value), "blue") for kind, value in weights if float(value) > 0),
        ("KV cache", float(memory.kv_cache), "yellow"),
        ("activations", float(memory.activations), "magenta"),
        ("runtime", float(memory.runtime), "bright_black"),
        ("free", float(memory.free), "green" if float(memory.free) >= 0 else "red"),
        ("kept clear", memory.total - float(memory.usable), "bright_black"),
    ]
    rows = [(name, value or None, share(value, memory.total), style) for name, value, style in kinds]
    return bars_sheet("memory", rows, title=f"{title}: {format_bytes(memory.total)}", unit="B", head="holds")


def _passes(plan: Plan, best: Choice) -> Iterable[Group]:
    first, work = best.prefill_pool, plan.demand.workload
    prompts = best.mode if first is None else first.mode
    chunk = float(prompts.max_batched_tokens)
    tokens = min(work.new_tokens, chunk) if first is None else chunk
    decode, prefill = best.inside.decode, best.inside.prefill
    context = f"{best.engine.sequences_per_rank:,} sequences/rank, context {short_count(work.mean_context)}"
    for time, mode, title in (
        (decode, best.mode, f"decode step: {context}"),
        (prefill, prompts, f"prefill pass: {short_count(tokens)} new tokens per rank"),
    ):
        whole = "; rows of the whole batch, before overlap" if mode.two_batch_overlap else ""
        yield Group(pass_sheet(time, f"{title}{whole}: {format_seconds(time.seconds)}"), resources_line(time))


def _floors(plan: Plan, best: Choice) -> Sheet[Any] | None:
    floors = best.inside.floors
    if floors is None:
        return None
    tpot = format_seconds(best.tpot_s)
    rows = [
        (
            "latency: one sequence alone on the replica, at peak rates",
            format_seconds(floors.latency_s),
            tpot,
            floors.latency_ratio,
        ),
        (
            "latency: every weight read once, over all chips of a replica",
            format_seconds(floors.full_read_s),
            tpot,
            best.tpot_s / floors.full_read_s,
        ),
        (
            f"cost: a token's own compute or KV reads, {money_name(plan.priced)} per M output",
            money(floors.usd_per_mtok_output, plan.priced),
            money(best.usd_per_mtok_output, plan.priced),
            floors.cost_ratio,
        ),
    ]
    return Sheet(
        "floors",
        [
            Column("floor", "floor", "words"),
            Column("at_best", "at best", "figures"),
            Column("predicted", "predicted", "figures"),
            Column("ratio", "times the floor", "1"),
        ],
        rows,
        title="distance from the floors",
    )


def front_with_best(plan: Plan, count: int) -> list[tuple[Candidate, bool]]:
    """About `count` candidates of the Pareto front, evenly over the speeds, and the best one among them.

    Returns:
        (candidate, whether it is the best), fastest first.
    """
    logs = [math.log(candidate.tokens_per_s_per_user) for candidate in plan.pareto]
    picked = [(plan.pareto[index], False) for index in spread_over(logs, count)]
    best = plan.aggregated.estimate if plan.aggregated is not None else None
    if isinstance(best, Candidate):
        picked = [(c, mark) for c, mark in picked if c.tokens_per_s_per_user != best.tokens_per_s_per_user]
        picked.append((best, True))
    return sorted(picked, key=lambda item: -item[0].tokens_per_s_per_user)


def candidate_columns(priced: bool) -> list[Column[Candidate]]:
    """What tables show of a candidate."""
    return [
        Column("tokens_per_s_per_user", "tok/s/user", "1"),
        Column("tpot_s", "tpot", "s"),
        Column("usd_per_mtok_output_all_in", f"{money_name(priced)}/Mtok", "USD" if priced else "1"),
        Column("ttft_s", "ttft", "s"),
        Column("batch_size", "batch", "figures", lambda one: f"{one.batch_size:,.0f}" if one.batch_size >= 1 else "<1"),
        Column("num_chips", "chips", "figures", lambda one: f"{one.layout.chips_per_replica}×{one.layout.dp}"),
        Column("layout", "layout", "words", replica_label),
        Column("precision", "precision", getter="precision.short()", priority=2),
        Column("mode", "mode", getter="mode.label()", priority=1),
    ]


def _front_table(plan: Plan) -> Sheet[tuple[Candidate, bool]]:
    caption = f"{several(len(plan.pareto), 'point')} on the front; ◆ the best, ✗ breaks a limit, some only when served"
    shown = front_with_best(plan, FRONT_ROWS)
    if any(candidate.caveat for candidate, _ in shown):
        caption += "; ~ uncertain: near saturation, or many attention-dp ranks"

    def mark(row: tuple[Candidate, bool]) -> str:
        return "◆" if row[1] else "" if keeps_limits(plan, row[0]) else "✗"

    return Sheet(
        "front",
        [
            Column("", "", getter=mark),
            Column("", "", getter=lambda row: "~" if row[0].caveat else ""),
            *(of_part(one, lambda row: row[0]) for one in candidate_columns(plan.priced) if one.key != "tpot_s"),
        ],
        shown,
        title=f"Pareto front of one engine ({BASIS_OF_ONE[plan.pareto[0].basis]}s): speed against cost",
        caption=caption,
        style=lambda row: {"◆": "bold green", "✗": "dim"}.get(mark(row), ""),
    )


def keeps_limits(plan: Plan, candidate: Candidate | PoolPair) -> bool:
    """Check whether its estimate meets the limits, and costs no less than the answer.

    What costs less than an answer that was simulated does so by its estimate alone: it did not hold its rate.
    """
    limits, best = plan.demand.limits, plan.best
    if best is not None and best.sustained:
        answer, estimate = best.whole.usd_per_mtok_output_all_in, candidate.usd_per_mtok_output_all_in
        if estimate < answer * (1.0 - _SAME_COST):
            return False
    return (limits.tpot_s is None or candidate.tpot_s <= limits.tpot_s) and (
        limits.ttft_s is None or candidate.ttft_s <= limits.ttft_s
    )


def front_plot(plan: Plan, width: int) -> Text:
    """The front in the terminal, with the limit and the best."""
    fronts = (
        (plan.pareto, "front", "cyan", ""),
        (plan.disaggregated.pareto if plan.disaggregated else (), "two pools", "yellow", ""),
        (() if plan.best is None else (plan.best,), "best", "bold green", "◆"),
    )
    limit = plan.demand.limits.tpot_s
    return log_plot(
        [
            Series(
                x=[one.tokens_per_s_per_user for one in points],
                y=[(one.whole if isinstance(one, Choice) else one).usd_per_mtok_output_all_in for one in points],
                name=name,
                style=style,
                joined=not mark,
                mark=mark,
            )
            for points, name, style, mark in fronts
            if points or name == "front"
        ],
        width=min(width, 120),
        height=14,
        x_title="tokens/s per user",
        y_title=f"{money_name(plan.priced)} per M output tokens, all-in",
        x_text="{:g}".format,
        y_text="{:g}".format,
        x_line=1.0 / limit if limit else None,
        x_line_name=f"tpot limit {format_seconds(limit)}: faster is to the right" if limit else "",
    )


def _ranked(plan: Plan) -> Sheet[Candidate]:
    basis = BASIS_OF_ONE[plan.ranked[0].basis]
    return Sheet(
        "ranked",
        [one for one in candidate_columns(plan.priced) if one.key != "tokens_per_s_per_user"],
        plan.ranked[1:],
        title=f"other layouts within the limits, cheapest first ({basis}s)",
    )


def _rejected(plan: Plan) -> Group | None:
    if not plan.rejected:
        return None
    lines = (
        line
        for item in plan.rejected
        for line in (
            Padding(composed(("✗ ", "red"), item.reason), (0, 0, 0, 1)),
            Padding(Text(item.what, style="dim"), (0, 0, 0, 3)),
        )
    )
    return Group(Text("nearest rejected candidates, by estimates", style="bold italic"), *lines)


def _footer(plan: Plan, elapsed_s: float) -> Group:
    text = f"considered {plan.candidates_evaluated:,} candidates ({plan.combinations:,} layout × precision × mode)"
    if plan.disaggregated is not None:
        both = plan.disaggregated
        text += f", {both.candidates_evaluated:,} of separate pools and {both.pairs_compared:,} pairs of them"
    looked = Text(f"{text} in {format_seconds(elapsed_s)}", style="dim")
    return Group(looked, Text("assumed: " + "; ".join(plan.assumptions[:-1]), style="dim"), trust_line(plan))


def lengths_lines(mixture: Mixture | None) -> Iterable[RenderableType]:
    """Which lengths there are, where there are several."""
    if mixture is not None:
        longest = f"the longest request {mixture.longest_context:,.0f} tokens"
        yield Prose(f"lengths of {mixture.name}: {mixture.num_lengths:,}, {longest}", style="dim")


def caps_report(tried: Sequence[Tried]) -> Sheet[Tried]:
    """The power caps that were compared."""
    return Sheet(
        "power_caps",
        [
            Column("cap_w", "cap of a chip", "W", lambda one: "its limit" if one.cap_w is None else one.cap_w),
            Column(
                "joules_per_output_token",
                "J an output token",
                "1",
                lambda one: one.joules_per_output_token or "beyond the limits",
            ),
            Column("layout", "layout", "words"),
        ],
        tried,
        title="power caps, by estimates",
        caption="others: --power-cap",
    )


def answers_table(rows: Sequence[tuple[str, str, str, bool]]) -> Sheet[Any]:
    """A table with a row for each question.

    Args:
        rows: command, subject, result or error, and whether it succeeded.
    """
    return Sheet(
        "answers",
        [
            Column("number", "", "whole", lambda row: rows.index(row) + 1, style="dim"),
            Column("question", "question", getter="0"),
            Column("of", "of", "words", "1"),
            Column("answer", "answer", "words", lambda row: Text(row[2], style="" if row[3] else "red")),
        ],
        rows,
        title=f"{sum(one[3] for one in rows)} of {several(len(rows), 'question')} answered",
    )


def what_if_report(name: str, points: Sequence[WhatIfPoint]) -> Group:
    """A row a value; the lowest cost, or the least energy where that counts, is marked."""
    priced, joules = points[0].plan.priced, any(point.plan.objective == "joules" for point in points)
    both = not joules and any(point.plan.pools is not None for point in points)
    least = min(point.cost for point in points)

    def best(key: str, title: str, unit: str) -> Column[WhatIfPoint]:
        return Column(key, title, unit, f"plan.best.{key}")

    def layout(point: WhatIfPoint) -> str:
        return point.plan.reason if point.plan.best is None else replicas_label(point.plan.best)

    def cost(title: str, of: str) -> Column[WhatIfPoint]:
        return Column("", title, "figures", lambda point: _cost_text(follow(point, of), point.plan.best, priced))

    unit, what = f"{money_name(priced)}/Mtok", "deployment of the least energy" if joules else "cheapest deployment"
    costs = [best("usd_per_mtok_output_all_in", unit, "USD" if priced else "1")]
    if both:
        costs = [cost("one engine", "plan.aggregated"), cost("two pools", "plan.pools")]
    table: Sheet[WhatIfPoint] = Sheet(
        "what_if",
        [
            Column("", "", getter=lambda point: "◆" if point.plan.best is not None and point.cost == least else ""),
            Column("value", name.replace("_", " "), "figures", lambda point: spaced_quantity(point.value)),
            *([best("energy.joules_per_output_token", "J/tok", "1")] if joules else []),
            *costs,
            best("output_tokens_per_s_per_chip", "tok/s/chip", "whole"),
            best("tpot_s", "tpot", "s"),
            best("ttft_s", "ttft", "s"),
            Column("layout", "layout", "words", layout),
        ],
        points,
        title=f"what if {name} were another: "
        + (f"{unit} of one engine and of two pools" if both else f"the {what} at each value"),
    )
    lines = [f"set: {points[0].setting.partition('=')[0]}", *(_worth(points) if both else ())]
    return Group(table, *(Prose(line, style="dim") for line in lines))


def _cost_text(choice: Choice | None, best: Choice | None, priced: bool) -> str:
    """Cost of a token; ~ where it is an estimate, > where simulation refuted one below that of the best."""
    if choice is None or best is None:
        return "-"
    least, usd = best.whole.usd_per_mtok_output_all_in, choice.whole.usd_per_mtok_output_all_in
    refuted = choice.sustained is None and best.sustained is not None and usd < least
    text = money(least if refuted else usd, priced).removesuffix(" chip-h")
    return f">{text}" if refuted else text if choice.sustained is not None else f"~{text}"


def _worth(points: Sequence[WhatIfPoint]) -> Iterable[str]:
    """What the last value changes against the first, for one engine and for two pools; what ~ means."""
    first, last = points[0], points[-1]
    parts = [
        f"{name} {written(then.whole.usd_per_mtok_output_all_in / one.whole.usd_per_mtok_output_all_in)} times the cost"
        for name, one, then in (
            ("one engine", first.plan.aggregated, last.plan.aggregated),
            ("two pools", first.plan.pools, last.plan.pools),
        )
        if one is not None and then is not None
    ]
    if parts and len(points) > 1:
        yield f"from {first.value} to {last.value}: {', '.join(parts)}"
    kinds = [one for point in points for one in (point.plan.aggregated, point.plan.pools)]
    if any(one is not None and one.sustained is None for one in kinds):
        yield "~ an estimate: not simulated at its own rate"


def attention_ffn_report(plan: Plan, split: AttentionFfnSplit | None) -> RenderableType:
    """The best split and what one layer of it takes; decoding alone is compared."""
    if split is None:
        return Text("attention and experts on chips of their own: no split meets the limit", style="dim")
    decode = plan.best.decode_pool if plan.best is not None else None
    rate = 0.0 if decode is None else decode.batch_size * decode.layout.dp / decode.seconds / decode.num_chips
    rows = [
        ("attention", f"{split.attention_ranks} ranks of tp={split.tp}, {split.sequences_per_rank:,} sequences each"),
        ("experts", f"{split.ffn_chips} chips"),
        ("micro-batches that take turns", str(split.micro_batches)),
        ("a layer: attention, experts", f"{format_seconds(split.attention_s)}, {format_seconds(split.ffn_s)}"),
        ("a layer: out, back", f"{format_seconds(split.dispatch_s)}, {format_seconds(split.combine_s)}"),
        ("time per output token", format_seconds(split.tpot_s)),
        ("output tokens/s per chip", f"{split.output_tokens_per_s_per_chip:,.0f}"),
        ("the decode pool above", None if decode is None else f"{rate:,.0f}"),
    ]
    return facts("attention_ffn", rows, title="attention and experts on chips of their own, decoding alone")


def speculation_report(rows: Sequence[SpeculationRow], tpot_limit_s: float | None) -> Sheet[SpeculationRow]:
    """A row a number of drafts."""
    limit = "memory" if tpot_limit_s is None else f"tpot {format_seconds(tpot_limit_s)}"
    plain = rows[0]
    largest = float(plain.sequences_per_rank[-1])
    half = int(np.argmin(np.abs(plain.sequences_per_rank - max(plain.best_batch, 1) / 2)))

    def pays(row: SpeculationRow) -> str | None:
        if not row.speculation.draft_tokens:
            return None
        return "always" if row.pays_up_to >= largest else f"{row.pays_up_to:,}" if row.pays_up_to else "never"

    return Sheet(
        "speculation",
        [
            Column("speculation.draft_tokens", "drafts", "whole"),
            Column("speculation.tokens_per_step", "tokens/step", "1"),
            Column("pays_up_to", "pays below", "figures", pays),
            Column("", "speed at 1", "figures", lambda row: f"×{plain.tpot_s[0] / row.tpot_s[0]:.2f}"),
            Column("", "at half", "figures", lambda row: f"×{plain.tpot_s[half] / row.tpot_s[half]:.2f}"),
            Column("best_batch", "batch", "whole", lambda row: row.best_batch or "none"),
            Column("output_tokens_per_s_per_chip", "tok/s/chip", "whole"),
        ],
        rows,
        title="speculative decoding on the chosen decode replica, passes that only decode",
        caption=f"batches are sequences of a rank; the last two columns at the largest batch within {limit}",
    )
