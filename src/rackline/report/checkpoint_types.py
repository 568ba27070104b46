"""Data types of each part of released checkpoints, and what they are taken from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.text import Text

from rackline.arch import AnyModel, build_model
from rackline.catalog import ModelRecord
from rackline.parallel.precision import Precision, stored_precision
from rackline.report.column import Column, Sheet

BY_NAME = "the name of the repository; its quantization_config was not read"
UNQUANTISED = "no quantization_config: the data type of config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTypes:
    """Data types of one released checkpoint, as an engine runs it by default.

    Args:
        repository: its id, or the name of the model.
        precision: label with its parts.
        linear_weights, expert_weights, other_weights, activations, expert_activations, kv_cache: as in `Precision`.
        read_from: what says so.
    """

    repository: str
    precision: str
    linear_weights: str
    expert_weights: str | None
    other_weights: str
    activations: str
    expert_activations: str | None
    kv_cache: str
    read_from: str


def checkpoint_types(record: ModelRecord, model: AnyModel | None = None) -> list[CheckpointTypes]:
    """Of a model's own checkpoint, and of the repositories of its record that differ in type.

    Args:
        model: of the record, if it has been built already.
    """
    built = build_model(record) if model is None else model
    stored = [(record.name, record.native_precision, record.quantization)]
    stored += [(one.id, one.native_precision, one.quantization) for one in record.checkpoints if one.native_precision]
    return [_types(built, *one) for one in stored]


def _types(model: AnyModel, checkpoint: str, label: str, said: str) -> CheckpointTypes:
    found: Precision = stored_precision("native", replace(model, native_precision=label))
    mixture = model.is_moe
    plain = label in ("bf16", "fp16", "fp32")
    return CheckpointTypes(
        repository=checkpoint,
        precision=label,
        linear_weights=found.linear_weights,
        expert_weights=found.expert_weights if mixture else None,
        other_weights=found.other_weights,
        activations=found.activations,
        expert_activations=found.expert_activations if mixture else None,
        kv_cache=found.kv_cache,
        read_from=said or (UNQUANTISED if plain else BY_NAME),
    )


def types_table(rows: Iterable[CheckpointTypes]) -> Sheet[CheckpointTypes]:
    """One row a checkpoint, with notes on what says so below; narrow pages leave out the inputs of products."""
    shown = list(rows)
    said = list(dict.fromkeys(row.read_from for row in shown))

    def source(row: CheckpointTypes) -> Text:
        return Text(f"[{said.index(row.read_from) + 1}]", style="yellow" if row.read_from == BY_NAME else "")

    columns: list[Column[CheckpointTypes]] = [
        Column("repository", "checkpoint", "words"),
        Column("linear_weights", "attention, dense"),
        Column("expert_weights", "experts", getter=lambda row: row.expert_weights or "-"),
        Column("activations", "inputs", priority=1),
        Column("expert_activations", "of experts", getter=lambda row: row.expert_activations or "-", priority=1),
        Column("other_weights", "other"),
        Column("kv_cache", "KV cache"),
        Column("read_from", "from", "figures", source),
    ]
    caption = "other: embedding, router, head; KV cache: bf16 without a scheme, which servers take for the model's type"
    notes = (f"[{number}] {text}" for number, text in enumerate(said, start=1))
    return Sheet("types", columns, shown, "data types of released checkpoints", "\n".join([caption, *notes]))
