"""The lecture as running code: each claim is a function that calls the library, and gets a verdict."""

from rackline.ledger.said import SEGMENTS, Claim, Quoted, Seen, claims
from rackline.ledger.table import EXAMINATIONS, ledger
from rackline.ledger.work import VERDICTS, Computed, Finding, Work, World, overrides_from_texts

__all__ = [
    "EXAMINATIONS",
    "SEGMENTS",
    "VERDICTS",
    "Claim",
    "Computed",
    "Finding",
    "Quoted",
    "Seen",
    "Work",
    "World",
    "claims",
    "ledger",
    "overrides_from_texts",
]
