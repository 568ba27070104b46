"""Memory of the stages of a training run: a table of its parts, and a figure of it over a step."""

from __future__ import annotations

from rackline.report.axes import Layer, Measure, Row, colour, hovered, layered, limit, linear_axis, nothing_figure
from rackline.report.column import Column, Sheet
from rackline.report.figure import Figure
from rackline.search.train import TrainPlan
from rackline.training.stage_memory import StageMemory
from rackline.units import format_bytes, format_seconds

MOST_STAGES = 5
"""Stages that table and figure show: the first, the last, the fullest, and neighbours of them."""


def shown_stages(stages: tuple[StageMemory, ...]) -> list[StageMemory]:
    """The first and the last stage, the fullest, and of the others those that come first."""
    fullest = max(stages, key=lambda one: one.total_bytes)
    wanted = {0, len(stages) - 1, fullest.stage}
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
