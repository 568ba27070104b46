"""One chunk of a sweep: its points evaluated, as a table with inputs, results and reasons, written as one shard."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rackline.catalog.index import build_hash
from rackline.errors import RacklineError
from rackline.files import is_file
from rackline.passes.features import Array
from rackline.sweeps import passes, questions
from rackline.sweeps.expression import Expression, check_columns
from rackline.sweeps.file import SweepFile
from rackline.sweeps.passes import PRICE, Grid, PassSweep
from rackline.sweeps.space import DRAW, Chunk, Level, Part, Rate, Space, levels_of, space_of
from rackline.sweeps.store import ENDING, SHARDS, Store

ONE = np.zeros((1, 1, 1), dtype=np.int64)  # the index of a column with one text
FORMAT = 1  # of shards; another one is never mixed with this
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A sweep that is ready to run, as every worker gets it.

    Args:
        file: the sweep.
        levels: what each quantity changes, and the rate that it is.
        space: its points.
        results: columns of results with their JSON type.
        build: of the program and its catalogue, see `build_hash`.
        sources: hash of each file that an option names.
    """

    file: SweepFile
    levels: Mapping[str, tuple[Level, Rate | None]]
    space: Space
    results: Mapping[str, str]
    build: str
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def head(self) -> str:
        """What all shards have in common, as a text that is hashed."""
        file = self.file
        return json.dumps(
            {
                "format": FORMAT,
                "build": self.build,
                "sources": dict(self.sources),
                "ask": file.ask,
                "options": {name: str(value) for name, value in file.fixed.items()},
                "set": {name: str(value) for name, value in file.settings.items()},
                "inputs": dict(file.inputs),
                "derived": {name: one.text for name, one in file.derived.items()},
                "constraints": {name: one.text for name, one in file.constraints.items()},
                "objectives": dict(file.objectives),
                "results": list(self.results),
                "float_bits": file.output.float_bits,
                "levels": {name: [level, str(rate)] for name, (level, rate) in self.levels.items()},
            },
            sort_keys=True,
        )

    def columns(self) -> list[str]:
        """The columns of a shard, in their order."""
        rule = self.file.is_compiled and passes.rule_of(self.file) is not None
        return [
            *(name for one in self.space.factors for name in one.columns),
            *(("layout", "chips_per_replica") if rule else ()),
            *(name for name in self.results if not (rule and name == "chips_per_replica")),
            *self.file.derived,
            *self.file.constraints,
            "feasible",
            "reason",
        ]


def job_of(file: SweepFile) -> Job:
    """Compile a sweep: what its quantities change, its space, its columns.

    Raises:
        InputError: a column that is not there, a layout that cannot be.
    """
    levels: dict[str, tuple[Level, Rate | None]]
    if file.is_compiled:
        passes.check_options(file)
        levels = levels_of(file)
        results = dict.fromkeys(passes.results_of(file), "number")
    else:
        levels = {one.name: ("after" if one.place == "input" else "table", None) for one in file.axes}
        results = questions.results_of(file)
    job = Job(
        file=file,
        levels=levels,
        space=space_of(file.axes, file.sample, lambda one: levels[one.name][0]),
        results=results,
        build=build_hash(),
        sources=_sources(file),
    )
    _check_expressions(job)
    return job


def _check_expressions(job: Job) -> None:
    file = job.file
    known = [*(name for name in job.columns() if name not in ("reason", "feasible", "layout")), *file.numbers]
    known = [name for name in known if name not in file.derived and name not in file.constraints]
    for name, one in file.derived.items():
        check_columns(one, known, f"derived {name}")
        known.append(name)
    for name, one in file.constraints.items():
        check_columns(one, known, f"constraints {name}")
    for name in file.objectives:
        check_columns(Expression(text=name, names=(name,), is_test=False), known, "objectives")


