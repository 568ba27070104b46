"""A user's own entry: the text of the nearest entry of the catalogue, each key with what it means.

The text is the entry's own file without its sources, so that it reads as the catalogue does; one source of kind assumed
says whose numbers it has.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rackline.catalog import ModelRecord, PriceSheetRecord
from rackline.catalog.base import SourcedRecord
from rackline.catalog.index import SINGULAR, Kind, file_of, find, names
from rackline.catalog.overrides import inner_models
from rackline.errors import InputError, UnknownNameError, nearest_name
from rackline.hardware.chip import ChipRecord
from rackline.hardware.fabric import ClusterRecord
from rackline.hardware.memory import MemoryTierRecord

KINDS: dict[str, tuple[Kind, type[SourcedRecord], str]] = {
    "chip": ("chips", ChipRecord, "h100-sxm"),
    "cluster": ("clusters", ClusterRecord, "dgx-h100"),
    "model": ("models", ModelRecord, "llama-3.1-8b"),
    "memory": ("memory", MemoryTierRecord, "ddr5-host"),
    "prices": ("prices", PriceSheetRecord, "anthropic-claude-opus-4.6"),
}
"""Singular of what can be made, its kind, its record, and whose numbers a name that is like no other gets."""

_HEADER = re.compile(r"^(\[{1,2})\s*([\w.-]+)\s*\]{1,2}\s*$")
_KEY = re.compile(r"^([A-Za-z0-9_-]+)\s*=")
_DROPPED = ("aliases", "released", "sources", "published", "checkpoints")
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,99}$")
_WIDTH = 100
_ALIKE = 0.7  # share of equal letters above which a name is near enough to be meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A new entry.

    Args:
        kind: chip, cluster, model, memory or prices.
        name: of the entry.
        nearest: entry of the catalogue whose numbers it has.
        text: TOML.
    """

    kind: str
    name: str
    nearest: str
    text: str


def template(kind: str, name: str, like: str | None = None) -> Template:
    """The text of a new entry.

    Args:
        kind: chip, cluster, model, memory or prices.
        name: lower case, such as "my-chip".
        like: entry of the catalogue whose numbers it gets; by default the one whose name is nearest.

    Raises:
        InputError: a kind that does not exist, or a name that cannot be one.
        UnknownNameError: `like` is no entry of the catalogue.

    Example:
        >>> template("chip", "h100-custom").nearest
        'h100-sxm'
    """
    if kind not in KINDS:
        raise InputError(what="kind", given=kind, allowed=", ".join(KINDS), nearest=nearest_name(kind, KINDS))
    if not _NAME.match(name):
        fixed = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:100]
        raise InputError(
            what="name", given=name, allowed="lower-case letters, digits, dots and hyphens", nearest=fixed or None
        )
    plural, record, usual = KINDS[kind]
    if name in names(plural):
        raise InputError(
            what="name", given=name, allowed=f"a name that the catalogue does not have ({SINGULAR[plural]} {name})",
            nearest=f"my-{name}",
        )  # fmt: skip
    nearest = _nearest(plural, name, like, usual)
    text = file_of(plural, nearest).read_text(encoding="utf-8")
    return Template(kind=kind, name=name, nearest=nearest, text=_written(text, record, kind, name, nearest))


def _nearest(kind: Kind, name: str, like: str | None, usual: str) -> str:
    if like is not None:
        file = find(kind, like).name.removesuffix(".toml")
        if file not in names(kind):
            raise UnknownNameError(
                what=SINGULAR[kind], given=like, allowed=f"one of {len(names(kind))} catalogue names"
            )
        return file
    try:
        return find(kind, name).name.removesuffix(".toml")  # another spelling of an entry
    except UnknownNameError as error:
        near = (error.nearest or "").split(", ")[0]
    if near and difflib.SequenceMatcher(None, name, near).ratio() >= _ALIKE:
        return near
    parts = [part for part in re.split(r"[^a-z0-9]+", name) if len(part) > 2]
    shared = {known: sum((part in known) + (part in known.split("-")) for part in parts) for known in names(kind)}
    best = max(shared, key=lambda known: (shared[known], -len(known)), default=usual)
    return best if shared.get(best) else usual if usual in names(kind) else names(kind)[0]


