"""Names of modules and tensors: products that a low-rank adapter changes, parts and data types of a checkpoint.

W x + (alpha / rank) · B A x, with A of rank × inputs and B of outputs × rank (LoRA, arXiv:2106.09685). Which products
have one follows from the names of the modules of Hugging Face models, as PEFT matches them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.kinds.recurrent import GatedDeltaAttention
from rackline.arch.model import LayerGroup, Model
from rackline.arch.products import AdaptedModule, AppliedAdapter, DenseFfn, Dim, MoeFfn
from rackline.errors import ConfigError, nearest_name

if TYPE_CHECKING:
    from rackline.hub import Adapter, Tensor

_ALIASES = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "wq": "q_proj", "wk": "k_proj", "wv": "v_proj",
    "wo": "o_proj", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj", "fc1": "up_proj", "fc2": "down_proj",
    "c_fc": "up_proj", "dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj", "qkv": "qkv_proj",
    "query_key_value": "qkv_proj", "c_attn": "qkv_proj", "Wqkv": "qkv_proj",
}  # fmt: skip
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def apply_adapter(model: Model, adapter: Adapter) -> Model:
    """The model with an adapter.

    Raises:
        ConfigError: a target that no module of the model has, with the modules that it has.

    Assumes: experts have adapters where their modules are named, each its own; adapters of some layers spread over
        kinds of layers as the layers do.
    """
    known = list(_merged(_modules(model)))
    chosen = {module: _rank(module.name, adapter) for module in known if _is_target(module, adapter)}
    fused = [one for target in adapter.targets for one in _fused(known, target)]
    found = [*(replace(module, rank=rank) for module, rank in chosen.items())]
    found += [replace(module, rank=_rank(module.name, adapter)) for module in fused]
    short = [module.name.rpartition(".")[2] for module in known]
    missing = [target for target in adapter.targets if not _matches_any(target, known, fused)]
    if missing or not found:
        raise ConfigError(
            what="target_modules",
            given=", ".join(missing) or ", ".join(adapter.targets),
            allowed=f"modules of {model.name}: {', '.join(dict.fromkeys(short))}, or all-linear",
            nearest=nearest_name(missing[0] if missing else "", short),
            where=adapter.where,
        )
    if adapter.layers is not None:
        share = len(adapter.layers) / model.num_layers
        found = [replace(one, layers=max(1, round(one.layers * share))) for one in found]
    table = model.vocab_size * model.d_model
    whole = sum(table for name in adapter.trained_whole if name.rpartition(".")[2] in ("lm_head", "embed_tokens"))
    applied = AppliedAdapter(
        name=adapter.name, base=adapter.base, modules=tuple(found), whole_params=whole, where=adapter.where
    )
    return replace(model, adapter=applied)


def _modules(model: Model) -> Iterator[AdaptedModule]:
    """Products of all layers by the names of Hugging Face modules."""
    wide = Dim(size=model.d_model)
    for group in model.layer_groups:
        for name, d_in, d_out in _of_attention(group, wide):
            yield AdaptedModule(name=name, layers=group.count, d_in=d_in, d_out=d_out)
        match group.ffn:
            case DenseFfn() as ffn:
                yield from _of_block("mlp", ffn.activation, ffn.d_ff, wide, group.count)
            case MoeFfn() as ffn:
                inner = Dim(size=ffn.expert_d_in(model.d_model))
                for one in _of_block("mlp.experts", ffn.activation, ffn.d_expert, inner, group.count):
                    yield replace(one, copies=ffn.num_experts, used=ffn.experts_per_token)
                if ffn.d_shared:
                    yield from _of_block("mlp.shared_experts", ffn.activation, ffn.d_shared, wide, group.count)


def _of_attention(group: LayerGroup, wide: Dim) -> Iterator[tuple[str, Dim, tuple[Dim, ...]]]:
    kind = group.attention
    match kind:
        case GroupedQueryAttention():
            queries = Dim(size=kind.num_q_heads * kind.head_dim, units=kind.num_q_heads)
            values = Dim(size=kind.num_q_heads * kind.value_dim, units=kind.num_q_heads)
            yield "self_attn.q_proj", wide, (queries, values) if kind.output_gate else (queries,)
            if not kind.shares_kv:
                yield "self_attn.k_proj", wide, (Dim(size=kind.num_kv_heads * kind.head_dim, units=kind.num_kv_heads),)
                if not kind.keys_are_values:
                    width = kind.num_kv_heads * kind.value_dim
                    yield "self_attn.v_proj", wide, (Dim(size=width, units=kind.num_kv_heads),)
            yield "self_attn.o_proj", values, (wide,)
        case MultiHeadLatentAttention():
            heads = kind.num_q_heads
            queries = Dim(size=heads * (kind.qk_nope_head_dim + kind.qk_rope_head_dim), units=heads)
            if kind.q_lora_rank:
                yield "self_attn.q_a_proj", wide, (Dim(size=kind.q_lora_rank),)
                yield "self_attn.q_b_proj", Dim(size=kind.q_lora_rank), (queries,)
            else:
                yield "self_attn.q_proj", wide, (queries,)
            yield "self_attn.kv_a_proj_with_mqa", wide, (Dim(size=kind.kv_lora_rank + kind.qk_rope_head_dim),)
            expansion = kind.expansion()
            if expansion is not None:
                yield "self_attn.kv_b_proj", expansion.d_in[0], expansion.d_out
            yield "self_attn.o_proj", Dim(size=heads * kind.v_head_dim, units=heads), (wide,)
        case GatedDeltaAttention():
            first, last = kind.projections(wide.size)
            yield "linear_attn.in_proj_qkvz", wide, first.d_out[:4]
            yield "linear_attn.in_proj_ba", wide, first.d_out[4:]
            yield "linear_attn.out_proj", last.d_in[0], last.d_out
        case _:
            for product in kind.projections(wide.size):
                name = {"mamba_in": "in_proj", "mamba_out": "out_proj"}.get(product.name, product.name)
                yield f"mixer.{name}", product.d_in[0], product.d_out


def _of_block(where: str, activation: str, width: int, wide: Dim, layers: int) -> Iterator[AdaptedModule]:
    if not width:
        return
    inner = Dim(size=width, units=width)
    if activation in ("swiglu", "geglu"):
        yield AdaptedModule(name=f"{where}.gate_proj", layers=layers, d_in=wide, d_out=(inner,))
    yield AdaptedModule(name=f"{where}.up_proj", layers=layers, d_in=wide, d_out=(inner,))
    yield AdaptedModule(name=f"{where}.down_proj", layers=layers, d_in=inner, d_out=(wide,))


def _merged(modules: Iterator[AdaptedModule]) -> Iterator[AdaptedModule]:
    """Equal products of several groups of layers as one."""
    layers: dict[AdaptedModule, int] = {}
    for module in modules:
        key = replace(module, layers=0)
        layers[key] = layers.get(key, 0) + module.layers
    return (replace(module, layers=count) for module, count in layers.items())


def _full(name: str) -> str:
    """A name as a model has it, in its first layer and of its first expert."""
    return f"model.layers.0.{name.replace('experts.', 'experts.0.', 1) if 'mlp.experts.' in name else name}"


def _matches(name: str, target: str, *, only: bool) -> bool:
    """Whether PEFT gives a module an adapter.

    Args:
        target: the end of a name; a whole name as a regular expression where it is the only one.
        only: whether the targets are one text.
    """
    if target == "all-linear":
        return True
    end = ".".join([*target.split(".")[:-1], _ALIASES.get(target.split(".")[-1], target.split(".")[-1])])
    full = _full(name)
    if full == end or full.endswith(f".{end}"):
        return True
    try:
        return only and re.fullmatch(target, full) is not None
    except re.error:
        return False


def _is_target(module: AdaptedModule, adapter: Adapter) -> bool:
    return any(_matches(module.name, target, only=len(adapter.targets) == 1) for target in adapter.targets)


def _fused(known: Sequence[AdaptedModule], target: str) -> list[AdaptedModule]:
    """Modules that a model stores as one, such as qkv_proj: one bottleneck for all outputs."""
    end = target.split(".")[-1]
    parts = _FUSED.get(_ALIASES.get(end, end), ())
    wanted = [module for module in known if module.name.rpartition(".")[2] in parts]
    found: list[AdaptedModule] = []
    for first in (module for module in wanted if module.name.endswith(parts[:1])):
        where = first.name.rpartition(".")[0]
        same = [one for one in wanted if one.name.rpartition(".")[0] == where and one.layers == first.layers]
        outs = tuple(part for one in same for part in one.d_out)
        found.append(replace(first, name=f"{where}.{_ALIASES.get(end, end)}", d_out=outs))
    return found


def _matches_any(target: str, known: Sequence[AdaptedModule], fused: Sequence[AdaptedModule]) -> bool:
    end = target.split(".")[-1]
    return (
        any(module.name.endswith(f".{_ALIASES.get(end, end)}") for module in fused)
        or end in ("lm_head", "embed_tokens", "gate")  # head, embedding and router: small, left out
        or any(_matches(module.name, target, only=True) for module in known)
    )


def _rank(name: str, adapter: Adapter) -> int:
    full = _full(name)
    for pattern, rank in adapter.rank_pattern:
        try:
            if re.match(rf"(?:.*\.)?(?:{pattern})$", full):
                return rank
        except re.error:
            continue
    return adapter.rank


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
