"""A checkpoint by its tensors: their parts and data types, and a model's parameters against them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rackline.arch.model import AnyModel, Model, Origin

if TYPE_CHECKING:
    from rackline.catalog import ModelRecord
    from rackline.hub import Checkpoint, Tensor

# suffixes that belong to a quantised weight and are no weights themselves (compressed-tensors, ModelOpt, AWQ, GPTQ,
# bitsandbytes, block-scaled fp8, mxfp4), and buffers that some checkpoints carry
_SCALES = re.compile(
    r"(?:_scale|_scale_inv|_scale_2|_scales|\.scales?|_zero_point|\.qzeros|\.g_idx|_shape|_global_scale|\.absmax|"
    r"\.quant_map|\.nested_\w+|\.quant_state\.\S+|\.SCB|\.weight_format|inv_freq|\.masked_bias|\.attn\.bias|"
    r"attention\.bias|\.scb|_amax|\.k_scale|\.v_scale|\.weight_meta|expert_bias_counts)$"
)
_TOWER = re.compile(
    r"(?:^|\.)(?:visual|vision\w*|image_\w+|img_\w+|audio\w*|speech\w*|sound\w*|multi_modal_projector|mm_projector|"
    r"mm_\w+|embed_vision|embed_audio|connector|merger|projector|patch_\w+|mlp1|vit|vpm|apm|resampler|aligner|"
    r"talker|code2wav|token2wav|thinker\.visual|thinker\.audio_tower)\."
)
_MTP = re.compile(r"(?:^|\.)(?:mtp\w*|model_mtp|eh_proj|enorm|hnorm|nextn\w*)(?:\.|$)")
_LAYER = re.compile(r"(?:layers|h|blocks|layer|block)\.(\d+)\.")
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("head", re.compile(r"^(?:.*\.)?(?:lm_head|embed_out|output)\.(?:weight|bias|qweight)")),
    ("embedding", re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe|word_embeddings|embed_in|tok_embeddings|embed_positions|"
                             r"embeddings?|position_embeddings|embedder)(?:\.weight)?$")),
    ("shared_experts", re.compile(r"shared_experts?\.|shared_mlp|shared_expert$")),
    ("router", re.compile(r"(?:\.gate|\.router|shared_expert_gate|\.wg|gate\.wg|router\.layer)"
                          r"(?:\.linear|\.classifier|\.proj)?(?:\.(?:weight|bias|e_score_correction_bias|tid2eid|scale))?$"
                          r"|e_score_correction_bias|\.router\.|expert_bias$")),
    ("latent", re.compile(r"latent_proj|fc[12]_latent")),
    ("experts", re.compile(r"experts?\.|experts?_|block_sparse_moe\.(?:input|output)_linear|\.moe\.")),
    ("attention", re.compile(r"attn|attention|mixer|mamba|conv|temporal_block|linear_attn|\.(?:q|k|v|o)_proj|rwkv")),
    ("norm", re.compile(r"norm|\.ln_|^ln_|\.ln\d|layernorm")),
    ("ffn", re.compile(r"mlp|feed_forward|ffn|\.fc\d|dense_h_to|dense_4h_to|gate_proj|up_proj|down_proj|\.w[123]\b")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight matrix or vector of a checkpoint, its packing undone.

    Args:
        name: of its tensor.
        kind: part of the model: attention, ffn, experts, ..., tower, mtp, or other.
        elements: weights [count].
        dtype: data type as our labels call it: "bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4", "int8".
    """

    name: str
    kind: str
    elements: int
    dtype: str


def weights_of(tensors: Iterable[Tensor], *, num_layers: int | None = None) -> list[Weight]:
    """The weights of a checkpoint; scales, zero points and buffers are left out.

    Args:
        tensors: of the headers.
        num_layers: layers of the stack; those behind it are for multi-token prediction.
    """
    found = {tensor.name: tensor for tensor in tensors}
    weights: list[Weight] = []
    for tensor in found.values():
        if _SCALES.search(tensor.name) and not tensor.name.endswith("e_score_correction_bias"):
            continue
        dtype, packed = _stored_type(tensor, found)
        weights.append(Weight(tensor.name, kind_of(tensor.name, num_layers), tensor.elements * packed, dtype))
    return weights


