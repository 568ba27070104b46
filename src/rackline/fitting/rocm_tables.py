"""Tables of AMD's kernel libraries, in the columns of the other tables.

AITER tunes the kernels of ATOM, vLLM and SGLang on ROCm and takes the fastest of several libraries (composable kernels,
assembly, hipBLASLt) for each shape, so tables of these are one stack's. Versions are commits, which have no order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rackline.catalog import canonical_name

VERSION = "AITER e4048607"
# data type and scaling of a product → data type of the other tables
_PRODUCTS = {
    ("bfloat16", "none"): "bfloat16",
    ("fp8", "per_tensor"): "fp8",
    ("fp8", "per_token_channel"): "fp8",
    ("fp8", "block_1x128_128x128"): "fp8_block",
    ("int8", "per_token_channel"): "sq",
    ("mxfp4", "per_1x32"): "nvfp4",  # the same bytes but for their scales
}
# activations, weights and scaling of experts → data type of the other tables
_EXPERTS = {
    ("bf16", "bf16", "No"): "bfloat16",
    ("fp8", "fp8", "per_Token"): "fp8",
    ("fp8", "fp8", "per_1x128"): "fp8_block",
    ("fp4", "fp4", "per_1x32"): "nvfp4",
    ("fp8", "fp4", "per_1x32"): "w4a8_mxfp4_mxfp8",
    ("bf16", "fp4", "per_1x32"): "w4a16_mxfp4",
    ("bf16", "int4", "per_1x32"): "int4_wo",
}


def is_rocm(columns: Collection[str]) -> bool:
    """Whether a table has the columns of these libraries."""
    return "scaling" in columns or "causal" in columns


def rocm_header(columns: list[str]) -> list[str]:
    """Columns of a table once its rows are read by `rocm_row`."""
    return [*columns, *(name for name in ("dtype", "moe_tp", "ep", "distribution") if name not in columns)]


def rocm_row(values: Mapping[str, str]) -> dict[str, str] | None:
    """A row in the columns of the other tables; None where they have nothing like it.

    >>> row = {"chip": "mi300x", "stack": "aiter", "dtype": "fp8", "scaling": "per_tensor"}
    >>> found = rocm_row(row)
    >>> found and found["dtype"]
    'fp8'
    """
    stack = canonical_name("stacks", values["stack"]) or values["stack"]
    usual = {"moe_tp": "1", "ep": "1", "distribution": "balanced", "kernel": ""}  # tuned shape by shape
    own = {**values, "stack": stack, "stack_version": VERSION, **usual}
    if "act_dtype" in values:
        dtype = _EXPERTS.get((values["act_dtype"], values["weight_dtype"], values["scaling"]))
        return {**own, "dtype": dtype} if dtype and values["gated"] == "1" else None
    if "scaling" in values:
        dtype = _PRODUCTS.get((values["dtype"], values["scaling"]))
        return {**own, "dtype": dtype} if dtype else None
    return own if values["causal"] == "True" else None
