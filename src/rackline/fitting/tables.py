"""Tables of measured operations: read by their columns, checked, reduced to one row per shape.

A table is a CSV file whose header decides what it measures (`TABLES`). Rows of older versions of a stack are kept apart
where their shapes were measured again. Of several kernels with one key the fastest is kept, since that is the one a
stack picks; kernels that were made for other shapes are left out.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rackline.catalog import release_numbers, version_key
from rackline.errors import InputError, nearest_name, unknown_name
from rackline.files import read_lines
from rackline.fitting.kernel_tables import is_rocm, names_operations, rocm_header, rocm_row, spelled_rows
from rackline.fitting.solver import grouped

Array = npt.NDArray[np.float64]

RING_CLASSES = {
    "all_reduce": "all_reduce_ring",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
}
"""Names of collectives in tables, and the classes of rows that they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """Columns of one kind of table.

    Args:
        name: what it measures.
        labels: text columns that tell groups apart, besides chip and stack.
        sizes: columns that hold positive numbers and make the key of a row.
        words: text columns that are part of the key.
        family: sizes (or words) that make a shape family: one is fitted or held out as a whole.
        known: label → the only values that it may have.
        usual: what a column stands for that a table lacks or leaves empty; 0 is allowed in it.
        fits: classes of the rows of a pass whose numbers are fitted to it; empty for none.
        fitted: size → smallest and largest that is fitted; beyond them no layer has rows, or stacks run other kernels.
    """

    name: str
    labels: tuple[str, ...]
    sizes: tuple[str, ...]
    words: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    known: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    usual: Mapping[str, str] = field(default_factory=dict[str, str])
    fits: tuple[str, ...] = ()
    fitted: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that hold text."""
        return tuple(name for name in (*self.labels, *self.words) if name != "num_chips")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a row states, beside those of every table."""
        return tuple(name for name in (*self.labels, *self.sizes, *self.words) if name not in self.usual)


_GQA = ("q_heads", "kv_heads", "head_dim")
_CACHED = ("dtype", "kv_dtype")
_STATE = ("batch", "tokens", "key_heads", "value_heads", "key_dim", "value_dim")


def _module(name: str, *fits: str) -> tuple[TableFormat, TableFormat]:
    """A whole attention module, its products included: prompts behind a prefix, and decoded tokens."""
    decode, prefill = (
        TableFormat(
            name=f"{name}_{phase}",
            labels=_CACHED,
            sizes=("batch", "tokens", "prefix", "q_heads"),
            words=("model", "gemm_type", "own_index"),
            family=("batch", "q_heads"),
            usual={"prefix": "0"},
            fits=tuple(f"{one}_{phase}" for one in fits),
        )
        for phase in ("decode", "prefill")
    )
    return decode, prefill


def _states(name: str) -> tuple[TableFormat, TableFormat]:
    """A kernel over a recurrent state."""
    decode, prefill = (
        TableFormat(
            name=f"{name}_{phase}",
            labels=(),
            sizes=_STATE,
            family=("batch", "value_heads"),
            fits=(f"{name}_{phase}",),
        )
        for phase in ("decode", "prefill")
    )
    return decode, prefill


