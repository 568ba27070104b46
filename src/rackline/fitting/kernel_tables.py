"""Tables that name their operation in a column, in the columns of the other tables: one declaration an operation.

A row may hold two operations (dispatch and combine of experts).

They are those of NVIDIA's performance databases for vLLM, SGLang and TensorRT-LLM: single kernels, and whole attention
modules with their products. `op_name` says what a row is; what differs from the other tables is the spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rackline.catalog import canonical_name

Cells = Mapping[str, str]
Cell = str | Callable[[Cells], str]
_ELEMENT_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a table spells an operation.

    Args:
        table: name of the format that its rows are read as.
        columns: column of the format → column of the table, or what makes its cell from the cells of a row; columns
            that are not named here have the same name in both.
        counts: whether a row is of this operation at all.
    """

    table: str
    columns: Mapping[str, Cell] = field(default_factory=dict[str, Cell])
    counts: Callable[[Cells], bool] = lambda _: True


def _as(text: str) -> Callable[[Cells], str]:
    return lambda _: text


_GQA: Mapping[str, Cell] = {
    "dtype": "attn_dtype",
    "batch": "batch_size",
    "q_heads": "num_heads",
}
_CACHED: Mapping[str, Cell] = {
    **_GQA,
    "kv_dtype": "kv_cache_dtype",
    "kv_heads": "num_key_value_heads",
    "window": lambda cells: cells.get("window_size") or "0",
}
_DECODED: Mapping[str, Cell] = {"batch": "batch_size", "tokens": "isl", "prefix": "step", "q_heads": "num_heads"}
_MODULE: Mapping[str, Cell] = {
    **_DECODED,
    "dtype": "mla_dtype",
    "kv_dtype": lambda cells: cells["kv_cache_dtype"].partition("_")[0],
    "own_index": lambda cells: "no" if "skip_indexer" in cells["op_name"] else "yes",
}
_STATE: Mapping[str, Cell] = {
    "batch": "batch_size",
    "tokens": "seq_len",
    "key_heads": "num_k_heads",
    "value_heads": "num_v_heads",
    "key_dim": "head_k_dim",
    "value_dim": "head_v_dim",
}


def _convolution(heads: Sequence[tuple[int, str, str]]) -> dict[str, Cell]:
    """Channels are those of (parts, heads, width of a head)."""

    def channels(cells: Cells) -> str:
        return str(sum(parts * int(cells[number]) * int(cells[width]) for parts, number, width in heads))

    return {"batch": "batch_size", "tokens": "seq_len", "width": "d_conv", "channels": channels}


_STATE_CHANNELS = ((2, "num_k_heads", "head_k_dim"), (1, "num_v_heads", "head_v_dim"))
_MAMBA_CHANNELS = ((1, "nheads", "head_dim"), (2, "n_groups", "d_state"))


def _is_convolution(cells: Cells) -> bool:
    return cells["kernel_source"].startswith("causal_conv1d")


def _is_sound_convolution(cells: Cells) -> bool:
    """TensorRT-LLM's of prompts take 2.3 us a sequence and pass up to five times the memory's rate: of other sizes than
    the table says."""
    return _is_convolution(cells) and not (cells["stack"] == "trtllm" and cells["phase"] == "context")


def _by_phase(table: str, columns: Mapping[str, Cell], counts: Callable[[Cells], bool]) -> tuple[Spelling, ...]:
    """Prompts and decoded tokens; drafts that are verified are decoded."""
    return tuple(
        Spelling(
            table=f"{table}_{phase}",
            columns=columns,
            counts=lambda cells, prompts=phase == "prefill": (cells["phase"] == "context") is prompts and counts(cells),
        )
        for phase in ("decode", "prefill")
    )


def _keeps_wide_state(cells: Cells) -> bool:
    """FlashInfer's decode of gated delta nets keeps states in bf16, other kernels and all deployments in fp32."""
    return not _is_convolution(cells) and cells["kernel_source"] != "flashinfer_gated_delta_rule_decode"


def _linear(table: str) -> tuple[Spelling, ...]:
    """A layer with a state: its kernel, and its convolution."""
    return (
        *_by_phase(table, _STATE, _keeps_wide_state),
        *_by_phase("convolution", _convolution(_STATE_CHANNELS), _is_sound_convolution),
    )


def _module(table: str, decode: str, prefill: str) -> dict[str, tuple[Spelling, ...]]:
    return {
        name + ending: (Spelling(table=f"{table}_{phase}", columns=_MODULE),)
        for phase, name in (("decode", decode), ("prefill", prefill))
        for ending in ("", "_skip_indexer")
    }


_MESSAGE: Mapping[str, Cell] = {
    "num_chips": "num_gpus",
    # messages are counted in elements
    "message_bytes": lambda cells: str(
        int(cells["message_size"]) * _ELEMENT_BYTES[cells.get("nccl_dtype") or cells["allreduce_dtype"]]
    ),
}
_COLLECTIVES = (
    Spelling(
        table="collective", columns={**_MESSAGE, "collective": "op_name"}, counts=lambda cells: "nccl_dtype" in cells
    ),
    Spelling(
        table="custom_all_reduce",
        columns={
            **_MESSAGE,
            "implementation": lambda cells: cells["backend"] or cells["implementation"] or cells["stack"],
        },
        counts=lambda cells: "nccl_dtype" not in cells,
    ),
)
_ELEMENT = {
    "bfloat16": 2.0,
    "default": 2.0,
    "fp8": 1.0 + 4.0 / 128.0,
    "nvfp4": 0.5 + 1.0 / 16.0,
    "fp4": 0.5 + 1.0 / 16.0,
}
_CORES = 20  # of a chip that DeepEP's kernels take unless told otherwise
_CHIPS_A_NODE = {"gb200": 4, "gb300": 4}


