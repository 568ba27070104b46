"""Read catalogue files into records, with errors that name file, key and line.

A name is looked up in this order: canonical name, alias (any case; for models also without organisation
and suffixes such as ``-Instruct``), file. A name that ends in ``.toml`` is always a file.

One file may hold a whole machine: ``rackline measure`` writes its chip, the cluster of it, the calibration of an engine
there and its scheduler as tables ``[chip]``, ``[cluster]``, ``[calibration]`` and ``[stack]``. Wherever one of these is
asked for by name, the file gives its table. The cluster is made of the file's chip and comes with the file's
calibration, the calibration with its stack. ``[measured]`` says how the numbers came about.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rackline.catalog.base import Object, SourcedRecord, apply_overrides, from_record, keys_of_table, schema_of
from rackline.catalog.calibrations import CalibrationRecord
from rackline.catalog.index import (
    SINGULAR,
    Kind,
    alias_index,
    file_of,
    find,
    folder,
    machines,
    names,
    shipped_head,
    user_catalogue,
)
from rackline.catalog.models import ModelRecord
from rackline.catalog.records import (
    LaunchRulesRecord,
    LawRecord,
    OrchestratorRecord,
    PriceSheetRecord,
    RunRecord,
    UseRecord,
)
from rackline.errors import CatalogError, nearest_name, shown
from rackline.files import parse_toml, read_text

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]#]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"""^\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the 1-based line where a key of a TOML text stands, or that of its nearest table.

    Args:
        text: The TOML text.
        path: Keys and list indices from the root, such as ``("levels", 1, "latency_s")``.

    Returns:
        The line, or None where not even the enclosing table is written in the text.

    Example:
        >>> line_of("a = 1\\n[[b]]\\nc = 2\\n[[b]]\\nc = 3\\n", ("b", 1, "c"))
        5
    """
    wanted = tuple(path)
    best: tuple[int, int] | None = None  # (length of the matched prefix, line)
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            dotted = tuple(part.strip().strip("\"'") for part in header.group(2).split("."))
            table = _with_index(dotted, counts, is_array=header.group(1) == "[[")
            candidate = table
        elif key := _KEY.match(line):
            candidate = table + tuple(part.strip().strip("\"'") for part in key.group(1).split("."))
        else:
            continue
        if wanted[: len(candidate)] == candidate and (best is None or len(candidate) > best[0]):
            best = (len(candidate), number)
    return None if best is None else best[1]


def _with_index(dotted: tuple[str, ...], counts: dict[str, int], *, is_array: bool) -> tuple[str | int, ...]:
    """Turn a header's name into a path, where arrays of tables carry the index of their newest element."""
    name = ".".join(dotted)
    if is_array:
        counts[name] = counts.get(name, -1) + 1
    path: list[str | int] = []
    for depth, part in enumerate(dotted, start=1):
        path.append(part)
        index = counts.get(".".join(dotted[:depth]))
        if index is not None:
            path.append(index)
    return tuple(path)


PARTS = {"chips": "chip", "clusters": "cluster", "calibrations": "calibration", "stacks": "stack"}
MEASURED = "measured"
_BESIDE: Mapping[str, Mapping[str, str]] = {
    "clusters": {"chip": "chip", "calibration": "calibration"},
    "calibrations": {"serving": "stack"},
}
"""Kind of record → key that names another record → table of the file that holds it."""
_TABLES = (*PARTS.values(), MEASURED)


def is_machine(data: Mapping[str, Any]) -> bool:
    """Whether a file holds several records; a single one has its name at the top."""
    return "name" not in data and any(isinstance(data.get(table), dict) for table in PARTS.values())


def part_of_machine(data: Mapping[str, Any], kind: str, file: str, where: str) -> dict[str, Any]:
    """The record of a kind in the file of a machine.

    Args:
        data: the whole file.
        kind: of the record: "chips", "clusters", "calibrations", "stacks", ...
        file: name of the file, without its folder.
        where: the file, for messages.

    Raises:
        CatalogError: an unknown table, or no record of this kind.
    """
    for table in data:
        if table not in _TABLES:
            raise CatalogError(
                what=table,
                given=table,
                allowed=f"the tables of a machine: {', '.join(_TABLES)}",
                where=where,
                nearest=nearest_name(table, _TABLES),
            )
    table = PARTS.get(kind, "")
    found = data.get(table)
    if not isinstance(found, dict):
        held = ", ".join(name for name in PARTS.values() if name in data)
        raise CatalogError(
            what=table or kind, given=f"a machine with {held}", allowed=f"a file with the table [{table}]", where=where
        )
    beside = {key: file for key, other in _BESIDE.get(kind, {}).items() if other in data}
    return {**beside, **cast("Mapping[str, Any]", found)}


_ERRORS = {"ttft_s": ("ttft_s", "served", "prefill"), "tpot_s": ("tpot_s", "served", "decode")}


