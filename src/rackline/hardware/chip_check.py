"""Files that a user writes: what the record of a chip lacks or leaves in doubt, and templates of new entries.

A record that loads has all that a pass needs. What else it could hold decides how far answers can be trusted: a
missing number is replaced by another chip's or leaves a part of an answer out, a doubtful one is used as it stands.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from rackline.catalog import ModelRecord, PriceSheetRecord, calibration_record, measured_stacks
from rackline.catalog.base import Evidence, SourcedRecord, from_record, tables_at
from rackline.catalog.index import SINGULAR, Kind, file_of, find, names
from rackline.errors import InputError, UnknownNameError, require, unknown_name
from rackline.hardware.chip import Chip, ChipRecord, chip, stated_chips
from rackline.hardware.fabric import ClusterRecord
from rackline.hardware.memory import MemoryTierRecord

SHARE_OF_CHIPS = 0.9
"""Share of the chips in the catalogue whose range of a ratio is taken as usual."""
_MOST_FASTER = 2.1  # a narrower type is twice as fast, rounded; four times as fast is often a rate with sparsity
_FEWEST_HBM_BYTES = 1e9  # below, weights are spread over the memory of many chips on the die

State = Literal["missing", "doubtful"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFinding:
    """One number that is missing or doubtful.

    Args:
        key: of the record, or what stands outside of it ("measured kernels", "cluster").
        state: missing or doubtful.
        why: what was found.
        effect: what becomes of answers.
    """

    key: str
    state: State
    why: str
    effect: str


def check_chip(record: ChipRecord) -> tuple[ChipFinding, ...]:
    """All that is missing or doubtful in the record of a chip, what is missing first.

    Example:
        >>> from rackline.hardware import chip_record
        >>> {finding.key for finding in check_chip(chip_record("h100-sxm"))} & {"power_w", "cores", "measured kernels"}
        set()
    """
    of = from_record(Chip, record)
    found = [
        *_missing(record, of), *_without_measurements(of), *_sources(record), *_amounts(of), *_ratios(of), *_rents(of)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda finding: finding.state != "missing"))


# ------------------------------------------------------------------------------------------------ what is missing

_NO_RENT = "no dollars: plans rank by chips, `price` and `compare` need --price"
_EFFECTS: Mapping[str, str] = {
    "power_w": "no watts and no joules; efficiencies taken from other chips are not corrected for power",
    "power": "watts and joules follow from the mean shares of measured chips, or of those of its generation",
    "cores": "tiles of attention and experts are spread over 128 cores",
    "driver_bytes": "all of hbm_bytes counts as free for programs: up to 3 % more than fits",
    "usd_per_chip_hour": _NO_RENT,
    "rents": "--rent of any kind is estimated from usd_per_chip_hour and marked as estimated",
    "rent_kind": "the price is compared with prices of other kinds as if it were of theirs",
    "released": "shown as no date; nothing is computed from it",
    "l2_bytes": "shown as unknown; passes do not depend on it",
}
_TYPES: Mapping[str, str] = {
    "bf16": "16-bit models need fp16, or are refused",
    "fp8": "fp8 weights are kept in fp8 and multiplied in a wider type; no speed is gained",
    "fp4": "fp4 weights are kept in fp4 and multiplied in a wider type; no speed is gained",
    "int8": "int8 products run in another type",
    "fp32": "--precision fp32 is refused",
}


def _missing(record: ChipRecord, of: Chip) -> Iterator[ChipFinding]:
    for key, effect in _EFFECTS.items():
        said_of_price = key in ("rents", "rent_kind") and of.usd_per_chip_hour is None
        if key not in record.model_fields_set and not getattr(of, key) and not said_of_price:
            yield ChipFinding(key=key, state="missing", why="not stated", effect=effect)
    peaks = of.peak_flop_per_s
    for dtype, effect in _TYPES.items():
        if dtype not in peaks:
            yield ChipFinding(
                key=f"peak_flop_per_s.{dtype}", state="missing", why="absent means not supported", effect=effect
            )


def _without_measurements(of: Chip) -> Iterator[ChipFinding]:
    tables = [calibration_record(stack) for stack in measured_stacks()]
    chips = {entry.chip for table in tables for entry in table.operation}
    if of.name in chips:
        return
    siblings = sorted(name for name in chips if name in names("chips") and chip(name).generation == of.generation)
    if siblings:
        yield ChipFinding(
            key="measured kernels",
            state="missing",
            why=f"none of {of.name}; {of.generation} has {', '.join(siblings)}",
            effect="kernels reach the shares of the peaks of these chips, corrected for power and memory",
        )
        return
    generations = sorted({chip(name).generation for name in chips if name in names("chips")})
    yield ChipFinding(
        key="generation",
        state="missing",
        why=f"nothing measured on {of.generation}; measured are {', '.join(generations)}",
        effect="kernels reach the mean shares of all chips: times can be off by tens of percent",
    )


# ----------------------------------------------------------------------------------------------- what is doubtful


def _sources(record: ChipRecord) -> Iterator[ChipFinding]:
    assumed: dict[str, list[str]] = {}
    undated: dict[str, list[str]] = {}
    for key in record.numbers():
        source = record.source_of(key)
        if source is None:
            continue
        if source.kind == Evidence.ASSUMED:
            assumed.setdefault(source.citation or source.url or "", []).append(key)
        elif source.url is not None and source.accessed is None:
            undated.setdefault(source.url, []).append(key)
    for citation, keys in assumed.items():
        yield ChipFinding(
            key=_named(keys),
            state="doubtful",
            why=f"assumed: {citation}",
            effect="used as they stand; replace them, and name data sheet or measurement under [[sources]]",
        )
    for url, keys in undated.items():
        yield ChipFinding(
            key=_named(keys), state="doubtful", why=f"{url} without the day it was read",
            effect="used as they stand; pages of vendors change",
        )  # fmt: skip


def _named(keys: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(key.split(".")[0] for key in keys))


def _amounts(of: Chip) -> Iterator[ChipFinding]:
    if of.hbm_bytes >= _FEWEST_HBM_BYTES and of.hbm_bytes % 1e9 == 0:
        yield ChipFinding(
            key="hbm_bytes",
            state="doubtful",
            why=f"{of.hbm_bytes / 1e9:,.0f} GB exactly, as in a data sheet",
            effect=f"drivers report binary units: {of.hbm_bytes / 1e9:,.0f} GiB are "
            f"{of.hbm_bytes / 1e9 * 2**30:.0f} bytes, 7.4 % more to hold a KV cache",
        )
    peaks = of.peak_flop_per_s
    for narrow, wide in (("fp8", "bf16"), ("int8", "bf16"), ("fp4", "fp8")):
        fast, slow = peaks.get(narrow), peaks.get(wide)
        if fast is not None and slow is not None and fast / slow > _MOST_FASTER:
            yield ChipFinding(
                key=f"peak_flop_per_s.{narrow}",
                state="doubtful",
                why=f"{fast / slow:.3g} times {wide}",
                effect=f"a rate with structured sparsity would make every {narrow} product twice as fast as it is",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ratio:
    """Something that is alike on most chips: its keys, its value, its unit, what a slip would do."""

    key: str
    of: Callable[[Chip], float | None]
    unit: str
    effect: str


_RATIOS = (
    _Ratio(
        key="hbm_bytes_per_s",
        of=lambda chip: 1e3 * chip.hbm_bytes / chip.hbm_bytes_per_s,
        unit="ms to read all of hbm_bytes",
        effect="decode steps wait for memory: their time goes with this number (units are bytes and bytes/s)",
    ),
    _Ratio(
        key="peak_flop_per_s",
        of=lambda chip: chip.peak_16_bit / chip.hbm_bytes_per_s,
        unit="FLOP/byte at the ridge, as if of 16 bits",
        effect="prompts and training wait for products: their time goes with this number (dense FLOP/s)",
    ),
    _Ratio(
        key="power_w",
        of=lambda chip: chip.power_w and chip.peak_16_bit / chip.power_w / 1e12,
        unit="TFLOP/s per watt, as if of 16 bits",
        effect="watts and joules; efficiencies taken from other chips are corrected by it",
    ),
    _Ratio(
        key="usd_per_chip_hour",
        of=lambda chip: chip.usd_per_chip_hour and chip.peak_16_bit / chip.usd_per_chip_hour / 1e12,
        unit="TFLOP/s for a dollar an hour, as if of 16 bits",
        effect="all costs go with this number (USD per chip and hour)",
    ),
)


def _ratios(of: Chip) -> Iterator[ChipFinding]:
    others = [other for other in stated_chips() if other.name != of.name]
    for ratio in _RATIOS:
        mine = ratio.of(of)
        if mine is None:
            continue
        known = sorted(value for other in others if (value := ratio.of(other)) is not None)
        cut = round(len(known) * (1 - SHARE_OF_CHIPS) / 2)
        low, high = known[cut], known[-1 - cut]
        if not low <= mine <= high:
            yield ChipFinding(
                key=ratio.key,
                state="doubtful",
                why=f"{mine:.3g} {ratio.unit}; {SHARE_OF_CHIPS:.0%} of chips {low:.3g} to {high:.3g}",
                effect=ratio.effect,
            )


def _rents(of: Chip) -> Iterator[ChipFinding]:
    price, kind = of.usd_per_chip_hour, of.rent_kind
    if price is None or kind is None or not of.rents:
        return
    listed = of.rents.get(kind)
    if listed is None or listed.usd_per_chip_hour != price:
        yield ChipFinding(
            key="usd_per_chip_hour",
            state="doubtful",
            why=f"{price:g} of kind {kind}, but [rents] has "
            + (f"{listed.usd_per_chip_hour:g}" if listed else "no such kind"),
            effect="answers without --rent and with it differ",
        )


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
        raise unknown_name("kind", kind, KINDS)
    if not _NAME.match(name):
        fixed = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:100]
        raise InputError(
            what="name", given=name, allowed="lower-case letters, digits, dots and hyphens", nearest=fixed or None
        )
    plural, record, usual = KINDS[kind]
    require(
        name not in names(plural),
        what="name",
        given=name,
        allowed=f"a name that the catalogue does not have ({SINGULAR[plural]} {name})",
        nearest=f"my-{name}",
    )
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
            table = tables_at(record, header[2].split("."))
            lines += ["", *_comments(_meaning_of_table(table)), statement]
        elif key is not None:
            own = table == [record] and key[1] in ("name", "full_name")
            lines += [*_comments(_meaning(table, key[1])), f'{key[1]} = "{name}"' if own else statement]
        elif statement.startswith("#"):
            lines.append(statement)
    fields = 'fields = ["*"]\nkind = "assumed"'
    lines += ["", "# Where the numbers come from: one entry for each source; fields are keys, or prefixes such as",
              '# "architecture.*"; kind is measured, vendor, paper, derived or assumed.', "[[sources]]", fields,
              f'citation = "numbers of {nearest}, not yet replaced"', ""]  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _command(kind: str) -> str:
    return "infer-prices" if kind == "prices" else KINDS[kind][0]


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


def _meaning(tables: list[type[BaseModel]], key: str) -> str:
    return next((text for table in tables if (text := _arguments(table).get(key))), "")


def _meaning_of_table(tables: list[type[BaseModel]]) -> str:
    if not tables:
        return ""
    return (inspect.getdoc(tables[0]) or "").split("\n\n")[0].replace("\n", " ")


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
