"""The terminal report of a plan: its candidates, pools, attention and experts apart, speculation and what-ifs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rackline.parallel import MemoryUse
from rackline.report.breakdown import pass_table, plain_table, resources_line, spaced
from rackline.report.choice_report import (
    BASIS_OF_ONE,
    choice_panel,
    estimate_line,
    key_numbers,
    nothing_panel,
    other_kind,
    served_table,
)
from rackline.report.terminal_plot import Series, log_plot
from rackline.report.wording import (
    Prose,
    bar,
    money,
    money_name,
    percent,
    share,
    short_count,
    spread_over,
    trust,
    written,
)
from rackline.search import Candidate, Choice, Plan, PoolPair
from rackline.search.attention_ffn import AttentionFfnSplit
from rackline.search.least_energy import Tried
from rackline.search.plan import WhatIfPoint
from rackline.search.speculation import SpeculationRow
from rackline.serving.workload import Mixture
from rackline.system import Risk
from rackline.units import format_bytes, format_count, format_seconds

LEVELS = {"scale_up": "the scale-up domain", "scale_out": "the network"}


def pool_table(choice: Choice) -> RenderableType:
    """Chips, load and memory of each pool, and the cache that moves between them."""
    pair = choice.estimate
    if not isinstance(pair, PoolPair):
        return Text("")
    table = plain_table("the two pools")
    table.add_column("", no_wrap=True)
    for name in ("decode", "prefill"):
        table.add_column(name, justify="right", no_wrap=True)
    decode, prefill, rate = pair.decode, pair.prefill, choice.requests_per_s
    rows = [
        ("chips", f"{decode.num_chips}", f"{prefill.num_chips}"),
        ("step, prompt", format_seconds(decode.seconds), format_seconds(prefill.seconds)),
        ("requests/s it could serve", written(decode.requests_per_s), written(prefill.requests_per_s)),
        ("load", percent(rate / decode.requests_per_s), percent(rate / prefill.requests_per_s)),
    ]
    inside = choice.inside
    if inside.prefill_memory is not None:
        then, first = inside.memory, inside.prefill_memory
        rows += [
            ("free memory", format_bytes(float(then.free)), format_bytes(float(first.free))),
            ("KV cache", format_bytes(float(then.kv_cache)), format_bytes(float(first.kv_cache))),
        ]
    for row in rows:
        table.add_row(*row)
    sent = pair.transfer
    line = Text(
        f"KV cache of a prompt: {format_bytes(sent.kv_bytes)} over {LEVELS[sent.level]} "
        f"in {format_seconds(sent.seconds)}",
        style="dim",
    )
    return Group(table, line)


FRONT_ROWS = 12


def plan_report(plan: Plan, risk: Risk | None, *, width: int, elapsed_s: float) -> Group:
    """Everything that `rackline plan` prints.

    Args:
        risk: how surely the best keeps its limits; None where that is not known.
        width: columns of the terminal.
        elapsed_s: wall time of the search [s].
    """
    best = plan.best
    parts: list[RenderableType] = []
    if best is None:
        parts += [nothing_panel(plan)]
    else:
        pools = [pool_table(best)] if best.serving == "disaggregated" else []
        parts += [choice_panel(plan, best, risk), key_numbers(plan, best, width)]
        parts += [Group(served_table(best), *estimate_line(best), *other_kind(plan)), *pools]
        parts += [memory_table(best.memory, "memory of the fullest chip"), *_passes(plan, best, width)]
        parts += _floors(plan, best)
    if plan.pareto:
        parts += [_front_table(plan, width), front_plot(plan, width)]
    if len(plan.ranked) > 1 and plan.aggregated is not None:
        parts.append(_ranked(plan, width))
    if plan.rejected:
        parts.append(_rejected(plan))
    parts.append(_footer(plan, elapsed_s))
    return spaced(parts)


def replica_label(candidate: Candidate) -> str:
    """The layout of one replica, without the number of replicas."""
    return replace(candidate.layout, dp=1).label()


def memory_table(memory: MemoryUse, title: str) -> Table:
    """What the fullest chip holds, by kind."""
    table = plain_table(f"{title}: {format_bytes(memory.total)}")
    table.add_column("holds", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    weights = sorted(memory.weights.items(), key=lambda item: -float(item[1]))
    rows = [(f"weights: {kind.replace('_', ' ')}", float(value), "blue") for kind, value in weights if float(value) > 0]
    rows += [
        ("KV cache", float(memory.kv_cache), "yellow"),
        ("activations", float(memory.activations), "magenta"),
        ("runtime", float(memory.runtime), "bright_black"),
        ("free", float(memory.free), "green" if float(memory.free) >= 0 else "red"),
        ("kept clear", memory.total - float(memory.usable), "bright_black"),
    ]
    for name, value, style in rows:
        part = share(value, memory.total)
        shown = format_bytes(value) if abs(value) > 0 else "-"
        table.add_row(name, shown, percent(part), Text(bar(part, 24), style=style))
    return table


def _passes(plan: Plan, best: Choice, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    first = best.prefill_pool
    prompts = first.mode if first is not None else best.mode
    chunk = float(prompts.max_batched_tokens)
    if first is None:
        chunk = min(plan.demand.workload.new_tokens, chunk)
    modes = (best.mode, prompts)
    context = short_count(plan.demand.workload.mean_context)
    titles = (
        f"decode step: {best.sequences_per_rank:,} sequences/rank, context {context}",
        f"prefill pass: {short_count(chunk)} new tokens per rank",
    )
    for time, mode, title in zip((best.inside.decode, best.inside.prefill), modes, titles, strict=True):
        if mode.two_batch_overlap:
            title += "; rows of the whole batch, before overlap"
        parts.append(
            Group(pass_table(time, f"{title}: {format_seconds(time.seconds)}", width=width), resources_line(time))
        )
    return parts


def _floors(plan: Plan, best: Choice) -> list[RenderableType]:
    floors = best.inside.floors
    if floors is None:
        return []
    table = plain_table("distance from the floors")
    for name in ("floor", "at best", "predicted", "times the floor"):
        table.add_column(name, justify="left" if name == "floor" else "right")
    table.add_row(
        "latency: one sequence alone on the replica, at peak rates",
        format_seconds(floors.latency_s),
        format_seconds(best.tpot_s),
        written(floors.latency_ratio),
    )
    table.add_row(
        "latency: every weight read once, over all chips of a replica",
        format_seconds(floors.full_read_s),
        format_seconds(best.tpot_s),
        written(best.tpot_s / floors.full_read_s),
    )
    table.add_row(
        f"cost: a token's own compute or KV reads, {money_name(plan.priced)} per M output",
        money(floors.usd_per_mtok_output, plan.priced),
        money(best.usd_per_mtok_output, plan.priced),
        written(floors.cost_ratio),
    )
    return [table]


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


def _front_table(plan: Plan, width: int) -> Table:
    caption = f"{len(plan.pareto)} points on the front; ◆ the best, ✗ breaks a limit of this request"
    shown = front_with_best(plan, FRONT_ROWS)
    if any(candidate.caveat for candidate, _ in shown):
        caption += "; ~ uncertain: near saturation, or many attention-dp ranks"
    table = plain_table(
        f"Pareto front of one engine ({BASIS_OF_ONE[plan.pareto[0].basis]}s): speed against cost",
        caption=caption,
    )
    table.add_column("", no_wrap=True)
    table.add_column("tok/s/user", justify="right", no_wrap=True)
    for name in (f"{money_name(plan.priced)}/Mtok", "ttft", "batch", "chips"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout · precision · mode" if width >= 110 else "layout")
    for candidate, is_best in shown:
        keeps = is_best or _keeps(plan, candidate)
        table.add_row(
            "◆" if is_best else "" if keeps else "✗",
            f"{'~' if candidate.caveat else ''}{format_count(candidate.tokens_per_s_per_user)}",
            *_candidate_cells(plan, candidate),
            _what(candidate, width) if width >= 110 else replica_label(candidate),
            style="bold green" if is_best else "" if keeps else "dim",
        )
    return table


def _what(candidate: Candidate, width: int) -> str:
    mode = f" · {candidate.mode.label()}" if width >= 110 else ""
    return f"{replica_label(candidate)} · {candidate.precision.short()}{mode}"


def _candidate_cells(plan: Plan, candidate: Candidate) -> list[str]:
    """Cost, ttft, batch, chips of a replica × replicas."""
    return [
        money(candidate.usd_per_mtok_output_all_in, plan.priced).removesuffix(" chip-h"),
        format_seconds(candidate.ttft_s),
        f"{candidate.batch_size:,.0f}" if candidate.batch_size >= 1 else f"{candidate.batch_size:.2g}",
        f"{candidate.layout.chips_per_replica}×{candidate.layout.dp}",
    ]


def _keeps(plan: Plan, candidate: Candidate) -> bool:
    limits = plan.demand.limits
    return (limits.tpot_s is None or candidate.tpot_s <= limits.tpot_s) and (
        limits.ttft_s is None or candidate.ttft_s <= limits.ttft_s
    )


def front_plot(plan: Plan, width: int) -> Text:
    """The front in the terminal, with the limit and the best."""
    series = [
        Series(
            x=[c.tokens_per_s_per_user for c in plan.pareto],
            y=[c.usd_per_mtok_output_all_in for c in plan.pareto],
            name="front",
            joined=True,
        )
    ]
    apart = plan.disaggregated.pareto if plan.disaggregated else ()
    if apart:
        series.append(
            Series(
                x=[pair.tokens_per_s_per_user for pair in apart],
                y=[pair.usd_per_mtok_output_all_in for pair in apart],
                name="two pools",
                style="yellow",
                joined=True,
            )
        )
    if plan.best is not None:
        series.append(
            Series(
                x=[plan.best.tokens_per_s_per_user],
                y=[plan.best.usd_per_mtok_output_all_in],
                name="best",
                style="bold green",
                mark="◆",
            )
        )
    limit = plan.demand.limits.tpot_s
    return log_plot(
        series,
        width=min(width, 120),
        height=14,
        x_title="tokens/s per user",
        y_title=f"{money_name(plan.priced)} per M output tokens, all-in",
        x_text=lambda value: f"{value:g}",
        y_text=lambda value: f"{value:g}",
        x_line=1.0 / limit if limit else None,
        x_line_name=f"tpot limit {format_seconds(limit)}: faster is to the right" if limit else "",
    )


def _ranked(plan: Plan, width: int) -> Table:
    basis = BASIS_OF_ONE[plan.ranked[0].basis]
    table = plain_table(f"other layouts within the limits, cheapest first ({basis}s)")
    for name in ("tpot", f"{money_name(plan.priced)}/Mtok", "ttft", "batch", "chips"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout · precision · mode" if width >= 110 else "layout · precision")
    for candidate in plan.ranked[1:]:
        table.add_row(format_seconds(candidate.tpot_s), *_candidate_cells(plan, candidate), _what(candidate, width))
    return table


def _rejected(plan: Plan) -> Group:
    lines: list[RenderableType] = [Text("nearest rejected candidates, by estimates", style="bold italic")]
    for item in plan.rejected:
        lines.append(Padding(Text.assemble(("✗ ", "red"), item.reason), (0, 0, 0, 1)))
        lines.append(Padding(Text(item.what, style="dim"), (0, 0, 0, 3)))
    return Group(*lines)


def _footer(plan: Plan, elapsed_s: float) -> Group:
    text = f"considered {plan.candidates_evaluated:,} candidates ({plan.combinations:,} layout × precision × mode)"
    if plan.disaggregated is not None:
        both = plan.disaggregated
        text += f", {both.candidates_evaluated:,} of separate pools and {both.pairs_compared:,} pairs of them"
    looked = Text(f"{text} in {format_seconds(elapsed_s)}", style="dim")
    assumed = Text("assumed: " + "; ".join(plan.assumptions[:-1]), style="dim")
    passes = [time for choice in plan.choices for time in (choice.inside.decode, choice.inside.prefill)]
    rows = [row for time in passes for row in time.rows]
    return Group(looked, assumed, trust(plan.system.calibration, plan.system.cluster.chip, rows))


def lengths_lines(mixture: Mixture | None) -> Iterable[RenderableType]:
    """Which lengths there are, where there are several."""
    if mixture is not None:
        longest = f"the longest request {mixture.longest_context:,.0f} tokens"
        yield Prose(f"lengths of {mixture.name}: {mixture.num_lengths:,}, {longest}", style="dim")


def caps_report(tried: Sequence[Tried]) -> Table:
    """The power caps that were compared."""
    table = plain_table("power caps, by estimates", caption="others: --power-cap")
    table.add_column("cap of a chip", justify="right")
    table.add_column("J an output token", justify="right")
    table.add_column("layout")
    for one in tried:
        cap = "its limit" if one.cap_w is None else f"{one.cap_w:,.0f} W"
        joules = one.joules_per_output_token
        table.add_row(cap, "beyond the limits" if joules is None else f"{joules:.3g}", one.layout)
    return table


def answers_table(rows: Sequence[tuple[str, str, str, bool]]) -> Table:
    """One question a row.

    Args:
        rows: command, subject, result or error, and whether it succeeded.
    """
    failed = sum(not answered for *_, answered in rows)
    table = plain_table(f"{len(rows) - failed} of {len(rows)} questions answered")
    table.add_column("", justify="right", no_wrap=True, style="dim")
    for name in ("question", "of", "answer"):
        table.add_column(name, overflow="fold", no_wrap=name == "question")
    for number, (name, words, outcome, answered) in enumerate(rows, start=1):
        table.add_row(str(number), name, words, Text(outcome, style="" if answered else "red"))
    return table


def what_if_report(name: str, points: Sequence[WhatIfPoint]) -> Group:
    """A row a value; the lowest cost, or the least energy where that counts, is marked."""
    priced, joules = points[0].plan.priced, any(point.plan.objective == "joules" for point in points)
    both = not joules and any(point.plan.pools is not None for point in points)
    least_of = "deployment of the least energy" if joules else "cheapest deployment"
    unit = f"{money_name(priced)}/Mtok"
    what = f"{unit} of one engine and of two pools" if both else f"the {least_of} at each value"
    table = plain_table(f"what if {name} were another: {what}")
    table.add_column("", no_wrap=True)
    costs = ("one engine", "two pools") if both else ("J/tok", unit) if joules else (unit,)
    for column in (name, *costs, "tok/s/chip", "tpot", "ttft"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("layout")
    least = min(point.cost for point in points)
    for point in points:
        chosen = point.plan.best
        if chosen is None:
            table.add_row("", point.value, *("-" for _ in costs), "-", "-", "-", point.plan.reason)
            continue
        layout = replace(chosen.layout, dp=1).label()
        if chosen.prefill_pool is not None:
            layout = f"decode {layout}; prefill {replace(chosen.prefill_pool.layout, dp=1).label()}"
        shown = (point.plan.aggregated, point.plan.pools) if both else (chosen,)
        table.add_row(
            "◆" if point.cost == least else "",
            point.value,
            *([written(point.cost)] if joules else []),
            *(_cost_text(one, chosen, priced) for one in shown),
            f"{chosen.output_tokens_per_s_per_chip:,.0f}",
            format_seconds(chosen.tpot_s),
            format_seconds(chosen.ttft_s),
            layout,
        )
    lines = [f"set: {points[0].setting.partition('=')[0]}", *(_worth(points) if both else ())]
    return Group(table, *(Prose(line, style="dim") for line in lines))


def _cost_text(choice: Choice | None, best: Choice, priced: bool) -> str:
    """Cost of a token; ~ where it is an estimate, > where simulation refuted one below that of the best."""
    if choice is None:
        return "-"
    least = best.usd_per_mtok_output_all_in
    refuted = choice.sustained is None and best.sustained is not None and choice.usd_per_mtok_output_all_in < least
    text = money(least if refuted else choice.usd_per_mtok_output_all_in, priced).removesuffix(" chip-h")
    return f">{text}" if refuted else text if choice.sustained is not None else f"~{text}"


def _worth(points: Sequence[WhatIfPoint]) -> list[str]:
    """What the last value changes against the first, for one engine and for two pools; what ~ means."""
    first, last = points[0], points[-1]
    ends = {
        "one engine": (first.plan.aggregated, last.plan.aggregated),
        "two pools": (first.plan.pools, last.plan.pools),
    }
    parts = [
        f"{name} {written(then.usd_per_mtok_output_all_in / one.usd_per_mtok_output_all_in)} times the cost"
        for name, (one, then) in ends.items()
        if one is not None and then is not None
    ]
    found = [f"from {first.value} to {last.value}: {', '.join(parts)}"] if parts and len(points) > 1 else []
    kinds = [one for point in points for one in (point.plan.aggregated, point.plan.pools) if one is not None]
    if any(one.sustained is None for one in kinds):
        found.append("~ an estimate: not simulated at its own rate")
    return found


def attention_ffn_report(plan: Plan, split: AttentionFfnSplit | None) -> Group:
    """The best split and what one layer of it takes; decoding alone is compared."""
    if split is None:
        return Group(Text("attention and experts on chips of their own: no split meets the limit", style="dim"))
    table = plain_table("attention and experts on chips of their own, decoding alone")
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    rows = [
        ("attention", f"{split.attention_ranks} ranks of tp={split.tp}, {split.sequences_per_rank:,} sequences each"),
        ("experts", f"{split.ffn_chips} chips"),
        ("micro-batches that take turns", str(split.micro_batches)),
        ("a layer: attention, experts", f"{format_seconds(split.attention_s)}, {format_seconds(split.ffn_s)}"),
        ("a layer: out, back", f"{format_seconds(split.dispatch_s)}, {format_seconds(split.combine_s)}"),
        ("time per output token", format_seconds(split.tpot_s)),
        ("output tokens/s per chip", f"{split.output_tokens_per_s_per_chip:,.0f}"),
    ]
    decode = plan.best.decode_pool if plan.best is not None else None
    if decode is not None:
        rate = decode.batch_size * decode.layout.dp / decode.seconds / decode.num_chips
        rows.append(("the decode pool above", f"{rate:,.0f}"))
    for row in rows:
        table.add_row(*row)
    return Group(table)


def speculation_report(rows: Sequence[SpeculationRow], tpot_limit_s: float | None) -> Table:
    """A row a number of drafts."""
    limit = "memory" if tpot_limit_s is None else f"tpot {format_seconds(tpot_limit_s)}"
    table = plain_table(
        "speculative decoding on the chosen decode replica, passes that only decode",
        caption=f"batches are sequences of a rank; the last two columns at the largest batch within {limit}",
    )
    for name in ("drafts", "tokens/step", "pays below", "speed at 1", "at half", "batch", "tok/s/chip"):
        table.add_column(name, justify="right", no_wrap=True)
    plain = rows[0]
    largest = float(plain.sequences_per_rank[-1])
    for row in rows:
        half = int(np.argmin(np.abs(plain.sequences_per_rank - max(plain.best_batch, 1) / 2)))
        pays = "always" if row.pays_up_to >= largest else f"{row.pays_up_to:,}" if row.pays_up_to else "never"
        drafts = row.speculation.draft_tokens
        table.add_row(
            str(drafts),
            written(row.speculation.tokens_per_step),
            pays if drafts else "-",
            f"×{plain.tpot_s[0] / row.tpot_s[0]:.2f}",
            f"×{plain.tpot_s[half] / row.tpot_s[half]:.2f}",
            f"{row.best_batch:,}" if row.best_batch else "none",
            f"{row.output_tokens_per_s_per_chip:,.0f}",
        )
    return table
