"""Tables of the catalogue: models, chips, clusters with the links of a rack, calibrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from rackline.arch import AnyModel, CountCheck, Model
from rackline.catalog import ModelRecord
from rackline.catalog.base import SourcedRecord
from rackline.catalog.objects import from_record
from rackline.hardware import (
    Chip,
    ChipRecord,
    Cluster,
    ClusterRecord,
    Path,
    RackBill,
    chip_name_of,
    cluster_from_record,
    rack_bill,
    scale_out_path,
    scale_up_path,
)
from rackline.hardware import chip as find_chip
from rackline.hardware.chip_check import ChipFinding
from rackline.parallel.precision import storage_bytes
from rackline.report.checkpoint_types import checkpoint_types, types_table
from rackline.report.column import SECTION, Column, Sheet, facts
from rackline.report.wording import bar, money, of_key, share, short_count, tera
from rackline.units import format_bytes, format_count, format_seconds, format_watts

CONTEXTS = (1000, 8000, 32000, 128000)
KV_TYPES = ("bf16", "fp8", "fp4")


def chips_table(chips: Sequence[Chip]) -> Sheet[Chip]:
    """All chips: dense peaks, memory, ridge point, price."""

    def peak(dtype: str) -> Column[Chip]:
        key = f"peak_flop_per_s.{dtype}"
        return Column(key, dtype, "figures", lambda chip: _tera(chip.peak_flop_per_s.get(dtype)))

    columns: list[Column[Chip]] = [
        Column("name", "name"),
        Column("full_name", "is", priority=1),
        peak("bf16"),
        peak("fp8"),
        peak("fp4"),
        Column("hbm_bytes", "HBM", "B"),
        Column("hbm_bytes_per_s", "bandwidth", "B/s"),
        Column(
            "ridge_flop_per_byte",
            "ridge",
            "whole",
            lambda chip: chip.ridge_point("bf16") if chip.supports("bf16") else None,
        ),
        Column("usd_per_chip_hour", "$/h", "USD", lambda chip: chip.usd_per_chip_hour or None),
    ]
    caption = "dense peaks in TFLOP/s; ridge point of bf16 in FLOP/byte"
    return Sheet("chips", columns, chips, title="chips", caption=caption)


def _tera(peak: float | None) -> str:
    return tera(peak) if peak else "-"


def clusters_table(records: Sequence[ClusterRecord]) -> Sheet[tuple[ClusterRecord, Cluster]]:
    """All clusters: chips, levels of the fabric, price."""
    rows = [(record, cluster_from_record(record, find_chip(chip_name_of(record)))) for record in records]
    columns: list[Column[tuple[ClusterRecord, Cluster]]] = [
        Column("name", "name", getter=lambda row: row[1].name),
        Column("full_name", "is", getter=lambda row: row[1].full_name, priority=3),
        Column("num_chips", "chips", "whole", lambda row: row[1].num_chips),
        Column("chip", "of", getter=lambda row: chip_name_of(row[0]), priority=2),
        Column("scale_up.bytes_per_s_each_way", "scale-up", "B/s", lambda row: row[1].scale_up.bytes_per_s_each_way),
        Column("scale_up.size", "of", "whole", lambda row: row[1].scale_up.size),
        Column("scale_up.topology", "", getter=lambda row: row[1].scale_up.topology, priority=1),
        Column(
            "scale_out.bytes_per_s_each_way",
            "scale-out",
            "B/s",
            lambda row: row[1].scale_out.bytes_per_s_each_way if row[1].scale_out else None,
        ),
        Column("usd_per_chip_hour", "$/h", "USD", lambda row: row[0].numbers().get("usd_per_chip_hour") or None),
    ]
    return Sheet("clusters", columns, rows, title="clusters", caption="link rates are per chip, each way")


def models_table(models: Sequence[tuple[ModelRecord, AnyModel]]) -> Sheet[tuple[ModelRecord, AnyModel]]:
    """All models: parameters, layers, KV cache of a token."""
    columns: list[Column[tuple[ModelRecord, AnyModel]]] = [
        Column("name", "name", getter=lambda row: row[0].name),
        Column("full_name", "is", getter=lambda row: row[0].full_name, priority=2),
        Column("total_params", "total", "count", lambda row: row[1].total_params),
        Column("active_params", "active", "count", lambda row: row[1].active_params),
        Column("num_layers", "layers", "whole", lambda row: row[1].num_layers if isinstance(row[1], Model) else None),
        Column("kv_bytes_per_token", "KV/token", "B", lambda row: row[1].kv_bytes_per_token()),
        Column("native_precision", "type", getter=lambda row: _type(row[0]), priority=1),
        Column("attention", "attention", "words", lambda row: _kinds(row[1])),
    ]
    return Sheet(
        "models",
        columns,
        models,
        title="models",
        caption="KV of one token in bf16, aggregate models as stated; type + : some modules in another type",
    )


def _kinds(model: AnyModel) -> str:
    if not isinstance(model, Model):
        return "aggregate"
    return ", ".join(kind for kind in model.attention_kinds() if kind != "none")


def _type(record: ModelRecord) -> str:
    head, *parts = record.native_precision.split(",")
    return f"{head} +" if any(not part.startswith("kv=") for part in parts) else head


def record_report(record: SourcedRecord) -> Group:
    """One record: every number with its evidence and source."""
    return Group(_head(record), Text(""), *_numbers(record))


_FOUND = {"missing": "bold", "doubtful": "yellow"}  # style of each state of a finding


def findings_report(record: ChipRecord, findings: Sequence[ChipFinding]) -> Group:
    """What the record of a chip lacks or leaves in doubt, and what that does to answers."""
    rows: list[tuple[Any, ...]] = []
    for finding in findings:
        rows.append((finding.key, Text(finding.state, style=_FOUND[finding.state]), finding.why))
        rows.append(("", "", Text(finding.effect, style="dim")))
    columns: list[Column[Any]] = [
        Column("key", "key", "words"),
        Column("state", "is"),
        Column("why", "what was found, and what it does to answers", "words"),
    ]
    table = Sheet("findings", columns, rows)
    counts = Counter(finding.state for finding in findings)
    said = ", ".join(f"{counts[state]} {state}" for state in _FOUND) if findings else "nothing is missing or doubtful"
    last = Text(f"{record.name} can be used: {said}")
    return Group(_head(record), Text(""), *([table, Text("")] if findings else []), last)


def _head(record: SourcedRecord) -> Group:
    lines: list[RenderableType] = [Text.assemble((record.full_name, "bold"), f"  {record.name}")]
    if record.aliases:
        lines.append(Text(f"also: {', '.join(record.aliases)}", style="dim"))
    said = _facts(record)
    if said:
        lines.append(Text(said, style="dim"))
    return Group(*lines)


def _numbers(record: SourcedRecord) -> list[RenderableType]:
    rows: list[tuple[str, str, Text, str]] = []
    cited: list[str] = []
    for key, value in record.numbers().items():
        source = record.source_of(key)
        if source is None:
            continue
        text = ", ".join(part for part in (source.citation, source.url) if part)
        text += f" (read {source.accessed})" if source.accessed else ""
        text += f"; {source.note}" if source.note else ""
        if text not in cited:
            cited.append(text)
        style = "yellow" if str(source.kind) == "assumed" else ""
        rows.append((key, of_key(key, value), Text(str(source.kind), style=style), f"[{cited.index(text) + 1}]"))
    columns: list[Column[Any]] = [
        Column("key", "number"),
        Column("value", "value", "figures"),
        Column("evidence", "evidence"),
        Column("source", "source", "figures"),
    ]
    notes = facts("sources", [(f"[{number}]", text) for number, text in enumerate(cited, start=1)])
    return [Sheet("numbers", columns, rows), Text(""), notes]


def _facts(record: SourcedRecord) -> str:
    if record.object_class is Chip:
        of = from_record(Chip, record)
        return f"{of.vendor}, {of.generation}, {of.released or 'no date'}"
    if record.object_class is Cluster:
        return f"made of {chip_name_of(record)}"
    if isinstance(record, ModelRecord):
        return f"weights in {record.native_precision}, {record.released or 'no date'}"
    return ""


def model_report(record: ModelRecord, model: AnyModel, check: CountCheck | None = None) -> Group:
    """One model: parameters by kind, FLOP of a token against context, KV cache of a token, then its record.

    Args:
        check: its parameters against its checkpoint, shown behind the parameters.
    """
    blank = Text("")
    parts: list[RenderableType] = [_head(record), blank, _parameters(model), blank]
    parts += [types_table(checkpoint_types(record, model)), blank]
    if check is not None:
        parts += [_checked(check), blank]
    return Group(*parts, _flop(model), blank, _kv(model), blank, *_numbers(record))


def _checked(check: CountCheck) -> RenderableType:
    """Counted against stored parameters: the difference, and where it lies."""
    if not check.parts:
        return Text(
            f"counted {format_count(check.counted)}, stored {format_count(check.stored)} by {check.where}: "
            f"difference {check.difference:+.2%}"
        )
    rows: list[Any] = []
    for part in check.parts:
        off, types = part.counted - part.stored, check.types.get(part.kind, {})
        whole = sum(types.values())
        held = sorted(types.items(), key=lambda one: -one[1])
        said = ", ".join(f"{name} {count / whole:.0%}" for name, count in held)
        rows.append(
            (part.kind.replace("_", " "), part.counted or None, part.stored or None, f"{off:+,}" if off else "0", said)
        )
    rows += [SECTION, ("all", check.counted, check.stored, f"{check.difference:+.3%}")]
    if check.tower:
        rows.append(("towers (left out)", None, check.tower))
    columns: list[Column[Any]] = [
        Column("part", "part"),
        Column("counted", "counted", "count"),
        Column("stored", "stored", "count"),
        Column("difference", "difference", "figures"),
        Column("types", "stored as", "words"),
    ]
    caption = f"{check.where}; scales of quantised weights left out"
    if check.stored_bytes is not None and check.total_size is not None:
        off = check.stored_bytes / check.total_size - 1.0 if check.total_size else 0.0
        caption += f"\n{format_bytes(check.stored_bytes)} by headers, {format_bytes(check.total_size)} by the index "
        caption += f"({off:+.3%})"
    return Sheet("checked", columns, rows, title="against the checkpoint", caption=caption)


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
        record, model = self.record, self.model
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
                    "flop": _plain(model.flop_per_token(context)),
                    "by_kind": _flop_kinds(model, context),
                }
                for context in CONTEXTS
            ],
            "kv_bytes_per_token": _kv_data(model),
            "native_precision": record.native_precision,
        }


def _kv_data(model: AnyModel) -> dict[str, TokenCache]:
    if not isinstance(model, Model):
        stated = model.kv_bytes_per_token()
        return {"stated": {"total": stated, "by_kind": {"all": stated}}}
    return {
        dtype: {"total": model.kv_bytes_per_token(storage_bytes(dtype)), "by_kind": _kv_kinds(model, dtype)}
        for dtype in KV_TYPES
    }


def _plain(value: Any) -> float:
    return float(np.asarray(value))


def _flop_kinds(model: AnyModel, context: float) -> dict[str, float]:
    if not isinstance(model, Model):
        return {"all": _plain(model.flop_per_token(context))}
    return {kind: _plain(value) for kind, value in model.flop_per_token_by_kind(context).items()}


def _kv_kinds(model: Model, dtype: str) -> dict[str, float]:
    return model.kv_bytes_per_token_by_kind(storage_bytes(dtype))


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
    rows.append(("all", model.total_params, "", "", model.active_params))
    columns: list[Column[Any]] = [
        Column("kind", "kind"),
        Column("total_params", "total", "count"),
        Column("share", "share", "share"),
        Column("", ""),
        Column("active_params", "active", "count"),
    ]
    caption = f"total over active {model.total_over_active:.3g}"
    return Sheet("parameters", columns, rows, title=f"parameters of {model.name}", caption=caption)


def _flop(model: AnyModel) -> Sheet[Any]:
    kinds = [_flop_kinds(model, context) for context in CONTEXTS]
    rows: list[Any] = [(kind.replace("_", " "), *(of[kind] or None for of in kinds)) for kind in kinds[0]]
    rows += [SECTION, ("all", *(sum(of.values()) for of in kinds))]
    columns: list[Column[Any]] = [Column("kind", "kind")]
    columns += [Column(short_count(context), short_count(context), "FLOP") for context in CONTEXTS]
    return Sheet("flop_per_token", columns, rows, title="FLOP of one decoded token by context")


def _kv(model: AnyModel) -> Sheet[Any]:
    title = "KV cache that one token adds"
    if not isinstance(model, Model):
        return Sheet("kv_bytes_per_token", [Column("stated", "as stated", "B")], [(model.kv_bytes_per_token(),)], title)
    kinds = [_kv_kinds(model, dtype) for dtype in KV_TYPES]
    rows: list[Any] = [(kind, *(of[kind] for of in kinds)) for kind in kinds[0]]
    if len(kinds[0]) > 1:
        rows += [SECTION, ("all", *(sum(of.values()) for of in kinds))]
    columns: list[Column[Any]] = [Column("kind", "attention")]
    columns += [Column(dtype, dtype, "B") for dtype in KV_TYPES]
    return Sheet("kv_bytes_per_token", columns, rows, title, "a window stops growing at its size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks:
    """What the chips of a cluster need around them, and how messages travel between them."""

    json_keys: ClassVar = ("*bill", "paths")

    bill: RackBill
    paths: tuple[Path, ...]


def racks(cluster: Cluster) -> Racks:
    """The same as data."""
    return Racks(bill=rack_bill(cluster), paths=tuple(_paths(cluster)))


def _paths(cluster: Cluster) -> list[Path]:
    inside = [scale_up_path(cluster.scale_up)]
    return inside if cluster.scale_out is None else [*inside, scale_out_path(cluster.scale_out)]


def rack_table(cluster: Cluster) -> Sheet[Any]:
    """What the chips of the cluster need around them; what the catalogue does not say is left out."""
    bill = rack_bill(cluster)
    counts = [
        ("racks", f"{bill.num_racks} of {bill.chips_per_rack} chips"),
        ("scale-up switches", _count(bill.scale_up_switches)),
        ("scale-up cables", _count(bill.scale_up_cables)),
        ("network switches", _count(bill.network_switches)),
        ("network cables", _count(bill.network_cables)),
        ("nameplate power of a full rack", "" if bill.rack_power_w is None else format_watts(bill.rack_power_w)),
        ("rent of a full rack", "" if bill.rack_usd_per_hour is None else f"{money(bill.rack_usd_per_hour)} an hour"),
    ]
    for path in _paths(cluster):
        counts.append((f"{path.hops} hops", f"{' → '.join(path.stops)}: {format_seconds(path.latency_s)}"))
    return facts("racks", counts, title="racks, switches, cables and paths")


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