def _written(text: str, record: type[SourcedRecord], kind: str, name: str, nearest: str) -> str:
    check = " --check" if kind == "chip" else ""
    lines = [
        f"# {SINGULAR[KINDS[kind][0]].capitalize()} {name}: the numbers of {nearest}, to be replaced.",
        f"# Check it: rackline {_command(kind)} {name}.toml{check}    Use it: wherever a name of the catalogue stands.",
        "# Quantities are SI (bytes, bytes/s, FLOP/s, seconds, watts, USD); peaks are dense.",
        "",
    ]
    table: list[type[BaseModel]] = [record]
    for statement in _statements(text):
        header, key = _HEADER.match(statement), _KEY.match(statement)
        if header is not None:
            path = header[2].split(".")
            table = _tables_at(record, path)
            lines += ["", *_comments(_meaning_of_table(table)), statement]
        elif key is not None:
            meaning = _meaning(table, key[1])
            shown = statement
            if table == [record] and key[1] in ("name", "full_name"):
                shown = f'{key[1]} = "{name}"'
            lines += [*_comments(meaning), shown]
        elif statement.startswith("#"):
            lines.append(statement)
    fields = 'fields = ["*"]\nkind = "assumed"'
    lines += ["", "# Where the numbers come from: one entry for each source; fields are keys, or prefixes such as",
              '# "architecture.*"; kind is measured, vendor, paper, derived or assumed.', "[[sources]]", fields,
              f'citation = "numbers of {nearest}, not yet replaced"', ""]  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _command(kind: str) -> str:
    return {"chip": "chips", "cluster": "clusters", "model": "models", "memory": "memory", "prices": "infer-prices"}[
        kind
    ]


def _statements(text: str) -> Iterator[str]:
    """Headers, comments and assignments of a file, values over several lines joined; dropped tables left out."""
    table, kept = "", ""
    for line in text.splitlines():
        if kept:
            kept += f"\n{line}"
            if kept.count("[") - kept.count("]") <= 0:
                yield kept
                kept = ""
            continue
        if header := _HEADER.match(line.strip()):
            table = header[2].split(".")[0]
        key = _KEY.match(line)
        if table in _DROPPED or (not table and key is not None and key[1] in _DROPPED):
            if key is not None and line.count("[") > line.count("]"):
                table = table or "aliases"  # the lines of a list that is dropped
            elif table == "aliases" and line.strip() == "]":
                table = ""
            continue
        if key is not None and line.count("[") > line.count("]"):
            kept = line
        elif line.strip():
            yield line.rstrip()


def _tables_at(record: type[BaseModel], path: list[str]) -> list[type[BaseModel]]:
    tables: list[type[BaseModel]] = [record]
    for part in path:
        tables = [inner for table in tables for inner in inner_models(table.model_fields.get(part))]
    return tables


def _meaning(tables: list[type[BaseModel]], key: str) -> str:
    return next((text for table in tables if (text := _arguments(table).get(key))), "")


def _meaning_of_table(tables: list[type[BaseModel]]) -> str:
    if not tables:
        return ""
    doc = inspect.getdoc(tables[0]) or ""
    return doc.split("\n\n")[0].replace("\n", " ")


def _arguments(record: type[Any]) -> dict[str, str]:
    """What the docstrings of a record and its bases say of its fields."""
    found: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        doc = inspect.cleandoc(owner.__doc__ or "") if issubclass(owner, BaseModel) and owner is not BaseModel else ""
        _, _, listed = doc.partition("Args:\n")
        for entry in re.split(r"\n(?=    \S)", listed):
            keys, colon, meaning = entry.strip().partition(":")
            if colon and re.fullmatch(r"[\w, ]+", keys):
                for key in keys.split(","):
                    found[key.strip()] = " ".join(meaning.split())
    return found


def _comments(meaning: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(meaning, _WIDTH - 2)] if meaning else []