def _method(cells: Cells) -> str:
    """Four bits take more than a quarter of bf16's time where tokens are forwarded: a kernel of its own."""
    if cells["comm_backend"].endswith("_ll"):
        return "low_latency"
    return (
        "high_throughput_fp4" if cells["comm_dtype"] == "nvfp4" and cells["phase"] == "dispatch" else "high_throughput"
    )


def _transmit_s(name: str) -> Callable[[Cells], str]:
    """Time by the microseconds of a row: its own seconds are a thousand times as long."""
    return lambda cells: str((float(cells[f"{name}transmit_us"]) + float(cells[f"{name}notify_us"])) * 1e-6)


_EXCHANGE: Mapping[str, Cell] = {"num_nodes": "node_num", "d_model": "hidden_size"}
_EXCHANGES = (
    Spelling(
        table="expert_exchange",
        columns={
            **_EXCHANGE,
            "method": _method,
            "num_chips": "ep_size",
            "tokens": "num_tokens",
            "top_k": "topk",
            # results come back in bf16, also of tokens dispatched in fewer bits
            "element_bytes": lambda cells: str(2.0 if cells["phase"] == "combine" else _ELEMENT[cells["comm_dtype"]]),
            "cores": lambda cells: cells["sms"] if int(cells["sms"]) else str(_CORES),
            "seconds": _transmit_s(""),
        },
        counts=lambda cells: "_v2_" not in cells["comm_backend"],
    ),
)


def _normal(phase: str) -> Spelling:
    """DeepEP's kernels for prompts, dispatched in bf16."""
    return Spelling(
        table="expert_exchange",
        columns={
            **_EXCHANGE,
            "method": _as("high_throughput"),
            "phase": _as(phase),
            "num_chips": lambda cells: str(int(cells["node_num"]) * _CHIPS_A_NODE.get(cells["chip"], 8)),
            "tokens": "num_token",
            "top_k": "num_topk",
            "element_bytes": _as("2.0"),
            "cores": f"{phase}_sms",
            "seconds": _transmit_s(f"{phase}_"),
        },
    )


SPELLINGS: Mapping[str, tuple[Spelling, ...]] = {
    "gemm": (Spelling(table="gemm", columns={"dtype": "gemm_dtype"}),),
    # the token that is decoded reads itself as well
    "generation_attention": (
        Spelling(table="attention_decode", columns={**_CACHED, "context": lambda cells: str(int(cells["step"]) + 1)}),
    ),
    "context_attention": (Spelling(table="attention_prefill", columns={**_CACHED, "tokens": "isl"}),),
    "encoder_attention": (Spelling(table="encoder_attention", columns={**_GQA, "tokens": "isl"}),),
    "moe": (
        Spelling(
            table="moe",
            columns={
                # kernels of other libraries for one data type are written as types of their own
                "dtype": lambda cells: cells["moe_dtype"].removesuffix("_humming").removesuffix("_cutlass"),
                "tokens": "num_tokens",
                "d_model": "hidden_size",
                "d_ff": "inter_size",
                "top_k": "topk",
                "moe_tp": "moe_tp_size",
                "ep": "moe_ep_size",
                "matrices": lambda cells: "2" if "nongated" in cells["kernel_source"] else "3",
            },
        ),
    ),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "alltoall"), _COLLECTIVES),
    **_module("mla_module", "mla_generation_module", "mla_context_module"),
    **_module("sparse_attention", "dsa_generation_module", "dsa_context_module"),
    **_module("compressed_sparse", "dsv4_csa_generation_module", "dsv4_csa_context_module"),
    **_module("heavily_compressed", "dsv4_hca_generation_module", "dsv4_hca_context_module"),
    **_module("block_sparse", "msa_generation_module", "msa_context_module"),
    **{
        f"mla_gen_{part}": (
            Spelling(
                table="latent_product",
                columns={"dtype": "bmm_dtype", "part": _as(part), "tokens": "num_tokens", "q_heads": "num_heads"},
            ),
        )
        for part in ("pre", "post")
    },
    "moe_a2a": _EXCHANGES,
    "normal": (_normal("dispatch"), _normal("combine")),
    "gdn": _linear("gated_delta"),
    "kda": _linear("kda"),
    "mamba2": _by_phase("convolution", _convolution(_MAMBA_CHANNELS), _is_sound_convolution),
    **{
        name: (
            Spelling(
                table="hyper_connections",
                columns={
                    "part": _as(name),
                    "tokens": "num_tokens",
                    "d_model": "hidden_size",
                    "streams": "hc_mult",
                    "sites": "num_sites",
                },
            ),
        )
        for name in ("pre", "post", "fused_post_pre", "expand", "contract")
    },
    "scale_matrix": (Spelling(table="quantise", columns={"dtype": "quant_dtype"}),),  # compute_scale has no times
}


def names_operations(header: list[str]) -> bool:
    """Whether a table has its operation in a column."""
    return "op_name" in header


def spelled_rows(cells: Cells) -> Iterator[tuple[str, dict[str, str]]]:
    """Name of the format and a row in its columns, for each operation of a row that a format is of.

    >>> cells = {"op_name": "gemm", "gemm_dtype": "fp8", "m": "8", "n": "64", "k": "32", "stack": "vllm"}
    >>> [(name, found["dtype"]) for name, found in spelled_rows(cells)]
    [('gemm', 'fp8')]
    """
    for spelling in SPELLINGS.get(cells["op_name"] or "", ()):
        if spelling.counts(cells):
            made = {
                ours: cells[how] if isinstance(how, str) else how(cells)
                for ours, how in spelling.columns.items()
                if not isinstance(how, str) or how in cells
            }
            yield spelling.table, {**cells, **made}


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
