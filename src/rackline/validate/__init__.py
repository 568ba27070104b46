"""Measured cases → prediction → scoreboard: how close the library comes to what people measured."""

from rackline.validate.cases import Case, CaseSet, Unsupported, read_cases
from rackline.validate.run import validate
from rackline.validate.scoreboard import Score, Scoreboard, Stats, statistics

__all__ = [
    "Case",
    "CaseSet",
    "Score",
    "Scoreboard",
    "Stats",
    "Unsupported",
    "read_cases",
    "statistics",
    "validate",
]
