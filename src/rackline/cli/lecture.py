"""`rackline lecture`: the claims of the lecture, each examined by the library."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rackline.cli.options import Json, MaybeValue, Overrides, assignments, check_file_to_write, whole
from rackline.cli.screen import print_json, progress, screen


def lecture(
    *,
    segment: MaybeValue = None,
    claim: str | None = None,
    sets: Overrides = None,
    page: Annotated[str | None, Parameter(name="--page")] = None,
    json: Json = False,
) -> None:
    """Is what the lecture says true, and where does it stop being true?

    For each claim of "The math behind how LLMs are trained and served": what was said, the formula, what was quoted,
    what the library computes from its catalogue, the verdict and why. Inconsistencies and golden values follow.

    Args:
        segment: 1 batch size, 2 experts on racks, 3 pipelines, 4 memory wall, 5 over-training, 6 prices,
            7 cryptography, 8 inconsistencies, 9 golden values, 10 summaries, 11 flash cards; all by default
        claim: one claim in full, such as C99, N01 (a summary) or Q4 (a flash card)
        sets: NAME:KEY=VALUE replaces a number of the catalogue, such as gb200:hbm_bytes_per_s=16TB/s; may be repeated
        page: write the ledger as Markdown to FILE.md
        json: print JSON (SI units) and nothing else
    """
    file = check_file_to_write(page, "--page")
    number = None if segment is None else whole(segment, "--segment", maximum=11)

    from rackline.ledger import World, ledger, overrides_from_texts

    with progress("examining the claims"):
        findings = ledger(World(overrides_from_texts(assignments(sets))), segment=number, claim=claim)
    if file is not None:
        from rackline.ledger.page import page as page_of

        file.write_text(page_of(findings), encoding="utf-8")
    if json:
        print_json({"claims": [finding.as_dict() for finding in findings]})
        return
    from rich.console import Group

    from rackline.ledger.table import claim_panel, ledger_table

    out = screen()
    out.print(
        Group(*map(claim_panel, findings)) if claim is not None else ledger_table(findings, full=number is not None)
    )
