"""One pass explained: its inputs, its rows with formula and coefficients, and the ideal roofline beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rackline.bands.spread import Likely
from rackline.display.column import SECTION, Column, Sheet, spaced, stacked
from rackline.display.terminal import band_bar, bar
from rackline.display.wording import (
    RESOURCE_STYLES,
    Box,
    Unit,
    composed,
    flop,
    percent,
    resource_text,
    share,
    short_count,
    size,
    written,
)
from rackline.hardware import wall_w
from rackline.parallel import Deployment, Layout, MemoryUse
from rackline.passes import UNIT, Batch, PassTable, PassTime, Row, RowTime, StepPolicy
from rackline.passes.breakdown import PassEnergy, pass_energy
from rackline.report.trust import trust
from rackline.system import System
from rackline.units import format_bytes, format_seconds, format_watts, plural, several

_SHOWN = 0.01  # share of a pass from which on what a server adds to it is printed
_NAMED = 4  # rows whose share of the energy is printed
_BAND = 16  # characters of the bar of a band
_FEATURE, _GAP = 34, 2  # columns of the terminal for a feature and its number, and between two
_RESOURCES = {"compute": "FLOP", "hbm": "HBM", "scale_up": "scale-up", "scale_out": "scale-out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRow:
    """One row, under the calibration and on the blackboard.

    Args:
        row: its formula and coefficients.
        time: under the calibration.
        ideal: under `blackboard` with unit calibration.
        joules: energy that one chip takes for it; None where nothing is known of its power [J].
    """

    json_keys: ClassVar = (
        "name=row.name",
        "group=row.group",
        "class=row.op_class",
        "dtype=row.dtype",
        "stream=row.stream",
        "formula=row.formula",
        "used=time.used",
        "coefficients",
        "amounts=time.amounts",
        "resource_s=time.resource_s",
        "overhead_s=time.overhead_s",
        "seconds",
        "binds=time.binds",
        "evidence=time.evidence",
        "origin=time.origin",
        "joules",
        "blackboard_used=ideal.used",
        "blackboard_s",
        "blackboard_binds=ideal.binds",
    )

    row: Row
    time: RowTime
    ideal: RowTime
    joules: float | None = None

    @property
    def coefficients(self) -> dict[str, dict[str, float]]:
        """Resource → feature → FLOP or bytes per unit of it."""
        return {resource: coefficients(self.row, resource) for resource in self.time.amounts}

    @property
    def seconds(self) -> float:
        """What it adds to the pass [s]."""
        return self.time.seconds if self.time.used else 0.0

    @property
    def blackboard_s(self) -> float:
        """What it adds on the blackboard [s]."""
        return self.ideal.seconds if self.ideal.used else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One pass of a deployment, under its calibration and on the blackboard.

    Args:
        layout_choice: how the layout was chosen, in a sentence.
        batch_size: sequences that decode on one replica [sequences].
        batch: what one rank works on.
        table: the rows with their coefficients.
        time, ideal: the pass under the calibration, and under `blackboard` with unit calibration.
        server_s: the pass as a server of the stack runs it: ranks wait for each other, prompts take longer than their
            kernels, passes outside of a CUDA graph are launched kernel by kernel [s].
        memory: what the fullest chip holds.
        energy: of the pass as a server runs it, on one chip; None where nothing is known of its power.
    """

    json_keys: ClassVar = (
        "*deployment",
        "layout_choice",
        "batch_size",
        "sequences_per_rank",
        "context_len",
        "prefill_tokens",
        "memory",
        "fits",
        "seconds=time.seconds",
        "server_s",
        "joules=energy.joules",
        "chip_w=energy.chip_w",
        "wall_w",
        "joules_per_token",
        "binds=time.binds",
        "policy=time.policy",
        "evidence=time.evidence",
        "host_s=time.host_s",
        "by_resource_s=time.by_resource",
        "by_group_s=time.by_group()",
        "features=time.features",
        "blackboard.seconds=ideal.seconds",
        "blackboard.binds=ideal.binds",
        "blackboard.by_resource_s=ideal.by_resource",
        "rows",
        "assumptions=time.assumptions",
    )

    deployment: Deployment
    layout_choice: str
    batch_size: int
    batch: Batch
    table: PassTable
    time: PassTime
    ideal: PassTime
    server_s: float
    memory: MemoryUse
    energy: PassEnergy | None = None

    @classmethod
    def of(
        cls,
        system: System,
        layout: Layout,
        batch: Batch,
        *,
        batch_size: int,
        memory: MemoryUse,
        layout_choice: str = "given",
        policy: StepPolicy | None = None,
    ) -> Explanation:
        """Evaluate the pass both ways."""
        engine = system.engine(layout)
        table = engine.table
        time, server_s = table.time(batch, policy), float(engine.pass_s(batch, table.time_table(policy)))
        return cls(
            deployment=system.deployment(layout),
            layout_choice=layout_choice,
            batch_size=batch_size,
            batch=batch,
            table=table,
            time=time,
            ideal=table.with_calibration(UNIT).time(batch, "blackboard"),
            server_s=server_s,
            memory=memory,
            energy=pass_energy(time, table.chip, server_s),
        )

    @property
    def wall_w(self) -> float | None:
        """Power at the machine's plug, with its share of host, fans and switches [W]."""
        return wall_w(self.deployment.cluster, self.energy.chip_w) if self.energy else None

    @property
    def joules_per_token(self) -> float | None:
        """Energy at the plug of all chips of a replica, over the tokens of all its ranks in the pass [J]."""
        layout = self.deployment.layout
        tokens = float(np.asarray(self.batch.tokens)) * layout.attention_dp
        if self.wall_w is None or not tokens:
            return None
        return self.wall_w * self.server_s * layout.chips_per_replica / layout.pp / tokens

    @property
    def sequences_per_rank(self) -> float:
        """Sequences that decode on one rank [sequences]."""
        return float(np.asarray(self.batch.decode_sequences))

    @property
    def context_len(self) -> float:
        """Tokens that each of them has in the cache [tokens]."""
        return float(np.asarray(self.batch.context_len))

    @property
    def prefill_tokens(self) -> float:
        """Prompt tokens of one rank [tokens]."""
        return float(np.asarray(self.batch.prefill_tokens))

    @property
    def fits(self) -> bool:
        """Whether the fullest chip has room for it."""
        return float(self.memory.free) >= 0

    @property
    def rows(self) -> tuple[ExplainedRow, ...]:
        """The rows that count, under the calibration or on the blackboard."""
        joules = self.energy.rows if self.energy else (None,) * len(self.table.rows)
        rows = zip(self.table.rows, self.time.rows, self.ideal.rows, joules, strict=True)
        return tuple(
            ExplainedRow(row=one, time=at, ideal=best, joules=energy)
            for one, at, best, energy in rows
            if at.used or best.used
        )


