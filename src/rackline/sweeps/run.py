"""Run a sweep: what its shards are, which are missing, and running those."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackline.api.answer import Watch
from rackline.api.verbs import entries
from rackline.errors import InputError, RacklineError
from rackline.late import late
from rackline.processes import usable_cores
from rackline.sweeps.chunk import Done, Job, chunk_name, evaluate, job_of, shard_bytes
from rackline.sweeps.file import SweepFile, read_file
from rackline.sweeps.space import LEVELS, Chunk, blocks
from rackline.sweeps.store import Store, lost, store_of
from rackline.sweeps.workers import Pool, Task, Workers

with late:
    from rackline.sweeps import passes, workers as sweeps_workers

INDEX = "sweep.json"
"""Beside the shards: the sweep as it was asked last, and the names of its shards in order."""
_PROBE = 20_000  # points that are evaluated to say how long all will take
_SMALL = 200_000  # points that one process has done before others have started
_SMALL_S = 2.0  # the same of questions [s]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a sweep takes, before it runs.

    Args:
        points: combinations of its quantities; with `layout = "all"` each has a row for every layout [count].
        rows: that are written, about [count].
        tables: pass tables that are built, or questions that are asked [count].
        shards: files [count].
        missing: of them, those that are not there yet [count].
        bytes: of all shards, about [bytes].
        core_s: of one core for what is missing, about [s].
        seconds: with the workers, about [s].
        usd: of those cores [USD].
        asks_each: whether each combination is a question of its own.
        levels: what each quantity changes: "table", "lane", "point" or "after".
    """

    points: int
    rows: int
    tables: int
    shards: int
    missing: int
    bytes: float
    core_s: float
    seconds: float
    usd: float
    asks_each: bool
    levels: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A sweep that was run.

    Args:
        out: address of its folder.
        points: of all shards, with those that were there [count].
        new_rows: rows that this run has written [count].
        failed: of them, points without a result [count].
        shards: of the sweep [count].
        new_shards: that this run has written [count].
        left_shards: that are not there at its end [count].
        bytes: that this run has written [bytes].
        run_s: how long that took [s].
        interrupted: whether it was stopped before all shards were there.
    """

    out: str
    points: int
    new_rows: int
    failed: int
    shards: int
    new_shards: int
    left_shards: int
    bytes: int
    run_s: float
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A sweep whose shards are known.

    Args:
        job: as workers get it.
        tasks: every shard with its chunk, in order.
        rows_per_point: layouts that each point has a row for, about [count].
    """

    job: Job
    tasks: tuple[Task, ...]
    rows_per_point: int = 1


def prepare(given: str | Path | Mapping[str, Any] | SweepFile) -> Prepared:
    """Read and compile a sweep, and name its shards.

    Raises:
        InputError: as `read_file` and `job_of`.
    """
    job = job_of(given if isinstance(given, SweepFile) else read_file(given))
    rows = _rows_of(job)
    head = job.head
    tasks = tuple((chunk_name(job, chunk, head), chunk) for chunk in _chunks(job, rows))
    return Prepared(job=job, tasks=tasks, rows_per_point=rows)


def _chunks(job: Job, rows: int) -> Iterator[Chunk]:
    file = job.file
    if file.is_compiled:
        yield from job.space.chunks(file.output.rows_per_shard, rows)
        return
    after = job.space.num("after")
    for first, last in blocks(job.space.num("table"), max(1, round(_SMALL_S / entries()[file.ask].sweep_s))):
        yield Chunk(tables=(first, last), lanes=(0, 1), points=(0, 1), after=(0, after))


def _rows_of(job: Job) -> int:
    """Layouts that each point has a row for; of the first table, where all layouts are wanted."""
    if not job.file.is_compiled or job.file.fixed.get("layout") != "all":
        return 1

    part = job.space.part("table", (0, 1))
    key = tuple((name, values[int(index[0])]) for name, (values, index) in part.columns.items())
    return passes.PassSweep(job.file, job.levels).layouts(key)


def workers_of(prepared: Prepared, out: str, workers: int | None, ray: str | None, tasks: int) -> Workers:
    """Who runs the chunks that are missing.

    Args:
        workers: processes, or tasks of Ray that run at a time; as many as there are cores by default [count].
        ray: address of a cluster, or "local"; None for processes of this machine.
        tasks: chunks that are missing [count].
    """
    job = prepared.job
    if ray is not None:
        return sweeps_workers.Ray(job=job, store=out, num=workers or 0, address=ray)
    num = min(workers or usable_cores(), max(tasks, 1))
    small = job.space.num_points * prepared.rows_per_point <= _SMALL if job.file.is_compiled else False
    if num <= 1 or (workers is None and small) or out.startswith("memory:"):
        return Workers(job=job, store=out, num=1)
    return Pool(job=job, store=out, num=num)


