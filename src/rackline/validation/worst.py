"""The worst predictions, with a breakdown of their passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackline.errors import RacklineError
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor
from rackline.validation.scoreboard import Score, WorstCase, WorstPass

MOST = 10


def worst_scores(scores: Sequence[Score], most: int = MOST) -> list[Score]:
    """The predictions with the largest errors, at most one per case, largest first."""
    found: dict[tuple[str, str], Score] = {}
    for score in sorted(scores, key=lambda score: -score.log_ratio):
        if len(found) == most:
            break
        found.setdefault((score.case_id, score.where), score)
    return list(found.values())


def worst_cases(
    predictor: Predictor, cases: Mapping[tuple[str, str], Case], scores: Sequence[Score], most: int = MOST
) -> tuple[WorstCase, ...]:
    """The worst cases as plain data: measured and predicted values, and where the time goes in their passes.

    Args:
        cases: cases by id and location.
    """
    found: list[WorstCase] = []
    for score in worst_scores(scores, most):
        # a request of a run is named RUN#NUMBER
        case = cases.get((score.case_id, score.where)) or cases[score.case_id.partition("#")[0], score.where]
        found.append(_entry(predictor, case, score))
    return tuple(found)


def _entry(predictor: Predictor, case: Case, score: Score) -> WorstCase:
    passes: dict[str, WorstPass] = {}
    try:
        found = predictor.passes(case)
    except (RacklineError, ValueError):  # the prediction exists, only its breakdown is not available
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
        "id": score.case_id,
        "where": case.where,
        "metric": score.metric,
        "measured": score.measured,
        "predicted": score.predicted,
        "error": score.error,
        "kind": score.groups["kind"],
        "model": score.groups["model"],
        "chip": score.groups["chip"],
        "stack": score.groups["stack"],
        "precision": score.groups["precision"],
        "op": score.groups["op"],
        "passes": passes,
    }
