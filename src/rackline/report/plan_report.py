"""Terminal report of `plan`: what to run, why, how far from the limits, what else there is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

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
from rackline.report.pool_report import pool_table
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
from rackline.search import Candidate, Choice, Plan
from rackline.search.least_energy import Tried
from rackline.serving.mixture import Mixture
from rackline.units import format_bytes, format_count, format_seconds

FRONT_ROWS = 12


def plan_report(plan: Plan, *, width: int, elapsed_s: float) -> Group:
    """Everything that `rackline plan` prints.

    Args:
        width: columns of the terminal.
        elapsed_s: wall time of the search [s].
    """
    best = plan.best
    parts: list[RenderableType] = []
    if best is None:
        parts += [nothing_panel(plan)]
    else:
        pools = [pool_table(best)] if best.serving == "disaggregated" else []
        parts += [choice_panel(plan, best), key_numbers(plan, best, width)]
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
