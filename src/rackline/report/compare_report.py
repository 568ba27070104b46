"""Chips, clusters, models or deployments side by side, with ratios to the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.arch import AnyModel, Model
from rackline.display.column import Column, Sheet
from rackline.display.wording import Prose
from rackline.hardware import Chip, Cluster
from rackline.plain import follow
from rackline.search.choice import Choice
from rackline.search.plan import Plan
from rackline.serving.fleet import Fleet

LONG_CONTEXT = 128_000
_ALL_IN = "usd_per_mtok_output_all_in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Both ends of an interval; unit of its metric."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployment in a comparison, beside its numbers.

    Args:
        choice: the way to serve; None where nothing meets the limits.
        engine: whose kernels and launch rules it has.
        today: whether it is what runs today, not a plan.
        priced: False where costs are chip-hours.
        bands: the interval that held 90 % of measured servers, by metric.
        fleet: for the traffic; None where none was asked for or nothing serves.
        reason: why there is none; empty when there is one.
    """

    json_keys: ClassVar = (
        "today",
        "engine",
        "serving=choice.serving",
        "basis=choice.basis",
        "layout=choice.layout.label()",
        "precision=choice.precision.short()",
        "scheduler=choice.mode.label()",
        "prefill_layout=choice.prefill_pool.layout.label()",
        "leftover=choice.leftover.choice.layout.label()",
        "intervals=bands",
        "fleet",
        "reason",
    )

    choice: Choice | None
    engine: str
    today: bool
    priced: bool
    bands: dict[str, Band]
    fleet: Fleet | None = None
    reason: str = ""

    def label(self) -> str:
        """Layout, precision and scheduler in words."""
        choice = self.choice
        if choice is None:
            return self.reason
        layout, precision = choice.layout.label(), choice.precision.short()
        if choice.prefill_pool is not None:
            return f"decode {layout}, prefill {choice.prefill_pool.layout.label()} · {precision}"
        beside = follow(choice, "leftover.choice.layout.label()")
        left = f", and {beside} on chips that it leaves free" if beside else ""
        return f"{layout} · {precision} · {choice.mode.label()}{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One thing of a comparison.

    Args:
        name: what it is called.
        values: key → number in SI units, None where it has none.
        deployed: what a deployment is beside its numbers; None for other things.
    """

    name: str
    values: dict[str, float | None]
    deployed: Deployed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that would change.

    Args:
        what: name of it.
        before, after: in words.
        ratio: after over before, None for what is no number [ratio].
    """

    what: str
    before: str
    after: str
    ratio: float | None = None


def chip_side(chip: Chip) -> Side:
    """Peaks, memory, ridge and what one dollar of rent buys."""
    dtype = "bf16" if chip.supports("bf16") else "fp16"
    usd = chip.usd_per_chip_hour
    values: dict[str, float | None] = {
        "bf16_flop_per_s": chip.flop_per_s(dtype) if chip.supports(dtype) else None,
        "fp8_flop_per_s": chip.flop_per_s("fp8") if chip.supports("fp8") else None,
        "fp4_flop_per_s": chip.flop_per_s("fp4") if chip.supports("fp4") else None,
        "hbm_bytes": chip.hbm_bytes,
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "ridge_flop_per_byte": chip.ridge_point(dtype) if chip.supports(dtype) else None,
        "drain_s": chip.drain_s,
        "power_w": chip.power_w,
        "usd_per_chip_hour": usd,
        "flop_per_usd": 3600.0 * chip.flop_per_s(dtype) / usd if usd and chip.supports(dtype) else None,
        "hbm_bytes_read_per_usd": 3600.0 * chip.hbm_bytes_per_s / usd if usd else None,
        "flop_per_joule": chip.flop_per_s(dtype) / chip.power_w if chip.power_w and chip.supports(dtype) else None,
    }
    return Side(name=chip.name, values=values)


def cluster_side(cluster: Cluster) -> Side:
    """The chips of a cluster together, its links, its rent."""
    one = chip_side(cluster.chip).values
    usd = cluster.usd_per_chip_hour or cluster.chip.usd_per_chip_hour
    count = cluster.num_chips
    peak = one["bf16_flop_per_s"]
    out = cluster.scale_out
    values: dict[str, float | None] = {
        "num_chips": float(count),
        "bf16_flop_per_s": peak * count if peak else None,
        "fp8_flop_per_s": one["fp8_flop_per_s"] * count if one["fp8_flop_per_s"] else None,
        "fp4_flop_per_s": one["fp4_flop_per_s"] * count if one["fp4_flop_per_s"] else None,
        "hbm_bytes": cluster.chip.hbm_bytes * count,
        "hbm_bytes_per_s": cluster.chip.hbm_bytes_per_s * count,
        "scale_up_chips": float(cluster.scale_up.size),
        "scale_up_bytes_per_s_each_way": cluster.scale_up.bytes_per_s_each_way,
        "scale_out_bytes_per_s_each_way": out.bytes_per_s_each_way if out else None,
        "usd_per_chip_hour": usd,
        "usd_per_hour": usd * count if usd else None,
        "flop_per_usd": 3600.0 * peak / usd if usd and peak else None,
        "hbm_bytes_read_per_usd": 3600.0 * cluster.chip.hbm_bytes_per_s / usd if usd else None,
    }
    return Side(name=cluster.name, values=values)


