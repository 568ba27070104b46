"""Towers of Hugging Face configurations: vision_config and audio_config, one row per family.

Sources: the classes ``*VisionConfig`` and modules of src/transformers/models/* in huggingface/transformers 5.23, to
whose parameters tests/unit/test_towers.py holds each; sizes of images by the image processors of the same models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never, cast

from rackline.arch.hf_config import TOWERS, HfConfig, ReadKeys, Table
from rackline.arch.hf_tables import named
from rackline.arch.kinds import DenseFfn
from rackline.arch.kinds.gqa import BidirectionalAttention
from rackline.arch.model import LayerGroup, Model
from rackline.arch.towers import Resize, Tower
from rackline.errors import ConfigError

_LAYERS = ("depth", "num_hidden_layers", "encoder_layers", "vt_num_hidden_layers")
_WIDTHS = ("embed_dim", "hidden_size", "d_model", "vt_hidden_size")
_HEADS = ("num_heads", "num_attention_heads", "encoder_attention_heads", "vt_num_attention_heads")
_INNER = ("intermediate_size", "encoder_ffn_dim", "vt_intermediate_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """How the vision tower of a family is made.

    Args:
        bias: of queries, keys and values; output_bias, mlp_bias: of the others.
        gated: whether its blocks have gates.
        norm: vectors of a norm: 1 for RMS, 2 for layer norms.
        frames: images of one patch; the stem reads an image twice where there are two.
        stem_bias: whether the stem has a bias.
        projector: how tokens come into the language model.
        resize, max_tiles, class_tokens, row_markers, markers, max_patches: as in `Tower`.
        positions: whether it has learned positions.
        grid_positions: whether these are a grid of its own size.
        scales: vectors of each layer that scale its branches (LayerScale).
        end_vectors: vectors of norms before and behind the layers.
        sized: whether image_size of the configuration bounds an image or its tiles.
    """

    bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    gated: bool = False
    norm: int = 2
    frames: int = 1
    stem_bias: bool = True
    projector: Literal["merger", "deepstack", "linear", "pixtral", "shuffle", "llama4", "kimi", "glm", "mlp"] = "merger"
    resize: Resize = "native"
    max_tiles: int = 1
    max_patches: int = 0
    class_tokens: int = 0
    row_markers: bool = False
    markers: int = 2
    positions: bool = True
    grid_positions: bool = False
    scales: int = 0
    end_vectors: int = 0
    sized: bool = False


_QWEN2 = Vision(frames=2, stem_bias=False, positions=False, max_patches=4 * 16384)
_QWEN3 = Vision(frames=2, projector="deepstack", max_patches=4 * 16384)
_KIMI = Vision(projector="kimi", max_patches=16384, grid_positions=True, end_vectors=2)
# gated blocks with RMS norms, neither biases nor learned positions
_PLAIN = Vision(
    bias=False,
    output_bias=False,
    mlp_bias=False,
    gated=True,
    norm=1,
    stem_bias=False,
    positions=False,
)
VISION: dict[str, Vision] = {
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": Vision(frames=2, stem_bias=False, positions=False, gated=True, norm=1, max_patches=4 * 16384),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
    "gemma3": Vision(projector="linear", resize="fixed", end_vectors=2, sized=True),
    "mistral3": replace(
        _PLAIN,
        projector="pixtral",
        end_vectors=1,
        sized=True,
        row_markers=True,
        markers=0,
    ),
    "internvl": Vision(projector="shuffle", resize="tiles", max_tiles=12, class_tokens=1, scales=2, sized=True),
    "internvl_chat": Vision(projector="shuffle", resize="tiles", max_tiles=12, class_tokens=1, scales=2, sized=True),
    "llama4": Vision(
        projector="llama4", resize="fit_tiles", max_tiles=16, class_tokens=1, stem_bias=False, end_vectors=4, sized=True
    ),
    "kimi_vl": _KIMI,
    "kimi_k25": _KIMI,
    # no code of these was public when they were read: their keys, and towers of the same laboratories
    "deepseek_v41": replace(
        _PLAIN,
        projector="linear",
        max_patches=1024 * 9,
        end_vectors=1,
    ),
    "glm5_next": Vision(
        output_bias=False,
        mlp_bias=False,
        gated=True,
        norm=1,
        frames=2,
        projector="glm",
        max_patches=4 * 16384,
        end_vectors=2,
    ),
    "muse_glimmer": Vision(frames=2, projector="mlp", max_patches=4 * 16384, grid_positions=True, end_vectors=4),
}
"""Vision towers by the model_type of the whole configuration."""

AUDIO = ("whisper", "qwen2_audio", "voxtral", "qwen2_audio_encoder", "voxtral_encoder")
"""Families whose audio tower is Whisper's encoder."""


