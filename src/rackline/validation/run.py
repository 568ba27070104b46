"""From case files to a scoreboard: JSON lines, operation tables and recorded server runs are read and predicted."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rackline.catalog.index import user_catalogue
from rackline.errors import InputError, RacklineError
from rackline.files import parse_json, read_text
from rackline.late import late
from rackline.passes import calibration as find_calibration
from rackline.validation.cases import Case, CaseSet, Unsupported, read_line, request_s
from rackline.validation.fit_cases import AT_MEASURED, MEASURED_KEYS
from rackline.validation.page import write_stored
from rackline.validation.predict import Predictor, predict_serve
from rackline.validation.report import MOST, worst_cases
from rackline.validation.resolve import Resolver
from rackline.validation.scoreboard import SERVED, Score, Scoreboard, both_ways, group_of, metric_of
from rackline.validation.tables import TABLES, table_of

with late:
    from rackline.validation import observed, op, requests, rl, train_cases


def read_cases(paths: Iterable[str | Path]) -> CaseSet:
    """Read case files.

    Args:
        paths: files with one JSON object per line, operation tables (.csv), or a `runs.json` of server runs; each may
            be compressed with gzip (.gz).

    Returns:
        Every line, as a case or as an unsupported one with the reason.

    Raises:
        InputError: a file cannot be read, or no file has a case.
    """
    cases: list[Case] = []
    unsupported: list[Unsupported] = []
    unknown: dict[str, int] = {}
    for path in map(Path, paths):
        text = read_text(path, what="case file", allowed="a readable file, one JSON object per line")
        suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if suffix == ".json" and _looks_like_runs(text):
            found = requests.read_runs(path, text)
        elif suffix == ".csv":
            published = table_of((*TABLES, *rl.RL_TABLES), text, f"{path}:1")
            found = (published.read if published else op.read_op_table)(path, text, unknown)
        else:
            lines = enumerate(text.split("\n"), start=1)
            found = [read_line(line, f"{path.name}, line {n}", unknown) for n, line in lines if line.strip()]
        cases += [case for case in found if isinstance(case, Case)]
        unsupported += [case for case in found if isinstance(case, Unsupported)]
    if not cases and not unsupported:
        raise InputError(what="case files", given="no case", allowed="at least one JSON object on a line")
    return CaseSet(cases=tuple(cases), unsupported=tuple(unsupported), unknown_keys=unknown)


def _looks_like_runs(text: str) -> bool:
    try:
        data = parse_json(text)
    except ValueError:
        return False
    return isinstance(data, dict) and "runs" in data


_CERTAIN = 0.95  # of the roofline, whose experts are chosen uniformly
_REPLAYED = ("requests", "observed")
_FIRST = ("op", "train", "rl-step", "adapters")
"""Kinds whose scores come first, in this order; those of servings follow as they stand in the files."""


def validate(paths: Iterable[str | Path], calibration: str = "auto") -> Scoreboard:
    """Predict all cases of some files and compare them with the measurements.

    Args:
        paths: case files.
        calibration: "auto" (each case's own stack), a stack, "unit" or a file.

    Raises:
        InputError: a file cannot be read.
        UnknownNameError, CatalogError: the calibration is unknown or invalid.
    """
    return score_cases(read_cases(paths), calibration)


def score_cases(found: CaseSet, calibration: str = "auto", num_worst: int = MOST) -> Scoreboard:
    """Predict cases that have been read already; see `validate`.

    Args:
        num_worst: number of worst cases to break down [count].
    """
    if calibration != "auto":
        find_calibration(calibration)  # a wrong name is an error of the caller, not of each case
    predictor = Predictor(resolver=Resolver(calibration))
    scores: list[Score] = []
    unsupported = list(found.unsupported)
    for case in found.cases:
        if case.kind in _REPLAYED:
            try:
                scores += requests.score_run(case, observed.served_run(predictor.resolver, case))
            except (RacklineError, ValueError) as error:
                unsupported.append(Unsupported.of(case, str(error), bad_input=True))
    cases = [case for case in found.cases if case.kind not in _REPLAYED]
    cases.sort(key=lambda case: _FIRST.index(case.kind) if case.kind in _FIRST else len(_FIRST))
    for case, values in zip(cases, _predicted(predictor, cases), strict=True):
        if isinstance(values, Unsupported):
            unsupported.append(values)
            continue
        own = scores_of(case, values)
        if all(math.isfinite(score.predicted) and score.predicted > 0 for score in own):
            scores += own
        else:
            unsupported.append(Unsupported.of(case, "the prediction is not a finite number above 0"))
    by_place = {(case.case_id, case.where): case for case in found.cases}
    lost = {(one.case_id, one.where) for one in unsupported}
    return Scoreboard(
        calibration=calibration,
        num_cases=len(found.cases) + len(found.unsupported),
        scores=tuple(scores),
        unsupported=tuple(unsupported),
        unknown_keys=found.unknown_keys,
        worst=worst_cases(predictor, by_place, scores, num_worst),
        both_ways=both_ways(
            [case for at, case in by_place.items() if at not in lost], partial(predict_serve, predictor)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """Measured cases under two catalogues.

    Args:
        changes: (metric, cases, median and 90th percentile before, both after) of each metric [1].
        worse: metrics whose median or 90th percentile got worse, or that fewer cases support, one line each.
    """

    changes: tuple[tuple[str, int, float, float, float, float], ...]
    worse: tuple[str, ...]


def rescored(paths: Iterable[str | Path], texts: Mapping[str, str]) -> Rescored:
    """Predict cases with the catalogue as it is and, in a process of its own, with other files in it.

    Args:
        paths: case files.
        texts: file in the catalogue, such as "calibrations/vllm.toml" → its content.
    """
    files = [str(Path(path).resolve()) for path in paths]
    before = validate(files)
    with tempfile.TemporaryDirectory() as folder:
        changed, stored = Path(folder) / "catalogue", Path(folder) / "before.json"
        if user_catalogue().is_dir():
            shutil.copytree(user_catalogue(), changed)
        for name, text in texts.items():
            (changed / name).parent.mkdir(parents=True, exist_ok=True)
            (changed / name).write_text(text, encoding="utf-8")
        write_stored(before, files, stored)
        done = subprocess.run(
            [sys.executable, "-m", "rackline", "validate", *files, "--stored", str(stored), "--json"],
            env={**os.environ, "RACKLINE_CATALOGUE": str(changed)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):  # 1: something got worse
        raise InputError(
            what="cases", given=" ".join(files), allowed=f"cases that validate reads: {done.stderr[-500:]}"
        )
    after: dict[str, Any] = json.loads(done.stdout)
    return Rescored(
        changes=tuple(
            (
                name,
                stats.supported,
                stats.median_abs_error,
                stats.p90_abs_error,
                after["metrics"][name]["median_abs_error"],
                after["metrics"][name]["p90_abs_error"],
            )
            for name, stats in before.metrics.items()
        ),
        worse=tuple(after["worse"]),
    )


def _predicted(predictor: Predictor, cases: Sequence[Case]) -> Iterator[dict[str, float] | Unsupported]:
    """Predicted values of each case; the reason where there are none, or where a serving as stated cannot be."""
    found = predictor.predict_all(cases)
    both = zip(cases, found, strict=True)
    fast = [case for case, values in both if isinstance(values, dict) and _much_faster(case, values)]
    ideal = Predictor(resolver=Resolver(calibration_name="unit")).predict_all(fast)
    least = {id(case): values["tpot_s"] for case, values in zip(fast, ideal, strict=True) if isinstance(values, dict)}
    for case, values in zip(cases, found, strict=True):
        if not isinstance(values, dict):
            yield Unsupported.of(case, str(values), bad_input=True)
        elif case.measured.get("tpot_s", math.inf) < _CERTAIN * least.get(id(case), 0.0):
            yield Unsupported.of(case, _impossible(case, least[id(case)]))
        else:
            yield values


def _much_faster(case: Case, values: Mapping[str, float]) -> bool:
    """Whether a serving is measured so much faster than predicted that it may be beyond the chips' peak."""
    return case.kind == "serve" and "tpot_s" in case.measured and case.measured["tpot_s"] < 0.8 * values["tpot_s"]


def _impossible(case: Case, least_s: float) -> str:
    """Why a serving as it is stated cannot be: its roofline at peak rates takes longer than was measured."""
    return (
        f"no machine does the work as stated: {1e3 * case.measured['tpot_s']:.3g} ms a token measured, at least "
        f"{1e3 * least_s:.3g} ms at the peak of its chips (fewer requests in flight, or a cache of prefixes?)"
    )


def scores_of(case: Case, values: dict[str, float]) -> list[Score]:
    """One score per measured key, and those that follow: the time of a whole request, power at the measured rate.

    Power of a chip of which nothing is known is left out.
    """
    measured = dict(case.measured)
    if case.kind == "train":
        peak = {key: value for key, value in measured.items() if key == "peak_bytes"}
        measured = {"step_s": train_cases.measured_step_s(case), **peak}
    if case.kind in SERVED and {"tpot_s", "ttft_s"} <= set(measured):
        measured["request_s"] = request_s(case, measured["tpot_s"], measured["ttft_s"])
    for key in MEASURED_KEYS:
        if key in measured and f"{key}{AT_MEASURED}" in values:
            measured[f"{key}{AT_MEASURED}"] = measured[key]
        elif key not in values:
            measured.pop(key, None)
    groups = group_of(case)
    return [
        Score(
            case_id=case.case_id,
            where=case.where,
            metric=metric_of(case.kind, key),
            measured=value,
            predicted=values[key],
            groups=groups,
        )
        for key, value in measured.items()
    ]
