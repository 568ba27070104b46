"""An engine by name: the lab's own, or one that is installed beside rackline."""

from __future__ import annotations

from rackline.errors import InputError, nearest_names
from rackline.lab.measurement.engine import Engine
from rackline.lab.measurement.setup import MeasureSetup


def start_engine(setup: MeasureSetup) -> Engine:
    """The engine with a random-weight model, ready to run passes.

    Raises:
        InputError: it is not installed; the message says how to get it.
    """
    if setup.engine == "jax":
        from rackline.lab.measurement.jax_engine import jax_engine

        return jax_engine(setup.dtype or "fp32", setup.seed, quick=setup.quick)
    near = nearest_names(setup.engine, ["jax"], 1)
    raise InputError(what="engine", given=setup.engine, allowed="jax", nearest=near[0] if near else None)
