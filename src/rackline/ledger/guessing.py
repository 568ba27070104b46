"""The guided lecture in a terminal: a question, a guess that is read, the figure, and how far off the guess is."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from rackline.errors import InputError
from rackline.ledger.drawings import Drawing
from rackline.ledger.guide import Chapter, Step, plain_number
from rackline.report.column import Column, Sheet
from rackline.report.terminal import Series, log_plot
from rackline.units import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    format_usd,
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_seconds,
)

ENDS = ("q", "quit", "exit")
HELP = "A number with its unit, Enter to see the answer without a guess, q to end."
_WIDEST, _HIGH = 96, 14  # of a figure [characters, lines]
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_WRITE: dict[str | None, Callable[[float], str]] = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "share": format_percent,
    "usd": format_usd,
    "power": lambda value: f"{value:.0e}".replace("e+", "e"),
}
_EXAMPLES = {"seconds": "20ms", "bytes": "10GB", "share": "20%", "times": "2.5", "count": "2.5k"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A step that was asked, and what was said to it.

    Args:
        chapter: that it belongs to, by its id.
        step: what was asked.
        guess: a number [SI], or the place of a choice; None if nothing was said.
    """

    json_keys: ClassVar = (
        "chapter",
        "step=step.id",
        "claim=step.claim",
        "title=step.title",
        "ask=step.ask",
        "kind=step.kind",
        "unit=step.unit",
        "choices=step.choices",
        "low=step.low",
        "high=step.high",
        "guess",
        "value",
        "factor",
        "right",
        "answer",
    )

    chapter: str
    step: Step
    guess: float | None

    @property
    def value(self) -> float:
        """What is right: a number [SI], or the place of a choice."""
        return float(self.step.right or 0) if self.step.choices else self.step.value

    @property
    def factor(self) -> float | None:
        """How many times off the guess is [1]; None of a choice and without a guess."""
        return None if self.guess is None else self.step.factor(self.guess)

    @property
    def right(self) -> bool | None:
        """Whether the choice is right; None of a number and without a guess."""
        return self.guess == self.step.right if self.step.choices and self.guess is not None else None

    @property
    def answer(self) -> str:
        """What is to be learned, with the number."""
        return self.step.answer


def guesses(
    chapters: Iterable[Chapter], claim: str | None, says: Callable[..., None], asks: Callable[[str], str | None]
) -> Iterator[Guess]:
    """Ask step by step, until nobody answers any more.

    Args:
        chapters: in order.
        claim: only steps of this one; all of them by default.
        says: shows what it is called with.
        asks: shows a text and returns a line; None when nobody answers.

    Yields:
        What was said to each step, and in the end every step that was not asked.
    """
    answering = True
    for chapter in chapters:
        steps = [one for one in chapter.steps if claim in (None, one.claim)]
        for place, step in enumerate(steps):
            if answering:
                head = [_heading(chapter)] if place == 0 else []
                says(*head, question(step, chapter.steps.index(step) + 1, len(chapter.steps)))
            while answering:
                line = asks(f"Your guess{f' [{step.unit}]' if step.unit else ''}: ")
                if line is None or line.strip().lower() in ENDS:
                    answering = False
                    break
                try:
                    guess = read_guess(step, line)
                except InputError as error:
                    says(Text(str(error), style="red"))
                    continue
                drawn = Picture(chapter.drawings[step.figure], step, None if step.choices else guess)
                said = step.answer if guess is None else step.verdict(guess)
                says(Padding(drawn, (0, 0, 1, 2)), Padding(Text(said, style="bold"), (0, 0, 1, 0)))
                yield Guess(chapter=chapter.id, step=step, guess=guess)
                break
            if not answering:
                yield Guess(chapter=chapter.id, step=step, guess=None)


def read_guess(step: Step, line: str) -> float | None:
    """What was typed: a number [SI], the place of a choice, or None for nothing.

    Raises:
        InputError: neither.
    """
    text = line.strip()
    if not text:
        return None
    if step.choices:
        if not text.isdecimal() or not 1 <= int(text) <= len(step.choices):
            allowed = f"a whole number from 1 to {len(step.choices)}, the place of an answer; q to end"
            raise InputError(what="guess", given=line, allowed=allowed)
        return float(int(text) - 1)
    parse = {"seconds": parse_seconds, "bytes": parse_bytes, "share": parse_fraction}.get(step.kind, parse_count)
    try:
        return float(parse(text, name="guess", zero_allowed=True))
    except InputError as error:
        example = _EXAMPLES[step.kind]
        raise InputError(what="guess", given=line, allowed=f"a number such as {example}; q to end") from error


def question(step: Step, place: int, number: int) -> RenderableType:
    """A step as it is asked."""
    text = (
        Text(f"{place}/{number}  ", style="dim").append(step.title, style="bold").append(f"  {step.claim}", style="dim")
    )
    lines: list[RenderableType] = [text, Text(step.ask)]
    lines += [Text(f"  {index}  {one}") for index, one in enumerate(step.choices, start=1)]
    return Group(*lines)


