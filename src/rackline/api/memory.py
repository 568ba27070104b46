"""`memory`: list the memory tiers, or show one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.catalogue import name_option, overrides_of, refuse_settings, set_option
from rackline.api.question import Question
from rackline.api.watch import Watch

if TYPE_CHECKING:
    from rackline.api.option import Settings
    from rackline.hardware import MemoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuestion(Question):
    """Which memory tiers are known, and where do their numbers come from?"""

    ask: ClassVar[str] = "memory"

    name: str | None = field(default=None, kw_only=False, metadata=name_option())
    set: Settings | None = field(default=None, metadata=set_option("usd_per_byte=5e-9"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTiers:
    """Memory tiers of the catalogue.

    Args:
        memory: their records.
    """

    memory: tuple[MemoryRecord, ...]


def _text(answer: Answer[MemoryQuestion, MemoryTiers], width: int) -> Iterable[Any]:
    from rackline.report.catalogue_report import record_report
    from rackline.report.lecture_tables import memory_table

    found = answer.result.memory
    yield memory_table(found, width=width) if answer.question.name is None else record_report(found[0])


def _data(answer: Answer[MemoryQuestion, MemoryTiers]) -> MemoryTiers | MemoryRecord:
    return answer.result if answer.question.name is None else answer.result.memory[0]


def _summary(answer: Answer[MemoryQuestion, MemoryTiers]) -> str:
    found = answer.result.memory
    return found[0].name if len(found) == 1 else f"{len(found)} memory tiers"


def _rows(answer: Answer[MemoryQuestion, MemoryTiers]) -> Iterable[Any]:
    return answer.result.memory


@asks(MemoryQuestion, text=_text, summary=_summary, rows=_rows, data=_data)
def memory(question: MemoryQuestion, watch: Watch) -> MemoryTiers:
    """List the memory tiers, or show one with the sources of its numbers.

    Example:
        >>> import rackline as rl
        >>> rl.memory("nvme-gen5")
        <memory: nvme-gen5>
    """
    from rackline.catalog import names
    from rackline.hardware import memory_record

    name = question.name
    if name is None:
        refuse_settings(question.set)
        return MemoryTiers(memory=tuple(memory_record(each) for each in names("memory")))
    given = overrides_of(memory_record(name), "memory tier", question.set)
    return MemoryTiers(memory=(memory_record(name, overrides=given),))
