"""Error bands: an interval of measured over predicted values of cases that have something in common.

The shipped bands hold 90 % of the cases of models that no fit has seen; `rackline.validation.coverage` makes them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.arch import AnyModel, Model
from rackline.catalog.index import stack_name
from rackline.errors import InputError, nearest_names
from rackline.files import rounded, toml_text
from rackline.parallel import Deployment

COVERAGE = 0.9
"""Share of measured values that a band holds."""
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Shares of the measured values that the quantiles of a band are above."""
LIMITED = ("tpot_s", "ttft_s", "pools_tpot_s", "pools_ttft_s")
"""Metrics of latencies that a plan may limit."""
ANY = "*"
_DIGITS = 4
_SHIPPED = ("bands.toml", "further_bands.toml")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Evidence:
    """What a prediction is about, and so which measurements tell how far it may be off; ANY stands for all.

    Args:
        stack: name of the catalogue.
        kind: of the model, "dense" or "mixture".
        chip: name of the catalogue.
        layout: "one" chip, "tp" (or pp), "attention_dp" (attention ranks with sequences of their own), "pools".
    """

    stack: str = ANY
    kind: str = ANY
    chip: str = ANY
    layout: str = ANY

    def wider(self) -> tuple[Evidence, ...]:
        """This and all wider groups around it, the narrowest first."""
        by_chip = replace(self, layout=ANY)
        by_kind = replace(by_chip, chip=ANY)
        by_stack = replace(by_kind, kind=ANY)
        return self, by_chip, by_kind, by_stack, Evidence()

    def text(self) -> str:
        """ "vllm mixture h100-sxm tp", or "all stacks"."""
        return " ".join(part for part in (self.stack, self.kind, self.chip, self.layout) if part != ANY) or "all stacks"


Key = tuple[str, Evidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An interval of measured / predicted.

    Args:
        metric: of these cases.
        of: what they have in common.
        low, high: predicted · low to predicted · high holds COVERAGE of the measured values.
        num_cases: cases behind it [count].
        num_models: models among them [count].
        quantiles: measured / predicted below which SHARES of the measured values lay, rising, of latencies that a plan
            may limit; else empty.
    """

    metric: str
    of: Evidence
    low: float
    high: float
    num_cases: int
    num_models: int
    quantiles: tuple[float, ...] = ()

    def ratio_within(self, share: float) -> float:
        """Measured over predicted that a share of the servers keeps [ratio].

        Args:
            share: between the first and the last of SHARES.
        """
        return float(np.exp(np.interp(share, SHARES, np.log(self.quantiles))))

    def share_within(self, ratio: float) -> float:
        """Share of the servers whose measured over predicted is at most a ratio, from 1 to 99 % [1]."""
        return float(np.interp(math.log(ratio), np.log(self.quantiles), SHARES))


def evidence_of(deployment: Deployment, *, pools: bool = False) -> Evidence:
    """What the prediction of a deployment is about."""
    return Evidence(
        stack=stack_name(deployment.calibration.name),
        kind=kind_of_model(deployment.model),
        chip=deployment.cluster.chip.name,
        layout="pools" if pools else deployment.layout.kind,
    )


def kind_of_model(model: AnyModel) -> str:
    """ "mixture" of experts or "dense"."""
    return "mixture" if isinstance(model, Model) and model.is_moe else "dense"


def find_band(bands: Mapping[Key, Band], metric: str, of: Evidence) -> Band:
    """The band of the narrowest group that there is.

    Raises:
        InputError: no band for the metric.
    """
    for wide in of.wider():
        if (metric, wide) in bands:
            return bands[metric, wide]
    known = sorted({key[0] for key in bands})
    near = nearest_names(metric, known, 1)
    raise InputError(
        what="metric of an error band", given=metric, allowed=", ".join(known), nearest=near[0] if near else None
    )


def band(metric: str, of: Evidence | None = None) -> tuple[float, float]:
    """(low, high): 90 % of measured values lay between low and high times the prediction.

    Args:
        metric: as in `measured` of a case, such as tpot_s, ttft_s, request_s or output_tokens_per_s.
        of: what is predicted; everything by default.

    Raises:
        InputError: no band for the metric.
    """
    found = find_band(shipped_bands(), metric, of or Evidence())
    return found.low, found.high


def to_toml(bands: Mapping[Key, Band], files: Iterable[str]) -> str:
    """The file that `read_bands` reads."""
    names = ", ".join(sorted(Path(name).name for name in files))
    comments = (
        f"Written by `rackline validate --write-bands` from {names}.",
        f"measured / predicted lies between low and high in {COVERAGE:.0%} of the cases of a group, of models that no",
        f"fit has seen; quantiles are at the shares {', '.join(f'{share:g}' for share in SHARES)}.",
    )
    rows = [
        {
            "metric": one.metric,
            **{part.name: getattr(one.of, part.name) for part in fields(Evidence)},
            "low": float(one.low),
            "high": float(one.high),
            "cases": one.num_cases,
            "models": one.num_models,
            **({"quantiles": list(one.quantiles)} if one.quantiles else {}),
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
            of=Evidence(**{part.name: row[part.name] for part in fields(Evidence)}),
            low=float(row["low"]),
            high=float(row["high"]),
            num_cases=int(row["cases"]),
            num_models=int(row["models"]),
            quantiles=tuple(float(value) for value in row.get("quantiles", ())),
        )
        for row in rows
    ]
    return {(one.metric, one.of): one for one in found}


@cache
def shipped_bands() -> dict[Key, Band]:
    """The bands that come with the library."""
    folder = resources.files("rackline.bands")
    return {
        key: one for name in _SHIPPED for key, one in read_bands((folder / name).read_text(encoding="utf-8")).items()
    }
