"""The results of a sweep: its shards as one lazy table, Pareto fronts, best rows, constraints that bind, crossovers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rackline.errors import InputError, nearest_name
from rackline.late import load_optional
from rackline.passes.features import Array
from rackline.sweeps.file import Sense
from rackline.sweeps.run import read_index
from rackline.sweeps.store import ENDING, SHARDS, Store, store_of

_AHEAD = 3  # shards read ahead while one is evaluated
_FIRST_LOOK = 4096  # rows whose front thins out the first shard
_MOST_ON_FRONT = 100_000
MEMORY = "memory and others"
"""What keeps points without a result, or whose batch does not fit, from being feasible."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What one constraint costs.

    Args:
        constraint: its name; `memory and others` for points that fit nowhere or failed.
        text: the test; empty for that.
        broken: share of the points that break it [1].
        alone: share that break it and no other [1].
        best: of the first objective with all constraints; None where nothing is feasible.
        best_without: with all but this one.
    """

    constraint: str
    text: str
    broken: float
    alone: float
    best: float | None
    best_without: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where one option takes over from another.

    Args:
        along: the quantity that grows.
        at: between two of its values, where both are equal.
        before, after: the options that are best before and after.
    """

    along: str
    at: float
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossovers:
    """The best of each option along a quantity.

    Args:
        option: quantity whose values compete.
        along: quantity that grows.
        objective: of which the best is taken over all other quantities.
        curve: rows of option, along and objective.
        points: where the best option changes.
    """

    option: str
    along: str
    objective: str
    curve: tuple[Row, ...]
    points: tuple[Crossover, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The shards of a sweep that are there.

    Args:
        store: where they lie.
        index: what was asked.
        names: of the shards that are there, in order.
        where: a condition in SQL that rows keep; None for all rows.
    """

    store: Store
    index: Mapping[str, Any]
    names: tuple[str, ...]
    where: str | None = None

    @classmethod
    def of(cls, address: str, where: str | None = None) -> Results:
        """The sweep in a folder, or at an address of fsspec.

        Args:
            where: a condition in SQL that rows keep, such as "context = 32000"; None for all rows.

        Raises:
            InputError: there is none, or it has no shard yet; a condition that is none.
        """
        load_optional("polars", what="the results of a sweep")
        store = store_of(address)
        index = read_index(store)
        there = store.names()
        names = tuple(name for name in index["shards"] if name in there)
        if not names:
            raise InputError(what="folder", given=address, allowed="a sweep that was run; no shard is there yet")
        found = cls(store=store, index=index, names=names, where=where)
        if where is not None:
            found.check_where(where)
        return found

    def check_where(self, where: str) -> None:
        """Refuse a condition that the rows do not have.

        Raises:
            InputError: with what is wrong with it.
        """
        try:
            kind = self.scan().select(pl.sql_expr(where)).collect_schema().dtypes()[0]
        except pl.exceptions.PolarsError as error:
            why = " ".join(str(error).split())[:300]
            raise InputError(what="where", given=where, allowed=f"a condition in SQL ({why})") from None
        if kind != pl.Boolean:
            raise InputError(what="where", given=where, allowed="a condition in SQL, such as context = 32000")

    def scan(self) -> pl.LazyFrame:
        """The rows as a lazy table of polars."""
        rows = pl.scan_parquet(self.store.sources(list(self.names)))
        return rows if self.where is None else rows.filter(pl.sql_expr(self.where))

    @property
    def objectives(self) -> dict[str, Sense]:
        """Columns of the file's objectives, the most important first."""
        return dict(self.index["objectives"])

    @property
    def axes(self) -> list[str]:
        """Columns of the quantities with several values."""
        return [one["name"] for one in self.index["axes"]]

    @property
    def drawn(self) -> list[str]:
        """The quantities that are drawn."""
        return [one["name"] for one in self.index["axes"] if one["drawn"]]

    def numeric(self) -> set[str]:
        """Columns of numbers."""
        return {name for name, kind in self.scan().collect_schema().items() if kind.is_numeric()}

    def check(self, names: Sequence[str], what: str) -> None:
        """Refuse columns that are not there.

        Raises:
            InputError: with the nearest one.
        """
        known = list(self.scan().collect_schema())
        for name in names:
            if name not in known:
                raise InputError(what=what, given=name, allowed=", ".join(known), nearest=nearest_name(name, known))

    def reasons(self) -> list[tuple[str, int]]:
        """Why points have no result or do not fit, with their number, most first."""
        found = self.scan().filter(pl.col("reason").is_not_null()).group_by("reason").len().collect(engine="streaming")
        rows = found.with_columns(pl.col("reason").cast(str)).sort("len", "reason", descending=[True, False]).rows()
        return [(str(reason), int(number)) for reason, number in rows]

    def counts(self) -> tuple[int, int]:
        """Rows, and feasible rows."""
        found = (
            self.scan()
            .select(pl.len().alias("rows"), pl.col("feasible").sum().alias("kept"))
            .collect(engine="streaming")
        )
        return int(found["rows"][0]), int(found["kept"][0] or 0)

    def num_values(self, names: Sequence[str]) -> dict[str, int]:
        """Different values of columns, by name [count]."""
        counts = self.scan().select(pl.col(name).n_unique() for name in names)
        return counts.collect(engine="streaming").row(0, named=True)

    def front(self, objectives: Mapping[str, Sense]) -> pl.DataFrame:
        """The feasible rows that no other row beats in one objective without losing in another.

        Shards whose best values are beaten by what was found are not read.

        Args:
            objectives: column → whether less or more is better.

        Returns:
            All columns, sorted by the first objective; of equal rows the first is kept.
        """
        signs = [1.0 if sense == "min" else -1.0 for sense in objectives.values()]
        best = self._best_of_shards(objectives, signs)
        order = np.argsort(best[:, 0], kind="stable") if len(best) else np.arange(len(self.names))
        found = np.empty((0, len(signs)))
        place = np.empty((0, 2), dtype=np.int64)
        with ThreadPoolExecutor(_AHEAD) as pool:
            waiting: list[tuple[int, Any]] = []
            rest = iter(order.tolist())
            while True:
                while len(waiting) < _AHEAD and (shard := next(rest, None)) is not None:
                    if len(found) and _is_beaten(best[shard], found):
                        continue
                    waiting.append((shard, pool.submit(self._objectives_of, shard, objectives, signs)))
                if not waiting:
                    break
                shard, future = waiting.pop(0)
                if len(found) and _is_beaten(best[shard], found):
                    future.cancel()
                    continue
                values, rows = future.result()
                kept = _survivors(values, found)
                where = np.stack([np.full(len(kept), shard), rows[kept]], axis=1)
                found, place = np.concatenate([found, values[kept]]), np.concatenate([place, where])
                chosen = front_of(found)
                found, place = found[chosen], place[chosen]
                if len(found) > _MOST_ON_FRONT:
                    raise InputError(
                        what="objectives",
                        given=", ".join(objectives),
                        allowed=f"fewer objectives: more than {_MOST_ON_FRONT:,} points are on their front",
                    )
        parts: list[pl.DataFrame] = []
        for shard in np.unique(place[:, 0]).tolist():
            (source,) = self.store.sources([self.names[shard]])
            parts.append(pl.read_parquet(source)[place[place[:, 0] == shard, 1].tolist()])
        if not parts:
            return self.scan().head(0).collect()
        return pl.concat(parts).sort(list(objectives), descending=[sign < 0 for sign in signs])

    def _best_of_shards(self, objectives: Mapping[str, Sense], signs: Sequence[float]) -> Array:
        """The best value of each objective in each shard, as its metadata says; -inf where it does not."""
        found = np.full((len(self.names), len(signs)), -np.inf)
        if not set(objectives) <= set(self.objectives):
            return found
        for number, source in enumerate(self.store.sources(list(self.names))):
            told = json.loads(pl.read_parquet_metadata(source)["rackline"])["best"]
            for place, (name, sign) in enumerate(zip(objectives, signs, strict=True)):
                value = told.get(name)
                found[number, place] = math.inf if value is None else sign * value
        return found

    def _objectives_of(
        self, shard: int, objectives: Mapping[str, Sense], signs: Sequence[float]
    ) -> tuple[Array, NDArray[np.int64]]:
        """Objectives of the feasible rows of a shard, all to be small, and the numbers of those rows."""
        (source,) = self.store.sources([self.names[shard]])
        if self.where is None:
            frame = pl.read_parquet(source, columns=["feasible", *objectives])
        else:
            kept = pl.sql_expr(f"feasible AND ({self.where})").alias("feasible")
            frame = pl.scan_parquet(source).select(kept, *objectives).collect()
        rows = np.flatnonzero(frame["feasible"].to_numpy())
        columns = [sign * frame[name].to_numpy()[rows] for name, sign in zip(objectives, signs, strict=True)]
        values = np.stack(columns, axis=1).astype(np.float64)
        known = np.isfinite(values).all(axis=1)
        return values[known], rows[known]

    def best(self, by: Sequence[str], objective: str, sense: Sense) -> pl.DataFrame:
        """The best feasible row of each group.

        Args:
            by: columns whose values make the groups; none for the best of all.
        """
        kept = self.scan().filter(pl.col("feasible") & pl.col(objective).is_not_null())
        place = pl.col(objective).arg_min() if sense == "min" else pl.col(objective).arg_max()
        if not by:
            return (
                kept.select(pl.all().get(place)).collect(engine="streaming")
                if self.counts()[1]
                else kept.head(0).collect()
            )
        return kept.group_by(list(by)).agg(pl.all().get(place)).collect(engine="streaming").sort(list(by))

    def binding(self, objective: str, sense: Sense) -> tuple[Binding, ...]:
        """What each constraint costs: the points that it alone keeps out, and the best without it."""
        constraints: dict[str, str] = dict(self.index["constraints"])
        tests: dict[str, pl.Expr] = {name: pl.col(name).fill_null(False) for name in constraints}
        tests[MEMORY] = pl.col("reason").is_null()

        def best(kept: pl.Expr) -> pl.Expr:
            values = pl.col(objective).filter(kept & pl.col(objective).is_not_null())
            return values.min() if sense == "min" else values.max()

        wanted: list[pl.Expr] = [best(pl.all_horizontal(list(tests.values()))).alias("best")]
        for name, test in tests.items():
            others = [one for key, one in tests.items() if key != name]
            rest = pl.all_horizontal(others) if others else pl.lit(True)
            wanted += [
                (~test).mean().alias(f"broken {name}"),
                (~test & rest).mean().alias(f"alone {name}"),
                best(rest).alias(f"without {name}"),
            ]
        row = self.scan().select(wanted).collect(engine="streaming").row(0, named=True)
        return tuple(
            Binding(
                constraint=name,
                text=constraints.get(name, ""),
                broken=float(row[f"broken {name}"] or 0.0),
                alone=float(row[f"alone {name}"] or 0.0),
                best=_number(row["best"]),
                best_without=_number(row[f"without {name}"]),
            )
            for name in tests
        )

    def crossovers(self, option: str, along: str, objective: str, sense: Sense) -> Crossovers:
        """The best of each option along a quantity, and where another option takes over.

        Args:
            option: column whose values compete.
            along: column of numbers.
        """
        best = pl.col(objective).min() if sense == "min" else pl.col(objective).max()
        kept = self.scan().filter(pl.col("feasible") & pl.col(objective).is_not_null())
        found = kept.group_by(option, along).agg(best).collect(engine="streaming")
        numbers = found.schema[option].is_numeric()
        texts = [f"{one:g}" if numbers else str(one) for one in found[option]]
        table = found.with_columns(pl.Series(option, texts)).sort(option, along)
        curves = {
            str(name): (part[along].to_numpy().astype(float), part[objective].to_numpy().astype(float))
            for (name,), part in table.group_by(option, maintain_order=True)
        }
        return Crossovers(
            option=option,
            along=along,
            objective=objective,
            curve=tuple(table.to_dicts()),
            points=tuple(_crossings(curves, along, sense)),
        )

    def sql(self, text: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Ask the rows in SQL, as the table `sweep`: DuckDB where it is installed, else polars.

        Args:
            text: such as "SELECT layout, count(*) FROM sweep GROUP BY layout".
            limit: rows that are returned at most [count].

        Raises:
            InputError: with what is wrong with it.
        """
        from importlib.util import find_spec

        run = _duckdb if find_spec("duckdb") and not self.store.address.count("://") else _polars_sql
        return run(self, text, limit)


def _duckdb(results: Results, text: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    import importlib

    duckdb: Any = importlib.import_module("duckdb")
    files = ", ".join("'" + str(one).replace("'", "''") + "'" for one in results.store.sources(list(results.names)))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW sweep AS SELECT * FROM read_parquet([{files}])")
        try:
            found = connection.execute(text)
            return [one[0] for one in found.description or ()], found.fetchmany(limit)
        except duckdb.Error as error:
            why = " ".join(str(error).split())[:300]
            raise InputError(what="sql", given=text, allowed=f"SQL over the table sweep ({why})") from None


def _polars_sql(results: Results, text: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    try:
        found = pl.SQLContext(sweep=results.scan()).execute(text).head(limit).collect()
    except (pl.exceptions.PolarsError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        raise InputError(what="sql", given=text, allowed=f"SQL over the table sweep ({why})") from None
    return found.columns, found.rows()


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _is_beaten(best: Array, found: Array) -> bool:
    """Whether a point of the front beats the best values of a shard, taken together, or equals them."""
    return bool(np.any(np.all(found <= best, axis=1)))


def _survivors(values: Array, found: Array) -> NDArray[np.int64]:
    """Rows that no point of a front beats; of a large shard without one, a few rows make one."""
    rows = np.arange(len(values))
    if not len(found) and len(values) > _FIRST_LOOK:
        few = values[np.linspace(0, len(values) - 1, _FIRST_LOOK).astype(np.int64)]
        found = few[front_of(few)]
        rows = rows[_unbeaten(values, found, strictly=True)]
    elif len(found):
        rows = rows[_unbeaten(values, found, strictly=False)]
    return rows[front_of(values[rows])] if len(rows) else rows


def _unbeaten(values: Array, found: Array, *, strictly: bool) -> NDArray[np.bool_]:
    """Which rows no point of a front beats; equal ones are kept only if `strictly`."""
    if values.shape[1] == 2:
        order = np.lexsort((found[:, 1], found[:, 0]))
        first, least = found[order, 0], np.minimum.accumulate(found[order, 1])
        place = np.searchsorted(first, values[:, 0], side="right") - 1
        bound = np.where(place >= 0, least[np.maximum(place, 0)], np.inf)
        return values[:, 1] <= bound if strictly else values[:, 1] < bound
    kept = np.ones(len(values), dtype=bool)
    for point in found:
        inside = values[kept]
        beaten = np.all(point <= inside, axis=1)
        if strictly:
            beaten &= np.any(point < inside, axis=1)
        kept[np.flatnonzero(kept)[beaten]] = False
    return kept


def front_of(values: Array) -> NDArray[np.int64]:
    """Rows that no other row beats, all columns to be small; of equal rows the first.

    Args:
        values: (rows, objectives).

    Returns:
        Numbers of rows, ascending.

    >>> front_of(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 4.0], [1.0, 3.0]])).tolist()
    [0, 1]
    """
    if not len(values):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort(tuple(values[:, place] for place in reversed(range(values.shape[1]))))
    ordered = values[order]
    if values.shape[1] <= 2:
        last = ordered[:, -1] if values.shape[1] == 2 else ordered[:, 0]
        return np.sort(order[last < np.concatenate(([np.inf], np.minimum.accumulate(last)[:-1]))])
    left = np.arange(len(ordered))
    kept: list[int] = []
    while len(left):  # the first of what is left is beaten by nothing that comes later
        point = ordered[left[0]]
        kept.append(int(left[0]))
        left = left[1:][~np.all(point <= ordered[left[1:]], axis=1)]
    return np.sort(order[kept])


def _crossings(curves: Mapping[str, tuple[Array, Array]], along: str, sense: Sense) -> Iterator[Crossover]:
    """Where the best option changes between neighbouring values of a quantity."""
    places = sorted({float(x) for xs, _ in curves.values() for x in xs})
    sign = 1.0 if sense == "min" else -1.0
    at = {name: dict(zip(xs.tolist(), (sign * ys).tolist(), strict=True)) for name, (xs, ys) in curves.items()}

    def best(x: float) -> str:
        return min((name for name in at if x in at[name]), key=lambda name: at[name][x])

    for (x, before), (after_x, after) in itertools.pairwise([(x, best(x)) for x in places]):
        if before == after:
            continue
        ends = (at[before].get(x), at[before].get(after_x), at[after].get(x), at[after].get(after_x))
        if any(value is None for value in ends):  # one of the two is not feasible at one end
            yield Crossover(along=along, at=after_x, before=before, after=after)
            continue
        a, b, c, d = cast("tuple[float, float, float, float]", ends)
        share = (c - a) / ((c - a) + (b - d)) if (c - a) + (b - d) else 0.5
        place = x * (after_x / x) ** share if x > 0 and after_x > 0 else x + share * (after_x - x)
        yield Crossover(along=along, at=place, before=before, after=after)


__all__ = ["ENDING", "SHARDS", "Binding", "Crossover", "Crossovers", "Results", "front_of"]
