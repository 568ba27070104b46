"""The lecture's mechanisms built small: each is run, and what comes out is compared with what the library predicts.

One mechanism a file; each file has a function `run(setup)` that returns an `Experiment`. The files need JAX (extra
`lab`) and are imported on demand, after `start_jax` has prepared it.
"""

from rackline.lab.experiment import NUM_DEVICES, Experiment, Reading, Setup, Verdict, start_jax, verdict_of
from rackline.lab.experiments import EXPERIMENTS, Entry, entry, run_experiment

__all__ = [
    "EXPERIMENTS",
    "NUM_DEVICES",
    "Entry",
    "Experiment",
    "Reading",
    "Setup",
    "Verdict",
    "entry",
    "run_experiment",
    "start_jax",
    "verdict_of",
]