def _sources(file: SweepFile) -> dict[str, str]:
    """Hashes of the files that options name: models, clusters, traces of one's own."""
    texts = [value for value in file.fixed.values() if isinstance(value, str)]
    for axis in file.axes:
        if axis.place == "option" and isinstance(axis.values, tuple):
            texts += [value for value in axis.values if isinstance(value, str)]
    found: dict[str, str] = {}
    for text in texts:
        if is_file(text):
            with Path(text).open("rb") as stream:
                found[text] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A shard that was written.

    Args:
        name: of the shard.
        rows: in it [count].
        failed: of them, points without a result [count].
        bytes: of the file [bytes].
    """

    name: str
    rows: int
    failed: int
    bytes: int


def chunk_name(job: Job, chunk: Chunk, head: str | None = None) -> str:
    """The name of a chunk's shard: the hash of everything that its rows depend on, and of nothing else."""
    found = hashlib.sha256((job.head if head is None else head).encode())
    for level, bounds in _bounds(chunk):
        found.update(_digest(job.space, level, bounds))
    return found.hexdigest()[:32]


def _bounds(chunk: Chunk) -> tuple[tuple[Level, tuple[int, int]], ...]:
    return ("table", chunk.tables), ("lane", chunk.lanes), ("point", chunk.points), ("after", chunk.after)


def _digest(space: Space, level: Level, bounds: tuple[int, int]) -> bytes:
    """Hash of the values of one level: those of the first factor that are in the chunk, all of the others."""
    factors = space.of(level)
    if not factors:
        return b"none"
    if level == "table":
        return json.dumps(_rows(space.part(level, bounds)), default=_plain).encode()
    inner = space.num(level) // max(len(factors[0]), 1)
    first, last = bounds[0] // inner, -(-bounds[1] // inner)
    return (
        _hashed(factors[0].columns, first, last)
        + b"".join(_hashed(one.columns, 0, len(one)) for one in factors[1:])
        + f"{bounds[0] - first * inner}:{bounds[1] - first * inner}".encode()
    )


def _hashed(columns: Mapping[str, Sequence[Any] | Array], first: int, last: int) -> bytes:
    found = hashlib.sha256()
    for name, values in columns.items():
        found.update(name.encode())
        some = values[first:last]
        if isinstance(some, np.ndarray):
            found.update(np.ascontiguousarray(some).tobytes())
        else:
            found.update(json.dumps(list(some), default=_plain).encode())
    return found.digest()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def _rows(part: Part) -> list[dict[str, Any]]:
    """The combinations of a level, each as name → value."""
    return [
        {name: _plain(values[index[row]]) if hasattr(values[index[row]], "item") else values[index[row]]
         for name, (values, index) in part.columns.items()}
        for row in range(part.num)
    ]  # fmt: skip


def run_chunk(job: Job, chunk: Chunk, store: Store, name: str | None = None) -> Done:
    """Evaluate a chunk and write its shard.

    Raises:
        OSError: the store cannot be written.
    """
    name = name or chunk_name(job, chunk)
    frame, calibrations = evaluate(job, chunk)
    data = shard_bytes(job, chunk, frame, calibrations)
    store.write(f"{SHARDS}/{name}{ENDING}", data)
    return Done(name=name, rows=frame.height, failed=int(frame["reason"].is_not_null().sum()), bytes=len(data))


def shard_bytes(job: Job, chunk: Chunk, frame: pl.DataFrame, calibrations: Mapping[str, str]) -> bytes:
    """A shard as a Parquet file, with where it comes from in its metadata."""
    from importlib.metadata import version

    told = {
        "rackline": version("rackline"),
        "build": job.build,
        "format": FORMAT,
        "calibrations": dict(calibrations),
        "seed": job.file.sample.seed,
        "sample": job.file.sample.method if job.file.drawn else None,
        "head": json.loads(job.head),
        "chunk": {level: list(bounds) for level, bounds in _bounds(chunk)},
        "best": _best(job, frame),
    }
    out = io.BytesIO()
    metadata = {"rackline": json.dumps(told, sort_keys=True, default=_plain)}
    frame.write_parquet(out, compression="zstd", compression_level=_COMPRESSION_LEVEL, metadata=metadata)
    return out.getvalue()


