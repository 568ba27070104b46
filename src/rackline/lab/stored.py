"""Results of experiments that were stored as JSON, and what they say of the claims."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError
from rackline.files import parse_json, read_text
from rackline.lab.experiment import Curve, Experiment, Reading
from rackline.lab.experiments import EXPERIMENTS

_ALLOWED = "the JSON of `rackline lab all --json`"


def read_experiments(path: str | Path) -> tuple[Experiment, ...]:
    """Stored experiments.

    Args:
        path: what `rackline lab ... --json` printed.

    Raises:
        InputError: no such file, another kind of JSON, or an experiment that this version does not have.
    """
    text = read_text(path, what="--measured", allowed=_ALLOWED)
    try:
        data = cast("dict[str, Any]", parse_json(text))
        experiments = tuple(_experiment(one) for one in data["experiments"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(what="--measured", given=str(path), allowed=_ALLOWED) from error
    unknown = next((one.name for one in experiments if one.name not in EXPERIMENTS), None)
    if unknown is not None:
        raise InputError(what="--measured", given=f"experiment {unknown}", allowed=", ".join(EXPERIMENTS))
    return experiments


def verdicts_by_claim(experiments: tuple[Experiment, ...]) -> dict[str, str]:
    """What experiments say of each claim: "holds (cipher)", by claim id."""
    found: dict[str, list[str]] = {}
    for one in experiments:
        for claim in one.claims:
            found.setdefault(claim, []).append(f"{one.verdict} ({one.name})")
    return {claim: ", ".join(texts) for claim, texts in found.items()}


def _experiment(data: dict[str, Any]) -> Experiment:
    given = {name: data[name] for name in _names(Experiment) if name in data}
    given["rows"] = tuple(_reading(row) for row in data["rows"])
    given["curves"] = tuple(
        Curve(name=one["name"], kind=one["kind"], x=tuple(one["x"]), y=tuple(one["y"])) for one in data["curves"]
    )
    for name in ("claims", "findings", "axes", "log_axes"):
        given[name] = tuple(data[name])
    return Experiment(**given)


def _reading(data: dict[str, Any]) -> Reading:
    return Reading(**{name: data[name] for name in _names(Reading) if name in data})


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))
