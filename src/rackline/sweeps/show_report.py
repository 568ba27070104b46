"""What `sweep show` prints of a sweep: its front, best rows, sensitivities and crossovers, or the answer to SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table, spaced
from rackline.sweeps.file import Sense
from rackline.sweeps.read import Binding, Crossovers
from rackline.sweeps.sensitivity import Effect, Sensitivity


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
    binding: tuple[Binding, ...]
    sensitivities: tuple[Sensitivity, ...]
    tornado: tuple[Effect, ...]
    crossovers: Crossovers | None


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
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rows_table(rows: Sequence[Mapping[str, Any]], title: str, most: int, columns: Sequence[str]) -> Table:
    """Rows as a table; columns that are the same everywhere are left out and said below it.

    Args:
        most: rows that are shown [count].
        columns: that are shown, in the order of the rows.
    """
    shown = list(rows)[:most]
    names = [name for name in rows[0] if name in columns] if rows else list[str]()
    same = [name for name in names if len(rows) > 1 and all(row[name] == rows[0][name] for row in rows)]
    said = [f"{name} {value_text(rows[0][name])}" for name in same]
    more = [f"{len(rows) - most:,} more rows"] if len(rows) > most else []
    table = plain_table(title, caption="; ".join([*more, *([f"all: {', '.join(said)}"] if said else [])]))
    kept = [name for name in names if name not in same]
    for name in kept:
        texts = [row[name] for row in shown]
        table.add_column(name, justify="left" if any(isinstance(one, str) for one in texts) else "right")
    for row in shown:
        table.add_row(*(value_text(row[name]) for name in kept))
    return table


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


def _binding(found: Shown) -> RenderableType:
    first = next(iter(found.objectives))
    table = plain_table(f"where constraints bind (best {first})")
    for name in ("constraint", "broken by", "by it alone", "best with all", "without it"):
        table.add_column(name, justify="left" if name == "constraint" else "right")
    for one in found.binding:
        label = f"{one.constraint}: {one.text}" if one.text else one.constraint
        table.add_row(label, _share(one.broken), _share(one.alone), value_text(one.best), value_text(one.best_without))
    return table


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _sensitivities(found: Shown) -> RenderableType:
    first = next(iter(found.objectives))
    how = {
        "saltelli": "Saltelli's design, 95 % confidence",
        "grid": "on the grid; approximate where points have no result",
        "bins": "bins of the draws, 95 % confidence",
    }[found.sensitivities[0].how]
    table = plain_table(f"Sobol' indices of {first}", caption=f"{how}; all points with a result")
    for name in ("quantity", "alone", "", "with interactions", " "):
        table.add_column(name, justify="left" if name == "quantity" else "right")
    for one in found.sensitivities:
        table.add_row(
            one.quantity,
            _share(one.first),
            _ends(one.first_low, one.first_high),
            "-" if one.total is None else _share(one.total),
            _ends(one.total_low, one.total_high),
        )
    return table


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{100 * low:.3g} to {100 * high:.3g}"


def _tornado(found: Shown) -> RenderableType:
    first = next(iter(found.objectives))
    table = plain_table(f"tornado: median {first} at the ends of each quantity")
    for name in ("quantity", "from", "to", "there", "and there"):
        table.add_column(name, justify="left" if name == "quantity" else "right")
    for one in found.tornado:
        table.add_row(one.quantity, one.low, one.high, value_text(one.at_low), value_text(one.at_high))
    return table


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
