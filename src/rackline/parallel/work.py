"""What a kernel has to do, counted once, and what adapters and towers add to the passes of a language model.

The rows of a pass (`blocks`), those of a training step and the fits to measured kernels are made of `ProductWork`,
`AttentionWork` and `ExpertsWork`. Every argument may be an array.

**Low-rank adapters.** The two products of an adapter follow the product that they modify: if that is sharded along its
outputs, A is replicated on every chip and B is sharded; if it is sharded along its inputs, A is sharded and B
replicated (vLLM, column and row parallel layers with LoRA).

**Towers for images and sound.** An encoder runs once for each prompt, before its tokens go through the language model.
Its pass is divided by the tokens of the prompt and added to the rows of every prompt token: since the time of a row
grows with all its amounts alike, the prompt's passes together take what the encoder takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rackline.arch import (
    ADAPTER_BYTES,
    AdaptedModule,
    AnyModel,
    Core,
    DenseFfn,
    Dim,
    LayerGroup,
    MediaPart,
    Model,
    Projection,
    media_of,
)
from rackline.hardware import Chip
from rackline.parallel.layout import IntLike, Layout, LayoutGrid, Sharding, problem
from rackline.parallel.precision import compute_dtype, operation_dtype, storage_bytes
from rackline.passes import Batch, Row, features as f
from rackline.passes.features import FloatLike, as_array
from rackline.passes.row import Amounts

T = TypeVar("T")

TILE = 128.0  # rows and columns of a tile of work on one core [elements]

MX_BLOCK = 32  # values that share a scale (OCP Microscaling Formats v1.0)


def expert_width(d_expert: int, ranks: IntLike, stored: str) -> FloatLike:
    """Return the inner width of an expert on the rank with the widest share [elements].

    A rank gets whole blocks of mxfp4, ceil(blocks / ranks) of them, and the last rank is filled up with zeros. Other
    data types are cut into equal parts. What a kernel pads a share to in addition (multiples of 64 or 128) takes memory
    (`rackline.parallel.memory`); its time is part of the efficiency that was measured, with one rank as with several.

    Args:
        ranks: over which the experts are cut (`Layout.moe_tp`).
        stored: data type of the weights.

    Sources: vllm 0.33.0, model_executor/models/gpt_oss.py:579; sglang 0.5.23, srt/models/gpt_oss.py:992; TensorRT-LLM,
        _torch/modules/fused_moe/quantization.py, _get_weight_alignment.

    >>> [int(expert_width(2880, ranks, "mxfp4")) for ranks in (1, 2, 4, 8)]  # gpt-oss
    [2880, 1440, 736, 384]
    """
    if stored != "mxfp4":
        return d_expert / as_array(ranks)
    return np.ceil(np.ceil(d_expert / MX_BLOCK) / as_array(ranks)) * MX_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductWork:
    """One matrix product: per row of the input, and its weights once.

    Args:
        flop: 2 · in · out, a row [FLOP].
        weight_bytes: read once [bytes].
        row_bytes: input as stored and output in bf16, a row [bytes].
        quantise_bytes: bf16 read and 8 bits written where the input is quantised apart, a row [bytes].
    """

    flop: FloatLike
    weight_bytes: FloatLike
    row_bytes: FloatLike
    quantise_bytes: FloatLike

    @classmethod
    def of(
        cls, d_in: FloatLike, d_out: FloatLike, *, bytes_per_weight: float, bytes_per_activation: float
    ) -> ProductWork:
        """Work of d_in × d_out weights."""
        return cls(
            flop=2.0 * d_in * d_out,
            weight_bytes=d_in * d_out * bytes_per_weight,
            row_bytes=d_in * bytes_per_activation + d_out * 2.0,
            quantise_bytes=3.0 * d_in,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """One attention core of some heads.

    Args:
        pair_flop: scores and values of a query-key pair, all heads [FLOP].
        token_bytes: what a new token moves: queries, keys and values in, output out, its cache entry [bytes].
    """

    pair_flop: FloatLike
    token_bytes: FloatLike

    @classmethod
    def decode(cls, core: Core, heads: FloatLike, entry_bytes: FloatLike) -> AttentionWork:
        """Work of a decoded token; the cache that it reads comes on top.

        Args:
            heads: query heads on the chip [count].
            entry_bytes: of one cache entry on the chip [bytes].
        """
        return cls(
            pair_flop=heads * core.decode_flop_per_pair,
            token_bytes=heads * core.decode_io_elements * 2.0 + entry_bytes * core.kv_entries_per_token,
        )

    @classmethod
    def prefill(cls, core: Core, heads: FloatLike, kv_heads: FloatLike, entry_bytes: FloatLike) -> AttentionWork:
        """Work of a prompt token: queries, keys, values and outputs pass memory once (flash).

        Args:
            heads, kv_heads: on the chip [count].
            entry_bytes: of one cache entry on the chip [bytes].
        """
        per_q, per_kv = core.prefill_io_elements
        return cls(
            pair_flop=heads * core.prefill_flop_per_pair,
            token_bytes=(heads * per_q + kv_heads * per_kv) * 2.0 + entry_bytes * core.kv_entries_per_token,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsWork:
    """Routed experts of one rank: per expert that is touched, and per token-expert pair.

    Args:
        pair_flop: of one pair [FLOP].
        pair_bytes: of one pair: input as stored, output and what lies between the matrices in bf16 [bytes].
        expert_bytes: weights of one expert [bytes].
        expert_tiles: of one expert with one tile of tokens [count].
        permute_bytes: to sort one pair, read and written in bf16 [bytes].
    """

    pair_flop: FloatLike
    pair_bytes: FloatLike
    expert_bytes: FloatLike
    expert_tiles: FloatLike
    permute_bytes: FloatLike

    @classmethod
    def of(
        cls,
        d_in: FloatLike,
        width: FloatLike,
        *,
        matrices: FloatLike,
        bytes_per_weight: float,
        bytes_per_activation: float,
    ) -> ExpertsWork:
        """Work of experts with `matrices` matrices of d_in × width."""
        elements = matrices * d_in * width
        return cls(
            pair_flop=2.0 * elements,
            pair_bytes=d_in * (bytes_per_activation + 2.0) + 2.0 * matrices * width,
            expert_bytes=elements * bytes_per_weight,
            expert_tiles=(2.0 * width + d_in) / TILE,
            permute_bytes=4.0 * d_in,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How a projection is stored and multiplied."""

    stored: str
    activations: str

    @property
    def sizes(self) -> dict[str, float]:
        """Bytes of a weight and of an activation, as the work of a kernel takes them [bytes]."""
        return {
            "bytes_per_weight": storage_bytes(self.stored),
            "bytes_per_activation": storage_bytes(self.activations),
        }

    @property
    def operation(self) -> str:
        """Key of the calibration."""
        return operation_dtype(self.stored, self.activations)


