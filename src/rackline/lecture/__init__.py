"""The lecture as running code: each claim is a function that calls the library, and gets a verdict."""

from rackline.lecture.ledger import EXAMINATIONS, ledger
from rackline.lecture.said import SEGMENTS, Claim, Quoted, claims
from rackline.lecture.work import VERDICTS, Computed, Finding, Work
from rackline.lecture.world import World, overrides_from_texts

__all__ = [
    "EXAMINATIONS",
    "SEGMENTS",
    "VERDICTS",
    "Claim",
    "Computed",
    "Finding",
    "Quoted",
    "Work",
    "World",
    "claims",
    "ledger",
    "overrides_from_texts",
]