TABLES = (
    TableFormat(
        name="gemm",
        labels=("dtype",),
        sizes=("m", "n", "k"),
        family=("n", "k"),
        fits=("gemm",),
        fitted={"n": (128, math.inf), "k": (128, math.inf)},
    ),
    *(
        TableFormat(
            name=f"attention_{phase}",
            labels=_CACHED,
            sizes=("batch", tokens, *_GQA, "window"),
            family=("batch", *_GQA),
            usual={"window": "0"},
            fits=(f"attention_{phase}",),
            fitted={"head_dim": (1, 128), "window": (0, 0)},
        )
        for phase, tokens in (("decode", "context"), ("prefill", "tokens"))
    ),
    *(
        TableFormat(
            name=f"mla_{phase}",
            labels=_CACHED,
            sizes=("batch", tokens, "q_heads"),
            family=("batch", "q_heads"),
            fits=(f"mla_{phase}",),
        )
        for phase, tokens in (("decode", "context"), ("prefill", "tokens"))
    ),
    TableFormat(
        name="moe",
        labels=("dtype",),
        sizes=("tokens", "d_model", "d_ff", "top_k", "num_experts", "moe_tp", "ep", "matrices"),
        words=("distribution",),
        family=("d_model", "d_ff", "num_experts", "moe_tp", "ep"),
        usual={"matrices": "3"},
        fits=("moe",),
        fitted={"matrices": (3, 3)},
    ),
    TableFormat(
        name="collective",
        labels=("collective", "num_chips"),
        known={"collective": RING_CLASSES},
        sizes=("message_bytes",),
        fits=("collective",),
    ),
    TableFormat(
        name="custom_all_reduce",
        labels=("implementation", "num_chips"),
        sizes=("message_bytes",),
        fits=("collective",),
    ),
    TableFormat(
        name="latent_product",
        labels=("dtype",),
        sizes=("tokens", "q_heads"),
        words=("part",),
        family=("q_heads",),
        fits=("latent_product",),
    ),
    TableFormat(
        name="expert_exchange",
        labels=("method", "phase", "num_chips"),
        sizes=("num_nodes", "d_model", "tokens", "top_k", "num_experts", "element_bytes", "cores"),
        fits=("collective",),
        fitted={"cores": (20, math.inf)},
    ),
    TableFormat(name="deepep_low_latency", labels=(), sizes=("num_nodes", "d_model", "tokens", "top_k", "num_experts")),
    *_module("mla_module", "mla"),
    *_module("sparse_attention", "sparse", "index"),
    *_module("compressed_sparse", "compressed_sparse", "compressed_index"),
    *_module("heavily_compressed", "compressed"),
    *_module("block_sparse", "block_sparse", "block_index"),
    *_states("gated_delta"),
    *_states("kda"),
    *(
        TableFormat(
            name=f"convolution_{phase}",
            labels=(),
            sizes=("batch", "tokens", "channels", "width"),
            family=("batch", "channels"),
            fits=(f"convolution_{phase}",),
        )
        for phase in ("decode", "prefill")
    ),
    TableFormat(
        name="encoder_attention",
        labels=("dtype",),
        sizes=("batch", "tokens", "q_heads", "head_dim"),
        family=("tokens", "q_heads", "head_dim"),
        fits=("encoder_prefill",),
    ),
    TableFormat(
        name="hyper_connections",
        labels=("part",),
        sizes=("tokens", "d_model", "streams", "sites"),
        family=("tokens",),
        fits=("hyper_connections",),
    ),
    TableFormat(name="quantise", labels=("dtype",), sizes=("m", "k"), family=("k",), fits=("quantise",)),
)
FEWEST_ROWS = 10
ALIKE = 0.05
"""Mean |log ratio| of the times of two versions at equal shapes below which they are one."""
SAME_KERNEL = 0.1
"""Mean distance of the log ratio from its median below which one number describes it."""
FORMATS: Mapping[str, TableFormat] = {form.name: form for form in TABLES}


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
        older: tables of older versions, the newest of them first.
        newest_s: of an older version: times of the newest one at the same shapes [s], shape (rows,); None where both
            share too few to be compared.
        older_rows: rows of older versions that are not among the newest's [count].
        slower_rows: rows of slower kernels with the same key, and of kernels for other shapes [count].
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
    kernel: str
    sizes: tuple[float, ...]
    words: tuple[str, ...]
    seconds: float


