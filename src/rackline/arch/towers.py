"""Towers for images and sound: encoders whose outputs take the place of tokens in a prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from rackline.arch.kinds import DenseFfn
from rackline.arch.model import AnyModel, Model
from rackline.units import several

Resize = Literal["native", "tiles", "fit_tiles", "fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one image or clip becomes.

    Args:
        sequences: parts that attend to themselves alone: tiles, or the whole image [count].
        patches: tokens of the encoder in each of them, class tokens included [tokens].
        tokens: tokens of the prompt for the whole image, markers of rows and ends included [tokens].
        width, height: size after resizing [pixels]; 0 for sound.
    """

    sequences: int
    patches: int
    tokens: int
    width: int = 0
    height: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder with its stem and projector.

    Args:
        kind: "vision" or "audio".
        family: model_type of the configuration.
        model: its layers; all parameters, those of stem and projector included.
        patch_dim: inputs of the first product for each patch or frame [elements].
        frames_per_patch: products of the stem for each token of the layers [count].
        projector: products (inputs, outputs) on every token of the prompt.
        patch_size: side of a patch [pixels].
        merge: patches along each side that become one token [count].
        resize: "native": size kept, rounded to whole tokens; "tiles": nearest aspect of up to max_tiles tiles and a
            thumbnail (InternVL); "fit_tiles": the smallest canvas of tiles that holds the image, and the whole image
            (Llama 4); "fixed": one size.
        image_size: side of a tile, or the longest side [pixels].
        max_tiles: of one image [count].
        max_patches: of one image; a larger one is shrunk [count].
        class_tokens: added to each sequence of the encoder [tokens].
        fixed_tokens: tokens of one tile or image where pooling sets them [tokens].
        row_markers: whether each row of tokens ends with a marker; markers: others of an image [tokens].
        tokens_per_s: of sound, in the prompt [tokens/s]; frames_per_s: in the layers [tokens/s].
        chunk_s: length to which a clip is padded and cut [s].
    """

    kind: Literal["vision", "audio"]
    family: str
    model: Model
    patch_dim: int
    projector: tuple[tuple[int, int], ...]
    frames_per_patch: int = 1
    patch_size: int = 0
    merge: int = 1
    resize: Resize = "native"
    image_size: int = 0
    max_tiles: int = 1
    max_patches: int = 0
    class_tokens: int = 0
    fixed_tokens: int = 0
    row_markers: bool = False
    markers: int = 0
    tokens_per_s: float = 0.0
    frames_per_s: float = 0.0
    chunk_s: float = 0.0

    def image(self, width: int, height: int) -> View:
        """What an image of this size becomes.

        Args:
            width, height: [pixels].

        Example:
            >>> from rackline.arch.hf_towers import tower_of
            >>> qwen = {"model_type": "qwen2_vl", "vision_config": {"depth": 1, "embed_dim": 64, "num_heads": 4,
            ...         "hidden_size": 64, "mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2}}
            >>> tower_of(qwen, "vision").image(224, 224).tokens
            66
        """
        if self.resize == "native":
            return self._whole(width, height)
        divided = {"tiles": _nearest_tiles, "fit_tiles": _canvas, "fixed": _one_tile}[self.resize]
        return self._tiled(*divided(width, height, self.image_size, self.max_tiles))

    def _tiled(self, columns: int, rows: int) -> View:
        """An image cut into tiles, with the whole of it as one more where there are several."""
        count = columns * rows + (1 if columns * rows > 1 else 0)
        grid = self.image_size // self.patch_size
        each = self.fixed_tokens or (grid // self.merge) ** 2
        return View(
            sequences=count,
            patches=grid * grid + self.class_tokens,
            tokens=count * each + self.markers,
            width=columns * self.image_size,
            height=rows * self.image_size,
        )

    def _whole(self, width: int, height: int) -> View:
        """An image that keeps its size, rounded to whole tokens and shrunk where it is too large."""
        side, scale = self.patch_size * self.merge, 1.0
        if self.image_size:
            scale = min(1.0, self.image_size / max(width, height))
        if self.max_patches:
            scale = min(scale, math.sqrt(self.max_patches * self.patch_size**2 / (width * height)))
        columns, rows = (max(1, round(length * scale / side)) for length in (width, height))
        return View(
            sequences=1,
            patches=columns * rows * self.merge**2 + self.class_tokens,
            tokens=columns * rows + (rows if self.row_markers else 0) + self.markers,
            width=columns * side,
            height=rows * side,
        )

    def sound(self, seconds: float) -> View:
        """What a clip of this length becomes, padded to whole chunks [s]."""
        chunks = max(1, math.ceil(seconds / self.chunk_s)) if self.chunk_s else 1
        length = self.chunk_s or seconds
        return View(
            sequences=chunks,
            patches=round(length * self.frames_per_s),
            tokens=math.ceil(min(seconds, chunks * length) * self.tokens_per_s) + self.markers,
        )

    def flop(self, view: View, count: int = 1) -> float:
        """FLOP of the encoder, its stem and its projector for some images or clips of one size [FLOP]."""
        return count * (self.layer_flop(view) + self.outer_flop(view))

    def layer_flop(self, view: View) -> float:
        """FLOP of the layers alone for one image or clip [FLOP]."""
        total, d_model = 0.0, self.model.d_model
        for group in self.model.layer_groups:
            products = sum(2.0 * p.params for p in group.attention.projections(d_model))
            products += 2.0 * (group.ffn.params(d_model) if isinstance(group.ffn, DenseFfn) else 0)
            core = group.attention
            pairs = float(core.attention_pairs(float(view.patches), 0.0)) * core.num_q_heads
            total += group.count * (products * view.patches + pairs * core.prefill_flop_per_pair)
        return total * view.sequences

    def outer_flop(self, view: View) -> float:
        """FLOP of stem and projector for one image or clip [FLOP]."""
        stem = 2.0 * self.patch_dim * self.model.d_model * self.frames_per_patch * view.patches * view.sequences
        return stem + 2.0 * sum(d_in * d_out for d_in, d_out in self.projector) * view.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """Equal images, or equal clips, of each request.

    Args:
        tower: that encodes them.
        view: what one becomes.
        items: in a request [count].
    """

    json_keys: ClassVar = (
        "kind=tower.kind",
        "items",
        "width=view.width",
        "height=view.height",
        "sequences",
        "patches=view.patches",
        "tokens",
        "tower_params=tower.model.total_params",
        "flop",
    )

    tower: Tower
    view: View
    items: int

    @property
    def tokens(self) -> int:
        """Tokens of the prompt for all of them [tokens]."""
        return self.items * self.view.tokens

    @property
    def sequences(self) -> int:
        """Parts that attend to themselves alone [count]."""
        return self.items * self.view.sequences

    @property
    def flop(self) -> float:
        """FLOP of encoding all of them [FLOP]."""
        return self.tower.flop(self.view, self.items)

    @property
    def line(self) -> str:
        """One line for readers."""
        size = f" of {self.view.width}x{self.view.height} pixels" if self.view.width else ""
        things = several(self.items, {"vision": "image", "audio": "clip"}[self.tower.kind])
        return (
            f"each prompt brings {things}{size}: {self.tokens:,} tokens beside the text, encoded by a "
            f"{self.tower.kind} tower of {self.tower.model.total_params / 1e9:.3g}B parameters"
        )

    @property
    def outer_share(self) -> float:
        """FLOP of stem and projector over those of the layers [1]."""
        return self.tower.outer_flop(self.view) / self.tower.layer_flop(self.view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Images and sound of each request that a model serves.

    Args:
        parts: by tower.
        prompt_len: tokens of a prompt, those of the parts included, over which their encoding is spread; None where
            only the memory of the towers counts [tokens].

    Assumes: a cached part of a prompt needs no encoding, as engines keep what towers gave with the cache.
    """

    parts: tuple[MediaPart, ...]
    prompt_len: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the prompt for all of them [tokens]."""
        return sum(part.tokens for part in self.parts)

    @property
    def tower_params(self) -> int:
        """Parameters of the towers [elements]."""
        return sum(part.tower.model.total_params for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalModel(Model):
    """A model with the images and sound of each request that it serves; no count of parameters includes their towers.

    Args:
        media: what each request brings; `tower_params` are those of other towers.
    """

    media: Media


def media_of(model: AnyModel) -> Media | None:
    """Images and sound of each request; None for text alone."""
    return model.media if isinstance(model, MultimodalModel) else None


def with_media(model: AnyModel, media: Media | None) -> AnyModel:
    """The model with these images and sound of each request, in place of those that it has; None for text alone.

    A model of which only sizes are known has no towers and stays as it is.
    """
    if not isinstance(model, Model):
        return model
    plain: dict[str, Any] = {part.name: getattr(model, part.name) for part in fields(Model)}
    held = media_of(model)
    plain["tower_params"] += held.tower_params if held is not None else 0
    if media is None:
        return Model(**plain)
    plain["tower_params"] = max(plain["tower_params"] - media.tower_params, 0)
    return MultimodalModel(**plain, media=media)


def _splits(most: int) -> list[tuple[int, int]]:
    """Columns and rows of all canvases of up to `most` tiles."""
    return [(i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most]


def _one_tile(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """One canvas for images of all sizes."""
    return 1, 1


def _canvas(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """The canvas with the least enlargement, else with the least shrinking; of equal ones the smallest.

    Source: Llama 4, get_best_fit of its image processor.
    """
    options = _splits(most)
    scales = {(i, j): min(i * side / width, j * side / height) for i, j in options}
    larger = [pair for pair in options if scales[pair] >= 1.0]
    best = min(scales[pair] for pair in larger) if larger else max(scales.values())
    return min((pair for pair in options if scales[pair] == best), key=lambda pair: pair[0] * pair[1])


def _nearest_tiles(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """The nearest aspect ratio; of equal ones the larger canvas if the image fills more than half of it.

    Source: InternVL, dynamic_preprocess of its model code.
    """
    chosen, nearest = (1, 1), math.inf
    for i, j in sorted(_splits(most), key=lambda pair: pair[0] * pair[1]):
        off = abs(width / height - i / j)
        if off < nearest:
            chosen, nearest = (i, j), off
        elif off == nearest and width * height > 0.5 * side * side * i * j:
            chosen = (i, j)
    return chosen
