"""Terminal report of `train`: what to run, where the time and the memory go, what a run costs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table, spaced
from rackline.report.gantt import gantt_text
from rackline.report.wording import bar, percent, share, written
from rackline.search.train import TrainCandidate, TrainPlan, shares
from rackline.training.schedules import Timeline
from rackline.units import format_bytes, format_count, format_seconds, format_usd

LEAST_SHARE = 0.003


def train_report(plan: TrainPlan, *, width: int, elapsed_s: float, timeline: Timeline | None = None) -> Group:
    """Everything that `rackline train` prints.

    Args:
        width: columns of the terminal.
        elapsed_s: wall time of the search [s].
        timeline: of the best run's pipeline, None without one.
    """
    parts: list[RenderableType] = [_headline(plan)]
    if plan.best:
        best = plan.best[0]
        parts += [_time(plan, best), _memory(plan, best)]
        if timeline is not None:
            note = shown_note(plan, best, timeline)
            parts.append(gantt_text(timeline, width, bubble_fraction=best.bubble_fraction, note=note))
        parts.append(_levels(best))
        if plan.tokens is not None:
            parts.append(_reliability(plan))
        if len(plan.best) > 1:
            parts.append(_others(plan))
    parts.append(_footer(plan, elapsed_s))
    return spaced(parts)


def _title(plan: TrainPlan) -> str:
    job = plan.system
    return f"{job.model.name} on {job.cluster.num_chips:,} × {job.cluster.chip.name} ({job.cluster.name})"


def _request(plan: TrainPlan) -> str:
    job = plan.system
    text = f"{job.global_batch_sequences:,} sequences of {job.seq_len:,} tokens per step "
    text += f"({format_count(job.global_batch_tokens)} tokens)"
    if plan.tokens is not None:
        text += f", {format_count(plan.tokens)} tokens in all"
    return text


def _headline(plan: TrainPlan) -> Panel:
    body = Text()
    if not plan.best:
        body.append("Nothing fits. ", style="bold red")
        body.append(plan.reason.removeprefix("nothing fits: "))
        return Panel(body, title=_title(plan), title_align="left", subtitle=_request(plan), border_style="red")
    best = plan.best[0]
    job, asked = plan.system, plan.asked_batch_tokens
    body.append(layout_text(best), style="bold green")
    body.append(f"\n{format_seconds(best.step_s)} a step", style="bold")
    body.append(f" · MFU {percent(best.mfu)} (causal {percent(best.mfu_causal)}) · HFU {percent(best.hfu)}")
    body.append(f" · {best.tokens_per_s_per_chip:,.0f} tokens/s per chip · {best.binds} takes most")
    if best.power is not None:
        how = "" if best.power.basis == "kernels" else f" ({best.power.basis})"
        body.append(f"\n{best.power.chip_w:,.0f} W a chip{how}, {best.power.wall_w:,.0f} W with its machine")
        body.append(f" · {best.joules_per_token or 0.0:.3g} J a token")
    if best.days is not None:
        body.append(f"\n{best.days:,.1f} days", style="bold")
        if best.usd is not None:
            body.append(f" · {format_usd(best.usd)}", style="bold")
        if best.kwh is not None:
            body.append(f" · {format_count(best.kwh)} kWh")
        body.append(f" · goodput {percent(plan.reliability.goodput)}")
    if asked is not None and asked != job.global_batch_tokens:
        body.append(f"\nbatch moved from {asked / job.seq_len:,.6g} to {job.global_batch_sequences:,} sequences, ")
        body.append("which replicas can share")
    return Panel(
        body,
        title=_title(plan),
        title_align="left",
        subtitle=_request(plan),
        subtitle_align="left",
        border_style="green",
    )


def layout_text(one: TrainCandidate) -> str:
    """Layout, schedule and recompute in words."""
    text = one.layout.label()
    if one.layout.pp > 1:
        text += f" · {one.layout.schedule}"
    return text + ("" if one.layout.recompute == "none" else f" · {one.layout.recompute} recompute")


def shown_note(plan: TrainPlan, one: TrainCandidate, timeline: Timeline) -> str:
    """What a drawn timeline leaves out of the step; empty where it leaves out nothing."""
    shown = len({event.slot.micro_batch for event in timeline.events})
    count = plan.system.global_batch_sequences // (one.layout.dp * one.layout.micro_batch)
    return f"; drawn: the first {shown} of {count} micro-batches" if shown < count else ""


def _time(plan: TrainPlan, best: TrainCandidate) -> Table:
    count = plan.system.global_batch_sequences / (best.layout.dp * best.layout.micro_batch)
    table = plain_table(
        f"where the {format_seconds(best.step_s)} of a step go ({count:,.0f} micro-batches per replica)"
    )
    table.add_column("")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    found = shares(best.step, count)
    for name, value in sorted(found.items(), key=lambda item: -item[1]):
        part = share(value, best.step_s)
        if part >= LEAST_SHARE:
            table.add_row(name, format_seconds(value), percent(part), Text(bar(part, 24), style="blue"))
    return table


def _memory(plan: TrainPlan, best: TrainCandidate) -> Table:
    has = plan.system.cluster.chip.hbm_bytes
    total = best.memory["total_bytes"]
    table = plain_table(f"memory of the fullest chip: {format_bytes(total)} of {format_bytes(has)}")
    table.add_column("")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, value in best.memory.items():
        if name.endswith("_bytes") and name != "total_bytes" and value > 0:
            row = name.removesuffix("_bytes")
            if row == "activations":
                row += f" ({written(best.memory['in_flight'])} micro-batches in flight)"
            table.add_row(row, format_bytes(value), Text(bar(share(value, has), 24), style="yellow"))
    return table


def _levels(best: TrainCandidate) -> Table:
    table = plain_table("which level each group works on")
    for name in ("group", "ranks", "in one domain", "level"):
        table.add_column(name, justify="right" if name in ("ranks", "in one domain") else "left")
    for one in best.levels:
        table.add_row(one.name, f"{one.size:,}", f"{one.inside:,}", one.level)
    return table


def _reliability(plan: TrainPlan) -> Text:
    found = plan.reliability
    text = Text("a failure every ")
    text.append(format_seconds(found.between_failures_s), style="bold")
    text.append(
        f"; a checkpoint of {format_bytes(found.checkpoint_bytes)} stops work for {format_seconds(found.write_s)}"
    )
    text.append(f", best every {format_seconds(found.interval_s)} (Young and Daly); goodput {percent(found.goodput)}")
    text.append(" (failure rate of Llama 3 on H100; storage and restart assumed)", style="dim")
    return text


def _others(plan: TrainPlan) -> Table:
    table = plain_table("the fastest, one of each tp, pp, cp, ep")
    table.add_column("layout", overflow="fold")
    for name in ("step", "MFU", "memory", "days", "$"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in plan.best:
        table.add_row(
            layout_text(one),
            format_seconds(one.step_s),
            percent(one.mfu),
            format_bytes(one.memory["total_bytes"]),
            f"{one.days:,.1f}" if one.days is not None else "-",
            format_usd(one.usd) if one.usd is not None else "-",
        )
    return table


def _footer(plan: TrainPlan, elapsed_s: float) -> Text:
    text = Text(style="dim")
    text.append(f"{plan.candidates_evaluated:,} runs considered, {plan.candidates_timed:,} fit and were timed, ")
    system = plan.system
    text.append(f"{format_seconds(elapsed_s)}; stack {system.stack.name}, kernels {system.calibration.name}. ")
    text.append(
        f"Schedules: {', '.join(plan.schedules) or 'none, the stack has no pipeline'} (--schedule for others). "
    )
    each = 4 if system.lora_rank else 6
    text.append(f"MFU counts {each} FLOP per token and active parameter and the whole attention square, as PaLM does, ")
    text.append(f"over the dense peak of the products' type ({system.precision.compute}); causal: the half of the ")
    text.append("square that a causal mask leaves; HFU adds what is run again.")
    for note in system.precision.notes:
        text.append(f" {note}.")
    return text
