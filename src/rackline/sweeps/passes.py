"""Chunks of passes as arrays: tables × coefficients × batches, the engine of `explain`, never one point at a time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, assert_never, cast

import numpy as np
from numpy.typing import NDArray

from rackline.api.explain import ExplainQuestion
from rackline.api.question import written_defaults
from rackline.arch import AnyModel
from rackline.errors import InputError, RacklineError, nearest_name
from rackline.hardware import Cluster
from rackline.hardware.renting import paid_share
from rackline.parallel import Layout, LayoutGrid, enumerate_layouts, parse_layout
from rackline.parallel.layout import problem
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch, PassTable
from rackline.passes.features import Array, as_array
from rackline.plain import plain
from rackline.search.launch_rules import Asked, rules_of
from rackline.serving.steady import Engine
from rackline.sweeps.file import SweepFile
from rackline.sweeps.space import POINTS, Lane, Level, Part, Rate, resolve
from rackline.system import System

Rule = Literal["smallest", "cheapest", "fastest", "all"]
RULES: tuple[Rule, ...] = ("smallest", "cheapest", "fastest", "all")
PRICE = "usd_per_chip_hour"
RESULTS: dict[str, str] = {
    "server_s": "s",
    "seconds": "s",
    "output_tokens_per_s_per_chip": "token/s",
    "input_tokens_per_s_per_chip": "token/s",
    "usd_per_mtok_output": "USD",
    "usd_per_mtok_input": "USD",
    "max_sequences": "sequences",
    "chips_per_replica": "count",
}
"""Columns of results, each with its unit; names as in the answers of `explain` and `plan`."""
USUAL = ("server_s", "output_tokens_per_s_per_chip", "usd_per_mtok_output", "max_sequences")
CHOSEN = ("layout", "chips_per_replica")
"""Columns of the layout, where a rule chooses it."""
TOO_LARGE = "memory: the batch does not fit"
NO_ROOM = "memory: the weights do not fit"
_TILE = 2**16  # lanes × points that are worked on at a time: their features fit the cache
_LANES = 2**11  # rows that are worked on at a time: their coefficients fit the cache
_MTOK_PER_S_HOUR = 1e6 / 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Passes of one table: rows are lanes, or lanes × layouts where all layouts are wanted.

    Args:
        results: column → (rows, points).
        lane: of each row, (rows,).
        layouts: labels, of which `layout` says which, (rows, points) or (rows, 1); empty where layouts were given.
        reasons: texts, of which `reason` says which, (rows, points).
        usd_per_chip_hour: of the cluster; NaN where it has none [USD/h].
    """

    results: Mapping[str, Array]
    lane: NDArray[np.int64]
    layouts: tuple[str, ...]
    layout: NDArray[np.int64]
    reasons: tuple[str, ...]
    reason: NDArray[np.int64]
    usd_per_chip_hour: float


def results_of(file: SweepFile) -> tuple[str, ...]:
    """Columns of results of a sweep over passes.

    Raises:
        InputError: an unknown column, with the nearest one.
    """
    wanted = file.output.results or USUAL
    for name in wanted:
        if name not in RESULTS:
            allowed = ", ".join(RESULTS)
            raise InputError(what="output results", given=name, allowed=allowed, nearest=nearest_name(name, RESULTS))
    return wanted


def rule_of(file: SweepFile) -> Rule | None:
    """How layouts are chosen; None where they are given."""
    if any(one.name == "layout" for one in file.axes):
        return None
    text = str(file.fixed.get("layout", "smallest"))
    return next((one for one in RULES if one == text), None)


