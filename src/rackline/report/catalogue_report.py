"""Tables of the catalogue: chips, clusters with their racks, models, caches, memory tiers; records with sources."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.arch import AnyModel, Model
from rackline.catalog import ModelRecord
from rackline.catalog.base import SourcedRecord, from_record
from rackline.display.column import Column, Sheet, facts, spaced
from rackline.display.wording import money, of_key, short_count, tera
from rackline.hardware import (
    Chip,
    ChipRecord,
    Cluster,
    ClusterRecord,
    MemoryTier,
    MemoryTierRecord,
    Path,
    RackBill,
    chip as find_chip,
    chip_name_of,
    cluster_from_record,
    rack_bill,
    scale_out_path,
    scale_up_path,
)
from rackline.hardware.chip_check import ChipFinding
from rackline.plain import follow
from rackline.serving.curve import CacheOfModel, Ridge
from rackline.units import format_seconds, format_watts


def chips_table(chips: Sequence[Chip]) -> Sheet[Chip]:
    """All chips: dense peaks, memory, ridge point, price."""

    def peak(dtype: str) -> Column[Chip]:
        def written(chip: Chip) -> str:
            rate = chip.peak_flop_per_s.get(dtype)
            return tera(rate) if rate else "-"

        return Column(f"peak_flop_per_s.{dtype}", dtype, "figures", written)

    return Sheet(
        "chips",
        [
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
        ],
        chips,
        title="chips",
        caption="dense peaks in TFLOP/s; ridge point of bf16 in FLOP/byte",
    )


def clusters_table(records: Sequence[ClusterRecord]) -> Sheet[tuple[ClusterRecord, Cluster]]:
    """All clusters: chips, levels of the fabric, price."""
    rows = [(record, cluster_from_record(record, find_chip(chip_name_of(record)))) for record in records]
    return Sheet(
        "clusters",
        [
            Column("name", "name", getter="1.name"),
            Column("full_name", "is", getter="1.full_name", priority=3),
            Column("num_chips", "chips", "whole", "1.num_chips"),
            Column("chip", "of", getter=lambda row: chip_name_of(row[0]), priority=2),
            Column(
                "scale_up.bytes_per_s_each_way", "scale-up", "B/s", lambda row: row[1].scale_up.bytes_per_s_each_way
            ),
            Column("scale_up.size", "of", "whole", "1.scale_up.size"),
            Column("scale_up.topology", "", getter="1.scale_up.topology", priority=1),
            Column("scale_out.bytes_per_s_each_way", "scale-out", "B/s", "1.scale_out.bytes_per_s_each_way"),
            Column("usd_per_chip_hour", "$/h", "USD", lambda row: row[0].numbers().get("usd_per_chip_hour") or None),
        ],
        rows,
        title="clusters",
        caption="link rates are per chip, each way",
    )


def models_table(models: Sequence[tuple[ModelRecord, AnyModel]]) -> Sheet[tuple[ModelRecord, AnyModel]]:
    """All models: parameters, layers, KV cache of a token."""
    return Sheet(
        "models",
        [
            Column("name", "name", getter="0.name"),
            Column("full_name", "is", getter="0.full_name", priority=2),
            Column("total_params", "total", "count", "1.total_params"),
            Column("active_params", "active", "count", "1.active_params"),
            Column(
                "num_layers", "layers", "whole", lambda row: row[1].num_layers if isinstance(row[1], Model) else None
            ),
            Column("kv_bytes_per_token", "KV/token", "B", lambda row: row[1].kv_bytes_per_token()),
            Column("native_precision", "type", getter=lambda row: _type(row[0]), priority=1),
            Column("attention", "attention", "words", lambda row: _kinds(row[1])),
        ],
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


def record_report(record: SourcedRecord, *between: RenderableType) -> Group:
    """One record: every number with its evidence and source.

    Args:
        between: what is printed before its numbers.
    """
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
    numbers: Sheet[Any] = Sheet(
        "numbers",
        [
            Column("key", "number"),
            Column("value", "value", "figures"),
            Column("evidence", "evidence"),
            Column("source", "source", "figures"),
        ],
        rows,
    )
    notes = facts("sources", [(f"[{number}]", text) for number, text in enumerate(cited, start=1)])
    return spaced([_head(record), *between, numbers, notes])


_FOUND = {"missing": "bold", "doubtful": "yellow"}  # style of each state of a finding


def findings_report(record: ChipRecord, findings: Sequence[ChipFinding]) -> Group:
    """What the record of a chip lacks or leaves in doubt, and what that does to answers."""
    rows = [
        row
        for finding in findings
        for row in (
            (finding.key, Text(finding.state, style=_FOUND[finding.state]), finding.why),
            ("", "", Text(finding.effect, style="dim")),
        )
    ]
    table: Sheet[Any] = Sheet(
        "findings",
        [
            Column("key", "key", "words"),
            Column("state", "is"),
            Column("why", "what was found, and what it does to answers", "words"),
        ],
        rows,
    )
    counts = Counter(finding.state for finding in findings)
    said = ", ".join(f"{counts[state]} {state}" for state in _FOUND) if findings else "nothing is missing or doubtful"
    return spaced([_head(record), table if findings else None, Text(f"{record.name} can be used: {said}")])


def _head(record: SourcedRecord) -> Group:
    below = (f"also: {', '.join(record.aliases)}" if record.aliases else "", _facts(record))
    named = Text.assemble((record.full_name, "bold"), f"  {record.name}")
    return Group(named, *(Text(line, style="dim") for line in below if line))


def _facts(record: SourcedRecord) -> str:
    if record.object_class is Chip:
        of = from_record(Chip, record)
        return f"{of.vendor}, {of.generation}, {of.released or 'no date'}"
    if record.object_class is Cluster:
        return f"made of {chip_name_of(record)}"
    if isinstance(record, ModelRecord):
        return f"weights in {record.native_precision}, {record.released or 'no date'}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks:
    """What the chips of a cluster need around them, and how messages travel between them."""

    json_keys: ClassVar = ("*bill", "paths")

    bill: RackBill
    paths: tuple[Path, ...]


def racks(cluster: Cluster) -> Racks:
    """What the chips of a cluster need around them: what is printed, as data."""
    paths = [scale_up_path(cluster.scale_up)]
    paths += [scale_out_path(cluster.scale_out)] if cluster.scale_out is not None else []
    return Racks(bill=rack_bill(cluster), paths=tuple(paths))


def rack_table(cluster: Cluster) -> Sheet[Any]:
    """What the chips of the cluster need around them; what the catalogue does not say is left out."""
    found = racks(cluster)
    bill = found.bill
    counts = {
        "scale-up switches": bill.scale_up_switches,
        "scale-up cables": bill.scale_up_cables,
        "network switches": bill.network_switches,
        "network cables": bill.network_cables,
    }
    rent = bill.rack_usd_per_hour
    rows = [
        ("racks", f"{bill.num_racks} of {bill.chips_per_rack} chips"),
        *((name, "" if count is None else f"{count:,}") for name, count in counts.items()),
        ("nameplate power of a full rack", "" if bill.rack_power_w is None else format_watts(bill.rack_power_w)),
        ("rent of a full rack", "" if rent is None else f"{money(rent)} an hour"),
        *((f"{one.hops} hops", f"{' → '.join(one.stops)}: {format_seconds(one.latency_s)}") for one in found.paths),
    ]
    return facts("racks", rows, title="racks, switches, cables and paths")


def ridge_table(ridges: Sequence[Ridge]) -> Sheet[Mapping[str, Ridge]]:
    """One line per chip: FLOP per byte and R by data type, time to read the memory once."""
    chips: dict[str, dict[str, Ridge]] = {}
    for ridge in ridges:
        width = "16 bit" if ridge.dtype in ("bf16", "fp16") else ridge.dtype
        chips.setdefault(ridge.chip, {})[width] = ridge
    widths = ("16 bit", "fp8", "fp4")

    def of(key: str, width: str, title: str) -> Column[Mapping[str, Ridge]]:
        return Column(f"{width}.{key}", title, "whole", lambda row: follow(row.get(width), key))

    return Sheet(
        "ridge",
        [
            Column("chip", "chip", getter=lambda row: next(iter(row.values())).chip),
            *(of("flop_per_byte", width, width) for width in widths),
            *(of("ridge", width, f"R {width}") for width in widths),
            Column("drain_s", "drain", "s", lambda row: next(iter(row.values())).drain_s),
        ],
        list(chips.values()),
        "ridge points",
        "FLOP/byte, then R: multiplies per weight read, the balance batch of a dense model",
    )


def cache_table(caches: Sequence[CacheOfModel], *, on: str, dtype: str) -> Sheet[CacheOfModel]:
    """One line per model: cache of a token and of long sequences, crossover context, balance batch."""

    def of(part: str, key: Any, title: str, priority: int = 0) -> Column[CacheOfModel]:
        return Column(f"{part}.{key}", title, "B", lambda cache: getattr(cache, part)[key], priority=priority)

    types = list(caches[0].kv_bytes_per_token) if caches else []
    contexts = list(caches[0].kv_bytes) if caches else []
    return Sheet(
        "caches",
        [
            Column("model", "model"),
            *(of("kv_bytes_per_token", each, f"{each}/token", 4 if place else 0) for place, each in enumerate(types)),
            Column("state_bytes", "state", "B", lambda cache: cache.state_bytes or None, priority=5),
            *(of("kv_bytes", each, f"at {short_count(each)}", 3 - place) for place, each in enumerate(contexts)),
            Column("crossover_context", "crossover", "count", lambda cache: _crossover(cache.crossover_context)),
            Column("balance_batch", "balance", "whole"),
        ],
        caches,
        "KV cache by model",
        f"crossover and balance batch on {on} in {dtype}; what a window, a choice or a state saves is in it",
    )


def _crossover(context: float) -> float | str:
    if math.isinf(context):
        return "never"
    return context or "states"  # reading the states alone takes longer


def memory_table(records: Sequence[MemoryTierRecord]) -> Sheet[MemoryTier]:
    """A table of the memory tiers, fastest first."""
    tiers = [from_record(MemoryTier, record) for record in records]

    tiers.sort(key=lambda each: -each.bytes_per_s / each.capacity_bytes)
    return Sheet(
        "memory",
        [
            Column("name", "name"),
            Column("tier", "tier"),
            Column("full_name", "is", priority=3),
            Column("capacity_bytes", "capacity", "B"),
            Column("bytes_per_s", "bandwidth", "B/s"),
            Column("latency_s", "latency", "s", priority=2),
            Column("drain_s", "drain", "s", lambda tier: tier.capacity_bytes / tier.bytes_per_s),
            Column("usd_per_gb", "$/GB", "USD", lambda tier: tier.usd_per_byte * 1e9 if tier.usd_per_byte else None),
            Column("usd_per_hour", "$/h", "USD", lambda tier: tier.usd_per_hour or None, priority=1),
        ],
        tiers,
        "memory tiers",
        "one unit each; drain is capacity over bandwidth",
    )
