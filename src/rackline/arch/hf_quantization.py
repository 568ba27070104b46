"""Quantisation blocks of Hugging Face configurations: the data type that each module is stored in.

The result is a precision label, a type for all linear layers and parts that differ ("bf16,experts=int4"), with the KV
cache where a scheme sets its type ("fp8,kv=fp8"). What a list
of excluded modules says is read at the grain that a precision has: attention and dense blocks, experts, the rest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

from rackline.arch.hf_config import HfConfig, Table
from rackline.errors import InputError
from rackline.files import read_text

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
            text_beside = read_text(file, what="config", allowed="a readable file")
            found: object = json.loads(text_beside)
        except (InputError, ValueError, RecursionError):
            raise top.fail("quantization_config", "a readable hf_quant_config.json beside it") from None
        if isinstance(found, dict):
            where = str(file)
            block = HfConfig(values=cast("Table", found), where=where).section("quantization")
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
    known = {**_METHODS, "awq": "", "gptq": "", "compressed-tensors": ""}
    label = q.choice("quant_method", known)
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
    if kind not in _BITS:
        raise weights.fail("num_bits", "int 4, int 8, float 4 or float 8")
    label = _BITS[kind]
    left_out = _names(q, "ignore")
    if any(_ATTENTION.search(name) for name in left_out) and label in ("int4", "mxfp4"):
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


def _names(q: HfConfig, key: str) -> list[str]:
    value = q.values.get(key)
    return [str(name) for name in cast("list[object]", value)] if isinstance(value, list) else []
