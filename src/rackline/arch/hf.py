"""Read a Hugging Face ``config.json`` as a model record.

This module, with `hf_families` and `hf_config` beside it, is the only place that knows Hugging Face's keys.
A new family is a new function in `hf_families`. Nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rackline.arch.hf_config import HfConfig, Table
from rackline.arch.hf_families import FAMILIES, WRAPPERS
from rackline.catalog import ModelRecord
from rackline.catalog.load import record_from_mapping
from rackline.errors import CatalogError, ConfigError


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
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise ConfigError(what="config.json", given=str(path), allowed=f"a readable UTF-8 file ({reason})") from None
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
    return record_from_hf(cast("Table", config), name.rsplit("--", 1)[-1], where)


def record_from_hf(config: Mapping[str, object], name: str, where: str) -> ModelRecord:
    """Translate the content of a ``config.json``.

    Args:
        config: The parsed JSON object.
        name: What to call the model.
        where: File or origin, for messages and for the record's source.

    Returns:
        The record, with one source of kind vendor.

    Raises:
        ConfigError: The family is unknown, or a key is missing or unusable.
    """
    top = HfConfig(values=config, where=where)
    model_type = top.choice("model_type", {family: family for family in (*FAMILIES, *WRAPPERS)})
    text = top
    if model_type in WRAPPERS:
        text = top.section("text_config")
        model_type = text.choice("model_type", {family: family for family in WRAPPERS[model_type]})
    data: Table = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-") or "model",
        "full_name": name or "model",
        "native_precision": _native_precision(top, text),
        "architecture": FAMILIES[model_type](text),
        "sources": [{"fields": ["architecture.*"], "kind": "vendor", "citation": f"config.json: {where}"}],
    }
    try:
        return record_from_mapping(ModelRecord, data, where=where)
    except CatalogError as error:
        raise ConfigError(what=error.what, given=error.given, allowed=error.allowed, where=where) from None


# ------------------------------------------------------------------------------------------------ precision

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
_BITS = {"int4": "int4", "int8": "int8-weights", "float8": "fp8"}


def _native_precision(top: HfConfig, text: HfConfig) -> str:
    """Label of the published weights: from quantization_config where there is one, else the data type."""
    for config in (top, text):
        if config.values.get("quantization_config") is not None:
            return _quantization(config.section("quantization_config"))
    for config in (text, top):
        for key in ("torch_dtype", "dtype"):
            if config.values.get(key) is not None:
                return config.choice(key, _DTYPES)
    raise top.fail("torch_dtype", "one of " + ", ".join(sorted(_DTYPES)))


def _quantization(q: HfConfig) -> str:
    if q.values.get("quant_algo") is not None:  # NVIDIA ModelOpt
        return q.choice("quant_algo", _ALGORITHMS)
    method = q.values.get("quant_method")
    if method in ("awq", "gptq"):
        bits = HfConfig(values={"bits": f"int{q.count('bits')}"}, where=q.where, prefix=q.prefix)
        return bits.choice("bits", _BITS)
    if method == "compressed-tensors":
        weights = q.section("config_groups").section("group_0").section("weights")
        kind = f"{weights.values.get('type')}{weights.count('num_bits')}"
        if kind not in _BITS:
            raise weights.fail("num_bits", "int 4, int 8 or float 8")
        return _BITS[kind]
    known = {**_METHODS, "awq": "", "gptq": "", "compressed-tensors": ""}
    label = q.choice("quant_method", known)
    return "fp8_block" if label == "fp8" and q.values.get("weight_block_size") is not None else label