def model_side(model: AnyModel) -> Side:
    """Parameters, FLOP of a token, cache."""
    values: dict[str, float | None] = {
        "total_params": float(model.total_params),
        "active_params": float(model.active_params),
        "total_over_active": model.total_over_active,
        "num_layers": (float(model.num_layers) if isinstance(model, Model) else None),
        "flop_per_token": float(model.flop_per_token(1000.0)),
        "flop_per_token_long": float(model.flop_per_token(float(LONG_CONTEXT))),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "state_bytes": model.state_bytes() or None,
        "kv_bytes_long": float(model.kv_bytes(float(LONG_CONTEXT))),
        "kv_read_bytes_long": float(model.kv_read_bytes(float(LONG_CONTEXT))),
    }
    return Side(name=model.name, values=values)


_OF_CHOICE = ("num_chips", "billed_chips", "batch_size", "tpot_s", "ttft_s", "requests_per_s")
_COSTS = ("usd_per_mtok_input", "usd_per_mtok_output", "usd_per_mtok_output_all_in")
_OUTPUT = ("output_tokens_per_s", "output_tokens_per_usd", "power_w", "joules_per_output_token")


def deployment_side(
    name: str,
    plan: Plan,
    *,
    engine: str,
    bands: dict[str, Band],
    fleet: Fleet | None = None,
    today: bool = False,
) -> Side:
    """The cheapest way of a plan; all None where nothing meets the limits.

    Args:
        engine: whose kernels and launch rules it has.
        bands: the interval that held 90 % of measured servers, by metric.
        fleet: of it for the traffic; None where none was asked for.
        today: whether it is what runs today, not a plan.
    """
    best, usd = plan.best, plan.system.cluster.usd_per_chip_hour
    values: dict[str, float | None] = dict.fromkeys((*_OF_CHOICE, "output_tokens_per_s_per_chip", *_COSTS, *_OUTPUT))
    if best is not None:
        whole = best.whole
        values |= {
            **{key: getattr(best, key) for key in _OF_CHOICE},
            "num_chips": whole.num_chips,
            "requests_per_s": whole.requests_per_s,
            "output_tokens_per_s": whole.output_tokens_per_s,
            "output_tokens_per_s_per_chip": whole.output_tokens_per_s_per_chip,
            **{key: getattr(whole, key) if usd else None for key in _COSTS},
            "output_tokens_per_usd": 1e6 / whole.usd_per_mtok_output_all_in if usd else None,
            "power_w": follow(best, "energy.power_w"),
            "joules_per_output_token": follow(best, "energy.joules_per_output_token"),
        }
    deployed = Deployed(
        choice=best,
        engine=engine,
        today=today,
        priced=plan.priced,
        bands=bands,
        fleet=fleet,
        reason="" if best else plan.reason,
    )
    return Side(
        name=name,
        values={key: None if value is None else float(value) for key, value in values.items()},
        deployed=deployed,
    )


