"""Error bands: how far measured values deviate from predicted ones in 90 % of similar cases.

A band is an interval of measured / predicted, from the 5 % to the 95 % quantile over the cases of a group: those of the
same metric, stack and precision; if these are fewer than 20, those of the same metric and stack; else those of the same
metric.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.errors import InputError, nearest_names
from rackline.files import rounded, toml_text
from rackline.validation.resolve import stack_name
from rackline.validation.scoreboard import Score

FEWEST = 20
"""Least number of cases of a group [cases]."""
COVERAGE = 0.9
"""Share of measured values inside a band."""
ANY = "*"
_DIGITS = 4
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An interval of measured / predicted.

    Args:
        low, high: COVERAGE of the measured values lie between predicted · low and predicted · high [ratio].
        num_cases: cases behind it [count].
        metric, stack, precision: those of the cases; ANY for all.
    """

    metric: str
    stack: str
    precision: str
    low: float
    high: float
    num_cases: int


def precision_class(label: str) -> str:
    """Data type of most matrix products for a precision label: bf16, fp8, fp4, int8, int4; "native" for an empty one.

    >>> precision_class("nvfp4"), precision_class("FP8-block"), precision_class("w4a16")
    ('fp4', 'fp8', 'int4')
    """
    text = label.lower()
    for name, marks in (
        ("fp4", ("fp4",)),
        ("int4", ("int4", "w4", "awq", "gptq")),
        ("int8", ("int8", "w8a8", "w8a16")),
        ("fp8", ("fp8",)),
        ("bf16", ("bf16", "fp16", "float16")),
    ):
        if any(mark in text for mark in marks):
            return name
    return text or "native"


def make_bands(scores: Iterable[Score]) -> dict[Key, Band]:
    """Bands of all groups with at least FEWEST cases, by (metric, stack, precision).

    Args:
        scores: scores of measured times and rates; kinds without a stack (single operations, sizes) are left out.
    """
    groups: dict[Key, list[float]] = {}
    for score in scores:
        if score.groups["kind"] in ("op", "params") or not (score.predicted > 0 and score.measured > 0):
            continue
        value = math.log(score.measured / score.predicted)
        for key in keys_of(score.metric, score.groups["stack"], score.groups["precision"]):
            groups.setdefault(key, []).append(value)
    return {key: _band(key, values) for key, values in sorted(groups.items()) if len(values) >= FEWEST}


def _band(key: Key, logs: list[float]) -> Band:
    # Weibull's quantiles contain COVERAGE of new values on average, even for few cases.
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.quantile(np.array(logs), [tail, 1.0 - tail], method="weibull")
    return Band(
        metric=key[0],
        stack=key[1],
        precision=key[2],
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        num_cases=len(logs),
    )


def keys_of(metric: str, stack: str, precision: str) -> tuple[Key, Key, Key]:
    """Groups that a value belongs to, the narrowest first."""
    name = stack_name(stack)
    return (metric, name, precision_class(precision)), (metric, name, ANY), (metric, ANY, ANY)


def find_band(bands: Mapping[Key, Band], metric: str, stack: str, precision: str) -> Band:
    """The band of the narrowest group that has one.

    Raises:
        InputError: there is no band for the metric.
    """
    for key in keys_of(metric, stack, precision):
        if key in bands:
            return bands[key]
    known = sorted({key[0] for key in bands})
    near = nearest_names(metric, known, 1)
    raise InputError(
        what="metric of an error band", given=metric, allowed=", ".join(known), nearest=near[0] if near else None
    )


def band(metric: str, stack: str = ANY, precision: str = ANY) -> tuple[float, float]:
    """(low, high): 90 % of measured values lay between low and high times the prediction.

    Args:
        metric: key of `measured` in a case, such as tpot_s, ttft_s, request_s or output_tokens_per_s.
        stack, precision: those of the deployment, in any spelling; unknown ones get the band of all cases.

    Raises:
        InputError: there is no band for the metric.
    """
    found = find_band(shipped_bands(), metric, stack, precision)
    return found.low, found.high


def coverage(bands: Mapping[Key, Band], scores: Iterable[Score]) -> dict[str, float]:
    """Share of the measured values inside their bands, by metric."""
    inside: dict[str, list[bool]] = {}
    for score in scores:
        found = find_band(bands, score.metric, score.groups["stack"], score.groups["precision"])
        ratio = score.measured / score.predicted
        inside.setdefault(score.metric, []).append(found.low <= ratio <= found.high)
    return {metric: float(np.mean(values)) for metric, values in inside.items()}


def halves(scores: Iterable[Score], seed: int) -> tuple[list[Score], list[Score]]:
    """Scores of a random half of the cases, and of the others."""
    kept = list(scores)
    cases = sorted({(score.case_id, score.where) for score in kept})
    chosen = np.random.default_rng(seed).permutation(len(cases))[: len(cases) // 2]
    first = {cases[int(index)] for index in chosen}
    mine = [score for score in kept if (score.case_id, score.where) in first]
    return mine, [score for score in kept if (score.case_id, score.where) not in first]


# ------------------------------------------------------------------------------------------------- the shipped file


def to_toml(bands: Mapping[Key, Band], files: Iterable[str]) -> str:
    """The file that `read_bands` reads."""
    names = ", ".join(sorted(Path(name).name for name in files))
    comments = (
        f"Written by `rackline validate --write-bands` from {names}.",
        f"measured / predicted lies between low and high in {COVERAGE:.0%} of the cases of a group.",
    )
    rows = [
        {
            "metric": one.metric,
            "stack": one.stack,
            "precision": one.precision,
            "low": float(one.low),
            "high": float(one.high),
            "cases": one.num_cases,
        }
        for one in bands.values()
    ]
    return toml_text({"band": rounded(rows, _DIGITS)}, comments)


def read_bands(text: str) -> dict[Key, Band]:
    """Bands of a file that `to_toml` wrote."""
    rows = cast("list[dict[str, Any]]", tomllib.loads(text)["band"])
    found = [
        Band(
            metric=row["metric"],
            stack=row["stack"],
            precision=row["precision"],
            low=float(row["low"]),
            high=float(row["high"]),
            num_cases=int(row["cases"]),
        )
        for row in rows
    ]
    return {(one.metric, one.stack, one.precision): one for one in found}


@lru_cache(maxsize=1)
def shipped_bands() -> dict[Key, Band]:
    """The bands that ship with the library."""
    return read_bands((resources.files("rackline.validation") / "bands.toml").read_text(encoding="utf-8"))
