"""A model by any name, of the catalogue, a file or a repository of the Hugging Face Hub; and a record as an object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rackline.arch.checkpoint import FoundModel, count_warnings, mtp_layers_of, stored_label, weights_of
from rackline.arch.hf import json_object, read_config, read_config_file
from rackline.arch.kinds import Attention, DenseFfn, MoeFfn, attention_from_parameters
from rackline.arch.kinds.gqa import GroupedQueryAttention, NoAttention
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.kinds.recurrent import GatedDeltaAttention
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model, Origin
from rackline.catalog import (
    ArchitectureRecord,
    FfnRecord,
    GqaRecord,
    LayeredRecord,
    LayerRecord,
    ModelRecord,
    MoeRecord,
    model_record,
)
from rackline.catalog.load import record_from_mapping
from rackline.errors import CatalogError, HubError, UnknownNameError
from rackline.files import is_file
from rackline.late import late

with late:
    from rackline import hub
    from rackline.arch import hf_towers, towers


CONFIG = "config.json"
QUANTISED_BESIDE = "hf_quant_config.json"
_LOCAL = ("./", "../", "/", "~")
_BY_NAME = (
    (re.compile(r"(?:^|[-_.])nvfp4(?:$|[-_.])", re.I), "nvfp4"),
    (re.compile(r"(?:^|[-_.])mxfp4(?:$|[-_.])", re.I), "mxfp4"),
    (re.compile(r"(?:^|[-_.])fp8(?:$|[-_.])", re.I), "fp8"),
    (re.compile(r"(?:^|[-_.])(?:awq|w4a16|(?:gptq[-_.]?)?int4|4bit|bnb-4bit)(?:$|[-_.])", re.I), "int4"),
    (re.compile(r"(?:^|[-_.])(?:w8a16|(?:gptq[-_.]?)?int8)(?:$|[-_.])", re.I), "int8-weights"),
)


def find_model(
    name: str,
    overrides: Mapping[str, object] | None = None,
    *,
    assume: Sequence[str] = (),
    offline: bool = False,
    headers: bool = False,
) -> FoundModel:
    """Find a model by catalogue name, alias, TOML file, config.json (or its folder), or Hugging Face id.

    Args:
        name: "llama-3.1-70b", "path/to/model.toml", "path/to/config.json", "org/name" or "org/name@revision".
        overrides: values that replace those of the record, dotted keys.
        assume: how to read what is not understood in a configuration: a family such as "llama", or "ignore=KEY".
        offline: read the catalogue, files and the Hub's cache alone.
        headers: read the tensor headers of the checkpoint, too, where that takes requests to the Hub.

    Raises:
        UnknownNameError: neither of these, with the nearest catalogue name.
        HubError: a repository that cannot be read; one line says why and what to do.
        CatalogError, ConfigError: a description that breaks its schema.
    """
    return with_overrides(_find(name, assume, offline=offline, headers=headers), overrides)


def find_towers(name: str, *, offline: bool = False) -> tuple[towers.Tower, ...]:
    """Towers for images and sound of a configuration: of a file, its folder, or a repository of the Hub.

    Args:
        name: "path/to/config.json", its folder, "org/name" or "org/name@revision".
        offline: read files and the Hub's cache alone.

    Raises:
        UnknownNameError: neither of these; the catalogue has language models alone.
        HubError, ConfigError: a configuration that cannot be read.
    """
    path = Path(name).expanduser()
    if name.endswith(".json") or is_file(path / CONFIG):
        file, where = (path if name.endswith(".json") else path / CONFIG), name
    else:
        identity = _repository_id(name)
        if identity is None:
            raise UnknownNameError(
                what="model", given=name, allowed="a config.json, its folder, or a Hugging Face id with its tower"
            )

        file, where = hub.open_repository(identity, offline=offline).required(CONFIG), f"{name}: {CONFIG}"
    config = json_object(file, where)
    return tuple(hf_towers.tower_of(config, kind, where) for kind in hf_towers.has_tower(config))


def with_overrides(found: FoundModel, overrides: Mapping[str, object] | None) -> FoundModel:
    """The same model with values of its record replaced, dotted keys.

    Raises:
        CatalogError: a key that the record does not have, or an unusable value.
    """
    if not overrides:
        return found
    data = found.record.model_dump(exclude_unset=True, by_alias=True)
    record = record_from_mapping(ModelRecord, data, where=found.origin.used, overrides=overrides)
    if "native_precision" not in overrides:
        record = record.model_copy(update={"native_precision": found.record.native_precision})
    return replace(found, record=record, origin=replace(found.origin, native_precision=record.native_precision))


def is_called(model: AnyModel, name: str) -> bool:
    """Whether a name is that of a model: of the same catalogue entry, repository, file or folder."""
    names = {model.name.lower()}
    if model.origin is not None:
        names |= {model.origin.name.lower(), model.origin.used.lower()}
    if name.lower() in names or name.rpartition("/")[2].lower() in {one.rpartition("/")[2] for one in names}:
        return True
    try:
        return model_record(name).name == model.name
    except (CatalogError, UnknownNameError):
        return False


def _find(name: str, assume: Sequence[str], *, offline: bool, headers: bool) -> FoundModel:
    if name.endswith(".json") or (not name.endswith(".toml") and is_file(Path(name).expanduser() / CONFIG)):
        return _from_file(name, assume)
    identity = _repository_id(name)
    try:
        if identity is not None and identity.revision != "main":
            return _from_hub(identity, assume, offline=offline, headers=headers)
        return _from_catalogue(name, assume, offline=offline, headers=headers)
    except UnknownNameError as unknown:
        if identity is None:
            raise
        try:
            return _from_hub(identity, assume, offline=offline, headers=headers)
        except HubError as error:
            raise HubError(
                what=error.what, given=error.given, allowed=error.allowed, nearest=unknown.nearest
            ) from error


def _repository_id(name: str) -> hub.RepositoryId | None:
    if "/" not in name or name.startswith(_LOCAL):
        return None

    return hub.RepositoryId.parse(name)


def _from_catalogue(name: str, assume: Sequence[str], *, offline: bool, headers: bool) -> FoundModel:
    """The catalogue's record; where the name is that of other data types than the record's, they are found out."""
    record = model_record(name)
    kind = "file" if name.endswith(".toml") else "catalogue"
    origin = Origin(
        kind=kind, name=name, used=name if kind == "file" else record.name, native_precision=record.native_precision
    )
    if kind == "file" or name.lower() == record.name:
        return FoundModel(record=record, origin=origin)
    listed = next((one for one in record.checkpoints if one.id.lower() == name.lower()), None)
    stored = listed.native_precision if listed is not None else None
    if listed is not None and listed.max_context_len is not None and record.architecture is not None:
        limited = record.architecture.model_copy(update={"max_context_len": listed.max_context_len})
        record = record.model_copy(update={"architecture": limited})
    if stored is None and (by_name := type_in_name(name)) is not None and not _is_of(record, by_name):
        stored, origin = (
            by_name,
            replace(
                origin, warnings=(f"data type {by_name} taken from the name {name}: its config.json was not read",)
            ),
        )
        identity = _repository_id(name)
        if identity is not None:
            try:
                return _from_hub(identity, assume, offline=offline, headers=headers)
            except HubError:
                pass  # the catalogue knows the shape, and the name says the type
    if stored is not None:
        record = record.model_copy(update={"native_precision": stored})
        origin = replace(origin, native_precision=stored)
    return FoundModel(record=record, origin=origin)


def type_in_name(name: str) -> str | None:
    """The data type that the name of a repository states; None where it states none.

    Example:
        >>> type_in_name("nvidia/Llama-3.1-405B-Instruct-NVFP4"), type_in_name("Qwen/Qwen3-32B")
        ('nvfp4', None)
    """
    bare = name.rsplit("/", 1)[-1]
    return next((label for pattern, label in _BY_NAME if pattern.search(bare)), None)


def _is_of(record: ModelRecord, label: str) -> bool:
    """Whether a record's own weights are of a type that a name states."""
    weights = ",".join(part for part in record.native_precision.split(",") if not part.startswith("kv="))
    return label in weights.replace("fp8_block", "fp8").replace("=fp4", "=nvfp4")


