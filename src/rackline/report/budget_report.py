"""A budget of training compute in the terminal and as figures: phases, over-training, the curve around the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from rackline.posttraining.plan import RlPlan, RlRun, RlStep
from rackline.posttraining.updates import Updates
from rackline.report.axes import Layer, Measure, Row, colour, hovered, linear_axis, log_axis, nothing_figure
from rackline.report.column import Column, Sheet, spaced
from rackline.report.figure import Figure
from rackline.report.terminal_plot import Series, log_plot
from rackline.report.wording import Box, Prose, bar, percent, written
from rackline.scaling import Budget, KnownRun, trained
from rackline.scaling.overtrain import PRETRAIN_FLOP_PER_PARAM_TOKEN
from rackline.units import format_bytes, format_count, format_seconds, format_usd

PHASE_NAMES = {
    "pretrain": "pre-training",
    "rl": "reinforcement learning",
    "prompts": "use: prompts read",
    "inference": "use: tokens generated",
}


def budget_report(budget: Budget, *, asked: str, on: str, width: int) -> Group:
    """Everything that `rackline budget` prints.

    Args:
        asked: the wanted quality in the words of the command line.
        on: what it runs on and at which precision.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = [
        Box(
            _answer(budget),
            f"{asked}, loss {budget.loss:.4g} ({budget.law.name})",
            on,
            "none" if budget.feasible else "red",
        )
    ]
    if budget.feasible:
        parts += [Text(""), _phase_table(budget), Text(""), _around(budget), Text(""), _curve(budget, width)]
    if budget.law.evidence == "assumed":
        parts.append(Text("the constants of this law are remembered, not looked up", style="yellow"))
    return Group(*parts)


def _answer(budget: Budget) -> Text:
    if not budget.feasible:
        return Text(f"No size does it: {budget.optimum.reason}.", style="bold red")
    body = Text()
    size = format_count(float(budget.optimum.params))
    if budget.num_experts > 1.0:
        size += f" active of {format_count(budget.total_params)}"
    body.append(f"{size} parameters on {format_count(float(budget.optimum.tokens))} tokens", style="bold green")
    body.append(f"\n{format_count(budget.chip_hours)} chip-hours over its life", style="bold")
    if budget.usd is not None:
        body.append(f", {format_usd(budget.usd)}", style="bold")
    body.append(
        f"\n{written(budget.overtraining_factor)} times 20 tokens per parameter, "
        f"{written(budget.tokens_over_compute_optimal)} times what this law calls optimal for that size"
    )
    return body


def _phase_table(budget: Budget) -> Sheet[Any]:
    return Sheet(
        "phases",
        [
            Column("name", "phase", getter=lambda phase: PHASE_NAMES[phase.name]),
            Column("tokens", "tokens", "count"),
            Column("flop", "FLOP", "figures", lambda phase: _power(phase.flop), priority=1),
            Column("mfu", "MFU", "share"),
            Column("chip_hours", "chip-hours", "count"),
            Column("usd", "cost", "USD"),
            Column("share", "share", "share"),
            Column("", "", getter=lambda phase: bar(phase.share), priority=2),
        ],
        budget.phases,
        title="what each phase costs",
    )


def _around(budget: Budget) -> Prose:
    best = float(budget.optimum.params)
    text = Text()
    for within, (low, high) in budget.flat.items():
        text.append(
            f"within {percent(within)} of the least cost: {format_count(low)} to {format_count(high)} parameters "
            f"({low / best:.2f} to {high / best:.2f} of the best)\n"
        )
    other = budget.compute_optimal
    ratio = budget.compute_optimal_lifetime_flop / float(budget.optimum.lifetime_flop)
    if np.isfinite(ratio):
        text.append(
            f"compute-optimal for the same loss: {format_count(float(other.params))} on "
            f"{format_count(float(other.tokens))} tokens; over its life {written(ratio)} times the cost\n"
        )
    rule = budget.equal_costs
    if rule is not None:
        text.append(
            f"by the rule that all phases cost the same: {format_count(float(rule.pretrain_tokens))} tokens of "
            f"pre-training, {format_count(float(rule.rl_tokens))} of reinforcement learning"
        )
    return Prose(text)


def _curve(budget: Budget, width: int) -> Text:
    shown = np.isfinite(budget.curve_flop) & (budget.curve_flop < 8.0 * float(budget.optimum.lifetime_flop))
    ratio = budget.curve_flop[shown] / float(budget.optimum.lifetime_flop)
    sizes = budget.curve_params[shown]
    return log_plot(
        [
            Series(x=[*sizes], y=[*ratio], name="cost over life", joined=True),
            Series(x=[float(budget.optimum.params)], y=[1.0], name="least", style="bold green", mark="◆"),
        ],
        width=min(width, 100),
        height=12,
        x_title="active parameters",
        y_title="cost over the least",
        x_text=format_count,
        y_text=written,
    )


