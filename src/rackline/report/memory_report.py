"""Memory of a chip: what the fullest one holds, the changes that make it fit, and the stages of a training run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, assert_never

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.display.axes import (
    Layer,
    Measure,
    Row,
    colour,
    hovered,
    layered,
    limit,
    linear_axis,
    nothing_figure,
    stacked_bars,
)
from rackline.display.column import Column, Sheet, facts, spaced
from rackline.display.figure import Figure
from rackline.display.terminal import band_bar
from rackline.display.wording import Prose, composed, money, money_name, percent, share
from rackline.parallel.memory import FractionOf
from rackline.search.misfit import Change, ChipMemory, Misfit
from rackline.search.train import TrainPlan
from rackline.training.stage_memory import StageMemory
from rackline.units import format_bytes, format_seconds, format_usd

_TOKENS = {"output": "M output tokens", "trained": "M tokens"}
_LEFT = "free"
_BARS = 8  # of a figure


def memory_sheet(memory: ChipMemory) -> Sheet[Any]:
    """What the fullest chip holds, part after part, with the end of its memory marked."""
    rows = [
        (name, size, share(size, memory.hbm_bytes), (end - size, end))
        for (name, size), end in zip(memory.parts.items(), list(accumulate(memory.parts.values())), strict=True)
        if size > 0
    ]
    whole = max(memory.held_bytes, memory.hbm_bytes)

    def bar_of(row: tuple[str, float, float, tuple[float, float]]) -> Text:
        return band_bar(row[3][0], None, row[3][1], memory.hbm_bytes, end=whole)

    return Sheet(
        "memory",
        [
            Column("part"),
            Column("amount", "bytes", "B"),
            Column("share", "of the chip", "share"),
            Column("", "0 to ┃, its memory", getter=bar_of),
        ],
        rows,
        title=f"memory of the fullest chip, {memory.layout}: "
        f"{format_bytes(memory.held_bytes)} of {format_bytes(memory.hbm_bytes)}",
    )


def changes_sheet(found: Misfit) -> Sheet[Change]:
    """The changes that do, each with its time and dollars."""
    fitting = [one for one in found.changes if one.fits]
    training = found.unit == "trained"
    columns: list[Column[Change]] = [
        Column("setting", "change"),
        Column("num_chips", "chips", "whole"),
        Column("cost.step_s", "a step" if training else "a token", "s"),
    ]
    if any(one.cost is not None and one.cost.ttft_s is not None for one in fitting):
        columns.append(Column("cost.ttft_s", "first token", "s"))
    dollars = f"{money_name(found.priced)} per {'M tokens' if training else 'M output'}"
    columns.append(Column("cost.usd_per_mtok", dollars, ("USD" if found.priced else "1")))
    if any(one.usd is not None for one in fitting):
        columns += [Column("days", "days", "1"), Column("usd", "the run", "USD")]
    columns += [
        Column("usd_per_hour", "rent an hour", "USD", priority=1),
        Column("memory.free_bytes", "free", "B", priority=2),
        Column("gives_up", "gives up", "words"),
    ]
    title = "what makes it fit, cheapest first; what leaves out work last"
    of_steps = not training and all(one.cost is None or one.cost.ttft_s is None for one in fitting)
    caption = "of decode steps of the requests asked, one without --concurrency: a fuller batch costs less a token"
    return Sheet(
        "changes",
        columns,
        fitting,
        title=title if fitting else "no single change makes it fit",
        caption=caption if fitting and of_steps else "",
    )


def refused_lines(found: Misfit) -> Iterable[RenderableType]:
    """The changes that do not do, each with its reason."""
    refused = [f"{one.setting}: {one.reason}" for one in found.changes if not one.fits]
    if refused:
        yield Prose(f"tried as well: {'; '.join(refused)}", style="dim")


def _next(found: Misfit) -> Sheet[Any]:
    """What to change, with its dollars and time; what leaves out work in a line of its own."""

    def told(one: Change | None) -> Text | str:
        if one is None or one.cost is None:
            return ""
        each = "a step" if found.unit == "trained" else "a token"
        parts = [f"{money(one.cost.usd_per_mtok, found.priced)} per {_TOKENS[found.unit]}"]
        parts += [] if one.usd is None else [f"{format_usd(one.usd)} the run"]
        parts.append(f"{format_seconds(one.cost.step_s)} {each}")
        parts += [f"gives up {one.gives_up}"] if one.gives_up else []
        return composed((one.setting, "bold"), f": {', '.join(parts)}")

    best, less = found.cheapest, found.less
    if best is None and less is None:
        return facts("next", [("next", "no single change makes it fit")])
    return facts("next", [("next", told(best)), ("or" if best else "next", told(less))])


def misfit_report(found: Misfit) -> Group:
    """What to change, memory by part, the changes that do, and those that do not."""
    changes = [changes_sheet(found)] if any(one.fits for one in found.changes) else []
    return spaced([_next(found), memory_sheet(found.memory), *changes, *refused_lines(found)])


def memory_figure(memory: ChipMemory, title: str, found: Misfit | None = None) -> Figure:
    """Memory of the fullest chip by part, as it was asked for and with each change, against the chip.

    Args:
        found: changes that were tried; None where it fits.
    """
    bars = {memory.layout if found is None else f"as asked: {memory.layout}": dict(memory.parts)}
    marks = {f"chip: {format_bytes(memory.hbm_bytes)}": memory.hbm_bytes}
    for one in (found.changes if found is not None else ())[:_BARS]:
        if one.memory is not None:
            bars[f"{one.setting}{'' if one.fits else ' (does not do)'}"] = dict(one.memory.parts)
            if one.memory.hbm_bytes != memory.hbm_bytes:
                marks[f"{one.cluster}: {format_bytes(one.memory.hbm_bytes)}"] = one.memory.hbm_bytes
    if memory.free_bytes > 0:
        bars[next(iter(bars))][_LEFT] = memory.free_bytes
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    held, has = format_bytes(memory.held_bytes), format_bytes(memory.hbm_bytes)
    best = None if found is None else found.cheapest
    return stacked_bars(
        bars,
        parts,
        Measure(field="held_bytes", title="memory of the fullest chip", kind="bytes"),
        title=title,
        subtitle="" if found is None else "as asked, and with each change; those that fit first",
        description=f"A chip holds {held} of {has}." + ("" if best is None else f" Cheapest change: {best.setting}."),
        marks=marks,
    )


MOST_STAGES = 5
"""Stages that table and figure show: the first, the last, the fullest, and neighbours of them."""


def shown_stages(stages: tuple[StageMemory, ...]) -> list[StageMemory]:
    """The first and the last stage, the fullest, and of the others those that come first."""
    wanted = {0, len(stages) - 1, max(stages, key=lambda one: one.total_bytes).stage}
    for stage in stages:
        if len(wanted) >= MOST_STAGES:
            break
        wanted.add(stage.stage)
    return [stages[index] for index in sorted(wanted)]


def stages_sheet(plan: TrainPlan) -> Sheet[StageMemory] | None:
    """Memory of a chip of each stage by part, and when it is fullest; None without a pipeline."""
    stages = plan.stages
    if len(stages) < 2:
        return None
    parts = {
        "dense_bytes": "dense",
        "expert_bytes": "experts",
        "gradient_bytes": "gradients",
        "optimizer_bytes": "optimiser",
        "activation_bytes": "activations",
        "logit_bytes": "logits",
    }
    columns: list[Column[StageMemory]] = [
        Column("stage", "stage", "whole"),
        Column("layers", "layers", "whole", priority=1),
        *(
            Column(key, title, "B", priority=2)
            for key, title in parts.items()
            if any(getattr(one, key) > 0.0 for one in stages)
        ),
        Column("total_bytes", "all", "B", note="with driver, buffers and fragments"),
        Column("peak_s", "fullest at", "s", priority=3),
        Column("peak_in", "in", "words", priority=4),
    ]
    shown = shown_stages(stages)
    cut = "" if len(shown) == len(stages) else f" ({len(shown)} of {len(stages)} stages)"
    return Sheet("stages", columns, shown, title=f"memory of a chip of each stage at its fullest{cut}")


def memory_over_time(plan: TrainPlan) -> Figure:
    """Memory of a chip of the first, the last and the fullest stages over the passes of a step."""
    title = f"{plan.system.model.name} on {plan.system.cluster.num_chips:,} chips: memory over a step"
    if not plan.best:
        return nothing_figure(title, plan.reason)
    shown, has = shown_stages(plan.stages), plan.system.cluster.chip.hbm_bytes
    rows: list[Row] = [
        {"stage": f"stage {one.stage}", "time_s": time, "held_bytes": held}
        for one in shown
        for time, held in zip(one.times_s, one.held_bytes, strict=True)
    ]
    names = [f"stage {one.stage}" for one in shown]
    clock = Measure(field="time_s", title="time in the step", kind="seconds")
    held = Measure(field="held_bytes", title="memory of a chip", kind="bytes")
    y = linear_axis(held, [0.0, has, *(row["held_bytes"] for row in rows)])
    x = linear_axis(clock, [row["time_s"] for row in rows], margin=0.0)
    encoding: Layer = {"x": x, "y": y, "color": colour(names, "stage")}
    line = hovered({"type": "line", "interpolate": "step-after", "strokeWidth": 1.6}, encoding, [clock, held])
    peaks: list[Row] = [
        {"stage": f"stage {one.stage}", "time_s": one.peak_s, "held_bytes": one.total_bytes, "in": one.peak_in}
        for one in shown
    ]
    full = max(shown, key=lambda one: one.total_bytes)
    when = f"stage {full.stage} is fullest {format_seconds(full.peak_s)} into the step, in the {full.peak_in}"
    points = hovered(
        {"type": "point", "filled": True, "size": 60},
        encoding,
        [Measure(field="stage", title=""), clock, held, Measure(field="in", title="in")],
        data={"values": peaks},
    )
    return Figure(
        title=title,
        subtitle=f"{when}: {format_bytes(full.total_bytes)}",
        description=f"Memory of a chip of {len(shown)} of {len(plan.stages)} stages over the first passes of a step of "
        f"{plan.best[0].layout.label()}; {when}: {format_bytes(full.total_bytes)} of {format_bytes(has)}.",
        spec=layered(rows, line, points, *limit("y", y, has, f"chip: {format_bytes(has)}")),
        width=720,
        height=320,
    )


def memory_share(fraction: float, of: FractionOf) -> str:
    """Return what a server's memory fraction is a share of, in words.

    >>> memory_share(0.9, "free")
    '90 % of the free HBM for KV'
    """
    match of:
        case "memory":
            return f"{percent(fraction)} of HBM"
        case "free":
            return f"{percent(fraction)} of the free HBM for KV"
        case "static":
            return f"{percent(fraction)} of HBM for weights and KV"
        case _:
            assert_never(of)