def read_tables(paths: Iterable[str | Path], chips: Sequence[str], held: Collection[str] = ()) -> list[Measurements]:
    """Read operation tables.

    Args:
        paths: CSV files.
        chips: names that the chip column may hold.
        held: classes that are not read from tables which name their operations (`op_name`).

    Returns:
        One entry for each table, chip, stack and label set, sorted.

    Raises:
        InputError: a file that cannot be read, a missing column, a value that is not a positive number, an unknown
            chip, a truncated line; says file and line.
    """
    rows: dict[str, list[_Row]] = {}
    known = frozenset(chips)
    for path in map(Path, paths):
        for read in table_rows(path, read_lines(path, what="operation table", allowed="a readable CSV file")):
            if read.form is None or not read.form.fits or (read.named and read.form.fits[0] in held):
                continue
            if read.problem:
                raise InputError(
                    what="line", given=read.problem[0], allowed=read.problem[1], where=f"{path}:{read.line}"
                )
            row = _row(read.form, read.cells, known, f"{path}:{read.line}")
            rows.setdefault(read.form.name, []).append(row)
    if not rows:
        raise InputError(what="operation tables", given=[str(p) for p in paths], allowed="at least one row to fit")
    out: list[Measurements] = []
    for form in TABLES:
        places = {form.sizes.index(name): bounds for name, bounds in form.fitted.items()}
        kept = [
            row
            for row in rows.get(form.name, [])
            if all(least <= row.sizes[place] <= most for place, (least, most) in places.items())
        ]
        groups = grouped(kept, lambda row: row.group)
        out += [_group(form, group, members) for group, members in sorted(groups.items())]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A line of a table in the columns of its format.

    Args:
        line: its number.
        form: its format; None for one of an operation that has none.
        cells: by column.
        named: whether a column names the operation.
        problem: why it cannot be read: what was given, and what is allowed; empty if it can.
    """

    line: int
    form: TableFormat | None
    cells: dict[str, str]
    named: bool = False
    problem: tuple[str, ...] = ()


def table_rows(path: Path, lines: Iterable[str]) -> Iterator[TableRow]:
    """The rows of a table in the columns of their formats, regardless of what its source calls them.

    Args:
        path: of the table, for messages.
        lines: its content.

    Raises:
        InputError: the columns are of no known table.
    """
    reader = csv.reader(lines)
    try:
        header = next(reader, list[str]())
        rocm, named = is_rocm(header), names_operations(header)
        form = None if named else _format(path, rocm_header(header) if rocm else header)
        for cells in reader:
            if not cells:
                continue
            row = dict(zip(header, cells, strict=False))
            problem: tuple[str, ...] = ()
            rows: list[tuple[TableFormat | None, dict[str, str]]] = [(form, row)]
            if len(cells) != len(header):
                problem = (f"{len(cells)} values", f"{len(header)} values, one per column")
            elif named:
                rows = [(FORMATS[name], found) for name, found in spelled_rows(row)] or rows
            elif rocm:
                translated = rocm_row(row)
                rows = [] if translated is None else [(form, translated)]
            for of, found in rows:
                usual = {} if of is None else {name: text for name, text in of.usual.items() if not found.get(name)}
                yield TableRow(line=reader.line_num, form=of, cells={**found, **usual}, named=named, problem=problem)
    except csv.Error as error:
        raise InputError(what="operation table", given=str(path), allowed=f"a readable CSV file ({error})") from None


def _format(path: Path, header: list[str]) -> TableFormat:
    """The format whose columns the header has; the file's name only chooses between two, and which missing column is
    named."""
    present = set(header)
    named = FORMATS.get(path.stem)
    fitting = [form for form in TABLES if not _missing(form, present)]
    if fitting:
        return max(fitting, key=lambda form: (len(form.columns), form is named))
    closest = named or min(TABLES, key=lambda form: len(_missing(form, present)) - 0.1 * len(form.sizes))
    raise InputError(
        what=f"columns of a {closest.name} table",
        given=", ".join(header) or "nothing",
        allowed=f"also {', '.join(_missing(closest, present))}",
        where=f"{path}:1",
    )


def _missing(form: TableFormat, present: set[str]) -> list[str]:
    return [name for name in ("chip", "stack", "stack_version", *form.columns, "seconds") if name not in present]


def _row(form: TableFormat, values: dict[str, str], chips: frozenset[str], where: str) -> _Row:
    chip = values["chip"].strip()
    if chip not in chips:
        raise InputError(
            what="chip", given=chip, allowed="a chip of the catalogue", where=where, nearest=nearest_name(chip, chips)
        )
    for name, known in form.known.items():
        if values[name] not in known:
            raise unknown_name(name, values[name], known, where=where)
    if "num_chips" in form.labels:
        _positive("num_chips", values["num_chips"], where)
    return _Row(
        group=(chip, values["stack"], *(values[name] for name in form.labels)),
        version=values["stack_version"],
        kernel=values.get("kernel_source") or values.get("kernel") or "",
        sizes=tuple(_positive(name, values[name], where, zero=name in form.usual) for name in form.sizes),
        words=tuple(values[name] for name in form.words),
        seconds=_positive("seconds", values["seconds"], where),
    )


def _positive(name: str, text: str, where: str, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InputError(what=name, given=text, allowed="a number above 0", where=where)
    return value


def _group(form: TableFormat, group: tuple[str, ...], rows: list[_Row]) -> Measurements:
    """Rows of the newest version that measured them, with the older ones beside.

    Versions hardly measure the same shapes. Shapes that only an older one measured are the newest's at the median ratio
    of both over the shapes that they share, which is 1 where they are alike. Where they share too few, or their ratio
    differs from shape to shape, they run different kernels: the older one's times are its own, if it measured as many.
    """
    given = len(rows)
    rows = _of_main_kernels(form, rows)
    versions = grouped(rows, lambda row: row.version)
    # commits have no order: they count where there is nothing else
    latest = max(versions, key=lambda version: (bool(release_numbers(version)), version_key(version)))
    kept = versions.pop(latest)
    known = _fastest(kept)
    older: list[Measurements] = []
    for version in sorted(filter(release_numbers, versions), key=version_key, reverse=True):
        own = _fastest(versions[version])
        apart = np.array([math.log(known[key] / time) for key, time in own.items() if key in known])
        measured = _of_version(form, group, versions[version])
        if len(apart) >= FEWEST_ROWS and np.mean(np.abs(apart - np.median(apart))) < SAME_KERNEL:
            factor = 1.0 if np.mean(np.abs(apart)) < ALIKE else math.exp(float(np.median(apart)))
            added = [
                replace(row, seconds=row.seconds * factor)
                for row in versions[version]
                if (row.sizes, row.words) not in known
            ]
            known |= _fastest(added)
            kept = [*kept, *added]
            measured = replace(measured, newest_s=np.array([known[key] for key in sorted(own)]))
        elif len(own) < len(known):
            continue
        older.append(measured)
    measured = replace(_of_version(form, group, kept), stack_version=latest)
    return replace(
        measured,
        older=tuple(older),
        older_rows=len(rows) - len(kept),
        slower_rows=measured.slower_rows + given - len(rows),
    )


def _of_main_kernels(form: TableFormat, rows: list[_Row]) -> list[_Row]:
    """Rows of the kernels that measured the most shape families, and of all that share one with them.

    Kernels that have no family of shapes in common are no alternatives: an engine takes the others, in the same data
    type, for models that these do not serve.
    """
    families: dict[str, set[_Family]] = {}
    for row in rows:
        families.setdefault(row.kernel, set()).add(_family(form, row.sizes))
    together: list[tuple[set[str], set[_Family]]] = []
    for kernel, own in families.items():
        joined = [one for one in together if one[1] & own]
        together = [one for one in together if one not in joined]
        together.append(({kernel}.union(*(names for names, _ in joined)), own.union(*(of for _, of in joined))))
    main = max(together, key=lambda one: len(one[1]))[0]
    return [row for row in rows if row.kernel in main]


_Family = tuple[float, ...]


def _family(form: TableFormat, sizes: tuple[float, ...]) -> _Family:
    """Sizes that make the shape family of a row."""
    return tuple(sizes[form.sizes.index(name)] for name in form.family)


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
    numbering: dict[_Family, int] = {}
    families = [numbering.setdefault(_family(form, sizes), len(numbering)) for sizes, _ in keys]
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
