"""A budget of training compute in the terminal and as figures: phases, over-training, the curve around the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from rackline.display.axes import (
    UNSEEN,
    Layer,
    Measure,
    Row,
    colour,
    hovered,
    layered,
    linear_axis,
    log_axis,
    marked,
    nothing_figure,
)
from rackline.display.column import Column, Sheet, spaced, stacked
from rackline.display.figure import Figure
from rackline.display.terminal import Series, bar, log_plot
from rackline.display.wording import Box, Prose, composed, percent, written
from rackline.posttraining.plan import RlPlan, RlRun, RlStep
from rackline.scaling import Budget, KnownRun, trained
from rackline.scaling.optimum import PRETRAIN_FLOP_PER_PARAM_TOKEN
from rackline.units import format_bytes, format_count, format_seconds, format_usd, plural

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
    style = "none" if budget.feasible else "red"
    remembered = "the constants of this law are remembered, not looked up"
    details = [_phase_table(budget), _around(budget), _curve(budget, width)] if budget.feasible else []
    return stacked(
        Box(_answer(budget), f"{asked}, loss {budget.loss:.4g} ({budget.law.name})", on, style),
        *(part for detail in details for part in (Text(""), detail)),
        Text(remembered, style="yellow") if budget.law.evidence == "assumed" else None,
    )


def _answer(budget: Budget) -> Text:
    if not budget.feasible:
        return Text(f"No size does it: {budget.optimum.reason}.", style="bold red")
    size = format_count(float(budget.optimum.params))
    if budget.num_experts > 1.0:
        size += f" active of {format_count(budget.total_params)}"
    cost = "" if budget.usd is None else f", {format_usd(budget.usd)}"
    return composed(
        (f"{size} parameters on {format_count(float(budget.optimum.tokens))} tokens", "bold green"),
        (f"\n{format_count(budget.chip_hours)} chip-hours over its life{cost}", "bold"),
        f"\n{written(budget.overtraining_factor)} times 20 tokens per parameter, "
        f"{written(budget.tokens_over_compute_optimal)} times what this law calls optimal for that size",
    )


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
    lines = [
        f"within {percent(within)} of the least cost: {format_count(low)} to {format_count(high)} parameters "
        f"({low / best:.2f} to {high / best:.2f} of the best)\n"
        for within, (low, high) in budget.flat.items()
    ]
    other, rule = budget.compute_optimal, budget.equal_costs
    ratio = budget.compute_optimal_lifetime_flop / float(budget.optimum.lifetime_flop)
    if np.isfinite(ratio):
        lines.append(
            f"compute-optimal for the same loss: {format_count(float(other.params))} on "
            f"{format_count(float(other.tokens))} tokens; over its life {written(ratio)} times the cost\n"
        )
    if rule is not None:
        lines.append(
            f"by the rule that all phases cost the same: {format_count(float(rule.pretrain_tokens))} tokens of "
            f"pre-training, {format_count(float(rule.rl_tokens))} of reinforcement learning"
        )
    return Prose("".join(lines))


def _curve(budget: Budget, width: int) -> Text:
    shown = np.isfinite(budget.curve_flop) & (budget.curve_flop < 8.0 * float(budget.optimum.lifetime_flop))
    ratio = budget.curve_flop[shown] / float(budget.optimum.lifetime_flop)
    return log_plot(
        [
            Series(x=[*budget.curve_params[shown]], y=[*ratio], name="cost over life", joined=True),
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
    place = {
        "x": log_axis(_SIZE, [row["active_params"] for row in rows]),
        "y": log_axis(_FLOP, [row["flop"] for row in rows]),
    }
    best = {"active_params": float(budget.optimum.params), "flop": float(budget.optimum.lifetime_flop)}
    words = f"No size does it: {budget.optimum.reason}."
    if budget.feasible:
        words = f"{format_count(best['active_params'])} on {format_count(float(budget.optimum.tokens))} tokens"
        words = f"diamond: least, {words}"
    return Figure(
        title=f"Cost over life at the quality of {asked}",
        subtitle=f"loss {budget.loss:.4g} ({budget.law.name}); {words}",
        description=f"FLOP over the whole life against active parameters on log axes. {words}",
        spec=layered(
            rows,
            {"mark": "line", "encoding": {**place, "color": colour(names)}},
            hovered(UNSEEN, place, [_SERIES, _SIZE, _FLOP]),
            *([marked([best], place, style="best")] if budget.feasible else []),
        ),
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
    found = [("circle: least training", budget.compute_optimal, {"size": 90})]
    found += [("diamond: least over its life", budget.optimum, {"style": "best"})] if budget.feasible else []
    best = [
        (name, {"active_params": float(one.params), "tokens": float(one.tokens)}, mark)
        for name, one, mark in found
        if np.isfinite(float(one.params))
    ]
    shown = [*rows, *(point for _, point, _ in best)]
    place = {
        "x": log_axis(_SIZE, [row["active_params"] for row in shown]),
        "y": log_axis(_TOKENS, [row["tokens"] for row in shown]),
    }
    (least_size, most_size), (least_tokens, most_tokens) = (place[axis]["scale"]["domain"] for axis in "xy")
    near: list[Row] = [
        {"model": one.full_name, "active_params": one.active_params, "tokens": one.tokens}
        for one in trained()
        if least_size < one.active_params < most_size and least_tokens < one.tokens < most_tokens
    ]
    rule = [{"active_params": size, "tokens": 20.0 * size} for size in (least_size, most_size)]
    flop = Measure(field="flop", title="FLOP of training", kind="power")
    lifetime = Measure(field="lifetime_flop", title="FLOP over its life", kind="power")
    triangle = {"type": "point", "shape": "triangle-up", "style": "muted", "size": 60}
    names = [Measure(field="model", title="model"), _SIZE, _TOKENS]
    texts = "; ".join(
        f"{name}, {format_count(point['active_params'])} on {format_count(point['tokens'])} tokens"
        for name, point, _ in best
    )
    return Figure(
        title=f"Sizes and tokens that reach the quality of {asked}",
        subtitle=f"loss {budget.loss:.4g} ({budget.law.name}); dashed: 20 tokens per parameter; {texts}"
        + ("; triangles: models as they were trained" if near else ""),
        description=f"Tokens of pre-training against active parameters at one loss, on log axes. {texts}.",
        spec=layered(
            rows,
            marked(rule, place, type="line", style="reference", strokeWidth=1.4, clip=True),
            {"mark": {"type": "line"}, "encoding": place},
            hovered(UNSEEN, place, [_SIZE, _TOKENS, flop, lifetime]),
            *(marked([point], place, **mark) for _, point, mark in best),
            *([hovered(triangle, place, names, data={"values": near})] if near else []),
        ),
    )


def _budget_curve(budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Sizes that reach the loss and cost little more than the best, and their cost."""
    shown = np.isfinite(budget.curve_flop)
    if budget.feasible:
        shown &= budget.curve_flop < _MOST_OVER_LEAST * float(budget.optimum.lifetime_flop)
    return budget.curve_params[shown], budget.curve_flop[shown]


