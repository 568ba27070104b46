"""What a framework of reinforcement learning adds to a step: its three numbers on a grid, and each model left out.

uv run python bench/rl_overheads.py ../shared/measured/post_training/rl/nemo_rl_steps.csv
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from rich.progress import track

from rackline.passes.features import Array
from rackline.posttraining.job import RlOverheads
from rackline.posttraining.plan import rl_step
from rackline.validation.resolve import Resolver
from rackline.validation.rl import sides_of
from rackline.validation.run import read_cases

DECODE_S = (0.0025, 0.005, 0.00625, 0.0075, 0.00875, 0.010, 0.0125)
TRAINING = (1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75)
TENSOR_S = (0.0003, 0.00045, 0.0006, 0.00075, 0.0009, 0.00105)


Numbers = tuple[float, float, float]
GRID: list[Numbers] = list(product(DECODE_S, TRAINING, TENSOR_S))


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a grid says of a table of steps.

    Args:
        best: the numbers with the least mean |log error| of all rows.
        without: the same without the rows of a model, by model.
        in_sample, left_out: predicted over measured time of each row, with `best` and without its own model, (rows,).
    """

    best: Numbers
    without: dict[str, Numbers]
    in_sample: Array
    left_out: Array


def fitted(path: str, grid: Sequence[Numbers] = GRID) -> Fitted:
    """Fit a table of steps on a grid of numbers."""
    cases = read_cases([path]).cases
    resolver = Resolver()
    sides = [sides_of(resolver, case) for case in cases]
    measured = np.array([case.measured["rl_step_s"] for case in cases])
    models = np.array([case.model for case in cases])
    ratio = np.empty((len(grid), len(cases)))
    for row, (decode_s, training, tensor_s) in enumerate(track(grid, "grid")):
        overheads = RlOverheads(decode_step_s=decode_s, training=training, tensor_s=tensor_s)
        for column, (job, schedule, engine, updates) in enumerate(sides):
            step = rl_step(replace(job, overheads=overheads), schedule, replace(engine, beside_s=decode_s), updates)
            ratio[row, column] = step.seconds / measured[column]
    apart = np.abs(np.log(ratio))

    def best(kept: Array) -> int:
        return int(apart[:, kept].mean(axis=1).argmin())

    everything = best(np.ones(len(cases), bool))
    chosen = {str(model): best(models != model) for model in sorted(set(models))}
    return Fitted(
        best=grid[everything],
        without={model: grid[index] for model, index in chosen.items()},
        in_sample=ratio[everything],
        left_out=np.array([ratio[chosen[str(model)], column] for column, model in enumerate(models)]),
    )


def main(path: str) -> None:
    found = fitted(path)
    for model, numbers in found.without.items():
        print(f"without {model:18} {numbers}")
    print(f"of all                     {found.best}")
    for name, values in (("in sample", found.in_sample), ("model left out", found.left_out)):
        error = np.abs(values - 1.0)
        print(f"{name:15} n {error.size}, median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
