"""Terminal report of numbers fitted to observed runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import percent, written
from rackline.units import format_percent, format_seconds
from rackline.validation.observed_fit import DETERMINED, Estimate, ObservedFit

_METRICS = {"ttft_s": "time to first token", "tpot_s": "time per output token"}


def observed_fit_report(fit: ObservedFit, files: Sequence[str]) -> Group:
    """The numbers with their shipped values, and the errors before, after and held out."""
    kernels = "kernels measured there" if fit.has_table else "kernels not measured there"
    head = Text()
    head.append(f"{fit.requests:,} requests of {fit.runs:,} {'run' if fit.runs == 1 else 'runs'}", style="bold green")
    head.append(f" of {fit.stack.name} on {fit.chip} ({kernels})")
    numbers = plain_table("numbers")
    for name in ("", "shipped", "fitted", "68 % interval", "determined"):
        numbers.add_column(name, justify="right" if name else "left", no_wrap=True)
    for one in fit.estimates:
        numbers.add_row(
            one.meaning, _shown(one, one.shipped), _shown(one, one.value),
            f"{_shown(one, one.low)} to {_shown(one, one.high)}",
            Text(percent(one.determined), style="" if one.determined >= DETERMINED else "yellow"),
        )  # fmt: skip
    errors = plain_table("|predicted / measured - 1|, median / 90th percentile")
    for name in ("", "shipped", "fitted", "held out"):
        errors.add_column(name, justify="right" if name else "left", no_wrap=True)
    for one in fit.errors:
        errors.add_row(
            _METRICS[one.metric],
            *(f"{format_percent(a)} / {format_percent(b)}" for a, b in (
                (one.shipped_median, one.shipped_p90), (one.fitted_median, one.fitted_p90),
                (one.held_out_median, one.held_out_p90),
            )),
        )  # fmt: skip
    what = "each run" if fit.folds == fit.runs else "each quarter of the time"
    parts = [head, Text(""), numbers, Text(""), errors, Text(f"held out: {what} in turn", style="dim")]
    if files:
        parts.append(Text(f"written to {', '.join(files)}", style="dim"))
    return Group(*parts)


def _shown(one: Estimate, value: float) -> str:
    if one.unit != "s":
        return f"× {written(value)}"
    return "0" if value == 0.0 else format_seconds(value)
