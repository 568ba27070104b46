"""Error bands of energy and fine-tuning, of models that no fit has seen.

Numbers of power are fitted to the other models; to steps of fine-tuning nothing is fitted. Published steps of
reinforcement learning are fewer than a band needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rackline.bands.bands import Band, Key
from rackline.errors import RacklineError
from rackline.fitting.solver import groups_of, leave_out
from rackline.hardware import ChipPower
from rackline.passes.features import Array
from rackline.validation.cases import Case
from rackline.validation.coverage import make_bands
from rackline.validation.power import PowerCase, fit_power
from rackline.validation.predict import Predictor
from rackline.validation.read import read_cases
from rackline.validation.resolve import Resolver
from rackline.validation.run import score_cases
from rackline.validation.scoreboard import Score, group_of
from rackline.validation.sources import shape_of

JOULES, TUNING = "joules_per_output_token", "tuning_step_s"


def further_bands(servings: Path, tuning: Path) -> dict[Key, Band]:
    """All bands of both files of measurements.

    Args:
        servings: with energy per output token.
        tuning: published steps of fine-tuning.
    """
    return make_bands([*joules_scores(servings), *tuning_scores(tuning)])


def joules_scores(path: Path) -> Iterator[Score]:
    """Energy of an output token, each model by numbers of power that are fitted to the others."""
    predictor = Predictor(resolver=Resolver())
    cases = [case for case in read_cases([path]).cases if JOULES in case.measured]
    prepared: list[tuple[PowerCase, float]] = []
    for case, values in zip(cases, predictor.predict_all(cases), strict=True):
        one = None if isinstance(values, RacklineError) else predictor.power(case)
        if one is not None and not isinstance(values, RacklineError):
            prepared.append((one, values["output_tokens_per_s"]))
    groups = groups_of(shape_of(one.case.model) for one, _ in prepared)

    def fitted(held: Array) -> Mapping[str, ChipPower]:
        return fit_power(prepared[place][0] for place in np.flatnonzero(~held).tolist())

    def scored(powers: Mapping[str, ChipPower], held: Array) -> list[Score]:
        own = [prepared[place] for place in np.flatnonzero(held).tolist()]
        return [
            _score(one.case, JOULES, one.values(powers[one.chip.name], rate)[JOULES], one.case.measured[JOULES])
            for one, rate in own
        ]

    for fold in leave_out(dict(sorted(groups.items())), fitted, scored):
        yield from fold.scored


def tuning_scores(path: Path) -> Iterator[Score]:
    """Steps of fine-tuning, to which nothing is fitted."""
    return (replace(score, metric=TUNING) for score in score_cases(read_cases([path])).scores)


def _score(case: Case, metric: str, predicted: float, measured: float) -> Score:
    return Score(
        case_id=case.case_id,
        where=case.where,
        metric=metric,
        measured=measured,
        predicted=predicted,
        groups=group_of(case),
    )