BUDGET_MFU = 0.3 * 0.4
"""What `budget` assumes by default for reinforcement learning: 0.3 of the 40 % of pre-training (lecture, C86)."""


def rl_report(plan: RlPlan, *, width: int) -> Group:
    """Everything that `rackline rl` prints.

    Args:
        width: columns of the terminal.
    """
    best = plan.best
    if best is None or plan.run is None:
        return Group(Box(Text(f"Nothing fits. {plan.reason}"), _title(plan), style="red"))
    rollout, chips = best.rollout, plan.job.cluster.num_chips
    tail = Prose(
        f"Half of the answers are done after {format_seconds(rollout.half_s)} of rollouts that start together; the "
        f"rest take {format_seconds(max(rollout.tail_s, 0.0))} more, to the longest."
    )
    twice: Sheet[Any] = Sheet(
        "twice",
        [Column("part", "part"), Column("ratio", "step, times as fast", "ratio")],
        sorted(plan.twice.items(), key=lambda item: -item[1]),
        title="what a part twice as fast gives",
    )
    splits: Sheet[Any] = Sheet(
        "splits",
        [
            Column("rollouts", "rollouts", "whole"),
            Column("training", "training", "whole"),
            Column("seconds", "step", "s"),
        ],
        [(split, chips - split, seconds) for split, seconds in plan.others.items()],
        title="other splits of the chips",
    )
    others = splits if len(plan.others) > 1 else None
    return spaced([_headline(plan, best), _sides(plan, best), _time(best), tail, twice, others, _run(plan, plan.run)])


def _title(plan: RlPlan) -> str:
    job = plan.job
    return f"{job.model.name} on {job.cluster.num_chips:,} × {job.cluster.chip.name} ({job.cluster.name})"


def _headline(plan: RlPlan, best: RlStep) -> Box:
    job, schedule = plan.job, plan.schedule
    rate = best.rollout.tokens / best.seconds / job.cluster.num_chips
    how = [schedule.mode, "shared chips" if schedule.colocated else f"{best.gen_chips} + {best.train_chips} chips"]
    how += [f"staleness {schedule.staleness}"] if schedule.mode == "async" else []
    how += ["partial rollouts"] if schedule.partial else []
    how += (
        [f"{job.tools.pauses + 1} turns, {format_seconds(job.tools.seconds)} a tool call"] if job.tools.pauses else []
    )
    how += [job.speculation.label()] if job.speculation.draft_tokens else []
    body = composed(
        (format_seconds(best.seconds), "bold"),
        f" a step · bound by {best.binds} · {format_count(rate)} generated tokens/s a chip\n",
        f"{job.algorithm.upper()}, {', '.join(how)}",
    )
    answers = f"{job.prompts:,} × {job.generations} answers of {job.lengths.mean:,.0f} tokens on average"
    return Box(body, _title(plan), f"{answers}, at most {job.lengths.longest:,.0f}")


