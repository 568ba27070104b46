"""`rackline plan --what-if`: the optimum while one quantity varies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rackline.cli.screen import counting, print_json, screen
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.cli.plot import Plot
    from rackline.search import Plan
    from rackline.search.what_if import Sweep


def read_what_if(text: str | None, plot: str | None, traffic: str | None, launch: str | None) -> Sweep | None:
    """Read --what-if; None without it.

    Raises:
        InputError: a bad quantity, or options that belong to a single answer.
    """
    if text is None:
        return None
    for name, value in (("--traffic", traffic), ("--launch", launch)):
        if value is not None:
            raise InputError(what=name, given=value, allowed="a single plan, without --what-if")
    from rackline.search.what_if import read_sweep

    return read_sweep(text)


def show_what_if(
    sweep: Sweep, model: AnyModel, answer: Callable[[str], Plan], *, json: bool, drawing: Plot | None
) -> None:
    """Print (and plot) the optimum at each value.

    Args:
        answer: the plan with one more `--set` text.
    """
    from rackline.search.what_if import WhatIfPoint, setting

    texts = [setting(sweep.name, value, model) for value in sweep.values]
    points: list[WhatIfPoint] = []
    with counting("looking at the first value", "looked at") as done:
        for index, (value, text) in enumerate(zip(sweep.values, texts, strict=True)):
            points.append(WhatIfPoint(value=value, setting=text, plan=answer(text)))
            done(value, index + 1, len(texts))
    if drawing is not None:
        drawing.write(sweep.name, points)
    if json:
        print_json({"what_if": sweep.name, "points": [point.as_dict() for point in points]})
        return
    from rackline.report.what_if_report import what_if_report

    screen().print(what_if_report(sweep.name, points))