def kind_of(name: str, num_layers: int | None = None) -> str:
    """The part of the model that a tensor belongs to.

    Example:
        >>> kind_of("model.layers.3.mlp.experts.7.down_proj.weight"), kind_of("model.visual.blocks.0.attn.qkv.weight")
        ('experts', 'tower')
    """
    if _TOWER.search(name) and "language_model.layers" not in name:
        return "tower"
    layer = _LAYER.search(name)
    if _MTP.search(name) or (layer is not None and num_layers is not None and int(layer[1]) >= num_layers):
        return "mtp"
    if layer is not None and re.search(
        r"(?:input|post\w*|pre\w*|final|operator|ffn|attention|self_attn|mlp|attn)\w*"
        r"_?(?:layer)?norm\d?\.(?:weight|bias)$",
        name.rsplit(".", 3)[-2] + "." + name.rsplit(".", 1)[-1],
    ):
        outer = name[layer.end() :].split(".")
        if len(outer) == 2:  # norm of the layer itself
            return "norm"
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def mtp_layers_of(tensors: Iterable[Tensor], num_layers: int) -> int:
    """Layers for multi-token prediction among the tensors of a checkpoint [count].

    Args:
        tensors: of the headers.
        num_layers: layers of the stack.

    Example:
        >>> from rackline.hub import Tensor
        >>> mtp_layers_of([Tensor("mtp.layers.0.mlp.gate.weight", "BF16", (8, 4))], 2)
        1
    """
    names = (tensor.name for tensor in tensors)
    held = (name for name in names if kind_of(name, num_layers) == "mtp" and not _TOWER.search(name))
    return len({int(layer[1]) for name in held if (layer := _LAYER.search(name))})


def _stored_type(tensor: Tensor, found: Mapping[str, Tensor]) -> tuple[str, int]:
    """Our name of a tensor's data type, and weights per stored element."""
    name, dtype = tensor.name, tensor.dtype
    stem = name.removesuffix("weight_packed").removesuffix("qweight").removesuffix("weight")
    scale = next(
        (
            found[key]
            for end in ("weight_scale", "scale", "weight_scale_inv", "scales")
            if (key := f"{stem}{end}") in found
        ),
        found.get(f"{name}_scale") or found.get(f"{name}_scale_inv"),
    )
    if dtype in ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        blocks = scale is not None and len(scale.shape) == len(tensor.shape) and all(
            size > 1 or full <= 128 for size, full in zip(scale.shape, tensor.shape, strict=True)
        )  # fmt: skip
        return ("fp8_block" if blocks and len(tensor.shape) > 1 else "fp8"), 1
    if dtype in ("F4", "F4_E2M1"):
        return "mxfp4" if scale is not None and scale.dtype in ("F8_E8M0", "U8") else "nvfp4", 1
    if dtype == "U8" and name.endswith("_blocks"):
        return "mxfp4", 2
    if dtype in ("U8", "I8") and scale is not None and scale.dtype in ("F8_E8M0", "U8"):
        return "mxfp4", 2
    if dtype == "U8" and scale is not None and scale.dtype == "F8_E4M3":
        return "nvfp4", 2
    if dtype == "U8" and (name.endswith("weight") and f"{name}.absmax" in found):
        return "int4", 2  # bitsandbytes: nf4 or fp4, two in a byte
    if dtype == "U8" and name.endswith("weight_packed"):
        return "nvfp4", 2
    if dtype == "I32" and name.endswith(("qweight", "weight_packed")):
        per_word = _per_word(tensor, stem, found)
        return ("int4" if per_word == 8 else "int8"), per_word
    if dtype == "I8":
        return "int8", 1
    return {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}.get(dtype, dtype.lower()), 1


