"""Images and sound of a request on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.console import Group
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import flop, percent
from rackline.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The pass of one tower for one request.

    Args:
        kind: "vision" or "audio".
        items: images or clips [count].
        width, height: of an image after resizing [pixels].
        sequences: parts of each that attend to themselves alone [count].
        patches: tokens of the encoder in each part [tokens].
        tokens_per_item: tokens of the prompt for each [tokens].
        total_params: of the tower [count].
        weight_bytes: of the tower on all chips of a replica [B].
        activation_bytes: largest of the pass: inputs and outputs of the widest product [B].
        flop: of all of them [FLOP].
        seconds: of the pass [s].
        binds: what it is limited by.
    """

    kind: Literal["vision", "audio"]
    items: int
    width: int
    height: int
    sequences: int
    patches: int
    tokens_per_item: int
    total_params: int
    weight_bytes: float
    activation_bytes: float
    flop: float
    seconds: float
    binds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A request with images or sound, alone on a server.

    Args:
        model: its name.
        cluster: its name.
        layout: parallel degrees of the language model, which the tower shares.
        towers: passes of the encoders.
        prompt_tokens: text and encoded tokens together [tokens].
        prefill_s: of the language model on them [s].
        ttft_s: encoders and prefill, without waiting [s].
        text_ttft_s: the same prompt without images and sound [s].
    """

    model: str
    cluster: str
    layout: str
    towers: tuple[Encoded, ...]
    prompt_tokens: int
    prefill_s: float
    ttft_s: float
    text_ttft_s: float


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
