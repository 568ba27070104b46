"""The serving engine of an answer next to the others: lines that say what matters, and a table of all."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType

from rackline.bands.engine_costs import OUTLIER, ComparedEngine, ComparedEngines
from rackline.display.column import Column, Sheet
from rackline.display.wording import Prose, money, percent, written
from rackline.search import Plan
from rackline.serving.stack import known_stack
from rackline.units import format_seconds, several


def unit_of(plan: Plan) -> str:
    """Return what the costs of a plan are counted in: $, chip-h or J."""
    if plan.objective == "joules":
        return "J"
    return "$" if plan.priced else "chip-h"


def engine_name(name: str) -> str:
    """Return the name of an engine as its authors write it.

    >>> engine_name("trtllm"), engine_name("mine")
    ('TensorRT-LLM', 'mine')
    """
    known = known_stack(name)
    return known.full_name or name if known is not None else name


def cost_text(row: ComparedEngine, unit: str) -> str:
    """Return the estimated cost under one engine."""
    if not math.isfinite(row.estimate.cost):
        return "-"
    return f"{written(row.estimate.cost)} J" if unit == "J" else money(row.estimate.cost, unit == "$")


def engines_lines(engines: ComparedEngines, unit: str = "$") -> list[str]:
    """Return which engine would cost less, which cost is suspect, and how the engine was taken if not by default.

    Args:
        unit: of the costs: $, chip-h or J.
    """
    lines: list[str] = []
    answers = [row for row in engines.rows if math.isfinite(row.estimate.cost)]
    if engines.taken_as == "cheapest estimate":
        name = engine_name(engines.taken)
        lines.append(f"engine {engines.taken}: {name} has the cheapest estimate of {several(len(answers), 'engine')}")
    lines += [_suspect_line(row, engines, unit) for row in engines.rows if row.row is not None]
    cheaper, own = engines.cheaper, engines.own.estimate
    if cheaper is not None:
        saved = percent(1.0 - cheaper.estimate.cost / own.cost)
        draws = f"{round(10.0 * (cheaper.chance or 0.0))} of 10 draws"
        name = cheaper.estimate.engine
        lines.append(f"{engine_name(name)} would cost {saved} less ({draws}): --engine {name}")
    elif not math.isfinite(own.cost) and (sound := [row for row in answers if not row.suspect]):
        name = sound[0].estimate.engine
        cost = cost_text(sound[0], unit)
        lines.append(f"{engine_name(name)} would serve it, for about {cost} per M output tokens: --engine {name}")
    return lines


def _suspect_line(row: ComparedEngine, engines: ComparedEngines, unit: str) -> str:
    """Return why the cost of an engine is not believed."""
    others = ", ".join(
        f"{engine_name(other.estimate.engine)} {cost_text(other, unit)}"
        for other in engines.rows
        if other is not row and math.isfinite(other.estimate.cost)
    )
    name, suspect = engine_name(row.estimate.engine), row.row
    line = f"{name} at {cost_text(row, unit)} is suspect ({others})"
    if suspect is None:
        return line
    step = "decode step" if suspect.phase == "decode" else "prefill"
    own_s, others_s = format_seconds(suspect.seconds), format_seconds(suspect.others_s)
    return f"{line}: {suspect.row} takes {own_s} of a {step}, {others_s} under the other engines"


def engines_table(engines: ComparedEngines, unit: str) -> RenderableType:
    """Return a table of every engine that was considered, cheapest first.

    Args:
        unit: of the costs: $, chip-h or J.
    """
    per = "J an output token" if unit == "J" else f"{unit} per M output, all-in"

    def cheaper(row: ComparedEngine) -> str:
        if row.estimate.engine == engines.taken:
            return "taken"
        return "-" if row.chance is None else percent(row.chance)

    def own(row: ComparedEngine) -> float | None:
        return row.estimate.own_share if math.isfinite(row.estimate.cost) else None

    def errors(row: ComparedEngine) -> str:
        return f"{row.estimate.errors.low:.2f} to {row.estimate.errors.high:.2f}"

    def evidence(row: ComparedEngine) -> str:
        return f"{row.estimate.errors.of.text()}, {row.estimate.errors.num_cases} cases"

    columns: list[Column[ComparedEngine]] = [
        Column("engine", "engine", getter=lambda row: f"{row.estimate.engine} {row.estimate.version}".strip()),
        Column("cost", per, "figures", lambda row: cost_text(row, unit)),
        Column("own_share", "own rows", "share", own),
        Column("errors", "errors", "figures", errors),
        Column("", "of", "words", evidence, priority=1),
        Column("", "cheaper in", "figures", cheaper),
    ]
    table = Sheet("engines", columns, engines.rows, "engines, by estimates without simulation")
    how = (
        "Costs include engines on chips that are left over. Own rows: the share of the decode step on kernels measured "
        "under the engine on this chip. Errors: measured over predicted time per output token, for 90 % of the "
        f"servers. Cheaper in: the share of draws from both errors in which it costs less than {engines.taken}. "
        f"An engine is suspect if its cost differs from the others by more than {OUTLIER:g} times."
    )
    reasons = [f"{row.estimate.engine}: {row.estimate.reason}" for row in engines.rows if row.estimate.reason]
    return Group(table, Prose("\n".join([how, *reasons]), style="dim"))
