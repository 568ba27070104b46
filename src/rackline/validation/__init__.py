"""Measured cases, their predictions, and the scoreboard of errors."""

from rackline.validation.cases import Case, CaseSet, Unsupported, shipped_cases
from rackline.validation.run import read_cases, validate
from rackline.validation.scoreboard import Score, Scoreboard, Stats, statistics

__all__ = [
    "Case",
    "CaseSet",
    "Score",
    "Scoreboard",
    "Stats",
    "Unsupported",
    "read_cases",
    "shipped_cases",
    "statistics",
    "validate",
]
