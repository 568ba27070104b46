"""Predicted step time of training cases, all cases at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rackline.validation.cases import Case, Unsupported
from rackline.validation.resolve import Resolver
from rackline.validation.train_cases import TrainCases, find_stack, prepare_training


def predict_training(
    resolver: Resolver, cases: Sequence[Case]
) -> Iterator[tuple[Case, dict[str, float] | Unsupported]]:
    """Step time of each case under its own training stack [s]; every measured key is scored as `step_s`."""
    ready, unsupported = prepare_training(resolver, cases)
    for one, step_s in zip(ready.cases, shipped_steps(ready), strict=True) if ready is not None else ():
        yield one, {"step_s": step_s}
    by_place = {(case.case_id, case.where): case for case in cases}
    for lost in unsupported:
        yield by_place[lost.case_id, lost.where], lost


def shipped_steps(ready: TrainCases) -> list[float]:
    """Predictions under the stacks of the catalogue [s]."""
    return [float(value) for value in ready.predict({name: find_stack(name) for name in dict.fromkeys(ready.stacks)})]
