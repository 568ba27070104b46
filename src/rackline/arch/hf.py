"""Read a Hugging Face ``config.json`` as a model record.

This module, with the other `hf_*` beside it, is the only place that knows Hugging Face's keys. Families that differ in
the names of their keys alone are rows of `hf_tables.py`, others are functions. Nothing is guessed: a key that no family
reads and that may shape the model is an error that names it, unless the caller says what to assume.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rackline.arch.hf_config import HfConfig, ReadKeys, Table
from rackline.arch.hf_families import FAMILIES, INNER, UNNAMED, WRAPPERS
from rackline.arch.hf_ignored import shaping_keys, unread_keys
from rackline.arch.hf_positions import context_limits
from rackline.arch.hf_quantization import native_precision
from rackline.arch.hf_towers import towers_of
from rackline.catalog import ModelRecord
from rackline.catalog.load import record_from_mapping
from rackline.errors import CatalogError, ConfigError, nearest_names
from rackline.files import read_text

MAX_CONFIG_BYTES = 16 * 2**20
"""Largest config.json that is read [bytes]."""
Beside = Callable[[str], Path | None]
"""A small file beside a configuration, by name; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """What a configuration says.

    Args:
        record: validated.
        warnings: what was assumed.
    """

    record: ModelRecord
    warnings: tuple[str, ...] = ()


def read_hf_config(path: str | Path) -> ModelRecord:
    """Read a local ``config.json``.

    Args:
        path: The file, or the folder that holds a ``config.json``.

    Returns:
        The record; its name is the folder's (or the file's, if it is not called config.json).

    Raises:
        ConfigError: The file cannot be read or is no JSON object, the family is unknown, or a key is missing
            or unusable; names file, key and what is allowed.
    """
    return read_config_file(path).record


def read_config_file(path: str | Path, *, assume: Sequence[str] = ()) -> ReadConfig:
    """The same with what was assumed; `assume` as in `read_config`."""
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "config.json"
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    folder = file.parent if file.name == "config.json" else None

    def beside(other: str) -> Path | None:
        return folder / other if folder is not None and (folder / other).is_file() else None

    return read_config(json_object(file), name.rsplit("--", 1)[-1], str(file), beside=beside, assume=assume)