def _from_file(name: str, assume: Sequence[str]) -> FoundModel:
    found = read_config_file(name, assume=assume)
    folder = Path(name).expanduser()
    beside = folder if folder.is_dir() else folder.parent if folder.name == CONFIG else None
    checkpoint = hub.folder_checkpoint(beside) if beside is not None else None
    record, noted = _typed_by_headers(found.record, checkpoint)
    origin = Origin(
        kind="file",
        name=name,
        used=name,
        native_precision=record.native_precision,
        warnings=(*found.warnings, *noted),
    )
    return FoundModel(record=record, origin=origin, checkpoint=checkpoint)


def _from_hub(
    identity: hub.RepositoryId,
    assume: Sequence[str],
    *,
    offline: bool,
    headers: bool,
) -> FoundModel:
    repository = hub.open_repository(identity, offline=offline)
    file = repository.required(CONFIG)
    where = f"{repository.name}@{repository.commit[:12] or identity.revision}: {CONFIG}"
    found = read_config(
        json_object(file, where),
        repository.name.rsplit("/", 1)[-1],
        where,
        beside=lambda name: _beside(repository, name),
        assume=assume,
    )
    notes = [repository.note] if repository.note else []
    if repository.name.lower() != identity.name.lower():
        notes.append(f"{identity.name} is now called {repository.name}")
    checkpoint = hub.repository_checkpoint(repository, fetch=headers)
    record, noted = _typed_by_headers(found.record, checkpoint)
    notes += noted
    stated = type_in_name(repository.name)
    if stated is not None and record.native_precision in ("bf16", "fp16"):
        notes.append(
            f"the name says {stated}, but neither config.json nor {QUANTISED_BESIDE} does: weights taken as "
            f"{record.native_precision}; --set native_precision={stated} if that is wrong"
        )
    return FoundModel(
        record=record,
        origin=Origin(
            kind=repository.origin,
            name=str(identity),
            used=repository.name,
            revision=repository.commit,
            native_precision=record.native_precision,
            warnings=(*notes, *found.warnings),
        ),
        checkpoint=checkpoint,
        elements_by_dtype=repository.elements_by_dtype,
    )


