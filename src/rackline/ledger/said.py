"""What was said and what was seen, as data: the lecture's claims in our words, and readings of the lab's experiments.

Verdicts rest on readings where no formula can decide a claim. The shipped file holds a few, with the day and the
machine of their run; a reader's own results replace them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rackline.files import shipped_toml

SEGMENTS = {
    1: "Batch size, latency and cost",
    2: "A mixture of experts on racks",
    3: "Pipeline parallelism",
    4: "Why not to pipeline; the memory wall; scale-up",
    5: "Reinforcement learning, use and over-training",
    6: "What prices reveal",
    7: "Neural nets and cryptography",
    8: "Where the lecture disagrees with itself or with outside facts",
    9: "Golden values",
    10: "What summaries made of it",
    11: "The flash cards",
}
FILES = (
    "segment_1",
    "segment_2",
    "segment_3",
    "segment_4",
    "segment_5",
    "segment_6",
    "segment_7",
    "conflicts",
    "golden",
    "summaries",
    "cards",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A quoted number, or the starting value of an example.

    Args:
        value: value in SI units.
        within: tolerance of a comparison: 0.1 allows a factor of 1.1 either way. It
            follows from how the number was said: 0.02 for digits, 0.1 to 0.3 for "about", 1 or more for an order.
    """

    value: float
    within: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim.

    Args:
        id: C01 to C133; N34 to N56 for inconsistencies, G01 to G17 for golden values, N01 to N22 for summaries, Q1 to
            Q27 for flash cards.
        segment: 1 to 7 in the order of the lecture; 8 inconsistencies, 9 golden values, 10 summaries, 11 flash cards.
        at: time in the video; empty if it has none.
        speaker: RP, DP, both; of a summary its number S0 to S4; or empty.
        said: the claim in our words.
        formula: formula of the claim; empty if there is none.
        quoted: the numbers as they were said, as text; empty if there are none.
        numbers: the numbers by name.
        why_not: why the claim is not computed; empty if it is.
        answered_by: for a flash card that other claims answer, their ids.
    """

    id: str
    segment: int
    said: str
    at: str = ""
    speaker: str = ""
    formula: str = ""
    quoted: str = ""
    numbers: Mapping[str, Quoted] = field(default_factory=dict[str, Quoted], hash=False)
    why_not: str = ""
    answered_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of the 25 systems that the lecture describes.

    Args:
        id: Y01 to Y25.
        name: in a few words.
        claims: ids of the claims about it.
        command: a line that runs it.
        test: which of two files works other numbers out by hand, "golden" or "lab".
    """

    id: str
    name: str
    claims: tuple[str, ...]
    command: str
    test: str

    @property
    def test_name(self) -> str:
        """The test, as pytest is told it."""
        file = "tests/lab/test_built_systems.py" if self.test == "lab" else "tests/golden/test_systems.py"
        return f"{file}::test_{self.id.lower()}"


def _rows(key: str, *names: str) -> list[dict[str, Any]]:
    """Rows of a file that comes with the program."""
    return shipped_toml("rackline.ledger", *names)[key]


@functools.cache
def systems() -> tuple[System, ...]:
    """The 25 systems, in order.

    >>> len(systems()), systems()[0].test_name
    (25, 'tests/golden/test_systems.py::test_y01')
    """
    rows: list[dict[str, Any]] = [
        {**row, "claims": tuple(row["claims"])} for row in _rows("system", "said", "systems.toml")
    ]
    return tuple(System(**row) for row in rows)


@functools.cache
def claims() -> tuple[Claim, ...]:
    """All claims, inconsistencies, golden values, errors of summaries and flash cards, in order.

    >>> claims()[0].id, claims()[-1].id
    ('C01', 'Q27')
    """
    return tuple(_claim(row) for file in FILES for row in _rows("claim", "said", f"{file}.toml"))


def _claim(row: dict[str, Any]) -> Claim:
    given: dict[str, dict[str, float] | float] = row.pop("numbers", {})
    numbers = {
        name: Quoted(**value) if isinstance(value, dict) else Quoted(value=float(value))
        for name, value in given.items()
    }
    row["answered_by"] = tuple(row.get("answered_by", ()))
    return Claim(numbers=MappingProxyType(numbers), **row)


Readings = Mapping[tuple[str, str], "Seen"]
"""Readings by experiment and quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One reading of an experiment.

    Args:
        experiment: its name.
        quantity: what was measured, as the experiment calls it.
        measured: the mean of its runs [SI].
        low, high: interval of that mean (95 %); the measured value where there was one run.
        run: day and form of the run, as text.
    """

    experiment: str
    quantity: str
    measured: float
    low: float
    high: float
    run: str


@functools.cache
def shipped() -> Readings:
    """The readings that come with the program.

    >>> shipped()["cipher", "bits that change after 12 rounds"].run.startswith("20")
    True
    """
    return {
        (part["name"], row["quantity"]): Seen(
            experiment=part["name"],
            quantity=row["quantity"],
            measured=row["measured"],
            low=row.get("low", row["measured"]),
            high=row.get("high", row["measured"]),
            run=part["run"],
        )
        for part in _rows("experiment", "seen.toml")
        for row in part["reading"]
    }
