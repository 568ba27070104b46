"""The ledger: every claim examined by a function that calls the library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rackline.errors import InputError, nearest_name
from rackline.ledger import (
    batches,
    caches,
    ciphers,
    conflicts,
    golden,
    pipelines,
    prices,
    racks,
    summaries,
    training,
    trains,
)
from rackline.ledger.said import SEGMENTS, Claim, claims
from rackline.ledger.work import Finding, Work, World, without_number

_CHAPTERS = (batches, trains, racks, pipelines, training, prices, caches, ciphers, conflicts, golden, summaries)
EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    name.upper(): one
    for chapter in _CHAPTERS
    for name, one in vars(chapter).items()
    if re.fullmatch(r"[cgnq]\d+", name)
}
"""By claim, the function of its name that examines it."""


def examine(claim: Claim, world: World) -> Finding:
    """Examine one claim."""
    world.asked.clear()
    examination = EXAMINATIONS.get(claim.id)
    return without_number(claim) if examination is None else examination(Work(claim, world))


def ledger(world: World | None = None, *, segment: int | None = None, claim: str | None = None) -> tuple[Finding, ...]:
    """Examine the claims of the lecture.

    Args:
        world: the catalogue; other values may lead to other verdicts.
        segment: 1 to 7, 8 for inconsistencies, 9 for golden values, 10 for summaries, 11 for flash cards; all by
            default.
        claim: one claim by its id, such as C99; for a flash card that other claims answer, these claims.

    Returns:
        A finding for each, in order.

    Raises:
        InputError: there is no such segment or claim.

    >>> ledger(claim="C99")[0].verdict
    'by definition'
    """
    where = World() if world is None else world
    if segment is not None and segment not in SEGMENTS:
        raise InputError(what="segment", given=segment, allowed=f"1 to {max(SEGMENTS)}")
    known = [one for one in claims() if segment is None or one.segment == segment]
    if claim is not None:
        wanted = claim.strip().upper()
        known = [one for one in known if one.id == wanted]
        if not known:
            ids = [one.id for one in claims()]
            raise InputError(
                what="claim",
                given=claim,
                allowed="C01 to C133, N01 to N22, N34 to N56, G01 to G17 or Q1 to Q27, of the segment if one is named",
                nearest=nearest_name(wanted, ids),
            )
        answers = known[0].answered_by
        known += [one for one in claims() if one.id in answers]
    return tuple(examine(one, where) for one in known)
