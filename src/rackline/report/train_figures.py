"""Figures of a training run: its pipeline over time, the breakdown of a step's time, memory of the fullest chip."""

from __future__ import annotations

from rackline.errors import InputError
from rackline.report.axes import Measure, linear_axis
from rackline.report.bars import nothing_figure, stacked_bars
from rackline.report.figure import Figure
from rackline.report.gantt import NAMES
from rackline.report.layers import Layer, Row, colour, hovered
from rackline.report.train_report import layout_text, shown_note
from rackline.report.wording import percent
from rackline.search.train import TrainCandidate, TrainPlan, shares, timeline_of
from rackline.training.schedules import Timeline
from rackline.units import format_bytes, format_percent, format_seconds

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
    bars = {f"{layout_text(one)}: MFU {percent(one.mfu)}": _shares(plan, one) for one in plan.best}
    first = _shares(plan, plan.best[0])
    order = sorted(dict.fromkeys(part for bar in bars.values() for part in bar), key=lambda part: -first.get(part, 0.0))
    parts = [*order[:_MOST_PARTS], _OTHER] if len(order) > _MOST_PARTS + 1 else order
    for bar in bars.values():
        rest = sum(bar.pop(part) for part in [*bar] if part not in parts)
        if rest > 0.0:
            bar[_OTHER] = rest
    best = plan.best[0]
    words = ", ".join(f"{part} {format_seconds(first[part])}" for part in order[:4] if part in first)
    return stacked_bars(
        bars,
        parts,
        Measure(field="seconds", title="time of a step", kind="seconds"),
        title=title,
        subtitle=f"the fastest, one of each tp, pp, cp, ep; stack {plan.system.stack.name}",
        description=f"The fastest step takes {format_seconds(best.step_s)} with {layout_text(best)}: {words}.",
    )


def train_memory_figure(plan: TrainPlan) -> Figure:
    """Memory of the fullest chip by kind, one bar for each of the fastest layouts."""
    has = plan.system.cluster.chip.hbm_bytes
    title = f"{_name(plan)}: memory of the fullest chip"
    if not plan.best:
        return nothing_figure(title, plan.reason)
    bars = {
        layout_text(one): {
            kind.removesuffix("_bytes").replace("_", " "): float(value)
            for kind, value in one.memory.items()
            if kind.endswith("_bytes") and kind != "total_bytes" and value > 0
        }
        for one in plan.best
    }
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    best = plan.best[0]
    return stacked_bars(
        bars,
        parts,
        Measure(field="held_bytes", title="memory of the fullest chip", kind="bytes"),
        title=title,
        subtitle="the fastest, one of each tp, pp, cp, ep",
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
