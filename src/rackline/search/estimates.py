"""What engines do at a number of sequences: operating points with every slot taken, or under random arrivals.

**Closed loop.** Every slot is always decoding: this bounds the cost of an engine from below, takes little time for
millions of points, and shows which engines are worth more work.

**Open loop.** Those are evaluated at mean numbers in flight, from a fraction of a sequence a rank to the largest number
that fits in memory, each at the request rate that keeps it there (`rackline.serving.open_loop`), with the wait for a
slot (`rackline.serving.open_loop`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.hardware import drawn_w, wall_w
from rackline.parallel import Layout, Precision, expert_law
from rackline.parallel.work import most_sequences
from rackline.passes.features import Array, FloatLike, as_array
from rackline.search.candidate import Basis, open_loop_caveat, output_rate
from rackline.search.points import Numbering, OperatingPoints
from rackline.search.space import Part, Space
from rackline.serving.fleet import step_joules
from rackline.serving.open_loop import open_loop
from rackline.serving.prompt_queue import slot_wait_s
from rackline.serving.steady import Engine, SteadyState, prompt_arrivals, steady_state
from rackline.serving.workload import Mode
from rackline.system import Objective

SLOTS_PER_SEQUENCE, MORE_SLOTS = 2, 8  # slots for bursts: twice the mean number in flight, and 8 more
FEW = (0.125, 0.25, 0.5)  # mean sequences on a rank, where even one is too many for a limit
# of the closed loop, and of a limit: the open loop's time per token is within 5 % of the simulator, its time to first
# token within 10 % on 54 deployments and loads (tests/golden/test_open_loop.py)
_OVER = 1.05
_FULL = 0.99  # of the slots: beyond it, the wait for a slot grows without bound
_STEPS = 17  # of the number in flight between two points of the grid
_WHOLE = 64  # numbers of sequences that are tried between two points of the grid, at the most
_TPOT_ERROR, _TTFT_ERROR = 1.05, 1.1  # as _OVER; where nothing meets the limits, the simulation decides


def numbering(space: Space) -> Numbering:
    """How the engines of a space are counted."""
    return Numbering(len(space.modes), len(space.grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Closed-loop points of some layouts in one precision under one mode.

    Args:
        where: layout and batch of each, as flat indices.
        bounds: what is known before passes with prompts are timed: a step takes at least its decodes, so that their
            time bounds tpot and cost from below, memory is known, and so is the load of the prefill path where prompts
            and decodes share a pass; the other quantities are 0.
        objective: what the cost is.
    """

    mode: Mode
    where: Array
    bounds: OperatingPoints
    objective: Objective = "dollars"

    @classmethod
    def of(
        cls, part: Part, mode: Mode, engines: Array, *, objective: Objective = "dollars", halves: bool = True
    ) -> Block:
        """The points of a part under one mode.

        Args:
            engines: their numbers, shape (layouts,).
            objective: what the cost is.
            halves: whether two-batch overlap is only where ranks exchange tokens and have a sequence in each half.
        """
        space, b = part.space, part.space.batches[None, :]
        tpot_s = part.decode_s(mode.two_batch_overlap)
        rate = _rate(part, tpot_s, 0.0)
        exists = np.isfinite(rate) & space.launches(part.precision, mode)[:, None]
        if halves or mode.alignment is not None:
            exists &= space.suits(mode)[:, None]
        if mode.two_batch_overlap and halves:
            exists &= b >= 2
        load = 0.0
        if mode.is_mixed:
            arrivals, room = prompt_arrivals(part.engine, space.workload, mode, b)
            load = arrivals * space.workload.new_tokens / room
        where = np.flatnonzero(exists)
        none, cluster = np.zeros(where.size), space.system.cluster
        idle_w = wall_w(cluster, float(drawn_w(cluster.chip, 0.0, 1.0))) if objective == "joules" else 0.0

        def flat(column: FloatLike) -> Array:
            return np.broadcast_to(column, exists.shape)[exists]

        bounds = OperatingPoints(
            engine=flat(engines[:, None]),
            kind=flat(space.grid.kind[:, None]),
            per_rank=flat(b),
            tpot_s=flat(tpot_s),
            ttft_s=none,
            alone_s=none,
            cost=flat(idle_w / rate if objective == "joules" else _usd(part.space, rate)),
            rate=none,
            free_bytes=flat(part.free_bytes(mode.max_batched_tokens)),
            utilisation=flat(load),
            prompt_cost_share=none,
            steepness=none,
        )
        return cls(mode=mode, where=where, bounds=bounds, objective=objective)

    def timed(self, part: Part, rows: Array, wanted: Array) -> OperatingPoints:
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

        ttft_s = pick(state.ttft_s)
        return replace(
            self.bounds.take(wanted),
            tpot_s=pick(state.tpot_s),
            ttft_s=ttft_s,
            alone_s=ttft_s,
            cost=pick(_joules(part, rate) if self.objective == "joules" else _usd(space, rate)),
            rate=pick(rate),
            utilisation=pick(state.prefill_utilisation),
            prompt_cost_share=pick(state.prefill_cost_share),
        )