def gemm_row(
    projection: Projection,
    *,
    count: int,
    tp: FloatLike,
    weights: Weights,
    chip: Chip,
    group: str,
    token_feature: str = f.TOKENS,
    extra_feature: str | None = None,
) -> Row:
    """`count` layers of one projection, sharded over tp.

    FLOP = 2 · in · out per token; bytes = weights once + input and output activations per token.
    """
    d_in, d_out = projection.shard_in(tp), projection.shard_out(tp)
    work = ProductWork.of(d_in, d_out, **weights.sizes)
    used = [token_feature, *([extra_feature] if extra_feature else [])]
    return Row(
        name=projection.name,
        group=group,
        op_class="gemm",
        dtype=weights.operation,
        compute_dtype=compute_dtype(weights.activations, chip),
        compute=dict.fromkeys(used, work.flop * count),
        hbm={f.ONE: work.weight_bytes * count, **dict.fromkeys(used, work.row_bytes * count)},
        launches={f.ONE: float(count)},
        depth={f.ONE: d_in * count},
        extra=dict.fromkeys(used, work.quantise_bytes * count),
        formula=f"{count} × 2·{text_of(d_in)}·{text_of(d_out)} FLOP/token; weights in {weights.stored}",
    )


def layers_with(groups: Iterable[LayerGroup], of: Callable[[LayerGroup], Iterable[T]]) -> dict[T, int]:
    """What layers have of one kind, equal ones together, with the number of layers that have it [count]."""
    found = Counter[T]()
    for group in groups:
        for one in of(group):
            found[one] += group.count
    return found