def _best(job: Job, frame: pl.DataFrame) -> dict[str, float | None]:
    """The best value of each objective among feasible rows, which lets readers leave whole shards out."""
    if not job.file.objectives:
        return {}
    kept = frame.lazy().filter(pl.col("feasible"))
    values = kept.select(
        (pl.col(name).min() if sense == "min" else pl.col(name).max()).cast(float)
        for name, sense in job.file.objectives.items()
    )
    return dict(zip(job.file.objectives, values.collect().row(0), strict=True))


def evaluate(job: Job, chunk: Chunk) -> tuple[pl.DataFrame, dict[str, str]]:
    """The rows of a chunk, and the hashes of the calibrations that they rest on, by name."""
    evaluator = _sweep_of(job.head, _Held(job)) if job.file.is_compiled else None
    found: list[pl.DataFrame] = []
    calibrations: dict[str, str] = {}
    tables = job.space.part("table", chunk.tables)
    lanes, points = job.space.part("lane", chunk.lanes), job.space.part("point", chunk.points)
    after = job.space.part("after", chunk.after)
    for row in _rows(tables):
        if evaluator is None:
            found.append(_asked(job, row, after))
            continue
        key = tuple(row.items())
        grid: Grid | None = None
        why = ""
        try:
            grid = evaluator.evaluate(key, lanes, points)
            name, digest = evaluator.calibration(key)
            calibrations[name] = digest
        except RacklineError as error:
            why = str(error)
        found.append(_frame(job, row, grid, why, lanes, points, after))
    return found[0] if len(found) == 1 else pl.concat(found), calibrations