def _typed_by_headers(record: ModelRecord, checkpoint: hub.Checkpoint | None) -> tuple[ModelRecord, list[str]]:
    """The record with the data types of the headers, where these are quantised and the configuration says nothing."""
    if checkpoint is None:
        return record, []
    record = _with_mtp(record, checkpoint)
    layers = record.architecture.num_layers if record.architecture is not None else None
    label = stored_label(weights_of(checkpoint.tensors, num_layers=layers))
    if label is None or record.native_precision not in ("bf16", "fp16", "fp32") or label in ("bf16", "fp16", "fp32"):
        return record, []
    note = f"weights are in {label} by the tensor headers, of which {CONFIG} says nothing"
    return record.model_copy(update={"native_precision": label}), [note]


def _with_mtp(record: ModelRecord, checkpoint: hub.Checkpoint) -> ModelRecord:
    """The record with the layers for multi-token prediction that the checkpoint holds."""
    architecture = record.architecture
    if architecture is None:
        return record
    held = mtp_layers_of(checkpoint.tensors, architecture.num_layers)
    if held == architecture.mtp_layers:
        return record
    return record.model_copy(update={"architecture": architecture.model_copy(update={"mtp_layers": held})})


def _beside(repository: hub.Repository, name: str) -> Path | None:
    """A small file beside the configuration; one that cannot be had counts as none."""
    try:
        return repository.file(name)
    except HubError:
        return None


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
        groups = tuple(
            LayerGroup(count=one.count, attention=_listed_attention(one, record.name), ffn=_listed_ffn(one))
            for one in arch.layers
        )
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
