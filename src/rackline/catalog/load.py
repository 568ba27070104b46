"""Read catalogue files into records, with errors that name file, key and line.

A name is looked up in this order: canonical name, alias (any case; for models also without organisation
and suffixes such as ``-Instruct``), file. A name that ends in ``.toml`` is always a file.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import ValidationError

from rackline.catalog.base import SourcedRecord
from rackline.catalog.laws import LawRecord
from rackline.catalog.lines import line_of
from rackline.catalog.memory_tiers import MemoryRecord
from rackline.catalog.overrides import apply_overrides, keys_of_table, settable_keys
from rackline.catalog.prices import PriceSheetRecord
from rackline.catalog.runs import RunRecord
from rackline.catalog.schema import CalibrationRecord, ChipRecord, ClusterRecord, ModelRecord
from rackline.catalog.stacks import StackRecord
from rackline.catalog.training_stacks import TrainingStackRecord
from rackline.errors import CatalogError, UnknownNameError, nearest_names
from rackline.files import read_text

__all__ = [
    "calibration_record",
    "chip_record",
    "cluster_record",
    "law_record",
    "memory_record",
    "model_record",
    "names",
    "price_sheet_record",
    "record_from_mapping",
    "resolve_beside",
    "run_record",
    "settable_keys",
    "stack_record",
    "training_stack_record",
]

Kind = Literal[
    "chips", "clusters", "memory", "models", "prices", "calibrations", "stacks", "laws", "runs", "training_stacks"
]
R = TypeVar("R", bound=SourcedRecord)

_SINGULAR = {
    "chips": "chip",
    "clusters": "cluster",
    "memory": "memory tier",
    "models": "model",
    "prices": "price sheet",
    "calibrations": "calibration",
    "stacks": "stack",
    "training_stacks": "training stack",
    "laws": "scaling law",
    "runs": "training run",
}
_CANONICAL = re.compile(r"^[a-z0-9][a-z0-9._-]*$")
_TAGS = ("gqa", "mla", "uniform", "layered", "int", "bool", "float", "str")
_LONGEST_NAME = 200  # characters; longer ones are no names
_MAX_BYTES = 16 * 2**20  # of a user's file
_MODEL_PREFIXES = ("meta-",)
_MODEL_SUFFIXES = ("-instruct", "-hf", "-fp8", "-nvfp4")


def chip_record(name: str, overrides: Mapping[str, object] | None = None) -> ChipRecord:
    """Read one chip.

    Args:
        name: Catalogue name, alias, or path of a TOML file.
        overrides: Dotted keys and the values that replace the file's; each becomes an assumed number.

    Raises:
        UnknownNameError: Neither in the catalogue nor a file.
        CatalogError: The file or an override breaks the schema.

    Example:
        >>> chip_record("H100").name
        'h100-sxm'
    """
    return _record("chips", ChipRecord, name, overrides)


def cluster_record(name: str, overrides: Mapping[str, object] | None = None) -> ClusterRecord:
    """Read one cluster; arguments and errors as in `chip_record`."""
    return _record("clusters", ClusterRecord, name, overrides)


def memory_record(name: str, overrides: Mapping[str, object] | None = None) -> MemoryRecord:
    """Read one memory tier; arguments and errors as in `chip_record`.

    Example:
        >>> memory_record("hdd-20tb").tier
        'disk'
    """
    return _record("memory", MemoryRecord, name, overrides)


def model_record(name: str, overrides: Mapping[str, object] | None = None) -> ModelRecord:
    """Read one model; arguments and errors as in `chip_record`. Hugging Face ids are aliases."""
    return _record("models", ModelRecord, name, overrides)


def calibration_record(name: str, overrides: Mapping[str, object] | None = None) -> CalibrationRecord:
    """Read one calibration; arguments and errors as in `chip_record`."""
    return _record("calibrations", CalibrationRecord, name, overrides)


def price_sheet_record(name: str, overrides: Mapping[str, object] | None = None) -> PriceSheetRecord:
    """Read one price sheet; arguments and errors as in `chip_record`.

    Example:
        >>> price_sheet_record("anthropic-claude-opus-4.6").provider
        'anthropic'
    """
    return _record("prices", PriceSheetRecord, name, overrides)


def stack_record(name: str, overrides: Mapping[str, object] | None = None) -> StackRecord:
    """Read one serving stack; arguments and errors as in `chip_record`."""
    return _record("stacks", StackRecord, name, overrides)


def law_record(name: str, overrides: Mapping[str, object] | None = None) -> LawRecord:
    """Read one scaling law; arguments and errors as in `chip_record`."""
    return _record("laws", LawRecord, name, overrides)


def run_record(name: str, overrides: Mapping[str, object] | None = None) -> RunRecord:
    """Read one training run; arguments and errors as in `chip_record`."""
    return _record("runs", RunRecord, name, overrides)


def training_stack_record(name: str, overrides: Mapping[str, object] | None = None) -> TrainingStackRecord:
    """Read one training stack; arguments and errors as in `chip_record`."""
    return _record("training_stacks", TrainingStackRecord, name, overrides)


@functools.cache
def names(kind: Kind) -> tuple[str, ...]:
    """Return the canonical names of all shipped objects of a kind, sorted.

    Args:
        kind: "chips", "clusters", "memory", "models", "prices", "calibrations", "stacks", "laws", "runs".

    Example:
        >>> "h100-sxm" in names("chips")
        True
    """
    if kind not in _SINGULAR:
        raise UnknownNameError(what="kind of catalogue object", given=kind, allowed=", ".join(_SINGULAR))
    folder = _folder(kind)
    if not folder.is_dir():
        return ()
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))


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


def _record(kind: Kind, model: type[R], name: str, overrides: Mapping[str, object] | None) -> R:
    path = _find(kind, name)
    if overrides or not _is_shipped(kind, path):
        return _read(kind, model, path, name, overrides)
    return cast("R", _shipped(kind, model, path.name))


def _is_shipped(kind: Kind, path: Traversable) -> bool:
    return not isinstance(path, Path) or path.parent == _folder(kind)


@functools.cache
def _shipped(kind: Kind, model: type[SourcedRecord], file: str) -> SourcedRecord:
    """A record of the catalogue; read once, because a calibration takes ten milliseconds."""
    record = _read(kind, model, _folder(kind).joinpath(file), file, None)
    if record.name != file.removesuffix(".toml"):
        raise CatalogError(what="name", given=record.name, allowed="the name of its file", where=f"{kind}/{file}")
    return record


def _read(kind: Kind, model: type[R], path: Traversable, name: str, overrides: Mapping[str, object] | None) -> R:
    where = f"{kind}/{path.name}" if _is_shipped(kind, path) else str(path)
    if isinstance(path, Path):
        what = f"{_SINGULAR[kind]} file"
        text = read_text(path, what=what, allowed="a readable file", max_bytes=_MAX_BYTES, refusal=CatalogError)
    else:
        text = path.read_text(encoding="utf-8")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        given = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "tables nested too deeply"
        raise CatalogError(what="TOML syntax", given=given, allowed="valid TOML", where=where) from None
    return record_from_mapping(model, data, where=where, text=text, overrides=overrides)


# ------------------------------------------------------------------------------------------------ names


def _folder(kind: str) -> Traversable:
    return importlib.resources.files("rackline.catalog").joinpath("data", kind)


def _find(kind: Kind, name: str) -> Traversable:
    """Return the file of a name; only alias look-ups open other files, and then only their headers."""
    if not name.endswith(".toml") and len(name) <= _LONGEST_NAME:
        if _CANONICAL.match(name) and (path := _folder(kind).joinpath(f"{name}.toml")).is_file():
            return path
        index = _alias_index(kind)
        for form in _forms(kind, name):
            if form in index:
                return _folder(kind).joinpath(f"{index[form]}.toml")
    user_file = Path(name)
    if (name.endswith(".toml") or "/" in name) and _exists(user_file):
        return user_file
    if name.endswith(".toml"):
        near = nearest_names(Path(name).stem[:_LONGEST_NAME], names(kind), 1)
        raise UnknownNameError(
            what=f"{_SINGULAR[kind]} file",
            given=name,
            allowed="an existing file",
            nearest=near[0] if near else None,
        )
    known = names(kind)
    near = _nearest(kind, name)
    raise UnknownNameError(
        what=_SINGULAR[kind],
        given=name,
        allowed=f"one of {len(known)} catalogue names or a .toml file",
        nearest=", ".join(near) or None,
    )


def _exists(file: Path) -> bool:
    """Whether there is something of this name that is no folder; reading it says what is wrong with a device."""
    try:
        return file.exists() and not file.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL character
        return False


def _nearest(kind: Kind, name: str) -> list[str]:
    """Return canonical names whose name or alias looks like the given one."""
    if len(name) > _LONGEST_NAME:
        return []
    index = _alias_index(kind)
    found: list[str] = []
    for form in _forms(kind, name):
        for near in nearest_names(form, [*names(kind), *index]):
            canonical = index.get(near, near)
            if canonical not in found:
                found.append(canonical)
    return found[:3]


def _forms(kind: Kind, name: str) -> list[str]:
    """Return the spellings under which a name is looked up, the most exact first.

    A model's Hugging Face id loses its organisation, the ``Meta-`` prefix and the suffixes for
    instruction tuning, format and quantisation one by one, so that an alias may name any of them.
    """
    forms = [name.lower()]
    if kind == "models":
        bare = forms[0].rsplit("/", 1)[-1]
        forms.append(bare)
        changed = True
        while changed:
            changed = False
            for prefix in _MODEL_PREFIXES:
                if bare.startswith(prefix):
                    bare, changed = bare.removeprefix(prefix), True
                    forms.append(bare)
            for suffix in _MODEL_SUFFIXES:
                if bare.endswith(suffix):
                    bare, changed = bare.removesuffix(suffix), True
                    forms.append(bare)
    return list(dict.fromkeys(forms))


@functools.cache
def _alias_index(kind: Kind) -> dict[str, str]:
    """Map lower-case aliases (and their shortened forms) to canonical names."""
    exact: dict[str, str] = {name: name for name in names(kind)}
    loose: dict[str, str] = {}
    for name in names(kind):
        for alias in _aliases(_folder(kind).joinpath(f"{name}.toml").read_text(encoding="utf-8")):
            forms = _forms(kind, alias)
            exact.setdefault(forms[0], name)
            for form in forms[1:]:
                loose.setdefault(form, name)
    return loose | exact


def _aliases(text: str) -> Sequence[str]:
    """Read the aliases from the head of a file, before its first table; a broken file has none."""
    head = re.split(r"(?m)^\s*\[[^\n]*\]\s*(?:#[^\n]*)?$", text, maxsplit=1)[0] if "\n[" in text else text
    try:
        aliases: object = tomllib.loads(head).get("aliases", [])
    except tomllib.TOMLDecodeError:
        return ()
    return [a for a in cast("list[object]", aliases) if isinstance(a, str)] if isinstance(aliases, list) else ()


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
    """Turn the first problem pydantic reports into one line with file, line and key."""
    problems = error.errors(include_url=False)
    # An unknown key is usually the cause of the missing one beside it, so it is named first.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
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
    given = cast("object", first["input"])
    if first["type"] == "extra_forbidden":
        near = nearest_names(str(path[-1]), keys_of_table(model, path[:-1]), 1)
        nearest, given, message = (near[0] if near else None), str(path[-1]), "only the keys of the schema"
    elif first["type"] == "missing":
        given, message = "nothing", "the key is required"
    elif first["type"] == "value_error":  # from a rule about a whole table, which has no single value
        given, message = message, "a consistent table"
    message = re.sub(r"^Input should (be )?", "", message)
    return CatalogError(what=key or "record", given=given, allowed=message, where=place, nearest=nearest)


def _path_of(dotted: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in dotted.split(".")]
