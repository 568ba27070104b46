"""Capacity: the context length and number of requests that fit, by layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch import AnyModel
from rackline.errors import require
from rackline.hardware import Cluster
from rackline.parallel import SERVER, Layout, LayoutGrid, Precision, ServerMemory, enumerate_layouts, memory_use
from rackline.parallel.memory import FractionOf, fitting_sequences
from rackline.passes.features import Array, FloatLike, as_array

LONGEST_CONTEXT = 2.0**33


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """One layout of one replica.

    Args:
        weights_bytes: weights on the fullest chip [bytes].
        kv_room_bytes: memory left for KV on the fullest chip, in whole blocks; negative if the weights do not fit
            [bytes].
        kv_bytes_per_sequence: KV cache of one sequence on a chip at the requested context, in whole blocks [bytes].
        max_context: longest context with one sequence per rank and micro-batch; infinite if every layer is windowed
            [tokens].
        max_concurrency: sequences of the requested context on one replica [sequences].
        total_concurrency: the same, on all replicas that fit on the cluster [sequences].
        reason: why nothing fits; empty if something does.
    """

    layout: Layout
    weights_bytes: float
    kv_room_bytes: float
    kv_bytes_per_sequence: float
    max_context: float
    max_concurrency: int
    total_concurrency: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Layouts and what fits on them, highest concurrency first.

    Args:
        context_len: requested context [tokens].
        concurrency: requested number of requests on the cluster; None to only count them [requests].
        memory_fraction, fraction_of: of the server, see `rackline.parallel.ServerMemory`.
        rows: one row for each layout that was considered.
    """

    json_keys: ClassVar = (
        "model",
        "cluster",
        "precision",
        "context_len",
        "concurrency",
        "memory_fraction",
        "fraction_of",
        "fits",
        "rows",
    )

    model: str
    cluster: str
    precision: Precision
    context_len: float
    concurrency: int | None
    memory_fraction: float
    fraction_of: FractionOf
    rows: tuple[CapacityRow, ...]

    @property
    def fitting(self) -> tuple[CapacityRow, ...]:
        """Rows that meet the request."""
        least = max(self.concurrency or 1, 1)
        return tuple(row for row in self.rows if row.total_concurrency >= least)

    @property
    def fits(self) -> bool:
        """Whether any layout meets the request."""
        return bool(self.fitting)


def capacity(
    model: AnyModel,
    cluster: Cluster,
    precision: Precision,
    *,
    context_len: float = 8192.0,
    concurrency: int | None = None,
    server: ServerMemory = SERVER,
    layouts: Sequence[Layout] | None = None,
    longest: bool = True,
) -> Capacity:
    """Longest context and highest concurrency of every layout, highest concurrency first, then fewest chips.

    Args:
        context_len: context of each request [tokens].
        server: memory that a server needs besides weights and cache, and the memory fraction.
        layouts: layouts to consider; all that the cluster holds where it is None.
        longest: whether to look for the longest context, which takes most of the time; NaN without.

    Raises:
        InputError: context or memory fraction is out of range.
    """
    require(context_len >= 1, what="context", given=context_len, allowed="at least 1 token", nearest="1")
    fraction = server.memory_fraction
    require(0 < fraction <= 1, what="memory fraction", given=fraction, allowed="above 0 to 1", nearest="0.9")
    options = enumerate_layouts(model, cluster.num_chips) if layouts is None else list(layouts)
    grid, shape = LayoutGrid.of(options), (len(options),)
    use = memory_use(model, grid, precision, cluster.chip, server, sequences_per_rank=1.0, context_len=context_len)

    def sequences(context: FloatLike) -> Array:
        return np.broadcast_to(fitting_sequences(model, grid, precision, cluster.chip, server, context), shape)

    counts = sequences(context_len) * as_array(grid.attention_dp) * as_array(grid.pp)
    contexts = _longest_context(sequences, len(options)) if longest else np.full(shape, np.nan)
    parts = [np.broadcast_to(as_array(part), shape) for part in (use.weight_total, use.kv_room, use.kv_cache)]
    columns = (part.tolist() for part in (*parts, contexts, counts.astype(int)))
    rows = [
        CapacityRow(
            layout=layout,
            weights_bytes=weights,
            kv_room_bytes=room,
            kv_bytes_per_sequence=per_sequence,
            max_context=context,
            max_concurrency=count,
            total_concurrency=count * max(1, cluster.num_chips // layout.chips_per_replica),
            reason=_reason(room, per_sequence, count),
        )
        for layout, weights, room, per_sequence, context, count in zip(options, *columns, strict=True)
    ]
    rows.sort(key=lambda row: (-row.total_concurrency, row.layout.chips_per_replica, row.layout.pp))
    return Capacity(
        model=model.name,
        cluster=cluster.name,
        precision=precision,
        context_len=context_len,
        concurrency=concurrency,
        memory_fraction=fraction,
        fraction_of=server.fraction_of,
        rows=tuple(rows),
    )


def _reason(room: float, per_sequence: float, count: int) -> str:
    """Why nothing fits; empty if something does."""
    if room < 0:
        return f"weights, activations and runtime exceed the usable memory by {-room / 1e9:.3g} GB per chip"
    if count:
        return ""
    return f"one request needs {per_sequence / 1e9:.3g} GB of KV per chip, but {room / 1e9:.3g} GB are left"


def _longest_context(sequences: Callable[[FloatLike], Array], count: int) -> Array:
    """Bisect by powers of two, then to one token; KV grows with the context except in windowed layers."""
    low, high = np.zeros(count), np.full(count, LONGEST_CONTEXT)
    for _ in range(40):
        middle = np.floor((low + high) / 2.0)
        fits = sequences(middle) >= 1
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(low >= LONGEST_CONTEXT - 2.0, np.inf, low)
