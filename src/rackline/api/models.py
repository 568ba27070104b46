"""`models` and `encode`: the models, and what images and sound of a request cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypedDict

from rackline.api.answer import Answer, Watch, asks
from rackline.api.catalogue import overrides_of, refuse_settings, set_option
from rackline.api.groups import (
    CALIBRATION,
    ENGINE,
    FREE_LAYOUT,
    MEMORY_FRACTION,
    ModelQuestion,
)
from rackline.api.model_options import (
    IMAGES,
    MediaQuestion,
    adapter_of_folder,
    adapter_of_repository,
    media_of,
    with_media,
)
from rackline.api.question import (
    CalibrationLike,
    MaybeLayout,
    MaybeNumber,
    Number,
    Settings,
    Text,
    Whole,
    option,
    question,
    shared,
    tokens,
)
from rackline.api.resolve import Lookup, check_context, lookup_of, resolve
from rackline.api.verbs import Entry
from rackline.errors import HubError, InputError, require
from rackline.late import late
from rackline.units import format_count, format_seconds

with late:
    from rackline import arch, catalog, hardware, hub, parallel, passes as pass_tables, serving, system as systems
    from rackline.parallel import work
    from rackline.report import catalogue_report, model_report, prefix_report
    from rackline.serving import curve


DTYPES = ("bf16", "fp16", "fp8", "fp4", "int8")
CONTEXTS = (32_000, 128_000)


@question
class ModelsQuestion(ModelQuestion):
    """Which models are known: parameters by kind, FLOP of a token against context, KV cache of a token?"""

    name: str | None = option(
        "text",
        "catalogue name, Hugging Face id (org/name or org/name@revision), TOML file or config.json; a low-rank "
        "adapter is shown on its base model; without it, all are listed",
        default=None,
        kw_only=False,
    )
    kv: bool = option(
        "switch",
        "KV cache per token and of long contexts, crossover context length and balance batch size",
        default=False,
    )
    types: bool = option(
        "switch", "data types of each part of the released checkpoints, and what says so", default=False
    )
    on: str = option("text", "chip for the crossover and balance batch, with `kv`", default="h100-sxm")
    dtype: str = option(
        "text", "data type of weights and matrix products on it, with `kv`", default="fp8", choices=DTYPES
    )
    set: Settings = set_option("num_layers=40")

    def check_options(self) -> None:
        """Refuse options of the KV cache where it is not asked for.

        Raises:
            InputError: such options.
        """
        if not self.kv:
            self.refuse("on", "dtype", allowed="only together with `kv`")
        super().check_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Models of the catalogue.

    Args:
        models: their records, each with the model.
        caches: their KV caches, where these were asked for.
        check: parameters of the one model against its checkpoint; None where nothing is known of it.
    """

    models: tuple[tuple[catalog.ModelRecord, arch.AnyModel], ...] = ()
    caches: tuple[curve.CacheOfModel, ...] = ()
    check: arch.CountCheck | None = None


def _text(answer: Answer[ModelsQuestion, Models], width: int) -> Iterable[Any]:
    question, found = answer.question, answer.result
    if question.kv:
        yield catalogue_report.cache_table(found.caches, on=hardware.chip(question.on).name, dtype=question.dtype)
    elif question.types:
        yield model_report.types_table(
            [row for record, model in found.models for row in model_report.checkpoint_types(record, model)],
        )
    elif question.name is not None:
        yield model_report.model_report(*found.models[0], found.check)
        if answer.adapter is not None:
            yield model_report.adapter_report(answer.adapter)
    else:
        yield catalogue_report.models_table(found.models)


class ModelList(TypedDict):
    """All models."""

    models: list[model_report.ModelShown]


class TypeList(TypedDict):
    """Data types of released checkpoints."""

    checkpoints: list[model_report.CheckpointTypes]


