"""Tables of measured operations: read by their columns, checked, reduced to one row per shape.

A table is a CSV file whose header decides what it measures (`TABLES`). Rows of older versions of a stack are kept apart
and counted; of several kernels with one key the fastest is kept, since that is the one a stack picks.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rackline.catalog import version_key
from rackline.errors import InputError, nearest_names
from rackline.files import read_lines
from rackline.fitting.rocm_tables import is_rocm, rocm_header, rocm_row

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """Columns of one kind of table.

    Args:
        name: what it measures.
        labels: text columns that tell groups apart, besides chip and stack.
        sizes: columns that hold positive numbers and make the key of a row.
        words: text columns that are part of the key.
        family: sizes (or words) that make a shape family: one is fitted or held out as a whole.
    """

    name: str
    labels: tuple[str, ...]
    sizes: tuple[str, ...]
    words: tuple[str, ...] = ()
    family: tuple[str, ...] = ()


_GQA = ("q_heads", "kv_heads", "head_dim")
TABLES = (
    TableFormat(name="gemm", labels=("dtype",), sizes=("m", "n", "k"), family=("n", "k")),
    TableFormat(
        name="attention_decode",
        labels=("dtype", "kv_dtype"),
        sizes=("batch", "context", *_GQA),
        family=("batch", *_GQA),
    ),
    TableFormat(
        name="attention_prefill",
        labels=("dtype", "kv_dtype"),
        sizes=("batch", "tokens", *_GQA),
        family=("batch", *_GQA),
    ),
    TableFormat(
        name="mla_decode",
        labels=("dtype", "kv_dtype"),
        sizes=("batch", "context", "q_heads"),
        family=("batch", "q_heads"),
    ),
    TableFormat(
        name="mla_prefill",
        labels=("dtype", "kv_dtype"),
        sizes=("batch", "tokens", "q_heads"),
        family=("batch", "q_heads"),
    ),
    TableFormat(
        name="moe",
        labels=("dtype",),
        sizes=("tokens", "d_model", "d_ff", "top_k", "num_experts", "moe_tp", "ep"),
        words=("distribution",),
        family=("d_model", "d_ff", "num_experts", "moe_tp", "ep"),
    ),
    TableFormat(
        name="collective",
        labels=("collective", "num_chips"),
        sizes=("message_bytes",),
    ),
    TableFormat(
        name="custom_all_reduce",
        labels=("implementation", "num_chips"),
        sizes=("message_bytes",),
    ),
)
_IGNORED = ("deepep_low_latency",)  # known table, nothing of it is fitted here


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows of one chip, stack, version and label set of one table.

    Args:
        table: name of the format.
        chip, stack, stack_version: what was measured.
        labels: values of the label columns.
        columns: sizes by name, shape (rows,).
        words: text columns by name, one per row.
        seconds: time of one call [s], shape (rows,).
        families: family of each row, shape (rows,).
        older: the shapes that older versions share with this one, the newest of them first.
        newest_s: of an older version: times of the newest one at the same shapes [s], shape (rows,).
        older_rows: rows of older versions [count].
        slower_rows: rows of slower kernels with the same key [count].
    """

    table: str
    chip: str
    stack: str
    stack_version: str
    labels: tuple[str, ...]
    columns: dict[str, Array]
    words: dict[str, tuple[str, ...]]
    seconds: Array
    families: npt.NDArray[np.int64]
    older: tuple[Measurements, ...] = ()
    newest_s: Array | None = None
    older_rows: int = 0
    slower_rows: int = 0

    @property
    def key(self) -> str:
        """One word for messages."""
        return " ".join((self.table, self.chip, self.stack, *self.labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    group: tuple[str, ...]
    version: str
    sizes: tuple[float, ...]
    words: tuple[str, ...]
    seconds: float


def read_tables(paths: Iterable[str | Path], chips: Sequence[str]) -> list[Measurements]:
    """Read operation tables.

    Args:
        paths: CSV files.
        chips: names that the chip column may hold.

    Returns:
        One entry for each table, chip, stack and label set, sorted.

    Raises:
        InputError: a file that cannot be read, a missing column, a value that is not a positive number, an unknown
            chip, a truncated line; says file and line.
    """
    rows: dict[str, list[_Row]] = {}
    known = frozenset(chips)
    for path in paths:
        form, read = _read_file(Path(path), known)
        if form is not None:
            rows.setdefault(form.name, []).extend(read)
    if not any(rows.values()):
        raise InputError(what="operation tables", given=[str(p) for p in paths], allowed="at least one row to fit")
    out: list[Measurements] = []
    for form in TABLES:
        groups: dict[tuple[str, ...], list[_Row]] = {}
        latest: dict[tuple[str, ...], str] = {}
        for row in rows.get(form.name, []):
            groups.setdefault(row.group, []).append(row)
            stack = row.group[:2]
            latest[stack] = max(latest.get(stack, row.version), row.version, key=version_key)
        for group, members in sorted(groups.items()):
            measured = _group(form, group, members, latest[group[:2]])
            if measured is not None:
                out.append(measured)
    return out


def _read_file(path: Path, chips: frozenset[str]) -> tuple[TableFormat | None, list[_Row]]:
    reader = csv.reader(read_lines(path, what="operation table", allowed="a readable CSV file"))
    try:
        header = next(reader, list[str]())
        rocm = is_rocm(header)
        form = _format(path, rocm_header(header) if rocm else header)
        if form is None:
            return None, []
        found: list[_Row] = []
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            values = _values(header, cells, where, rocm) if cells else None
            if values is not None:
                found.append(_row(form, values, chips, where))
        return form, found
    except csv.Error as error:
        raise InputError(what="operation table", given=str(path), allowed=f"a readable CSV file ({error})") from None


def _format(path: Path, header: list[str]) -> TableFormat | None:
    """The format whose columns the header has; the file's name only chooses which missing column is named."""
    present = set(header)
    if {"dispatch_s", "combine_s"} <= present:
        return None
    fitting = [form for form in TABLES if not _missing(form, present)]
    if fitting:
        return max(fitting, key=lambda form: len(form.labels) + len(form.sizes))
    named = [form for form in TABLES if form.name == path.stem]
    closest = named or [min(TABLES, key=lambda form: len(_missing(form, present)) - 0.1 * len(form.sizes))]
    raise InputError(
        what=f"columns of a {closest[0].name} table",
        given=", ".join(header),
        allowed=f"also {', '.join(_missing(closest[0], present))}",
        where=f"{path}:1",
    )


def _missing(form: TableFormat, present: set[str]) -> list[str]:
    needed = ("chip", "stack", "stack_version", *form.labels, *form.sizes, *form.words, "seconds")
    return [name for name in needed if name not in present]


def _values(header: list[str], cells: list[str], where: str, rocm: bool) -> dict[str, str] | None:
    """The values of a line by column; None for one of a library that has nothing of its kind here."""
    if len(cells) != len(header):
        raise InputError(what="line", given=f"{len(cells)} values", allowed=f"{len(header)} values", where=where)
    values = dict(zip(header, cells, strict=True))
    return rocm_row(values) if rocm else values


def _row(form: TableFormat, values: dict[str, str], chips: frozenset[str], where: str) -> _Row:
    chip = values["chip"].strip()
    if chip not in chips:
        near = nearest_names(chip, chips, 1)
        raise InputError(
            what="chip", given=chip, allowed="a chip of the catalogue", where=where, nearest=near[0] if near else None
        )
    return _Row(
        group=(chip, values["stack"], *(values[name] for name in form.labels)),
        version=values["stack_version"],
        sizes=tuple(_positive(name, values[name], where) for name in form.sizes),
        words=tuple(values[name] for name in form.words),
        seconds=_positive("seconds", values["seconds"], where),
    )


def _positive(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(what=name, given=text, allowed="a number above 0", where=where)
    return value


def _group(form: TableFormat, group: tuple[str, ...], rows: list[_Row], latest: str) -> Measurements | None:
    """Rows of the latest version of the stack in this table, with the older ones beside; None if there are none."""
    versions: dict[str, list[_Row]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row)
    kept = versions.pop(latest, None)
    if kept is None:
        return None
    newest = _fastest(kept)
    older: list[Measurements] = []
    for version in sorted(versions, key=version_key, reverse=True):
        shared = [row for row in versions[version] if (row.sizes, row.words) in newest]
        if shared:
            times = np.array([newest[key] for key in sorted(_fastest(shared))])
            older.append(replace(_of_version(form, group, shared), newest_s=times))
    return replace(_of_version(form, group, kept), older=tuple(older), older_rows=len(rows) - len(kept))


_Shape = tuple[tuple[float, ...], tuple[str, ...]]


def _fastest(rows: Sequence[_Row]) -> dict[_Shape, float]:
    """Time of the fastest kernel of each shape [s]."""
    found: dict[_Shape, float] = {}
    for row in rows:
        key = (row.sizes, row.words)
        found[key] = min(row.seconds, found.get(key, math.inf))
    return found


def _of_version(form: TableFormat, group: tuple[str, ...], rows: list[_Row]) -> Measurements:
    """Rows of one version, one a shape."""
    fastest = _fastest(rows)
    keys = sorted(fastest)
    columns = {name: np.array([sizes[i] for sizes, _ in keys]) for i, name in enumerate(form.sizes)}
    places = [form.sizes.index(name) for name in form.family]
    numbering: dict[tuple[float, ...], int] = {}
    families = [numbering.setdefault(tuple(sizes[i] for i in places), len(numbering)) for sizes, _ in keys]
    return Measurements(
        table=form.name,
        chip=group[0],
        stack=group[1],
        stack_version=rows[0].version,
        labels=group[2:],
        columns=columns,
        words={name: tuple(words[i] for _, words in keys) for i, name in enumerate(form.words)},
        seconds=np.array([fastest[key] for key in keys]),
        families=np.array(families, dtype=np.int64),
        slower_rows=len(rows) - len(keys),
    )
