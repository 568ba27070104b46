"""What each measured operation has to do: FLOP and bytes, as the rows of a pass count them.

The formulas are those of `rackline.parallel.blocks`, written over columns of a table; a test proves that they agree.
Two counts come on top: the `depth` that a kernel goes through in order however many cores it has (the reduction of a
product, the keys of a query), and the `tiles` of work per core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from rackline.errors import InputError
from rackline.fitting.routing_tables import expert_load
from rackline.fitting.tables import Array, Measurements
from rackline.hardware import Chip
from rackline.parallel.precision import storage_bytes

MLA_LATENT, MLA_ROPE, MLA_HEAD, MLA_QK = 512.0, 64.0, 128.0, 192.0
TILE = 128.0  # rows or columns of a tile [elements]
CORES_WHEN_UNKNOWN = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """How a product of one data type runs.

    Args:
        key: data type in a calibration.
        weights, activations: as stored.
        compute: data type whose peak is used.
        quantised: whether the table's times contain a separate quantisation of the activations.
    """

    key: str
    weights: str
    activations: str
    compute: str
    quantised: bool = False


PRODUCTS = {
    "bfloat16": Multiply(key="bf16", weights="bf16", activations="bf16", compute="bf16"),
    "fp8": Multiply(key="fp8", weights="fp8", activations="fp8", compute="fp8", quantised=True),
    "fp8_block": Multiply(key="fp8_block", weights="fp8", activations="fp8", compute="fp8", quantised=True),
    "nvfp4": Multiply(key="fp4", weights="fp4", activations="fp4", compute="fp4", quantised=True),
    "sq": Multiply(key="int8", weights="int8", activations="int8", compute="int8"),
    "int8_wo": Multiply(key="int8_bf16", weights="int8", activations="bf16", compute="bf16"),
    "int4_wo": Multiply(key="int4_bf16", weights="int4", activations="bf16", compute="bf16"),
    "w4a16_mxfp4": Multiply(key="mxfp4_bf16", weights="mxfp4", activations="bf16", compute="bf16"),
    "w4a8_mxfp4_mxfp8": Multiply(key="mxfp4_mxfp8", weights="mxfp4", activations="mxfp8", compute="fp8"),
}
KV_TYPES = {"bfloat16": "bf16", "fp8": "fp8"}
PREFILL_TYPES = {
    ("bfloat16", "bfloat16"): ("bf16", "bf16", "bf16"),
    ("bfloat16", "fp8"): ("bf16_fp8", "bf16", "fp8"),
    ("fp8", "fp8"): ("fp8", "fp8", "fp8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Work of the rows of one table and its time at the chip's peaks; all arrays have shape (rows,).

    Args:
        op_class, dtype: key in a calibration.
        flop: of the products [FLOP].
        hbm_bytes: moved [bytes].
        compute_s: flop / peak [s].
        memory_s: hbm_bytes / bandwidth [s].
        cache_s: time to read the last-level cache's bytes from memory [s].
        quantise_memory_s: memory time of a separate quantisation (fp8 and fp4 products) [s].
        permute_memory_s: memory time of one pass of the routed tokens (moe) [s].
        depth: elements that are gone through in order [count].
        tiles: tiles of work per core [count].
    """

    op_class: str
    dtype: str
    flop: Array
    hbm_bytes: Array
    compute_s: Array
    memory_s: Array
    cache_s: Array
    quantise_memory_s: Array
    permute_memory_s: Array
    depth: Array
    tiles: Array

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Amounts:
        """The chosen rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def ideal_s(self) -> Array:
        """Time of the ideal roofline [s]: max(flop / peak, bytes / bandwidth)."""
        return np.maximum(self.compute_s, self.memory_s)


_ARRAYS = tuple(f.name for f in fields(Amounts) if f.name not in ("op_class", "dtype"))


def joined(parts: Sequence[Amounts]) -> Amounts:
    """Rows of several tables of one class, one after the other."""
    return replace(parts[0], **{name: np.concatenate([getattr(p, name) for p in parts]) for name in _ARRAYS})


def amounts(measured: Measurements, chip: Chip) -> Amounts:
    """Count the work of the rows of a kernel table.

    Raises:
        InputError: a data type or distribution that is not known.
    """
    makers = {
        "gemm": _gemm,
        "attention_decode": _attention_decode,
        "attention_prefill": _attention_prefill,
        "mla_decode": _mla_decode,
        "mla_prefill": _mla_prefill,
        "moe": _moe,
    }
    return makers[measured.table](measured, chip)


def _amounts(
    chip: Chip,
    *,
    op_class: str,
    dtype: str,
    compute: str,
    flop: Array,
    hbm_bytes: Array,
    quantise_bytes: Array | None = None,
    permute_bytes: Array | None = None,
    depth: Array | None = None,
    tiles: Array | None = None,
) -> Amounts:
    nothing = np.zeros_like(flop)
    peak = chip.flop_per_s(compute if chip.supports(compute) else "bf16")  # else converted and multiplied in bf16
    bandwidth = chip.hbm_bytes_per_s
    return Amounts(
        op_class=op_class,
        dtype=dtype,
        flop=flop,
        hbm_bytes=hbm_bytes,
        compute_s=flop / peak,
        memory_s=hbm_bytes / bandwidth,
        cache_s=nothing + (chip.l2_bytes or 0.0) / bandwidth,
        quantise_memory_s=nothing if quantise_bytes is None else quantise_bytes / bandwidth,
        permute_memory_s=nothing if permute_bytes is None else permute_bytes / bandwidth,
        depth=nothing if depth is None else depth,
        tiles=nothing if tiles is None else tiles / (chip.cores or CORES_WHEN_UNKNOWN),
    )


def _known(measured: Measurements, what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InputError(what=f"{what} of {measured.key}", given=name, allowed=", ".join(known))


def _gemm(measured: Measurements, chip: Chip) -> Amounts:
    """FLOP = 2 m n k; bytes = weights n k + input m k + output m n in bf16; the depth is k."""
    _known(measured, "dtype", measured.labels[0], list(PRODUCTS))
    product = PRODUCTS[measured.labels[0]]
    m, n, k = (measured.columns[name] for name in ("m", "n", "k"))
    return _amounts(
        chip,
        op_class="gemm",
        dtype=product.key,
        compute=product.compute,
        flop=2.0 * m * n * k,
        hbm_bytes=storage_bytes(product.weights) * n * k + storage_bytes(product.activations) * m * k + 2.0 * m * n,
        quantise_bytes=3.0 * m * k if product.quantised else None,  # bf16 read, about a byte written
        depth=k,
    )


def _attention_decode(measured: Measurements, chip: Chip) -> Amounts:
    """FLOP = 4 head_dim a query head and cached token; bytes = cache once, query, output, new token."""
    _known(measured, "kv_dtype", measured.labels[1], list(KV_TYPES))
    c, kv = measured.columns, KV_TYPES[measured.labels[1]]
    cached = 2.0 * c["kv_heads"] * c["head_dim"] * storage_bytes(kv)
    return _amounts(
        chip,
        op_class="attention_decode",
        dtype=kv,
        compute="bf16",
        flop=4.0 * c["head_dim"] * c["q_heads"] * c["batch"] * c["context"],
        hbm_bytes=c["batch"] * (cached * (c["context"] + 1.0) + 4.0 * c["q_heads"] * c["head_dim"]),
        depth=c["context"],
        tiles=c["batch"] * c["kv_heads"],
    )


def _mla_decode(measured: Measurements, chip: Chip) -> Amounts:
    """Absorbed: scores over latent and rope, values over the latent; the latent is read once for all heads."""
    _known(measured, "kv_dtype", measured.labels[1], list(KV_TYPES))
    c, kv = measured.columns, KV_TYPES[measured.labels[1]]
    width = MLA_LATENT + MLA_ROPE
    per_head = 2.0 * (2.0 * MLA_LATENT + MLA_ROPE)  # query in, latent out
    return _amounts(
        chip,
        op_class="mla_decode",
        dtype=kv,
        compute=kv,  # kernels for an fp8 latent multiply in fp8: they exceed the peak of bf16
        flop=2.0 * (width + MLA_LATENT) * c["q_heads"] * c["batch"] * c["context"],
        hbm_bytes=c["batch"] * (width * storage_bytes(kv) * (c["context"] + 1.0) + per_head * c["q_heads"]),
        depth=c["context"],
        tiles=c["batch"],
    )


def _prefill_type(measured: Measurements) -> tuple[str, str, str]:
    pair = "/".join(measured.labels)
    _known(measured, "dtype/kv_dtype", pair, ["/".join(known) for known in PREFILL_TYPES])
    return PREFILL_TYPES[measured.labels[0], measured.labels[1]]


def _attention_prefill(measured: Measurements, chip: Chip) -> Amounts:
    """FLOP = 4 head_dim a query head and causal pair; bytes = q, k, v in, output out, cache written."""
    c = measured.columns
    key, compute, kv = _prefill_type(measured)
    tokens = c["batch"] * c["tokens"]
    per_token = 4.0 * c["q_heads"] * c["head_dim"] + 2.0 * c["kv_heads"] * c["head_dim"] * (2.0 + storage_bytes(kv))
    return _amounts(
        chip,
        op_class="attention_prefill",
        dtype=key,
        compute=compute,
        flop=4.0 * c["head_dim"] * c["q_heads"] * tokens * (c["tokens"] + 1.0) / 2.0,
        hbm_bytes=per_token * tokens,
        depth=c["tokens"],
        tiles=tokens * c["q_heads"] / TILE,
    )


def _mla_prefill(measured: Measurements, chip: Chip) -> Amounts:
    """Expanded: scores over 192, values over 128, both per head."""
    c = measured.columns
    key, compute, kv = _prefill_type(measured)
    tokens = c["batch"] * c["tokens"]
    per_head = 2.0 * (2.0 * MLA_QK + 2.0 * MLA_HEAD)
    return _amounts(
        chip,
        op_class="mla_prefill",
        dtype=key,
        compute=compute,
        flop=2.0 * (MLA_QK + MLA_HEAD) * c["q_heads"] * tokens * (c["tokens"] + 1.0) / 2.0,
        hbm_bytes=(per_head * c["q_heads"] + (MLA_LATENT + MLA_ROPE) * storage_bytes(kv)) * tokens,
        depth=c["tokens"],
        tiles=tokens * c["q_heads"] / TILE,
    )


def _moe(measured: Measurements, chip: Chip) -> Amounts:
    """Gated experts: three matrices; weights of a touched expert once, FLOP per token-expert pair of the rank."""
    _known(measured, "dtype", measured.labels[0], list(PRODUCTS))
    product, c = PRODUCTS[measured.labels[0]], measured.columns
    pairs, touched = expert_load(c, measured.words["distribution"])
    width = c["d_ff"] / c["moe_tp"]
    elements = 3.0 * c["d_model"] * width
    per_pair = c["d_model"] * (storage_bytes(product.activations) + 2.0) + 6.0 * width
    return _amounts(
        chip,
        op_class="moe",
        dtype=product.key,
        compute=product.compute,
        flop=2.0 * elements * pairs,
        hbm_bytes=elements * storage_bytes(product.weights) * touched + per_pair * pairs,
        permute_bytes=4.0 * c["tokens"] * c["top_k"] * c["d_model"],
        tiles=(touched + pairs / TILE) * (2.0 * width + c["d_model"]) / TILE,
    )