def run(prepared: Prepared, out: str, *, workers: int | None, ray: str | None, watch: Watch) -> Ran:
    """Run the chunks whose shards are not there yet.

    An interruption ends it after the chunks that run; the same call goes on later.

    Args:
        out: folder or address of fsspec.
        workers, ray: as `workers_of`.

    Raises:
        LostStoreError: a full disk, or a store that is gone; what is there stays.
        WorkersLostError: workers that die again and again.
    """
    start = time.perf_counter()
    names = [name for name, _ in prepared.tasks]
    resume = "the same command goes on where it stopped"
    with lost(out, resume):
        store = store_of(out)
        store.prepare()
        there = store.names().intersection(names)
        store.write(INDEX, _index(prepared).encode())
    missing = [task for task in prepared.tasks if task[0] not in there]
    done: list[Done] = []
    interrupted = False
    points = sum(chunk.num_points for _, chunk in prepared.tasks) * prepared.rows_per_point
    left = sum(chunk.num_points for _, chunk in missing) * prepared.rows_per_point
    if missing:
        who = workers_of(prepared, out, workers, ray, len(missing))
        with lost(out, f"{len(there)} shards were there, {resume}"), watch.computing("sweeping") as tell:
            running = who.run(iter(missing))
            try:
                for one in running:
                    done.append(one)
                    tell(sum(each.rows for each in done), left, sum(each.failed for each in done))
            except KeyboardInterrupt:
                interrupted = True
            finally:
                running.close()
            store.prepare()  # what killed workers have left half written
    return Ran(
        out=out,
        points=points,
        new_rows=sum(one.rows for one in done),
        failed=sum(one.failed for one in done),
        shards=len(names),
        new_shards=len(done),
        left_shards=len(missing) - len(done),
        bytes=sum(one.bytes for one in done),
        run_s=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _index(prepared: Prepared) -> str:
    """The sweep as text: what it is, and its shards in order."""
    job = prepared.job
    file = job.file
    return json.dumps(
        {
            "title": file.title,
            "head": json.loads(job.head),
            "axes": [
                {
                    "name": one.name,
                    "place": one.place,
                    "level": job.levels[one.name][0],
                    "drawn": one in file.drawn,
                }
                for one in file.axes
            ],
            "factors": [[*each.columns] for each in job.space.factors],
            "sample": {"method": file.sample.method, "num": file.sample.num, "seed": file.sample.seed}
            if file.drawn
            else None,
            "objectives": dict(file.objectives),
            "constraints": {name: one.text for name, one in file.constraints.items()},
            "derived": {name: one.text for name, one in file.derived.items()},
            "results": dict(job.results),
            "columns": job.columns(),
            "shards": [name for name, _ in prepared.tasks],
        },
        indent=1,
        default=str,
    )


def forecast(prepared: Prepared, out: str | None, *, workers: int | None, usd_per_core_hour: float) -> Forecast:
    """What a sweep takes: a small part of it is evaluated, in memory.

    Args:
        out: where its shards may be already; None for nowhere.
        usd_per_core_hour: price of one core [USD/h].
    """
    job = prepared.job
    space = job.space
    there: set[str] = set()
    if out is not None:
        with lost(out, "nothing was run"):
            there = store_of(out).names()
    missing = [task for task in prepared.tasks if task[0] not in there]
    few = _smaller(prepared.tasks[0][1], max(1, _PROBE // prepared.rows_per_point))
    table_s = _timed(job, few)
    again_s, rows, size = _timed_again(job, few)
    each_table = max(table_s - again_s, 0.0) if job.file.is_compiled else 0.0
    per_row = again_s / max(rows, 1)
    points = sum(chunk.num_points for _, chunk in missing)
    total_rows = space.num_points * prepared.rows_per_point
    tables = space.num("table")
    share = len(missing) / max(len(prepared.tasks), 1)
    core_s = tables * share * each_table + points * prepared.rows_per_point * per_row
    num = min(workers or usable_cores(), max(len(missing), 1))
    return Forecast(
        points=space.num_points,
        rows=total_rows,
        tables=tables,
        shards=len(prepared.tasks),
        missing=len(missing),
        bytes=total_rows * size / max(rows, 1),
        core_s=core_s,
        seconds=core_s / num,
        usd=core_s / 3600.0 * usd_per_core_hour,
        asks_each=not job.file.is_compiled,
        levels={name: level for name, (level, _) in job.levels.items()},
    )


def _smaller(chunk: Chunk, points: int) -> Chunk:
    """A part of a chunk with one table and about a number of points."""

    def some(bounds: tuple[int, int], num: int) -> tuple[int, int]:
        return bounds[0], min(bounds[1], bounds[0] + max(num, 1))

    after = some(chunk.after, points)
    behind = after[1] - after[0]
    few = some(chunk.points, points // behind)
    lanes = some(chunk.lanes, points // (behind * (few[1] - few[0])))
    return Chunk(tables=some(chunk.tables, 1), lanes=lanes, points=few, after=after)


def _timed(job: Job, chunk: Chunk) -> float:
    start = time.process_time()
    evaluate(job, chunk)
    return time.process_time() - start


def _timed_again(job: Job, chunk: Chunk) -> tuple[float, int, int]:
    """Seconds of a chunk whose table is there, its rows, and the bytes of its shard."""
    start = time.process_time()
    frame, calibrations = evaluate(job, chunk)
    data = shard_bytes(job, chunk, frame, calibrations)
    return time.process_time() - start, frame.height, len(data)


def read_index(store: Store) -> dict[str, Any]:
    """What was asked of the sweep in a store.

    Raises:
        InputError: there is no sweep.
    """
    try:
        with lost(store.address, "nothing was read"):
            return json.loads(io.BytesIO(store.read(INDEX)).read())
    except (RacklineError, ValueError):
        allowed = "the folder or address of a sweep, as --out of `rackline sweep`"
        raise InputError(what="folder", given=store.address, allowed=allowed) from None


__all__ = ["LEVELS", "Forecast", "Prepared", "Ran", "forecast", "prepare", "read_index", "run"]
