"""All experiments: what each shows, which claims it tests, how it is run, and its results stored as JSON."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError, nearest_names
from rackline.files import parse_json, read_text
from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.jax_devices import start_jax


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One experiment.

    Args:
        name: of the experiment and of its module in `rackline.lab`.
        shows: what it shows, in a line.
        systems: of the lecture's ledger.
    """

    name: str
    shows: str
    systems: tuple[str, ...]


EXPERIMENTS = {
    one.name: one
    for one in (
        Entry(
            name="decode",
            shows="decoding with a cache: three regimes of a step, cost of a token",
            systems=("Y01", "Y02", "Y04", "Y05"),
        ),
        Entry(
            name="sparse", shows="attention that reads the root of the context: bytes, time, quality", systems=("Y06",)
        ),
        Entry(name="moe", shows="a mixture of experts: router, top-k, balance, cost", systems=("Y07",)),
        Entry(name="experts", shows="expert parallelism over two racks: who sends what to whom", systems=("Y08",)),
        Entry(name="pipeline", shows="pipeline schedules: gradients, idle time, memory", systems=("Y11", "Y12")),
        Entry(name="reversible", shows="a reversible transformer: flat memory for more work", systems=("Y20",)),
        Entry(
            name="cipher",
            shows="a cipher and a network: how far a small change spreads",
            systems=("Y21", "Y22"),
        ),
        Entry(name="serve", shows="continuous batching: a real server against the simulator", systems=("Y03",)),
    )
}


def entry(name: str) -> Entry:
    """An experiment by name. Raises InputError for an unknown one."""
    if name not in EXPERIMENTS:
        near = nearest_names(name, EXPERIMENTS, 1)
        raise InputError(
            what="experiment", given=name, allowed=", ".join((*EXPERIMENTS, "all")), nearest=near[0] if near else None
        )
    return EXPERIMENTS[name]


def run_experiment(name: str, setup: Setup) -> Experiment:
    """Run one experiment.

    Raises:
        InputError: no experiment of this name, or no JAX.
    """
    known = entry(name)
    start_jax(setup.device)
    began = time.perf_counter()
    found: Experiment = importlib.import_module(f"rackline.lab.{known.name}").run(setup)
    return replace(found, seconds=time.perf_counter() - began, seed=setup.seed, quick=setup.quick, device=setup.device)


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
