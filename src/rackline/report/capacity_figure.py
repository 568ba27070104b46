"""The figure of what fits: memory of a chip, layout by layout."""

from __future__ import annotations

from rackline.report.axes import Measure, nothing_figure, stacked_bars
from rackline.report.figure import Figure
from rackline.report.simulate_report import nearest_reason
from rackline.report.wording import memory_share, short_count
from rackline.serving.capacity import Capacity
from rackline.units import format_bytes

_MOST_ROWS = 12
_PARTS = ("weights", "KV cache of the requests", "rest of the room for KV", "activations, runtime, reserve")


def capacity_figure(capacity: Capacity, *, hbm_bytes: float) -> Figure:
    """Memory of the fullest chip by layout: weights, the cache of as many requests as fit, and what is kept back.

    Args:
        capacity: the layouts, most requests first.
        hbm_bytes: memory of a chip [bytes].
    """
    shown = (capacity.fitting or tuple(sorted(capacity.rows, key=lambda row: -row.kv_room_bytes)))[:_MOST_ROWS]
    title = f"{capacity.model} on {capacity.cluster}: memory of a chip"
    if not shown:
        return nothing_figure(title, nearest_reason(capacity))
    bars: dict[str, dict[str, float]] = {}
    for row in shown:
        room = max(row.kv_room_bytes, 0.0)
        ranks = row.layout.attention_dp * row.layout.pp
        held = min(-(-row.max_concurrency // ranks) * row.layout.pp * row.kv_bytes_per_sequence, room)
        bars[f"{row.layout.label()}: {row.total_concurrency:,} requests"] = {
            _PARTS[0]: row.weights_bytes,
            _PARTS[1]: held,
            _PARTS[2]: room - held,
            _PARTS[3]: max(hbm_bytes - row.weights_bytes - row.kv_room_bytes, 0.0) if room else 0.0,
        }
    first = next(iter(bars))
    words = f"Most fit with {first}" if capacity.fitting else f"Nothing fits: {nearest_reason(capacity)}"
    return stacked_bars(
        bars,
        _PARTS,
        Measure(field="held_bytes", title="memory of the fullest chip", kind="bytes"),
        title=title,
        subtitle=f"requests of {short_count(capacity.context_len)} tokens; {capacity.precision.short()}; "
        f"{memory_share(capacity.memory_fraction, capacity.fraction_of)}",
        description=f"Weights, cache and reserve of a chip for {len(bars)} layouts. {words}.",
        marks={f"chip: {format_bytes(hbm_bytes)}": hbm_bytes},
    )
