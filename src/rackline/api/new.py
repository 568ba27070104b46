"""`new`: a file for an own chip, cluster, model, memory tier or price sheet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.option import option
from rackline.api.question import Question, question
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.files import check_outputs, write_text
from rackline.late import late

with late:
    from rackline.hardware import chip_check


THINGS = ("chip", "cluster", "model", "memory", "prices")


@question
class NewQuestion(Question):
    """Where do I begin with an own chip, cluster, model, memory tier or price sheet?"""

    ask: ClassVar[str] = "new"

    kind: str = option("text", ", ".join(THINGS), choices=THINGS, kw_only=False)
    name: str = option("text", "name of the new entry, such as my-chip", kw_only=False)
    like: str | None = option(
        "text",
        "catalogue entry to copy the numbers from; by default that with the nearest name",
        default=None,
    )
    output: str | None = option(
        "text",
        "file to write; NAME.toml in the current folder by default",
        default=None,
        short="o",
        output=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that was written.

    Args:
        kind: chip, cluster, model, memory or prices.
        name: of the entry.
        nearest: entry of the catalogue whose numbers it has.
        file: its path.
    """

    kind: str
    name: str
    nearest: str
    file: str


def _text(answer: Answer[NewQuestion, Written], width: int) -> Iterable[Any]:
    yield _summary(answer)


def _summary(answer: Answer[NewQuestion, Written]) -> str:
    found = answer.result
    return f"{found.file}: {found.kind} {found.name} with the numbers of {found.nearest}"


def _rows(answer: Answer[NewQuestion, Written]) -> Iterable[Any]:
    return [answer.result]


@asks(
    NewQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    entry=Entry(
        group="Catalogue",
        place=4,
        line="A file for your own chip, cluster, model, memory or prices.",
        elsewhere="writes a file",
        examples="""
    rackline new chip my-chip --like b200
    rackline chips my-chip.toml
    rackline new cluster my-rack -o racks/my-rack.toml
""",
    ),
)
def new(question: NewQuestion, watch: Watch) -> Written:
    """Write a commented file for an own chip, cluster, model, memory tier or price sheet.

    It has the numbers of the nearest entry of the catalogue, and works at once in place of a name.

    Example:
        >>> import rackline as rl
        >>> from pathlib import Path
        >>> rl.new("chip", "my-chip", like="b200").result.file
        'my-chip.toml'
        >>> rl.chips("my-chip.toml")
        <chips: my-chip>
        >>> Path("my-chip.toml").unlink()
    """
    found: chip_check.Template = chip_check.template(question.kind, question.name, question.like)
    target = Path(question.output or f"{found.name}.toml")
    if target.suffix != ".toml":
        raise InputError(what="output", given=str(target), allowed="a name that ends in .toml")
    if target.exists():
        raise InputError(what="output", given=str(target), allowed="a file that does not exist yet")
    check_outputs({"output": target})
    write_text(target, found.text, what="output")
    return Written(kind=found.kind, name=found.name, nearest=found.nearest, file=str(target))
