"""Which quantities a result depends on: Sobol' indices with confidence, and a tornado of main effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from rackline.display.wording import of_key
from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.sweeps.read import Results
from rackline.sweeps.space import DRAW

How = Literal["saltelli", "grid", "bins"]
CONFIDENCE = 0.95
_RESAMPLES = 200
_BINS = 16
_MOST_ROWS = 20_000  # draws that are resampled
_TENTH = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Shares of the variance of a result that one quantity explains.

    Args:
        quantity: its column.
        first: alone: Var(E[y | x]) / Var(y) [1].
        first_low, first_high: 95 % confidence; None where nothing is drawn.
        total: with all its interactions: E(Var(y | all others)) / Var(y); None where the design does not tell.
        total_low, total_high: 95 % confidence.
        how: from Saltelli's design, the whole grid, or bins of draws.
    """

    quantity: str
    first: float
    first_low: float | None
    first_high: float | None
    total: float | None
    total_low: float | None
    total_high: float | None
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a quantity moves a result by, the others as they come.

    Args:
        quantity: its column.
        low, high: its value at either end: the least and most of a list, the mean of the lowest and highest tenth of
            draws, the texts with the least and the most result.
        at_low, at_high: median result there.
    """

    quantity: str
    low: str
    high: str
    at_low: float
    at_high: float


def sensitivities(results: Results, objective: str) -> tuple[Sensitivity, ...]:
    """Sobol' indices of every quantity, most first; over all points with a result, feasible or not.

    With Saltelli's design first and total indices come with bootstrap confidence. On a grid they are exact for the
    values of the grid. Of other draws the first index is estimated in bins of equal numbers, less their noise.

    Raises:
        InputError: no quantity varies, or the result does not.

    Sources: I. Sobol', Math. Comput. Simul. 55, 271 (2001); A. Saltelli et al., Comput. Phys. Commun. 181, 259 (2010).
    """
    drawn = results.drawn
    sample = results.index["sample"]
    found: list[Sensitivity] = []
    if drawn and sample["method"] == "saltelli":
        found += _of_design(results, objective, drawn, int(sample["num"]), int(sample["seed"]))
    elif drawn:
        found += _of_draws(results, objective, drawn)
    listed = [name for name in results.axes if name not in drawn]
    if listed and not found:
        found += _of_grid(results, objective, listed)
    if not found:
        raise InputError(what="objectives", given=objective, allowed="a result that varies with several quantities")
    return tuple(sorted(found, key=lambda one: -(one.first if one.total is None else one.total)))


def _known(objective: str) -> pl.Expr:
    return pl.col(objective).is_not_null() & pl.col(objective).is_finite()


def _of_design(results: Results, objective: str, drawn: Sequence[str], num: int, seed: int) -> list[Sensitivity]:
    """Sensitivities from Saltelli's design, the result being the mean over all quantities that are listed."""
    from scipy.stats import sobol_indices  # pyright: ignore[reportUnknownVariableType]

    means = results.scan().filter(_known(objective)).group_by(DRAW).agg(pl.col(objective).cast(float).mean())
    table = means.collect(engine="streaming").sort(DRAW)
    every = num * (len(drawn) + 2)
    if table.height != every:
        raise InputError(
            what="objectives",
            given=objective,
            allowed=f"a result of every draw; {every - table.height} of {every} have none (run the sweep to its end, "
            "or narrow what is drawn)",
        )
    blocks = table[objective].to_numpy().reshape(len(drawn) + 2, 1, num)
    if not np.var(blocks) > 0:
        return []
    indices = sobol_indices(func={"f_A": blocks[0], "f_B": blocks[1], "f_AB": blocks[2:]}, n=num)
    bands = _bootstrap(blocks, seed)
    first, total = np.ravel(indices.first_order), np.ravel(indices.total_order)
    return [
        Sensitivity(
            quantity=name,
            first=float(first[place]),
            first_low=float(bands[0][0][place]),
            first_high=float(bands[0][1][place]),
            total=float(total[place]),
            total_low=float(bands[1][0][place]),
            total_high=float(bands[1][1][place]),
            how="saltelli",
        )
        for place, name in enumerate(drawn)
    ]


def _bootstrap(blocks: Array, seed: int) -> list[tuple[Array, Array]]:
    """Confidence of first and total indices: the same draws again, with a fixed seed."""
    from scipy.stats import sobol_indices  # pyright: ignore[reportUnknownVariableType]

    rng = np.random.default_rng(seed)
    num = blocks.shape[-1]
    firsts: list[Array] = []
    totals: list[Array] = []
    for _ in range(_RESAMPLES):
        some = blocks[:, :, rng.integers(0, num, num)]
        one = sobol_indices(func={"f_A": some[0], "f_B": some[1], "f_AB": some[2:]}, n=num)
        firsts.append(np.ravel(one.first_order))
        totals.append(np.ravel(one.total_order))
    ends = [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)]
    return [
        (found[0], found[1]) for found in (np.percentile(firsts, ends, axis=0), np.percentile(totals, ends, axis=0))
    ]


