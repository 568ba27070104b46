"""An engine by name: the lab's own, or one that is installed beside rackline."""

from __future__ import annotations

from rackline.errors import InputError, nearest_names
from rackline.lab.measurement.engine import Engine
from rackline.lab.measurement.process_engine import installable, process_engine
from rackline.lab.measurement.setup import MeasureSetup
from rackline.lab.measurement.workers.worker import Clock

OWN = "jax"


def start_engine(setup: MeasureSetup) -> Engine:
    """The engine with a random-weight model, ready to run passes.

    Raises:
        InputError: it is unknown or not installed; the message says how to get it.
    """
    if setup.engine == OWN:
        from rackline.lab.measurement.jax_engine import jax_engine

        clock = Clock(cpu=setup.cpu_clock)
        return jax_engine(setup.dtype or "fp32", setup.seed, quick=setup.quick, clock=clock)
    known = [OWN, *installable()]
    if setup.engine not in known:
        near = nearest_names(setup.engine, known, 1)
        raise InputError(what="engine", given=setup.engine, allowed=", ".join(known), nearest=near[0] if near else None)
    return process_engine(setup)
