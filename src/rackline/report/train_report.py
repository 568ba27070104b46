"""The terminal report and the figures of a training run, with the timeline of its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.display.axes import (
    Layer,
    Measure,
    Row,
    colour,
    hovered,
    layered,
    linear_axis,
    name_axis,
    nothing_figure,
    stacked_bars,
)
from rackline.display.column import Column, Predicted, Sheet, bars_sheet, spaced
from rackline.display.figure import Figure
from rackline.display.terminal import band_bar
from rackline.display.wording import Box, Prose, composed, percent, share, written
from rackline.report.exports import SLOT_NAMES
from rackline.report.memory_report import memory_figure, misfit_report, stages_sheet
from rackline.report.pipeline_text import gantt_text, waits_text
from rackline.search.train import Straggling, TrainCandidate, TrainPlan, shares, timeline_of
from rackline.training.schedules import Timeline
from rackline.units import format_bytes, format_count, format_seconds, format_usd, format_watts, several

_BAND = 16  # characters of the bar of a band


LEAST_SHARE = 0.003


def train_report(
    plan: TrainPlan,
    *,
    bands: Sequence[Predicted] = (),
    width: int,
    elapsed_s: float,
    timeline: Timeline | None = None,
) -> Group:
    """Everything that `rackline train` prints.

    Args:
        bands: intervals that held 90 % of measured steps [s], at the pace of the plan first; none where none were.
        width: columns of the terminal.
        elapsed_s: wall time of the search [s].
        timeline: of the best run's pipeline, None without one.
    """
    parts: list[RenderableType | None] = [_headline(plan, bands)]
    if plan.best:
        best = plan.best[0]
        note = "" if timeline is None else shown_note(plan, best, timeline)
        parts += [
            _time(plan, best),
            _memory(plan, best),
            stages_sheet(plan),
            None if timeline is None else gantt_text(timeline, width, bubble_fraction=best.bubble_fraction, note=note),
            _levels(best),
            None if plan.tokens is None else _reliability(plan),
            _stragglers(plan) if plan.tokens is not None and plan.stragglers else None,
            _others(plan) if len(plan.best) > 1 else None,
        ]
    elif plan.misfit is not None:
        parts.append(misfit_report(plan.misfit))
    return spaced([*parts, _footer(plan, elapsed_s)])


def _title(plan: TrainPlan) -> str:
    return f"{_name(plan)} ({plan.system.cluster.name})"


def _headline(plan: TrainPlan, bands: Sequence[Predicted]) -> Box:
    job, asked = plan.system, plan.asked_batch_tokens
    tokens = "" if plan.tokens is None else f", {format_count(plan.tokens)} tokens in all"
    request = f"{job.global_batch_sequences:,} sequences of {job.seq_len:,} tokens per step{tokens}"
    if not plan.best:
        body = composed(("Nothing fits. ", "bold red"), plan.reason.removeprefix("nothing fits: "))
        return Box(body, _title(plan), request, "red")
    best = plan.best[0]
    band = bands[0] if bands else None
    moved = ""
    if asked is not None and asked != job.global_batch_tokens:
        moved = f"from {asked / job.seq_len:,.6g} to {job.global_batch_sequences:,} sequences"
    body = composed(
        _whole_run(plan, best, band),
        (f"{format_seconds(best.step_s)} a step", "bold green"),
        None if band is None else _measured_steps(best, band),
        f"\nMFU {percent(best.mfu)} (causal {percent(best.mfu_causal)}) · HFU {percent(best.hfu)}"
        f" · {best.tokens_per_s_per_chip:,.0f} tokens/s per chip · {best.binds} takes most",
        None if plan.practice is None else _tuned(best, bands[1:]),
        _power(best),
        (f"\n{layout_text(best)}", "bold"),
        f"\nbatch moved {moved}, which replicas can share" if moved else None,
    )
    return Box(body, _title(plan), request, "green")


def _whole_run(plan: TrainPlan, best: TrainCandidate, band: Predicted | None) -> Text | None:
    """Days, dollars and energy of all steps; None where the plan is of one step."""
    if best.days is None:
        return None

    def within(value: float, write: Callable[[float], str]) -> str:
        """What 90 % of measured runs take, of a quantity that grows with the time of a step."""
        each = value / best.step_s
        return "" if band is None else f" ({write(each * band.low)} to {write(each * band.high)})"

    kwh = "" if best.kwh is None else f" · {format_count(best.kwh)} kWh"
    return composed(
        (f"{written(best.days)} days", "bold green"),
        within(best.days, written),
        None if best.usd is None else (f" · {format_usd(best.usd)}", "bold green"),
        None if best.usd is None else within(best.usd, format_usd),
        f"{kwh} · goodput {percent(plan.reliability.goodput)}\n",
    )


def _measured_steps(best: TrainCandidate, band: Predicted) -> Text:
    bar = band_bar(band.low, best.step_s, band.high, width=_BAND)
    said = f" 90 % of measured runs ({band.group}, {band.num_cases} cases)"
    return composed(f" · {format_seconds(band.low)} to {format_seconds(band.high)} ", bar, (said, "dim"))


def _power(best: TrainCandidate) -> str:
    """Power and energy; empty where nothing is known of the power of the chip."""
    if best.power is None:
        return ""
    how = "" if best.power.basis == "kernels" else f" ({best.power.basis})"
    machine = f"{format_watts(best.power.wall_w)} with its machine · {written(best.joules_per_token or 0.0)} J"
    return f"\n{format_watts(best.power.chip_w)} a chip{how}, {machine} a token"


def _tuned(best: TrainCandidate, bands: Sequence[Predicted]) -> Text:
    """The same run at the pace of tuned steps, which `--pace tuned` puts first."""
    share_of = best.tuned_s / best.step_s
    measured = (
        f" · {format_seconds(one.low)} to {format_seconds(one.high)} a step in 90 % of {one.num_cases} benchmarks"
        for one in bands[:1]
    )
    return composed(
        f"\ntuned as benchmarks of frameworks are: {format_seconds(best.tuned_s)} a step, ",
        f"MFU {percent(best.mfu / share_of)}",
        None if best.days is None else f", {written(share_of * best.days)} days",
        None if best.usd is None else f", {format_usd(share_of * best.usd)}",
        (" (--pace tuned)", "dim"),
        *((text, "dim") for text in measured),
    )


def layout_text(one: TrainCandidate) -> str:
    """Layout, schedule and recompute in words."""
    layout = one.layout
    schedule = f" · {layout.schedule}" if layout.pp > 1 else ""
    return f"{layout.label()}{schedule}" + ("" if layout.recompute == "none" else f" · {layout.recompute} recompute")


def differences(texts: Sequence[str]) -> tuple[list[str], str]:
    """What tells layouts apart, a text for each, and what all of them share.

    Args:
        texts: layouts in words, such as "tp=4,pp=2,dp=8 · 1f1b".
    """
    parts = [text.replace(" · ", ",").split(",") for text in texts]
    shared = [part for part in parts[0] if len(parts) > 1 and all(part in other for other in parts)]
    own = [",".join(part for part in each if part not in shared) for each in parts]
    return own, ",".join(shared)


def shown_note(plan: TrainPlan, one: TrainCandidate, timeline: Timeline) -> str:
    """What a drawn timeline leaves out of the step; empty where it leaves out nothing."""
    shown = len({event.slot.micro_batch for event in timeline.events})
    count = plan.system.global_batch_sequences // (one.layout.dp * one.layout.micro_batch)
    return f"; drawn: the first {shown} of {count} micro-batches" if shown < count else ""


def _time(plan: TrainPlan, best: TrainCandidate) -> Sheet[Any]:
    count = plan.system.global_batch_sequences / (best.layout.dp * best.layout.micro_batch)
    parts = sorted(_shares(plan, best).items(), key=lambda item: -item[1])
    rows = [(name, value, share(value, best.step_s), "blue") for name, value in parts]
    title = f"where the {format_seconds(best.step_s)} of a step go ({count:,.0f} micro-batches per replica)"
    return bars_sheet("step", [row for row in rows if row[2] >= LEAST_SHARE], title=title, unit="s")


def _held(one: TrainCandidate) -> dict[str, float]:
    """Memory of the fullest chip by kind [B]."""
    return {
        name.removesuffix("_bytes"): float(value)
        for name, value in one.memory.items()
        if name.endswith("_bytes") and name != "total_bytes" and value > 0
    }


def _memory(plan: TrainPlan, best: TrainCandidate) -> Sheet[Any]:
    has, count = plan.system.cluster.chip.hbm_bytes, written(best.memory["in_flight"])
    behind = {"activations": f" of {count} micro-batch{'' if count == '1' else 'es'}"}
    rows = [(f"{kind}{behind.get(kind, '')}", held, share(held, has), "yellow") for kind, held in _held(best).items()]
    title = f"memory of the fullest chip: {format_bytes(best.memory['total_bytes'])} of {format_bytes(has)}"
    return bars_sheet("memory", rows, title=title, unit="B")


def _levels(best: TrainCandidate) -> Sheet[Any]:
    columns: list[Column[Any]] = [
        Column("group", "group"),
        Column("size", "ranks", "whole"),
        Column("inside_domain", "in one domain", "whole"),
        Column("level", "level"),
    ]
    return Sheet("levels", columns, best.levels, title="which level each group works on")


def _reliability(plan: TrainPlan) -> Prose:
    found = plan.reliability
    behind = found.upload_s - found.write_s
    stored = f" and is in the store {format_seconds(behind)} later" if behind > 0.0 else ""
    waits = f"; a run waits {format_seconds(found.wait_s)} for a host" if found.wait_s > 0.0 else ""
    slow = ""
    if found.straggling > 1.0 and plan.best:
        best, lost = plan.best[0], 1.0 - 1.0 / found.straggling
        costs = "" if best.days is None else f", which costs {written(lost * best.days)} days"
        costs += "" if best.usd is None else f" and {format_usd(lost * best.usd)}"
        slow = f"; the slowest rank takes {written(found.straggling)} times as long{costs}"
    return Prose(
        composed(
            "a failure every ",
            (format_seconds(found.between_failures_s), "bold"),
            f"; a checkpoint of {format_bytes(found.checkpoint_bytes)} stops work for {format_seconds(found.write_s)}"
            f"{stored}, best every {format_seconds(found.interval_s)} (Young and Daly){waits}{slow}; "
            f"{found.spares_needed} spare hosts suffice for 99 of 100 failures; goodput {percent(found.goodput)}",
            (" (by default the failure rate of Llama 3 on H100; storage and restart assumed)", "dim"),
        )
    )


def _stragglers(plan: TrainPlan) -> Sheet[Straggling]:
    return Sheet(
        "stragglers",
        [
            Column("share", "of runs", "share"),
            Column("slowdown", "times as long", "1"),
            Column("step_s", "step", "s"),
            Column("days", "days", "1"),
            Column("usd", "cost", "USD"),
        ],
        plan.stragglers,
        title="how long slow ranks make a run, by share of published runs that take no longer",
        caption="3,079 pre-training runs on 128 chips and more (arXiv:2505.05713)"
        + ("; the pace of published runs is that of the median" if plan.practice else ""),
    )


def _others(plan: TrainPlan) -> Sheet[TrainCandidate]:
    texts, shared = differences([layout_text(one) for one in plan.best])
    columns: list[Column[TrainCandidate]] = [
        Column("step_s", "step", "s"),
        Column("mfu", "MFU", "share"),
        Column("memory.total_bytes", "memory", "B", lambda one: one.memory["total_bytes"]),
    ]
    if plan.tokens is not None:
        columns += [Column("days", "days", "1"), Column("usd", "cost", "USD")]
    columns.append(Column("layout", "layout", "words", lambda one: texts[plan.best.index(one)]))
    title = "the fastest, one of each tp, pp, cp, ep"
    return Sheet("fastest", columns, plan.best, title, f"all {shared.replace(',', ', ')}" if shared else "")


def _footer(plan: TrainPlan, elapsed_s: float) -> Prose:
    system, each = plan.system, 4 if plan.system.lora_rank else 6
    notes = "".join(f" {note}." for note in system.precision.notes)
    return Prose(
        f"{several(plan.candidates_evaluated, 'run')} considered, {plan.candidates_timed:,} of them timed as they fit, "
        f"{format_seconds(elapsed_s)}; stack {system.stack.name}, kernels {system.calibration.name}. "
        f"Schedules: {', '.join(plan.schedules) or 'none, the stack has no pipeline'} (--schedule for others). "
        f"MFU counts {each} FLOP per token and active parameter and the whole attention square, as PaLM does, "
        f"over the dense peak of the products' type ({system.precision.compute}); causal: the half of the "
        f"square that a causal mask leaves; HFU adds what is run again.{notes}",
        style="dim",
    )


ROW_HEIGHT = 20
MOST_SLOTS = 3000
_MOST_PARTS = 7
_MOST_CHUNKS = 8  # of which a legend says the shades
_OTHER = "other"
PRACTICE = "published over tuned"


def pipeline_figure(
    timeline: Timeline,
    *,
    title: str,
    bubble_fraction: float | None = None,
    note: str = "",
    tail: Mapping[str, float] | None = None,
) -> Figure:
    """What each stage does when: one box a slot, a gap where it waits; darker and lighter chunks of one stage.

    Of a long step the first slots are shown.

    Args:
        timeline: of one step.
        title: above the figure.
        bubble_fraction: share of the step in which a stage waits, where the timeline is only a part of the step; that
            of the timeline by default.
        note: how the timeline differs from the step, empty where it is the step.
        tail: what every stage does after its passes → how long [s].
    """
    events = sorted(timeline.events, key=lambda event: event.start)[:MOST_SLOTS]
    rows: list[Row] = [
        {
            "stage": event.device,
            "op": SLOT_NAMES[event.slot.op],
            "micro_batch": event.slot.micro_batch,
            "chunk": event.slot.chunk,
            "start_s": event.start,
            "end_s": event.end,
        }
        for event in events
    ]
    end_s = max(row["end_s"] for row in rows)
    for name, seconds in (tail or {}).items():
        later: Row = {"op": name, "micro_batch": 0, "chunk": 0, "start_s": end_s, "end_s": end_s + seconds}
        rows += [{"stage": stage, **later} for stage in range(timeline.num_devices)]
        end_s += seconds
    start = Measure(field="start_s", title="time in the step", kind="seconds")
    chunks = sorted({row["chunk"] for row in rows})
    used = [name for name in (*SLOT_NAMES.values(), *(tail or {})) if any(row["op"] == name for row in rows)]
    encoding: Layer = {
        "x": linear_axis(start, [row["end_s"] for row in rows], margin=0.0),
        "x2": {"field": "end_s"},
        "y": {"field": "stage", "type": "ordinal", "title": "stage", "scale": {"paddingInner": 0.12}},
        "color": colour(used, "op"),
    }
    if len(chunks) > 1:
        encoding["opacity"] = {
            "field": "chunk",
            "type": "ordinal",
            "scale": {"domain": chunks, "range": [1.0 - 0.45 * i / (len(chunks) - 1) for i in range(len(chunks))]},
            "legend": {"title": "chunk"} if len(chunks) <= _MOST_CHUNKS else None,
        }
    shown = [
        Measure(field="op", title="what"),
        Measure(field="stage", title="stage", kind="count"),
        Measure(field="micro_batch", title="micro-batch", kind="count"),
        Measure(field="chunk", title="chunk", kind="count"),
        start,
        Measure(field="end_s", title="until", kind="seconds"),
    ]
    bubble = waits_text(timeline, bubble_fraction)
    cut = f"; the first {len(events):,} of {len(timeline.events):,} slots" if len(events) < len(timeline.events) else ""
    return Figure(
        title=title,
        subtitle=f"{format_seconds(timeline.step_s)}, {bubble}{cut}{note}",
        description=f"What each of {timeline.num_devices} stages does over one step of "
        f"{format_seconds(timeline.step_s)}; {bubble}.",
        spec=layered(rows, hovered({"type": "bar", "strokeWidth": 0.3}, encoding, shown)),
        width=900,
        height=max(ROW_HEIGHT * timeline.num_devices, 80),
    )


def step_figure(plan: TrainPlan) -> Figure:
    """Where the time of a step goes, one bar for each of the fastest layouts."""
    title = f"{_name(plan)}: where the time of a step goes"
    if not plan.best:
        return nothing_figure(title, plan.reason)
    texts, shared = differences([layout_text(one) for one in plan.best])
    bars = {f"{text}, MFU {percent(one.mfu)}": _shares(plan, one) for text, one in zip(texts, plan.best, strict=True)}
    first = _shares(plan, plan.best[0])
    names = dict.fromkeys(part for each in bars.values() for part in each)
    order = sorted(names, key=lambda part: -first.get(part, 0.0))
    parts = [*order[:_MOST_PARTS], _OTHER] if len(order) > _MOST_PARTS + 1 else order
    for each in bars.values():
        rest = sum(each.pop(part) for part in [*each] if part not in parts)
        if rest > 0.0:
            each[_OTHER] = rest
    best = plan.best[0]
    words = ", ".join(f"{part} {format_seconds(first[part])}" for part in order[:4] if part in first)
    return stacked_bars(
        bars,
        parts,
        Measure(field="seconds", title="time of a step", kind="seconds"),
        title=title,
        subtitle=f"{_fastest(shared)}; stack {plan.system.stack.name}",
        description=f"The fastest step takes {format_seconds(best.step_s)} with {layout_text(best)}: {words}.",
    )


def mfu_figure(plan: TrainPlan) -> Figure:
    """Where the MFU that is missing went: from the peak down to what the best run reaches, a bar a loss.

    Products and attention are split into the time that their causal FLOP take at the peak, which is the MFU, and what
    they take beyond it.
    """
    title = f"{_name(plan)}: where the missing MFU went"
    if not plan.best:
        return nothing_figure(title, plan.reason)
    best = plan.best[0]
    parts = {name: seconds / best.step_s for name, seconds in _shares(plan, best).items()}
    computed = parts.pop("products", 0.0) + parts.pop("attention", 0.0)
    lost = {"products and attention below the peak": computed - best.mfu_causal, **parts}
    order = sorted((name for name in lost if lost[name] >= LEAST_SHARE), key=lambda name: -lost[name])
    smaller = 1.0 - best.mfu_causal - sum(lost[name] for name in order)
    steps = [*((name, lost[name]) for name in order), *([("smaller parts", smaller)] if smaller > 1e-4 else [])]
    rows: list[Row] = [{"part": "peak", "from": 0.0, "to": 1.0, "share": 1.0}]
    left = 1.0
    for name, size in steps:
        rows.append({"part": name, "from": left - size, "to": left, "share": size})
        left -= size
    rows.append({"part": "MFU (causal)", "from": 0.0, "to": left, "share": left})
    x = linear_axis(Measure(field="from", title="share of the peak", kind="share"), [0.0, 1.0], margin=0.0)
    names = [row["part"] for row in rows]
    y = name_axis("part", names, axis={"labelLimit": 260, "domain": False}, paddingInner=0.25)
    place: Layer = {"x": x, "x2": {"field": "to"}, "y": y}
    shown = [Measure(field="part", title="part"), Measure(field="share", title="share of the peak", kind="share")]
    ends = [{**row, "text": percent(row["share"])} for row in rows]
    words = ", ".join(f"{name} {percent(size)}" for name, size in steps[:4])
    return Figure(
        title=title,
        subtitle=f"{layout_text(best)}; stack {plan.system.stack.name}",
        description=f"Of the peak {percent(left)} are reached (causal FLOP); lost: {words}.",
        spec={
            "data": {"values": rows[1:-1]},
            "layer": [
                hovered({"type": "bar"}, place, shown),
                hovered({"type": "bar", "style": "muted"}, place, shown, data={"values": [rows[0], rows[-1]]}),
                {
                    "data": {"values": ends},
                    "mark": {"type": "text", "align": "left", "dx": 4},
                    "encoding": {"x": {**x, "field": "to"}, "y": y, "text": {"field": "text"}},
                },
            ],
        },
        width=620,
        height=26 * len(rows),
    )


def train_memory_figure(plan: TrainPlan) -> Figure:
    """Memory of the fullest chip by kind, one bar for each of the fastest layouts."""
    has = plan.system.cluster.chip.hbm_bytes
    title = f"{_name(plan)}: memory of the fullest chip"
    if not plan.best:
        found = plan.misfit
        return nothing_figure(title, plan.reason) if found is None else memory_figure(found.memory, title, found)
    texts, shared = differences([layout_text(one) for one in plan.best])
    bars = {
        text: {kind.replace("_", " "): held for kind, held in _held(one).items()}
        for text, one in zip(texts, plan.best, strict=True)
    }
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    best = plan.best[0]
    return stacked_bars(
        bars,
        parts,
        Measure(field="held_bytes", title="memory of the fullest chip", kind="bytes"),
        title=title,
        subtitle=_fastest(shared),
        description=f"The fastest, {layout_text(best)}, holds {format_bytes(best.memory['total_bytes'])} of "
        f"{format_bytes(has)}.",
        marks={f"chip: {format_bytes(has)}": has},
    )


def pipeline_of_plan(plan: TrainPlan) -> Figure:
    """What the stages of the fastest run do over time, with the exchange of gradients and the update at the end."""
    if not plan.best:
        return nothing_figure(f"{_name(plan)}: timeline of a step", plan.reason)
    best, timeline = plan.best[0], timeline_of(plan, plan.best[0])
    return pipeline_figure(
        timeline,
        title=f"{_name(plan)}: {layout_text(best)}",
        bubble_fraction=best.bubble_fraction,
        note=shown_note(plan, best, timeline),
        tail={
            "exchange": float(best.step["data_s"]),
            "update": float(best.step["optimizer_s"]) + float(best.step["fixed_s"]),
        },
    )


def _shares(plan: TrainPlan, one: TrainCandidate) -> dict[str, float]:
    """Where the time of a step goes, with what published runs take over a tuned step [s]."""
    found = shares(one.step, plan.system.global_batch_sequences / (one.layout.dp * one.layout.micro_batch))
    slower = one.step_s - one.tuned_s
    return {**found, PRACTICE: slower} if slower > 0.0 else found


def _fastest(shared: str) -> str:
    return "the fastest, one of each tp, pp, cp, ep" + (f"; all {shared}" if shared else "")


def _name(plan: TrainPlan) -> str:
    job = plan.system
    return f"{job.model.name} on {job.cluster.num_chips:,} × {job.cluster.chip.name}"
