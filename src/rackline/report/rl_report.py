"""The terminal report and the figures of a step of reinforcement learning."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.posttraining.plan import RlPlan, RlRun, RlStep
from rackline.posttraining.updates import Updates
from rackline.report.axes import Layer, Measure, Row, colour, hovered, linear_axis, nothing_figure
from rackline.report.column import Column, Sheet, spaced
from rackline.report.figure import Figure
from rackline.report.wording import Box, Prose, bar, percent
from rackline.units import format_bytes, format_count, format_seconds, format_usd

BUDGET_MFU = 0.3 * 0.4
"""What `budget` assumes by default for reinforcement learning: 0.3 of the 40 % of pre-training (lecture, C86)."""


def rl_report(plan: RlPlan, *, width: int) -> Group:
    """Everything that `rackline rl` prints.

    Args:
        width: columns of the terminal.
    """
    if plan.best is None or plan.run is None:
        return spaced([Box(Text(f"Nothing fits. {plan.reason}"), _title(plan), style="red")])
    best = plan.best
    parts: list[RenderableType] = [_headline(plan, best), _sides(plan, best), _time(best), _tail(best)]
    parts.append(_twice(plan))
    if len(plan.others) > 1:
        parts.append(_splits(plan))
    parts.append(_run(plan, plan.run))
    return spaced(parts)


def _title(plan: RlPlan) -> str:
    job = plan.job
    return f"{job.model.name} on {job.cluster.num_chips:,} × {job.cluster.chip.name} ({job.cluster.name})"


def _headline(plan: RlPlan, best: RlStep) -> Box:
    job, schedule = plan.job, plan.schedule
    body = Text()
    body.append(format_seconds(best.seconds), style="bold")
    body.append(f" a step · bound by {best.binds} · ")
    body.append(
        f"{format_count(best.rollout.tokens / best.seconds / job.cluster.num_chips)} generated tokens/s a chip\n"
    )
    how = [schedule.mode, "shared chips" if schedule.colocated else f"{best.gen_chips} + {best.train_chips} chips"]
    how += [f"staleness {schedule.staleness}"] if schedule.mode == "async" else []
    how += ["weights change in flight"] if schedule.in_flight else []
    how += ["partial rollouts"] if schedule.partial else []
    body.append(f"{job.algorithm.upper()}, {', '.join(how)}")
    lengths = job.lengths
    asked = (
        f"{job.prompts:,} × {job.generations} answers of {lengths.mean:,.0f} tokens on average, at most "
        f"{lengths.longest:,.0f}"
    )
    return Box(body, _title(plan), asked)


def _sides(plan: RlPlan, best: RlStep) -> Sheet[Any]:
    rollout, updates = best.rollout, best.updates
    label = best.train_layout.label()
    if best.train_layout.recompute != "none":
        label += f" · {best.train_layout.recompute} recompute"
    held = f"{min(rollout.slots, rollout.per_rank)} of {rollout.per_rank} answers of a rank run at once"
    packed = f"{updates.packs} packed sequences of {plan.job.training.seq_len:,} tokens, {plan.job.updates} "
    packed += f"update{'' if plan.job.updates == 1 else 's'}"
    rows = [("rollouts", best.gen_chips, best.gen_layout.label(), held), ("training", best.train_chips, label, packed)]
    columns: list[Column[Any]] = [
        Column("side", "side"),
        Column("chips", "chips", "whole"),
        Column("layout", "layout", "words"),
        Column("holds", "holds", "words"),
    ]
    return Sheet("sides", columns, rows, "both sides", _memory(updates))


def _memory(updates: Updates) -> str:
    """Memory of the fullest chip that trains, with what other models take of it."""
    parts = [("the critic", updates.critic_bytes), ("the reward model", updates.reward_bytes)]
    others = ", ".join(f"{format_bytes(size)} of {name}" for name, size in parts if size)
    return f"an update takes {format_bytes(updates.total_bytes)} of a chip{f', with {others}' if others else ''}"


def _time(best: RlStep) -> Sheet[Any]:
    rows = [(part.name, part.side, part.seconds) for part in best.parts]
    rows += [("waits", side, seconds) for side, seconds in best.idle_s.items() if seconds > 1e-9]
    columns: list[Column[Any]] = [
        Column("part", "part"),
        Column("side", "side"),
        Column("seconds", "time", "s"),
        Column("share", "share", "share", lambda row: row[2] / best.seconds),
        Column("", "", getter=lambda row: bar(row[2] / best.seconds)),
    ]
    return Sheet("step", columns, rows, title=f"where the {format_seconds(best.seconds)} of a step go")


def _tail(best: RlStep) -> Prose:
    rollout = best.rollout
    return Prose(
        f"Half of the answers are done after {format_seconds(rollout.half_s)} of rollouts that start together; the "
        f"rest take {format_seconds(max(rollout.tail_s, 0.0))} more, to the longest."
    )


def _twice(plan: RlPlan) -> Sheet[Any]:
    rows = sorted(plan.twice.items(), key=lambda item: -item[1])
    columns: list[Column[Any]] = [Column("part", "part"), Column("ratio", "step, times as fast", "ratio")]
    return Sheet("twice", columns, rows, title="what a part twice as fast gives")


def _splits(plan: RlPlan) -> Sheet[Any]:
    rows = [(split, plan.job.cluster.num_chips - split, seconds) for split, seconds in plan.others.items()]
    columns: list[Column[Any]] = [
        Column("rollouts", "rollouts", "whole"),
        Column("training", "training", "whole"),
        Column("seconds", "step", "s"),
    ]
    return Sheet("splits", columns, rows, title="other splits of the chips")


def _run(plan: RlPlan, run: RlRun) -> Prose:
    paid = "" if run.usd is None else f", {format_usd(run.usd)}"
    text = Text(f"{run.steps:,.0f} steps: {run.days:,.2f} days{paid}; {format_count(run.generated_tokens)} tokens ")
    text.append(f"generated, {format_count(run.trained_tokens)} trained on. ")
    text.append(
        f"A generated token costs {run.flop_per_param_token:.1f} FLOP per active parameter at {percent(run.mfu)} of "
        f"the peak; `budget` counts 3 at {percent(BUDGET_MFU)} by default (--rl-flop takes 2 to 6, --rl-mfu "
        f"{min(run.mfu, 1.0):.3f})."
    )
    return Prose(text)


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
