"""Measured layers as the rows that a pass has for them: attention modules of a model, kernels over states, encoders.

A whole attention module is timed as the sum of its rows: products, small kernels, cores. What a pass knows already has
the shipped numbers; the cores are fitted, as what is left of the module's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rackline.arch import Attention, Core, Model, model
from rackline.arch.kinds.gqa import BidirectionalAttention, BlockSparseAttention
from rackline.arch.kinds.mla import CompressedAttention, MultiHeadLatentAttention, SparseLatentAttention
from rackline.arch.kinds.recurrent import GatedDeltaAttention, KimiDeltaAttention
from rackline.errors import InputError
from rackline.fitting.amounts import KV_TYPES, PRODUCTS, Amounts, scattered, work_of
from rackline.fitting.tables import FORMATS, Array, Measurements
from rackline.hardware import Chip
from rackline.parallel.blocks import (
    attention_rows,
    convolution_rows,
    decode_core,
    hyper_connection_row,
    prefill_core,
    quantise_row,
    small_kernels_row,
)
from rackline.parallel.layout import Layout
from rackline.parallel.precision import Precision
from rackline.passes import Batch, Calibration, calibration
from rackline.passes.features import FloatLike, as_array
from rackline.passes.row import Row, row_numbers, row_seconds, total

Shape = Mapping[str, Any]
Places = npt.NDArray[np.int64]
Found = tuple[Sequence[Row], Sequence[Core]]
Rows = Callable[[Shape, Chip], Found]
_CONV_WIDTH = 4  # of every model that was measured; the kernel over the state does not see it


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of a pass for some of the rows of a table.

    Args:
        places: which ones, shape (members,).
        rows: of a pass.
        features: name → value, shape (members,) or a number.
    """

    places: Places
    rows: tuple[Row, ...]
    features: Mapping[str, FloatLike]


def _precision(shape: Shape) -> Precision:
    """Data types of a module: products in `gemm_type`, scores in `dtype`, a cache in `kv_dtype`."""
    product = PRODUCTS.get(shape.get("gemm_type", "bfloat16"))
    if product is None:
        raise InputError(what="gemm_type", given=shape["gemm_type"], allowed=", ".join(PRODUCTS))
    stored = "fp8_block" if product.key == "fp8_block" else product.weights
    return Precision(
        label="table",
        linear_weights=stored,
        activations=stored if product.activations == product.weights else product.activations,
        kv_cache=KV_TYPES.get(str(shape["kv_dtype"]), "bf16"),
        attention=KV_TYPES.get(str(shape["dtype"]), "bf16"),
    )


def _module(*kinds: type[Any], ratio: Callable[[Any], bool] = lambda _: True) -> Rows:
    """Rows of one layer of a model with attention of these kinds, on the heads of one rank."""

    def rows(shape: Shape, chip: Chip) -> Found:
        owner = model(shape["model"])
        if not isinstance(owner, Model):
            raise InputError(what="model", given=shape["model"], allowed="one whose layers are known")
        fits = [g for g in owner.layer_groups if type(g.attention) in kinds and ratio(g.attention)]
        if not fits:
            raise InputError(what="model", given=shape["model"], allowed=f"one with {kinds[0].__name__}")
        attention = _on_rank(fits[0].attention, int(shape["q_heads"]), shape["own_index"] == "yes")
        one = replace(owner, layer_groups=(replace(fits[0], count=1, attention=attention),))
        # norms and activation lie outside of the module; the rotation with its cache write does not
        small = small_kernels_row(one, 1.0 + attention.extra_kernels)
        return [*attention_rows(one, Layout(), _precision(shape), chip), small], attention.cores()

    return rows


