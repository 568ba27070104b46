"""`chips`: list the chips, or show one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from rackline.api.answer import Answer, asks
from rackline.api.catalogue import name_option, overrides_of, refuse_settings, set_option
from rackline.api.option import option
from rackline.api.question import Question
from rackline.api.watch import Watch
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import Settings
    from rackline.hardware import ChipRecord
    from rackline.hardware.chip_check import ChipFinding
    from rackline.serving.crossover import Ridge


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipsQuestion(Question):
    """Which chips are known, and where do their numbers come from?"""

    ask: ClassVar[str] = "chips"

    name: str | None = field(default=None, kw_only=False, metadata=name_option())
    ridge: bool = field(
        default=False,
        metadata=option("switch", "ridge points by data type, and the time to read all of memory once"),
    )
    check: bool = field(
        default=False,
        metadata=option("switch", "all that is missing or doubtful in the record, and what it does to answers"),
    )
    set: Settings | None = field(default=None, metadata=set_option("hbm_bytes_per_s=20TB/s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """Chips of the catalogue.

    Args:
        chips: their records.
        ridges: their ridge points, where these were asked for.
        findings: what one of them lacks or leaves in doubt, where that was asked for.
    """

    chips: tuple[ChipRecord, ...] = ()
    ridges: tuple[Ridge, ...] = ()
    findings: tuple[ChipFinding, ...] = ()


def _text(answer: Answer[ChipsQuestion, Chips], width: int) -> Iterable[Any]:
    from rackline.hardware import chip_from_record
    from rackline.report.catalogue_report import chips_table, findings_report, record_report
    from rackline.report.lecture_tables import ridge_table

    found = answer.result
    if answer.question.ridge:
        yield ridge_table(found.ridges)
    elif answer.question.check:
        yield findings_report(found.chips[0], found.findings)
    elif answer.question.name is not None:
        yield record_report(found.chips[0])
    else:
        yield chips_table([chip_from_record(record) for record in found.chips], width=width)


class ChipList(TypedDict):
    """All chips."""

    chips: tuple[ChipRecord, ...]


class RidgeList(TypedDict):
    """Ridge points."""

    ridges: tuple[Ridge, ...]


class ChipChecked(TypedDict):
    """One chip with what its record lacks or leaves in doubt."""

    chip: str
    findings: tuple[ChipFinding, ...]


def _data(answer: Answer[ChipsQuestion, Chips]) -> ChipRecord | ChipList | RidgeList | ChipChecked:
    found = answer.result
    if answer.question.check:
        return {"chip": found.chips[0].name, "findings": found.findings}
    if answer.question.ridge:
        return {"ridges": found.ridges}
    return found.chips[0] if answer.question.name is not None else {"chips": found.chips}


def _summary(answer: Answer[ChipsQuestion, Chips]) -> str:
    found = answer.result
    names = [one.name for one in found.chips] or [one.chip for one in found.ridges]
    return names[0] if len(names) == 1 else f"{len(names)} chips"


def _rows(answer: Answer[ChipsQuestion, Chips]) -> Iterable[Any]:
    return answer.result.findings or answer.result.ridges or answer.result.chips


@asks(ChipsQuestion, text=_text, summary=_summary, rows=_rows, data=_data)
def chips(question: ChipsQuestion, watch: Watch) -> Chips:
    """List the chips, or show one with the sources of its numbers.

    Example:
        >>> import rackline as rl
        >>> rl.chips("h100").result.chips[0].name
        'h100-sxm'
        >>> [finding.key for finding in rl.chips("rtx-4090", check=True).result.findings][:2]
        ['power', 'usd_per_chip_hour']
    """
    from rackline.catalog import names
    from rackline.hardware import chip_record

    name = question.name
    if question.check and (name is None or question.ridge):
        raise InputError(
            what="check",
            given="with --ridge" if question.ridge else "no name",
            allowed="with the name of one chip alone",
        )
    if question.ridge:
        from rackline.hardware import chip
        from rackline.serving.crossover import ridges

        refuse_settings(question.set)
        return Chips(ridges=tuple(ridges([chip(each) for each in (names("chips") if name is None else (name,))])))
    if name is not None:
        record = chip_record(name, overrides=overrides_of(chip_record(name), "chip", question.set))
        if question.check:
            from rackline.hardware.chip_check import check_chip

            return Chips(chips=(record,), findings=check_chip(record))
        return Chips(chips=(record,))
    refuse_settings(question.set)
    return Chips(chips=tuple(chip_record(each) for each in names("chips")))
