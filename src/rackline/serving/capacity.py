"""Capacity: the context length and number of requests that fit, by layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch import AnyModel
from rackline.errors import InputError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one replica of a layout holds.

    Args:
        kv_room_bytes: memory left for KV on the fullest chip [bytes].
        max_concurrency: sequences of the context on one replica [sequences].
        total_concurrency: the same, on all replicas that fit on the cluster [sequences].
    """

    layout: Layout
    kv_room_bytes: float
    max_concurrency: int
    total_concurrency: int

    def order(self) -> tuple[int, int, int]:
        """Most sequences first, then fewest chips."""
        return -self.total_concurrency, self.layout.chips_per_replica, self.layout.pp


def held(
    model: AnyModel, cluster: Cluster, precision: Precision, *, context_len: float, server: ServerMemory = SERVER
) -> list[Held]:
    """What each layout holds, most sequences first.

    Args:
        context_len: context of each request [tokens].
        server: memory that a server needs besides weights and cache, and the memory fraction.

    Raises:
        InputError: context or memory fraction is out of range.
    """
    grids = _Grids.of(model, cluster, precision, None, context_len, server)
    counts = grids.sequences_per_replica(context_len)
    found = [
        Held(
            layout=layout,
            kv_room_bytes=float(grids.room[i]),
            max_concurrency=int(counts[i]),
            total_concurrency=int(counts[i]) * _replicas(layout, cluster),
        )
        for i, layout in enumerate(grids.layouts)
    ]
    return sorted(found, key=Held.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grids:
    """Memory of every layout, one number a layout.

    Args:
        room: memory left for KV on the fullest chip [bytes].
        weights: on the fullest chip [bytes].
        per_sequence: KV cache of one sequence on a chip [bytes].
        sequences: that one rank and micro-batch holds, from their context [tokens] to their number.
    """

    layouts: Sequence[Layout]
    grid: LayoutGrid
    room: Array
    weights: Array
    per_sequence: Array
    sequences: Callable[[FloatLike], Array]

    @classmethod
    def of(
        cls,
        model: AnyModel,
        cluster: Cluster,
        precision: Precision,
        layouts: Sequence[Layout] | None,
        context_len: float,
        server: ServerMemory,
    ) -> _Grids:
        """Of these layouts, or of all.

        Raises:
            InputError: context or memory fraction is out of range.
        """
        _check(context_len, server)
        options = enumerate_layouts(model, cluster.num_chips) if layouts is None else list(layouts)
        grid, shape = LayoutGrid.of(options), (len(options),)
        use = memory_use(model, grid, precision, cluster.chip, server, sequences_per_rank=1.0, context_len=context_len)

        def sequences(context: FloatLike) -> Array:
            return np.broadcast_to(fitting_sequences(model, grid, precision, cluster.chip, server, context), shape)

        return cls(
            layouts=options,
            grid=grid,
            room=np.broadcast_to(as_array(use.kv_room), shape),
            weights=np.broadcast_to(as_array(use.weight_total), shape),
            per_sequence=np.broadcast_to(as_array(use.kv_cache), shape),
            sequences=sequences,
        )

    def sequences_per_replica(self, context_len: float) -> Array:
        """Sequences of a context on all ranks and micro-batches of a replica."""
        return self.sequences(context_len) * as_array(self.grid.attention_dp) * as_array(self.grid.pp)


def _check(context_len: float, server: ServerMemory) -> None:
    if not context_len >= 1:
        raise InputError(what="context", given=context_len, allowed="at least 1 token", nearest="1")
    if not 0 < server.memory_fraction <= 1:
        raise InputError(what="memory fraction", given=server.memory_fraction, allowed="above 0 to 1", nearest="0.9")


def _replicas(layout: Layout, cluster: Cluster) -> int:
    return max(1, cluster.num_chips // layout.chips_per_replica)


def capacity(
    model: AnyModel,
    cluster: Cluster,
    precision: Precision,
    *,
    context_len: float = 8192.0,
    concurrency: int | None = None,
    server: ServerMemory = SERVER,
    layouts: Sequence[Layout] | None = None,
) -> Capacity:
    """Longest context and highest concurrency of every layout.

    Args:
        context_len: context of each request [tokens].
        server: memory that a server needs besides weights and cache, and the memory fraction.

    Raises:
        InputError: context or memory fraction is out of range.
    """
    grids = _Grids.of(model, cluster, precision, layouts, context_len, server)
    counts = grids.sequences_per_replica(context_len)
    longest = _longest_context(grids.sequences, len(grids.layouts))
    rows = [
        _row(layout, cluster, grids.weights[i], grids.room[i], grids.per_sequence[i], longest[i], int(counts[i]))
        for i, layout in enumerate(grids.layouts)
    ]
    rows.sort(key=lambda row: (-row.total_concurrency, row.layout.chips_per_replica, row.layout.pp))
    return Capacity(
        model=model.name,
        cluster=cluster.name,
        precision=precision,
        context_len=context_len,
        concurrency=concurrency,
        memory_fraction=server.memory_fraction,
        fraction_of=server.fraction_of,
        rows=tuple(rows),
    )


def _row(
    layout: Layout,
    cluster: Cluster,
    weights: float,
    room: float,
    per_sequence: float,
    longest: float,
    count: int,
) -> CapacityRow:
    reason = ""
    if room < 0:
        reason = f"weights, activations and runtime exceed the usable memory by {-room / 1e9:.3g} GB per chip"
    elif count == 0:
        reason = f"one request needs {per_sequence / 1e9:.3g} GB of KV per chip, but {room / 1e9:.3g} GB are left"
    return CapacityRow(
        layout=layout,
        weights_bytes=float(weights),
        kv_room_bytes=float(room),
        kv_bytes_per_sequence=float(per_sequence),
        max_context=float(longest),
        max_concurrency=count,
        total_concurrency=count * _replicas(layout, cluster),
        reason=reason,
    )


def _longest_context(sequences: Callable[[FloatLike], Array], count: int) -> Array:
    """Bisect by powers of two, then to one token; KV grows with the context except in windowed layers."""
    low, high = np.zeros(count), np.full(count, LONGEST_CONTEXT)
    for _ in range(40):
        middle = np.floor((low + high) / 2.0)
        fits = sequences(middle) >= 1
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(low >= LONGEST_CONTEXT - 2.0, np.inf, low)