class PassSweep:
    """Evaluates passes of one sweep, a table at a time; the last tables are kept.

    Args:
        file: the sweep.
        levels: as `levels_of` found them.
    """

    def __init__(self, file: SweepFile, levels: Mapping[str, tuple[Level, Rate | None]]) -> None:
        self.file = file
        self.rule: Rule | None = rule_of(file)
        self.results = results_of(file)
        self.rates = {name: rate for name, (_, rate) in levels.items() if rate is not None and rate.of != "price"}
        self._kept = lru_cache(maxsize=4)(self._prepare)
        self._last: tuple[str, ...] = ()  # layouts of the table that was evaluated last

    def layouts(self, table: tuple[tuple[str, Any], ...]) -> int:
        """Layouts that a rule chooses among, on one table; 1 where there is nothing to choose [count]."""
        if self.rule is None:
            return 1
        try:
            return max(len(self._kept(table, ()).options), 1)
        except RacklineError:
            return 1

    def evaluate(self, table: tuple[tuple[str, Any], ...], lanes: Part, points: Part) -> Grid:
        """Passes of one table, all lanes × all points.

        Args:
            table: name → value of what makes the table, as pairs.
            lanes, points: of the other levels.

        Raises:
            RacklineError: the table cannot be made; the reason of all its points.
        """
        texts = self._texts(lanes)
        self._last = tuple(dict.fromkeys(texts))
        prepared = self._kept(table, self._last)
        options = len(prepared.options) if self.rule else 1
        deep = max(1, _LANES // options)
        parts: list[Grid] = []
        for first in range(0, lanes.num, deep):
            last = min(first + deep, lanes.num)
            evaluator = _Evaluator(
                sweep=self,
                prepared=prepared,
                table=dict(table),
                lanes=_slice(lanes, first, last),
                texts=texts[first:last],
            )
            width = max(1, _TILE // ((last - first) * options))
            tiles = [
                evaluator.tile(_slice(points, start, min(start + width, points.num)))
                for start in range(0, points.num, width)
            ]
            found = _side_by_side(tiles)
            parts.append(replace(found, lane=found.lane + first))
        return _below_each_other(parts)

    def calibration(self, table: tuple[tuple[str, Any], ...]) -> tuple[str, str]:
        """Name of a table's calibration, and a hash of its numbers."""
        numbers = self._kept(table, self._last).lane.system.calibration
        return numbers.name, hashlib.sha256(json.dumps(plain(numbers), sort_keys=True).encode()).hexdigest()[:16]

    def _texts(self, lanes: Part) -> tuple[str, ...]:
        """The layout of each lane as a text; none where a rule chooses."""
        if self.rule is not None:
            return ()
        if "layout" in lanes.columns:
            values, index = lanes.columns["layout"]
            return tuple(str(values[one]) for one in index)
        return (str(self.file.fixed["layout"]),) * lanes.num

    def _prepare(self, table: tuple[tuple[str, Any], ...], texts: tuple[str, ...]) -> _Prepared:
        lane = resolve(self.file, dict(table))
        model, cluster = lane.system.model, lane.system.cluster
        if self.rule is None:
            options, reasons = _given(texts, model, cluster)
        else:
            options, reasons = _possible(lane.system, self.rule), dict[str, str]()
            if not options:
                raise InputError(what="layout", given=self.rule, allowed=f"a layout of {model.name} on {cluster.name}")
        grid = LayoutGrid.of(list(options.values()) or [Layout()])
        return _Prepared(
            lane=lane,
            options=tuple(options),
            reasons=reasons,
            grid=grid,
            table=lane.system.table(grid),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A table over layouts, before rates are put in.

    Args:
        options: the layouts as texts.
        reasons: why others are impossible, by text.
    """

    lane: Lane
    options: tuple[str, ...]
    reasons: Mapping[str, str]
    grid: LayoutGrid
    table: PassTable


def _given(texts: Iterable[str], model: AnyModel, cluster: Cluster) -> tuple[dict[str, Layout], dict[str, str]]:
    options: dict[str, Layout] = {}
    reasons: dict[str, str] = {}
    for text in texts:
        try:
            layout = parse_layout(text, model)
        except RacklineError as error:
            reasons[text] = str(error)
            continue
        why = problem(layout, model, cluster.num_chips)
        if why is None:
            options[text] = layout
        else:
            reasons[text] = f"layout: {why}"
    return options, reasons


def _possible(system: System, rule: Rule) -> dict[str, Layout]:
    """Layouts that a rule chooses among; but for the smallest, those that the serving engine launches."""
    found = enumerate_layouts(system.model, system.cluster.num_chips)
    rules = None if rule == "smallest" else rules_of(system.calibration)
    if rules is not None and found:
        grid, kept = LayoutGrid.of(found), np.zeros(len(found), dtype=bool)
        for role in ("both", "decode"):
            asked = Asked(
                model=system.model,
                cluster=system.cluster,
                sharding=grid,
                precision=system.precision,
                mode=system.stack.scheduler.mode(),
                role=role,
            )
            kept |= np.broadcast_to(rules.launches(asked), kept.shape)
        if kept.any():
            found = [found[row] for row in np.flatnonzero(kept)]
    return {layout.label(): layout for layout in found}


class _Evaluator:
    """One table with the rates of its lanes, for many tiles of points."""

    def __init__(
        self,
        *,
        sweep: PassSweep,
        prepared: _Prepared,
        table: Mapping[str, Any],
        lanes: Part,
        texts: tuple[str, ...],
    ) -> None:
        self.sweep, self.prepared, self.table, self.lanes = sweep, prepared, table, lanes
        self.rule: Rule | None = sweep.rule
        count = len(prepared.options)
        if self.rule is None:
            place = {text: at for at, text in enumerate(prepared.options)}
            self.chosen = np.array([place.get(text, 0) for text in texts])
            self.lane_of = np.arange(lanes.num)
            self.refused = [prepared.reasons.get(text, "") for text in texts]
        else:  # each lane with each layout, the layout changing first
            self.chosen = np.tile(np.arange(count), lanes.num)
            self.lane_of = np.repeat(np.arange(lanes.num), count)
            self.refused = [""] * lanes.num
        self.grid = prepared.grid.take(self.chosen)
        self.engine, self.times = self._engine()
        self.chips = as_array(self.grid.chips_per_replica)
        self.paid = self.chips * paid_share(self.cluster, self.grid.chips_per_replica)

    @property
    def cluster(self) -> Cluster:
        """The cluster with the numbers of the table, not of the lanes."""
        return self.prepared.lane.system.cluster

    def _engine(self) -> tuple[Engine, Any]:
        lane, cluster = self.prepared.lane, self.cluster
        for name, rate in self.sweep.rates.items():
            if name in self.lanes.columns:
                cluster = rate.put(cluster, self.lanes.values(name)[self.lane_of])
        table = self.prepared.table
        if len(self.chosen) != len(self.prepared.grid) or np.any(self.chosen != np.arange(len(self.chosen))):
            table = replace(table.take(self.chosen), chip=cluster.chip, cluster=cluster)
        elif cluster is not self.cluster:
            table = replace(table, chip=cluster.chip, cluster=cluster)
        return lane.system.engines(table, self.grid), table.time_table(lane.question.policy)

    def _of(self, name: str, points: Part) -> Array:
        """A quantity of the batch, (rows, 1) or (1, points) or (1, 1)."""
        if name in points.columns:
            return points.values(name)[None, :]
        if name in self.lanes.columns:
            return self.lanes.values(name)[self.lane_of][:, None]
        value = self.table.get(name, self.sweep.file.fixed.get(name))
        read = ExplainQuestion.__dataclass_fields__[name].metadata["option"]
        return np.array([[0.0 if value is None else float(read.read(value, name))]])

    def tile(self, points: Part) -> Grid:
        """All lanes × some points."""
        batch, context, prefill = (self._of(name, points) for name in POINTS)
        grid, engine = self.grid, self.engine
        adp, pp = as_array(grid.attention_dp)[:, None], as_array(grid.pp)[:, None]
        work = Batch(
            decode_sequences=np.ceil(batch / (adp * pp)),
            context_len=context,
            prefill_sequences=np.where(prefill > 0, 1.0, 0.0),
            chunk_tokens=prefill,
            group_tokens=batch / pp + prefill * adp,
        )
        shape = (len(self.chosen), points.num)
        found: dict[str, Array] = {"server_s": np.broadcast_to(engine.pass_s(work, self.times), shape)}
        if "seconds" in self.sweep.results or self.rule == "smallest":
            found["seconds"] = np.broadcast_to(self.times.seconds(engine.table.features(work)), shape)
        most = self._most(np.maximum(context, prefill), prefill, points)
        found["max_sequences"] = np.broadcast_to(most * adp * pp, shape)
        fits = found["max_sequences"] >= np.maximum(batch, 1.0)
        empty = np.broadcast_to((batch <= 0) & (prefill <= 0), shape)
        row = np.arange(shape[0])
        layout = self.chosen[:, None]
        if self.rule not in (None, "all"):
            rows = self._best(found, np.broadcast_to(fits, shape))  # (lanes, points) of rows
            found = {name: np.take_along_axis(value, rows, axis=0) for name, value in found.items()}
            fits, empty = np.take_along_axis(np.broadcast_to(fits, shape), rows, axis=0), empty[: len(rows)]
            row, layout = rows, self.chosen[rows]
        return self._grid(found, fits, empty, row, layout, batch, prefill, points.num)

    def _most(self, longest: Array, prefill: Array, points: Part) -> Array:
        """Sequences that each rank and micro-batch holds, (rows, points or 1): once for each distinct length."""
        system = self.prepared.lane.system
        grid = _column(self.grid)

        tokens = np.maximum(prefill, float(system.stack.scheduler.max_batched_tokens))
        server = system.server(float(tokens.max()))
        if np.any(tokens != tokens.max()):
            server = replace(server, batched_tokens=tokens)

        def fitting(context_len: Array) -> Array:
            return fitting_sequences(system.model, grid, system.precision, self.cluster.chip, server, context_len)

        distinct, index = points.columns.get("context", ((), np.zeros(0, dtype=np.int64)))
        if prefill.size == 1 and 0 < len(distinct) < points.num:
            return fitting(np.maximum(as_array(np.asarray(distinct)), prefill))[:, index]
        return fitting(longest)

    def _best(self, found: Mapping[str, Array], fits: Array) -> NDArray[np.int64]:
        """The row of the layout that the rule takes, (lanes, points); the roomiest where none holds the batch."""
        options = len(self.prepared.options)
        lanes = self.lanes.num

        def cut(value: Array) -> Array:
            return value.reshape(lanes, options, -1)

        holds = cut(fits)
        chips = np.broadcast_to(self.chips.reshape(lanes, options, 1), holds.shape)
        match self.rule:
            case "smallest":
                fewest = np.min(np.where(holds, chips, np.inf), axis=1, keepdims=True)
                score = np.where(holds & (chips == fewest), cut(found["seconds"]), np.inf)
            case "cheapest":
                score = np.where(holds, cut(found["server_s"]) * self.paid.reshape(lanes, options, 1), np.inf)
            case "fastest":
                score = np.where(holds, cut(found["server_s"]), np.inf)
            case "all" | None:
                raise ValueError("all layouts are rows of their own")
            case _:
                assert_never(self.rule)
        best: NDArray[np.int64] = np.argmin(score, axis=1)
        best = np.where(holds.any(axis=1), best, np.argmax(cut(found["max_sequences"]), axis=1))
        return best + np.arange(lanes)[:, None] * options

    def _grid(
        self,
        found: dict[str, Array],
        fits: Array,
        empty: Array,
        row: NDArray[np.int64],
        layout: NDArray[np.int64],
        batch: Array,
        prefill: Array,
        num: int,
    ) -> Grid:
        """The columns that are wanted, with reasons where there is no result."""
        rows = row if row.ndim == 2 else row[:, None]
        chips, paid = self.chips[rows], self.paid[rows]
        ranks = as_array(self.grid.attention_dp)[rows] * as_array(self.grid.pp)[rows]
        if batch.shape[0] > 1:
            batch = batch[rows[:, 0]]
        if prefill.shape[0] > 1:
            prefill = prefill[rows[:, 0]]
        shape = found["server_s"].shape
        seconds = found["server_s"]
        with np.errstate(divide="ignore", invalid="ignore"):
            written, read = batch / seconds, prefill * ranks / seconds
            made: dict[str, Array] = {
                **found,
                "chips_per_replica": np.broadcast_to(chips, shape),
                "output_tokens_per_s_per_chip": written / chips,
                "input_tokens_per_s_per_chip": read / chips,
                # per USD of a chip-hour; prices come after
                "usd_per_mtok_output": np.where(batch > 0, paid * _MTOK_PER_S_HOUR / written, np.nan),
                "usd_per_mtok_input": np.where((batch <= 0) & (prefill > 0), paid * _MTOK_PER_S_HOUR / read, np.nan),
            }
        lane = self.lane_of[row if row.ndim == 1 else row[:, 0]]
        texts = ["", TOO_LARGE, NO_ROOM, "batch: 0 without prefill tokens"]
        reason = np.where(fits, 0, np.where(found["max_sequences"] < 1, 2, 1))
        reason = np.where(empty, 3, np.broadcast_to(reason, shape))
        invalid = np.broadcast_to(empty, shape)
        for number, why in enumerate(self.refused):
            if why:
                if why not in texts:
                    texts.append(why)
                reason[lane == number] = texts.index(why)
                invalid = invalid | (lane == number)[:, None]
        if np.any(invalid):
            made = {name: np.where(invalid, np.nan, value) for name, value in made.items()}
        wanted = {*self.sweep.results, *(CHOSEN[1:] if self.rule else ())}
        price = self.cluster.usd_per_chip_hour
        return Grid(
            results={name: np.broadcast_to(made[name], shape) for name in RESULTS if name in wanted},
            lane=lane,
            layouts=self.prepared.options if self.rule else (),
            layout=np.broadcast_to(layout, (shape[0], num if layout.shape[1] > 1 else 1)),
            reasons=tuple(texts),
            reason=reason,
            usd_per_chip_hour=float("nan") if price is None else price,
        )


def _column(grid: LayoutGrid) -> LayoutGrid:
    """Layouts along the first of two axes, so that they broadcast against points."""
    return LayoutGrid(**{one.name: getattr(grid, one.name)[:, None] for one in fields(grid)})


def _slice(part: Part, first: int, last: int) -> Part:
    return Part(num=last - first, columns={name: (v, index[first:last]) for name, (v, index) in part.columns.items()})


def _side_by_side(tiles: Sequence[Grid]) -> Grid:
    """The points of one after those of the other; all have the same rows."""
    first = tiles[0]
    if len(tiles) == 1:
        return first

    def wide(one: Grid) -> NDArray[np.int64]:
        return np.broadcast_to(one.layout, one.reason.shape)

    return replace(
        first,
        results={name: np.concatenate([one.results[name] for one in tiles], axis=1) for name in first.results},
        layout=np.concatenate([wide(one) for one in tiles], axis=1) if first.layout.shape[1] > 1 else first.layout,
        reason=np.concatenate([one.reason for one in tiles], axis=1),
    )


def _below_each_other(parts: Sequence[Grid]) -> Grid:
    """The rows of one after those of the other; all have the same points."""
    first = parts[0]
    if len(parts) == 1:
        return first
    texts = list(dict.fromkeys(text for one in parts for text in one.reasons))
    return replace(
        first,
        results={name: np.concatenate([one.results[name] for one in parts]) for name in first.results},
        lane=np.concatenate([one.lane for one in parts]),
        layout=np.concatenate([one.layout for one in parts]),
        reasons=tuple(texts),
        reason=np.concatenate([np.array([texts.index(t) for t in one.reasons])[one.reason] for one in parts]),
    )


def check_options(file: SweepFile) -> None:
    """Refuse a layout that no rule or text can be, before anything is run.

    Raises:
        InputError: with the rules.
    """
    known = written_defaults(ExplainQuestion)
    texts: list[Any] = [file.fixed["layout"]] if "layout" in file.fixed else []
    texts += [one for axis in file.axes if axis.name == "layout" for one in cast("Sequence[Any]", axis.values)]
    for text in texts:
        if "=" not in str(text) and text not in RULES and "layout" in known:
            raise InputError(
                what="layout",
                given=text,
                allowed=f"parts such as tp=8,ep=8, or a rule: {', '.join(RULES)}",
                nearest=nearest_name(str(text), RULES),
            )
        if text in RULES and text not in (file.fixed.get("layout"),):
            raise InputError(what="layout", given=text, allowed="a rule by itself, or a list of layouts")
        if re.search(r"\bdp=|\bcp=", str(text).replace("attention_dp", "")):
            raise InputError(what="layout", given=text, allowed="degrees of one replica, without dp and cp")