def _sides(plan: RlPlan, best: RlStep) -> Sheet[Any]:
    rollout, updates, layout = best.rollout, best.updates, best.train_layout
    label = layout.label() + ("" if layout.recompute == "none" else f" · {layout.recompute} recompute")
    held = f"{min(rollout.slots, rollout.per_rank)} of {rollout.per_rank} answers of a rank run at once"
    packed = f"{updates.packs} packed sequences of {plan.job.training.seq_len:,} tokens, {plan.job.updates} "
    packed += f"{plural(plan.job.updates, 'update')}"
    models = (("the critic", updates.critic_bytes), ("the reward model", updates.reward_bytes))
    others = ", ".join(f"{format_bytes(size)} of {name}" for name, size in models if size)
    memory = f"an update takes {format_bytes(updates.total_bytes)} of a chip"
    return Sheet(
        "sides",
        [
            Column("side", "side"),
            Column("chips", "chips", "whole"),
            Column("layout", "layout", "words"),
            Column("holds", "holds", "words"),
        ],
        [("rollouts", best.gen_chips, best.gen_layout.label(), held), ("training", best.train_chips, label, packed)],
        "both sides",
        f"{memory}, with {others}" if others else memory,
    )


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


def _run(plan: RlPlan, run: RlRun) -> Prose:
    paid = "" if run.usd is None else f", {format_usd(run.usd)}"
    return Prose(
        f"{run.steps:,.0f} steps: {run.days:,.2f} days{paid}; {format_count(run.generated_tokens)} tokens generated, "
        f"{format_count(run.trained_tokens)} trained on. A generated token costs {run.flop_per_param_token:.1f} FLOP "
        f"per active parameter at {percent(run.mfu)} of the peak; `budget` counts 3 at {percent(BUDGET_MFU)} by "
        f"default (--rl-flop takes 2 to 6, --rl-mfu {min(run.mfu, 1.0):.3f})."
    )


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
    encoding: Layer = {
        "x": linear_axis(start, [best.seconds, *(float(row["end_s"]) for row in rows)], margin=0.0),
        "x2": {"field": "end_s"},
        "y": {"field": "side", "type": "ordinal", "title": "chips", "scale": {"paddingInner": 0.2}},
        "color": colour(list(dict.fromkeys(str(row["part"]) for row in rows)), "part"),
    }
    shown = [Measure(field="part", title="what"), Measure(field="side", title="chips"), start, stop]
    words = ", ".join(f"{part.name} {format_seconds(part.seconds)}" for part in best.parts)
    how = "on shared chips" if plan.schedule.colocated else f"on {best.gen_chips} and {best.train_chips} chips"
    return Figure(
        title=title,
        subtitle=f"{format_seconds(best.seconds)} a step, {plan.schedule.mode} {how}; bound by {best.binds}",
        description=f"A step of {format_seconds(best.seconds)}: {words}.",
        spec=layered(rows, hovered({"type": "bar"}, encoding, shown)),
        width=760,
        height=110,
    )


def running_figure(plan: RlPlan) -> Figure:
    """Answers that still run over the time of the rollouts."""
    title = f"{plan.job.model.name}: answers that still run"
    best = plan.best
    if best is None:
        return nothing_figure(title, plan.reason)
    clock_s, running = best.rollout.clock_s, best.rollout.running
    step, end_s, most = max(1, clock_s.size // 400), float(clock_s[-1]), float(running.max())
    rows: list[Row] = [
        *(
            {"clock_s": float(clock), "running": float(count)}
            for clock, count in zip(clock_s[::step], running[::step], strict=True)
        ),
        {"clock_s": end_s, "running": 0.0},
    ]
    clock = Measure(field="clock_s", title="time of the rollouts", kind="seconds")
    count = Measure(field="running", title="answers running", kind="count")
    encoding: Layer = {"x": linear_axis(clock, [end_s], margin=0.0), "y": linear_axis(count, [most], margin=0.0)}
    line = hovered({"type": "line", "interpolate": "step-after"}, encoding, [clock, count])
    ends = f"half are done after {format_seconds(best.rollout.half_s)}, the last after {format_seconds(end_s)}"
    return Figure(
        title=title,
        subtitle=ends,
        description=f"The number of running answers falls from {most:,.0f} to none in {format_seconds(end_s)}.",
        spec=layered(rows, line),
    )