def json_object(file: Path, where: str = "") -> Table:
    """The object of a JSON file.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    where = where or str(file)
    text = read_text(
        file, what="config.json", allowed="a readable file", max_bytes=MAX_CONFIG_BYTES, refusal=ConfigError
    )
    try:
        config: object = json.loads(text)  # Infinity occurs in keys that we do not read
    except json.JSONDecodeError as error:
        raise ConfigError(
            what="JSON syntax",
            given=error.msg,
            allowed="valid JSON",
            where=f"{where}, line {error.lineno}, column {error.colno}",
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(what="JSON syntax", given=str(error), allowed="valid JSON", where=where) from None
    if not isinstance(config, dict):
        raise ConfigError(what="JSON", given=type(config).__name__, allowed="an object", where=where)
    return cast("Table", config)


def record_from_hf(config: Mapping[str, object], name: str, where: str) -> ModelRecord:
    """Translate the content of a ``config.json``; arguments, result and errors as in `read_config`."""
    return read_config(config, name, where).record


def read_config(
    config: Mapping[str, object],
    name: str,
    where: str,
    *,
    beside: Beside | None = None,
    assume: Sequence[str] = (),
) -> ReadConfig:
    """Translate the content of a ``config.json``.

    Args:
        config: The parsed JSON object.
        name: What to call the model.
        where: File or origin, for messages and for the record's source.
        beside: Finds an hf_quant_config.json.
        assume: A family to read it as ("llama"), then keys that nobody understands are left out; KEY=VALUE puts a
            value into the configuration. Everything that was assumed is in the warnings.

    Returns:
        The record, with one source of kind vendor. Towers for images and sound are counted; those of which nothing is
        known are named in its note. The warnings say what the reader leaves out or simplifies.

    Raises:
        ConfigError: The family is unknown, or a key is missing, unusable or not understood.
    """
    family, values = _assumptions(assume)
    warnings = [f"{where}: {key} taken as {value!r} (--assume)" for key, value in values.items()]
    config = _with_values(config, values)
    top = HfConfig(values=ReadKeys(config), where=where)
    text, model_type = _language_model(top, family)
    if family:
        said = top.values.get("model_type")
        if said != family:
            warnings.append(f"{where}: model_type {said!r} read as {family} (--assume)")
    architecture = FAMILIES[model_type](text)
    if text is not top and text.values.get("tie_word_embeddings") is None:
        architecture["tied_embeddings"] = top.flag(
            "tie_word_embeddings", default=cast("bool", architecture["tied_embeddings"])
        )
    drafted = text.optional("draft_vocab_size")  # EAGLE-3: its head knows the usual tokens alone
    if drafted is not None and drafted < cast("int", architecture["vocab_size"]):
        architecture["vocab_size"] = drafted
    architecture.update(context_limits(text))
    precision = native_precision(top, text, beside)
    unread = unread_keys(text)
    if unread and not family:
        others = f"; not understood either: {', '.join(unread[1:])}" if unread[1:] else ""
        raise text.fail(
            unread[0],
            f"a key that the family {model_type} is known to have (this one is not understood{others}); "
            f"--assume {model_type} leaves it out, marked in every answer",
        )
    if unread:
        warnings.append(f"{where}: keys that are not understood were left out (--assume): {', '.join(unread)}")
    source: Table = {"fields": ["architecture.*"], "kind": "vendor", "citation": f"config.json: {where}"}
    if values or family:
        source["kind"] = "assumed"
    towers, unknown = towers_of(config, where, text.dropped)
    if towers:
        architecture["tower_params"] = sum(tower.model.total_params for tower in towers)
    if unknown:
        source["note"] = f"the language model alone; left out: {', '.join(unknown)}"
        text.dropped.append(f"towers of which nothing is known are not counted ({', '.join(unknown)})")
    if text.dropped:
        warnings.append(f"{where}: {'; '.join(text.dropped)}")
    data: Table = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-") or "model",
        "full_name": name or "model",
        "native_precision": precision,
        "architecture": architecture,
        "sources": [source],
    }
    try:
        return ReadConfig(record=record_from_mapping(ModelRecord, data, where=where), warnings=tuple(warnings))
    except CatalogError as error:
        raise ConfigError(what=error.what, given=error.given, allowed=error.allowed, where=where) from None


def _language_model(top: HfConfig, family: str) -> tuple[HfConfig, str]:
    """The part that describes the language model, and the family that reads it."""
    inner = next((key for key in INNER if isinstance(top.values.get(key), dict)), "")
    given = top.values.get("model_type")
    said = given if isinstance(given, str) else ""
    if inner and (family or said in WRAPPERS):
        section = top.section(inner)
        text = replace(section, values=ReadKeys(section.values))
        if family:
            return text, family
        allowed = WRAPPERS[said]
        if text.values.get("model_type") is None and said in UNNAMED:
            return text, UNNAMED[said]
        return text, text.choice("model_type", {one: one for one in (allowed or tuple(FAMILIES))})
    if family:
        return top, family
    if said and said not in FAMILIES and said not in WRAPPERS:
        raise _unknown_family(top, said)
    model_type = top.choice("model_type", {one: one for one in (*FAMILIES, *WRAPPERS)})
    if model_type in WRAPPERS and model_type not in FAMILIES:
        top.section("text_config")  # is missing, and the error says so
    return top, model_type


def _unknown_family(top: HfConfig, said: str) -> ConfigError:
    near = nearest_names(said, FAMILIES, 1)
    inner = top.values.get("text_config")
    keys = shaping_keys(cast("Table", inner) if isinstance(inner, dict) else top.values)
    return ConfigError(
        what="model_type",
        given=said,
        allowed=f"one of {len(FAMILIES)} families (docs/model-imports.md), or --assume FAMILY to read it as one; "
        f"keys that may shape it: {', '.join(keys) or 'none'}",
        where=top.where,
        nearest=near[0] if near else None,
    )


def _assumptions(assume: Sequence[str]) -> tuple[str, Table]:
    """The family and the values of `assume`.

    Raises:
        ConfigError: neither a family nor KEY=VALUE.
    """
    family, values = "", dict[str, object]()
    for text in assume:
        key, equals, value = (part.strip() for part in text.partition("="))
        if equals and key:
            try:
                values[key] = json.loads(value)
            except (ValueError, RecursionError):
                values[key] = value
        elif text in FAMILIES and not family:
            family = text
        else:
            near = nearest_names(text, FAMILIES, 1)
            raise ConfigError(
                what="assume",
                given=text,
                allowed="one family such as llama, and KEY=VALUE for keys of config.json",
                nearest=near[0] if near else None,
            )
    return family, values


def _with_values(config: Mapping[str, object], values: Mapping[str, object]) -> Mapping[str, object]:
    """The configuration with values put in; dotted keys reach into objects, others into text_config if it has them."""
    if not values:
        return config
    changed = {**config}
    for key, value in values.items():
        path = key.split(".")
        inner = changed.get("text_config")
        if len(path) == 1 and isinstance(inner, dict) and key not in changed:
            path = ["text_config", key]
        place = changed
        for part in path[:-1]:
            below = place.get(part)
            place[part] = {**cast("Table", below)} if isinstance(below, dict) else {}
            place = cast("Table", place[part])
        place[path[-1]] = value
    return changed
