"""Results of experiments that were stored as JSON, by the claims that they test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError
from rackline.files import parse_json, read_text


def measured_claims(path: str | Path) -> dict[str, str]:
    """What stored experiments say of each claim: "holds (cipher)", by claim id.

    Args:
        path: what `rackline lab ... --json` printed.

    Raises:
        InputError: no such file, or another kind of JSON.
    """
    allowed = "the JSON of `rackline lab all --json`"
    data = parse_json(read_text(path, what="--measured", allowed=allowed))
    experiments = cast("dict[str, Any]", data).get("experiments") if isinstance(data, dict) else None
    if not isinstance(experiments, list):
        raise InputError(what="--measured", given=str(path), allowed=allowed)
    found: dict[str, list[str]] = {}
    for one in cast("list[Any]", experiments):
        if not isinstance(one, dict) or not {"name", "claims", "verdict"} <= set(cast("dict[str, Any]", one)):
            raise InputError(what="--measured", given=str(path), allowed=allowed)
        entry = cast("dict[str, Any]", one)
        for claim in entry["claims"]:
            found.setdefault(str(claim), []).append(f"{entry['verdict']} ({entry['name']})")
    return {claim: ", ".join(texts) for claim, texts in found.items()}