def stated_errors(reference: str) -> dict[str, float]:
    """Errors that nine of ten predictions stay below, as the file of a machine or of observed runs states them [1].

    Args:
        reference: a file; names of the catalogue have none.

    Returns:
        By ttft_s and tpot_s: of requests that were left out where there were some, else of single passes.
    """
    if not reference.endswith(".toml"):
        return {}
    text = read_text(reference, what="calibration", allowed="a TOML file")
    held = parse_toml(text).get(MEASURED, {}).get("held_out", {})
    found: dict[str, float] = {}
    for metric, kinds in _ERRORS.items():
        stated = (held[kind]["p90_abs_error"] for kind in kinds if "p90_abs_error" in held.get(kind, {}))
        if (error := next(stated, None)) is not None:
            found[metric] = float(error)
    return found


R = TypeVar("R", bound=SourcedRecord)

_TAGS = ("gqa", "mla", "uniform", "layered", "int", "bool", "float", "str")
_MAX_BYTES = 16 * 2**20  # of a user's file


def record_from_mapping(
    model: type[R],
    data: Mapping[str, Any],
    *,
    where: str,
    text: str = "",
    overrides: Mapping[str, object] | None = None,
) -> R:
    """Validate plain data (as TOML or JSON gives it) as a record.

    Args:
        model: The record's class.
        data: Nested dicts and lists.
        where: File or origin, for messages.
        text: The TOML text, to find lines in; may be empty.
        overrides: Dotted keys and replacing values.

    Raises:
        CatalogError: The data or an override breaks the schema.
    """
    plain = cast("dict[str, Any]", _tupled(data))
    if overrides:
        # The file must be right by itself; only then does the message blame the override.
        record_from_mapping(model, data, where=where, text=text)
        plain = apply_overrides(model, plain, overrides)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise _as_catalog_error(error, model, where, text, overrides or {}) from None


def resolve_beside(reference: str, referrer: str) -> str:
    """Return a file named inside a user's file as a path beside it; catalogue names pass through.

    Args:
        reference: What the file says (a catalogue name, or a file ending in ``.toml``).
        referrer: The name or path by which that file was read.
    """
    if reference.endswith(".toml") and not Path(reference).is_absolute():
        return str(Path(referrer).parent / reference)
    return reference


def record_of(kind: Kind, model: type[R], name: str, overrides: Mapping[str, object] | None = None) -> R:
    """Read one record.

    Args:
        kind: Kind of the catalogue.
        model: The record's class.
        name: Catalogue name, alias, or path of a TOML file; Hugging Face ids are aliases of models.
        overrides: Dotted keys and the values that replace the file's; each becomes an assumed number.

    Raises:
        UnknownNameError: Neither in the catalogue nor a file.
        CatalogError: The file or an override breaks the schema.
    """
    path = find(kind, name)
    if overrides or not (_is_shipped(kind, path) or path == user_catalogue() / kind / path.name):
        return _read(kind, model, path, name, overrides)
    return cast("R", _of_catalogue(kind, model, path.name))


@dataclass(frozen=True, slots=True)
class Reader(Generic[R]):
    """Reads the records of one kind by name; arguments and errors as in `record_of`.

    Example:
        >>> price_sheet_record("anthropic-claude-opus-4.6").provider, use_record("batch").ttft_s
        ('anthropic', None)
    """

    kind: Kind
    model: type[R]

    def __call__(self, name: str, overrides: Mapping[str, object] | None = None) -> R:
        """The record of a name."""
        return record_of(self.kind, self.model, name, overrides)


model_record = Reader("models", ModelRecord)
calibration_record = Reader("calibrations", CalibrationRecord)
price_sheet_record = Reader("prices", PriceSheetRecord)
launch_rules_record = Reader("launch_rules", LaunchRulesRecord)
orchestrator_record = Reader("orchestrators", OrchestratorRecord)
law_record = Reader("laws", LawRecord)
run_record = Reader("runs", RunRecord)
use_record = Reader("uses", UseRecord)


def read_object(kind: Kind, of: type[Object], name: str, overrides: Mapping[str, object] | None = None) -> Object:
    """Read one object; arguments and errors as in `record_of`."""
    return from_record(of, record_of(kind, schema_of(of), name, overrides))


def _is_shipped(kind: Kind, path: Traversable) -> bool:
    return not isinstance(path, Path) or path.parent == folder(kind)


@functools.cache
def _of_catalogue(kind: Kind, model: type[SourcedRecord], file: str) -> SourcedRecord:
    """A record of the catalogue; read once, because a calibration takes ten milliseconds."""
    record = _read(kind, model, file_of(kind, file.removesuffix(".toml")), file, None)
    if record.name != file.removesuffix(".toml"):
        raise CatalogError(what="name", given=record.name, allowed="the name of its file", where=f"{kind}/{file}")
    return record


