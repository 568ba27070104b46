"""The parity plot: predicted over measured, one mark per value."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.report.axes import Kind, Layer, Measure, Row, colour, hovered, linear_axis, log_axis, thinned
from rackline.report.figure import Figure
from rackline.report.wording import percent
from rackline.validation.diagnosis import Diagnosis
from rackline.validation.scoreboard import Score, Scoreboard

_MOST_POINTS = 4000
_BAND = 0.2
_LEAST_PROBABILITY = 0.01
_UNITS: tuple[tuple[Kind, str], ...] = (("seconds", "time"), ("count", "rate [tokens/s]"))


def parity_figure(board: Scoreboard) -> Figure:
    """All values of a scoreboard on log axes, with the diagonal and the band of 20 % around it; views by unit."""
    kept = [board.scores[index] for index in thinned(len(board.scores), _MOST_POINTS)]
    kept = [score for score in kept if score.predicted > 0 and score.measured > 0]
    views = [
        _view(found, kind, unit)
        for kind, unit in _UNITS
        if (found := [score for score in kept if _kind(score) == kind])
    ]
    metrics = "; ".join(
        f"{name} median error {stats.median_abs_error:.1%} of {stats.n:,}"
        for name, stats in board.metrics.items()
        if stats.n
    )
    shown = "" if len(kept) == len(board.scores) else f", {len(kept):,} shown"
    return Figure(
        title=f"Predicted over measured: {len(board.scores):,} values{shown}",
        subtitle=f"band: within {percent(_BAND)}; calibration {board.calibration}",
        description=f"Predicted against measured values on log axes, with the diagonal. {metrics}.",
        spec={"hconcat": views, "resolve": {"scale": {"color": "independent"}}} if len(views) != 1 else views[0],
        width=420,
        height=420,
    )


def _view(scores: list[Score], kind: Kind, unit: str) -> Layer:
    measured = Measure(field="measured", title=f"measured {unit}", kind=kind)
    predicted = Measure(field="predicted", title=f"predicted {unit}", kind=kind)
    names = list(dict.fromkeys(_name(score.metric) for score in scores))
    rows = [
        {
            "series": _name(score.metric),
            "measured": score.measured,
            "predicted": score.predicted,
            "error": score.error,
            "case_id": score.case_id,
            **{key: score.groups[key] for key in ("model", "op", "chip", "stack", "precision") if score.groups[key]},
        }
        for score in scores
    ]
    values = [value for score in scores for value in (score.measured, score.predicted)]
    x, y = log_axis(measured, values, most=7), log_axis(predicted, values, most=7)
    low, high = x["scale"]["domain"]
    ends = [{"measured": at, "low": at * (1 - _BAND), "high": at * (1 + _BAND), "predicted": at} for at in (low, high)]
    data = {"values": ends}
    keys = [key for key in ("model", "op", "chip", "stack", "precision") if any(key in row for row in rows)]
    return {
        "width": 420,
        "height": 420,
        "data": {"values": rows},
        "layer": [
            {
                "data": data,
                "mark": {"type": "area", "style": "band", "clip": True},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "data": data,
                "mark": {"type": "line", "style": "reference", "strokeWidth": 1.4, "clip": True},
                "encoding": {"x": x, "y": y},
            },
            hovered(
                {"type": "point", "size": 14, "opacity": 0.6},
                {"x": x, "y": y, "color": colour(names, width=420)},
                [
                    Measure(field="case_id", title="case"),
                    Measure(field="series", title="metric"),
                    *(Measure(field=key, title=key) for key in keys),
                    measured,
                    predicted,
                    Measure(field="error", title="error", kind="share"),
                ],
            ),
        ],
    }


_NAMES = {"tpot_s": "time per output token", "ttft_s": "time to first token", "request_s": "whole request"}


def _name(metric: str) -> str:
    """Display name of a metric."""
    return _NAMES.get(metric, metric.removesuffix("_s").replace("_", " "))


def _kind(score: Score) -> Kind:
    return "count" if score.metric.endswith("_per_s") else "seconds"


_PROBABILITY = Measure(field="probability", title="probability", kind="share")


def causes_figure(runs: Sequence[Diagnosis]) -> Figure:
    """How likely each cause made a run slow, the runs by colour; causes that no run makes likely are left out."""
    kept = {one.cause.key for found in runs for one in found.suspects if one.probability >= _LEAST_PROBABILITY}
    rows: list[Row] = [
        {"run": found.run_id, "cause": one.cause.key, "title": one.cause.title, "probability": one.probability}
        for found in runs
        for one in found.suspects
        if one.cause.key in kept
    ] + [
        {"run": found.run_id, "cause": "nothing", "title": "nothing wrong", "probability": found.nothing}
        for found in runs
    ]
    x = linear_axis(_PROBABILITY, [0.0, 1.0], zero=True)
    y: Layer = {"field": "cause", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False}}
    names = [found.run_id for found in runs]
    shown = [Measure(field="run", title="run"), Measure(field="title", title="cause"), _PROBABILITY]
    encoding: Layer = {"x": x, "y": y, "color": colour(names, "run")}
    if len(names) > 1:
        encoding |= {"yOffset": {"field": "run", "type": "nominal", "sort": names}}
    words = "; ".join(f"{row['run']}: {row['cause']} {percent(row['probability'])}" for row in rows)
    return Figure(
        title="Why the server is slow",
        subtitle="probability of each cause, alone or with another",
        description=f"Probability of each cause. {words}.",
        spec={"data": {"values": rows}, "layer": [hovered({"type": "bar"}, encoding, shown)]},
        width=420,
        height=(len(kept) + 1) * max(22, 12 * len(names)),
    )
