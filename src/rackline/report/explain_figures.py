"""Figures of a pass: its rows under the roofline, its time row by row, its memory; where its numbers come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rackline.display.axes import (
    BAR_HEIGHT,
    LONGEST_LABEL,
    SERIES,
    Layer,
    Measure,
    Row,
    colour,
    dashes,
    hovered,
    layered,
    limit,
    linear_axis,
    log_axis,
    marked,
    name_axis,
    nothing_figure,
    stacked_bars,
)
from rackline.display.figure import Figure
from rackline.display.wording import RESOURCE_NAMES, percent, share, short_count
from rackline.errors import RacklineError
from rackline.hardware import chip_record, cluster_record
from rackline.parallel import ServerMemory
from rackline.parallel.memory import fitting_sequences
from rackline.parallel.precision import compute_dtype
from rackline.passes import UNIT, Batch, PassTime, RowTime
from rackline.passes.features import Array, as_array
from rackline.report.explain_report import Explanation, amount_text
from rackline.units import format_bytes, format_flop_rate, format_rate, format_seconds

_BINDS = tuple(RESOURCE_NAMES.values())
_INTENSITY = Measure(field="flop_per_byte", title="arithmetic intensity [FLOP/B]", kind="count")
_RATE = Measure(field="flop_per_s", title="FLOP/s reached", kind="flop_per_s")
_START = Measure(field="start_s", title="time in the pass", kind="seconds")
_OPERATION = Measure(field="operation", title="operation")
_SECONDS = Measure(field="seconds", title="time", kind="seconds")
_SHARE = Measure(field="share", title="share of the rows", kind="share")
_BOUND = Measure(field="binds", title="binds")
_BATCH = Measure(field="batch_size", title="batch: sequences of a replica", kind="count")
_STEP = Measure(field="seconds", title="time of a decode step", kind="seconds")
_OUTPUT = Measure(field="output_tokens_per_s_per_chip", title="output tokens/s per chip", kind="count")
_CONTEXTS = (0.25, 1.0, 4.0)  # of the one that was asked for
_MOST_SEQUENCES = 4096.0  # of one rank
_MOST_NAMED, _SMALLER = 6, "smaller rows"
_LEAST_SHARE = 0.005
_MOST_KINDS = 3
_WIDTH, _HEIGHT = 640, 400


def roofline_figure(explanation: Explanation) -> Figure:
    """The rows of a pass under the roofs of the chip: FLOP/s reached over FLOP per byte of memory traffic.

    Rows without arithmetic or without memory traffic, such as those on links, have no place in it.
    """
    chip, time = explanation.deployment.cluster.chip, explanation.time
    total = sum(row.seconds for row in time.rows if row.used)
    drawn = [row for row in time.rows if _has_place(row)]
    rows: list[Row] = [
        {
            "operation": row.name,
            "series": row.name,
            "flop_per_byte": row.amounts["compute"] / row.amounts["hbm"],
            "flop_per_s": row.amounts["compute"] / row.seconds,
            "seconds": row.seconds,
            "share": share(row.seconds, total),
            "binds": RESOURCE_NAMES.get(row.binds, row.binds),
            "dtype": row.dtype,
        }
        for row in drawn
    ]
    found = {compute_dtype(row.dtype, chip) for row in drawn}
    peaks = {name: chip.flop_per_s(name) for name in sorted(found) if chip.supports(name)}
    ridges = [peak / chip.hbm_bytes_per_s for peak in peaks.values()]
    x = log_axis(_INTENSITY, [*(row["flop_per_byte"] for row in rows), *(5.0 * ridge for ridge in ridges)])
    y = log_axis(_RATE, [*(row["flop_per_s"] for row in rows), *(1.5 * peak for peak in peaks.values())])
    low, high = x["scale"]["domain"]
    roofs: list[Row] = [
        {"roof": name, "flop_per_byte": at, "flop_per_s": min(peak, at * chip.hbm_bytes_per_s)}
        for name, peak in peaks.items()
        for at in (low, peak / chip.hbm_bytes_per_s, high)
    ]
    place: Layer = {"x": x, "y": y}
    ordered = sorted(rows, key=lambda row: -row["share"])
    names = [row["operation"] for row in ordered[:_MOST_NAMED]]
    for row in ordered[_MOST_NAMED:]:
        row["series"] = _SMALLER
    names += [_SMALLER] if len(ordered) > _MOST_NAMED else []
    line = {"type": "line", "style": "reference", "strokeDash": [1, 0], "strokeWidth": 1.6, "clip": True}
    named = {"type": "text", "style": "muted-text", "align": "right", "baseline": "bottom", "dx": -4, "dy": -4}
    area = {"field": "share", "type": "quantitative", "scale": {"domain": [0, 1], "range": [40, 1600]}, "legend": None}
    seen = sum(row["share"] for row in rows)
    return Figure(
        title=_title(explanation, "rows under the roofline"),
        subtitle=f"area: share of the time; {percent(1.0 - seen)} of it is in rows that only move data. "
        f"{_under(explanation)}",
        description=f"FLOP/s reached over FLOP per byte of the {len(rows)} rows that compute, with the roofs of "
        f"{chip.name}. " + _longest(time.rows, total),
        spec=layered(
            rows,
            marked(roofs, {**place, "detail": {"field": "roof", "type": "nominal"}}, **line),
            marked(
                [row for row in roofs if row["flop_per_byte"] == high], {**place, "text": {"field": "roof"}}, **named
            ),
            hovered(
                {"type": "point", "opacity": 0.85},
                {**place, "color": colour(names), "size": area},
                [_OPERATION, _INTENSITY, _RATE, _SECONDS, _SHARE, _BOUND, Measure(field="dtype", title="type")],
            ),
        ),
    )


def waterfall_figure(explanation: Explanation) -> Figure:
    """The time of a pass, row by row: each begins where the one before ended, in its stream where streams overlap."""
    title = _title(explanation, "where the time goes")
    return pass_waterfall(explanation.time, title, _under(explanation), ideal_s=explanation.ideal.seconds)


def pass_waterfall(time: PassTime, title: str, subtitle: str, *, ideal_s: float | None = None) -> Figure:
    """The waterfall of any pass.

    Args:
        title: of the figure.
        subtitle: its last words: what the pass is of.
        ideal_s: the same pass on the blackboard; None to leave it out [s].
    """
    used = [row for row in time.rows if row.used and row.seconds > 0.0]
    total = sum(row.seconds for row in used)
    small = [row.seconds for row in used if row.seconds < _LEAST_SHARE * total]
    rows: list[Row] = []
    ends: dict[str, float] = {}
    for row in used:
        if row.seconds >= _LEAST_SHARE * total:
            stream = row.stream if time.policy == "overlap" else ""
            start = ends.get(stream, 0.0)
            ends[stream] = start + row.seconds
            rows.append(_step(row.name, start, row.seconds, total, RESOURCE_NAMES.get(row.binds, row.binds)))
    last = max(ends.values(), default=0.0)
    if small:
        rows.append(_step(f"{len(small)} smaller", last, sum(small), total, "overhead"))
    if time.host_s > 0.0:
        rows.append(_step("host", last + sum(small), time.host_s, total, "overhead"))
    whole: Row = {**_step("pass", 0.0, time.seconds, total, ""), "share": None}
    drawn = [*rows, whole]
    x = linear_axis(_START, [*(row["end_s"] for row in drawn), ideal_s or 0.0])
    y = name_axis(
        "operation",
        [row["operation"] for row in drawn],
        axis={"labelLimit": LONGEST_LABEL, "domain": False},
        paddingInner=0.25,
    )
    place: Layer = {"x": x, "x2": {"field": "end_s"}, "y": y}
    binds = [name for name in _BINDS if any(row["binds"] == name for row in rows)]
    shown = [_OPERATION, _SECONDS, _SHARE, _BOUND]
    how = {"serial": "sum of the rows", "overlap": "streams side by side", "blackboard": "longest resource"}
    beside = "" if ideal_s is None else f", on the blackboard {format_seconds(ideal_s)}"
    return Figure(
        title=title,
        subtitle=f"{format_seconds(time.seconds)} a pass ({how[time.policy]}). {subtitle}",
        description=f"A pass takes {format_seconds(time.seconds)}{beside}. " + _longest(time.rows, total),
        spec=layered(
            rows,
            hovered({"type": "bar"}, {**place, "color": colour(_BINDS, "binds", title="binds", used=binds)}, shown),
            hovered({"type": "bar", "style": "muted"}, place, shown, data={"values": [whole]}),
            *([] if ideal_s is None else limit("x", x, ideal_s, f"blackboard {format_seconds(ideal_s)}")),
            marked(
                [{**row, "text": format_seconds(row["seconds"]).replace(" us", " µs")} for row in drawn],
                {"x": {**x, "field": "end_s"}, "y": y, "text": {"field": "text"}},
                type="text",
                align="left",
                dx=4,
            ),
        ),
        width=560,
        height=BAR_HEIGHT * len(drawn),
    )


def memory_figure(explanation: Explanation) -> Figure:
    """What the fullest chip holds: weights by kind, cache, activations, runtime, and what stays free."""
    memory = explanation.memory
    weights = ((f"weights: {kind}", float(value)) for kind, value in memory.weights.items())
    kinds = sorted(weights, key=lambda kind: -kind[1])
    held = {
        **dict(kinds[:_MOST_KINDS]),
        "other weights": sum(value for _, value in kinds[_MOST_KINDS:]),
        "KV cache": float(memory.kv_cache),
        "activations": float(memory.activations),
        "runtime": float(np.asarray(memory.runtime)),
        "free": max(float(memory.free), 0.0),
    }
    text = f"{format_bytes(float(memory.used))} of {format_bytes(float(memory.usable))} usable"
    return stacked_bars(
        {"fullest chip": held},
        list(held),
        Measure(field="held_bytes", title="memory", kind="bytes"),
        title=_title(explanation, "memory of the fullest chip"),
        subtitle=f"{text}; {_under(explanation)}",
        description=f"The fullest chip holds {text}: "
        + ", ".join(f"{name} {format_bytes(value)}" for name, value in held.items() if value > 0.0)
        + ".",
        marks={"usable": float(memory.usable), "chip": memory.total},
    )


def curves_figure(explanation: Explanation, server: ServerMemory) -> Figure:
    """A decode step and its output against the batch, at several contexts, up to the batch that fits.

    Args:
        server: what the stack reserves beside weights and cache.
    """
    deployment, layout = explanation.deployment, explanation.deployment.layout
    ranks = layout.attention_dp * layout.pp
    asked = explanation.context_len
    contexts = [asked * factor for factor in _CONTEXTS]
    fits = fitting_sequences(
        deployment.model, layout, deployment.precision, deployment.cluster.chip, server, np.array(contexts)
    )
    rows: list[Row] = []
    for context, most in zip(contexts, fits.reshape(-1).tolist(), strict=True):
        per_rank = _batches(most)
        if not len(per_rank):
            continue
        batch = Batch(
            decode_sequences=per_rank,
            context_len=np.full(per_rank.shape, context),
            group_tokens=per_rank * layout.attention_dp,
        )
        seconds = np.broadcast_to(as_array(explanation.table.seconds(batch)), per_rank.shape)
        series = f"{short_count(context)} tokens"
        rows += [
            {
                "series": series,
                "batch_size": float(size * ranks),
                "seconds": float(step),
                "output_tokens_per_s_per_chip": float(size * ranks / step / layout.chips_per_replica),
            }
            for size, step in zip(per_rank, seconds, strict=True)
        ]
    if not rows:
        return nothing_figure(_title(explanation, "batch and context"), "No sequence fits beside the weights.")
    names = list(dict.fromkeys(row["series"] for row in rows))
    return Figure(
        title=_title(explanation, "batch and context"),
        subtitle=f"context of each sequence by colour; lines end where the cache is full; {layout.label()}, "
        f"{deployment.precision.short()}, {explanation.time.calibration}",
        description=f"Time of a decode step and output tokens per second and chip against the batch of a replica, on "
        f"log axes, for contexts of {', '.join(names)}.",
        spec={"data": {"values": rows}, "hconcat": [_curve(rows, names, measure) for measure in (_STEP, _OUTPUT)]},
    )


def _batches(most: float) -> Array:
    """Sequences of a rank: powers of two, and the most that fit."""
    if most < 1.0:
        return np.array([])
    most = min(most, _MOST_SEQUENCES)
    return np.unique(np.append(2.0 ** np.arange(0.0, math.floor(math.log2(most)) + 1.0), most))


def _curve(rows: Sequence[Row], names: Sequence[str], measure: Measure) -> Layer:
    dots = {
        "x": log_axis(_BATCH, [row[_BATCH.field] for row in rows], most=6),
        "y": log_axis(measure, [row[measure.field] for row in rows], most=7),
        "color": colour(names, title="context"),
    }
    encoding = {**dots, "strokeDash": {**dashes(names), "legend": dots["color"]["legend"]}}
    return {
        "width": 360,
        "height": 320,
        "layer": [
            {"mark": {"type": "line"}, "encoding": encoding},
            hovered({"type": "point", "size": 26}, dots, [SERIES, _BATCH, _STEP, _OUTPUT]),
        ],
    }


def _has_place(row: RowTime) -> bool:
    return (
        row.used and row.seconds > 0.0 and row.amounts.get("compute", 0.0) > 0.0 and row.amounts.get("hbm", 0.0) > 0.0
    )


def _step(name: str, start: float, seconds: float, total: float, binds: str) -> Row:
    times = {"start_s": start, "end_s": start + seconds, "seconds": seconds}
    return {"operation": name, **times, "share": share(seconds, total), "binds": binds}


def _title(explanation: Explanation, what: str) -> str:
    deployment = explanation.deployment
    return f"{deployment.model.name} on {deployment.cluster.name}: {what}"


def _under(explanation: Explanation) -> str:
    deployment = explanation.deployment
    layout = deployment.layout.label()
    return f"{layout}, {deployment.precision.short()}, batch {explanation.batch_size:,}, {explanation.time.calibration}"


def _longest(rows: tuple[RowTime, ...], total: float) -> str:
    used = sorted((row for row in rows if row.used), key=lambda row: -row.seconds)[:3]
    texts = [f"{row.name} {percent(share(row.seconds, total))}" for row in used if math.isfinite(row.seconds)]
    return f"Longest: {', '.join(texts)}."


if TYPE_CHECKING:
    from rackline.passes.row import Resource

_LINKS = ("scale_up", "scale_out")


def row_origins(explanation: Explanation) -> list[dict[str, Any]]:
    """The rows that count, each with its numbers and what they are made of.

    Returns:
        For each row its name, what it is (`formula`), `seconds`, `ideal_s`, share of the pass, what binds, whose
        numbers time it (`timed_by`, with the error on shapes that the fit did not see), and `numbers`: by column
        (compute, hbm, link, fixed, rest) the seconds and the lines that say what they result from.
    """
    table, time = explanation.table, explanation.time
    found: list[dict[str, Any]] = []
    for row, at, ideal in zip(table.rows, time.rows, explanation.ideal.rows, strict=True):
        if not at.used or not at.seconds:
            continue
        error = table.row_numbers(row).median_error
        known = "no error on other shapes is known" if math.isnan(error) else f"{percent(error)} off on unseen shapes"
        links = max(at.resource_s.get(name, 0.0) for name in _LINKS)
        numbers = {
            name: {"seconds": at.resource_s[name], "lines": [*_lines(explanation, row.name, name)]}
            for name in ("compute", "hbm")
            if at.resource_s.get(name)
        }
        if links:
            lines = [line for name in _LINKS if at.resource_s.get(name) for line in _lines(explanation, row.name, name)]
            numbers["link"] = {"seconds": links, "lines": lines}
        if at.overhead_s:
            text = f"launches and message steps take {format_seconds(at.overhead_s)}, {at.evidence}: {at.origin}"
            numbers["fixed"] = {"seconds": at.overhead_s, "lines": [text]}
        if at.rest_s:
            text = "what the shorter resources leave exposed beside the longest, and the ramp of mid-size messages"
            numbers["rest"] = {"seconds": at.rest_s, "lines": [text]}
        found.append(
            {
                "name": row.name,
                "formula": row.formula,
                "seconds": at.seconds,
                "ideal_s": ideal.seconds if ideal.used else None,
                "share": at.seconds / time.seconds,
                "binds": at.binds,
                "timed_by": f"{at.evidence}: {at.origin}, {row.dtype}; {known}",
                "numbers": numbers,
            }
        )
    return found


def _lines(explanation: Explanation, name: str, resource: Resource) -> Iterator[str]:
    """Amount, rate that is reached, and the peak with its source."""
    table = explanation.table
    row = next(one for one in table.rows if one.name == name)
    at = next(one for one in explanation.time.rows if one.name == name)
    amount, seconds = at.amounts[resource], at.resource_s[resource]
    write = format_flop_rate if resource == "compute" else format_rate
    yield amount_text(row, resource, amount, explanation.time.features).plain
    peak = float(cast("float", table.with_calibration(UNIT).row_numbers(row).rates[resource]))
    reached = amount / seconds
    yield (
        f"{format_seconds(seconds)} at {write(reached)}, {percent(reached / peak)} of the peak of {write(peak)}; "
        f"the share is {at.evidence}: {at.origin}"
    )
    yield f"peak: {_source(explanation, resource, row.compute_dtype or row.dtype, peak)}"


def _source(explanation: Explanation, resource: Resource, dtype: str, peak: float) -> str:
    """Who states the peak of a resource."""
    cluster = explanation.deployment.cluster
    if resource in _LINKS:
        owner, key, read = cluster.name, f"levels.{resource}.bytes_per_s_each_way", cluster_record
    else:
        owner, read = cluster.chip.name, chip_record
        key = "hbm_bytes_per_s" if resource == "hbm" else f"peak_flop_per_s.{dtype}"
    try:
        record = read(owner)
    except RacklineError:  # a file of the reader's own
        return f"{key} of {owner}"
    if not math.isclose(record.numbers().get(key, peak), peak):
        return f"{key} of {owner}, with what was set in the question"
    source = record.source_of(key)
    if source is None:
        return f"{key} of {owner}"
    cited = ", ".join(part for part in (source.citation, source.url) if part)
    return f"{key} of {owner}, {source.kind}: {cited}"
