"""A pipeline timeline as terminal text, as a figure of boxes, and as a Chrome trace."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from rich.text import Text

from rackline.errors import InputError
from rackline.report.figures import BLUE, GREEN, ORANGE
from rackline.report.svg import check_plot_path
from rackline.training.schedules import Timeline
from rackline.units import format_percent, format_seconds

COLORS = {"F": BLUE, "B": GREEN, "W": ORANGE}
NAMES = {"F": "forward", "B": "backward", "W": "gradient of weights"}
_STYLES = {"F": "blue", "B": "green", "W": "yellow"}
WIDTH, ROW, LEFT, TOP = 1200, 22, 70, 64
MOST_EVENTS = 40_000


def gantt_text(timeline: Timeline, width: int, most_devices: int = 16) -> Text:
    """One line a stage: what it does when, a dot where it waits.

    Args:
        width: columns of the terminal.
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
    text.append(
        f"F forward, B backward, W gradient of weights; {format_percent(timeline.bubble_fraction)} of the step "
    )
    text.append("waits (bubble)")
    return text


def gantt_svg(timeline: Timeline, title: str) -> str:
    """Boxes over time, one row a stage; hover shows slot and times."""
    end = max((event.end for event in timeline.events), default=1.0)
    scale = (WIDTH - LEFT - 20) / end
    height = TOP + ROW * timeline.num_devices + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
    ]
    for index, (op, name) in enumerate(NAMES.items()):
        x = LEFT + index * 160
        parts.append(f'<rect x="{x}" y="36" width="14" height="14" fill="{COLORS[op]}"/>')
        parts.append(f'<text x="{x + 20}" y="48">{name}</text>')
    for device, events in enumerate(timeline.of_device):
        y = TOP + device * ROW
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">stage {device}</text>')
        for event in events:
            x, width = LEFT + event.start * scale, max((event.end - event.start) * scale - 0.4, 0.2)
            hover = f"{NAMES[event.slot.op]}, micro-batch {event.slot.micro_batch}, chunk {event.slot.chunk}: "
            hover += f"{format_seconds(event.start)} to {format_seconds(event.end)}"
            shade = 1.0 - 0.35 * (event.slot.chunk % 3)
            parts.append(
                f'<rect x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="{ROW - 4}" fill="{COLORS[event.slot.op]}" '
                f'fill-opacity="{shade:.2f}"><title>{hover}</title></rect>'
            )
    parts.append(f'<text x="{LEFT}" y="{height - 12}">0</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{height - 12}" text-anchor="end">{format_seconds(end)}</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def write_gantt(timeline: Timeline, title: str, path: Path) -> None:
    """Write the timeline as .svg or .html.

    Raises:
        InputError: another ending, a folder that does not exist, too many slots for a page.
    """
    check_plot_path(str(path))
    if path.suffix.lower() == ".png":
        raise InputError(what="--plot", given=str(path), allowed="a file ending in .html or .svg")
    if len(timeline.events) > MOST_EVENTS:
        raise InputError(
            what="--plot",
            given=f"{len(timeline.events):,} slots",
            allowed=f"at most {MOST_EVENTS:,}; --trace takes more",
        )
    svg = gantt_svg(timeline, title)
    if path.suffix.lower() == ".html":
        svg = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>\n'
            f"<body>\n{svg}\n</body></html>\n"
        )
    path.write_text(svg, encoding="utf-8")


def schedule_trace(timeline: Timeline, title: str) -> dict[str, Any]:
    """The timeline as a Chrome trace: a thread a stage, slots as complete events, activations held as a counter."""
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