def _on_rank(attention: Any, heads: int, own_index: bool) -> Attention:
    """The attention of a rank with this many query heads, and with its own indexer or without."""
    share = heads / attention.num_q_heads
    cut: dict[str, int] = {"num_q_heads": heads}
    for each in fields(attention):
        if each.name in ("num_kv_heads", "o_groups"):
            cut[each.name] = max(1, round(getattr(attention, each.name) * share))
    if isinstance(attention, BlockSparseAttention):
        cut["index_heads"] = max(1, round(attention.index_heads * share))
    if not own_index:
        cut |= {"index_heads": 0, "index_head_dim": 0}
    return replace(attention, **cut)


def _core(kind: str, phase: str) -> Rows:
    """The row of one core, of attention that the columns describe."""

    def rows(shape: Shape, chip: Chip) -> Found:
        row_of, core = decode_core if phase == "decode" else prefill_core, _CORES[kind](shape)
        return [row_of(core, count=1, tp=1, precision=Precision(label="table"), chip=chip)], [core]

    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How a table becomes rows of a pass.

    Args:
        rows: of one shape.
        shape: columns that rows depend on; the others are features.
        decodes: whether its tokens are decoded; None: tokens of a pass.
    """

    rows: Rows
    shape: tuple[str, ...]
    decodes: bool | None = None


def _phases(name: str, shape: tuple[str, ...], rows: Callable[[str], Rows]) -> dict[str, Layer]:
    return {
        f"{name}_{phase}": Layer(rows=rows(phase), shape=shape, decodes=phase == "decode")
        for phase in ("decode", "prefill")
    }


_CORES: Mapping[str, Callable[[Shape], Core]] = {
    "gated_delta": lambda shape: GatedDeltaAttention(
        num_key_heads=int(shape["key_heads"]),
        num_value_heads=int(shape["value_heads"]),
        key_head_dim=int(shape["key_dim"]),
        value_head_dim=int(shape["value_dim"]),
        conv_kernel=_CONV_WIDTH,
    ),
    "kda": lambda shape: KimiDeltaAttention(
        num_heads=int(shape["value_heads"]), head_dim=int(shape["value_dim"]), conv_kernel=_CONV_WIDTH
    ),
    "encoder": lambda shape: BidirectionalAttention(
        num_q_heads=int(shape["q_heads"]), num_kv_heads=int(shape["q_heads"]), head_dim=int(shape["head_dim"])
    ),
}
"""Attention that the columns of a table describe."""
_OF_MODULE = ("model", "gemm_type", "own_index", "q_heads")
_OF_STATE = ("key_heads", "value_heads", "key_dim", "value_dim")
LAYERS: Mapping[str, Layer] = {
    **_phases("mla_module", _OF_MODULE, lambda _: _module(MultiHeadLatentAttention)),
    **_phases("sparse_attention", _OF_MODULE, lambda _: _module(SparseLatentAttention)),
    **_phases("compressed_sparse", _OF_MODULE, lambda _: _module(CompressedAttention, ratio=lambda a: a.top_k > 0)),
    **_phases(
        "heavily_compressed",
        _OF_MODULE,
        lambda _: _module(CompressedAttention, ratio=lambda a: a.ratio > 0 and not a.top_k),
    ),
    **_phases("block_sparse", _OF_MODULE, lambda _: _module(BlockSparseAttention)),
    **_phases("gated_delta", _OF_STATE, lambda phase: _core("gated_delta", phase)),
    **_phases("kda", _OF_STATE, lambda phase: _core("kda", phase)),
    **_phases(
        "convolution",
        ("channels", "width"),
        lambda _: lambda shape, chip: (convolution_rows(shape["channels"], int(shape["width"]), count=1, tp=1), ()),
    ),
    "encoder_attention": Layer(rows=_core("encoder", "prefill"), shape=("q_heads", "head_dim"), decodes=False),
    "hyper_connections": Layer(
        rows=lambda shape, chip: (
            [hyper_connection_row(shape["part"], shape["d_model"], shape["streams"], count=int(shape["sites"]))],
            (),
        ),
        shape=("d_model", "streams", "sites"),
    ),
    "quantise": Layer(rows=lambda shape, chip: ([quantise_row(shape["k"])], ()), shape=("k",)),
}


def parts(measured: Measurements, chip: Chip) -> Iterator[Part]:
    """The table as rows of a pass, shape by shape.

    Raises:
        InputError: a model, data type or kind of attention is unknown.
    """
    layer, form = LAYERS[measured.table], FORMATS[measured.table]
    labels = dict(zip(form.labels, measured.labels, strict=True))
    cells = {**measured.columns, **measured.words}
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(zip(*(cells[name] for name in layer.shape), strict=True)):
        found.setdefault(key, []).append(place)
    for key, members in found.items():
        places = np.array(members, dtype=np.int64)
        rows, cores = layer.rows({**labels, **dict(zip(layer.shape, key, strict=True))}, chip)
        batch = _batch({name: values[places] for name, values in measured.columns.items()}, layer.decodes)
        yield Part(places=places, rows=tuple(rows), features=batch.features({core.kind: core for core in cores}))


def _batch(columns: Mapping[str, Array], decodes: bool | None) -> Batch:
    """Sequences of one length: decoding after a prefix, prompts behind one, or just tokens of a pass."""
    if decodes is None:
        return Batch(prefill_sequences=1.0, chunk_tokens=columns["tokens"] if "tokens" in columns else columns["m"])
    sequences, tokens = columns["batch"], columns["tokens"]
    prefix = columns.get("prefix", np.zeros_like(tokens))
    if decodes:
        return Batch(decode_sequences=sequences, decode_tokens=tokens, context_len=prefix + tokens)
    return Batch(prefill_sequences=sequences, chunk_tokens=tokens, prefix_tokens=prefix)


def seconds(measured: Measurements, chip: Chip, numbers: Calibration) -> Array:
    """Time of each operation of a table as a pass predicts it: the sum of its rows [s], shape (rows,)."""
    found = np.zeros(len(measured.seconds))
    for part in parts(measured, chip):
        for row in part.rows:
            found[part.places] += as_array(row_seconds(row_numbers(row, numbers, chip, None), part.features))
    return found


def amounts(measured: Measurements, chip: Chip) -> Amounts:
    """Work of the rows that are fitted to a table, the first of its format with the others beside; what else its
    operations are takes the time that the shipped numbers of the stack on the chip give it."""
    fits, known_s = FORMATS[measured.table].fits, np.zeros(len(measured.seconds))
    numbers = _shipped(measured.stack, chip)
    fitted: dict[str, list[tuple[Places, Amounts]]] = {name: [] for name in fits}
    for part in parts(measured, chip):
        for row in part.rows:
            if row.op_class in fitted:
                fitted[row.op_class].append((part.places, _work(row, part, chip)))
            else:
                known_s[part.places] += as_array(row_seconds(row_numbers(row, numbers, chip, None), part.features))
    main = replace(scattered(fitted[fits[0]], len(known_s)), known_s=known_s)
    nothing = replace(scattered([], len(known_s), main), known_s=np.zeros_like(known_s))
    others = (scattered(fitted[name], len(known_s), replace(nothing, op_class=name)) for name in fits[1:])
    return replace(main, others=tuple(others))


@lru_cache(maxsize=64)
def _shipped(stack: str, chip: Chip) -> Calibration:
    return calibration(stack, chip)


def _work(row: Row, part: Part, chip: Chip) -> Amounts:
    """Work of a row for the members of a part."""

    def count(amounts: Mapping[str, FloatLike]) -> Array:
        return np.broadcast_to(as_array(total(amounts, part.features)), part.places.shape)

    return work_of(
        chip,
        op_class=row.op_class,
        dtype=row.dtype,
        compute=row.compute_dtype or row.dtype,
        flop=count(row.compute),
        hbm_bytes=count(row.hbm),
        depth=count(row.depth),
        tiles=count(row.tiles),
        launches=count(row.launches),
    )
