"""The four numbers of an older engine, fitted to one laboratory's servings with models, chips or batch sizes left out.

    uv run python bench/second_laboratory.py ../shared/measured/serving_power.jsonl

Prints the numbers of all cases, and the errors where each model, each chip and each class of batch sizes is left out of
the fit in turn. Kernel times do not depend on the numbers, so each pass is computed once: a step is

    behind(passes + (ratio - 1) experts + bytes · logits / bandwidth + step, launches + each · sequences)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from rackline.fitting.solver import groups_of, leave_out
from rackline.passes.features import Array
from rackline.validation.cases import shape_of
from rackline.validation.run import read_cases
from rackline.validation.serving_fit import ELSEWHERE, NAMES, Step, fit_engine, steps_of

WITHOUT = np.array([0.0, 0.0, 0.0, 1.0])
"""None of the four numbers."""
CLASSES = (16, 64, 256, np.inf)  # sequences per chip


def report(name: str, steps: Sequence[Step], predicted: Sequence[float]) -> None:
    """One row: cases, median error, p90, bias."""
    ratio = np.array(predicted) / np.array([step.measured_s for step in steps])
    off = np.abs(ratio - 1.0)
    print(
        f"| {name} | {len(steps)} | {100 * np.median(off):.1f} % | {100 * np.quantile(off, 0.9):.1f} % | "
        f"{100 * (np.median(ratio) - 1.0):+.1f} % |"
    )


def left_out(steps: Sequence[Step], key: Callable[[Step], object]) -> tuple[list[float], list[Array]]:
    """Each group predicted by the numbers of the others, and these numbers."""
    folds = leave_out(
        groups_of(str(key(step)) for step in steps),
        lambda held: fit_engine([steps[place] for place in np.flatnonzero(~held)]),
        lambda numbers, held: {place: steps[place].seconds(numbers) for place in np.flatnonzero(held).tolist()},
    )
    found = list(folds)
    predicted = {place: seconds for fold in found for place, seconds in fold.scored.items()}
    return [predicted[place] for place in range(len(steps))], [fold.fitted for fold in found]


def batch_class(step: Step) -> int:
    """Class of a case by sequences per chip."""
    each = step.case.number("concurrency") / step.case.num_chips
    return next(index for index, most in enumerate(CLASSES) if each <= most)


def chip_of(step: Step) -> str:
    """Chip of a case."""
    return step.case.chip


def model_of(step: Step) -> str:
    """Shape of the model: releases of one shape are left out together."""
    return shape_of(step.case.model)


def main(paths: Sequence[str]) -> None:
    cases = read_cases(paths).cases
    steps = steps_of(cases)
    refused = len(cases) - len(steps)
    numbers = fit_engine(steps)
    print(
        f"{len(steps)} cases, {refused} refused; "
        + ", ".join(f"{n} {v:.3g}" for n, v in zip(NAMES, numbers, strict=True))
    )
    print("\n| | cases | median error | p90 | bias |\n|---|---:|---:|---:|---:|")
    report("in sample", steps, [step.seconds(numbers) for step in steps])
    report("without the four numbers", steps, [step.seconds(WITHOUT) for step in steps])
    report("laboratory held out", steps, [step.seconds(ELSEWHERE) for step in steps])
    for index, name in enumerate(NAMES):
        one = numbers.copy()
        one[index] = WITHOUT[index]
        report(f"without {name}", steps, [step.seconds(one) for step in steps])
    report("each chip held out", steps, left_out(steps, chip_of)[0])
    report("each class of batch sizes held out", steps, left_out(steps, batch_class)[0])
    predicted, folds = left_out(steps, model_of)
    report("each model held out", steps, predicted)
    low, high = np.min(folds, axis=0), np.max(folds, axis=0)

    def part(name: str, chosen: Sequence[bool]) -> None:
        own = [index for index, take in enumerate(chosen) if take]
        report(f"· {name}", [steps[index] for index in own], [predicted[index] for index in own])

    part("mixtures", [step.mixture for step in steps])
    part("dense and hybrid", [not step.mixture for step in steps])
    for index, most in enumerate(CLASSES):
        part(f"up to {most:g} sequences per chip", [batch_class(step) == index for step in steps])
    for chip in sorted(set(map(chip_of, steps))):
        part(chip, [chip_of(step) == chip for step in steps])
    for model in sorted(set(map(model_of, steps))):
        part(f"without {model}", [model_of(step) == model for step in steps])
    print("\n| number | all cases | least | most |\n|---|---:|---:|---:|")
    for row in zip(NAMES, numbers, low, high, strict=True):
        print("| {} | {:.3g} | {:.3g} | {:.3g} |".format(*row))


if __name__ == "__main__":
    main(sys.argv[1:])