def coefficients(row: Row, resource: str) -> dict[str, float]:
    """Feature → FLOP or bytes per unit of it, of a row of one layout."""
    amounts = {"compute": row.compute, "hbm": row.hbm, "scale_up": row.scale_up, "scale_out": row.scale_out}
    return {name: float(np.asarray(value)) for name, value in amounts[resource].items()}


def explain_report(
    explanation: Explanation,
    *,
    band: tuple[float, float] | None = None,
    band_of: str = "",
    likely: Likely | None = None,
    width: int,
) -> Group:
    """Everything that `rackline explain` prints.

    Args:
        band: ends of the interval that held 90 % of measured passes [s]; None where none were measured.
        band_of: which passes these were.
        likely: computed and likely time of the pass in a server.
        width: columns of the terminal.
    """
    time = explanation.time
    title = f"{time.calibration} calibration, {time.policy} policy, beside the blackboard"
    return spaced(
        [
            _headline(explanation, band, band_of, likely),
            stacked(pass_sheet(time, title, explanation.ideal), resources_line(time), _energy(explanation)),
            _features(time, width),
            _formulas(explanation),
            trust(explanation.deployment.calibration, explanation.deployment.cluster.chip, time.rows),
        ]
    )


def likely_line(likely: Likely) -> str:
    """Return the likely time of a pass, and how it follows from the computed one, in one sentence."""
    kind, number = likely.spread.of.text(), several(likely.spread.num_laboratories, "laboratory", "laboratories")
    if not likely.differs:
        return f"likely the same on a server: {number} measured no usual difference ({kind})"
    slower = "slower" if likely.likely_s > likely.computed_s else "faster"
    share = percent(abs(likely.likely_s / likely.computed_s - 1.0))
    return f"likely {format_seconds(likely.likely_s)}: such servers are usually {share} {slower} ({kind}, {number})"