def runs_report(runs: Sequence[KnownRun], *, law: str) -> Group:
    """Known runs as a table.

    Args:
        law: loss law of the last column.
    """

    def tokens(run: KnownRun) -> str:
        return format_count(run.tokens) + ("*" if run.evidence == "assumed" else "")

    table = Sheet(
        "runs",
        [
            Column("name", "run"),
            Column("active_params", "active", "count"),
            Column("tokens", "tokens", "figures", tokens),
            Column("overtraining_factor", "x 20 N", "1"),
            Column("train_flop", "6ND", "figures", lambda run: _power(run.train_flop), priority=4),
            Column("equal_cost_tokens", "use = training", "count"),
            Column("optimal_lifetime_tokens", "use, exact", "count", lambda run: run.optimal_lifetime_tokens or "none"),
            Column("mfu_published", "MFU said", "share", priority=1),
            Column("mfu_of_hours", "of hours", "share", priority=2),
            Column("goodput", "goodput", "share", priority=3),
        ],
        runs,
        title="known runs, the most over-trained first",
    )
    notes = Prose(
        "use = training: tokens generated over its life if use cost as much as pre-training (the lecture's rule)\n"
        f"use, exact: for which this was the cheapest way to its loss under {law}; none: larger than compute-optimal\n"
        "of hours: 6ND over what the chips could have done in the published hours; goodput: that over the MFU said\n"
        "* size or tokens remembered, not looked up",
        style="dim",
    )
    return Group(table, notes)


def _power(value: float) -> str:
    """FLOP of a training run, as people write them."""
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}·10{exponent.lstrip('+0').translate(_RAISED)}"


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_SIZE = Measure(field="active_params", title="active parameters", kind="count")
_FLOP = Measure(field="flop", title="FLOP, at the MFU of pre-training", kind="power")
_TOKENS = Measure(field="tokens", title="tokens of pre-training", kind="count")
_SERIES = Measure(field="series", title="what")
_MOST_OVER_LEAST = 20.0


def lifetime_figure(budget: Budget, *, asked: str) -> Figure:
    """Cost over life against size: in all, of training alone, of use alone; and the optimum.

    Args:
        budget: the answer.
        asked: the wanted quality in the words of the question.
    """
    sizes, total = _budget_curve(budget)
    use = sizes * budget.lifetime_flop_per_param
    parts = {"whole life": total, "training": total - use, "use": use}
    names = [name for name, values in parts.items() if np.any(values > 0.0)]
    rows: list[Row] = [
        {"series": name, "active_params": size, "flop": flop}
        for name in names
        for size, flop in zip(sizes.tolist(), parts[name].tolist(), strict=True)
        if flop > 0.0
    ]
    x = log_axis(_SIZE, [row["active_params"] for row in rows])
    y = log_axis(_FLOP, [row["flop"] for row in rows])
    place: Layer = {"x": x, "y": y}
    layers: list[Layer] = [
        {"mark": "line", "encoding": {**place, "color": colour(names)}},
        hovered({"type": "point", "opacity": 0, "size": 60}, place, [_SERIES, _SIZE, _FLOP]),
    ]
    words = f"No size does it: {budget.optimum.reason}."
    if budget.feasible:
        best = {"active_params": float(budget.optimum.params), "flop": float(budget.optimum.lifetime_flop)}
        words = f"{format_count(best['active_params'])} on {format_count(float(budget.optimum.tokens))} tokens"
        layers.append(_best(best, place))
        words = f"diamond: least, {words}"
    return Figure(
        title=f"Cost over life at the quality of {asked}",
        subtitle=f"loss {budget.loss:.4g} ({budget.law.name}); {words}",
        description=f"FLOP over the whole life against active parameters on log axes. {words}",
        spec={"data": {"values": rows}, "layer": layers},
    )


