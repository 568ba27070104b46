"""Engines in an open loop: rate and latencies of the most promising ones of a search under random arrivals.

The search over all points assumes closed loops, in which every slot is always decoding. This bounds the cost of an
engine from below and shows which engines are worth more work. Those are evaluated here at mean numbers in flight, from
a fraction of a sequence per rank to the largest number that fits in memory, each at the request rate that keeps it
there (`rackline.serving.open_loop`), with the wait for a slot (`rackline.serving.slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from rackline.parallel import Layout, LayoutGrid, Precision, expert_law
from rackline.parallel.adapters import most_sequences
from rackline.passes.features import Array, as_array
from rackline.search.candidate import Candidate, billed_of, open_loop_caveat, placed_on, rate_and_costs
from rackline.search.evaluate import Space
from rackline.search.idle import BETWEEN, idle_chips, least_cost
from rackline.search.pareto import pareto_front
from rackline.search.points import Points
from rackline.search.rejected import Rejected, nearest_rejected
from rackline.serving.open_loop import open_loop
from rackline.serving.slots import slot_wait_s
from rackline.serving.steady import Engine, SteadyState, steady_state
from rackline.serving.workload import Mode
from rackline.system import Constraints

SLOTS_PER_SEQUENCE, MORE_SLOTS = 2, 8  # slots for bursts: twice the mean number in flight, and 8 more
FEW = (0.125, 0.25, 0.5)  # mean sequences on a rank, where even one is too many for a limit
# of the closed loop, and of a limit: the open loop's time per token is within 5 % of the simulator, its time to first
# token within 10 % on 54 deployments and loads (tests/golden/test_open_loop.py)
_OVER = 1.05
_FULL = 0.99  # of the slots: beyond it, the wait for a slot grows without bound
_STEPS = 17  # of the number in flight between two points of the grid
_HELPED = 12  # layouts that engines on the chips that they leave free may make the cheapest
_REFINED, _RANKED = 8, 10  # engines refined between the points, and shown with the best
_TPOT_ERROR, _TTFT_ERROR = 1.05, 1.1  # as _OVER; where nothing meets the limits, the simulation decides


@dataclass(frozen=True, slots=True)
class Pick:
    """One engine: precision, mode and layout.

    Args:
        precision: its types.
        mode: its scheduler.
        row: index of its layout.
    """

    precision: Precision
    mode: Mode
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a search over engines, by one kind of estimate.

    Args:
        refined: the cheapest that meet the limits, between the points of the grid, cheapest first.
        pareto: front of tokens/s/user against cost, fastest first.
        ranked: cheapest of each style that meets the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        fastest, soonest: candidates with the least time per output token and the least time to first token; None if
            nothing serves.
    """

    refined: Sequence[Candidate]
    pareto: Sequence[Candidate]
    ranked: Sequence[Candidate]
    rejected: Sequence[Rejected]
    fastest: Candidate | None
    soonest: Candidate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPoints:
    """Engines at mean numbers in flight; arrays (picks, points).

    Args:
        in_flight: sequences of a rank and micro-batch, on average [sequences].
        tpot_s, ttft_s: means; ttft_s is infinite where the state does not exist [s].
        ttft_alone_s: time to first token of a request without waiting [s].
        cost: all cost over output tokens [USD per million].
        rate: output tokens of a chip [tokens/s].
        free_bytes: on the fullest chip at this number [bytes].
        prompt_cost_share: share of the time that goes to prompts [1].
        utilisation: load of the prefill path [1].
        steepness: growth of the time per output token with the rate, d ln tpot / d ln rate.
        serves: whether it is a steady state that fits in memory.
    """

    in_flight: Array
    tpot_s: Array
    ttft_s: Array
    ttft_alone_s: Array
    cost: Array
    rate: Array
    free_bytes: Array
    prompt_cost_share: Array
    utilisation: Array
    steepness: Array
    serves: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEngines:
    """Engines of a space, to be evaluated in an open loop.

    Args:
        options: layouts of the space.
    """

    space: Space
    options: Sequence[Layout]

    def grid(self, picks: Sequence[Pick]) -> OpenPoints:
        """At the batches of the space, and below one."""
        batches = np.concatenate([FEW, self.space.batches])
        return self.at(picks, np.broadcast_to(batches, (len(picks), batches.size)))

    def between(self, picks: Sequence[Pick], low: Array, high: Array) -> OpenPoints:
        """Between two numbers of each, (picks,), in whole numbers where they are above one."""
        found = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, _STEPS)
        return self.at(picks, np.where(found > 1.0, np.floor(found), found))

    def at(self, picks: Sequence[Pick], in_flight: Array) -> OpenPoints:
        """Each engine at numbers of its own.

        Args:
            in_flight: ascending along each row, (picks, points) [sequences].
        """
        names = OpenPoints.__slots__
        found = {name: np.empty(in_flight.shape) for name in names}
        groups: dict[object, list[int]] = {}
        for index, pick in enumerate(picks):
            mode = pick.mode
            groups.setdefault((pick.precision.label, mode.admission, mode.two_batch_overlap), []).append(index)
        for group in groups.values():
            part = self._group([picks[index] for index in group], in_flight[group])
            for name in names:
                found[name][group] = getattr(part, name)
        return OpenPoints(**{**found, "serves": found["serves"] > 0})

    def _group(self, picks: Sequence[Pick], n: Array) -> OpenPoints:
        """Engines of one precision and kind of scheduler."""
        space, work, first = self.space, self.space.workload, picks[0]
        part = replace(space, grid=LayoutGrid.of([self.options[pick.row] for pick in picks]), threads=1)
        law = expert_law(space.model, part.grid, space.system.routing)
        budgets = np.array([[float(pick.mode.max_batched_tokens)] for pick in picks])
        few = np.full((len(picks), 1), FEW[0])  # where no request waits
        engine = part.engine(first.precision, law)
        whole = open_loop(
            engine,
            work,
            first.mode,
            np.concatenate([few, n], axis=1),
            max_batched_tokens=budgets,
        )
        chips = as_array(part.grid.chips_per_replica)[:, None]
        replicas = np.maximum(space.cluster.num_chips // chips, 1.0)
        alone_s = whole.ttft_s[:, :1] + 1.5 * (whole.decode_s - whole.decode_s[:, :1])
        in_turn_s = whole.ttft_s if first.mode.is_batch_by_batch else _in_turn(whole, alone_s, replicas)
        columns = {name: getattr(whole, name) for name in SteadyState.__slots__} | {"ttft_s": in_turn_s}
        state = SteadyState(
            **{name: np.broadcast_to(value, whole.tpot_s.shape)[:, 1:] for name, value in columns.items()}
        )
        empty, one = self._free_bytes(part, first.precision, budgets[:, 0])
        used = empty - one  # by one sequence
        fits = np.where(used > 0, np.floor(np.maximum(empty, 0.0) / np.where(used > 0, used, 1.0)), np.inf)
        fits = np.minimum(fits, np.floor(most_sequences(space.model)))
        slots = np.minimum(SLOTS_PER_SEQUENCE * np.ceil(n) + MORE_SLOTS, fits[:, None])
        slots = np.minimum(slots, budgets - 1.0)
        peers = as_array(part.grid.attention_dp * part.grid.pp)[:, None]
        stay_s = state.tpot_s * (work.output_len - 1.0) + state.prompt_s
        held = state.requests_per_s * stay_s
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            ttft_s = state.ttft_s + slot_wait_s(held, slots * peers, stay_s)
            most = self._most_requests_per_s(engine, first.mode, budgets[:, 0], n)
            possible = state.requests_per_s <= _OVER * most  # beyond saturation there is no such state
            rate = np.minimum(state.requests_per_s, most) * work.output_len / chips
            if first.mode.two_batch_overlap:
                halves = (as_array(part.grid.attention_dp)[:, None] > 1) & (n >= 2.0)
                rate = np.where(halves, rate, np.nan)  # one sequence has no halves
            serves = np.isfinite(rate) & (slots >= 1.0) & (held < _FULL * slots * peers)
            serves &= self._holds_longest(part, first.precision, budgets[:, 0])[:, None]
            serves &= np.isfinite(ttft_s) & (state.prefill_utilisation < 1.0) & possible
            steepness = _steepness(state.tpot_s, state.requests_per_s)
            cost = part.usd_per_chip_s[:, None] / rate * 1e6
        return OpenPoints(
            in_flight=n,
            tpot_s=state.tpot_s,
            ttft_s=np.where(serves, ttft_s, np.inf),
            ttft_alone_s=np.broadcast_to(alone_s, whole.tpot_s.shape)[:, 1:],
            cost=cost,
            rate=rate,
            free_bytes=empty[:, None] - used[:, None] * np.maximum(n, 1.0),
            prompt_cost_share=state.prefill_cost_share,
            utilisation=state.prefill_utilisation,
            steepness=steepness,
            serves=serves,
        )

    def _most_requests_per_s(self, engine: Engine, mode: Mode, budgets: Array, n: Array) -> Array:
        """Rate of the engines with n sequences always decoding; 0 if prompts take too long for that."""
        found = np.empty(n.shape)
        for budget in np.unique(budgets):
            mine = np.flatnonzero(budgets == budget)
            like = replace(mode, max_batched_tokens=int(budget))
            state = steady_state(engine.take(mine), self.space.workload, like, n[mine])
            found[mine] = np.where(state.prefill_utilisation < 1.0, state.requests_per_s, 0.0)
        return found

    def _free_bytes(self, part: Space, precision: Precision, budgets: Array) -> tuple[Array, Array]:
        """Bytes left on the fullest chip without a sequence and with one on each rank and micro-batch [bytes]."""
        both = replace(part, batches=np.array([0.0, 1.0]))
        found = np.empty((budgets.size, 2))
        for budget in np.unique(budgets):
            mine = budgets == budget
            found[mine] = both.free_bytes(precision, float(budget))[mine]
        return found[:, 0], found[:, 1]

    def _holds_longest(self, part: Space, precision: Precision, budgets: Array) -> Array:
        found = np.ones(budgets.size, dtype=bool)
        for budget in np.unique(budgets):
            mine = budgets == budget
            found[mine] = part.holds_longest(precision, float(budget))[mine]
        return found

    def candidate(self, picks: Sequence[Pick], points: OpenPoints, at: tuple[int, int]) -> Candidate:
        """One point with its numbers."""
        pick, work = picks[at[0]], self.space.workload
        layout, cluster = self.options[pick.row], self.space.cluster
        placed = placed_on(cluster, layout)
        n, rate, cost = (float(array[at]) for array in (points.in_flight, points.rate, points.cost))
        share = float(points.prompt_cost_share[at])
        batch = n * layout.attention_dp * layout.pp
        return Candidate(
            layout=placed,
            precision=pick.precision,
            mode=pick.mode,
            batch_size=int(batch) if batch.is_integer() else batch,
            sequences_per_rank=max(1, round(n)),
            tpot_s=float(points.tpot_s[at]),
            ttft_s=float(points.ttft_s[at]),
            **rate_and_costs(placed, work, rate, cost, share),
            prefill_utilisation=float(points.utilisation[at]),
            free_bytes=float(points.free_bytes[at]),
            billed_chips=billed_of(cluster, placed),
            basis="open_loop_estimate",
            caveat=open_loop_caveat(layout, float(points.steepness[at]), work, float(pick.mode.max_batched_tokens)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSearch:
    """The best of some engines under random arrivals.

    Args:
        picks: the engines.
        style: what makes a candidate another style, of which only the cheapest is shown.
        short: a candidate as text.
    """

    engines: OpenEngines
    picks: Sequence[Pick]
    limits: Constraints
    style: Callable[[Candidate], object]
    short: Callable[[Candidate], str]

    def answer(self) -> Found:
        """Evaluate the engines and pick."""
        points = self.engines.grid(self.picks)
        shape = points.cost.shape
        serves = points.serves
        whole = serves & (points.in_flight >= 1.0)
        front = pareto_front(np.where(whole, 1.0 / points.tpot_s, np.nan).ravel(), points.cost.ravel())
        kept, error = serves & self._meets(points, 1.0), 0.0
        if not np.any(kept):
            kept, error = serves & self._meets(points, 0.0), 1.0
        flat = np.flatnonzero(kept)
        order = flat[np.argsort(points.cost.ravel()[flat], kind="stable")]
        best: dict[int, int] = {}
        styles: dict[object, Candidate] = {}
        for index in order:
            best.setdefault(int(index) // shape[1], int(index) % shape[1])
        for row, column in best.items():
            found = self.engines.candidate(self.picks, points, (row, column))
            styles.setdefault(self.style(found), found)
            if len(styles) == _RANKED:
                break
        each = self._of_each_layout(best)
        sure = (row for row in each if not self.engines.candidate(self.picks, points, (row, best[row])).caveat)
        chosen = dict.fromkeys([*list(best)[:_REFINED], *each[:_REFINED], *self._helped(points, best)])
        chosen |= dict.fromkeys(islice(sure, 1))
        refined = self._refined(points, {row: best[row] for row in chosen}, error)
        cost = refined[0].usd_per_mtok_output_all_in if refined else np.inf
        return Found(
            refined=refined,
            pareto=[self._at(points, int(index)) for index in front],
            ranked=list(styles.values()),
            rejected=self._rejected(points, cost),
            fastest=self._least(points, points.tpot_s),
            soonest=self._least(points, points.ttft_s),
        )

    def _of_each_layout(self, best: dict[int, int]) -> list[int]:
        """The cheapest engine of each layout and precision, cheapest first."""
        found: dict[object, int] = {}
        for row in best:
            found.setdefault((self.picks[row].row, self.picks[row].precision.label), row)
        return list(found.values())

    def _helped(self, points: OpenPoints, best: dict[int, int]) -> list[int]:
        """Engines that others on the chips that they leave free may make the cheapest: one of each layout.

        Args:
            best: the cheapest point of each engine within the limits, cheapest first.
        """
        if not best:
            return []
        rows, columns = np.array(list(best)), np.array(list(best.values()))
        options, cluster = self.engines.options, self.engines.space.cluster
        sizes = np.array([options[self.picks[row].row].chips_per_replica for row in best])
        used, idle = idle_chips(cluster, sizes)
        cost, rate = points.cost[rows, columns], points.rate[rows, columns]
        least = least_cost(cost, rate, used, idle, float(rate.max()))
        found: dict[object, int] = {}
        for place in np.argsort(least, kind="stable"):
            if idle[place] and least[place] < BETWEEN * cost[0]:
                pick = self.picks[int(rows[place])]
                found.setdefault((pick.row, pick.precision.label), int(rows[place]))
        return list(found.values())[:_HELPED]

    def _rejected(self, points: OpenPoints, best_cost: float) -> list[Rejected]:
        """The nearest candidates that break a latency limit."""
        index = np.flatnonzero(np.isfinite(points.cost))
        flat = Points(
            index=index,
            tpot_s=points.tpot_s.ravel()[index],
            ttft_s=points.ttft_s.ravel()[index],
            cost=points.cost.ravel()[index],
            rate=points.rate.ravel()[index],
            free_bytes=points.free_bytes.ravel()[index],
            utilisation=np.where(points.serves, points.utilisation, 1.0).ravel()[index],
            prefill_cost_share=points.prompt_cost_share.ravel()[index],
        )
        return nearest_rejected(
            flat,
            self.limits,
            best_cost=best_cost,
            describe=lambda at: self._at(points, int(index[at])),
            short=lambda at: self.short(self._at(points, int(index[at]))),
            names=("tpot", "ttft"),
        )

    def _at(self, points: OpenPoints, index: int) -> Candidate:
        return self.engines.candidate(self.picks, points, divmod(index, points.cost.shape[1]))

    def _least(self, points: OpenPoints, values: Array) -> Candidate | None:
        if not np.any(points.serves):
            return None
        return self._at(points, int(np.argmin(np.where(points.serves, values, np.inf))))

    def _meets(self, points: OpenPoints, strict: float) -> Array:
        """Which meet the limits; within the error of the estimate where `strict` is 0."""
        found = np.ones(points.cost.shape, dtype=bool)
        if self.limits.tpot_s is not None:
            found &= points.tpot_s <= self.limits.tpot_s * (1.0 if strict else _TPOT_ERROR)
        if self.limits.ttft_s is not None:
            # waits are nearly exponential: the wait at a percentile of the requests
            place = self.limits.ttft_percentile or 0.0
            with np.errstate(invalid="ignore"):  # both times are infinite where a point cannot serve
                waits = np.where(points.serves, np.maximum(points.ttft_s - points.ttft_alone_s, 0.0), 0.0)
            ttft_s = points.ttft_s + waits * max(-np.log1p(-place / 100.0) - 1.0, 0.0)
            found &= ttft_s <= self.limits.ttft_s * (1.0 if strict else _TTFT_ERROR)
        return found

    def _refined(self, points: OpenPoints, best: dict[int, int], error: float) -> list[Candidate]:
        """The cheapest of each engine between its best point and the next."""
        if not best:
            return []
        rows, columns = np.array(list(best)), np.array(list(best.values()))
        after = np.minimum(columns + 1, points.in_flight.shape[1] - 1)
        picks = [self.picks[row] for row in best]
        finer = self.engines.between(picks, points.in_flight[rows, columns], points.in_flight[rows, after])
        good = finer.serves & self._meets(finer, 1.0 - error)
        cost = np.where(good, finer.cost, np.inf)
        found = [
            self.engines.candidate(picks, finer, (place, int(np.argmin(cost[place]))))
            if np.any(good[place])
            else self.engines.candidate(self.picks, points, (int(rows[place]), int(columns[place])))
            for place in range(len(picks))
        ]
        return sorted(found, key=lambda one: one.usd_per_mtok_output_all_in)


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


def _steepness(tpot_s: Array, requests_per_s: Array) -> Array:
    if tpot_s.shape[1] < 2:
        return np.zeros(tpot_s.shape)
    return np.gradient(np.log(tpot_s), axis=1) / np.gradient(np.log(requests_per_s), axis=1)