def text_of(value: FloatLike) -> str:
    """A number for a formula; "(per layout)" for several."""
    array = np.asarray(value, dtype=float)
    return f"{float(array):g}" if array.ndim == 0 else "(per layout)"


def adapter_rows(model: Model, layout: Sharding, chip: Chip) -> list[Row]:
    """Two products for each kind of module, into the bottleneck (A) and out of it (B), on every token."""
    if model.adapter is None:
        return []
    tp = np.asarray(layout.tp) if not isinstance(layout.tp, int) else layout.tp
    weights = Weights(stored="bf16", activations="bf16")
    rows: list[Row] = []
    for module in model.adapter.modules:
        if module.copies > 1:
            rows.append(_experts_row(module, layout))
            continue
        bottleneck = (Dim(size=module.rank),)
        for name, d_in, d_out in (("a", (module.d_in,), bottleneck), ("b", bottleneck, module.d_out)):
            product = Projection(name=f"lora_{name}_{module.name.rpartition('.')[2]}", d_in=d_in, d_out=d_out)
            row = gemm_row(product, count=module.layers, tp=tp, weights=weights, chip=chip, group="adapter")
            rows.append(_grouped(row) if model.adapter.number > 1 else row)
    return rows


def _grouped(row: Row) -> Row:
    """The products of the adapters that a pass uses, in one kernel: the weights of each are read once.

    Sources: SGMV, Punica (arXiv:2310.18547); S-LoRA (arXiv:2311.03285).
    """
    once = {name: amount for name, amount in row.hbm.items() if name != f.ONE}
    more = {**once, f.ADAPTERS_TOUCHED: row.hbm[f.ONE]}
    return replace(row, hbm=more, formula=f"{row.formula}, weights of each adapter in use")


def _experts_row(module: AdaptedModule, layout: Sharding) -> Row:
    """Both products of the adapters of experts: those of a touched expert once, FLOP per token-expert pair."""
    width = sum((part.shard(layout.moe_tp) for part in (module.d_in, *module.d_out)), 0.0)
    work = ExpertsWork.of(width, float(module.rank), matrices=1.0, bytes_per_weight=2.0, bytes_per_activation=2.0)
    return Row(
        name=f"lora_experts_{module.name.rpartition('.')[2]}",
        group="adapter",
        op_class="moe",
        dtype="bf16",
        compute={f.EXPERT_TOKENS: work.pair_flop * module.layers},
        hbm={
            f.EXPERTS_TOUCHED: work.expert_bytes * module.layers,
            f.EXPERT_TOKENS: work.pair_bytes * module.layers,
        },
        launches={f.ONE: 2.0 * module.layers},
        formula=f"{module.layers} × {module.rank}·({module.inputs} + {module.outputs}) weights per expert in bf16",
    )


def most_sequences(model: AnyModel) -> float:
    """Sequences of a rank whose adapters are resident at a time; infinite where all adapters are [sequences]."""
    return model.adapter.most_sequences if isinstance(model, Model) and model.adapter is not None else math.inf


def adapter_bytes(model: Model, layout: Sharding) -> dict[str, FloatLike]:
    """Weights of the resident adapters on the fullest chip [bytes]; nothing without one."""
    if model.adapter is None:
        return {}
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    stage = np.ceil(model.num_layers / pp) / model.num_layers
    held: FloatLike = 0.0
    for module in model.adapter.modules:
        ways = as_array(layout.moe_tp) if module.copies > 1 else tp
        copies = np.ceil(module.copies / as_array(layout.ep)) if module.copies > 1 else 1.0
        widths = module.d_in.shard(ways) + sum((part.shard(ways) for part in module.d_out), 0.0)
        held = held + module.layers * stage * copies * module.rank * widths
    return {"adapter": ADAPTER_BYTES * model.adapter.resident * (held + model.adapter.whole_params / tp)}


