"""The worst predictions, each with the passes behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rackline.errors import RacklineError
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor
from rackline.validation.scoreboard import Score

MOST = 10


def worst_scores(scores: Sequence[Score], most: int = MOST) -> list[Score]:
    """The values that are furthest off, at most one a case, furthest first."""
    found: dict[tuple[str, str], Score] = {}
    for score in sorted(scores, key=lambda score: -score.log_ratio):
        if len(found) == most:
            break
        found.setdefault((score.case_id, score.where), score)
    return list(found.values())


def worst_cases(
    predictor: Predictor, cases: Mapping[tuple[str, str], Case], scores: Sequence[Score], most: int = MOST
) -> tuple[dict[str, Any], ...]:
    """Plain data of the worst cases: what was measured and predicted, and where the time goes in their passes.

    Args:
        cases: by id and place.
    """
    found: list[dict[str, Any]] = []
    for score in worst_scores(scores, most):
        # a request of a run is named RUN#NUMBER
        case = cases.get((score.case_id, score.where)) or cases[score.case_id.partition("#")[0], score.where]
        found.append({**_entry(predictor, case, score), "id": score.case_id})
    return tuple(found)


def _entry(predictor: Predictor, case: Case, score: Score) -> dict[str, Any]:
    passes: dict[str, Any] = {}
    try:
        found = predictor.passes(case)
    except RacklineError:  # the value was predicted, only its breakdown cannot be had
        found = {}
    for name, time in found.items():
        passes[name] = {
            "seconds": time.seconds,
            "binds": time.binds,
            "calibration": time.calibration,
            "by_group_s": time.by_group(),
            "by_resource_s": time.by_resource,
        }
    return {
        "id": case.case_id,
        "where": case.where,
        "metric": score.metric,
        "measured": score.measured,
        "predicted": score.predicted,
        "error": score.error,
        **dict(score.groups),
        "passes": passes,
    }
