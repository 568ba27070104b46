"""Images and sound of a request on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import flop, percent
from rackline.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rackline.api.encode import Encoding


def encode_report(found: Encoding) -> Group:
    """Towers, then where the time to the first token goes."""
    towers = plain_table(f"towers of {found.model}", caption="each image or clip; FLOP and time of all of them")
    for name in ("tower", "items", "resized", "patches", "tokens", "weights", "FLOP", "time"):
        towers.add_column(name, justify="left" if name == "tower" else "right", no_wrap=True)
    for one in found.towers:
        towers.add_row(
            one.kind,
            str(one.items),
            f"{one.width}x{one.height}" if one.width else "-",
            f"{one.sequences} x {one.patches:,}" if one.sequences > 1 else f"{one.patches:,}",
            f"{one.tokens_per_item:,}",
            format_bytes(one.weight_bytes),
            flop(one.flop),
            format_seconds(one.seconds),
        )
    times = plain_table(
        f"time to first token on {found.cluster}, {found.layout}",
        caption=f"one request alone; without images and sound {format_seconds(found.text_ttft_s)}",
    )
    for name in ("part", "time", "share"):
        times.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    for one in found.towers:
        times.add_row(f"{one.kind} encoder", format_seconds(one.seconds), percent(one.seconds / found.ttft_s))
    times.add_row(
        f"prefill of {found.prompt_tokens:,} tokens",
        format_seconds(found.prefill_s),
        percent(found.prefill_s / found.ttft_s),
    )
    times.add_section()
    times.add_row("all", format_seconds(found.ttft_s), "", style="bold")
    return Group(towers, Text(""), times)