def _headline(explanation: Explanation, band: tuple[float, float] | None, band_of: str, likely: Likely | None) -> Box:
    """The time of the pass and its band, then what it is of."""
    deployment, memory = explanation.deployment, explanation.memory
    layout, time, ideal = deployment.layout, explanation.time, explanation.ideal
    seconds, server_s = time.seconds, explanation.server_s
    over = f"{written(seconds / ideal.seconds)} times the ideal" if ideal.seconds else ""
    lines = [
        composed(
            (f"{format_seconds(seconds)} a pass", "bold green"),
            " · ",
            Text.assemble(resource_text(time.binds), style="bold"),
            (" binds", "bold green"),
            f" · {f'{over}, {format_seconds(ideal.seconds)}' if over else 'no ideal time'}",
        )
    ]
    if server_s - seconds > _SHOWN * seconds:
        why = "ranks wait for each other, prompts and host take longer"
        lines.append(Text(f"{format_seconds(server_s)} in a server: {why}"))
    if likely is not None:
        lines.append(Text(likely_line(likely)))
    if band is not None:
        low, high = band
        lines.append(
            composed(
                (f"{format_seconds(low)} to {format_seconds(high)} ", "bold"),
                band_bar(low, server_s, high, width=_BAND),
                (f" 90 % of measured passes ({band_of})", "dim"),
            )
        )
    chips = f"{layout.num_chips} {plural(layout.num_chips, 'chip')}"
    lines.append(Text(f"{layout.label()} · {deployment.precision.short()} · {chips}"))
    if explanation.layout_choice != "given":
        lines.append(Text(f"layout not given: {explanation.layout_choice}", style="yellow"))
    prefill = explanation.prefill_tokens
    sequences = (
        f"{several(explanation.batch_size, 'sequence')} decoding on a replica, {explanation.sequences_per_rank:g}"
    )
    said = f"{sequences} on each rank, at {short_count(explanation.context_len)} context"
    needs, has = format_bytes(float(memory.used)), format_bytes(float(memory.usable))
    lines += [
        Text(said + (f"; {short_count(prefill)} prompt tokens on each rank" if prefill else "")),
        Text(f"the fullest chip holds {needs}, {format_bytes(float(memory.free))} stay free")
        if explanation.fits
        else Text(f"does not fit: the fullest chip needs {needs}, has {has} usable", style="bold red"),
        *(Text(note, style="yellow") for note in deployment.precision.notes),
    ]
    title = f"{deployment.model.name} on {deployment.cluster.name} ({deployment.cluster.chip.name})"
    return Box(Text("\n").join(lines), title)


