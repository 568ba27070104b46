"""Terminal report of attention/FFN disaggregation, beside the decode replica that a plan has chosen."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.search import Plan
from rackline.search.attention_ffn import AttentionFfnSplit
from rackline.units import format_seconds


def attention_ffn_report(plan: Plan, split: AttentionFfnSplit | None) -> Group:
    """The best split and what one layer of it takes; decoding alone is compared."""
    if split is None:
        return Group(Text("attention and experts on chips of their own: no split meets the limit", style="dim"))
    table = plain_table("attention and experts on chips of their own, decoding alone")
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    rows = [
        ("attention", f"{split.attention_ranks} ranks of tp={split.tp}, {split.sequences_per_rank:,} sequences each"),
        ("experts", f"{split.ffn_chips} chips"),
        ("micro-batches that take turns", str(split.micro_batches)),
        ("a layer: attention, experts", f"{format_seconds(split.attention_s)}, {format_seconds(split.ffn_s)}"),
        ("a layer: out, back", f"{format_seconds(split.dispatch_s)}, {format_seconds(split.combine_s)}"),
        ("time per output token", format_seconds(split.tpot_s)),
        ("output tokens/s per chip", f"{split.output_tokens_per_s_per_chip:,.0f}"),
    ]
    decode = plan.best.decode_pool if plan.best is not None else None
    if decode is not None:
        rate = decode.batch_size * decode.layout.dp / decode.seconds / decode.num_chips
        rows.append(("the decode pool above", f"{rate:,.0f}"))
    for row in rows:
        table.add_row(*row)
    return Group(table)