def _per_word(tensor: Tensor, stem: str, found: Mapping[str, Tensor]) -> int:
    """Weights in one 32-bit word: 8 of four bits; fewer where the scales say that there are fewer columns."""
    scales = found.get(f"{stem}scales") or found.get(f"{stem}weight_scale")
    shape = found.get(f"{stem}weight_shape")
    if scales is None or len(scales.shape) != 2 or len(tensor.shape) != 2 or shape is not None:
        return 8
    columns = scales.shape[1]
    if columns == tensor.shape[1]:  # GPTQ: packed along the rows, one row of scales a group of 32, 64 or 128 rows
        zeros = found.get(f"{stem}qzeros")
        packed = columns // zeros.shape[1] if zeros is not None and len(zeros.shape) == 2 and zeros.shape[1] else 8
        return packed if packed in (4, 8, 16) else 8
    if tensor.shape[1] and columns % tensor.shape[1] == 0 and columns // tensor.shape[1] in (4, 8, 16):
        return columns // tensor.shape[1]  # AWQ: packed along the columns
    return 8


def stored_label(weights: list[Weight]) -> str | None:
    """The label of the data types of a checkpoint's weights by its headers; None where there is nothing to label.

    Linear layers and experts are read apart; each has the type of most of its weights.

    Example:
        >>> stored_label([Weight("a", "attention", 10, "bf16"), Weight("b", "experts", 90, "nvfp4")])
        'bf16,experts=fp4,expert_activations=fp4'
    """
    linear, experts = Counter[str](), Counter[str]()
    for weight in weights:
        if weight.kind in ("experts", "shared_experts"):
            experts[weight.dtype] += weight.elements
        elif weight.kind in ("attention", "ffn"):
            linear[weight.dtype] += weight.elements
    if not linear and not experts:
        return None
    base = (linear or experts).most_common(1)[0][0]
    label = {"fp32": "bf16", "int8": "int8-weights"}.get(base, base)
    other = experts.most_common(1)[0][0] if experts else base
    if other == base:
        return label
    stored = {"nvfp4": "fp4", "fp32": "bf16"}.get(other, other)
    activations = {"fp4": "fp4", "mxfp4": "mxfp8", "fp8": "fp8", "fp8_block": "fp8_block"}.get(stored)
    return f"{label},experts={stored}" + (f",expert_activations={activations}" if activations else "")


TOLERANCE = 0.01
"""Relative difference to a checkpoint beyond which every answer carries a warning."""
NAME_TOLERANCE = 0.05
"""The same to the size that a name states, which is rounded."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([MBT])(?![A-Za-z0-9])", re.I)
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPart:
    """One part of a model.

    Args:
        kind: attention, ffn, experts, ...
        counted: parameters that follow from the description [count].
        stored: parameters of the checkpoint [count].
    """

    kind: str
    counted: int
    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCheck:
    """A model's parameters against its checkpoint.

    Args:
        counted: parameters that follow from the description; layers for multi-token prediction where they are stored
            [count].
        stored: parameters of the checkpoint, without its towers [count].
        parts: by part; empty where only the sum is known.
        tower: parameters of towers for images and sound in the checkpoint [count].
        types: weights by part and data type [count]; empty where only the sum is known.
        total_size: metadata.total_size of the index [bytes]; None where it is not known.
        stored_bytes: size of all tensors by their headers [bytes]; None where they were not read.
        where: what was compared with.
    """

    json_keys: ClassVar = (
        "counted_params=counted",
        "stored_params=stored",
        "difference",
        "parts",
        "tower_params=tower",
        "params_by_dtype=types",
        "total_size_bytes=total_size",
        "stored_bytes",
        "compared_with=where",
    )

    counted: int
    stored: int
    parts: tuple[CountedPart, ...]
    tower: int
    types: dict[str, dict[str, int]]
    total_size: int | None
    stored_bytes: float | None
    where: str

    @property
    def difference(self) -> float:
        """counted / stored - 1."""
        return self.counted / self.stored - 1.0 if self.stored else 0.0

    @property
    def largest(self) -> CountedPart | None:
        """The part that differs most."""
        return max(self.parts, key=lambda part: abs(part.counted - part.stored), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model's record, where it comes from, and the tensors of its checkpoint where they are known.

    Args:
        record: validated.
        origin: for the answer.
        checkpoint: headers of the checkpoint; None where they were not read.
        elements_by_dtype: elements by data type as the Hub has counted them; empty where it has not.
    """

    record: ModelRecord
    origin: Origin
    checkpoint: Checkpoint | None = None
    elements_by_dtype: Mapping[str, int] | None = None


