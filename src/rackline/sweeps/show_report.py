"""What `sweep show` prints of a sweep: its front, best rows, sensitivities and crossovers, or the answer to SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.late import late
from rackline.report.column import Column, Sheet, spaced
from rackline.sweeps.file import Sense

with late:
    from rackline.sweeps import read, sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why points have no result or do not fit.

    Args:
        reason: in words.
        rows: points [count].
    """

    reason: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a sweep has found.

    Args:
        title: of the sweep.
        rows: that are there [count].
        feasible_rows: of them, those that have a result, fit and keep all constraints [count].
        shards: of the sweep [count].
        missing: of them, those that are not there yet [count].
        reasons: why points have no result or do not fit, most first.
        objectives: column → whether less or more is better.
        quantities: columns of lists with several values.
        front: rows of the Pareto front, as column → value.
        best: the best row of each group.
        by: columns of the groups.
        binding: what each constraint costs.
        sensitivities: of the first objective, most first; empty where it does not vary.
        tornado: main effects on it, largest first.
        crossovers: the best of each option along a quantity; None where nothing competes.
    """

    title: str
    rows: int
    feasible_rows: int
    shards: int
    missing: int
    reasons: tuple[Reason, ...]
    objectives: Mapping[str, Sense]
    quantities: tuple[str, ...]
    front: tuple[Mapping[str, Any], ...]
    best: tuple[Mapping[str, Any], ...]
    by: tuple[str, ...]
    binding: tuple[read.Binding, ...]
    sensitivities: tuple[sensitivity.Sensitivity, ...]
    tornado: tuple[sensitivity.Effect, ...]
    crossovers: read.Crossovers | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queried:
    """What SQL has answered.

    Args:
        columns: their names.
        values: rows of values.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str | float | bool | None, ...], ...]


_CHOSEN = ("layout", "batch")  # what a rule or a group chooses


def value_text(value: Any) -> str:
    """A value of a row for readers: four digits, texts as they are."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    if not isinstance(value, float):
        return str(value)
    text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return text if "e" not in text else f"{value:.10f}".rstrip("0")


def rows_table(
    rows: Sequence[Mapping[str, Any]], title: str, most: int, columns: Sequence[str]
) -> Sheet[Mapping[str, Any]]:
    """Rows as a table; columns that are the same everywhere are left out and said below it.

    Args:
        most: rows that are shown [count].
        columns: that are shown, in the order of the rows.
    """
    names = [name for name in rows[0] if name in columns] if rows else list[str]()
    same = [name for name in names if len(rows) > 1 and all(row[name] == rows[0][name] for row in rows)]
    said = [f"{name} {value_text(rows[0][name])}" for name in same]
    more = [f"{len(rows) - most:,} more rows"] if len(rows) > most else []
    caption = "; ".join([*more, *([f"all: {', '.join(said)}"] if said else [])])
    shown = [_column(name, rows[:most]) for name in names if name not in same]
    return Sheet("rows", shown, rows[:most], title, caption)


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> Column[Mapping[str, Any]]:
    texts = any(isinstance(row[name], str) for row in rows)
    return Column(name, name, "words" if texts else "figures", lambda row: value_text(row[name]))


def queried_report(found: Queried) -> RenderableType:
    """The answer to SQL."""
    rows = [dict(zip(found.columns, values, strict=True)) for values in found.values]
    return rows_table(rows, "", len(rows), found.columns) if rows else Text("no rows")


def shown_report(found: Shown, most: int) -> RenderableType:
    """Everything that `sweep show` prints.

    Args:
        most: rows of each table [count].
    """
    wanted = ", ".join(f"{name} ({sense})" for name, sense in found.objectives.items())
    parts: list[RenderableType] = [_head(found)]
    if not found.feasible_rows:
        return spaced([*parts, Text("nothing is feasible", style="yellow"), _binding(found)])
    columns = (*found.quantities, *_CHOSEN, *found.objectives)
    parts.append(rows_table(found.front, f"Pareto front of {wanted}", most, columns))
    if found.by:
        first = next(iter(found.objectives))
        parts.append(
            rows_table(found.best, f"best {first} for each {', '.join(found.by)}", most, (*found.by, *columns))
        )
    parts.append(_binding(found))
    if found.sensitivities:
        parts.append(_sensitivities(found))
    if found.tornado:
        parts.append(_tornado(found))
    if found.crossovers is not None:
        parts.append(_crossovers(found))
    return spaced(parts)


def _head(found: Shown) -> RenderableType:
    text = Text()
    if found.title:
        text.append(f"{found.title}\n", style="bold")
    text.append(f"{found.rows:,} points, {found.feasible_rows:,} of them feasible")
    if found.missing:
        text.append(f"; {found.missing:,} of {found.shards:,} shards are not there yet", style="yellow")
    for one in found.reasons[:5]:
        text.append(f"\n{one.rows:,} points: {one.reason}", style="dim")
    if len(found.reasons) > 5:
        text.append(f"\n{len(found.reasons) - 5:,} more reasons", style="dim")
    return text


def _binding(found: Shown) -> Sheet[read.Binding]:
    first = next(iter(found.objectives))
    columns: list[Column[read.Binding]] = [
        Column("constraint", "constraint", "words", lambda one: ": ".join(filter(None, (one.constraint, one.text)))),
        Column("broken", "broken by", "share"),
        Column("alone", "by it alone", "share"),
        Column("best", "best with all", "figures", lambda one: value_text(one.best)),
        Column("best_without", "without it", "figures", lambda one: value_text(one.best_without)),
    ]
    return Sheet("binding", columns, found.binding, title=f"where constraints bind (best {first})")


def _sensitivities(found: Shown) -> RenderableType:
    first = next(iter(found.objectives))
    how = {
        "saltelli": "Saltelli's design, 95 % confidence",
        "grid": "on the grid; approximate where points have no result",
        "bins": "bins of the draws, 95 % confidence",
    }[found.sensitivities[0].how]
    columns: list[Column[sensitivity.Sensitivity]] = [
        Column("quantity", "quantity", "words"),
        Column("first", "alone", "share"),
        Column("first_low", "from", "share", priority=1),
        Column("first_high", "to", "share", priority=1),
        Column("total", "with interactions", "share"),
        Column("total_low", "from", "share", priority=1),
        Column("total_high", "to", "share", priority=1),
    ]
    title = f"Sobol' indices of {first}"
    return Sheet("sensitivities", columns, found.sensitivities, title, f"{how}; all points with a result")


def _tornado(found: Shown) -> Sheet[sensitivity.Effect]:
    first = next(iter(found.objectives))
    columns: list[Column[sensitivity.Effect]] = [
        Column("quantity", "quantity", "words"),
        Column("low", "from", "figures"),
        Column("high", "to", "figures"),
        Column("at_low", "there", "figures", lambda one: value_text(one.at_low)),
        Column("at_high", "and there", "figures", lambda one: value_text(one.at_high)),
    ]
    return Sheet("tornado", columns, found.tornado, title=f"tornado: median {first} at the ends of each quantity")


def _crossovers(found: Shown) -> RenderableType:
    one = found.crossovers
    if one is None:
        return Text("")
    head = f"best {one.objective} by {one.option} along {one.along}"
    if not one.points:
        best = {row[one.option] for row in one.curve}
        return Text(f"{head}: no crossover between {', '.join(sorted(map(str, best)))}")
    lines = [
        Text(f"{head}: from {point.before} to {point.after} at {one.along} {value_text(point.at)}")
        for point in one.points
    ]
    return Group(*lines)