def _read(kind: Kind, model: type[R], path: Traversable, name: str, overrides: Mapping[str, object] | None) -> R:
    where = f"{kind}/{path.name}" if _is_shipped(kind, path) else str(path)
    if isinstance(path, Path):
        what = f"{SINGULAR[kind]} file"
        text = read_text(path, what=what, allowed="a readable file", max_bytes=_MAX_BYTES, refusal=CatalogError)
    else:
        text = path.read_text(encoding="utf-8")
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise CatalogError(what="TOML syntax", given=str(error), allowed="valid TOML", where=where) from None
    if is_machine(data):
        record = part_of_machine(data, kind, path.name, where)
        return record_from_mapping(model, record, where=f"{where}, [{SINGULAR[kind]}]", overrides=overrides)
    return record_from_mapping(model, data, where=where, text=text, overrides=overrides)


@functools.cache
def measured_stacks() -> tuple[str, ...]:
    """Stacks whose kernels were measured, in the order in which they stand in for one another."""
    return _ranked("fallback_rank")


@functools.cache
def default_engines(vendor: str) -> tuple[str, ...]:
    """Return the engines that are taken on the chips of a vendor where none is named, the first choice first."""
    return tuple(
        name for name in _ranked("default_rank") if vendor in _texts(shipped_head("stacks", name)["default_vendors"])
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, cast("list[Any]", value))) if isinstance(value, list) else ()


def _ranked(key: str) -> tuple[str, ...]:
    """Return the stacks that have a rank, in its order."""
    ranks = {name: shipped_head("stacks", name).get(key) for name in names("stacks")}
    return tuple(name for _, name in sorted((rank, name) for name, rank in ranks.items() if isinstance(rank, int)))


def forget() -> None:
    """Read names and files of the catalogue again: one was written."""
    for kept in (names, file_of, machines, alias_index, _of_catalogue, measured_stacks, default_engines):
        kept.cache_clear()


# ----------------------------------------------------------------------------------------------- errors


def _tupled(value: Any) -> Any:
    """Turn lists into tuples, which strict frozen records hold."""
    if isinstance(value, Mapping):
        return {key: _tupled(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return tuple(_tupled(inner) for inner in cast("Sequence[Any]", value))
    return value


def _as_catalog_error(
    error: ValidationError, model: type[SourcedRecord], where: str, text: str, overrides: Mapping[str, object]
) -> CatalogError:
    """Turn the problems that pydantic reports into one line: the first with file, line and key, then the others."""
    # An unknown key is usually the cause of the missing one beside it, so it is named first.
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    first, *others = (_problem(problem, model, where, text, overrides) for problem in problems)
    if not others:
        return first
    shown = "; ".join(_shortly(other, where) for other in others[:_MOST_FAULTS])
    more = f"; and {len(others) - _MOST_FAULTS} more" if len(others) > _MOST_FAULTS else ""
    near = f" (nearest: {first.nearest})" if first.nearest else ""
    return CatalogError(
        what=first.what,
        given=first.given,
        allowed=f"{first.allowed}{near}; also {shown}{more}",
        where=first.where,
    )


_MOST_FAULTS = 15
"""Faults of a file that one message names beside the first."""


def _shortly(fault: CatalogError, where: str) -> str:
    """A fault without the name of its file."""
    place = fault.where.removeprefix(where).removeprefix(", ")
    nearest = f" (nearest: {fault.nearest})" if fault.nearest else ""
    return f"{place + ': ' if place else ''}{fault.what}: got {shown(fault.given)}, allowed: {fault.allowed}{nearest}"


def _problem(
    first: ErrorDetails, model: type[SourcedRecord], where: str, text: str, overrides: Mapping[str, object]
) -> CatalogError:
    """One problem with its file, line and key."""
    # Tagged unions put their tag into the path, where the file has no such key.
    path = [part for part in first["loc"] if part not in _TAGS]
    key = ".".join(str(part) for part in path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error" and (named := re.search(r"covers the number (\S+)", message)):
        path = _path_of(named.group(1))
    line = line_of(text, path) if path else None
    place = where if line is None else f"{where}, line {line}"
    if overrides:  # the file itself has passed before
        place = "override"
    nearest: str | None = None
    given: object = first["input"]
    if first["type"] == "extra_forbidden":
        given, message = str(path[-1]), "only the keys of the schema"
        nearest = nearest_name(given, keys_of_table(model, path[:-1]))
    elif first["type"] == "missing":
        given, message = "nothing", "the key is required"
    elif first["type"] == "value_error":  # from a rule about a whole table, which has no single value
        given, message = message, "a consistent table"
    message = re.sub(r"^Input should (be )?", "", message)
    return CatalogError(what=key or "record", given=given, allowed=message, where=place, nearest=nearest)


def _path_of(dotted: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in dotted.split(".")]