def _of_grid(results: Results, objective: str, listed: Sequence[str]) -> list[Sensitivity]:
    """Shares of the variance over all combinations of lists: variances of means, and means of variances."""
    kept = results.scan().filter(_known(objective)).with_columns(pl.col(objective).cast(float))
    whole = kept.select(pl.col(objective).var(ddof=0).alias("var"), pl.col(objective).mean().alias("mean"))
    row = whole.collect(engine="streaming").row(0, named=True)
    if not row["var"] or not row["var"] > 0:
        return []
    found: list[Sensitivity] = []
    for name in listed:
        means = kept.group_by(name).agg(pl.col(objective).mean().alias("mean"), pl.len().alias("rows"))
        each = means.collect(engine="streaming")
        weights = each["rows"].to_numpy().astype(float)
        between = float(np.average((each["mean"].to_numpy() - row["mean"]) ** 2, weights=weights))
        others = [one for one in listed if one != name]
        total = 1.0
        if others:
            inside = kept.group_by(others).agg(pl.col(objective).var(ddof=0).alias("var"), pl.len().alias("rows"))
            spread = inside.select((pl.col("var") * pl.col("rows")).sum() / pl.col("rows").sum())
            total = float(spread.collect(engine="streaming").item()) / row["var"]
        found.append(
            Sensitivity(
                quantity=name,
                first=between / row["var"],
                first_low=None,
                first_high=None,
                total=total,
                total_low=None,
                total_high=None,
                how="grid",
            )
        )
    return found


def _of_draws(results: Results, objective: str, drawn: Sequence[str]) -> list[Sensitivity]:
    """Sensitivities from draws that were made for other ends: bins of equal counts along each quantity."""
    means = results.scan().filter(_known(objective)).group_by(DRAW)
    table = means.agg(pl.col(objective).cast(float).mean(), *(pl.col(name).first() for name in drawn))
    frame = table.collect(engine="streaming").sort(DRAW).head(_MOST_ROWS)
    result = frame[objective].to_numpy()
    if len(result) < 4 * _BINS or not np.var(result) > 0:
        return []
    rng = np.random.default_rng(0)
    found: list[Sensitivity] = []
    for name in drawn:
        values = frame[name].to_numpy()
        resampled: list[float] = []
        for _ in range(_RESAMPLES):
            some = rng.integers(0, len(result), len(result))
            resampled.append(_binned(values[some], result[some]))
        low, high = np.percentile(resampled, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
        found.append(
            Sensitivity(
                quantity=name,
                first=_binned(values, result),
                first_low=float(low),
                first_high=float(high),
                total=None,
                total_low=None,
                total_high=None,
                how="bins",
            )
        )
    return found


def _binned(values: Array, result: Array) -> float:
    """Share of variance between bins of equal numbers, less what chance puts there."""
    bins = np.array_split(np.argsort(values, kind="stable"), _BINS)
    means = np.array([result[one].mean() for one in bins])
    noise = float(np.mean([result[one].var() for one in bins])) * (_BINS - 1) / len(result)
    return float(max((means.var() - noise) / result.var(), 0.0))


def tornado(results: Results, objective: str) -> tuple[Effect, ...]:
    """Median result at either end of each quantity, the largest difference first; over feasible points."""
    numeric = results.numeric()
    kept = results.scan().filter(pl.col("feasible") & _known(objective)).with_columns(pl.col(objective).cast(float))
    found: list[Effect] = []
    for name in results.axes:
        if name not in numeric:
            groups = kept.group_by(name).agg(pl.col(objective).median()).collect(engine="streaming").sort(objective)
            if groups.height > 1:
                first, last = groups.row(0), groups.row(-1)
                found.append(_effect(name, (str(first[0]), first[1]), (str(last[0]), last[1])))
            continue
        least = _TENTH if name in results.drawn else 0.0
        ends = kept.select(pl.col(name).quantile(least).alias("low"), pl.col(name).quantile(1 - least).alias("high"))
        row = ends.collect(engine="streaming").row(0, named=True)
        if row["low"] is None or row["low"] == row["high"]:
            continue
        sides = kept.select(
            pl.col(objective).filter(pl.col(name) <= row["low"]).median().alias("at_low"),
            pl.col(objective).filter(pl.col(name) >= row["high"]).median().alias("at_high"),
        )
        values = sides.collect(engine="streaming").row(0, named=True)
        low, high = (of_key(name, float(row[end])) for end in ("low", "high"))
        found.append(_effect(name, (low, values["at_low"]), (high, values["at_high"])))
    return tuple(sorted(found, key=lambda one: -abs(one.at_high - one.at_low)))


def _effect(name: str, low: tuple[str, Any], high: tuple[str, Any]) -> Effect:
    return Effect(quantity=name, low=low[0], high=high[0], at_low=float(low[1]), at_high=float(high[1]))


def bands(results: Results, objective: str, along: str, by: str | None) -> pl.DataFrame:
    """Quantiles of a result over all draws along a quantity: how uncertain it is.

    Args:
        along: column of a listed quantity.
        by: column whose values have bands of their own; None for one band.

    Returns:
        Columns along, by, and p5, p25, p50, p75, p95 of the feasible rows.
    """
    keys = [along, *([by] if by else [])]
    kept = results.scan().filter(pl.col("feasible") & _known(objective)).with_columns(pl.col(objective).cast(float))
    quantiles: Mapping[str, float] = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    found = kept.group_by(keys).agg(pl.col(objective).quantile(share).alias(name) for name, share in quantiles.items())
    return found.collect(engine="streaming").sort(keys)
