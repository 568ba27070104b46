"""A pipeline timeline as terminal text and as a Chrome trace."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from rackline.training.schedules import Timeline
from rackline.units import format_percent

NAMES = {"F": "forward", "B": "backward", "W": "gradient of weights"}
_STYLES = {"F": "blue", "B": "green", "W": "yellow"}


def gantt_text(
    timeline: Timeline, width: int, most_devices: int = 16, *, bubble_fraction: float | None = None, note: str = ""
) -> Text:
    """One line per stage: what it does when, a dot where it waits.

    Args:
        width: columns of the terminal.
        bubble_fraction: share of the step in which a stage waits, where the timeline is only a part of the step; that
            of the timeline by default.
        note: how the timeline differs from the step; empty where it is the step.
        most_devices: stages that are shown; of more, evenly spread ones [count].
    """
    columns = max(width - 6, 20)
    end = max((event.end for event in timeline.events), default=1.0)
    shown = range(timeline.num_devices)
    if timeline.num_devices > most_devices:
        step = timeline.num_devices / most_devices
        shown = sorted({int(i * step) for i in range(most_devices)} | {timeline.num_devices - 1})
    text = Text()
    for device in shown:
        cells = ["·"] * columns
        for event in timeline.of_device[device]:
            first = int(event.start / end * columns)
            for column in range(first, max(first + 1, int(event.end / end * columns))):
                if column < columns:
                    cells[column] = event.slot.op
        text.append(f"{device:>4}  ", style="dim")
        for cell in cells:
            text.append(cell, style=_STYLES.get(cell, "dim"))
        text.append("\n")
    waits = format_percent(timeline.bubble_fraction if bubble_fraction is None else bubble_fraction)
    text.append(f"F forward, B backward, W gradient of weights; {waits} of the step waits (bubble){note}")
    return text


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
