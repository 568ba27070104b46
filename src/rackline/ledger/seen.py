"""What experiments of the lab measured, as data: verdicts rest on it where no formula can decide a claim.

The shipped file holds a few readings with the day and the machine of their run; a reader's own results replace them.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

Readings = Mapping[tuple[str, str], "Seen"]
"""By experiment and quantity."""


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
    text = importlib.resources.files("rackline.ledger").joinpath("seen.toml").read_text("utf-8")
    found: dict[tuple[str, str], Seen] = {}
    for part in tomllib.loads(text)["experiment"]:
        name = part["name"]
        for row in part["reading"]:
            low, high = row.get("low", row["measured"]), row.get("high", row["measured"])
            found[name, row["quantity"]] = Seen(
                experiment=name,
                quantity=row["quantity"],
                measured=row["measured"],
                low=low,
                high=high,
                run=part["run"],
            )
    return found