def _rate(part: Part, tpot_s: Array, hold_s: FloatLike) -> Array:
    """Output tokens [tokens/s/chip]."""
    grid, batches = part.space.grid, part.space.batches[None, :]
    per_replica = batches * as_array(grid.attention_dp * grid.pp)[:, None]
    return output_rate(part.space.workload, per_replica, tpot_s, hold_s) / as_array(grid.chips_per_replica)[:, None]


def _usd(space: Space, rate: Array) -> Array:
    """All cost over output tokens [USD per million]."""
    return space.usd_per_chip_s[:, None] / rate * 1e6


def _joules(part: Part, rate: Array) -> Array:
    """Energy of an output token at the machine's plug: kernels of the mean step, idle power, the machine [J]."""
    space, cluster = part.space, part.space.system.cluster
    machine_w = wall_w(cluster, 0.0)
    plug = wall_w(cluster, 1.0) - machine_w  # watts at the plug for one of the chip
    work, grid, batches = space.workload, space.grid, space.batches[None, :]
    steps = (work.output_len - 1.0) / part.engine.speculation.tokens_per_step / work.output_len
    chips = (as_array(grid.chips_per_replica) / as_array(grid.attention_dp * grid.pp))[:, None]

    def kernels() -> Array:  # of a chip beyond idle, for each output token that it yields
        return step_joules(part.engine, work, batches) * steps * chips / batches

    with np.errstate(invalid="ignore", divide="ignore"):
        chip_w = drawn_w(cluster.chip, part.once("kernel joules", kernels) * rate, 1.0)
        return (machine_w + plug * chip_w) / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Engines with every slot always taken.

    Args:
        basis: of its numbers.
        slack: factors on the limits of time per output token and to first token, where nothing meets them.
        space: of the engines.
    """

    basis: ClassVar[Basis] = "closed_loop_estimate"
    slack: ClassVar[tuple[float, float]] = (1.0, 1.0)
    space: Space

    def between(self, engines: Array, per_rank: Array) -> OperatingPoints:
        """Engines from a number of sequences each to the next of the grid, in whole numbers, both (engines,)."""
        space, found = self.space, list[OperatingPoints]()
        for engine, start in zip(engines.tolist(), per_rank.tolist(), strict=True):
            at = int(start)
            label, mode, row = numbering(space).place(engine)
            above = space.batches[space.batches > at]
            stop = int(above[0]) if above.size else at + 1
            tries = np.unique(np.floor(np.linspace(at, stop - 1, num=min(stop - at, _WHOLE))))
            layout, types = space.grid.layout(row), space.system.precisions[label]
            points = engine_points(space, layout, types, space.modes[mode], tries)
            found.append(replace(points, engine=np.full(len(points), engine)))
        return OperatingPoints.join(found)

    def caveat(self, layout: Layout, mode: Mode, steepness: float) -> str:
        """Known error of a point: none is."""
        return ""


def engine_points(space: Space, layout: Layout, precision: Precision, mode: Mode, batches: Array) -> OperatingPoints:
    """One engine with every slot taken, at other batches than those of a space, (batches,); the engine's number is 0.

    Args:
        batches: sequences of a rank and micro-batch [sequences].
    """
    part = space.one(layout, precision, batches)
    block = Block.of(part, mode, np.zeros(1, dtype=np.int64), halves=False)
    return block.timed(part, np.zeros(1, dtype=np.int64), np.ones(block.where.size, dtype=bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Engines under random arrivals; fields as of `ClosedLoop`."""

    basis: ClassVar[Basis] = "open_loop_estimate"
    slack: ClassVar[tuple[float, float]] = (_TPOT_ERROR, _TTFT_ERROR)
    space: Space

    @property
    def numbers(self) -> Array:
        """Mean sequences of a rank at which engines are evaluated: the batches of the space, and below one."""
        return np.concatenate([FEW, self.space.batches])

    def grid(self, engines: Array) -> OperatingPoints:
        """Operating points of engines at every number of sequences."""
        return self.at(engines, np.broadcast_to(self.numbers, (engines.size, self.numbers.size)))

    def between(self, engines: Array, per_rank: Array) -> OperatingPoints:
        """Like `ClosedLoop.between`, in whole numbers where they are above one."""
        after = self.numbers[np.minimum(np.searchsorted(self.numbers, per_rank) + 1, self.numbers.size - 1)]
        found = per_rank[:, None] + (after - per_rank)[:, None] * np.linspace(0.0, 1.0, _STEPS)
        return self.at(engines, np.where(found > 1.0, np.floor(found), found))

    def caveat(self, layout: Layout, mode: Mode, steepness: float) -> str:
        """Known error of a point; empty if there is none."""
        if mode.alignment is not None:  # tests/golden/test_aligned_ranks.py
            return "prompts that are held for other ranks: times to within 25 to 35 %"
        return open_loop_caveat(layout, steepness, self.space.workload, float(mode.max_batched_tokens))

    def at(self, engines: Array, in_flight: Array) -> OperatingPoints:
        """Each engine at numbers of its own, in this order; those that do not exist are left out.

        Args:
            engines: shape (engines,).
            in_flight: sequences of a rank and micro-batch, on average, shape (engines, points) [sequences].
        """
        places = [numbering(self.space).place(engine) for engine in engines.tolist()]
        names = [name for name in OperatingPoints.__slots__ if name != "engine"]
        found = {name: np.empty(in_flight.shape, dtype=int if name == "kind" else float) for name in names}
        groups: dict[object, list[int]] = {}
        for index, (label, mode, _) in enumerate(places):
            each = self.space.modes[mode]
            groups.setdefault((label, each.admission, each.two_batch_overlap, each.alignment), []).append(index)
        for group in groups.values():
            part = self._group([places[index] for index in group], in_flight[group])
            for name in names:
                found[name][group] = part[name]
        exists = np.isfinite(found["cost"])
        engine = np.broadcast_to(engines[:, None], exists.shape)[exists]
        return OperatingPoints(engine=engine, **{name: values[exists] for name, values in found.items()})

    def _group(self, places: list[tuple[int, int, int]], n: Array) -> dict[str, Array]:
        """Columns of engines of one precision and kind of scheduler, each (engines, points)."""
        space, work, (label, first, _) = self.space, self.space.workload, places[0]
        precision, mode = space.system.precisions[label], space.modes[first]
        part = replace(space, grid=space.grid.take(np.array([row for _, _, row in places])), threads=1)
        budgets = np.array([[float(space.modes[one].max_batched_tokens)] for _, one, _ in places])
        few = np.full((len(places), 1), FEW[0])  # where no request waits
        engine = part.engine(precision, expert_law(space.system.model, part.grid, space.system.routing))
        whole = open_loop(engine, work, mode, np.concatenate([few, n], axis=1), max_batched_tokens=budgets)
        chips = as_array(part.grid.chips_per_replica)[:, None]
        replicas = np.maximum(space.system.cluster.num_chips // chips, 1.0)
        alone_s = whole.ttft_s[:, :1] + 1.5 * (whole.decode_s - whole.decode_s[:, :1])
        gathers = mode.is_batch_by_batch or mode.alignment is not None
        turned = whole if gathers else replace(whole, ttft_s=_in_turn(whole, alone_s, replicas))
        state = SteadyState(
            **{
                name: np.broadcast_to(getattr(turned, name), whole.tpot_s.shape)[:, 1:]
                for name in SteadyState.__slots__
            }
        )
        both = replace(part, batches=np.array([0.0, 1.0]))  # sequences on each rank and micro-batch
        free = _by_budget(budgets, lambda rows, budget: both.free_bytes(precision, budget)[rows])
        empty, used = free[:, 0], free[:, 0] - free[:, 1]  # used by one sequence
        fits = np.where(used > 0, np.floor(np.maximum(empty, 0.0) / np.where(used > 0, used, 1.0)), np.inf)
        fits = np.minimum(fits, np.floor(most_sequences(space.system.model)))
        slots = np.minimum(SLOTS_PER_SEQUENCE * np.ceil(n) + MORE_SLOTS, fits[:, None])
        slots = np.minimum(slots, budgets - 1.0)
        peers = as_array(part.grid.attention_dp * part.grid.pp)[:, None]
        stay_s = state.tpot_s * (work.output_len - 1.0) + state.prompt_s
        held = state.requests_per_s * stay_s
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            ttft_s = state.ttft_s + slot_wait_s(held, slots * peers, stay_s)
            most = self._most_requests_per_s(engine, mode, budgets, n)
            possible = state.requests_per_s <= _OVER * most  # beyond saturation there is no such state
            rate = np.minimum(state.requests_per_s, most) * work.output_len / chips
            if mode.two_batch_overlap:
                halves = (as_array(part.grid.attention_dp)[:, None] > 1) & (n >= 2.0)
                rate = np.where(halves, rate, np.nan)  # one sequence has no halves
            serves = np.isfinite(rate) & (slots >= 1.0) & (held < _FULL * slots * peers)
            serves &= _by_budget(budgets, lambda rows, budget: part.holds_longest(precision, budget)[rows])[:, None] > 0
            serves &= np.isfinite(ttft_s) & (state.prefill_utilisation < 1.0) & possible
            steepness = np.zeros(n.shape)
            if n.shape[1] > 1:
                slower, faster = (np.gradient(np.log(x), axis=1) for x in (state.tpot_s, state.requests_per_s))
                steepness = slower / faster
            return {
                "kind": np.broadcast_to(part.grid.kind[:, None], n.shape),
                "per_rank": n,
                "tpot_s": state.tpot_s,
                "ttft_s": np.where(serves, ttft_s, np.inf),
                "alone_s": np.broadcast_to(alone_s, whole.tpot_s.shape)[:, 1:],
                "cost": _usd(part, rate),
                "rate": rate,
                "free_bytes": empty[:, None] - used[:, None] * np.maximum(n, 1.0),
                "utilisation": np.where(serves, state.prefill_utilisation, 1.0),
                "prompt_cost_share": state.prefill_cost_share,
                "steepness": steepness,
            }

    def _most_requests_per_s(self, engine: Engine, mode: Mode, budgets: Array, n: Array) -> Array:
        """Rate of the engines with n sequences always decoding; 0 if prompts take too long for that."""

        def most(rows: Array, budget: float) -> Array:
            like = replace(mode, max_batched_tokens=int(budget))
            state = steady_state(engine.take(rows), self.space.workload, like, n[rows])
            return np.where(state.prefill_utilisation < 1.0, state.requests_per_s, 0.0)

        return _by_budget(budgets, most)


Estimate = ClosedLoop | OpenLoop


def _by_budget(budgets: Array, of: Callable[[Array, float], Array]) -> Array:
    """What a function of some rows and their token budget gives, for all rows.

    Args:
        budgets: of each row, (rows, 1) [tokens].
    """
    each = budgets[:, 0]
    groups = [np.flatnonzero(each == budget) for budget in np.unique(each)]
    found = [np.asarray(of(rows, float(each[rows[0]])), dtype=float) for rows in groups]
    return np.concatenate(found)[np.argsort(np.concatenate(groups))]


@np.errstate(invalid="ignore", over="ignore")  # beyond saturation
def _in_turn(state: SteadyState, alone_s: Array, replicas: Array) -> Array:
    """Time to first token if arrivals go to the replicas round-robin, which makes them nearly regular [s].

        ttft = alone + (ttft of random arrivals - alone) / k · exp(-2 (1 - rho) (1 - 1/k)² / (3 rho))

    Args:
        state: of one replica with random arrivals.
        alone_s: time to first token without waiting [s].
        replicas: k, (layouts, 1) [count].

    Sources: Krämer and Langenbach-Belz 1976, for round-robin arrivals with variance 1/k.
    """
    rho = np.clip(state.prefill_cost_share, 1e-9, 1.0)
    share = np.exp(-2.0 * (1.0 - rho) / (3.0 * rho) * (1.0 - 1.0 / replicas) ** 2) / replicas
    return np.where(state.ttft_s > alone_s, alone_s + (state.ttft_s - alone_s) * share, state.ttft_s)
