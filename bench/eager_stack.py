"""Host times of the stack `torch-eager` from steps of `train_pytorch.py`, and their errors with models left out.

    uv run python bench/eager_stack.py docs/measured/train-pytorch-h200.csv

Fitted are the host's time for a dense layer, for the feed-forward half of a mixture layer, and what a step takes
besides; all else of the stack is counted from transformers' source or shared with the other stacks. Compiled rows are
left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from rackline.fitting.solver import Parameter, fit, groups_of, leave_out
from rackline.validation.resolve import Resolver
from rackline.validation.run import read_cases
from rackline.validation.train_cases import TrainCases, find_stack, prepare_training

STACK = find_stack("torch-eager")
NUMBERS = [
    Parameter(name="host.dense_s", start=5e-3, spread=1.0, low=1e-4, high=0.1),
    Parameter(name="host.moe_s", start=5e-3, spread=1.0, low=1e-4, high=0.1),
    Parameter(name="host.fixed_s", start=0.02, spread=0.5, low=1e-3, high=0.1),
]


def predicted(cases: TrainCases, values: Mapping[str, float]) -> np.ndarray:
    """Step times [s], (cases,); experts of a mixture are one grouped product, launched at once."""
    return cases.predict_one(STACK.with_values({"host.expert_s": 0.0, **values}))


def fitted(cases: TrainCases) -> dict[str, float]:
    """The numbers nearest to the steps and to where they start."""
    found = fit(NUMBERS, lambda values: np.log(predicted(cases, values) / cases.measured_s), noise=0.1, loss="squares")
    return dict(found.values)


def main() -> None:
    """Numbers of all rows, errors of each model without its own rows."""
    cases, _ = prepare_training(Resolver(), read_cases([sys.argv[1]]).cases)
    assert cases is not None
    cases = cases.take(np.array([i for i, name in enumerate(cases.stacks) if name == STACK.name]))
    values = fitted(cases)
    print(", ".join(f"{name} = {value:.3g}" for name, value in values.items()))
    alone = np.empty(len(cases.cases))
    for fold in leave_out(
        groups_of(case.model for case in cases.cases),
        lambda own: fitted(cases.take(np.flatnonzero(~own))),
        lambda numbers, own: predicted(cases.take(np.flatnonzero(own)), numbers),
    ):
        alone[fold.held] = fold.scored
    for what, times in (("fitted", predicted(cases, values)), ("model left out", alone)):
        errors = np.abs(times / cases.measured_s - 1.0)
        print(f"{what}: median {np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}")
    for case, one, time in zip(cases.cases, alone, cases.measured_s, strict=True):
        print(
            f"  {case.model} {case.text('task')} {case.number('seq_len'):g}: {1e3 * time:.0f} ms, {one / time - 1:+.0%}"
        )


if __name__ == "__main__":
    main()