TOWER_BYTES = 2.0  # of a parameter, bf16: quantised checkpoints keep their towers


def tower_layout(model: Model, layout: Sharding) -> Sharding:
    """Where a tower runs: on the chips of a tensor-parallel group, or whole on each where its heads cannot be spread.

    Args:
        model: of the tower.
        layout: of the language model.
    """

    def degree(tp: int) -> int:
        return tp if problem(Layout(tp=tp), model) is None else 1

    if isinstance(layout, Layout):
        return Layout(tp=degree(layout.tp))
    known = {int(tp): degree(int(tp)) for tp in np.unique(layout.tp)}
    one = np.ones_like(layout.tp)
    tp = np.array([known[int(tp)] for tp in layout.tp], dtype=np.int64)
    return LayoutGrid(tp=tp, pp=one, ep=one, moe_tp=one, attention_dp=one)


def tower_batch(part: MediaPart) -> Batch:
    """What the encoder works on for one request."""
    return Batch(prefill_sequences=float(part.sequences), chunk_tokens=float(part.view.patches))


def tower_rows(part: MediaPart, rows: Iterable[Row], prompt_len: float) -> list[Row]:
    """Rows of an encoder's pass as rows of the prompt's tokens.

    Args:
        rows: of the pass of the layers of the tower.
        prompt_len: tokens over which it is spread [tokens].
    """
    features = tower_batch(part).features(part.tower.model.cores())
    share = (1.0 + part.outer_share) / prompt_len

    def a_token(amounts: Amounts) -> dict[str, FloatLike]:
        total = sum((value * features.get(name, 0.0) for name, value in amounts.items()), 0.0)
        return {f.PREFILL_TOKENS: total * share} if np.any(as_array(total)) else {}

    kind = part.tower.kind
    return [
        replace(
            row,
            name=f"{kind}_{row.name}",
            group=f"{kind} tower",
            compute=a_token(row.compute),
            hbm=a_token(row.hbm),
            scale_up=a_token(row.scale_up),
            scale_out=a_token(row.scale_out),
            launches=a_token(row.launches),
            extra=a_token(row.extra),
            depth=a_token(row.depth),
            tiles=a_token(row.tiles),
            scale_up_steps=row.scale_up_steps * share,
            scale_out_steps=row.scale_out_steps * share,
            step_feature=f.PREFILL_TOKENS,
            choice=f"{kind} {row.choice}" if row.choice else "",
            formula=f"{part.sequences} × {part.view.patches} patches of a request over {prompt_len:g} tokens of its "
            f"prompt; {row.formula}",
        )
        for row in rows
        if any(a_token(row.amounts(resource)) for resource in row.resources)
    ]


def tower_bytes(of: AnyModel, layout: Sharding) -> dict[str, FloatLike]:
    """Weights of the towers on a chip, by kind [bytes]."""
    media, held = media_of(of), dict[str, FloatLike]()
    if isinstance(of, Model) and of.tower_params:  # text does not pass them, but engines load them
        held["towers"] = TOWER_BYTES * of.tower_params / as_array(layout.tp)
    for part in media.parts if media is not None else ():
        model = part.tower.model
        tp = as_array(tower_layout(model, layout).tp)
        held[f"{part.tower.kind}_tower"] = TOWER_BYTES * model.total_params / tp
    return held


def tower_activation_bytes(part: MediaPart) -> float:
    """Inputs and outputs of the widest product of the pass of one request [bytes]."""
    model = part.tower.model
    widest = max(group.ffn.d_ff for group in model.layer_groups if isinstance(group.ffn, DenseFfn))
    return TOWER_BYTES * part.sequences * part.view.patches * (model.d_model + widest)
