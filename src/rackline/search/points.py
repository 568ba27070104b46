"""Points of a plan, one value per point: layout × precision × mode × batch with its latencies and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array
from rackline.search.candidate import output_rate
from rackline.search.evaluate import Part
from rackline.serving.steady import prompt_arrivals, steady_state
from rackline.serving.workload import Mode
from rackline.system import Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points with their times, arrays of one length in the order of `index`.

    Args:
        index: counts precisions, then modes, then layouts, then batches; see `Place`.
        cost: all cost over output tokens [USD per million tokens], chip-hours without a price.
        rate: output tokens [tokens/s/chip].
        free_bytes: left on the fullest chip; negative does not fit [bytes].
        utilisation: load of the prefill path; from 1 on the batch cannot be kept full.
        prefill_cost_share: share of the engine's time that prompts cost.
    """

    index: Array
    tpot_s: Array
    ttft_s: Array
    cost: Array
    rate: Array
    free_bytes: Array
    utilisation: Array
    prefill_cost_share: Array

    def __len__(self) -> int:
        return len(self.index)

    @property
    def serves(self) -> Array:
        """Which fit and can be kept full."""
        return (self.free_bytes >= 0) & (self.utilisation < 1.0)

    def meets(self, limits: Constraints) -> Array:
        """Which meet the latency limits."""
        good = np.ones(len(self), dtype=bool)
        if limits.tpot_s is not None:
            good &= self.tpot_s <= limits.tpot_s
        if limits.ttft_s is not None:
            good &= self.ttft_s <= limits.ttft_s
        return good

    def take(self, positions: Array) -> Points:
        """Some of the points."""
        return Points(**{each.name: getattr(self, each.name)[positions] for each in fields(self)})

    @classmethod
    def join(cls, parts: Sequence[Points]) -> Points:
        """Several sets of points in the order of their index."""
        columns = {each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)}
        order = np.argsort(columns["index"], kind="stable")
        return cls(**{name: column[order] for name, column in columns.items()})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a point lies: indices of the precision, the mode, the layout and the batch."""

    label: int
    mode: int
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Numbering:
    """How points of a space are counted.

    Args:
        modes, layouts, batches: of the whole space [count].
    """

    modes: int
    layouts: int
    batches: int

    def indices(self, label: int, mode: int, start: int, layouts: int) -> Array:
        """Indices of all batches of some layouts, shape (layouts · batches,)."""
        first = ((label * self.modes + mode) * self.layouts + start) * self.batches
        return np.arange(first, first + layouts * self.batches)

    def place(self, index: int) -> Place:
        """Where the point of an index lies."""
        rest, column = divmod(index, self.batches)
        rest, row = divmod(rest, self.layouts)
        label, mode = divmod(rest, self.modes)
        return Place(label, mode, row, column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Points of some layouts in one precision under one mode.

    Args:
        where: layout and batch of each, as flat indices.
        bounds: what is known before passes with prompts are timed: a step takes at least its decodes, so that their
            time bounds tpot and cost from below, memory is known, and so is the load of the prefill path where prompts
            and decodes share a pass; the other quantities are 0.
    """

    mode: Mode
    where: Array
    bounds: Points

    @classmethod
    def of(cls, part: Part, mode: Mode, index: Array) -> Block:
        """The points of a part under one mode.

        Args:
            index: of each layout and batch, shape (layouts · batches,).
        """
        space, b = part.space, part.space.batches[None, :]
        tpot_s = part.decode_s(mode.two_batch_overlap)
        rate = _rate(part, tpot_s, 0.0)
        exists = np.isfinite(rate) & space.launches(part.precision, mode)[:, None]
        if mode.two_batch_overlap:
            exists &= (space.grid.attention_dp > 1)[:, None] & (b >= 2)  # one sequence has no halves
        load = 0.0
        if mode.is_mixed:
            arrivals, room = prompt_arrivals(part.engine, space.workload, mode, b)
            load = arrivals * space.workload.new_tokens / room
        where = np.flatnonzero(exists)
        none = np.zeros(where.size)

        def flat(column: FloatLike) -> Array:
            return np.broadcast_to(column, exists.shape)[exists]

        bounds = Points(
            index=index[where],
            tpot_s=flat(tpot_s),
            ttft_s=none,
            cost=flat(space.usd_per_chip_s[:, None] / rate * 1e6),
            rate=none,
            free_bytes=flat(part.free_bytes(mode.max_batched_tokens)),
            utilisation=flat(load),
            prefill_cost_share=none,
        )
        return cls(mode=mode, where=where, bounds=bounds)

    def timed(self, part: Part, rows: Array, wanted: Array) -> Points:
        """Some of the points with their times.

        Args:
            part: of some of the layouts.
            rows: which they are, ascending, shape (layouts,).
            wanted: of all points.
        """
        space = part.space
        state = steady_state(
            part.engine,
            space.workload,
            self.mode,
            space.batches[None, :],
            decode_s=part.decode_s(self.mode.two_batch_overlap),
            threads=space.threads,
        )
        rate = _rate(part, state.tpot_s, state.hold_s)
        row, column = np.divmod(self.where[wanted], len(space.batches))
        row = np.searchsorted(rows, row)

        def pick(values: Array) -> Array:
            return np.broadcast_to(values, rate.shape)[row, column]

        return replace(
            self.bounds.take(wanted),
            tpot_s=pick(state.tpot_s),
            ttft_s=pick(state.ttft_s),
            cost=pick(space.usd_per_chip_s[:, None] / rate * 1e6),
            rate=pick(rate),
            utilisation=pick(state.prefill_utilisation),
            prefill_cost_share=pick(state.prefill_cost_share),
        )


def _rate(part: Part, tpot_s: Array, hold_s: FloatLike) -> Array:
    """Output tokens [tokens/s/chip]."""
    grid, batches = part.space.grid, part.space.batches[None, :]
    per_replica = batches * as_array(grid.attention_dp * grid.pp)[:, None]
    return output_rate(part.space.workload, per_replica, tpot_s, hold_s) / as_array(grid.chips_per_replica)[:, None]
