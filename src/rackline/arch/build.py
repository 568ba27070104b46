"""Catalogue record → model object."""

from __future__ import annotations

from collections.abc import Mapping

from rackline.arch.attention import Attention, GroupedQueryAttention, MultiHeadLatentAttention
from rackline.arch.ffn import DenseFfn, MoeFfn
from rackline.arch.hf import read_hf_config
from rackline.arch.linear import GatedDeltaAttention
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model
from rackline.catalog import ArchitectureRecord, GqaRecord, ModelRecord, model_record
from rackline.errors import CatalogError


def model(name: str, overrides: Mapping[str, object] | None = None) -> AnyModel:
    """Build a model by catalogue name, alias or HF id, from a user's TOML file or from a HF config.json.

    Args:
        name: "llama-3.1-70b", "meta-llama/Llama-3.1-70B", "path/to/model.toml" or "path/to/config.json".
        overrides: values that replace those of the record, dotted keys ("architecture.num_layers").

    Raises:
        UnknownNameError, CatalogError, ConfigError: with the nearest name or the offending key.
    """
    if name.endswith(".json"):
        return build_model(read_hf_config(name))
    return build_model(model_record(name, overrides=overrides))


def build_model(record: ModelRecord) -> AnyModel:
    """Build the object of a validated record."""
    sources = tuple(source.text for source in record.sources)
    if record.aggregate is not None:
        return AggregateModel(
            name=record.name,
            aggregate_total_params=int(record.aggregate.total_params),
            aggregate_active_params=int(record.aggregate.active_params),
            aggregate_kv_bytes_per_token=record.aggregate.kv_bytes_per_token,
            native_precision=record.native_precision,
            sources=sources,
        )
    arch = record.architecture
    if arch is None:
        raise CatalogError(
            what=f"model {record.name}",
            given="neither",
            allowed="exactly one of [architecture] and [aggregate]",
        )
    counts: dict[tuple[Attention, DenseFfn | MoeFfn], int] = {}
    for index in range(arch.num_layers):
        layer = (_attention(arch, index), _ffn(arch, index))
        counts[layer] = counts.get(layer, 0) + 1
    return Model(
        name=record.name,
        native_precision=record.native_precision,
        d_model=arch.d_model,
        vocab_size=arch.vocab_size,
        tied_embeddings=arch.tied_embeddings,
        learned_positions=arch.learned_positions,
        norm_params_per_norm=arch.d_model * (2 if arch.norm == "layernorm" else 1),
        norms_per_layer=arch.norms_per_layer,
        parallel_block=arch.parallel_block,
        layer_groups=tuple(
            LayerGroup(count=count, attention=attention, ffn=ffn) for (attention, ffn), count in counts.items()
        ),
        sources=sources,
    )


def _attention(arch: ArchitectureRecord, index: int) -> Attention:
    spec = arch.attention
    if not isinstance(spec, GqaRecord):
        return MultiHeadLatentAttention(
            num_q_heads=spec.num_q_heads,
            q_lora_rank=spec.q_lora_rank,
            kv_lora_rank=spec.kv_lora_rank,
            qk_nope_head_dim=spec.qk_nope_head_dim,
            qk_rope_head_dim=spec.qk_rope_head_dim,
            v_head_dim=spec.v_head_dim,
        )
    if spec.pattern and arch.linear and spec.pattern[index % len(spec.pattern)] == "linear":
        return GatedDeltaAttention(
            num_key_heads=arch.linear.num_key_heads,
            num_value_heads=arch.linear.num_value_heads,
            key_head_dim=arch.linear.key_head_dim,
            value_head_dim=arch.linear.value_head_dim,
            conv_kernel=arch.linear.conv_kernel,
        )
    windowed = spec.pattern[index % len(spec.pattern)] == "window" if spec.pattern else spec.window is not None
    return GroupedQueryAttention(
        num_q_heads=spec.num_q_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        window=spec.window if windowed else None,
        bias=spec.bias,
        output_bias=spec.output_bias,
        qk_norm=spec.qk_norm,
        sinks=spec.sinks,
        output_gate=spec.output_gate,
    )


def _ffn(arch: ArchitectureRecord, index: int) -> DenseFfn | MoeFfn:
    moe = arch.moe
    if moe is None or index < moe.first_dense_layers or (index - moe.first_dense_layers) % moe.every:
        return DenseFfn(activation=arch.ffn.kind, d_ff=arch.ffn.d_ff, bias=arch.ffn.bias)
    return MoeFfn(
        activation=arch.ffn.kind,
        num_experts=moe.num_experts,
        experts_per_token=moe.experts_per_token,
        d_expert=moe.d_expert,
        d_shared=moe.d_shared,
        bias=moe.bias,
        router_bias=moe.router_bias,
        shared_gate=moe.shared_gate,
    )
