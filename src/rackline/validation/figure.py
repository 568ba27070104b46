"""The parity plot: predicted over measured, one mark a value."""

from __future__ import annotations

from typing import Any

from rackline.report.figures import BLUE, GREEN, GREY, ORANGE, Figure
from rackline.validation.scoreboard import Score, Scoreboard

_COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MOST_POINTS = 4000


def parity_figure(board: Scoreboard) -> Figure:
    """All values of a scoreboard on log axes, with the diagonal and the band of 20 % around it."""
    kept = _thinned(board.scores)
    values = [value for score in kept for value in (score.measured, score.predicted) if value > 0] or [1.0, 10.0]
    ends = (min(values), max(values))
    data = [
        _line("predicted = measured", ends, 1.0, GREY),
        _line("20 % more", ends, 1.2, "#bbbbbb"),
        _line("20 % less", ends, 0.8, "#bbbbbb"),
    ]
    for index, metric in enumerate(dict.fromkeys(score.metric for score in kept)):
        scores = [score for score in kept if score.metric == metric and score.predicted > 0]
        data.append(
            {
                "type": "scatter",
                "name": metric,
                "mode": "markers",
                "x": [score.measured for score in scores],
                "y": [score.predicted for score in scores],
                "text": [_hover(score) for score in scores],
                "marker": {"color": _COLORS[index % len(_COLORS)], "symbol": "circle", "size": 5},
                "line": {"color": _COLORS[index % len(_COLORS)]},
            }
        )
    title = f"predicted over measured, {len(board.scores):,} values"
    if len(kept) < len(board.scores):
        title += f" ({len(kept):,} shown)"
    unit = "s, or tokens/s" if any(score.metric.endswith("_per_s") for score in kept) else "s"
    return {
        "data": data,
        "layout": {
            "title": {"text": title},
            "xaxis": {"type": "log", "title": {"text": f"measured [{unit}]"}},
            "yaxis": {"type": "log", "title": {"text": f"predicted [{unit}]"}},
            "shapes": [],
        },
    }


def _thinned(scores: tuple[Score, ...]) -> tuple[Score, ...]:
    step = -(-len(scores) // _MOST_POINTS)
    return scores[:: max(step, 1)]


def _line(name: str, ends: tuple[float, float], factor: float, color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "x": list(ends),
        "y": [end * factor for end in ends],
        "marker": {"color": color, "symbol": "circle", "size": 5},
        "line": {"color": color},
    }


def _hover(score: Score) -> str:
    names = [score.groups[key] for key in ("model", "op", "chip", "stack", "precision") if score.groups[key]]
    return (
        f"{score.case_id}\n{', '.join(names)}\n{score.metric}: measured {score.measured:.4g}, "
        f"predicted {score.predicted:.4g} ({score.error:+.0%})"
    )
