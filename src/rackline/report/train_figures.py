"""Figures of a training run: its pipeline over time."""

from __future__ import annotations

from collections.abc import Callable

from rackline.report.axes import Measure, linear_axis
from rackline.report.figure import Figure
from rackline.report.gantt import NAMES
from rackline.report.layers import Row, colour, hovered
from rackline.training.schedules import Timeline
from rackline.units import format_percent, format_seconds

ROW_HEIGHT = 20
MOST_SLOTS = 3000


def pipeline_figure(timeline: Timeline, *, title: str) -> Figure:
    """What each stage does when: one box a slot, a gap where it waits; darker and lighter chunks of one stage.

    Of a long step the first slots are shown.

    Args:
        timeline: of one step.
        title: above the figure.
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
    encoding = {
        "x": x,
        "x2": {"field": "end_s"},
        "y": {"field": "stage", "type": "ordinal", "title": "stage", "scale": {"paddingInner": 0.12}},
        "color": colour(used, "op"),
        "opacity": {
            "field": "chunk",
            "type": "ordinal",
            "scale": {
                "domain": chunks,
                "range": [1.0 - 0.45 * i / max(len(chunks) - 1, 1) for i in range(len(chunks))],
            },
            "legend": {"title": "chunk"} if len(chunks) > 1 else None,
        },
    }
    shown = [
        Measure(field="op", title="what"),
        Measure(field="stage", title="stage", kind="count"),
        Measure(field="micro_batch", title="micro-batch", kind="count"),
        Measure(field="chunk", title="chunk", kind="count"),
        start,
        end,
    ]
    bubble = f"{format_percent(timeline.bubble_fraction)} of the step waits"
    cut = f"; the first {len(events):,} of {len(timeline.events):,} slots" if len(events) < len(timeline.events) else ""
    return Figure(
        title=title,
        subtitle=f"step {format_seconds(timeline.step_s)}, {bubble}{cut}",
        description=f"What each of {timeline.num_devices} stages does over one step of "
        f"{format_seconds(timeline.step_s)}; {bubble}.",
        spec={
            "data": {"values": rows},
            "layer": [hovered({"type": "bar", "strokeWidth": 0.3}, encoding, shown)],
        },
        width=900,
        height=max(ROW_HEIGHT * timeline.num_devices, 80),
    )


FIGURES: dict[str, Callable[..., Figure]] = {"pipeline": pipeline_figure}
