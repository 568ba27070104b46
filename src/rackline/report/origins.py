"""Where each number of an explained pass comes from: amount, rate and peak of a row, each with its source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from rackline.errors import RacklineError
from rackline.hardware import chip_record, cluster_record
from rackline.passes import UNIT
from rackline.report.explain_report import Explanation, amount_text
from rackline.report.wording import percent
from rackline.units import format_flop_rate, format_rate, format_seconds

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
