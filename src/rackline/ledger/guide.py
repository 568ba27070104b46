"""The guided lecture: its steps, what is guessed at each, and what the ledger and its figures say to it."""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from rackline.ledger import later_scenes, scenes
from rackline.ledger.drawings import Drawing, Reading
from rackline.ledger.ledger import ledger
from rackline.ledger.work import World
from rackline.units import format_bytes, format_count, format_percent, format_seconds

Kind = Literal["seconds", "bytes", "share", "times", "count"]
CLOSE = 1.1  # a guess within this factor is called close
_LARGE = 1e6  # from here on a count is written with a prefix

_SCENES: Mapping[str, Callable[[World], scenes.Scene]] = {
    "batch": scenes.batch,
    "racks": scenes.experts,
    "pipeline": scenes.pipeline,
    "memory": scenes.memory,
    "training": later_scenes.overtraining,
    "prices": later_scenes.price,
    "ciphers": later_scenes.mixing,
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
    text = importlib.resources.files("rackline.ledger").joinpath("guide.toml").read_text("utf-8")
    rows = tomllib.loads(text)["chapter"]
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
