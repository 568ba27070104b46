"""The best point of a sweep without looking at all of them: differential evolution, then one quantity after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rackline.api.answer import Watch
from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.sweeps.chunk import Job, job_of, rows_of
from rackline.sweeps.expression import Draws
from rackline.sweeps.file import Sense, read_file
from rackline.sweeps.space import DRAW, LEVELS, Level, Part

USUAL = 100_000  # most points evaluated where they are arithmetic
USUAL_QUESTIONS = 200  # where each is a question of its own
_SHARE = 0.5  # of them by differential evolution, the rest one quantity after another
_POPULATION = 12  # points for each quantity
_LEAST, _MOST_AT_ONCE = 24, 4096
_STARTS = 6  # points that are improved one quantity after another
_STEPS = 65  # values of a continuous quantity tried each time
_BROKEN = 1e30  # what breaks one constraint is worse than anything that breaks none

How = Literal["all points", "search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best point of the first objective.

    Args:
        objective: its column.
        sense: whether less or more is better.
        best: the row, as column → value; None where no point is feasible.
        value: of the objective there.
        evaluations: points evaluated [count].
        points: of the space; 0 where quantities are continuous [count].
        how: by looking at all points, or by searching.
    """

    objective: str
    sense: Sense
    best: Mapping[str, Any] | None
    value: float | None
    evaluations: int
    points: int
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """One quantity of the search.

    Args:
        name: its column.
        level: what it changes.
        values: that it has; a distribution for any number between its ends.
    """

    name: str
    level: Level
    values: Sequence[Any] | Draws

    @property
    def size(self) -> int:
        """Values; 0 for any number [count]."""
        return 0 if isinstance(self.values, Draws) else len(self.values)

    def of(self, places: Array) -> list[Any]:
        """The values at numbers of a list, or at quantiles."""
        if isinstance(self.values, Draws):
            return self.values.at(places).tolist()
        return [self.values[int(place)] for place in places]


class _Looked:
    """The points evaluated, and the best of them."""

    def __init__(self, job: Job, objective: str, sense: Sense, most: int, watch: Any) -> None:
        self.job, self.objective, self.most, self.tell = job, objective, most, watch
        self.sign = 1.0 if sense == "min" else -1.0
        self.dimensions = [
            _Dimension(name=one.name, level=job.levels[one.name][0], values=one.values) for one in job.file.axes
        ]
        self.scores: dict[tuple[float, ...], float] = {}
        self.best: tuple[float, tuple[float, ...]] = (np.inf, ())

    @property
    def left(self) -> int:
        """Points that may still be evaluated [count]."""
        return self.most - len(self.scores)

    def look(self, places: Array) -> Array:
        """Scores of points, (points,); small is good. What is known stays.

        Args:
            places: numbers of values, or quantiles, (points, quantities).
        """
        keys = [tuple(row) for row in places.tolist()]
        new = [key for key in dict.fromkeys(keys) if key not in self.scores][: max(self.left, 0)]
        for first in range(0, len(new), _MOST_AT_ONCE):
            some = new[first : first + _MOST_AT_ONCE]
            for key, score in zip(some, self._scores(np.array(some)), strict=True):
                self.scores[key] = score
                if (score, key) < self.best:
                    self.best = (score, key)
            self.tell(len(self.scores), self.most, 0)
        return np.array([self.scores.get(key, np.inf) for key in keys])

    def _scores(self, places: Array) -> list[float]:
        frame = self.rows(places)
        values = self.sign * frame[self.objective].cast(float).fill_null(np.inf).fill_nan(np.inf).to_numpy()
        broken = (~frame["feasible"].to_numpy()).astype(float)
        for name in self.job.file.constraints:
            broken += ~frame[name].to_numpy()
        return np.where(broken > 0, _BROKEN * broken, np.minimum(values, _BROKEN / 2)).tolist()

    def rows(self, places: Array) -> pl.DataFrame:
        """The rows of points in their order: those of one table are computed together."""
        values = [one.of(places[:, place]) for place, one in enumerate(self.dimensions)]
        tables: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        first: list[int] = [place for place, one in enumerate(self.dimensions) if one.level == LEVELS[0]]
        for row in range(len(places)):
            tables[tuple(values[place][row] for place in first)].append(row)
        order: list[int] = []
        parts: list[pl.DataFrame] = []
        for table, mine in tables.items():
            order += mine
            named = {self.dimensions[place].name: value for place, value in zip(first, table, strict=True)}
            index = np.arange(len(mine))
            columns: dict[str, tuple[Sequence[Any] | Array, NDArray[np.int64]]] = {}
            if self.job.file.drawn:
                columns[DRAW] = ([0], np.zeros(len(mine), dtype=np.int64))
            for place, one in enumerate(self.dimensions):
                if place not in first:
                    columns[one.name] = ([values[place][row] for row in mine], index)
            parts.append(rows_of(self.job, named, Part(num=len(mine), columns=columns)))
        return pl.concat(parts)[np.argsort(order).tolist()]


