"""Figures of a step of reinforcement learning: both sides over time with the tail, and the answers that still run."""

from __future__ import annotations

from rackline.posttraining.plan import RlPlan
from rackline.report.axes import Measure, linear_axis
from rackline.report.bars import nothing_figure
from rackline.report.figure import Figure
from rackline.report.layers import Layer, Row, colour, hovered
from rackline.units import format_seconds

_TAIL = "longest answers"


def rl_gantt(plan: RlPlan) -> Figure:
    """What each side does when; rollouts end in their tail, after half of the answers are done."""
    title = f"{plan.job.model.name}: one step of reinforcement learning"
    best = plan.best
    if best is None:
        return nothing_figure(title, plan.reason)
    rows: list[Row] = []
    for part in best.parts:
        end = part.start_s + part.seconds
        cuts = [(part.name, part.start_s, end)]
        if part.name == "rollouts":
            half = part.start_s + min(best.rollout.half_s, part.seconds)
            cuts = [("rollouts", part.start_s, half), (_TAIL, half, end)]
        rows += [
            {"side": part.side, "part": name, "start_s": start, "end_s": stop}
            for name, start, stop in cuts
            if stop > start
        ]
    start = Measure(field="start_s", title="time in the step", kind="seconds")
    stop = Measure(field="end_s", title="until", kind="seconds")
    used = list(dict.fromkeys(str(row["part"]) for row in rows))
    encoding: Layer = {
        "x": linear_axis(start, [best.seconds, *(float(row["end_s"]) for row in rows)], margin=0.0),
        "x2": {"field": "end_s"},
        "y": {"field": "side", "type": "ordinal", "title": "chips", "scale": {"paddingInner": 0.2}},
        "color": colour(used, "part"),
    }
    shown = [Measure(field="part", title="what"), Measure(field="side", title="chips"), start, stop]
    words = ", ".join(f"{part.name} {format_seconds(part.seconds)}" for part in best.parts)
    how = "on shared chips" if plan.schedule.colocated else f"on {best.gen_chips} and {best.train_chips} chips"
    return Figure(
        title=title,
        subtitle=f"{format_seconds(best.seconds)} a step, {plan.schedule.mode} {how}; bound by {best.binds}",
        description=f"A step of {format_seconds(best.seconds)}: {words}.",
        spec={"data": {"values": rows}, "layer": [hovered({"type": "bar"}, encoding, shown)]},
        width=760,
        height=110,
    )


def running_figure(plan: RlPlan) -> Figure:
    """Answers that still run over the time of the rollouts."""
    title = f"{plan.job.model.name}: answers that still run"
    best = plan.best
    if best is None:
        return nothing_figure(title, plan.reason)
    rollout = best.rollout
    step = max(1, rollout.clock_s.size // 400)
    rows: list[Row] = [
        {"clock_s": float(clock), "running": float(count)}
        for clock, count in zip(rollout.clock_s[::step], rollout.running[::step], strict=True)
    ]
    rows.append({"clock_s": float(rollout.clock_s[-1]), "running": 0.0})
    clock = Measure(field="clock_s", title="time of the rollouts", kind="seconds")
    running = Measure(field="running", title="answers running", kind="count")
    encoding: Layer = {
        "x": linear_axis(clock, [float(rollout.clock_s[-1])], margin=0.0),
        "y": linear_axis(running, [float(rollout.running.max())], margin=0.0),
    }
    return Figure(
        title=title,
        subtitle=f"half are done after {format_seconds(rollout.half_s)}, the last after "
        f"{format_seconds(float(rollout.clock_s[-1]))}",
        description=f"The number of running answers falls from {float(rollout.running.max()):,.0f} to none in "
        f"{format_seconds(float(rollout.clock_s[-1]))}.",
        spec={
            "data": {"values": rows},
            "layer": [hovered({"type": "line", "interpolate": "step-after"}, encoding, [clock, running])],
        },
    )