class CacheList(TypedDict):
    """KV caches of models, on a chip with a data type of weights and products."""

    chip: str
    dtype: str
    models: tuple[curve.CacheOfModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChecked:
    """A model with its parameters against its checkpoint; None where nothing is known of that."""

    json_keys: ClassVar = ("*shown", "checkpoint")

    shown: model_report.ModelShown
    checkpoint: arch.CountCheck | None


def _data(answer: Answer[ModelsQuestion, Models]) -> ModelChecked | ModelList | CacheList | TypeList:
    question, found = answer.question, answer.result
    if question.kv:
        return {"chip": hardware.chip(question.on).name, "dtype": question.dtype, "models": found.caches}
    if question.types:
        return {
            "checkpoints": [
                row for record, model in found.models for row in model_report.checkpoint_types(record, model)
            ]
        }
    rows = [model_report.ModelShown(record=record, model=model) for record, model in found.models]
    return {"models": rows} if question.name is None else ModelChecked(shown=rows[0], checkpoint=found.check)


def _summary(answer: Answer[ModelsQuestion, Models]) -> str:
    found = answer.result
    if len(found.models) == 1:
        model = found.models[0][1]
        return (
            f"{model.name}, {format_count(model.total_params)} parameters, {format_count(model.active_params)} active"
        )
    return f"{len(found.models) or len(found.caches)} models"


@asks(
    ModelsQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: (
        answer.result.caches
        or [
            {"name": model.name, "total_params": model.total_params, "active_params": model.active_params}
            for _, model in answer.result.models
        ]
    ),
    data=_data,
    entry=Entry(
        group="Catalogue",
        place=0,
        line="The models, or one: parameters, FLOP and KV per token.",
        request={"name": "deepseek-v3"},
        examples="""
    rackline models
    rackline models deepseek-ai/DeepSeek-V3
    rackline models path/to/config.json --json
    rackline models --kv --on h200
""",
    ),
)
def models(question: ModelsQuestion, watch: Watch) -> Models:
    """List the models, or show one: parameters by kind, FLOP of a token against context, KV cache of a token.

    Example:
        >>> import rackline as rl
        >>> rl.models("llama-3.1-70b")
        <models: llama-3.1-70b, 70.6B parameters, 69.5B active>
    """
    name, lookup = question.name, lookup_of(question, watch)
    if question.kv:
        refuse_settings(question.set)
        return Models(caches=_caches(catalog.names("models") if name is None else (name,), question, lookup))
    if name is None:
        refuse_settings(question.set)
        records = [catalog.model_record(each) for each in catalog.names("models")]
        return Models(models=tuple((record, arch.build_model(record)) for record in records))
    with watch.moving("reading tensor headers"):
        plain, adapter = _found(name, lookup)
    found = arch.with_overrides(plain, overrides_of(plain.record, "model", question.set))
    built = arch.found_model(found)
    watch.uses(built)
    check = arch.check_counts(built, found)
    if adapter is not None and isinstance(built, arch.Model):
        built = arch.apply_adapter(built, adapter)
        watch.adapter = built.adapter
    return Models(models=((found.record, built),), check=check)


def _found(name: str, lookup: Lookup) -> tuple[arch.FoundModel, hub.Adapter | None]:
    """A model by name; where the name is that of an adapter, its base model and the adapter."""
    adapter = adapter_of_folder(name)
    if adapter is None:
        try:
            return lookup.find(name, headers=True), None
        except HubError:
            adapter = adapter_of_repository(name, offline=lookup.offline)
            if adapter is None:
                raise
    require(
        adapter.base,
        what="name",
        given=name,
        allowed="an adapter whose adapter_config.json names its base_model_name_or_path",
    )
    return lookup.find(adapter.base, headers=True), adapter


def _caches(chosen: Iterable[str], question: ModelsQuestion, lookup: Lookup) -> tuple[curve.CacheOfModel, ...]:
    where = hardware.chip(question.on)
    from rackline.parallel.precision import storage_bytes

    types = {name: storage_bytes(name) for name in ("bf16", "fp8")}
    return tuple(
        curve.cache_of_model(lookup.model(each), where, dtype=question.dtype, kv_types=types, contexts=CONTEXTS)
        for each in chosen
    )


@question
class EncodeQuestion(MediaQuestion):
    """What do the images and sound of a request cost until its first token?"""

    model: str = option(
        "text",
        "config.json, its folder, or a Hugging Face id, of a model with an encoder for images or audio",
        kw_only=False,
    )
    images: Whole = shared(IMAGES, default="1")
    prompt: Number = tokens("text tokens of the prompt", default="100")
    layout: MaybeLayout = shared(FREE_LAYOUT, default=None)
    engine: Text = shared(ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    memory_fraction: MaybeNumber = shared(MEMORY_FRACTION, default=None)


def _encode_summary(answer: Answer[EncodeQuestion, prefix_report.Encoding]) -> str:
    found = answer.result
    return f"{found.prompt_tokens:,} prompt tokens, first token after {format_seconds(found.ttft_s)}, {found.model}"


@asks(
    EncodeQuestion,
    text=lambda answer, width: [prefix_report.encode_report(answer.result)],
    summary=_encode_summary,
    rows=lambda answer: answer.result.towers,
    entry=Entry(
        group="Understand",
        place=3,
        line="Images and audio of a request: tokens, FLOP, first token.",
        usual=("on", "precision", "prompt", "images", "image_size", "audio"),
        request={
            "model": "config.json",
            "on": "dgx-h100",
            "uploads": {
                "config.json": '{"model_type": "qwen3_vl", "dtype": "bfloat16", "text_config": {"model_type": '
                '"qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": '
                '151936, "num_hidden_layers": 28, "num_attention_heads": 16, '
                '"num_key_value_heads": 8, "head_dim": 128}, "vision_config": {"depth": 24, '
                '"hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": '
                '16, "spatial_merge_size": 2, "out_hidden_size": 2048, '
                '"num_position_embeddings": 2304}}'
            },
        },
        sweep_s=0.05,
        examples="""
    rackline encode Qwen/Qwen3-VL-8B-Instruct --on dgx-h100 \\
      --image-size 1920x1080 --images 4 --prompt 200
    rackline encode path/to/config.json --on h100-96 --image-size 896x896
""",
    ),
)
def encode(question: EncodeQuestion, watch: Watch) -> prefix_report.Encoding:
    """Images and sound of one request: size, patches, tokens, FLOP, memory and time to first token.

    The encoder is a pass of its own before the prefill, with the kernels of the same calibration; stem and projector
    take time as their FLOP do. Nothing waits: the request is alone.

    Example:
        >>> import json
        >>> import rackline as rl
        >>> from pathlib import Path
        >>> text = {"model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": 151936,
        ...         "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
        >>> vision = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
        ...           "spatial_merge_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304}
        >>> config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, "dtype": "bfloat16"}
        >>> _ = Path("config.json").write_text(json.dumps(config))
        >>> rl.encode("config.json", on="dgx-h100", image_size="1024x1024").result.prompt_tokens
        1126
        >>> Path("config.json").unlink()
    """
    media = media_of(question, watch)
    if media is None:
        raise InputError(what="images", given=0, allowed="at least one, or `audio`", nearest="1")
    system = resolve(question, watch)
    model = with_media(system.model, media)
    cluster = system.cluster

    prompt = round(question.prompt) + media.tokens
    check_context(model, prompt, watch)
    if question.layout is not None:
        layout = parallel.parse_layout(question.layout, model)
    else:
        rows = serving.capacity(
            model,
            cluster,
            system.precision,
            context_len=float(prompt),
            server=system.server(max(float(system.stack.scheduler.max_batched_tokens), float(prompt))),
        ).rows
        fitting = [row for row in rows if row.max_concurrency >= 1]
        require(fitting, what="on", given=cluster.name, allowed=f"a cluster that holds {model.name}; see rackline fit")
        layout = min(fitting, key=lambda row: (row.layout.chips_per_replica, row.layout.pp)).layout
    deployment = system.deployment(layout)
    passes = tuple(_pass(part, system, layout) for part in media.parts)

    def prefill_s(new: float) -> float:
        batch = pass_tables.Batch(prefill_sequences=1.0, chunk_tokens=new, group_tokens=new * layout.attention_dp)
        return float(deployment.table().seconds(batch)) * deployment.stage_imbalance

    seconds = prefill_s(float(prompt))
    return prefix_report.Encoding(
        model=model.name,
        cluster=cluster.name,
        layout=layout.label(),
        towers=passes,
        prompt_tokens=prompt,
        prefill_s=seconds,
        ttft_s=seconds + sum(one.seconds for one in passes),
        text_ttft_s=prefill_s(question.prompt),
    )


def _pass(part: arch.MediaPart, system: systems.System, beside: parallel.Layout) -> prefix_report.Encoded:
    """The pass of a tower on the chips of the language model; on one of them where its heads cannot be spread."""
    inner, view = part.tower.model, part.view
    layout = work.tower_layout(inner, beside)
    tower = replace(system, model=inner)
    own = tower.deployment(
        layout if isinstance(layout, parallel.Layout) else parallel.Layout(),
        parallel.precision("bf16", inner, system.cluster.chip),
    )
    time = own.table().time(work.tower_batch(part))
    return prefix_report.Encoded(
        kind=part.tower.kind,
        items=part.items,
        width=view.width,
        height=view.height,
        sequences=view.sequences,
        patches=view.patches,
        tokens_per_item=view.tokens,
        total_params=inner.total_params,
        weight_bytes=work.TOWER_BYTES * inner.total_params,
        activation_bytes=work.tower_activation_bytes(part),
        flop=part.tower.flop(view, part.items),
        seconds=time.seconds * (1.0 + part.outer_share),
        binds=time.binds,
    )
