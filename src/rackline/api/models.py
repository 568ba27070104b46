"""`models`: list the models, or show one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from rackline.api.answer import Answer, asks
from rackline.api.catalogue import overrides_of, refuse_settings, set_option
from rackline.api.groups import ModelQuestion
from rackline.api.model_options import adapter_of_folder, adapter_of_repository
from rackline.api.option import option
from rackline.api.question import question
from rackline.api.resolve import lookup_of
from rackline.api.verbs import Entry
from rackline.api.watch import Watch
from rackline.errors import HubError, InputError

if TYPE_CHECKING:
    from rackline.api.option import Settings
    from rackline.api.resolve import Lookup
    from rackline.arch import AnyModel, CountCheck, FoundModel
    from rackline.catalog import ModelRecord
    from rackline.hub import Adapter
    from rackline.report.catalogue_report import ModelShown
    from rackline.report.checkpoint_types import CheckpointTypes
    from rackline.serving.crossover import CacheOfModel

DTYPES = ("bf16", "fp16", "fp8", "fp4", "int8")
CONTEXTS = (32_000, 128_000)


@question
class ModelsQuestion(ModelQuestion):
    """Which models are known: parameters by kind, FLOP of a token against context, KV cache of a token?"""

    ask: ClassVar[str] = "models"

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

    models: tuple[tuple[ModelRecord, AnyModel], ...] = ()
    caches: tuple[CacheOfModel, ...] = ()
    check: CountCheck | None = None


def _text(answer: Answer[ModelsQuestion, Models], width: int) -> Iterable[Any]:
    from rackline.hardware import chip
    from rackline.report.catalogue_report import model_report, models_table
    from rackline.report.choice_report import adapter_report
    from rackline.report.lecture_tables import cache_table

    question, found = answer.question, answer.result
    if question.kv:
        yield cache_table(found.caches, on=chip(question.on).name, dtype=question.dtype, width=width)
    elif question.types:
        from rackline.report.checkpoint_types import checkpoint_types, types_table

        yield types_table(
            [row for record, model in found.models for row in checkpoint_types(record, model)], width=width
        )
    elif question.name is not None:
        yield model_report(*found.models[0], found.check, width=width)
        if answer.adapter is not None:
            yield adapter_report(answer.adapter)
    else:
        yield models_table(found.models, width=width)


class ModelList(TypedDict):
    """All models."""

    models: list[ModelShown]


class TypeList(TypedDict):
    """Data types of released checkpoints."""

    checkpoints: list[CheckpointTypes]


class CacheList(TypedDict):
    """KV caches of models, on a chip with a data type of weights and products."""

    chip: str
    dtype: str
    models: tuple[CacheOfModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChecked:
    """A model with its parameters against its checkpoint; None where nothing is known of that."""

    json_keys: ClassVar = ("*shown", "checkpoint")

    shown: ModelShown
    checkpoint: CountCheck | None


def _data(answer: Answer[ModelsQuestion, Models]) -> ModelChecked | ModelList | CacheList | TypeList:
    from rackline.hardware import chip
    from rackline.report.catalogue_report import ModelShown

    question, found = answer.question, answer.result
    if question.kv:
        return {"chip": chip(question.on).name, "dtype": question.dtype, "models": found.caches}
    if question.types:
        from rackline.report.checkpoint_types import checkpoint_types

        return {"checkpoints": [row for record, model in found.models for row in checkpoint_types(record, model)]}
    rows = [ModelShown(record=record, model=model) for record, model in found.models]
    if question.name is None:
        return {"models": rows}
    return ModelChecked(shown=rows[0], checkpoint=found.check)


def _summary(answer: Answer[ModelsQuestion, Models]) -> str:
    from rackline.units import format_count

    found = answer.result
    if len(found.models) == 1:
        model = found.models[0][1]
        return (
            f"{model.name}, {format_count(model.total_params)} parameters, {format_count(model.active_params)} active"
        )
    return f"{len(found.models) or len(found.caches)} models"


def _rows(answer: Answer[ModelsQuestion, Models]) -> Iterable[Any]:
    found = answer.result
    return found.caches or [
        {"name": model.name, "total_params": model.total_params, "active_params": model.active_params}
        for _, model in found.models
    ]


@asks(
    ModelsQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
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
    from rackline.arch import Model, apply_adapter, build_model, check_counts, found_model, with_overrides
    from rackline.catalog import model_record, names

    name, lookup = question.name, lookup_of(question, watch)
    if question.kv:
        refuse_settings(question.set)
        return Models(caches=_caches(names("models") if name is None else (name,), question, lookup))
    if name is None:
        refuse_settings(question.set)
        records = [model_record(each) for each in names("models")]
        return Models(models=tuple((record, build_model(record)) for record in records))
    with watch.moving("reading tensor headers"):
        plain, adapter = _found(name, lookup)
    found = with_overrides(plain, overrides_of(plain.record, "model", question.set))
    built = found_model(found)
    watch.uses(built)
    check = check_counts(built, found)
    if adapter is not None and isinstance(built, Model):
        built = apply_adapter(built, adapter)
        watch.adapter = built.adapter
    return Models(models=((found.record, built),), check=check)


def _found(name: str, lookup: Lookup) -> tuple[FoundModel, Adapter | None]:
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
        allowed = "an adapter whose adapter_config.json names its base_model_name_or_path"
        raise InputError(what="name", given=name, allowed=allowed)
    return lookup.find(adapter.base, headers=True), adapter


def _caches(chosen: Iterable[str], question: ModelsQuestion, lookup: Lookup) -> tuple[CacheOfModel, ...]:
    from rackline.hardware import chip
    from rackline.parallel.precision import storage_bytes
    from rackline.serving.crossover import cache_of_model

    where = chip(question.on)
    types = {name: storage_bytes(name) for name in ("bf16", "fp8")}
    return tuple(
        cache_of_model(lookup.model(each), where, dtype=question.dtype, kv_types=types, contexts=CONTEXTS)
        for each in chosen
    )
