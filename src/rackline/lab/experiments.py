"""All experiments: what each shows, which claims it tests, how it is run, and its results stored as JSON."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from rackline.display.axes import SERIES, Measure, colour, hovered, linear_axis, log_axis, nothing_figure
from rackline.display.column import Column, Sheet
from rackline.display.figure import Figure
from rackline.errors import InputError, nearest_name
from rackline.files import parse_json, read_text
from rackline.lab.experiment import Experiment, Reading, Setup, start_jax
from rackline.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One experiment.

    Args:
        name: of the experiment and of its module in `rackline.lab`.
        shows: what it shows, in a line.
        systems: of the lecture's ledger.
        on_host: whether it needs eight devices, which every host has under JAX, and times them by the host's processor.
    """

    name: str
    shows: str
    systems: tuple[str, ...]
    on_host: bool = False


EXPERIMENTS = {
    one.name: one
    for one in (
        Entry(
            name="decode",
            shows="decoding with a cache: three regimes of a step, cost of a token",
            systems=("Y01", "Y02", "Y04", "Y05"),
        ),
        Entry(
            name="sparse", shows="attention that reads the root of the context: bytes, time, quality", systems=("Y06",)
        ),
        Entry(name="moe", shows="a mixture of experts: router, top-k, balance, cost", systems=("Y07",)),
        Entry(
            name="experts",
            shows="expert parallelism over two racks: who sends what to whom",
            systems=("Y08",),
            on_host=True,
        ),
        Entry(
            name="pipeline",
            shows="pipeline schedules: gradients, idle time, memory",
            systems=("Y11", "Y12"),
            on_host=True,
        ),
        Entry(name="reversible", shows="a reversible transformer: flat memory for more work", systems=("Y20",)),
        Entry(
            name="cipher",
            shows="a cipher and a network: how far a small change spreads",
            systems=("Y21", "Y22"),
        ),
        Entry(name="serve", shows="continuous batching: a real server against the simulator", systems=("Y03",)),
    )
}


def entry(name: str) -> Entry:
    """An experiment by name. Raises InputError for an unknown one."""
    if name not in EXPERIMENTS:
        raise InputError(
            what="experiment",
            given=name,
            allowed=", ".join((*EXPERIMENTS, "all")),
            nearest=nearest_name(name, EXPERIMENTS),
        )
    return EXPERIMENTS[name]


def run_experiment(name: str, setup: Setup) -> Experiment:
    """Run one experiment, on the host where it needs several devices.

    Raises:
        InputError: no experiment of this name, or no JAX.
    """
    device = "cpu" if entry(name).on_host else setup.device
    start_jax(device)
    began = time.perf_counter()
    found: Experiment = importlib.import_module(f"rackline.lab.{name}").run(setup)
    return replace(found, seconds=time.perf_counter() - began, seed=setup.seed, quick=setup.quick, device=device)


_ALLOWED = "the JSON of `rackline lab all --json`"


