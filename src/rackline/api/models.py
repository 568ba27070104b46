"""`models`: list the models, or show one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from rackline.api.answer import Answer, asks
from rackline.api.catalogue import name_option, overrides_of, refuse_settings, set_option
from rackline.api.option import option
from rackline.api.question import Question
from rackline.api.resolve import model_record_of
from rackline.api.watch import Watch

if TYPE_CHECKING:
    from rackline.api.option import Settings
    from rackline.arch import AnyModel
    from rackline.catalog import ModelRecord
    from rackline.report.catalogue_report import ModelShown
    from rackline.serving.crossover import CacheOfModel

DTYPES = ("bf16", "fp16", "fp8", "fp4", "int8")
CONTEXTS = (32_000, 128_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsQuestion(Question):
    """Which models are known: parameters by kind, FLOP of a token against context, KV cache of a token?"""

    ask: ClassVar[str] = "models"

    name: str | None = field(
        default=None,
        kw_only=False,
        metadata=name_option("catalogue name, Hugging Face id, TOML file or config.json"),
    )
    kv: bool = field(
        default=False,
        metadata=option(
            "switch", "KV cache per token and of long contexts, crossover context length and balance batch size"
        ),
    )
    on: str = field(default="h100-sxm", metadata=option("text", "chip for the crossover and balance batch, with `kv`"))
    dtype: str = field(
        default="fp8",
        metadata=option("text", "data type of weights and matrix products on it, with `kv`", choices=DTYPES),
    )
    set: Settings | None = field(default=None, metadata=set_option("num_layers=40"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Models of the catalogue.

    Args:
        models: their records, each with the model.
        caches: their KV caches, where these were asked for.
    """

    models: tuple[tuple[ModelRecord, AnyModel], ...] = ()
    caches: tuple[CacheOfModel, ...] = ()


def _text(answer: Answer[ModelsQuestion, Models], width: int) -> Iterable[Any]:
    from rackline.hardware import chip
    from rackline.report.catalogue_report import model_report, models_table
    from rackline.report.lecture_tables import cache_table

    question, found = answer.question, answer.result
    if question.kv:
        yield cache_table(found.caches, on=chip(question.on).name, dtype=question.dtype, width=width)
    elif question.name is not None:
        yield model_report(*found.models[0])
    else:
        yield models_table(found.models, width=width)


class ModelList(TypedDict):
    """All models."""

    models: list[ModelShown]


class CacheList(TypedDict):
    """KV caches of models, on a chip with a data type of weights and products."""

    chip: str
    dtype: str
    models: tuple[CacheOfModel, ...]


def _data(answer: Answer[ModelsQuestion, Models]) -> ModelShown | ModelList | CacheList:
    from rackline.hardware import chip
    from rackline.report.catalogue_report import ModelShown

    question, found = answer.question, answer.result
    if question.kv:
        return {"chip": chip(question.on).name, "dtype": question.dtype, "models": found.caches}
    rows = [ModelShown(record=record, model=model) for record, model in found.models]
    return rows[0] if question.name is not None else {"models": rows}


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


@asks(ModelsQuestion, text=_text, summary=_summary, rows=_rows, data=_data)
def models(question: ModelsQuestion, watch: Watch) -> Models:
    """List the models, or show one: parameters by kind, FLOP of a token against context, KV cache of a token.

    Example:
        >>> import rackline as rl
        >>> rl.models("llama-3.1-70b")
        <models: llama-3.1-70b, 70.6B parameters, 69.5B active>
    """
    from rackline.arch import build_model
    from rackline.catalog import model_record, names

    name = question.name
    if question.kv:
        refuse_settings(question.set)
        return Models(caches=_caches(names("models") if name is None else (name,), question))
    if name is None:
        refuse_settings(question.set)
        records = [model_record(each) for each in names("models")]
    else:
        record = model_record_of(name)
        given = overrides_of(record, "model", question.set)
        records = [model_record_of(name, given) if given else record]
    return Models(models=tuple((record, build_model(record)) for record in records))


def _caches(chosen: Iterable[str], question: ModelsQuestion) -> tuple[CacheOfModel, ...]:
    from rackline.arch import build_model
    from rackline.hardware import chip
    from rackline.parallel.precision import storage_bytes
    from rackline.serving.crossover import cache_of_model

    where = chip(question.on)
    types = {name: storage_bytes(name) for name in ("bf16", "fp8")}
    return tuple(
        cache_of_model(
            build_model(model_record_of(each)), where, dtype=question.dtype, kv_types=types, contexts=CONTEXTS
        )
        for each in chosen
    )
