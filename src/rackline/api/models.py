"""`models`: list the models, or show one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from rackline.api.answer import Answer, Watch, asks
from rackline.api.catalogue import overrides_of, refuse_settings, set_option
from rackline.api.groups import ModelQuestion
from rackline.api.model_options import adapter_of_folder, adapter_of_repository
from rackline.api.question import Settings, option, question
from rackline.api.resolve import Lookup, lookup_of
from rackline.api.verbs import Entry
from rackline.errors import HubError, InputError
from rackline.late import late
from rackline.units import format_count

with late:
    from rackline import arch, catalog, hardware, hub
    from rackline.report import catalogue_report, model_report
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
    if not adapter.base:
        raise InputError(
            what="name", given=name, allowed="an adapter whose adapter_config.json names its base_model_name_or_path"
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
