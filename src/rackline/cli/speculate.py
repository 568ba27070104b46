"""Option of speculative decoding → drafts and acceptance. Everything heavy is imported where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.serving.speculative import Speculation


def read_speculation(text: str | None) -> list[Speculation] | None:
    """Read --speculate: usual, or DRAFTS[=TOKENS_PER_STEP] separated by commas; None without it, empty for usual.

    Raises:
        InputError: another text, or impossible tokens a step.
    """
    if text is None:
        return None
    if text.strip() == "usual":
        return []
    from rackline.serving.speculative import Speculation, usual_speculation

    found: list[Speculation] = []
    for part in text.split(","):
        drafts, equals, yields = (piece.strip() for piece in part.partition("="))
        try:
            count, given = int(drafts), float(yields) if equals else None
        except ValueError:
            count, given = 0, None
        if not 1 <= count <= 16:
            raise InputError(
                what="--speculate",
                given=text,
                allowed="usual, or drafts from 1 to 16 with the tokens that a step yields, such as 1,3=2.9",
                nearest="usual",
            )
        found.append(
            usual_speculation(count) if given is None else Speculation(draft_tokens=count, tokens_per_step=given)
        )
    return found
