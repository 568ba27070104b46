"""What a framework of reinforcement learning adds to a step: its three numbers on a grid, and each model left out.

uv run python bench/rl_overheads.py ../shared/measured/post_training/rl/nemo_rl_steps.csv
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product

import numpy as np
from rich.progress import track

from rackline.posttraining.job import RlOverheads
from rackline.posttraining.plan import rl_step
from rackline.validation.resolve import Resolver
from rackline.validation.rl import sides_of
from rackline.validation.run import read_cases

DECODE_S = (0.0025, 0.005, 0.00625, 0.0075, 0.00875, 0.010, 0.0125)
TRAINING = (1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75)
TENSOR_S = (0.0003, 0.00045, 0.0006, 0.00075, 0.0009, 0.00105)


def main(path: str) -> None:
    cases = read_cases([path]).cases
    resolver = Resolver()
    sides = [sides_of(resolver, case) for case in cases]
    measured = np.array([case.measured["rl_step_s"] for case in cases])
    models = np.array([case.model for case in cases])
    grid = list(product(DECODE_S, TRAINING, TENSOR_S))
    ratio = np.empty((len(grid), len(cases)))
    for row, (decode_s, training, tensor_s) in enumerate(track(grid, "grid")):
        overheads = RlOverheads(decode_step_s=decode_s, training=training, tensor_s=tensor_s)
        for column, (job, schedule, engine, updates) in enumerate(sides):
            step = rl_step(replace(job, overheads=overheads), schedule, replace(engine, beside_s=decode_s), updates)
            ratio[row, column] = step.seconds / measured[column]
    apart = np.abs(np.log(ratio))

    def best(kept: np.ndarray) -> int:
        return int(apart[:, kept].mean(axis=1).argmin())

    everything = best(np.ones(len(cases), bool))
    left_out = np.empty(len(cases))
    for model in sorted(set(models)):
        own = models == model
        chosen = best(~own)
        left_out[own] = ratio[chosen, own]
        print(f"without {model:18} {grid[chosen]}")
    print(f"of all                     {grid[everything]}")
    for name, values in (("in sample", ratio[everything]), ("model left out", left_out)):
        error = np.abs(values - 1.0)
        print(f"{name:15} n {error.size}, median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
