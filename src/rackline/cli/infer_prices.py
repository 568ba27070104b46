"""`rackline infer-prices`: what public prices reveal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.cli.options import Json, MaybeValue, Several
from rackline.cli.plot import PlotFile, PlotLook, read_plot
from rackline.cli.screen import print_json, screen
from rackline.errors import InputError
from rackline.units import parse_count, parse_fraction

if TYPE_CHECKING:
    from rackline.pricing import Unknowns

_MOST_MARGIN = 1000.0


def infer_prices(
    sheets: Annotated[list[str] | None, Parameter(negative=())] = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    chip: Several = None,
    dtype: Annotated[list[str] | None, Parameter(name="--precision", negative=())] = None,
    margin: str | None = None,
    utilisation: str | None = None,
    active: MaybeValue = None,
    json: Json = False,
    plot: PlotFile = None,
    plot_theme: PlotLook = "auto",
) -> None:
    """What public prices reveal: active parameters, KV bytes per token, decode MFU, batches, memory tiers.

    Each answer is an interval, because chip, precision, rent, margin and utilisation are unknown; name some of them to
    narrow it. Readings that contradict each other are shown as conflicts.

    Args:
        sheets: price sheets (catalogue name or TOML file), or models, which stand for all their hosts
        every: all sheets of the catalogue
        chip: a chip that may serve; may be repeated; all that have a rent and 80 GB by default
        dtype: bf16, fp8 or fp4; may be repeated; all by default
        margin: price over cost, less 1, such as 20%..80%
        utilisation: share of the chip-hours that are sold, such as 40%..70%
        active: active parameters if they are known, such as 100B
        json: print JSON (SI units) and nothing else
    """
    drawing = read_plot(plot, "rackline.report.pricing_figures:READING_FIGURES", look=plot_theme)
    if every == bool(sheets):
        raise InputError(
            what="infer-prices",
            given=", ".join(sheets or ()) or "nothing",
            allowed="names of sheets or models, or --all",
        )
    known = None if active is None else parse_count(active, name="--active", maximum=1e15)
    unknowns = _unknowns(chip, dtype, margin, utilisation)

    from rackline.pricing import all_sheets, compare, find_sheets, read_all

    chosen = all_sheets() if every else [sheet for name in sheets or () for sheet in find_sheets(name)]
    readings = read_all(chosen, unknowns, known)
    if drawing is not None:
        drawing.write(readings)
    compared = compare(readings)
    if json:
        rows = [row.as_dict() for row in compared]
        print_json({"sheets": [reading.as_dict() for reading in readings], "compared": rows})
        return
    from rackline.report.pricing_report import compared_report, reading_report, readings_table

    out = screen()
    if len(readings) > 3:
        out.print(readings_table(readings, width=out.width))
    else:
        for index, reading in enumerate(readings):
            if index:
                out.print()
            out.print(reading_report(reading, width=out.width))
    if compared:
        out.print()
        out.print(compared_report(compared))


def _unknowns(
    chips: Sequence[str] | None, dtypes: Sequence[str] | None, margin: str | None, utilisation: str | None
) -> Unknowns:
    from dataclasses import replace

    from rackline.pricing import Range, default_unknowns

    unknowns = default_unknowns(chips)
    if dtypes:
        allowed = unknowns.dtypes
        for dtype in dtypes:
            if dtype not in allowed:
                raise InputError(what="--precision", given=dtype, allowed=", ".join(allowed), nearest=allowed[0])
        unknowns = replace(unknowns, dtypes=tuple(d for d in allowed if d in dtypes))
    if margin is not None:
        low, high = _span(margin, "--margin", maximum=_MOST_MARGIN)
        unknowns = replace(unknowns, margin=(low, high))
    if utilisation is not None:
        low, high = _span(utilisation, "--utilisation", maximum=1.0)
        unknowns = replace(unknowns, utilisation=Range(low=low, high=high))
    return unknowns


def _span(text: str, name: str, maximum: float) -> tuple[float, float]:
    """Read "20%..80%", or one value for both ends."""
    low, dots, high = text.partition("..")
    ends = [parse_fraction(part, name=name, maximum=maximum) for part in ((low, high) if dots else (low, low))]
    if ends[1] < ends[0]:
        raise InputError(what=name, given=text, allowed="LOW..HIGH", nearest=f"{high}..{low}")
    return ends[0], ends[1]
