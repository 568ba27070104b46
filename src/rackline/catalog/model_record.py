"""Records of models: the shape of a transformer, or only its totals."""

from __future__ import annotations

from typing import Annotated, Any, Self, cast

from pydantic import Discriminator, Tag, model_validator

from rackline.catalog.base import (
    Count,
    Date,
    Fraction,
    LayerCount,
    NonNegative,
    Positive,
    Record,
    SourcedRecord,
    Text,
)
from rackline.catalog.layers import LayeredRecord
from rackline.catalog.models import ArchitectureRecord


def _shape_tag(value: Any) -> str:
    """Which table an [architecture] is: "layered" where it lists its layers."""
    listed = "layers" in cast("dict[str, Any]", value) if isinstance(value, dict) else isinstance(value, LayeredRecord)
    return "layered" if listed else "uniform"


AnyArchitecture = Annotated[
    Annotated[ArchitectureRecord, Tag("uniform")] | Annotated[LayeredRecord, Tag("layered")], Discriminator(_shape_tag)
]


class AggregateRecord(Record):
    """A model of which only the totals are known.

    Args:
        total_params: All parameters [count].
        active_params: Parameters that one token uses [count].
        kv_bytes_per_token: Cache that one token of context adds [bytes/token].
        num_layers: Layers, where known [count].
    """

    total_params: Positive
    active_params: Positive
    kv_bytes_per_token: NonNegative
    num_layers: LayerCount | None = None

    @model_validator(mode="after")
    def _active_is_part(self) -> Self:
        if self.active_params > self.total_params:
            raise ValueError("active_params exceeds total_params")
        return self


class PublishedRecord(Record):
    """Parameter counts as the makers state them [count], and the relative size of their rounding."""

    total_params: Positive | None = None
    active_params: Positive | None = None
    rounding: Fraction | None = None


class CheckpointRecord(Record):
    """A repository whose checkpoint has this shape and differs in what is said here.

    Args:
        id: Hugging Face id, one of the aliases.
        native_precision: Data type of its weights, as in the record itself ("fp8_block").
        quantization: What its quantization_config says of types; empty where it was not read.
        max_context_len: Positions that it was made for [tokens].
    """

    id: Text
    native_precision: Text | None = None
    quantization: str = ""
    max_context_len: Count | None = None


class ModelRecord(SourcedRecord):
    """One model: its known shape, or only its totals.

    Args:
        released: Date of release, YYYY[-MM[-DD]].
        native_precision: Data type of the published weights ("bf16", "fp8", "mxfp4").
        quantization: What the quantization_config of the checkpoint says of types; empty where there is none.
        checkpoints: Repositories that differ from it in data type or context limit.
        published: What the makers state about size.
        architecture: The shape; exactly one of this and aggregate.
        aggregate: The totals; exactly one of this and architecture.
    """

    released: Date | None = None
    native_precision: Text = "bf16"
    quantization: str = ""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    published: PublishedRecord | None = None
    architecture: AnyArchitecture | None = None
    aggregate: AggregateRecord | None = None

    @model_validator(mode="after")
    def _exactly_one_shape(self) -> Self:
        if (self.architecture is None) == (self.aggregate is None):
            raise ValueError("a model has exactly one of [architecture] and [aggregate]")
        return self
