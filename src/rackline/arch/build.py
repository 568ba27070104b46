"""Catalogue record → model object, and its parameters against those of its checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rackline.arch.adapters import weights_of
from rackline.arch.attention import Attention
from rackline.arch.kinds import attention_from_parameters
from rackline.arch.kinds.gqa import GroupedQueryAttention, NoAttention
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.kinds.recurrent import GatedDeltaAttention
from rackline.arch.lookup import FoundModel, find_model
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model
from rackline.arch.products import DenseFfn, MoeFfn
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

if TYPE_CHECKING:
    from rackline.hub import Checkpoint


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
            total_params=int(record.aggregate.total_params),
            active_params=int(record.aggregate.active_params),
            stated_kv_bytes_per_token=record.aggregate.kv_bytes_per_token,
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
        tower_params=arch.tower_params,
        lookup_params=arch.lookup_params,
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
    spec, linear = arch.attention, arch.linear
    own = spec.model_dump(exclude={"kind", "pattern", "window"})
    if not isinstance(spec, GqaRecord):
        return MultiHeadLatentAttention(**own)
    layer = spec.pattern[index % len(spec.pattern)] if spec.pattern else "window"
    if layer == "linear" and linear is not None:
        return GatedDeltaAttention(**linear.model_dump(exclude={"kind"}))
    return GroupedQueryAttention(**own, window={"window": spec.window, "full": None, "linear": None}[layer])


def _ffn(arch: ArchitectureRecord, index: int) -> DenseFfn | MoeFfn:
    moe = arch.moe
    if moe is None or index < moe.first_dense_layers or (index - moe.first_dense_layers) % moe.every:
        return _dense(arch.ffn)
    return _mixture(moe, moe.activation or arch.ffn.kind)


def _dense(ffn: FfnRecord) -> DenseFfn:
    return DenseFfn(activation=ffn.kind, d_ff=ffn.d_ff, bias=ffn.bias)


def _mixture(moe: MoeRecord, activation: str | None) -> MoeFfn:
    own = moe.model_dump(exclude={"activation", "num_shared_experts", "first_dense_layers", "every"})
    return MoeFfn(**own, activation=activation or "swiglu")


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
