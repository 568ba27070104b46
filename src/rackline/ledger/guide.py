"""The guided lecture: its steps, what is guessed at each, and what the ledger and its figures say to it.

In a terminal: a question, a guess that is read, the figure, and how far off the guess is.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from rackline.display.column import Column, Sheet
from rackline.display.terminal import Series, log_plot
from rackline.errors import InputError
from rackline.files import shipped_toml
from rackline.ledger import caches, ciphers, scenes, training
from rackline.ledger.drawings import Drawing, Reading
from rackline.ledger.table import ledger
from rackline.ledger.work import World
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

Kind = Literal["seconds", "bytes", "share", "times", "count"]
CLOSE = 1.1  # a guess within this factor is called close
_LARGE = 1e6  # from here on a count is written with a prefix
_SCENES: Mapping[str, Callable[[World], scenes.Scene]] = {
    "batch": scenes.batch,
    "racks": scenes.experts,
    "pipeline": scenes.pipeline,
    "memory": scenes.memory,
    "training": training.overtraining,
    "prices": caches.price,
    "ciphers": ciphers.mixing,
}


def plain_number(text: str) -> str:
    """A written number without zeros at its end, as prose has it.

    >>> plain_number("50.0 %"), plain_number("$0.500"), plain_number("300,000 B"), plain_number("1.80T")
    ('50 %', '$0.5', '300,000 B', '1.8T')
    """
    return re.sub(r"\.0+(?!\d)|(\.\d*?[1-9])0+(?!\d)", r"\1", text)


def _digits(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):,.10g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: a question beside a figure, and the number that answers it.

    Args:
        id: in addresses, unique in its chapter.
        claim: claim of the lecture that it shows.
        title: in a few words.
        ask: the question.
        figure: name of the drawing of its chapter.
        reads: what is read from the figure.
        kind: how the number is written.
        value: the number: as its claim computes it, or by closed form [SI].
        after: text that follows the guess, with {value}.
        unit: what is counted.
        marks: points of the figure, see `Drawing.points`.
        low: lowest guess; None where one chooses.
        high: highest guess; None where one chooses.
        choices: answers to choose from; empty where a number is guessed.
        right: place of the right one.
        computed: label of the number among those of the claim; empty if the claim does not compute it.
    """

    id: str
    claim: str
    title: str
    ask: str
    figure: str
    reads: Reading
    kind: Kind
    value: float
    after: str
    unit: str = ""
    marks: tuple[Mapping[str, Any], ...] = ()
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    right: int | None = None
    computed: str = ""

    def said(self, value: float) -> str:
        """The number as people say it, to three digits, without what is counted."""
        match self.kind:
            case "seconds":
                return plain_number(format_seconds(value))
            case "bytes":
                return plain_number(format_bytes(value))
            case "share":
                return plain_number(format_percent(value))
            case "times" | "count":
                return plain_number(format_count(value)) if abs(value) >= _LARGE else _digits(value, 3)
            case _:
                assert_never(self.kind)

    def factor(self, guess: float) -> float | None:
        """How many times off a guess is [1]; None of a choice, and of a guess of nothing."""
        if self.choices or guess <= 0.0:
            return None
        return max(guess / self.value, self.value / guess)

    def verdict(self, guess: float) -> str:
        """How far off a guess is, and what is to be learned from that.

        Args:
            guess: a number [SI], or the place of a choice.
        """
        if self.choices:
            mine = "Right." if guess == self.right else f"You said {self.choices[int(guess)]}."
        else:
            factor = self.factor(guess)
            if factor is None:
                how = "too low"
            elif factor <= CLOSE:
                how = f"within {100.0 * (CLOSE - 1.0):.0f} %"
            else:
                how = f"{_digits(factor, 2)} times too {'high' if guess > self.value else 'low'}"
            mine = f"You said {self.said(guess)}: {how}."
        return f"{mine} {self.answer}"

    @property
    def answer(self) -> str:
        """The number, and what is to be learned."""
        return self.after.replace("{value}", self.said(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A chapter of the guided lecture.

    Args:
        id: in addresses.
        title: of the lecture's segment.
        segment: its number.
        intro: what is assumed throughout.
        steps: in order.
        drawings: what they show, by name.
    """

    id: str
    title: str
    segment: int
    intro: str
    steps: tuple[Step, ...]
    drawings: Mapping[str, Drawing]


@functools.cache
def chapters(segment: int | None = None) -> tuple[Chapter, ...]:
    """The chapters of the guided lecture, in order.

    Args:
        segment: of the lecture, 1 to 7; all by default.

    >>> [len(chapter.steps) for chapter in chapters(1)]
    [7]
    >>> chapters(1)[0].steps[2].value
    2500.0
    """
    rows = shipped_toml("rackline.ledger", "guide.toml")["chapter"]
    return tuple(_chapter(row, World()) for row in rows if segment in (None, row["segment"]))


def _chapter(row: dict[str, Any], world: World) -> Chapter:
    scene = _SCENES[row["id"]](world)
    found = {step["claim"] for step in row["step"] if "computed" in step}
    known = {(claim, one.label): one.value for claim in found for one in ledger(world, claim=claim)[0].computed}

    def written(text: str) -> str:
        return text.format_map({name: plain_number(fact) for name, fact in scene.facts.items()} | {"value": "{value}"})

    steps: list[Step] = []
    for step in row.pop("step"):
        given: dict[str, Any] = {
            **step,
            **{name: written(step[name]) for name in ("ask", "after")},
            "choices": tuple(step.get("choices", ())),
            "marks": tuple(step.get("marks", ())),
            "value": known[step["claim"], step["computed"]] if "computed" in step else scene.values[step["id"]],
        }
        steps.append(Step(**given))
    return Chapter(**row, steps=tuple(steps), drawings=scene.drawings)


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
        for place, step in enumerate([one for one in chapter.steps if claim in (None, one.claim)]):
            if answering:
                says(
                    *([_heading(chapter)] if place == 0 else []),
                    question(step, chapter.steps.index(step) + 1, len(chapter.steps)),
                )
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
    choices = (Text(f"  {index}  {one}") for index, one in enumerate(step.choices, start=1))
    return Group(text, Text(step.ask), *choices)


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
        yield Text(f"{name:<{longest}}  {plain_number(write(values[0])):>9}", style="bold" if name in marked else "")


def _number(value: float) -> str:
    return format_count(value) if value >= 1.0 else f"{value:.3g}"


def _slots(drawing: Drawing) -> list[Text]:
    """A line for each stage: F forward, B backward, W gradient of weights, a point where it waits."""
    ends = math.ceil(max(slot[-1] for slot in drawing.slots))
    lines: list[Text] = []
    for stage in sorted({slot[0] for slot in drawing.slots}):
        cells = ["·"] * ends
        for _, kind, _, start, end in (slot for slot in drawing.slots if slot[0] == stage):
            cells[round(start) : round(end)] = {"forward": "F", "backward": "B"}.get(kind, "W") * (
                round(end) - round(start)
            )
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
