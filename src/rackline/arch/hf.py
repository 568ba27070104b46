"""Read a Hugging Face ``config.json`` as a model record.

This module, with the other `hf_*` beside it, is the only place that knows Hugging Face's keys. A new family is a new
function. Nothing is guessed: a key that no family reads and that may shape the model is an error that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rackline.arch.hf_config import HfConfig, ReadKeys, Table
from rackline.arch.hf_families import FAMILIES, UNNAMED, WRAPPERS
from rackline.arch.hf_ignored import TOWERS, refuse_unread
from rackline.arch.hf_quantization import native_precision
from rackline.catalog import ModelRecord
from rackline.catalog.load import record_from_mapping
from rackline.errors import CatalogError, ConfigError
from rackline.files import read_text

MAX_CONFIG_BYTES = 16 * 2**20
"""Largest config.json that is read [bytes]."""


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
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    where = str(file)
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
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    beside = file.parent if file.name == "config.json" else None
    return record_from_hf(cast("Table", config), name.rsplit("--", 1)[-1], where, beside)


def record_from_hf(config: Mapping[str, object], name: str, where: str, beside: Path | None = None) -> ModelRecord:
    """Translate the content of a ``config.json``.

    Args:
        config: The parsed JSON object.
        name: What to call the model.
        where: File or origin, for messages and for the record's source.
        beside: Folder in which an hf_quant_config.json may stand.

    Returns:
        The record, with one source of kind vendor. Towers for images and sound are left out and named in its note.

    Raises:
        ConfigError: The family is unknown, or a key is missing, unusable or not understood.
    """
    top = HfConfig(values=ReadKeys(config), where=where)
    wrapper = top.choice("model_type", {family: family for family in (*FAMILIES, *WRAPPERS)})
    text, model_type = top, wrapper
    if wrapper in WRAPPERS:
        section = top.section("text_config")
        text = HfConfig(values=ReadKeys(section.values), where=where, prefix=section.prefix)
        allowed = {family: family for family in WRAPPERS[wrapper]}
        model_type = text.choice("model_type", allowed, default=UNNAMED.get(wrapper))
    architecture = FAMILIES[model_type](text)
    if wrapper in WRAPPERS and text.values.get("tie_word_embeddings") is None:
        architecture["tied_embeddings"] = top.flag(
            "tie_word_embeddings", default=cast("bool", architecture["tied_embeddings"])
        )
    precision = native_precision(top, text, beside)
    refuse_unread(text, model_type)
    source: Table = {"fields": ["architecture.*"], "kind": "vendor", "citation": f"config.json: {where}"}
    towers = [key for key in TOWERS if config.get(key)]
    if towers:
        source["note"] = f"the language model alone; left out: {', '.join(towers)}"
    data: Table = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-") or "model",
        "full_name": name or "model",
        "native_precision": precision,
        "architecture": architecture,
        "sources": [source],
    }
    try:
        return record_from_mapping(ModelRecord, data, where=where)
    except CatalogError as error:
        raise ConfigError(what=error.what, given=error.given, allowed=error.allowed, where=where) from None