class _Held:
    """A job as an argument of a cached function that goes by something else."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)


@lru_cache(maxsize=2)
def _sweep_of(head: str, held: _Held) -> PassSweep:
    """The evaluator of a sweep, kept between the chunks of one worker."""
    return PassSweep(held.job.file, held.job.levels)


class _Columns:
    """Columns of a block of rows × points × values after them, put together once at the end."""

    def __init__(self, job: Job, shape: tuple[int, int, int]) -> None:
        self.job, self.shape = job, shape
        self.flat: dict[str, Any] = {}
        self.numbers: dict[str, Any] = dict(job.file.numbers)
        self.results = {*job.results, *job.file.derived, "chips_per_replica"}
        self.float = np.float32 if job.file.output.float_bits == 32 else np.float64

    def number(self, name: str, values: Array, *, stored: bool = True) -> None:
        """A column of numbers that broadcasts to the block."""
        self.numbers[name] = values
        if stored:
            if name in self.results and values.dtype == np.float64:
                values = values.astype(self.float)
            self.flat[name] = np.broadcast_to(values, self.shape).reshape(-1)

    def text(self, name: str, texts: Sequence[str | None], index: NDArray[np.int64]) -> None:
        """A column of texts, by the number of each."""
        codes = np.broadcast_to(index, self.shape).reshape(-1).astype(np.uint32)
        self.flat[name] = pl.Series(name, list(texts), dtype=pl.Categorical).gather(codes)

    def constants(self, values: Mapping[str, Any]) -> None:
        """Columns that have one value in the whole block."""
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.number(name, np.full((1, 1, 1), value))
            else:
                self.text(name, [str(value)], ONE)

    def inputs(self, part: Part, place: int, rows: NDArray[np.int64] | None = None) -> None:
        """The quantities of one level, along one axis of the block."""
        for name, (values, index) in part.columns.items():
            chosen = index if rows is None else index[rows]
            along = [1, 1, 1]
            along[place] = len(chosen)
            if isinstance(values, np.ndarray) or all(isinstance(one, int | float) for one in values):
                array = np.asarray(values)
                self.number(
                    name, (array if array.dtype.kind in "iub" else array.astype(np.float64))[chosen].reshape(along)
                )
            else:
                self.text(name, [str(one) for one in values], chosen.reshape(along))

    def expressions(self) -> None:
        """Derived quantities and constraints, in the order of the file."""
        file = self.job.file
        for name, one in file.derived.items():
            found = np.asarray(one.value(self.numbers))
            self.number(name, found if found.dtype == bool else found.astype(np.float64))
        for name, one in file.constraints.items():
            self.flat[name] = np.broadcast_to(one.value(self.numbers), self.shape).reshape(-1)

    def frame(self, missing: bool) -> pl.DataFrame:
        """The block as a table; numbers that are none become missing values."""
        columns = {name: self.flat[name] for name in self.job.columns()}
        made = pl.DataFrame(columns)
        floats = [name for name in self.results if name in columns and made.schema[name].is_float()]
        return made.with_columns(pl.col(floats).fill_nan(None)) if floats and missing else made


def _frame(
    job: Job, table: Mapping[str, Any], grid: Grid | None, why: str, lanes: Part, points: Part, after: Part
) -> pl.DataFrame:
    """The rows of one table."""
    block = _Columns(job, (lanes.num if grid is None else len(grid.lane), points.num, after.num))
    block.constants(table)
    block.inputs(lanes, 0, None if grid is None else grid.lane)
    block.inputs(points, 1)
    block.inputs(after, 2)
    rule = passes.rule_of(job.file) is not None
    if grid is None:
        empty = np.full((1, 1, 1), np.nan)
        for name in (*job.results, *(("chips_per_replica",) if rule else ())):
            block.number(name, empty)
        if rule:
            block.text("layout", [None], ONE)
        reasons, index = [why], ONE
    else:
        price = block.numbers.get(PRICE, grid.usd_per_chip_hour)
        for name, values in grid.results.items():
            wide = values[:, :, None]
            block.number(name, wide * price if name.startswith("usd_") else wide)
        if rule:
            block.text("layout", grid.layouts, grid.layout[:, :, None])
        reasons, index = [text or None for text in grid.reasons], grid.reason[:, :, None]
    block.text("reason", reasons, index)
    block.expressions()
    _feasible(job, block, np.array([text is None for text in reasons])[index])
    return block.frame(missing=True)


def _feasible(job: Job, block: _Columns, fine: NDArray[np.bool_]) -> None:
    kept = np.broadcast_to(fine, block.shape).reshape(-1)
    for name in job.file.constraints:
        kept = kept & block.flat[name]
    block.flat["feasible"] = kept


def _asked(job: Job, row: Mapping[str, Any], after: Part) -> pl.DataFrame:
    """The rows of one combination that is a question of its own."""
    found, why = questions.ask_once(job.file, row)
    block = _Columns(job, (1, 1, after.num))
    block.constants(row)
    block.inputs(after, 2)
    for name, kind in job.results.items():
        value = found[name]
        if kind == "string":
            block.text(name, [value], ONE)
        else:
            block.number(name, np.full((1, 1, 1), np.nan if value is None else float(value)))
    block.text("reason", [why or None], ONE)
    block.expressions()
    _feasible(job, block, np.full((1, 1, 1), not why))
    return block.frame(missing=True).with_columns(
        pl.col(name).cast(pl.Boolean) for name, kind in job.results.items() if kind == "boolean"
    )


def rows_of(job: Job, table: Mapping[str, Any], lanes: Part) -> pl.DataFrame:
    """Rows of single points of one table, each with its own value of every other quantity.

    Args:
        table: name → value of what makes the table.
        lanes: all other quantities.
    """
    alone = Part(num=1, columns={})
    if not job.file.is_compiled:
        return _asked(job, table, lanes)
    evaluator = _sweep_of(job.head, _Held(job))
    try:
        return _frame(job, table, evaluator.evaluate(tuple(table.items()), lanes, alone), "", lanes, alone, alone)
    except RacklineError as error:
        return _frame(job, table, None, str(error), lanes, alone, alone)


__all__ = [
    "DRAW",
    "Done",
    "Job",
    "chunk_name",
    "evaluate",
    "job_of",
    "rows_of",
    "run_chunk",
    "shard_bytes",
]