def optimum(given: str | Path | Mapping[str, Any], evaluations: int | None, watch: Watch) -> Optimum:
    """The best feasible point of the first objective of a sweep.

    Spaces with no more points than that are evaluated whole. In others differential evolution (Storn and
    Price, J. Global Optim. 11, 341, 1997) looks for good points, and each of the best is improved one quantity after
    another until none helps: exact for one quantity at a time, no proof for all of them.

    Args:
        evaluations: most points to evaluate [count].

    Raises:
        InputError: no objective, or all layouts instead of one.
    """
    job = job_of(read_file(given))
    file = job.file
    if not file.objectives:
        raise InputError(what="objectives", given="nothing", allowed="an objective to search for")
    if file.is_compiled and file.fixed.get("layout") == "all":
        raise InputError(
            what="layout", given="all", allowed="smallest, cheapest, fastest or given ones", nearest="cheapest"
        )
    objective, sense = next(iter(file.objectives.items()))
    most = evaluations or (USUAL if file.is_compiled else USUAL_QUESTIONS)
    with watch.computing("searching") as tell:
        looked = _Looked(job, objective, sense, most, tell)
        sizes = [one.size for one in looked.dimensions]
        points = int(np.prod([float(size) for size in sizes])) if all(sizes) else 0
        if 0 < points <= most:
            grid = np.stack(np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij"), axis=-1)
            looked.look(grid.reshape(points, len(sizes)).astype(float))
        else:
            _evolve(looked, int(most * _SHARE))
            _improve(looked)
    score, key = looked.best
    row = looked.rows(np.array([key])).row(0, named=True) if (score < _BROKEN / 2) else None
    return Optimum(
        objective=objective,
        sense=sense,
        best=None if row is None else {name: _plain(value) for name, value in row.items()},
        value=None if row is None else float(row[objective]),
        evaluations=len(looked.scores),
        points=points,
        how="all points" if 0 < points <= most else "search",
    )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _evolve(looked: _Looked, budget: int) -> None:
    """Differential evolution over numbers of values and over quantiles, a whole generation at a time."""
    from scipy.optimize import differential_evolution  # pyright: ignore[reportUnknownVariableType]

    sizes = [one.size for one in looked.dimensions]
    bounds = [(0.0, size - 1.0) if size else (1e-6, 1.0 - 1e-6) for size in sizes]
    free = [place for place, (low, high) in enumerate(bounds) if high > low]
    start = np.array([low for low, _ in bounds])

    def score(x: Array) -> Array:
        places = np.tile(start, (x.shape[1], 1))
        places[:, free] = x.T
        whole = [place for place in free if sizes[place]]
        places[:, whole] = np.rint(places[:, whole])
        return looked.look(places)

    population = min(max(_POPULATION * len(free), _LEAST), max(budget // 2, 5))
    differential_evolution(
        score,
        [bounds[place] for place in free],
        integrality=[bool(sizes[place]) for place in free],
        popsize=max(1, population // len(free)),
        maxiter=max(1, budget // population - 1),
        rng=np.random.default_rng(looked.job.file.sample.seed),
        vectorized=True,
        updating="deferred",
        polish=False,
        tol=0.0,
        init="sobol",
    )


def _improve(looked: _Looked) -> None:
    """Take the best value of one quantity after another, from several of the best points, until none helps."""
    from scipy.stats import qmc

    starts = sorted(looked.scores, key=lambda key: looked.scores[key])[: 20 * _STARTS]
    chosen: list[tuple[float, ...]] = []
    for key in starts:  # not all from one place
        if all(sum(a != b for a, b in zip(key, other, strict=True)) > 1 for other in chosen):
            chosen.append(key)
    rng = np.random.default_rng(looked.job.file.sample.seed + 1)
    for row in qmc.LatinHypercube(len(looked.dimensions), rng=rng).random(_STARTS).tolist():
        chosen.append(
            tuple(
                float(min(int(share * one.size), one.size - 1)) if one.size else share
                for share, one in zip(row, looked.dimensions, strict=True)
            )
        )
    for key in (*chosen[:_STARTS], *chosen[-_STARTS:]):
        _descend(looked, np.array(key))


def _descend(looked: _Looked, place: Array) -> None:
    width = 0.5
    best = float(looked.look(place[None, :])[0])
    while looked.left > 0:
        before = best
        for number, one in enumerate(looked.dimensions):
            tried: Array
            if one.size:
                tried = np.arange(one.size, dtype=np.float64)
                if one.size > _MOST_AT_ONCE:
                    near = np.clip(place[number] + np.arange(-_STEPS, _STEPS + 1), 0, one.size - 1)
                    tried = np.array(sorted({*near.tolist(), *np.rint(np.linspace(0, one.size - 1, _STEPS)).tolist()}))
            else:
                ends = np.clip([place[number] - width, place[number] + width], 1e-6, 1.0 - 1e-6)
                tried = ends[0] + (ends[1] - ends[0]) * np.arange(_STEPS) / (_STEPS - 1)
            points = np.tile(place, (len(tried), 1))
            points[:, number] = tried
            scores = looked.look(points)
            if scores.min() < best:
                place, best = points[int(np.argmin(scores))], float(scores.min())
        continuous = any(not one.size for one in looked.dimensions)
        if best >= before and (not continuous or width < 1e-4):
            return
        width = width / 4 if best >= before or continuous else width
