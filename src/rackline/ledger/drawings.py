"""Figures of the guided lecture: curves over one axis, bars of named things, slots of a pipeline; numbers read off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from rackline.display.axes import Measure
from rackline.late import late

with late:
    from rackline.display import live_figures
    from rackline.display.figure import Figure

Form = Literal["lines", "rows", "slots"]
Reading = Literal["x", "y", "over", "idle"]
DIGITS = 8  # of a curve's points
SLOTS = ("forward", "backward", "gradient of weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure that one step or several show.

    Args:
        title: of the figure.
        of: what it is of, so that numbers can be checked: model, machine, data type.
        form: curves over `x`, bars along `y` with a name each, or slots of stages along `x`.
        x: what is along the horizontal axis of curves and slots.
        y: what is along the vertical axis of curves, and along bars.
        places: where the curves have their points, rising, shape (points,); a single one for bars.
        curves: values at these places by name.
        log: which axes are logarithmic: "xy", "x", "y" or "".
        least: lower end of a logarithmic axis of values, where curves begin far below what matters.
        slots: of a pipeline: (stage, kind of slot, micro-batch, start, end).
    """

    title: str
    of: str
    x: Measure
    y: Measure
    form: Form = "lines"
    places: tuple[float, ...] = ()
    curves: Mapping[str, tuple[float, ...]]
    log: str = "xy"
    least: float | None = None
    slots: tuple[tuple[int, str, int, float, float], ...] = ()

    def at(self, name: str, x: float) -> float:
        """The value of a curve at a place, between its points along straight lines on the figure's axes."""
        along, up = (np.log if axis in self.log else np.asarray for axis in "xy")
        found = np.interp(along(x), along(self.places), up(self.curves[name]))
        return float(np.exp(found) if "y" in self.log else found)

    def meeting(self, name: str, other: str) -> float:
        """The first place at which a curve comes from below another one to it, or from above."""
        along, up = (np.log if axis in self.log else np.asarray for axis in "xy")
        gap = up(self.curves[name]) - up(self.curves[other])
        (turns,) = np.nonzero((gap[:-1] != 0.0) & (np.sign(gap[1:]) != np.sign(gap[:-1])))
        if not len(turns):
            return float("nan")
        left, right = (along(self.places)[turns[0] + step] for step in (0, 1))
        before, after = gap[turns[0]], gap[turns[0] + 1]
        found = left + (right - left) * before / (before - after)
        return float(np.exp(found) if "x" in self.log else found)

    def lowest(self, name: str) -> float:
        """The place of the least value: the vertex of a parabola through the lowest point and its neighbours."""
        along, up = (np.log if axis in self.log else np.asarray for axis in "xy")
        x, y = along(self.places), up(self.curves[name])
        middle = int(np.clip(np.argmin(y), 1, len(y) - 2))
        left, right = x[middle] - x[middle - 1], x[middle + 1] - x[middle]
        falls, rises = (y[middle] - y[middle - 1]) / left, (y[middle + 1] - y[middle]) / right
        found = x[middle] - left / 2.0 - (left + right) / 2.0 * falls / (rises - falls)  # slopes are those of midpoints
        return float(np.exp(found) if "x" in self.log else found)

    def points(self, marks: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
        """Places and values of marks.

        Args:
            marks: each `on` a curve: `at` a place, where it `meets` another curve, or where a curve has its `least`.
        """
        found: list[tuple[float, float]] = []
        for mark in marks:
            if "meets" in mark:
                x = self.meeting(mark["on"], mark["meets"])
            elif "least" in mark:
                x = self.lowest(mark["least"])
            else:
                x = float(mark.get("at", 0.0))
            found.append((x, self.curves[mark["on"]][0] if self.form == "rows" else self.at(mark["on"], x)))
        return found

    def read(self, reading: Reading, marks: Sequence[Mapping[str, Any]]) -> float:
        """The number that a step reads from the figure.

        Args:
            reading: the place of the first mark, its value, its value over that of the second, or, of slots, the share
                of the time in which stages wait.
            marks: as in `points`.
        """
        match reading:
            case "idle":
                works = sum(end - start for *_, start, end in self.slots)
                return 1.0 - works / (max(slot[-1] for slot in self.slots) * len({stage for stage, *_ in self.slots}))
            case "over":
                first, second, *_ = self.points(marks)
                return first[1] / second[1]
            case "x":
                return self.points(marks)[0][0]
            case "y":
                return self.points(marks)[0][1]
            case _:
                assert_never(reading)

    def figure(self) -> Figure:
        """The figure that the page fills."""
        scale: dict[str, live_figures.Scale] = {axis: "log" if axis in self.log else "linear" for axis in "xy"}
        match self.form:
            case "slots":
                stage = Measure(field="stage", title=self.y.title)
                return live_figures.live_bars(self.title, self.x, stage, colour_title="slot", names=SLOTS)
            case "rows":
                return live_figures.live_rows(self.title, self.y, scale=scale["y"])
            case "lines":
                return live_figures.live_lines(self.title, self.x, self.y, x_scale=scale["x"], y_scale=scale["y"])
            case _:
                assert_never(self.form)

    def to_page(self) -> dict[str, Any]:
        """What the page draws, as plain data."""
        return {
            "title": self.title,
            "of": self.of,
            "form": self.form,
            "kinds": {"x": self.x.kind, "y": self.y.kind},
            "titles": {"x": self.x.title, "y": self.y.title},
            "log": self.log,
            "least": self.least,
            "places": _rounded(self.places),
            "curves": {name: _rounded(values) for name, values in self.curves.items()},
            "slots": self.slots,
        }


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def spread(low: float, high: float, *pinned: float, count: int = 121) -> NDArray[np.float64]:
    """Places in equal ratios between two ends, with further ones among them, shape (places,)."""
    return np.unique([*np.geomspace(low, high, count), *pinned])


def _values(values: Any) -> tuple[float, ...]:
    return tuple(float(one) for one in np.atleast_1d(np.asarray(values, dtype=np.float64)))


def line_drawing(
    title: str,
    of: str,
    x: tuple[str, Any],
    y: tuple[str, Any],
    places: Sequence[float] | NDArray[np.float64],
    curves: Mapping[str, Any],
    *,
    log: str = "xy",
    least: float | None = None,
) -> Drawing:
    """Curves; a single number is a level line."""
    places = np.asarray(places, dtype=np.float64)
    return Drawing(
        title=title,
        of=of,
        x=Measure(field="x", title=x[0], kind=x[1]),
        y=Measure(field="y", title=y[0], kind=y[1]),
        places=_values(places),
        curves={name: _values(np.broadcast_to(values, places.shape)) for name, values in curves.items()},
        log=log,
        least=least,
    )


def row_drawing(title: str, of: str, y: tuple[str, Any], values: Mapping[str, float], *, log: str = "y") -> Drawing:
    """A value for each of several things."""
    return Drawing(
        title=title,
        of=of,
        form="rows",
        x=Measure(field="series", title=""),
        y=Measure(field="y", title=y[0], kind=y[1]),
        places=(0.0,),
        curves={name: (value,) for name, value in values.items()},
        log=log,
    )