def tower_of(
    config: Mapping[str, object],
    kind: Literal["vision", "audio"],
    where: str = "config.json",
    dropped: list[str] | None = None,
) -> Tower:
    """The tower of a configuration.

    Args:
        config: the whole parsed config.json.
        kind: "vision" or "audio".
        where: for messages.
        dropped: gets what is left out, in words.

    Raises:
        ConfigError: there is none, its family is not known, or a key is missing or unusable.
    """
    top = HfConfig(values=ReadKeys(config), where=where, dropped=[] if dropped is None else dropped)
    family = str(config.get("model_type"))
    if kind == "audio":
        return _audio(top, family)
    top.require(family in VISION, "model_type", f"a family whose vision tower is known: {', '.join(VISION)}")
    return _vision(top, family, VISION[family])


def towers_of(config: Mapping[str, object], where: str, dropped: list[str]) -> tuple[list[Tower], list[str]]:
    """The towers of a configuration that are known, and the keys of the others; `dropped` as in `tower_of`."""
    found: list[Tower] = []
    for kind in has_tower(config):
        try:
            found.append(tower_of(config, kind, where, dropped))
        except ConfigError:
            continue
    known = {"vision": {"vision_config", "projector_hidden_size"}, "audio": {"audio_config"}}
    covered = {key for tower in found for key in known[tower.kind]}
    return found, [key for key in TOWERS if config.get(key) and key not in covered]


def has_tower(config: Mapping[str, object]) -> tuple[Literal["vision", "audio"], ...]:
    """Kinds of towers of a configuration that are known."""
    family = str(config.get("model_type"))
    vision = ("vision",) if family in VISION and isinstance(config.get("vision_config"), dict) else ()
    audio = isinstance(config.get("audio_config"), dict) or "encoder_layers" in config
    return (*vision, *(("audio",) if family in AUDIO and audio else ()))


