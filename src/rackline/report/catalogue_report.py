"""Tables of the catalogue: models, chips, clusters with the links of a rack, calibrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
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
from rackline.report.breakdown import plain_table
from rackline.report.checkpoint_types import checkpoint_types, types_table
from rackline.report.wording import bar, flop, money, of_key, percent, share, short_count, tera
from rackline.units import format_bytes, format_count, format_rate, format_seconds, format_usd

CONTEXTS = (1000, 8000, 32000, 128000)
KV_TYPES = ("bf16", "fp8", "fp4")


def chips_table(chips: Sequence[Chip], *, width: int) -> Table:
    """All chips: dense peaks, memory, ridge point, price."""
    table = plain_table("chips", caption="dense peaks in TFLOP/s; ridge point of bf16 in FLOP/byte")
    table.add_column("name", no_wrap=True)
    if width >= 110:
        table.add_column("is", no_wrap=True, overflow="ellipsis")
    for name in ("bf16", "fp8", "fp4", "HBM", "bandwidth", "ridge", "$/h"):
        table.add_column(name, justify="right", no_wrap=True)
    for chip in chips:
        peaks = [chip.peak_flop_per_s.get(dtype) for dtype in ("bf16", "fp8", "fp4")]
        table.add_row(
            chip.name,
            *([chip.full_name] if width >= 110 else []),
            *(tera(peak) if peak else "-" for peak in peaks),
            format_bytes(chip.hbm_bytes),
            format_rate(chip.hbm_bytes_per_s),
            f"{chip.ridge_point('bf16'):.0f}" if chip.supports("bf16") else "-",
            format_usd(chip.usd_per_chip_hour) if chip.usd_per_chip_hour else "-",
        )
    return table


def clusters_table(records: Sequence[ClusterRecord], *, width: int) -> Table:
    """All clusters: chips, levels of the fabric, price."""
    table = plain_table("clusters", caption="link rates are per chip, each way")
    table.add_column("name", no_wrap=True)
    if width >= 110:
        table.add_column("is", no_wrap=True, overflow="ellipsis")
    table.add_column("chips", justify="right", no_wrap=True)
    table.add_column("of", no_wrap=True)
    table.add_column("scale-up", justify="right", no_wrap=True)
    table.add_column("of", justify="right", no_wrap=True)
    table.add_column("scale-out", justify="right", no_wrap=True)
    table.add_column("$/h", justify="right", no_wrap=True)
    for record in records:
        found = cluster_from_record(record, find_chip(chip_name_of(record)))
        up, out, price = found.scale_up, found.scale_out, record.numbers().get("usd_per_chip_hour")
        table.add_row(
            found.name,
            *([found.full_name] if width >= 110 else []),
            str(found.num_chips),
            chip_name_of(record),
            format_rate(up.bytes_per_s_each_way),
            f"{up.size} {up.topology}",
            format_rate(out.bytes_per_s_each_way) if out else "-",
            format_usd(price) if price else "-",
        )
    return table


def models_table(models: Sequence[tuple[ModelRecord, AnyModel]], *, width: int) -> Table:
    """All models: parameters, layers, KV cache of a token."""
    table = plain_table(
        "models", caption="KV of one token in bf16, aggregate models as stated; type + : some modules in another type"
    )
    table.add_column("name", no_wrap=True)
    if width >= 110:
        table.add_column("is", no_wrap=True, overflow="ellipsis", max_width=28)
    for name in ("total", "active", "layers"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("attention", no_wrap=True, overflow="ellipsis", max_width=34 if width >= 110 else 12)
    table.add_column("KV/token", justify="right", no_wrap=True)
    if width >= 96:
        table.add_column("type", no_wrap=True)
    for record, model in models:
        table.add_row(
            record.name,
            *([record.full_name] if width >= 110 else []),
            format_count(model.total_params),
            format_count(model.active_params),
            str(model.num_layers) if isinstance(model, Model) else "-",
            _kinds(model),
            format_bytes(model.kv_bytes_per_token()),
            *([_type(record)] if width >= 96 else []),
        )
    return table


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
    table = plain_table("")
    table.add_column("key", overflow="fold", max_width=24)
    table.add_column("is", no_wrap=True)
    table.add_column("what was found, and what it does to answers", overflow="fold")
    for finding in findings:
        table.add_row(finding.key, Text(finding.state, style=_FOUND[finding.state]), Text(finding.why))
        table.add_row("", "", Text(finding.effect, style="dim"))
    counts = Counter(finding.state for finding in findings)
    said = ", ".join(f"{counts[state]} {state}" for state in _FOUND) if findings else "nothing is missing or doubtful"
    last = Text(f"{record.name} can be used: {said}")
    return Group(_head(record), Text(""), *([table, Text("")] if findings else []), last)


def _head(record: SourcedRecord) -> Group:
    lines: list[RenderableType] = [Text.assemble((record.full_name, "bold"), f"  {record.name}")]
    if record.aliases:
        lines.append(Text(f"also: {', '.join(record.aliases)}", style="dim"))
    facts = _facts(record)
    if facts:
        lines.append(Text(facts, style="dim"))
    return Group(*lines)


def _numbers(record: SourcedRecord) -> list[RenderableType]:
    table = plain_table("")
    table.add_column("number", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("evidence", no_wrap=True)
    table.add_column("source", justify="right", no_wrap=True)
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
        table.add_row(key, of_key(key, value), Text(str(source.kind), style=style), f"[{cited.index(text) + 1}]")
    notes = Table.grid(padding=(0, 1))
    notes.add_column(justify="right", style="dim", no_wrap=True)
    notes.add_column(style="dim", overflow="fold")
    for number, text in enumerate(cited, start=1):
        notes.add_row(f"[{number}]", text)
    return [table, Text(""), notes]


def _facts(record: SourcedRecord) -> str:
    if record.object_class is Chip:
        of = from_record(Chip, record)
        return f"{of.vendor}, {of.generation}, {of.released or 'no date'}"
    if record.object_class is Cluster:
        return f"made of {chip_name_of(record)}"
    if isinstance(record, ModelRecord):
        return f"weights in {record.native_precision}, {record.released or 'no date'}"
    return ""


def model_report(record: ModelRecord, model: AnyModel, check: CountCheck | None = None, *, width: int = 80) -> Group:
    """One model: parameters by kind, FLOP of a token against context, KV cache of a token, then its record.

    Args:
        check: its parameters against its checkpoint, shown behind the parameters.
    """
    blank = Text("")
    parts: list[RenderableType] = [_head(record), blank, _parameters(model), blank]
    parts += [types_table(checkpoint_types(record, model), width=width), blank]
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
    table = plain_table("against the checkpoint", caption=f"{check.where}; scales of quantised weights left out")
    table.add_column("part", no_wrap=True)
    for name in ("counted", "stored", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("stored as", overflow="fold")
    for part in check.parts:
        off = part.counted - part.stored
        types = check.types.get(part.kind, {})
        whole = sum(types.values())
        table.add_row(
            part.kind.replace("_", " "),
            format_count(part.counted) if part.counted else "-",
            format_count(part.stored) if part.stored else "-",
            f"{off:+,}" if off else "0",
            ", ".join(f"{name} {count / whole:.0%}" for name, count in sorted(types.items(), key=lambda one: -one[1])),
        )
    table.add_section()
    table.add_row(
        "all", format_count(check.counted), format_count(check.stored), f"{check.difference:+.3%}", style="bold"
    )
    if check.tower:
        table.add_row("towers (left out)", "-", format_count(check.tower), "", "")
    if check.stored_bytes is not None and check.total_size is not None:
        off = check.stored_bytes / check.total_size - 1.0 if check.total_size else 0.0
        table.add_row(
            "bytes by headers, by index",
            format_bytes(check.stored_bytes),
            format_bytes(check.total_size),
            f"{off:+.3%}",
        )
    return table


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


def _parameters(model: AnyModel) -> Table:
    table = plain_table(f"parameters of {model.name}")
    table.add_column("kind", no_wrap=True)
    for name in ("total", "share", "", "active"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    if isinstance(model, Model):
        count = model.parameters()
        for kind, total in sorted(count.total.items(), key=lambda item: -item[1]):
            part = share(total, count.total_params)
            active = count.active.get(kind, 0)
            table.add_row(
                kind.replace("_", " "),
                format_count(total) if total else "-",
                percent(part) if total else "",
                Text(bar(part, 16), style="blue"),
                format_count(active) if active else "-",
            )
        table.add_section()
    table.add_row("all", format_count(model.total_params), "", "", format_count(model.active_params), style="bold")
    table.caption = f"total over active {model.total_over_active:.3g}"
    return table


def _flop(model: AnyModel) -> Table:
    table = plain_table("FLOP of one decoded token by context")
    table.add_column("kind", no_wrap=True)
    for context in CONTEXTS:
        table.add_column(short_count(context), justify="right", no_wrap=True)
    kinds = [_flop_kinds(model, context) for context in CONTEXTS]
    for kind in kinds[0]:
        table.add_row(kind.replace("_", " "), *(flop(of[kind]) for of in kinds))
    table.add_section()
    table.add_row("all", *(flop(sum(of.values())) for of in kinds), style="bold")
    return table


def _kv(model: AnyModel) -> Table:
    if not isinstance(model, Model):
        table = plain_table("KV cache that one token adds")
        table.add_column("as stated", justify="right")
        table.add_row(format_bytes(model.kv_bytes_per_token()))
        return table
    table = plain_table("KV cache that one token adds", caption="a window stops growing at its size")
    table.add_column("attention", no_wrap=True)
    for dtype in KV_TYPES:
        table.add_column(dtype, justify="right", no_wrap=True)
    kinds = [_kv_kinds(model, dtype) for dtype in KV_TYPES]
    for kind in kinds[0]:
        table.add_row(kind, *(format_bytes(of[kind]) for of in kinds))
    if len(kinds[0]) > 1:
        table.add_section()
        table.add_row("all", *(format_bytes(sum(of.values())) for of in kinds), style="bold")
    return table


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


def rack_table(cluster: Cluster) -> Table:
    """What the chips of the cluster need around them; what the catalogue does not say is left out."""
    bill = rack_bill(cluster)
    table = plain_table("racks, switches, cables and paths")
    table.add_column("", no_wrap=True)
    table.add_column("")
    counts = [
        ("racks", f"{bill.num_racks} of {bill.chips_per_rack} chips"),
        ("scale-up switches", _count(bill.scale_up_switches)),
        ("scale-up cables", _count(bill.scale_up_cables)),
        ("network switches", _count(bill.network_switches)),
        ("network cables", _count(bill.network_cables)),
        ("nameplate power of a full rack", "" if bill.rack_power_w is None else f"{format_count(bill.rack_power_w)} W"),
        ("rent of a full rack", "" if bill.rack_usd_per_hour is None else f"{money(bill.rack_usd_per_hour)} an hour"),
    ]
    for name, text in counts:
        if text:
            table.add_row(name, text)
    for path in _paths(cluster):
        table.add_row(f"{path.hops} hops", f"{' → '.join(path.stops)}: {format_seconds(path.latency_s)}")
    return table


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