_COLUMNS: tuple[Column[Any], ...] = (
    Column("bf16_flop_per_s", "16 bit", "FLOP/s"),
    Column("fp8_flop_per_s", "fp8", "FLOP/s"),
    Column("fp4_flop_per_s", "fp4", "FLOP/s"),
    Column("hbm_bytes", "memory", "B"),
    Column("hbm_bytes_per_s", "bandwidth", "B/s"),
    Column("ridge_flop_per_byte", "ridge, FLOP/B", "whole"),
    Column("drain_s", "drain time", "s"),
    Column("power_w", "power", "W"),
    Column("joules_per_output_token", "energy of an output token", "J"),
    Column("usd_per_chip_hour", "a chip an hour", "USD"),
    Column("usd_per_hour", "all chips an hour", "USD"),
    Column("flop_per_usd", "16 bit per dollar", "FLOP"),
    Column("hbm_bytes_read_per_usd", "reads per dollar", "B"),
    Column("flop_per_joule", "16 bit per joule", "FLOP"),
    Column("num_chips", "chips", "whole"),
    Column("scale_up_chips", "scale-up domain, chips", "whole"),
    Column("scale_up_bytes_per_s_each_way", "scale-up, each way", "B/s"),
    Column("scale_out_bytes_per_s_each_way", "scale-out, each way", "B/s"),
    Column("total_params", "parameters", "count"),
    Column("active_params", "active", "count"),
    Column("total_over_active", "total over active", "1"),
    Column("num_layers", "layers", "whole"),
    Column("flop_per_token", "FLOP of a token at 1k", "FLOP"),
    Column("flop_per_token_long", "FLOP of a token at 128k", "FLOP"),
    Column("kv_bytes_per_token", "KV of a token, bf16", "B"),
    Column("state_bytes", "state of a sequence", "B"),
    Column("kv_bytes_long", "cache at 128k, bf16", "B"),
    Column("kv_read_bytes_long", "read at 128k, bf16", "B"),
    Column("billed_chips", "chips that are paid for", "whole"),
    Column("batch_size", "batch", "whole"),
    Column("tpot_s", "time per output token", "s"),
    Column("ttft_s", "time to first token", "s"),
    Column("output_tokens_per_s_per_chip", "output tokens/s per chip", "1"),
    Column("output_tokens_per_s", "output tokens/s", "1"),
    Column("requests_per_s", "requests/s", "1"),
    Column("usd_per_mtok_input", "$ per M input tokens", "USD"),
    Column("usd_per_mtok_output", "$ per M output tokens", "USD"),
    Column("usd_per_mtok_output_all_in", "$ per M output, all-in", "USD"),
    Column("output_tokens_per_usd", "output tokens per dollar", "count"),
)
QUANTITIES: Mapping[str, Column[Any]] = {column.key: column for column in _COLUMNS}
"""Numbers of things that are compared, by key."""


def ratio(value: float | None, first: float | None) -> float | None:
    """A value over that of the first side; None where one is missing or zero."""
    if value is None or first is None or not first or not math.isfinite(value / first):
        return None
    return value / first


def compare_report(sides: Sequence[Side], *, what: str, prices: str = "", width: int) -> Group:
    """A table with a row for each number; each value but the first is followed by its ratio to the first.

    Where the screen is too narrow for all, the first stands beside as many others as fit, in several tables.

    Args:
        what: their kind.
        prices: of which kind they are.
        width: columns of the terminal.
    """
    first, others = sides[0], list(sides[1:])
    tables: list[RenderableType] = []
    while others:
        count = next((n for n in range(len(others), 1, -1) if _sheet([first, *others[:n]], what).widest <= width), 1)
        tables += ([Text("")] if tables else []) + [_sheet([first, *others[:count]], what, titled=not tables)]
        others = others[count:]
    return Group(*tables, Prose(f"×: over {first.name}" + (f"; {prices}" if prices else ""), style="dim"))


def _sheet(sides: Sequence[Side], what: str, *, titled: bool = False) -> Sheet[Any]:
    """A line a number in the same unit for all sides, a column a side."""
    first = sides[0]
    rows: list[dict[str, Any]] = []
    for key in first.values:
        values = [side.values[key] for side in sides]
        if any(value is not None for value in values):
            row: dict[str, Any] = {"quantity": QUANTITIES[key].title}
            for side, value, cell in zip(sides, values, QUANTITIES[key].cells(values), strict=True):
                over = ratio(value, values[0])
                row |= {side.name: cell.plain, f"{side.name} over {first.name}": "" if over is None else over}
            rows.append(row)
    columns: list[Column[Any]] = [Column("quantity"), Column(first.name, first.name, "figures")]
    for side in sides[1:]:
        columns.append(Column(side.name, side.name, "figures"))
        columns.append(Column(f"{side.name} over {first.name}", "×", "ratio", style="dim"))
    return Sheet(what, columns, rows, title=f"{what} side by side" if titled else "")


class SideData(TypedDict):
    """One thing with its numbers, and these over those of the first."""

    name: str
    values: dict[str, float | None]
    ratios: dict[str, float | None]
    deployed: Deployed | None


class Comparison(TypedDict):
    """Things of one kind side by side, SI units."""

    kind: str
    prices: str
    sides: list[SideData]
    changes: list[Change]
    why: list[str]


def compare_data(
    sides: Sequence[Side], *, what: str, prices: str, changes: Sequence[Change], why: Sequence[str]
) -> Comparison:
    """The comparison as data.

    Args:
        changes, why: from today's deployment to its plan.
    """
    return {
        "kind": what,
        "prices": prices,
        "sides": [
            {
                "name": side.name,
                "values": side.values,
                "ratios": {key: ratio(value, sides[0].values[key]) for key, value in side.values.items()},
                "deployed": side.deployed,
            }
            for side in sides
        ],
        "changes": list(changes),
        "why": list(why),
    }
