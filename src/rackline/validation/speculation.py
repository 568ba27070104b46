"""Cases that may use speculative decoding: what a case states about it, and both predictions if it is unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from rackline.errors import InputError, RacklineError
from rackline.serving.workload import PLAIN, USUAL_DRAFT_TOKENS, Speculation, usual_speculation
from rackline.validation.cases import Case
from rackline.validation.page import PageTable, fill_block

UNKNOWN = "unknown"
BEGIN, END = "<!-- unknown speculation: begin -->", "<!-- unknown speculation: end -->"
Place = Literal["between", "faster", "slower"]
_ALLOWED = "none, unknown, mtp, mtp-K, eagle, eagle-K or eagle3-K with K drafts per step"


def speculation_of(case: Case) -> Speculation:
    """Speculation that a case states; one token per step if it states nothing or "unknown".

    Raises:
        InputError: the value is not recognised.
    """
    text = case.text("speculative", "none").lower()
    if text in ("none", "off", "false", UNKNOWN):
        return PLAIN
    found = re.fullmatch(r"(?:mtp|eagle3?)(?:[-=_]([1-9]|1[0-9]))?", text)
    if found is None:
        raise InputError(what="speculative", given=case.text("speculative"), allowed=_ALLOWED, nearest="mtp-3")
    return usual_speculation(int(found.group(1) or USUAL_DRAFT_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """A time per output token that may or may not come from speculative decoding.

    Args:
        case_id, model, chip, stack: those of the case.
        measured, plain, speculating: measured time, and predictions with one token per step and with drafts [s].
    """

    json_keys: ClassVar = (
        "id=case_id",
        "model",
        "chip",
        "stack",
        "measured_tpot_s=measured",
        "plain_tpot_s=plain",
        "speculating_tpot_s=speculating",
        "place",
    )

    case_id: str
    model: str
    chip: str
    stack: str
    measured: float
    plain: float
    speculating: float

    @property
    def place(self) -> Place:
        """Whether the measured time lies between both predictions, or is faster or slower than both."""
        if self.measured < min(self.plain, self.speculating):
            return "faster"
        return "slower" if self.measured > max(self.plain, self.speculating) else "between"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the measured values of a group of cases lie.

    Args:
        name: name of the group.
        cases: number of cases [cases].
        shares: shares of the cases by place [1].
        plain_error, speculating_error: median |predicted / measured - 1| of each prediction [1].
    """

    json_keys: ClassVar = (
        "group=name",
        "n=cases",
        "share_between",
        "share_faster_than_both=share_faster",
        "share_slower_than_both=share_slower",
        "plain_median_abs_error=plain_error",
        "speculating_median_abs_error=speculating_error",
    )

    name: str
    cases: int
    shares: Mapping[Place, float]
    plain_error: float
    speculating_error: float

    @property
    def share_between(self) -> float:
        """Share of cases between both predictions."""
        return self.shares["between"]

    @property
    def share_faster(self) -> float:
        """Share of cases faster than both."""
        return self.shares["faster"]

    @property
    def share_slower(self) -> float:
        """Share of cases slower than both."""
        return self.shares["slower"]


def both_ways(
    cases: Iterable[Case], predict: Callable[[Sequence[Case], Speculation], Sequence[dict[str, float] | RacklineError]]
) -> tuple[BothWays, ...]:
    """Predict the served cases with unknown speculation both ways; those without a prediction are left out.

    Args:
        predict: (cases, speculation) → values of each by metric, or the error that explains why there are none.
    """
    usual = usual_speculation()
    found: list[BothWays] = []
    open_ones = [
        case
        for case in cases
        if case.kind == "serve" and case.text("speculative", "") == UNKNOWN and "tpot_s" in case.measured
    ]
    plainly, drafting = (predict(open_ones, how) for how in (PLAIN, usual))
    for case, plain, speculating in zip(open_ones, plainly, drafting, strict=True):
        if isinstance(plain, RacklineError) or isinstance(speculating, RacklineError):
            continue
        found.append(
            BothWays(
                case_id=case.case_id,
                model=case.model or "-",
                chip=case.chip,
                stack=case.stack or "-",
                measured=case.measured["tpot_s"],
                plain=plain["tpot_s"],
                speculating=speculating["tpot_s"],
            )
        )
    return tuple(found)


def placed(name: str, rows: Sequence[BothWays]) -> Placed:
    """Where the measured values of these rows lie."""
    places = [row.place for row in rows]
    names: tuple[Place, ...] = ("between", "faster", "slower")
    return Placed(
        name=name,
        cases=len(rows),
        shares={place: places.count(place) / len(rows) for place in names},
        plain_error=float(np.median([abs(row.plain / row.measured - 1.0) for row in rows])),
        speculating_error=float(np.median([abs(row.speculating / row.measured - 1.0) for row in rows])),
    )


def by_group(rows: Sequence[BothWays]) -> tuple[Placed, ...]:
    """All rows, then those of each model, stack and chip."""
    groups: dict[str, list[BothWays]] = {}
    for row in rows:
        groups.setdefault(f"{row.model.rsplit('/', 1)[-1]}, {row.stack}, {row.chip}", []).append(row)
    return (placed("all", rows), *(placed(name, found) for name, found in groups.items()))


def heading() -> str:
    """Description of the two predictions."""
    usual = usual_speculation()
    return f"one token per step, and {usual.label()}"


def speculation_sheet(rows: Sequence[BothWays]) -> PageTable:
    """Where the measured values lie, all and by group."""
    cells = [
        (one.name, f"{one.cases:,}", *(f"{100 * value:.0f} %" for value in (*places, one.plain_error, drafts)))
        for one in by_group(rows)
        for places, drafts in [((one.share_between, one.share_faster, one.share_slower), one.speculating_error)]
    ]
    return PageTable(
        title=f"time per output token where the source does not say whether it speculates: {heading()}",
        heads=(
            "group",
            "cases",
            "between both",
            "faster than both",
            "slower than both",
            "median error, plain",
            "with drafts",
        ),
        rows=cells,
    )


def markdown(rows: Sequence[BothWays]) -> str:
    """The table of a page."""
    said = (
        f"Time per output token of {len(rows):,} cases whose source does not say whether it speculates, predicted with "
        f"{heading()}."
    )
    return "\n".join([said, *speculation_sheet(rows).markdown()])


def write_docs(rows: Sequence[BothWays], page: Path) -> None:
    """Replace the table of a page; see `rackline.validation.page.fill_block`."""
    fill_block(page, BEGIN, END, markdown(rows))