def read_experiments(path: str | Path) -> tuple[Experiment, ...]:
    """Stored experiments.

    Args:
        path: what `rackline lab ... --json` printed.

    Raises:
        InputError: no such file, another kind of JSON, or an experiment that this version does not have.
    """
    text = read_text(path, what="--measured", allowed=_ALLOWED)
    try:
        experiments = TypeAdapter(tuple[Experiment, ...]).validate_python(cast("Any", parse_json(text))["experiments"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(what="--measured", given=str(path), allowed=_ALLOWED) from error
    unknown = next((one.name for one in experiments if one.name not in EXPERIMENTS), None)
    if unknown is not None:
        raise InputError(what="--measured", given=f"experiment {unknown}", allowed=", ".join(EXPERIMENTS))
    return experiments


def verdicts_by_claim(experiments: tuple[Experiment, ...]) -> dict[str, str]:
    """What experiments say of each claim: "holds (cipher)", by claim id."""
    found: dict[str, list[str]] = {}
    for one in experiments:
        for claim in one.claims:
            found.setdefault(claim, []).append(f"{one.verdict} ({one.name})")
    return {claim: ", ".join(texts) for claim, texts in found.items()}


MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("", "dim")}
STYLES = {"holds": "green", "differs": "red", "undecided": "yellow"}
_BOUNDS = {"at_most": "≤ ", "at_least": "≥ ", "equal": "", "shown": ""}


def experiments_table(found: Sequence[Experiment]) -> Group:
    """A table for each experiment, and what came out."""
    parts: list[RenderableType] = []
    for one in found:
        verdict = Text(f"  {one.verdict}", style=STYLES[one.verdict])
        verdict.append(f" ({', '.join(one.claims)}; {format_seconds(one.seconds)})", style="dim")
        parts += [_table(one), *(Text(f"  {text}", style="dim") for text in one.findings), verdict, Text("")]
    return Group(*parts)


def result_line(one: Experiment) -> str:
    """What came out, in a line."""
    said = f": {one.findings[0]}" if one.findings else ""
    return f"{one.name} {one.verdict} after {format_seconds(one.seconds)}{said}"


def value_text(value: float | None, unit: str) -> str:
    """A value of a reading as a person writes it; "-" for none."""
    if value is None:
        return "-"
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    number = f"{value:,.0f}" if abs(value) >= 1e4 or value == int(value) else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def predicted_text(row: Reading) -> str:
    """What was predicted, with the sign of a bound."""
    text = value_text(row.predicted, row.unit)
    return text if row.predicted is None else _BOUNDS[row.check] + text


def measured_text(row: Reading) -> str:
    """What was measured, with its interval where there is one."""
    text = value_text(row.measured, row.unit)
    if row.low is None or row.high is None:
        return text
    return f"{text} ({value_text(row.low, '')} to {value_text(row.high, '')})"


def _table(one: Experiment) -> Sheet[Reading]:
    def mark(row: Reading) -> Text:
        text, style = MARKS[row.holds]
        return Text(text, style=style)

    columns: list[Column[Reading]] = [
        Column("quantity", "quantity", "words"),
        Column("predicted", "predicted", "figures", predicted_text),
        Column("measured", "measured", "words", measured_text),
        Column("holds", "", getter=mark),
    ]
    return Sheet(one.name, columns, one.rows, title=f"{one.name}: {entry(one.name).shows}")


_KINDS = {"bytes": "bytes", "seconds": "seconds", "share": "share"}


def experiment_figure(one: Experiment) -> Figure:
    """The curves of one experiment."""
    title = f"{one.name}: {entry(one.name).shows}"
    if not one.curves:
        return nothing_figure(title, "no curves in this result")
    x, y = (_measure(field, text) for field, text in zip(("x", "y"), one.axes, strict=True))
    names = list(dict.fromkeys(curve.name for curve in one.curves))
    rows: list[dict[str, Any]] = [
        {"series": curve.name, "kind": curve.kind, "x": a, "y": b}
        for curve in one.curves
        for a, b in zip(curve.x, curve.y, strict=True)
    ]
    horizontal, vertical = (
        (log_axis if log else linear_axis)(measure, [row[measure.field] for row in rows])
        for log, measure in zip(one.log_axes, (x, y), strict=True)
    )
    encoding = {"x": horizontal, "y": vertical, "color": colour(names)}
    measures = (SERIES, Measure(field="kind", title="kind"), x, y)
    kinds = {kind: [{"filter": f"datum.kind == '{kind}'"}] for kind in ("predicted", "measured")}
    layers = [
        hovered({"type": "line", "strokeDash": [6, 3]}, encoding, measures, transform=kinds["predicted"]),
        hovered({"type": "point", "filled": True, "size": 60}, encoding, measures, transform=kinds["measured"]),
    ]
    return Figure(
        title=title,
        subtitle=f"dashed: predicted; points: measured. Claims {', '.join(one.claims)}: {one.verdict}",
        description=f"{len(names)} series of the experiment {one.name}: {'; '.join(one.findings)}.",
        spec={"data": {"values": rows}, "layer": layers},
    )


def _measure(field: str, title: str) -> Measure:
    """An axis; its unit is the first word of its title that names one."""
    kind = next((kind for word, kind in _KINDS.items() if word in title), "number")
    return Measure(field=field, title=title, kind=kind)  # pyright: ignore[reportArgumentType]


_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>rackline lab</title>
<style>
:root { color-scheme: light dark }
h1 { font-size: clamp(1.5rem, 5vw, 2.1rem); line-height: 1.2 }
td:first-child { min-width: 11rem }
body { font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem }
.table { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem }
th, td { text-align: left; padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
figure { margin: 1rem 0; overflow-x: auto }
figure svg { max-width: 100%; height: auto; background: #fff }
.holds { color: light-dark(#0a6b2d, #5fd38d) }
.differs { color: light-dark(#b3261e, #ff8a80) }
.undecided { color: light-dark(#7a5c00, #e6c35c) }
</style>
</head>
<body>
<h1>The lecture's mechanisms, built small and measured</h1>
"""


def report_page(found: Sequence[Experiment]) -> str:
    """The report as HTML.

    Raises:
        InputError: nothing to draw the figures with (extra `plot`).
    """
    held = sum(one.verdict == "holds" for one in found)
    parts = [
        _HEAD,
        f"<p>{held} of {len(found)} experiments hold. Each reading has its prediction and where that comes from.</p>",
    ]
    for one in found:
        parts += [
            f'<h2 id="{one.name}">{escape(one.name)}: {escape(entry(one.name).shows)}</h2>',
            f'<p><strong class="{one.verdict}">{one.verdict}</strong> (claims {", ".join(one.claims)}; '
            f"{one.seconds:.0f} s on {escape(one.device)}, random seed {one.seed}{', quick' if one.quick else ''})</p>",
            *(f"<p>{escape(text[0].upper() + text[1:])}.</p>" for text in one.findings),
            *((f"<figure>{experiment_figure(one).svg()}</figure>",) if one.curves else ()),
            '<div class="table"><table><thead><tr><th>quantity</th><th>predicted</th><th>measured</th>',
            "<th>agrees</th><th>prediction from</th></tr></thead><tbody>",
            *(
                f'<tr><td>{escape(row.quantity)}</td><td class="number">{escape(predicted_text(row))}</td>'
                f'<td class="number">{escape(measured_text(row))}</td><td>{MARKS[row.holds][0] or "-"}</td>'
                f"<td>{escape(row.source)}</td></tr>"
                for row in one.rows
            ),
            "</tbody></table></div>",
        ]
    return "\n".join(parts) + "\n</body>\n</html>\n"
