"""The two pools of a disaggregated answer, side by side."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import percent, written
from rackline.search import Choice, PoolPair
from rackline.units import format_bytes, format_seconds

LEVELS = {"scale_up": "the scale-up domain", "scale_out": "the network"}


def pool_table(choice: Choice) -> RenderableType:
    """Chips, load and memory of each pool, and the cache that moves between them."""
    pair = choice.estimate
    if not isinstance(pair, PoolPair):
        return Text("")
    table = plain_table("the two pools")
    table.add_column("", no_wrap=True)
    for name in ("decode", "prefill"):
        table.add_column(name, justify="right", no_wrap=True)
    decode, prefill, rate = pair.decode, pair.prefill, choice.requests_per_s
    rows = [
        ("chips", f"{decode.num_chips}", f"{prefill.num_chips}"),
        ("step, prompt", format_seconds(decode.seconds), format_seconds(prefill.seconds)),
        ("requests/s it could serve", written(decode.requests_per_s), written(prefill.requests_per_s)),
        ("load", percent(rate / decode.requests_per_s), percent(rate / prefill.requests_per_s)),
    ]
    inside = choice.inside
    if inside.prefill_memory is not None:
        then, first = inside.memory, inside.prefill_memory
        rows += [
            ("free memory", format_bytes(float(then.free)), format_bytes(float(first.free))),
            ("KV cache", format_bytes(float(then.kv_cache)), format_bytes(float(first.kv_cache))),
        ]
    for row in rows:
        table.add_row(*row)
    sent = pair.transfer
    line = Text(
        f"KV cache of a prompt: {format_bytes(sent.kv_bytes)} over {LEVELS[sent.level]} "
        f"in {format_seconds(sent.seconds)}",
        style="dim",
    )
    return Group(table, line)