def _features(time: PassTime, width: int) -> Sheet[Any]:
    """What the rows are multiplied with, in as many pairs of columns as there is room for."""
    shown = [(name, value) for name, value in time.features.items() if value and name != "1"]
    pairs = max((width + _GAP) // (_FEATURE + _GAP), 1)

    rows = [
        tuple(cell for name, value in shown[start : start + pairs] for cell in (name, _number(value)))
        for start in range(0, len(shown), pairs)
    ]
    columns: list[Column[Any]] = [Column("feature", style="dim"), Column("value", unit="figures")]
    return Sheet("features", columns * pairs, rows, title="numbers put in, busiest rank")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else written(value)


def _energy(explanation: Explanation) -> Text | None:
    """Energy of the pass, and the rows that take most of it."""
    found, table = explanation.energy, explanation.table
    if found is None:
        return None
    power, at = table.chip.power, ""
    if power is not None and found.capped:
        cap = table.chip.power_cap_w
        at = f" (at {'its limit' if cap is None else f'the cap of {cap:g} W'})"
    most = sorted(zip(table.rows, found.rows, strict=True), key=lambda one: -one[1])[:_NAMED]
    rows = ", ".join(f"{row.name} {percent(joules / found.joules)}" for row, joules in most if joules)
    other = None
    if power is not None and power.other_generation:
        other = (f"\n  power by the numbers of {power.origin}: none measured on this generation", "bold yellow")
    return composed(
        ("energy ", "bold"),
        f"{written(found.joules)} J a chip, {format_watts(found.chip_w)}{at}, "
        f"{format_watts(explanation.wall_w or 0.0)} with its share of the machine; "
        f"{written(explanation.joules_per_token or 0.0)} J a token\n",
        (f"  most of it: {rows}", "dim"),
        other,
    )


def _formulas(explanation: Explanation) -> Group:
    """What each row is made of: formula, amounts, and whose numbers time it."""
    lines: list[RenderableType] = [Text("where amounts and numbers come from", style="bold italic")]
    stacks = bool(explanation.deployment.calibration.operations)  # none for the ideal roofline
    for row, time in zip(explanation.table.rows, explanation.time.rows, strict=True):
        if not time.used or not time.seconds:
            continue
        head = composed((row.name, "bold"), (f"  {row.formula}", "dim"))
        below = [
            amount_text(row, resource, amount, explanation.time.features)
            for resource, amount in time.amounts.items()
            if amount
        ]
        if time.overhead_s:
            below.append(Text(f"launches and message steps {format_seconds(time.overhead_s)}"))
        if stacks:
            error = explanation.table.row_numbers(row).median_error
            off = "" if math.isnan(error) else f"; {percent(error)} off on shapes that the fit did not see"
            style = "dim" if time.evidence == "measured" else "yellow"
            below.append(Text(f"{time.evidence}: {time.origin}, {row.dtype}{off}", style=style))
        lines += [Padding(head, (0, 0, 0, 1)), *(Padding(line, (0, 0, 0, 3)) for line in below)]
    return Group(*lines)


def amount_text(row: Row, resource: str, amount: float, features: dict[str, float]) -> Text:
    """An amount as the sum that it is: coefficients times numbers put in."""
    write = flop if resource == "compute" else size
    terms = [
        write(value) if name == "1" else f"{write(value)} × {name} {_number(features.get(name, 0.0))}"
        for name, value in coefficients(row, resource).items()
        if value and features.get(name, 0.0)
    ]
    return composed(f"{_RESOURCES[resource]} {write(amount)}", (f" = {' + '.join(terms)}", "dim") if terms else None)


Cells = Mapping[str, Any]
LEAST_SHARE = 0.002
"""Share of a pass below which rows are added up in one line, where the ideal does not stand beside them."""
_SUM = (
    "total = the longest of compute, HBM and link + fixed + rest: what the shorter ones leave exposed, and the ramp of "
    "mid-size messages"
)
_POLICIES = {"serial": "sum of rows", "overlap": "streams overlap", "blackboard": "longest"}


def resources_line(time: PassTime) -> Text:
    """Time of each resource as if it worked alone, what binds first."""
    ordered = sorted(time.by_resource.items(), key=lambda item: -item[1])
    named = [composed(resource_text(name), f" {format_seconds(value)}") for name, value in ordered if value > 0]
    return composed("each resource alone: ", Text(" · ").join(named))


def pass_sheet(time: PassTime, title: str, ideal: PassTime | None = None) -> Sheet[Any]:
    """Rows of a pass, with their share and what binds.

    Args:
        title: of the table.
        ideal: the same pass on the blackboard (unit calibration): each row stands beside its own there, in the order
            of the layers. Without it the longest rows come first and the smallest are one.
    """
    unit = Unit.of(time.seconds)
    seconds = f"s in {unit.name}"
    columns: list[Column[Cells]] = [
        Column("name", "operation"),
        Column("dtype", "type", priority=7),
        Column("amounts.compute", "FLOP", "figures", priority=8),
        Column("amounts.hbm", "HBM bytes", "figures", priority=8),
        Column("amounts.link", "link bytes", "figures", priority=8),
        Column("resource_s.compute", "compute", seconds, priority=1),
        Column("resource_s.hbm", "HBM", seconds, priority=1),
        Column("resource_s.link", "link", seconds, priority=1),
        Column("overhead_s", "fixed", seconds, priority=1, note="launches and message steps"),
        Column("rest_s", "rest", seconds, priority=1, note="what the shorter resources leave exposed, and the ramp"),
        Column("seconds", "total", seconds, style="bold"),
        Column("share", "share", "share", priority=4),
        Column("", "", getter=lambda row: row.get("bar", ""), priority=6),
        Column("binds", "binds", priority=2),
    ]
    if ideal is not None:
        columns += [
            Column("blackboard_s", "ideal", seconds, style="cyan", note="on the ideal roofline"),
            Column("blackboard_binds", "binds", priority=5),
        ]
    whole: Cells = {
        "name": f"pass ({_POLICIES[time.policy]})",
        "seconds": time.seconds,
        "binds": resource_text(time.binds),
    }
    if ideal is not None:
        whole = {**whole, "blackboard_s": ideal.seconds, "blackboard_binds": resource_text(ideal.binds)}
    rows = [*_rows(time, ideal), SECTION, whole]
    return Sheet("pass", columns, rows, title=f"{title} (times in {unit.name})", caption=_SUM)


def _rows(time: PassTime, ideal: PassTime | None) -> Iterator[Cells]:
    total = sum(row.seconds for row in time.rows if row.used)
    most = max((row.seconds for row in time.rows if row.used), default=1.0)
    if ideal is not None:
        for row, other in zip(time.rows, ideal.rows, strict=True):
            if (row.used and row.seconds) or (other.used and other.seconds):
                best = (other.seconds, resource_text(other.binds)) if other.used else ("unused", "")
                yield {**_cells(row, total, most), "blackboard_s": best[0], "blackboard_binds": best[1]}
    else:
        used = sorted((row for row in time.rows if row.used and row.seconds > 0), key=lambda row: -row.seconds)
        yield from (_cells(row, total, most) for row in used if row.seconds >= LEAST_SHARE * total)
        if rest := [row.seconds for row in used if row.seconds < LEAST_SHARE * total]:
            yield {"name": f"{len(rest)} smaller", "seconds": sum(rest), "share": share(sum(rest), total)}
    if time.host_s:
        yield {"name": "host", "seconds": time.host_s}


def _cells(row: RowTime, total: float, most: float) -> Cells:
    times, amounts = row.resource_s, row.amounts
    if not row.used:
        return {"name": row.name, "dtype": row.dtype, "seconds": "unused", "binds": ""}
    return {
        "name": row.name,
        "dtype": row.dtype,
        "amounts.compute": flop(amounts.get("compute", 0.0)),
        "amounts.hbm": size(amounts.get("hbm", 0.0)),
        "amounts.link": size(link(amounts)),
        "resource_s.compute": times.get("compute", 0.0),
        "resource_s.hbm": times.get("hbm", 0.0),
        "resource_s.link": max(times.get("scale_up", 0.0), times.get("scale_out", 0.0)),
        "overhead_s": row.overhead_s,
        "rest_s": row.rest_s,
        "seconds": row.seconds,
        "share": share(row.seconds, total),
        "bar": Text(bar(share(row.seconds, most), 8), style=RESOURCE_STYLES.get(row.binds, "")),
        "binds": resource_text(row.binds),
    }


def link(values: Mapping[str, float]) -> float:
    """Scale-up and scale-out together."""
    return values.get("scale_up", 0.0) + values.get("scale_out", 0.0)
