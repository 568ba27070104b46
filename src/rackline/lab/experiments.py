"""All experiments: what each shows, which claims it tests, and how it is run."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, replace

from rackline.errors import InputError, nearest_names
from rackline.lab.experiment import Experiment, Setup
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
