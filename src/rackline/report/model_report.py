"""What a model is: parameters by kind, FLOP and cache of a token, data types of its released checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypedDict

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from rackline.arch import AnyModel, AppliedAdapter, CountCheck, Model, build_model
from rackline.catalog import ModelRecord
from rackline.display.column import SECTION, Column, Sheet
from rackline.display.terminal import bar
from rackline.display.wording import share, short_count
from rackline.parallel.precision import storage_bytes, stored_precision
from rackline.plain import plain
from rackline.report.catalogue_report import record_report
from rackline.units import format_bytes, format_count

BY_NAME = "the name of the repository; its quantization_config was not read"
UNQUANTISED = "no quantization_config: the data type of config.json"
CONTEXTS = (1000, 8000, 32000, 128000)
KV_TYPES = ("bf16", "fp8", "fp4")


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
    """Data types of a model's own checkpoint, and of the repositories of its record that differ from it.

    Args:
        model: of the record, if it has been built already.
    """
    built = build_model(record) if model is None else model
    others = [(one.id, one.native_precision, one.quantization) for one in record.checkpoints if one.native_precision]
    return [_types(built, *one) for one in ((record.name, record.native_precision, record.quantization), *others)]


def _types(model: AnyModel, checkpoint: str, label: str, said: str) -> CheckpointTypes:
    found, mixture = stored_precision("native", replace(model, native_precision=label)), model.is_moe
    return CheckpointTypes(
        repository=checkpoint,
        precision=label,
        linear_weights=found.linear_weights,
        expert_weights=found.expert_weights if mixture else None,
        other_weights=found.other_weights,
        activations=found.activations,
        expert_activations=found.expert_activations if mixture else None,
        kv_cache=found.kv_cache,
        read_from=said or (UNQUANTISED if label in ("bf16", "fp16", "fp32") else BY_NAME),
    )


def types_table(rows: Iterable[CheckpointTypes]) -> Sheet[CheckpointTypes]:
    """A row for each checkpoint, and notes on what says so; narrow pages leave out the inputs of products."""
    shown = list(rows)
    said = list(dict.fromkeys(row.read_from for row in shown))

    def source(row: CheckpointTypes) -> Text:
        return Text(f"[{said.index(row.read_from) + 1}]", style="yellow" if row.read_from == BY_NAME else "")

    mixture = any(row.expert_weights for row in shown)
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
    other = "embedding, router, head" if mixture else "embedding, head"
    caption = f"other: {other}; KV cache: bf16 without a scheme, which servers take for the model's type"
    return Sheet(
        "types",
        [column for column in columns if mixture or "expert" not in column.key],
        shown,
        "data types of released checkpoints",
        "\n".join([caption, *(f"[{number}] {text}" for number, text in enumerate(said, start=1))]),
    )


class TokenFlop(TypedDict):
    """FLOP of one token at a context length."""

    context_len: float
    flop: float
    by_kind: dict[str, float]


class TokenCache(TypedDict):
    """KV cache that one token adds [bytes], in one data type."""

    total: float
    by_kind: dict[str, float]


class ModelNumbers(TypedDict):
    """What follows from the record of a model, SI units."""

    total_params: float
    active_params: float
    total_over_active: float
    total_params_by_kind: Mapping[str, float]
    active_params_by_kind: Mapping[str, float]
    flop_per_token: list[TokenFlop]
    kv_bytes_per_token: dict[str, TokenCache]
    native_precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShown:
    """A record with what follows from it."""

    json_keys: ClassVar = ("*record", "*numbers")

    record: ModelRecord
    model: AnyModel

    @property
    def numbers(self) -> ModelNumbers:
        """Parameters and FLOP by kind, cache of a token."""
        model = self.model
        count = model.parameters() if isinstance(model, Model) else None
        return {
            "total_params": model.total_params,
            "active_params": model.active_params,
            "total_over_active": model.total_over_active,
            "total_params_by_kind": count.total if count else {"all": model.total_params},
            "active_params_by_kind": count.active if count else {"all": model.active_params},
            "flop_per_token": [
                {
                    "context_len": context,
                    "flop": float(np.asarray(model.flop_per_token(context))),
                    "by_kind": _flop_kinds(model, context),
                }
                for context in CONTEXTS
            ],
            "kv_bytes_per_token": {
                dtype: {"total": sum(kinds.values()), "by_kind": kinds} for dtype, kinds in _kv_kinds(model).items()
            },
            "native_precision": self.record.native_precision,
        }


def _flop_kinds(model: AnyModel, context: float) -> dict[str, float]:
    kinds = (
        model.flop_per_token_by_kind(context) if isinstance(model, Model) else {"all": model.flop_per_token(context)}
    )
    return {kind: float(np.asarray(value)) for kind, value in kinds.items()}


def _kv_kinds(model: AnyModel) -> dict[str, dict[str, float]]:
    """Cache that one token adds [bytes]: data type → attention kind → bytes; of an aggregate model as it is stated."""
    if not isinstance(model, Model):
        return {"stated": {"all": model.kv_bytes_per_token()}}
    return {dtype: model.kv_bytes_per_token_by_kind(storage_bytes(dtype)) for dtype in KV_TYPES}


def model_report(record: ModelRecord, model: AnyModel, check: CountCheck | None = None) -> Group:
    """One model: parameters by kind, FLOP of a token against context, KV cache of a token, then its record.

    Args:
        check: its parameters against its checkpoint, shown behind the parameters.
    """
    types = types_table(checkpoint_types(record, model))
    checked = [] if check is None else [_checked(check)]
    return record_report(record, _parameters(model), types, *checked, _flop(model), _kv(model))


def _checked(check: CountCheck) -> RenderableType:
    """Counted against stored parameters: the difference, and where it lies."""
    if not check.parts:
        return Text(
            f"counted {format_count(check.counted)}, stored {format_count(check.stored)} by {check.where}: "
            f"difference {check.difference:+.2%}"
        )

    def stored_as(kind: str) -> str:
        types = check.types.get(kind, {})
        held = sorted(types.items(), key=lambda one: -one[1])
        return ", ".join(f"{name} {count / sum(types.values()):.0%}" for name, count in held)

    rows: list[Any] = [
        (
            part.kind.replace("_", " "),
            part.counted or None,
            part.stored or None,
            f"{part.counted - part.stored:+,}" if part.counted != part.stored else "0",
            stored_as(part.kind),
        )
        for part in check.parts
    ]
    rows += [SECTION, ("all", check.counted, check.stored, f"{check.difference:+.3%}")]
    rows += [("towers (left out)", None, check.tower)] if check.tower else []
    caption = f"{check.where}; scales of quantised weights left out"
    if check.stored_bytes is not None and check.total_size is not None:
        off = check.stored_bytes / check.total_size - 1.0 if check.total_size else 0.0
        caption += f"\n{format_bytes(check.stored_bytes)} by headers, {format_bytes(check.total_size)} by the index "
        caption += f"({off:+.3%})"
    return Sheet(
        "checked",
        [
            Column("part", "part"),
            Column("counted", "counted", "count"),
            Column("stored", "stored", "count"),
            Column("difference", "difference", "figures"),
            Column("types", "stored as", "words"),
        ],
        rows,
        "against the checkpoint",
        caption,
    )


def _parameters(model: AnyModel) -> Sheet[Any]:
    rows: list[Any] = []
    if isinstance(model, Model):
        count = model.parameters()
        for kind, total in sorted(count.total.items(), key=lambda item: -item[1]):
            part = share(total, count.total_params)
            drawn = Text(bar(part, 16) if total else "", style="blue")
            active = count.active.get(kind, 0) or None
            rows.append((kind.replace("_", " "), total or None, part if total else "", drawn, active))
        rows.append(SECTION)
    return Sheet(
        "parameters",
        [
            Column("kind", "kind"),
            Column("total_params", "total", "count"),
            Column("share", "share", "share"),
            Column("", ""),
            Column("active_params", "active", "count"),
        ],
        [*rows, ("all", model.total_params, "", "", model.active_params)],
        f"parameters of {model.name}",
        f"total over active {model.total_over_active:.3g}",
    )


def _flop(model: AnyModel) -> Sheet[Any]:
    kinds = [_flop_kinds(model, context) for context in CONTEXTS]
    rows = [(kind.replace("_", " "), *(of[kind] or None for of in kinds)) for kind in kinds[0]]
    return Sheet(
        "flop_per_token",
        [Column("kind", "kind"), *(Column(name, name, "FLOP") for name in map(short_count, CONTEXTS))],
        [*rows, SECTION, ("all", *(sum(of.values()) for of in kinds))],
        "FLOP of one decoded token by context",
    )


def _kv(model: AnyModel) -> Sheet[Any]:
    title, kinds = "KV cache that one token adds", _kv_kinds(model)
    if not isinstance(model, Model):
        return Sheet("kv_bytes_per_token", [Column("stated", "as stated", "B")], [(kinds["stated"]["all"],)], title)
    rows: list[Any] = [(kind, *(of[kind] for of in kinds.values())) for kind in kinds[KV_TYPES[0]]]
    if len(rows) > 1:
        rows += [SECTION, ("all", *(sum(of.values()) for of in kinds.values()))]
    return Sheet(
        "kv_bytes_per_token",
        [Column("kind", "attention"), *(Column(dtype, dtype, "B") for dtype in KV_TYPES)],
        rows,
        title,
        "a window stops growing at its size",
    )


def adapter_report(adapter: AppliedAdapter) -> Sheet[Any]:
    """One row for each kind of module, then all of them."""
    kinds = [
        {
            **plain(one),
            "copies": one.copies if one.copies > 1 else None,
            "bytes": 2.0 * one.params,
            "flop": one.flop,
            "params": one.params,
        }
        for one in adapter.modules
    ]
    whole = adapter.whole_params
    stored = [{"name": "stored whole", "params": whole, "bytes": 2.0 * whole}] if whole else []
    sums = {
        "name": "all",
        "params": adapter.total_params,
        "bytes": adapter.stored_bytes,
        "flop": adapter.flop_per_token,
    }
    return Sheet(
        "adapter",
        [
            Column("name", "module"),
            Column("layers", "layers", "whole"),
            *([Column("copies", "experts", "whole")] if any(one.copies > 1 for one in adapter.modules) else []),
            Column("inputs", "inputs", "whole", priority=1),
            Column("outputs", "outputs", "whole", priority=1),
            Column("rank", "rank", "whole"),
            Column("params", "parameters", "count"),
            Column("bytes", "size", "B"),
            Column("flop", "FLOP", "FLOP"),
        ],
        [*kinds, SECTION, *stored, sums],
        title=f"adapter {adapter.name}",
        caption="bf16; FLOP of one token",
    )
