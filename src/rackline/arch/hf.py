"""Read a Hugging Face ``config.json`` as a model record.

This module, with the other `hf_*` beside it, is the only place that knows Hugging Face's keys. Families that differ in
the names of their keys alone are rows of `hf_tables.py`, others are functions. Nothing is guessed: a key that no family
reads and that may shape the model is an error that names it, unless the caller says what to assume.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rackline.arch.hf_config import HfConfig, ReadKeys, Table, shaping_keys, unread_keys
from rackline.arch.hf_families import FAMILIES, INNER, UNNAMED, WRAPPERS
from rackline.arch.hf_towers import towers_of
from rackline.catalog import ModelRecord
from rackline.catalog.load import record_from_mapping
from rackline.errors import CatalogError, ConfigError, InputError, nearest_name
from rackline.files import each_once, read_text

_LIMITS = ("max_position_embeddings", "max_sequence_length", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_WITHIN = ("su", "longrope", "llama3", "mrope", "default", "proportional")
"""Kinds of scaling whose max_position_embeddings is the stretched limit already (vLLM, `_get_and_verify_max_len`)."""
_MOST_FACTOR = 1e4


def context_limits(c: HfConfig) -> Table:
    """max_context_len and rope_scaling of an architecture table; {} where the configuration does not say.

    The limit is max_position_embeddings, times the factor of a scaling that stretches it: YaRN's factor counts from
    original_max_position_embeddings where that is given (arXiv:2309.00071; vLLM derives max_model_len in the same way).
    """
    limit = next((value for key in _LIMITS if _whole(value := c.values.get(key))), None)
    scaling = c.values.get("rope_scaling") or c.values.get("rope_parameters")
    table = cast("Table", scaling) if isinstance(scaling, dict) else {}
    kind = table.get("rope_type", table.get("type"))
    found: Table = {}
    if isinstance(kind, str) and kind and kind != "default":
        factor, start = table.get("factor"), table.get("original_max_position_embeddings")
        usable = isinstance(factor, (int, float)) and not isinstance(factor, bool) and 1 <= factor <= _MOST_FACTOR
        if usable and kind not in _WITHIN and limit is not None:
            limit = round(cast("int", start if kind == "yarn" and _whole(start) else limit) * cast("float", factor))
        words = [kind, *([f"factor {factor:g}"] if usable else []), *([f"over {start}"] if _whole(start) else [])]
        found["rope_scaling"] = " ".join(words)[:100]
    if limit is not None:
        found["max_context_len"] = limit
    return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**10


_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
_ALGORITHMS = {
    "FP8": "fp8",
    "NVFP4": "nvfp4",
    "MIXED_PRECISION": "mixed",
    "W4A16_AWQ": "int4",
    "W4A16_NVFP4": "bf16,weights=fp4,activations=bf16",
    "FP8_PB_WO": "fp8_block",
}
_LAYER_TYPES = {
    "FP8": ("fp8", "fp8"),
    "NVFP4": ("fp4", "fp4"),
    "FP8_PB_WO": ("fp8_block", "fp8_block"),
    "MXFP8": ("mxfp8", "mxfp8"),
    "W4A16_AWQ": ("int4", "bf16"),
    "W4A16_NVFP4": ("fp4", "bf16"),
}
"""Data types of weights and activations by the algorithm of a layer."""
_BITS = {"int4": "int4", "int8": "int8-weights", "float8": "fp8", "mxfp4": "mxfp4", "float4": "nvfp4"}
_FP4 = {"fp4": "mxfp4", "nvfp4": "fp4", "fp8": ""}

_ATTENTION = re.compile(r"self_attn|\.attn|attention|linear_attn")
_EXPERTS = re.compile(r"experts")
_BLOCK = re.compile(r"(gate|up|down|gate_up)_proj$|\.fc[12]$")
_HEAD = re.compile(r"(^|\.)lm_head$")


def native_precision(top: HfConfig, text: HfConfig, beside: Callable[[str], Path | None] | None = None) -> str:
    """Label of the published weights: from quantization_config where there is one, else the data type.

    Args:
        top: the whole configuration.
        text: the part that describes the language model.
        beside: finds an hf_quant_config.json, which may say what config.json does not (NVIDIA ModelOpt).
    """
    for config in (top, text):
        if config.values.get("quantization_config") is not None:
            block = config.section("quantization_config")
            return _quantization(block, text) + _cache(block)
    file = beside("hf_quant_config.json") if beside is not None else None
    if file is not None:
        try:
            found: object = json.loads(read_text(file, what="config", allowed="a readable file"))
        except (InputError, ValueError, RecursionError):
            raise top.fail("quantization_config", "a readable hf_quant_config.json beside it") from None
        if isinstance(found, dict):
            block = HfConfig(values=cast("Table", found), where=str(file)).section("quantization")
            return _quantization(block, text) + _cache(block)
    for config in (text, top):
        for key in ("torch_dtype", "dtype"):
            if config.values.get(key) is not None:
                return config.choice(key, _DTYPES)
    raise top.fail("torch_dtype", "one of " + ", ".join(sorted(_DTYPES)))


def _quantization(q: HfConfig, text: HfConfig) -> str:
    if q.values.get("quant_algo") is not None:  # NVIDIA ModelOpt
        label = q.choice("quant_algo", _ALGORITHMS)
        return _mixed(q, text) if label == "mixed" else label
    method = q.values.get("quant_method")
    if method in ("awq", "gptq"):
        bits = HfConfig(values={"bits": f"int{q.count('bits')}"}, where=q.where, prefix=q.prefix)
        return bits.choice("bits", {"int4": "int4", "int8": "int8-weights"})
    if method == "compressed-tensors":
        return _compressed_tensors(q)
    label = q.choice("quant_method", {**_METHODS, "awq": "", "gptq": "", "compressed-tensors": ""})
    if label == "fp8" and q.values.get("weight_block_size") is not None:
        label = "fp8_block"
    # DeepSeek-V4 keeps its experts in fp4, V4.1 says so in the block
    experts = next((e for part in (q, text) if (e := part.choice("expert_dtype", _FP4, default=""))), "")
    return f"{label},experts={experts},expert_activations=mxfp8" if experts else label


def _cache(q: HfConfig) -> str:
    """Part that says that servers keep the KV cache in 8 bits; nothing where the block has no scheme for it.

    A server's "auto" is then the type of the model (vLLM, SGLang).
    """
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        scheme = q.values.get(key)
        if isinstance(scheme, dict):
            scheme = f"{cast('Table', scheme).get('type')}{cast('Table', scheme).get('num_bits')}"
        if scheme is not None:
            return ",kv=fp8" if str(scheme).lower() in ("fp8", "float8") else ""
    return ""


def _compressed_tensors(q: HfConfig) -> str:
    weights = q.section("config_groups").section("group_0").section("weights")
    kind = f"{weights.values.get('type')}{weights.count('num_bits')}"
    if kind == "float4" and "mxfp4" in str(q.values.get("format")):
        kind = "mxfp4"
    weights.require(kind in _BITS, "num_bits", "int 4, int 8, float 4 or float 8")
    label = _BITS[kind]
    ignored = q.values.get("ignore")
    names = cast("list[object]", ignored) if isinstance(ignored, list) else []
    if any(_ATTENTION.search(str(name)) for name in names) and label in ("int4", "mxfp4"):
        return f"bf16,experts={label}"  # weights alone are quantised, and those of the experts alone
    return label


def _mixed(q: HfConfig, text: HfConfig) -> str:
    """Several algorithms in one checkpoint: by an explicit type of the experts, or by the list of modules."""
    if q.values.get("moe_quant_algo") is not None and q.values.get("quant_method") == "fp8":
        experts = q.choice("moe_quant_algo", {"NVFP4": "fp4", "FP8": "fp8"})
        text.leave("expert_dtype")  # that of the checkpoint before
        base = "fp8_block" if q.values.get("weight_block_size") is not None else "fp8"
        return f"{base},experts={experts},expert_activations={experts}"
    layers = q.values.get("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        raise q.fail("quantized_layers", "an object that gives each module its quant_algo")
    found: dict[str, Counter[str]] = {"linear": Counter(), "experts": Counter()}
    for name in cast("Table", layers):
        algorithm = q.section("quantized_layers").section(name).choice("quant_algo", {key: key for key in _LAYER_TYPES})
        found["experts" if _EXPERTS.search(name) else "linear"][algorithm] += _weights(name, text)
    for part, counter in found.items():
        if len(counter) > 1:
            most, *others = (key for key, _ in counter.most_common())
            text.dropped.append(f"{part} layers in {', '.join(others)} are taken as {most}, as most weights are")
    most = {part: counter.most_common(1)[0][0] for part, counter in found.items() if counter}
    weights, activations = _LAYER_TYPES[most["linear"]] if "linear" in most else ("bf16", "bf16")
    label = f"bf16,weights={weights},activations={activations}"
    if "experts" in most:
        weights, activations = _LAYER_TYPES[most["experts"]]
        label += f",experts={weights},expert_activations={activations}"
    return label


def _weights(name: str, text: HfConfig) -> int:
    """About how many weights a module has, by its name; 1 where the configuration does not say."""
    width, inner = text.optional("hidden_size") or 1, text.optional("intermediate_size") or 1
    if _EXPERTS.search(name) or _HEAD.search(name):
        return 1
    return width * (inner if _BLOCK.search(name) else width)


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
    """Read a configuration from a file, with what was assumed; `assume` as in `read_config`."""
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
        config: object = json.loads(text, object_pairs_hook=each_once)  # Infinity occurs in keys that we do not read
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
    inner = top.values.get("text_config")
    keys = shaping_keys(cast("Table", inner) if isinstance(inner, dict) else top.values)
    return ConfigError(
        what="model_type",
        given=said,
        allowed=f"one of {len(FAMILIES)} families (docs/model-imports.md), or --assume FAMILY to read it as one; "
        f"keys that may shape it: {', '.join(keys) or 'none'}",
        where=top.where,
        nearest=nearest_name(said, FAMILIES),
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
            raise ConfigError(
                what="assume",
                given=text,
                allowed="one family such as llama, and KEY=VALUE for keys of config.json",
                nearest=nearest_name(text, FAMILIES),
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