def check_counts(model: AnyModel, found: FoundModel) -> CountCheck | None:
    """Compare a model with its checkpoint; None where nothing is known of it or the model is an aggregate.

    Args:
        model: built from the record.
        found: with tensor headers, or the Hub's own count.
    """
    if not isinstance(model, Model):
        return None
    if found.checkpoint is not None:
        return _by_headers(model, found.checkpoint)
    elements = found.elements_by_dtype or {}
    plain = set(elements) <= _FLOATS and not any("left out" in (source.note or "") for source in found.record.sources)
    if not elements or not plain:
        return None
    stored = sum(elements.values())
    # a checkpoint may hold the layers for multi-token prediction, and a tied head twice
    head = model.vocab_size * model.d_model if model.tied_embeddings else 0
    options = {model.total_params + mtp + extra for mtp in (0, model.mtp_params) for extra in (0, head)}
    return CountCheck(
        counted=min(options, key=lambda option: abs(option - stored)),
        stored=stored,
        parts=(),
        tower=0,
        types={},
        total_size=None,
        stored_bytes=None,
        where="the Hub's count of its tensors",
    )


def _by_headers(model: Model, checkpoint: Checkpoint) -> CountCheck:
    weights = weights_of(checkpoint.tensors, num_layers=model.num_layers)
    stored: Counter[str] = Counter()
    types: dict[str, Counter[str]] = {}
    for weight in weights:
        if weight.kind == "head" and model.tied_embeddings:
            continue  # the embedding once more
        stored[weight.kind] += weight.elements
        types.setdefault(weight.kind, Counter())[weight.dtype] += weight.elements
    counted = {kind: count for kind, count in model.parameters().total.items() if count}
    tower = stored.pop("tower", 0)
    if model.tower_params:
        stored["towers"], tower = tower, 0
    if stored.get("mtp"):
        counted["mtp"] = model.mtp_params
    kinds = [*counted, *(kind for kind in stored if kind not in counted)]
    return CountCheck(
        counted=sum(counted.values()),
        stored=sum(stored.values()),
        parts=tuple(CountedPart(kind=kind, counted=counted.get(kind, 0), stored=stored.get(kind, 0)) for kind in kinds),
        tower=tower,
        types={kind: dict(counter) for kind, counter in types.items()},
        total_size=checkpoint.total_size,
        stored_bytes=checkpoint.stored_bytes,
        where=f"tensor headers of {checkpoint.where}",
    )


def count_warnings(model: AnyModel, found: FoundModel) -> tuple[str, ...]:
    """What every answer must say of a model whose count is off by more than 1 %."""
    check = check_counts(model, found)
    if check is None:
        return _against_name(model, found)
    if abs(check.difference) <= TOLERANCE:
        return ()
    worst = check.largest
    at = f", most in {worst.kind} ({worst.counted:.4g} counted, {worst.stored:.4g} stored)" if worst else ""
    return (
        f"{found.origin.name}: {check.counted:.4g} parameters counted, {check.stored:.4g} by {check.where} "
        f"({check.difference:+.1%}){at}: the description is uncertain",
    )


def size_in_name(name: str) -> float | None:
    """Parameters that a name states, active ones and those of one expert apart; None where it states none.

    Example:
        >>> size_in_name("Qwen3-30B-A3B") / 1e9, size_in_name("Mixtral-8x7B-v0.1"), size_in_name("mpt-125m") / 1e6
        (30.0, None, 125.0)
    """
    found = _SIZE.search(name)
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def _against_name(model: AnyModel, found: FoundModel) -> tuple[str, ...]:
    """A count that is far from the size in the name; names of the catalogue are checked against what is published."""
    stated = None if found.origin.kind == "catalogue" else size_in_name(found.record.full_name)
    if stated is None or abs(model.total_params / stated - 1.0) <= NAME_TOLERANCE:
        return ()
    off = model.total_params / stated - 1.0
    return (f"{found.origin.name}: {model.total_params:.4g} parameters counted, {stated:.4g} by its name ({off:+.1%})",)
