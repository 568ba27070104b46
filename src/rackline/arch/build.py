"""Catalogue record → model object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from rackline.arch.attention import Attention
from rackline.arch.counts import count_warnings
from rackline.arch.ffn import DenseFfn, MoeFfn
from rackline.arch.kinds import attention_from_parameters
from rackline.arch.kinds.gated_delta import GatedDeltaAttention
from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.kinds.none import NoAttention
from rackline.arch.lookup import FoundModel, find_model
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model
from rackline.catalog import (
    ArchitectureRecord,
    FfnRecord,
    GqaRecord,
    LayeredRecord,
    LayerRecord,
    ModelRecord,
    MoeRecord,
)
from rackline.errors import CatalogError


def model(
    name: str,
    overrides: Mapping[str, object] | None = None,
    *,
    assume: Sequence[str] = (),
    offline: bool = False,
) -> AnyModel:
    """Build a model by catalogue name, alias or Hugging Face id, from a TOML file or from a config.json.

    Args:
        name: "llama-3.1-70b", "Qwen/Qwen3-VL-8B-Instruct", "org/name@revision", "path/to/model.toml" or
            "path/to/config.json".
        overrides: values that replace those of the record, dotted keys ("architecture.num_layers").
        assume: a family to read an unknown configuration as, and KEY=VALUE for its keys.
        offline: read the catalogue, files and the Hub's cache alone.

    Raises:
        UnknownNameError, HubError, CatalogError, ConfigError: with the nearest name, what to do, or the offending key.
    """
    return found_model(find_model(name, overrides, assume=assume, offline=offline))


def found_model(found: FoundModel) -> AnyModel:
    """Build a model that was found, with its origin and what is to be said about it."""
    built = build_model(found.record)
    origin = replace(found.origin, warnings=(*found.origin.warnings, *count_warnings(built, found)))
    return replace(built, origin=origin)


_NORM_VECTORS = {"rmsnorm": 1, "layernorm": 2, "plain": 0}


def build_model(record: ModelRecord) -> AnyModel:
    """Build the object of a validated record.

    Raises:
        CatalogError: an attention kind of a layer or one of its parameters is unknown or unusable.
    """
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
    if isinstance(arch, LayeredRecord):
        groups = _listed_groups(arch, record.name)
        norms, extra = arch.norms_per_layer or 2 * arch.norm_sites, arch.extra_params
        streams = arch.residual_streams
    else:
        groups, norms, extra, streams = _patterned_groups(arch), arch.norms_per_layer, 0, 1
    return Model(
        name=record.name,
        native_precision=record.native_precision,
        d_model=arch.d_model,
        vocab_size=arch.vocab_size,
        tied_embeddings=arch.tied_embeddings,
        learned_positions=arch.learned_positions,
        norm_params_per_norm=arch.d_model * _NORM_VECTORS[arch.norm],
        norms_per_layer=norms,
        parallel_block=arch.parallel_block,
        layer_groups=groups,
        other_params=extra,
        residual_streams=streams,
        mtp_layers=arch.mtp_layers,
        max_context_len=arch.max_context_len,
        sources=sources,
    )


def _patterned_groups(arch: ArchitectureRecord) -> tuple[LayerGroup, ...]:
    """Layers of a pattern, equal ones counted together."""
    counts: dict[tuple[Attention, DenseFfn | MoeFfn], int] = {}
    for index in range(arch.num_layers):
        layer = (_attention(arch, index), _ffn(arch, index))
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerGroup(count=count, attention=attention, ffn=ffn) for (attention, ffn), count in counts.items())


def _listed_groups(arch: LayeredRecord, name: str) -> tuple[LayerGroup, ...]:
    """Layers as listed."""
    return tuple(
        LayerGroup(count=layer.count, attention=_listed_attention(layer, name), ffn=_listed_ffn(layer))
        for layer in arch.layers
    )


def _listed_attention(layer: LayerRecord, name: str) -> Attention:
    if layer.attention is None:
        return NoAttention()
    where = f"{name}, architecture.layers.{layer.name}.attention"
    return attention_from_parameters(layer.attention.kind, layer.attention.parameters, where=where)


def _listed_ffn(layer: LayerRecord) -> DenseFfn | MoeFfn:
    if layer.moe is not None:
        return _mixture(layer.moe, layer.moe.activation)
    if layer.ffn is not None:
        return _dense(layer.ffn)
    return DenseFfn(activation="gelu", d_ff=0)


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
    layer = spec.pattern[index % len(spec.pattern)] if spec.pattern else "window"
    match layer:
        case "linear":
            if arch.linear:
                return GatedDeltaAttention(
                    num_key_heads=arch.linear.num_key_heads,
                    num_value_heads=arch.linear.num_value_heads,
                    key_head_dim=arch.linear.key_head_dim,
                    value_head_dim=arch.linear.value_head_dim,
                    conv_kernel=arch.linear.conv_kernel,
                )
            window = None
        case "window":
            window = spec.window
        case "full":
            window = None
        case _:
            assert_never(layer)
    return GroupedQueryAttention(
        num_q_heads=spec.num_q_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        window=window,
        bias=spec.bias,
        output_bias=spec.output_bias,
        qk_norm=spec.qk_norm,
        sinks=spec.sinks,
        output_gate=spec.output_gate,
    )


def _ffn(arch: ArchitectureRecord, index: int) -> DenseFfn | MoeFfn:
    moe = arch.moe
    if moe is None or index < moe.first_dense_layers or (index - moe.first_dense_layers) % moe.every:
        return _dense(arch.ffn)
    return _mixture(moe, moe.activation or arch.ffn.kind)


def _dense(ffn: FfnRecord) -> DenseFfn:
    return DenseFfn(activation=ffn.kind, d_ff=ffn.d_ff, bias=ffn.bias)


def _mixture(moe: MoeRecord, activation: str | None) -> MoeFfn:
    return MoeFfn(
        activation=activation or "swiglu",
        num_experts=moe.num_experts,
        experts_per_token=moe.experts_per_token,
        d_expert=moe.d_expert,
        d_shared=moe.d_shared,
        d_latent=moe.d_latent,
        bias=moe.bias,
        router_bias=moe.router_bias,
        shared_gate=moe.shared_gate,
        extra_params=moe.extra_params,
        num_groups=moe.num_groups,
        groups_per_token=moe.groups_per_token,
    )
