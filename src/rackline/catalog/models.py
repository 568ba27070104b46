"""Records of models: the shape of a transformer whose layers follow one pattern or are listed, or only its totals."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from rackline.catalog.base import (
    Count,
    CountOrZero,
    Date,
    Fraction,
    LayerCount,
    Name,
    NonNegative,
    Positive,
    Record,
    SourcedRecord,
    Text,
    refuse,
)


class GqaRecord(Record):
    """Grouped-query attention; multi-head and multi-query are its two ends.

    Args:
        num_q_heads: Query heads [count].
        num_kv_heads: Key and value heads; must divide num_q_heads [count].
        head_dim: Width of a head [elements].
        bias: Whether the query, key and value projections have biases.
        output_bias: Whether the output projection has a bias.
        qk_norm: Whether queries and keys are normalised per head.
        window: Tokens that a window layer attends to [tokens].
        pattern: Kinds of consecutive layers, repeated over the stack; absent means all "full", or all
            "window" if window is given.
        sinks: Whether each query head has a learned attention sink.
        output_gate: Whether a gate as wide as the queries is projected for the output.
    """

    kind: Literal["gqa"] = "gqa"
    num_q_heads: Count
    num_kv_heads: Count
    head_dim: Count
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    window: Count | None = None
    pattern: Annotated[tuple[Literal["window", "full", "linear"], ...], Field(min_length=1)] | None = None
    sinks: bool = False
    output_gate: bool = False

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_q_heads {self.num_q_heads}")
        if self.pattern is not None and "window" in self.pattern and self.window is None:
            raise ValueError("pattern has window layers, but window is missing")
        return self


class LinearRecord(Record):
    """Gated delta rule of the "linear" layers of a pattern.

    Args:
        num_key_heads, num_value_heads: Heads [count].
        key_head_dim, value_head_dim: Width of a head; the state is their product per value head [elements].
        conv_kernel: Taps of the short convolution [count].
    """

    kind: Literal["gated_delta"] = "gated_delta"
    num_key_heads: Count
    num_value_heads: Count
    key_head_dim: Count
    value_head_dim: Count
    conv_kernel: Count


class MlaRecord(Record):
    """Multi-head latent attention.

    Args:
        num_q_heads: Query heads [count].
        q_lora_rank: Width of the query latent; 0 = queries are projected directly [elements].
        kv_lora_rank: Width of the cached latent [elements].
        qk_nope_head_dim: Width of a head's part without rotary position [elements].
        qk_rope_head_dim: Width of the shared rotary key, cached beside the latent [elements].
        v_head_dim: Width of a value head [elements].
    """

    kind: Literal["mla"] = "mla"
    num_q_heads: Count
    q_lora_rank: CountOrZero
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: CountOrZero
    v_head_dim: Count


class FfnRecord(Record):
    """Dense feed-forward block: its activation, width [elements] and whether it has biases."""

    kind: Literal["swiglu", "geglu", "gelu", "relu2", "relu"]
    d_ff: Count
    bias: bool = False


class MoeRecord(Record):
    """Mixture of experts in place of the dense block.

    Args:
        activation: Activation of the experts; absent: as the dense block, or swiglu where there is none.
        num_experts: Routed experts of a layer [count].
        experts_per_token: Routed experts that one token visits [count].
        d_expert: Width of one routed expert [elements].
        num_shared_experts: Experts that every token visits [count].
        d_shared: Width of the shared experts together [elements].
        first_dense_layers: Leading layers that use the dense block instead [count].
        every: Period of mixture layers: one layer in `every`, after the leading dense ones [count].
        bias: Whether the experts have biases.
        router_bias: Whether the router has a bias or a correction term per expert.
        shared_gate: Whether a learned gate weighs the shared experts.
        d_latent: Width to which tokens are projected before the routed experts and from which they come back; 0 for
            none (latent mixture of Nemotron 3) [elements].
        extra_params: Parameters of the layer that belong to no product, such as norms of the latent [count].
        num_groups: Groups of experts in node-limited routing; 1 without it [count].
        groups_per_token: Groups from which one token picks its experts [count].
    """

    activation: Literal["swiglu", "geglu", "gelu", "relu2", "relu"] | None = None
    num_experts: Count
    experts_per_token: Count
    d_expert: Count
    num_shared_experts: CountOrZero = 0
    d_shared: CountOrZero = 0
    first_dense_layers: CountOrZero = 0
    every: Count = 1
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    d_latent: CountOrZero = 0
    extra_params: CountOrZero = 0
    num_groups: Count = 1
    groups_per_token: Count = 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        groups, picked = self.num_groups, self.groups_per_token
        refuse((
            (self.experts_per_token > self.num_experts, "experts_per_token exceeds num_experts"),
            (self.num_experts % groups or picked > groups,
             "num_groups divides num_experts and groups_per_token is at most num_groups"),
            (self.experts_per_token > self.num_experts // groups * picked,
             "experts_per_token exceeds the experts of groups_per_token groups"),
            ((self.num_shared_experts == 0) != (self.d_shared == 0),
             "num_shared_experts and d_shared are both zero or both positive"),
        ))  # fmt: skip
        return self


class ShapeRecord(Record):
    """What every description of a stack of layers says.

    norm: "plain" has no weights. tower_params: of towers for images and sound. lookup_params: of tables of which a
    token reads a few rows. max_context_len: positions that the model was made for, stretched ones included [tokens];
    rope_scaling says how.
    """

    num_layers: LayerCount
    d_model: Count
    vocab_size: Count
    tied_embeddings: bool = False
    learned_positions: CountOrZero = 0
    norm: Literal["rmsnorm", "layernorm", "plain"] = "rmsnorm"
    parallel_block: bool = False
    mtp_layers: CountOrZero = 0
    tower_params: CountOrZero = 0
    lookup_params: CountOrZero = 0
    max_context_len: Count | None = None
    rope_scaling: Text | None = None


class ArchitectureRecord(ShapeRecord):
    """The shape of a transformer whose layers are known.

    norms_per_layer is 2, 4 with norms after each block (Gemma), 1 for a parallel block.
    """

    norms_per_layer: Count = 2
    attention: Annotated[GqaRecord | MlaRecord, Field(discriminator="kind")]
    ffn: FfnRecord
    moe: MoeRecord | None = None
    linear: LinearRecord | None = None

    @model_validator(mode="after")
    def _layers_are_described(self) -> Self:
        pattern = self.attention.pattern if isinstance(self.attention, GqaRecord) else None
        refuse((
            (("linear" in (pattern or ())) != (self.linear is not None),
             "[architecture.linear] and a pattern with linear layers belong together"),
            (self.moe is not None and self.moe.first_dense_layers > self.num_layers,
             "moe.first_dense_layers exceeds num_layers"),
        ))  # fmt: skip
        return self


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
        refuse((
            (self.attention is None and self.ffn is None and self.moe is None,
             "a layer has an attention, an ffn or a moe"),
            (self.ffn is not None and self.moe is not None,
             "a layer has an ffn or a moe; a dense block beside experts is a shared expert"),
            (self.moe is not None and (self.moe.first_dense_layers, self.moe.every) != (0, 1),
             "moe.first_dense_layers and moe.every say nothing in a group of equal layers"),
        ))  # fmt: skip
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
        found, names = sum(layer.count for layer in self.layers), {layer.name for layer in self.layers}
        refuse((
            (found != self.num_layers,
             f"the counts of the layers add up to {found}, but num_layers is {self.num_layers}"),
            (len(names) < len(self.layers), "two groups of layers have one name"),
        ))  # fmt: skip
        return self


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
