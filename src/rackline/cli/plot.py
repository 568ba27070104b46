"""`--plot`, `--plot-kind` and `--plot-theme` of all commands."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.errors import InputError, nearest_names

if TYPE_CHECKING:
    from rackline.report.figure import Figure, PlotTheme

PlotFile = Annotated[
    str | None,
    Parameter(
        name="--plot",
        help="write a figure to FILE.svg, .png, .pdf, .html (one page that needs no network) or "
        ".json (Vega-Lite); needs the extra plot, .json does not",
    ),
]
PlotLook = Annotated[
    str,
    Parameter(name="--plot-theme", help="light, dark, or auto: pages follow the reader's system, images are light"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure that is wanted.

    Args:
        file: where it goes.
        figure: makes it from an answer.
        look: its theme.
    """

    file: Path
    figure: Callable[..., Figure]
    look: PlotTheme

    def write(self, *answer: object, **more: object) -> None:
        """Make the figure of an answer and write it."""
        self.figure(*answer, **more).save(self.file, self.look)


def read_plot(plot: str | None, figures: str, kind: str | None = None, look: str = "auto") -> Plot | None:
    """The figure that is wanted, checked before the work begins; None without --plot.

    Args:
        plot: its file.
        figures: MODULE:NAME of the figures that a command has, by kind; the first is the default.
        kind: which of them.
        look: its theme.

    Raises:
        InputError: a file that cannot be written, an unknown kind or theme, or nothing to draw with.
    """
    if plot is None:
        if kind is not None:
            raise InputError(what="--plot-kind", given=kind, allowed="together with --plot FILE")
        return None
    from rackline.report.figure import check_plot_path, choose_figure

    file = check_plot_path(plot)
    module, _, name = figures.partition(":")
    known: Mapping[str, Callable[..., Figure]] = getattr(importlib.import_module(module), name)
    return Plot(file=file, figure=choose_figure(known, kind), look=_look(look))


def _look(text: str) -> PlotTheme:
    match text:
        case "auto" | "light" | "dark":
            return text
        case _:
            near = nearest_names(text, ["auto", "light", "dark"], 1)
            raise InputError(
                what="--plot-theme", given=text, allowed="auto, light or dark", nearest=near[0] if near else None
            )
