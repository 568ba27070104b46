"""The error bands of kinds of cases that no command fits: energy of output tokens, steps of fine-tuning.

    uv run python bench/further_bands.py SERVINGS.jsonl TUNING.csv [--write]

`--write` replaces `bands/further_bands.toml`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rackline.bands import bands
from rackline.files import write_text
from rackline.fitting.solver import groups_of, leave_out
from rackline.hardware import ChipPower
from rackline.passes.features import Array
from rackline.validation.cases import Case, shape_of
from rackline.validation.coverage import make_bands
from rackline.validation.fit_cases import PowerCase, fit_power
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver
from rackline.validation.run import read_cases, score_cases
from rackline.validation.scoreboard import Score, group_of

FILE = Path(bands.__file__).with_name("further_bands.toml")
JOULES, TUNING = "joules_per_output_token", "tuning_step_s"


def joules_scores(path: Path) -> Iterator[Score]:
    """Energy of an output token, each model by numbers of power that are fitted to the others."""
    predictor = Predictor(resolver=Resolver())
    cases = [case for case in read_cases([path]).cases if JOULES in case.measured]
    prepared: list[tuple[PowerCase, float]] = []
    for case, values in zip(cases, predictor.predict_all(cases), strict=True):
        one = predictor.power(case) if isinstance(values, dict) else None
        if one is not None and isinstance(values, dict):
            prepared.append((one, values["output_tokens_per_s"]))
    groups = groups_of(shape_of(one.case.model) for one, _ in prepared)

    def fitted(held: Array) -> Mapping[str, ChipPower]:
        return fit_power(prepared[place][0] for place in np.flatnonzero(~held).tolist())

    def scored(powers: Mapping[str, ChipPower], held: Array) -> list[Score]:
        return [
            score_of(one.case, JOULES, one.values(powers[one.chip.name], rate)[JOULES], one.case.measured[JOULES])
            for one, rate in (prepared[place] for place in np.flatnonzero(held).tolist())
        ]

    for fold in leave_out(dict(sorted(groups.items())), fitted, scored):
        yield from fold.scored


def tuning_scores(path: Path) -> Iterator[Score]:
    """Steps of fine-tuning, to which nothing is fitted."""
    return (replace(score, metric=TUNING) for score in score_cases(read_cases([path])).scores)


def score_of(case: Case, metric: str, predicted: float, measured: float) -> Score:
    """A predicted value of a case beside the measured one."""
    return Score(
        case_id=case.case_id,
        where=case.where,
        metric=metric,
        measured=measured,
        predicted=predicted,
        groups=group_of(case),
    )


def main() -> None:
    """Predict, make the bands, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servings", type=Path, help="with energy per output token")
    parser.add_argument("tuning", type=Path, help="published steps of fine-tuning")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    files = (args.servings, args.tuning)
    text = bands.to_toml(make_bands([*joules_scores(files[0]), *tuning_scores(files[1])]), map(str, files))
    if args.write:
        write_text(FILE, text, what="write")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
