"""Records of stacks whose layers differ: groups of equal layers, each with its own attention and feed-forward kind."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from rackline.catalog.base import Count, CountOrZero, LayerCount, Name, Record, Text
from rackline.catalog.models import FfnRecord, MoeRecord, ShapeRecord

Parameter = bool | Annotated[int, Field(ge=0, le=100_000_000)] | Annotated[float, Field(ge=0.0)] | Text


class KindRecord(Record):
    """An attention kind by name and its parameters, which the kind itself checks (`rackline.arch.kinds`)."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Parameter]  # pyright: ignore[reportIncompatibleVariableOverride]

    kind: Text

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Everything beside the kind."""
        return dict(self.__pydantic_extra__)


class LayerRecord(Record):
    """A group of equal layers.

    Args:
        name: What the group is called in the keys of sources.
        count: Layers of the group [count].
        attention: Attention kind; absent for a layer without a token mixer.
        ffn: Dense block; absent for a layer without one.
        moe: Mixture of experts in its place.
    """

    name: Name
    count: LayerCount
    attention: KindRecord | None = None
    ffn: FfnRecord | None = None
    moe: MoeRecord | None = None

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if self.attention is None and self.ffn is None and self.moe is None:
            raise ValueError("a layer has an attention, an ffn or a moe")
        if self.ffn is not None and self.moe is not None:
            raise ValueError("a layer has an ffn or a moe; a dense block beside experts is a shared expert")
        if self.moe is not None and (self.moe.first_dense_layers, self.moe.every) != (0, 1):
            raise ValueError("moe.first_dense_layers and moe.every say nothing in a group of equal layers")
        return self


class LayeredRecord(ShapeRecord):
    """The shape of a model whose layers differ.

    Args:
        num_layers: All layers; the sum of the groups' counts [count].
        norm_sites: Norms around each block (attention, feed-forward): 1 before it, 2 with one behind it (Gemma).
        norms_per_layer: Norms of a layer where they are not twice that: 1 for a parallel block [count].
        extra_params: Parameters that belong to no product, such as hyper-connections [count].
        residual_streams: Streams that hyper-connections mix before and behind each block; 1 without them [count].
        layers: Groups of equal layers.
        mtp_layers: Layers for multi-token prediction beside the stack [count].
    """

    norm_sites: Count = 1
    norms_per_layer: Count | None = None
    extra_params: CountOrZero = 0
    residual_streams: Count = 1
    layers: Annotated[tuple[LayerRecord, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        found = sum(layer.count for layer in self.layers)
        if found != self.num_layers:
            raise ValueError(f"the counts of the layers add up to {found}, but num_layers is {self.num_layers}")
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            raise ValueError("two groups of layers have one name")
        return self
