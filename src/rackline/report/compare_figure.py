"""The figure of a comparison: each number over that of the first."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.report.axes import BAR_HEIGHT, LONGEST_LABEL, Layer, Measure, Row, colour, hovered, limit, log_axis
from rackline.report.compare_report import Side, ratio, written
from rackline.report.figure import Figure

_RATIO = Measure(field="ratio", title="over the first", kind="number")


def compare_figure(sides: Sequence[Side], *, what: str) -> Figure:
    """Each number of each thing over that of the first, on a log axis.

    Args:
        sides: what is compared, the first is 1.
        what: their kind.
    """
    rows: list[Row] = []
    names: list[str] = []
    for key in sides[0].values:
        label = written(key, sides[0].values[key])[0]
        found = [(side, value) for side in sides if (value := ratio(side.values[key], sides[0].values[key]))]
        if len(found) < 2:
            continue
        names.append(label)
        rows += [
            {"number": label, "side": side.name, "ratio": value, "value": written(key, side.values[key])[1]}
            for side, value in found
            if side is not sides[0]
        ]
    others = [side.name for side in sides[1:]]
    x = log_axis(_RATIO, [1.0, *(row["ratio"] for row in rows)])
    x["axis"]["labelExpr"] = f"{x['axis']['labelExpr']} + ' ×'"
    y: Layer = {"field": "number", "type": "nominal", "sort": names, "title": None}
    y |= {"axis": {"labelLimit": LONGEST_LABEL, "ticks": False, "grid": True}, "scale": {"padding": 0.9}}
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
    chosen = [shapes[index % len(shapes)] for index in range(len(others))]
    shown = [
        Measure(field="side", title=what.removesuffix("s")),
        Measure(field="number", title="number"),
        Measure(field="value", title="value"),
        _RATIO,
    ]
    encoding: Layer = {
        "x": x,
        "y": y,
        "color": colour(others, "side"),
        "shape": {**colour(others, "side"), "scale": {"domain": others, "range": chosen}},
    }
    texts = [
        f"{name} " + ", ".join(f"{row['number']} {row['ratio']:.3g} ×" for row in rows if row["side"] == name)
        for name in others
    ]
    return Figure(
        title=f"{what.capitalize()} side by side",
        subtitle=f"each number over that of {sides[0].name}",
        description=f"Ratios to {sides[0].name} on a log axis: {'; '.join(texts)}.",
        spec={
            "data": {"values": rows},
            "layer": [
                *limit("x", x, 1.0, sides[0].name, "reference"),
                hovered({"type": "point", "size": 80, "opacity": 0.9}, encoding, shown),
            ],
        },
        width=520,
        height=BAR_HEIGHT * (max(len(names), 2) + 1),
    )