def _vision(top: HfConfig, family: str, row: Vision) -> Tower:
    c = top.section("vision_config")
    width_key = "embed_dim" if family == "qwen2_vl" else named(c, _WIDTHS[1:])
    d_model, layers, heads = c.count(width_key), c.count(named(c, _LAYERS)), c.count(named(c, _HEADS))
    c.require(
        layers <= 1000 and not d_model % heads,
        named(c, _HEADS),
        f"a divisor of {width_key} {d_model}, and at most 1000 layers",
    )
    d_ff = c.optional(named(c, _INNER)) or round(c.number("mlp_ratio") * d_model)
    patch = _side(c, "patch_size")
    merge = _merge(top, c, row)
    bias = (
        row.bias and c.flag("qkv_bias", default=c.flag("attention_bias", default=True))
        if family.startswith("internvl")
        else row.bias
    )
    attention: dict[str, Any] = {
        "num_q_heads": heads, "num_kv_heads": heads, "head_dim": c.count("head_dim", default=d_model // heads),
        "bias": bias, "output_bias": row.output_bias,
    }  # fmt: skip
    block = DenseFfn(activation="swiglu" if row.gated else "gelu", d_ff=d_ff, bias=row.mlp_bias)
    full = _full_layers(c, layers)
    window = c.optional("window_size") if full is not None else None
    if full is None:
        c.drop("windows of the vision tower are taken as full attention", "layer_types")
    groups = [
        LayerGroup(count=full if full is not None else layers, attention=BidirectionalAttention(**attention), ffn=block)
    ]
    if full is not None and full < layers and window is not None:
        inside = BidirectionalAttention(**attention, window=max(1, window // patch) ** 2)
        groups.append(LayerGroup(count=layers - full, attention=inside, ffn=block))
    image = _side(c, "image_size") if c.values.get("image_size") is not None else 0
    projector, extra = _projector(row, c, top, d_model, merge, _text_width(top, c))
    positions = _positions(c, row, image, patch)
    patch_dim = c.count(named(c, ("in_channels", "num_channels", "in_chans")), default=3) * patch * patch * row.frames
    stem = patch_dim * d_model + (d_model if row.stem_bias else 0) + row.class_tokens * d_model
    scales = row.scales * layers * d_model
    fixed = top.optional("mm_tokens_per_image") or 0
    model = Model(
        name=f"{family}-vision",
        native_precision="bf16",
        d_model=d_model,
        vocab_size=0,
        tied_embeddings=True,
        learned_positions=positions,
        layer_groups=tuple(groups),
        norm_params_per_norm=row.norm * d_model,
        other_params=stem + extra + row.end_vectors * d_model + scales - row.norm * d_model,  # no last norm
    )
    return Tower(
        kind="vision",
        family=family,
        model=model,
        patch_dim=patch_dim,
        projector=projector,
        patch_size=patch,
        merge=merge,
        resize=row.resize,
        image_size=image if row.sized else 0,
        max_tiles=row.max_tiles,
        max_patches=row.max_patches,
        class_tokens=row.class_tokens,
        fixed_tokens=fixed,
        row_markers=row.row_markers,
        markers=row.markers,
    )


def _side(c: HfConfig, key: str) -> int:
    """One side of a size that may be a pair."""
    value = c.values.get(key)
    first = {key: cast("list[object]", value)[0]} if isinstance(value, list) and value else c.values
    return replace(c, values=first).count(key)


def _merge(top: HfConfig, c: HfConfig, row: Vision) -> int:
    """Patches along each side of a token."""
    match row.projector:
        case "shuffle" | "llama4":
            ratio = top.values.get("downsample_ratio", c.values.get("pixel_shuffle_ratio", 0.5))
            if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0.05 <= ratio <= 1:
                raise top.fail("downsample_ratio", "a number from 0.05 to 1")
            return round(1 / ratio)
        case "linear":
            return c.count("downsample_ratio", default=1)
        case "kimi":
            return _side(c, "merge_kernel_size")
        case "merger" | "deepstack" | "glm" | "mlp":
            return c.count(named(c, ("spatial_merge_size", "merge_size")), default=2)
        case "pixtral":
            return top.count("spatial_merge_size", default=1)
        case _:
            assert_never(row.projector)


def _full_layers(c: HfConfig, layers: int) -> int | None:
    """Layers whose attention is not windowed; None where no key says."""
    listed = c.values.get("fullatt_block_indexes")
    if listed is None:
        return None
    if not isinstance(listed, list) or not 0 < len(cast("list[object]", listed)) <= layers:
        raise c.fail("fullatt_block_indexes", f"a list of up to {layers} layer numbers")
    return len(cast("list[object]", listed))


def _text_width(top: HfConfig, c: HfConfig) -> int:
    """Width of the language model [elements]."""
    for key in ("text_config", "llm_config", "language_config"):
        inner = top.values.get(key)
        if isinstance(inner, dict) and isinstance(cast("Table", inner).get("hidden_size"), int):
            return HfConfig(values=cast("Table", inner), where=top.where, prefix=f"{key}.").count("hidden_size")
    return c.optional("out_hidden_size") or top.optional("hidden_size") or c.count("hidden_size")


def _positions(c: HfConfig, row: Vision, image: int, patch: int) -> int:
    """Rows of learned positions [count]."""
    if not row.positions:
        return 0
    if row.grid_positions:
        return c.count("pos_emb_height", default=c.count("init_pos_emb_height", default=64)) * c.count(
            "pos_emb_width", default=c.count("init_pos_emb_width", default=64)
        )
    stated = c.optional("num_position_embeddings")
    return stated if stated is not None else (image // patch) ** 2 + row.class_tokens


def _projector(
    row: Vision, c: HfConfig, top: HfConfig, d_model: int, merge: int, text: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Products of the projector and all its parameters."""
    wide, biased, more = merge * merge * d_model, True, 0
    match row.projector:
        case "merger" | "deepstack":
            out = c.optional("out_hidden_size") or (c.count("hidden_size") if c.values.get("embed_dim") else text)
            listed = c.values.get("deepstack_visual_indexes")
            taps = len(cast("list[object]", listed)) if isinstance(listed, list) else 0
            products = [(wide, wide), (wide, out)] * (1 + taps)
            more = row.norm * d_model + taps * row.norm * wide
        case "linear":
            products, biased, more = [(wide, text)], False, d_model
        case "glm":  # a convolution over the merged patches, a product with a norm, a gated block
            inner = c.count("projection_intermediate_size")
            products = [(wide, text), (text, text), (text, inner), (text, inner), (inner, text)]
            biased, more = False, 4 * text
        case "mlp":
            inner = top.count("projector_hidden_size")
            products = [(wide, inner), (inner, text)]
        case "pixtral":
            products, biased = [(wide, d_model), (d_model, text), (text, text)], False
            more = d_model + (2 * text if top.flag("multimodal_projector_bias", default=False) else 0)
        case "shuffle":
            products, more = [(wide, text), (text, text)], 2 * wide
        case "llama4":
            inner, out = c.count("projector_input_dim"), c.count("projector_output_dim")
            products = [(c.count("intermediate_size"), inner), (inner, out), (c.count("vision_output_dim"), text)]
            biased = False
        case "kimi":
            products, more = [(wide, wide), (wide, text)], 2 * d_model
        case _:
            assert_never(row.projector)
    return tuple(products), more + sum(a * b + (b if biased else 0) for a, b in products)


def _audio(top: HfConfig, family: str) -> Tower:
    top.require(family in AUDIO, "model_type", f"a family whose audio tower is known: {', '.join(AUDIO)}")
    c = top.section("audio_config") if isinstance(top.values.get("audio_config"), dict) else top
    d_model, layers, heads = c.count(named(c, _WIDTHS[1:])), c.count(named(c, _LAYERS)), c.count(named(c, _HEADS))
    c.require(
        layers <= 1000 and not d_model % heads, named(c, _HEADS), f"a divisor of {d_model}, and at most 1000 layers"
    )
    d_ff, mel = c.count(named(c, _INNER)), c.count("num_mel_bins", default=80)
    frames = c.count("max_source_positions", default=1500)
    attention = BidirectionalAttention(
        num_q_heads=heads, num_kv_heads=heads, head_dim=d_model // heads, bias=True, output_bias=True
    )
    stem = 3 * mel * d_model + d_model + 3 * d_model * d_model + d_model
    projector: tuple[tuple[int, int], ...] = ()
    pooled, extra = 1, 0
    if family in ("qwen2_audio", "voxtral"):
        text = _text_width(top, c)
        pooled = 2 if family == "qwen2_audio" else 4
        projector = ((d_model, text),) if pooled == 2 else ((4 * d_model, text), (text, text))
        extra = sum(a * b for a, b in projector) + (text if pooled == 2 else 0)
    model = Model(
        name=f"{family}-audio",
        native_precision="bf16",
        d_model=d_model,
        vocab_size=0,
        tied_embeddings=True,
        learned_positions=frames,
        layer_groups=(
            LayerGroup(count=layers, attention=attention, ffn=DenseFfn(activation="gelu", d_ff=d_ff, bias=True)),
        ),
        norm_params_per_norm=2 * d_model,
        other_params=stem + extra - layers * d_model,  # keys have no bias
    )
    return Tower(
        kind="audio",
        family=family,
        model=model,
        patch_dim=6 * mel + 3 * d_model,  # two convolutions of width 3, the first at twice the rate
        projector=projector,
        tokens_per_s=50.0 / pooled,
        frames_per_s=50.0,
        chunk_s=frames / 50.0,
    )