def _heading(chapter: Chapter) -> RenderableType:
    return Group(
        Text(f"{chapter.segment}. {chapter.title}", style="bold cyan"), Padding(Text(chapter.intro), (0, 0, 1, 0))
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """The figure of a step, as wide as the terminal is.

    Args:
        drawing: the figure.
        step: what is read from it.
        guess: a number [SI], drawn where it is a place in the figure; None for none.
    """

    drawing: Drawing
    step: Step
    guess: float | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Curves as dots, bars as numbers, slots as letters; what they are of below."""
        drawing = self.drawing
        match drawing.form:
            case "slots":
                yield from _slots(drawing)
            case "rows":
                yield from _rows(drawing, {mark["on"] for mark in self.step.marks})
            case "lines":
                yield _curves(drawing, self.step, self.guess, min(options.max_width, _WIDEST))
            case _:
                assert_never(drawing.form)
        yield Text(f"{drawing.title}: {drawing.of}", style="dim")


def _rows(drawing: Drawing, marked: Collection[str]) -> Iterator[Text]:
    longest = max(len(name) for name in drawing.curves)
    write = _WRITE.get(drawing.y.kind, _number)
    for name, values in drawing.curves.items():
        text = f"{name:<{longest}}  {plain_number(write(values[0])):>9}"
        yield Text(text, style="bold" if name in marked else "")


def _number(value: float) -> str:
    return format_count(value) if value >= 1.0 else f"{value:.3g}"


def _slots(drawing: Drawing) -> list[Text]:
    """A line for each stage: F forward, B backward, W gradient of weights, a point where it waits."""
    ends = math.ceil(max(slot[-1] for slot in drawing.slots))
    lines: list[Text] = []
    for stage in sorted({slot[0] for slot in drawing.slots}):
        cells = ["·"] * ends
        for _, kind, _, start, end in (slot for slot in drawing.slots if slot[0] == stage):
            letter = {"forward": "F", "backward": "B"}.get(kind, "W")
            cells[round(start) : round(end)] = letter * (round(end) - round(start))
        lines.append(Text(f"stage {stage}  {' '.join(cells)}"))
    return lines


def _curves(drawing: Drawing, step: Step, guess: float | None, width: int) -> Text:
    least = drawing.least or 0.0
    series: list[Series] = []
    for (name, values), style in zip(drawing.curves.items(), _COLOURS, strict=False):
        seen = [(x, y) for x, y in zip(drawing.places, values, strict=True) if x > 0.0 and y > least]
        if seen:
            x, y = zip(*seen, strict=True)
            series.append(Series(x=x, y=y, name=name, style=style, joined=True))
    points = drawing.points(step.marks)
    along = guess if guess and step.reads == "x" else None
    if guess and along is None:
        of_second = len(step.marks) > 1  # the guess is a ratio to the second mark
        height = guess * (points[1][1] if of_second else 1.0)
        ends = (drawing.places[0] or drawing.places[1], drawing.places[-1])
        series.append(Series(x=ends, y=(height, height), name="your guess", style="yellow", joined=True))
    points = [one for one in points if one[1] > 0.0]
    series.append(Series(x=[x for x, _ in points], y=[y for _, y in points], name="read here", style="bold", mark="◆"))
    return log_plot(
        series,
        width=width,
        height=_HIGH,
        x_title=drawing.x.title,
        y_title=drawing.y.title,
        x_text=lambda value: plain_number(_WRITE.get(drawing.x.kind, _number)(value)),
        y_text=lambda value: plain_number(_WRITE.get(drawing.y.kind, _number)(value)),
        x_line=along,
        x_line_name="your guess",
    )


def score_table(found: Sequence[Guess]) -> Sheet[Guess]:
    """What was guessed, and how far off it was."""

    def factor(one: Guess) -> str:
        if one.right is not None:
            return "right" if one.right else "no"
        return "-" if one.factor is None else f"{one.factor:.2g}"

    def spoken(one: Guess, value: float | None) -> str:
        if value is None:
            return "-"
        return one.step.choices[int(value)] if one.step.choices else f"{one.step.said(value)} {one.step.unit}".strip()

    columns: list[Column[Guess]] = [
        Column("step", "step", "words", lambda one: f"{one.chapter}: {one.step.title}"),
        Column("claim", "claim", getter="step.claim", priority=1),
        Column("guess", "guess", "figures", lambda one: spoken(one, one.guess)),
        Column("value", "answer", "figures", lambda one: spoken(one, one.value)),
        Column("factor", "times off", "figures", factor),
    ]
    return Sheet("guesses", columns, found)


def summary(found: Sequence[Guess]) -> str:
    """How far off the guesses were, in a sentence."""
    numbers = sorted(one.factor for one in found if one.factor is not None)
    chosen = [one.right for one in found if one.right is not None]
    parts: list[str] = []
    if numbers:
        middle = math.exp(sum(math.log(one) for one in numbers) / len(numbers))
        parts.append(f"{len(numbers)} {'guess' if len(numbers) == 1 else 'guesses'}, {middle:.2g} times off on average")
    if chosen:
        parts.append(f"{sum(chosen)} of {len(chosen)} choices right")
    return f"{'; '.join(parts) or 'no guess'}; {len(found)} {'step' if len(found) == 1 else 'steps'} in all"


def steps_of(chapters: Sequence[Chapter]) -> set[str]:
    """Claims that a step shows."""
    return {step.claim for chapter in chapters for step in chapter.steps}
