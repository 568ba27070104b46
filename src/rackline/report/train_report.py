"""The terminal report and the figures of a training run, with the timeline of its pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.errors import InputError
from rackline.report.axes import Layer, Measure, Row, colour, hovered, linear_axis, nothing_figure, stacked_bars
from rackline.report.column import Column, Sheet, band_bar, bars_sheet, spaced
from rackline.report.figure import Figure
from rackline.report.wording import Box, Prose, percent, share, written
from rackline.search.train import TrainCandidate, TrainPlan, shares, timeline_of
from rackline.training.schedules import Timeline
from rackline.units import format_bytes, format_count, format_percent, format_seconds, format_usd, format_watts

NAMES = {"F": "forward", "B": "backward", "W": "gradient of weights"}
_BAND = 16  # characters of the bar of a band
_STAGE = 8  # columns of the terminal before a line of stages
_STYLES = {"F": "blue", "B": "green", "W": "yellow"}


def gantt_text(
    timeline: Timeline, width: int, most_devices: int = 6, *, bubble_fraction: float | None = None, note: str = ""
) -> Text:
    """What stages do when, a dot where they wait; neighbours share a line where there are many.

    Args:
        width: columns of the terminal.
        bubble_fraction: share of the step in which a stage waits, where the timeline is only a part of the step; that
            of the timeline by default.
        note: how the timeline differs from the step; empty where it is the step.
        most_devices: lines; of more stages, neighbours share one [count].
    """
    columns = max(width - _STAGE, 20)
    end = max((event.end for event in timeline.events), default=1.0)
    rows = [_stage_cells(timeline, device, columns, end) for device in range(timeline.num_devices)]
    text = Text()
    for first, last in _folded(len(rows), most_devices):
        label = f"{first}" if first == last else f"{first}-{last}"
        text.append(f"{label:>{_STAGE - 2}}  ", style="dim")
        for cell in rows[first]:
            text.append(cell, style=_STYLES.get(cell, "dim"))
        text.append("\n")
    waits = format_percent(timeline.bubble_fraction if bubble_fraction is None else bubble_fraction)
    drawn = "" if timeline.num_devices <= most_devices else "; of each group of stages the first is drawn"
    text.append(f"F forward, B backward, W gradient of weights; {waits} of the step waits (bubble){drawn}{note}")
    return text


def _stage_cells(timeline: Timeline, device: int, columns: int, end: float) -> list[str]:
    """What a stage does in each column of the terminal."""
    cells = ["·"] * columns
    for event in timeline.of_device[device]:
        first = int(event.start / end * columns)
        for column in range(first, min(max(first + 1, int(event.end / end * columns)), columns)):
            cells[column] = event.slot.op
    return cells


def _folded(count: int, most: int) -> list[tuple[int, int]]:
    """The stages in at most `most` groups of neighbours, the first and the last alone: (first, last) of each."""
    if count <= most:
        return [(one, one) for one in range(count)]
    inner, groups = count - 2, most - 2
    cuts = [1 + inner * place // groups for place in range(groups + 1)]
    return [(0, 0), *((a, b - 1) for a, b in pairwise(cuts)), (count - 1, count - 1)]


def schedule_trace(timeline: Timeline, title: str) -> dict[str, Any]:
    """The timeline as a Chrome trace: a thread per stage, slots as complete events, activations held as a counter."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": title}},
    ]
    for device, slots in enumerate(timeline.of_device):
        named = {"name": f"stage {device}"}
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": device, "args": named})
        events += [
            {
                "name": f"{event.slot.op}{event.slot.micro_batch}",
                "cat": NAMES[event.slot.op],
                "ph": "X",
                "pid": 1,
                "tid": device,
                "ts": event.start * 1e6,
                "dur": (event.end - event.start) * 1e6,
                "args": {"micro_batch": event.slot.micro_batch, "chunk": event.slot.chunk},
            }
            for event in slots
        ]
        events += [
            {
                "name": f"activations of stage {device}",
                "ph": "C",
                "pid": 1,
                "ts": time * 1e6,
                "args": {"micro-batches": held},
            }
            for time, held in timeline.in_flight(device, 0.0)
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


LEAST_SHARE = 0.003


def train_report(
    plan: TrainPlan,
    *,
    band: tuple[float, float] | None = None,
    band_of: str = "",
    width: int,
    elapsed_s: float,
    timeline: Timeline | None = None,
) -> Group:
    """Everything that `rackline train` prints.

    Args:
        band: ends of the interval that held 90 % of measured steps [s]; None where none were measured.
        band_of: which steps these were.
        width: columns of the terminal.
        elapsed_s: wall time of the search [s].
        timeline: of the best run's pipeline, None without one.
    """
    parts: list[RenderableType] = [_headline(plan, band, band_of)]
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
    text = f"{job.global_batch_sequences:,} sequences of {job.seq_len:,} tokens per step"
    if plan.tokens is not None:
        text += f", {format_count(plan.tokens)} tokens in all"
    return text


def _headline(plan: TrainPlan, band: tuple[float, float] | None, band_of: str) -> Box:
    body = Text()
    if not plan.best:
        body.append("Nothing fits. ", style="bold red")
        body.append(plan.reason.removeprefix("nothing fits: "))
        return Box(body, _title(plan), _request(plan), "red")
    best = plan.best[0]
    job, asked = plan.system, plan.asked_batch_tokens
    if best.days is not None:
        body.append(f"{written(best.days)} days", style="bold green")
        if best.usd is not None:
            body.append(f" · {format_usd(best.usd)}", style="bold green")
        if best.kwh is not None:
            body.append(f" · {format_count(best.kwh)} kWh")
        body.append(f" · goodput {percent(plan.reliability.goodput)}\n")
    body.append(f"{format_seconds(best.step_s)} a step", style="bold green")
    if band is not None:
        low, high = band
        body.append(f" · {format_seconds(low)} to {format_seconds(high)} ")
        body.append_text(band_bar(low, best.step_s, high, width=_BAND))
        body.append(f" 90 % of measured runs ({band_of})", style="dim")
    body.append(f"\nMFU {percent(best.mfu)} (causal {percent(best.mfu_causal)}) · HFU {percent(best.hfu)}")
    body.append(f" · {best.tokens_per_s_per_chip:,.0f} tokens/s per chip · {best.binds} takes most")
    if best.power is not None:
        how = "" if best.power.basis == "kernels" else f" ({best.power.basis})"
        body.append(
            f"\n{format_watts(best.power.chip_w)} a chip{how}, {format_watts(best.power.wall_w)} with its machine"
        )
        body.append(f" · {written(best.joules_per_token or 0.0)} J a token")
    body.append(f"\n{layout_text(best)}", style="bold")
    if asked is not None and asked != job.global_batch_tokens:
        body.append(f"\nbatch moved from {asked / job.seq_len:,.6g} to {job.global_batch_sequences:,} sequences, ")
        body.append("which replicas can share")
    return Box(body, _title(plan), _request(plan), "green")


def layout_text(one: TrainCandidate) -> str:
    """Layout, schedule and recompute in words."""
    text = one.layout.label()
    if one.layout.pp > 1:
        text += f" · {one.layout.schedule}"
    return text + ("" if one.layout.recompute == "none" else f" · {one.layout.recompute} recompute")


def differences(texts: Sequence[str]) -> tuple[list[str], str]:
    """What tells layouts apart, a text for each, and what all of them share.

    Args:
        texts: layouts in words, such as "tp=4,pp=2,dp=8 · 1f1b".
    """
    parts = [text.replace(" · ", ",").split(",") for text in texts]
    shared = [part for part in parts[0] if len(parts) > 1 and all(part in other for other in parts)]
    own = [",".join(part for part in each if part not in shared) for each in parts]
    return own, ",".join(shared)


def _of_all(shared: str) -> str:
    return f"; all {shared}" if shared else ""


def shown_note(plan: TrainPlan, one: TrainCandidate, timeline: Timeline) -> str:
    """What a drawn timeline leaves out of the step; empty where it leaves out nothing."""
    shown = len({event.slot.micro_batch for event in timeline.events})
    count = plan.system.global_batch_sequences // (one.layout.dp * one.layout.micro_batch)
    return f"; drawn: the first {shown} of {count} micro-batches" if shown < count else ""


def _time(plan: TrainPlan, best: TrainCandidate) -> Sheet[Any]:
    count = plan.system.global_batch_sequences / (best.layout.dp * best.layout.micro_batch)
    parts = sorted(shares(best.step, count).items(), key=lambda item: -item[1])
    rows = [(name, value, share(value, best.step_s), "blue") for name, value in parts]
    title = f"where the {format_seconds(best.step_s)} of a step go ({count:,.0f} micro-batches per replica)"
    return bars_sheet("step", [row for row in rows if row[2] >= LEAST_SHARE], title=title, unit="s")


def _memory(plan: TrainPlan, best: TrainCandidate) -> Sheet[Any]:
    has = plan.system.cluster.chip.hbm_bytes
    total = best.memory["total_bytes"]
    rows: list[tuple[str, float, float, str]] = []
    for name, value in best.memory.items():
        if name.endswith("_bytes") and name != "total_bytes" and value > 0:
            row = name.removesuffix("_bytes")
            if row == "activations":
                count = written(best.memory["in_flight"])
                row += f" of {count} micro-batch{'' if count == '1' else 'es'}"
            rows.append((row, value, share(value, has), "yellow"))
    title = f"memory of the fullest chip: {format_bytes(total)} of {format_bytes(has)}"
    return bars_sheet("memory", rows, title=title, unit="B")


def _levels(best: TrainCandidate) -> Sheet[Any]:
    return Sheet(
        "levels",
        [
            Column("group", "group"),
            Column("size", "ranks", "whole"),
            Column("inside_domain", "in one domain", "whole"),
            Column("level", "level"),
        ],
        best.levels,
        title="which level each group works on",
    )


def _reliability(plan: TrainPlan) -> Prose:
    found = plan.reliability
    text = Text("a failure every ")
    text.append(format_seconds(found.between_failures_s), style="bold")
    text.append(
        f"; a checkpoint of {format_bytes(found.checkpoint_bytes)} stops work for {format_seconds(found.write_s)}"
    )
    text.append(f", best every {format_seconds(found.interval_s)} (Young and Daly); goodput {percent(found.goodput)}")
    text.append(" (failure rate of Llama 3 on H100; storage and restart assumed)", style="dim")
    return Prose(text)


def _others(plan: TrainPlan) -> Sheet[TrainCandidate]:
    texts, shared = differences([layout_text(one) for one in plan.best])
    columns: list[Column[TrainCandidate]] = [
        Column("step_s", "step", "s"),
        Column("mfu", "MFU", "share"),
        Column("memory.total_bytes", "memory", "B", lambda one: one.memory["total_bytes"]),
    ]
    if plan.tokens is not None:
        columns += [Column("days", "days", "1"), Column("usd", "cost", "USD")]
    columns.append(Column("layout", "layout", "words", lambda one: texts[plan.best.index(one)]))
    title = "the fastest, one of each tp, pp, cp, ep"
    return Sheet("fastest", columns, plan.best, title, f"all {shared.replace(',', ', ')}" if shared else "")


def _footer(plan: TrainPlan, elapsed_s: float) -> Prose:
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
    return Prose(text)


ROW_HEIGHT = 20
MOST_SLOTS = 3000
_MOST_PARTS = 7
_OTHER = "other"


def pipeline_figure(timeline: Timeline, *, title: str, bubble_fraction: float | None = None, note: str = "") -> Figure:
    """What each stage does when: one box a slot, a gap where it waits; darker and lighter chunks of one stage.

    Of a long step the first slots are shown.

    Args:
        timeline: of one step.
        title: above the figure.
        bubble_fraction: share of the step in which a stage waits, where the timeline is only a part of the step; that
            of the timeline by default.
        note: how the timeline differs from the step, empty where it is the step.
    """
    events = sorted(timeline.events, key=lambda event: event.start)[:MOST_SLOTS]
    rows: list[Row] = [
        {
            "stage": event.device,
            "op": NAMES[event.slot.op],
            "micro_batch": event.slot.micro_batch,
            "chunk": event.slot.chunk,
            "start_s": event.start,
            "end_s": event.end,
        }
        for event in events
    ]
    start = Measure(field="start_s", title="time in the step", kind="seconds")
    end = Measure(field="end_s", title="until", kind="seconds")
    x = linear_axis(start, [row["end_s"] for row in rows], margin=0.0)
    chunks = sorted({row["chunk"] for row in rows})
    used = [name for name in NAMES.values() if any(row["op"] == name for row in rows)]
    encoding: Layer = {
        "x": x,
        "x2": {"field": "end_s"},
        "y": {"field": "stage", "type": "ordinal", "title": "stage", "scale": {"paddingInner": 0.12}},
        "color": colour(used, "op"),
    }
    if len(chunks) > 1:
        encoding["opacity"] = {
            "field": "chunk",
            "type": "ordinal",
            "scale": {"domain": chunks, "range": [1.0 - 0.45 * i / (len(chunks) - 1) for i in range(len(chunks))]},
            "legend": {"title": "chunk"},
        }
    shown = [
        Measure(field="op", title="what"),
        Measure(field="stage", title="stage", kind="count"),
        Measure(field="micro_batch", title="micro-batch", kind="count"),
        Measure(field="chunk", title="chunk", kind="count"),
        start,
        end,
    ]
    waits = format_percent(timeline.bubble_fraction if bubble_fraction is None else bubble_fraction)
    bubble = f"{waits} of the step waits"
    cut = f"; the first {len(events):,} of {len(timeline.events):,} slots" if len(events) < len(timeline.events) else ""
    return Figure(
        title=title,
        subtitle=f"{format_seconds(timeline.step_s)}, {bubble}{cut}{note}",
        description=f"What each of {timeline.num_devices} stages does over one step of "
        f"{format_seconds(timeline.step_s)}; {bubble}.",
        spec={
            "data": {"values": rows},
            "layer": [hovered({"type": "bar", "strokeWidth": 0.3}, encoding, shown)],
        },
        width=900,
        height=max(ROW_HEIGHT * timeline.num_devices, 80),
    )


def step_figure(plan: TrainPlan) -> Figure:
    """Where the time of a step goes, one bar for each of the fastest layouts."""
    title = f"{_name(plan)}: where the time of a step goes"
    if not plan.best:
        return nothing_figure(title, plan.reason)
    texts, shared = differences([layout_text(one) for one in plan.best])
    bars = {f"{text}, MFU {percent(one.mfu)}": _shares(plan, one) for text, one in zip(texts, plan.best, strict=True)}
    first = _shares(plan, plan.best[0])
    names = dict.fromkeys(part for each in bars.values() for part in each)
    order = sorted(names, key=lambda part: -first.get(part, 0.0))
    parts = [*order[:_MOST_PARTS], _OTHER] if len(order) > _MOST_PARTS + 1 else order
    for each in bars.values():
        rest = sum(each.pop(part) for part in [*each] if part not in parts)
        if rest > 0.0:
            each[_OTHER] = rest
    best = plan.best[0]
    words = ", ".join(f"{part} {format_seconds(first[part])}" for part in order[:4] if part in first)
    return stacked_bars(
        bars,
        parts,
        Measure(field="seconds", title="time of a step", kind="seconds"),
        title=title,
        subtitle=f"the fastest, one of each tp, pp, cp, ep{_of_all(shared)}; stack {plan.system.stack.name}",
        description=f"The fastest step takes {format_seconds(best.step_s)} with {layout_text(best)}: {words}.",
    )


def train_memory_figure(plan: TrainPlan) -> Figure:
    """Memory of the fullest chip by kind, one bar for each of the fastest layouts."""
    has = plan.system.cluster.chip.hbm_bytes
    title = f"{_name(plan)}: memory of the fullest chip"
    if not plan.best:
        return nothing_figure(title, plan.reason)
    texts, shared = differences([layout_text(one) for one in plan.best])
    bars = {
        text: {
            kind.removesuffix("_bytes").replace("_", " "): float(value)
            for kind, value in one.memory.items()
            if kind.endswith("_bytes") and kind != "total_bytes" and value > 0
        }
        for text, one in zip(texts, plan.best, strict=True)
    }
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    best = plan.best[0]
    return stacked_bars(
        bars,
        parts,
        Measure(field="held_bytes", title="memory of the fullest chip", kind="bytes"),
        title=title,
        subtitle=f"the fastest, one of each tp, pp, cp, ep{_of_all(shared)}",
        description=f"The fastest, {layout_text(best)}, holds {format_bytes(best.memory['total_bytes'])} of "
        f"{format_bytes(has)}.",
        marks={f"chip: {format_bytes(has)}": has},
    )


def pipeline_of_plan(plan: TrainPlan) -> Figure:
    """The pipeline of the fastest run over time.

    Raises:
        InputError: it has no pipeline.
    """
    if not plan.best:
        return nothing_figure(f"{_name(plan)}: pipeline", plan.reason)
    best = plan.best[0]
    if best.layout.pp == 1:
        raise InputError(
            what="--plot-kind",
            given="pipeline",
            allowed="only for a best run with a pipeline (pp above 1)",
            nearest="step",
        )
    timeline = timeline_of(plan, best)
    return pipeline_figure(
        timeline,
        title=f"{_name(plan)}: {layout_text(best)}",
        bubble_fraction=best.bubble_fraction,
        note=shown_note(plan, best, timeline),
    )


def _shares(plan: TrainPlan, one: TrainCandidate) -> dict[str, float]:
    return shares(one.step, plan.system.global_batch_sequences / (one.layout.dp * one.layout.micro_batch))


def _name(plan: TrainPlan) -> str:
    job = plan.system
    return f"{job.model.name} on {job.cluster.num_chips:,} × {job.cluster.chip.name}"