def quality_figure(budget: Budget, *, asked: str) -> Figure:
    """Sizes and tokens that all reach the same loss: the cheapest to train, and the cheapest over the whole life.

    Models as they were trained stand beside them.

    Args:
        budget: the answer.
        asked: the wanted quality in the words of the question.
    """
    sizes, total = _budget_curve(budget)
    tokens = (total / sizes - budget.lifetime_flop_per_param) / PRETRAIN_FLOP_PER_PARAM_TOKEN
    rows: list[Row] = [
        {
            "active_params": size,
            "tokens": count,
            "flop": size * count * PRETRAIN_FLOP_PER_PARAM_TOKEN,
            "lifetime_flop": cost,
        }
        for size, count, cost in zip(sizes.tolist(), tokens.tolist(), total.tolist(), strict=True)
        if count > 0.0
    ]
    marked: list[tuple[float, float, str, str]] = []
    if np.isfinite(float(budget.compute_optimal.params)):
        marked.append(
            (float(budget.compute_optimal.params), float(budget.compute_optimal.tokens), "least training", "circle")
        )
    if budget.feasible:
        marked.append((float(budget.optimum.params), float(budget.optimum.tokens), "least over its life", "diamond"))
    x = log_axis(_SIZE, [*(row["active_params"] for row in rows), *(mark[0] for mark in marked)])
    y = log_axis(_TOKENS, [*(row["tokens"] for row in rows), *(mark[1] for mark in marked)])
    place: Layer = {"x": x, "y": y}
    rule = [{"active_params": size, "tokens": 20.0 * size} for size in x["scale"]["domain"]]
    shown = [
        _SIZE,
        _TOKENS,
        Measure(field="flop", title="FLOP of training", kind="power"),
        Measure(field="lifetime_flop", title="FLOP over its life", kind="power"),
    ]
    layers: list[Layer] = [
        {
            "data": {"values": rule},
            "mark": {"type": "line", "style": "reference", "strokeWidth": 1.4, "clip": True},
            "encoding": place,
        },
        {"mark": {"type": "line"}, "encoding": place},
        hovered({"type": "point", "opacity": 0, "size": 60}, place, shown),
    ]
    for params, count, _, shape in marked:
        point = {"active_params": params, "tokens": count}
        circle: Layer = {"data": {"values": [point]}, "mark": {"type": "point", "size": 90}, "encoding": place}
        layers.append(_best(point, place) if shape == "diamond" else circle)
    (least_size, most_size), (least_tokens, most_tokens) = x["scale"]["domain"], y["scale"]["domain"]
    near: list[Row] = [
        {"model": one.full_name, "active_params": one.active_params, "tokens": one.tokens}
        for one in trained()
        if least_size < one.active_params < most_size and least_tokens < one.tokens < most_tokens
    ]
    if near:
        triangle = {"type": "point", "shape": "triangle-up", "style": "muted", "size": 60}
        measures = [Measure(field="model", title="model"), _SIZE, _TOKENS]
        layers.append(hovered(triangle, place, measures, data={"values": near}))
    texts = [
        f"{shape}: {name}, {format_count(size)} on {format_count(count)} tokens" for size, count, name, shape in marked
    ]
    return Figure(
        title=f"Sizes and tokens that reach the quality of {asked}",
        subtitle=f"loss {budget.loss:.4g} ({budget.law.name}); dashed: 20 tokens per parameter; "
        + "; ".join(texts)
        + ("; triangles: models as they were trained" if near else ""),
        description="Tokens of pre-training against active parameters at one loss, on log axes. "
        + "; ".join(texts)
        + ".",
        spec={"data": {"values": rows}, "layer": layers},
    )


def _budget_curve(budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Sizes that reach the loss and cost little more than the best, and their cost."""
    shown = np.isfinite(budget.curve_flop)
    if budget.feasible:
        shown &= budget.curve_flop < _MOST_OVER_LEAST * float(budget.optimum.lifetime_flop)
    return budget.curve_params[shown], budget.curve_flop[shown]


def _best(point: Row, place: Layer) -> Layer:
    return {"data": {"values": [point]}, "mark": {"type": "point", "style": "best"}, "encoding": place}


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
    return Sheet(
        "sides",
        [
            Column("side", "side"),
            Column("chips", "chips", "whole"),
            Column("layout", "layout", "words"),
            Column("holds", "holds", "words"),
        ],
        rows,
        "both sides",
        _memory(updates),
    )


def _memory(updates: Updates) -> str:
    """Memory of the fullest chip that trains, with what other models take of it."""
    parts = [("the critic", updates.critic_bytes), ("the reward model", updates.reward_bytes)]
    others = ", ".join(f"{format_bytes(size)} of {name}" for name, size in parts if size)
    return f"an update takes {format_bytes(updates.total_bytes)} of a chip{f', with {others}' if others else ''}"


def _time(best: RlStep) -> Sheet[Any]:
    rows = [(part.name, part.side, part.seconds) for part in best.parts]
    rows += [("waits", side, seconds) for side, seconds in best.idle_s.items() if seconds > 1e-9]
    return Sheet(
        "step",
        [
            Column("part", "part"),
            Column("side", "side"),
            Column("seconds", "time", "s"),
            Column("share", "share", "share", lambda row: row[2] / best.seconds),
            Column("", "", getter=lambda row: bar(row[2] / best.seconds)),
        ],
        rows,
        title=f"where the {format_seconds(best.seconds)} of a step go",
    )


def _tail(best: RlStep) -> Prose:
    rollout = best.rollout
    return Prose(
        f"Half of the answers are done after {format_seconds(rollout.half_s)} of rollouts that start together; the "
        f"rest take {format_seconds(max(rollout.tail_s, 0.0))} more, to the longest."
    )


def _twice(plan: RlPlan) -> Sheet[Any]:
    rows = sorted(plan.twice.items(), key=lambda item: -item[1])
    return Sheet(
        "twice",
        [Column("part", "part"), Column("ratio", "step, times as fast", "ratio")],
        rows,
        title="what a part twice as fast gives",
    )


def _splits(plan: RlPlan) -> Sheet[Any]:
    rows = [(split, plan.job.cluster.num_chips - split, seconds) for split, seconds in plan.others.items()]
    return Sheet(
        "splits",
        [
            Column("rollouts", "rollouts", "whole"),
            Column("training", "training", "whole"),
            Column("seconds", "step", "s"),
        ],
        rows,
        title="other splits of the chips",
    )


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
