"""The timeline of a pipeline as text: what each stage does when."""

from __future__ import annotations

from itertools import pairwise

from rich.text import Text

from rackline.late import late
from rackline.units import format_percent

with late:
    from rackline.training import schedules

_STAGE = 8  # columns of the terminal before a line of stages


_STYLES = {"F": "blue", "B": "green", "W": "yellow"}


def gantt_text(
    timeline: schedules.Timeline,
    width: int,
    most_devices: int = 6,
    *,
    bubble_fraction: float | None = None,
    note: str = "",
) -> Text:
    """Draw what each stage does when, with a dot where it waits; neighbours share a line where there are many.

    Args:
        width: columns of the terminal.
        bubble_fraction: share of the step in which a stage waits, where the timeline is only a part of the step; that
            of the timeline by default.
        note: how the timeline differs from the step; empty where it is the step.
        most_devices: lines; of more stages, neighbours share one [count].
    """
    columns = max(width - _STAGE, 20)
    end = max((event.end for event in timeline.events), default=1.0)
    text = Text()
    for first, last in _folded(timeline.num_devices, most_devices):
        label = f"{first}" if first == last else f"{first}-{last}"
        cells = _stage_cells(timeline, first, columns, end)
        text.append(f"{label:>{_STAGE - 2}}  ", style="dim")
        text.append_tokens((cell, _STYLES.get(cell, "dim")) for cell in cells).append("\n")
    drawn = "" if timeline.num_devices <= most_devices else "; of each group of stages the first is drawn"
    waits = waits_text(timeline, bubble_fraction)
    return text.append(f"F forward, B backward, W gradient of weights; {waits} (bubble){drawn}{note}")


def waits_text(timeline: schedules.Timeline, bubble_fraction: float | None) -> str:
    """Say which share of the step a stage waits: `bubble_fraction`, or the timeline's own share if it is None."""
    share_waiting = timeline.bubble_fraction if bubble_fraction is None else bubble_fraction
    return f"{format_percent(share_waiting)} of the step waits"


def _stage_cells(timeline: schedules.Timeline, device: int, columns: int, end: float) -> list[str]:
    """Return what a stage does in each column of the terminal."""
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
