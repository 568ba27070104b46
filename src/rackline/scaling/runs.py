"""Training runs: what follows from the published numbers of known ones, and laws fitted to the losses of one's own.

A loss law is fitted by the Huber loss of the logarithms, minimised by L-BFGS; losses come from a CSV file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rackline.catalog import Evidence, RunRecord, law_record, names, run_record
from rackline.checked import Num, checked, plain
from rackline.errors import InputError, UnknownNameError
from rackline.files import read_lines
from rackline.hardware import chip
from rackline.scaling.budget import HOUR_S, equal_cost_ratio
from rackline.scaling.law import LossLaw, Numbers
from rackline.scaling.optimum import (
    FORWARD_FLOP_PER_PARAM_TOKEN,
    Allocation,
    implied_lifetime_flop_per_param,
    overtraining_factor,
    train_flop,
)

Array = NDArray[np.float64]
LEAST_POINTS = 8
# Huber's width: wide first, so that the start does not matter, then that of the paper.
_WIDTHS = (0.1, 1e-2, 1e-3)
_STARTS = ((0.3, 0.3), (0.5, 0.3), (0.3, 0.5), (0.15, 0.15))
PUBLISHED_PEAK = "bf16"  # the data type whose peak published MFU refer to


def lifetime_tokens(tokens_per_s: Num, seconds: Num, ship_probability: Num | float = 1.0) -> Num:
    """Tokens that a model is expected to generate while it is in use.

    D_inf = p * rate * time

    Args:
        tokens_per_s: rate of the model's traffic [token/s], any shape.
        seconds: how long it is in use [s], broadcasts.
        ship_probability: chance that the model is put to use at all [ratio], broadcasts.

    Returns:
        Tokens, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: a constant rate.

    Sources: lecture C90, C91, C92.

    >>> lifetime_tokens(50e6, 60 * 86400.0)
    259200000000000.0
    """
    rate, time, p = checked(
        "lifetime_tokens", tokens_per_s=tokens_per_s, seconds=seconds, ship_probability=ship_probability
    )
    return plain(p * rate * time)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run and what follows from its published numbers.

    Args:
        name: catalogue name.
        full_name: display name.
        total_params: all parameters [count].
        active_params: parameters that one token is multiplied with [count].
        tokens: tokens of pre-training [token].
        train_flop: 6 N_active D [FLOP].
        tokens_per_param: D / N_active [token per parameter].
        overtraining_factor: D / (20 N_active).
        equal_cost_tokens: lifetime tokens by the lecture's rule that use costs as much as pre-training [token].
        optimal_lifetime_tokens: lifetime tokens for which this was the cheapest way to its loss under the law; None
            where the model is larger than compute-optimal, which no use justifies [token].
        chip: chip it ran on, or None.
        peak_flop_per_s: dense peak that MFU refers to, or None [FLOP/s].
        chip_hours: published, or None [hour].
        mfu_published: published MFU of a step, or None.
        mfu_of_hours: 6 N D over what the chips could have done in the published hours, or None.
        goodput: mfu_of_hours / mfu_published: share of the hours that were steps of the final run, or None.
        evidence: kind of the weakest source of size and tokens.
    """

    name: str
    full_name: str
    total_params: float
    active_params: float
    tokens: float
    train_flop: float
    tokens_per_param: float
    overtraining_factor: float
    equal_cost_tokens: float
    optimal_lifetime_tokens: float | None
    chip: str | None
    peak_flop_per_s: float | None
    chip_hours: float | None
    mfu_published: float | None
    mfu_of_hours: float | None
    goodput: float | None
    evidence: str


def run_mfu(active_params: Num, tokens: Num, chip_hours: Num, peak_flop_per_s: Num) -> Num:
    """Share of what the chips could have done in the hours of a run that its 6 N D are.

    MFU = 6 N D / (chip_hours * 3600 * peak)

    Args:
        active_params: N_active [count], any shape.
        tokens: D [token], broadcasts.
        chip_hours: hours of all chips together [hour], broadcasts.
        peak_flop_per_s: dense peak of one chip [FLOP/s], broadcasts.

    Returns:
        Fraction, broadcast shape; above 1 says that the numbers do not belong together.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: all hours went into this run; attention's own products are not counted.

    Sources: scaling book, "Transformers", problem 7 (DeepSeek V3).

    >>> round(run_mfu(37e9, 14.8e12, 2.79e6, 1513e12), 3)
    0.216
    """
    hours, peak = checked("run_mfu", chip_hours=chip_hours, peak_flop_per_s=peak_flop_per_s)
    return plain(train_flop(active_params, tokens) / (hours * HOUR_S * peak))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How large a model is and on how much it was trained.

    Args:
        full_name: display name.
        active_params: parameters that one token is multiplied with [count].
        tokens: of pre-training [token].
    """

    full_name: str
    active_params: float
    tokens: float


def trained() -> list[Trained]:
    """Sizes and tokens of all runs of the catalogue."""
    records = [run_record(name) for name in names("runs")]
    return [Trained(full_name=one.full_name, active_params=_active(one), tokens=one.tokens) for one in records]


def _active(record: RunRecord) -> float:
    return record.total_params if record.active_params is None else record.active_params


def known_run(
    name: str, law: LossLaw, inference_relative_mfu: float, overrides: Mapping[str, object] | None = None
) -> KnownRun:
    """What follows from the published numbers of one run.

    Args:
        name: catalogue name, alias or TOML file.
        law: loss law for the exact optimum.
        inference_relative_mfu: MFU of use over that of pre-training.
        overrides: dotted keys and the values that replace the catalogue's.

    Raises:
        UnknownNameError: no such run.
        CatalogError: a file that breaks the schema, such as a model smaller than its active part.
    """
    record = run_record(name, overrides=overrides)
    active = _active(record)
    lifetime = implied_lifetime_flop_per_param(law, active, record.tokens)
    beta = equal_cost_ratio(FORWARD_FLOP_PER_PARAM_TOKEN, inference_relative_mfu)
    peak = _peak(record)
    of_hours = None
    if record.chip_hours is not None and peak is not None:
        of_hours = run_mfu(active, record.tokens, record.chip_hours, peak)
    kinds = [source.kind for key in ("total_params", "tokens") if (source := record.source_of(key)) is not None]
    return KnownRun(
        name=record.name,
        full_name=record.full_name,
        total_params=record.total_params,
        active_params=active,
        tokens=record.tokens,
        train_flop=train_flop(active, record.tokens),
        tokens_per_param=record.tokens / active,
        overtraining_factor=overtraining_factor(active, record.tokens),
        equal_cost_tokens=record.tokens / beta,
        optimal_lifetime_tokens=(
            lifetime * inference_relative_mfu / FORWARD_FLOP_PER_PARAM_TOKEN if lifetime >= 0.0 else None
        ),
        chip=record.chip,
        peak_flop_per_s=peak,
        chip_hours=record.chip_hours,
        mfu_published=record.mfu,
        mfu_of_hours=of_hours,
        goodput=of_hours / record.mfu if of_hours is not None and record.mfu is not None else None,
        evidence=str(max(kinds, key=list(Evidence).index)),
    )


def known_runs(law: LossLaw, inference_relative_mfu: float) -> list[KnownRun]:
    """All runs of the catalogue, the most over-trained first; arguments as in `known_run`."""
    found = [known_run(name, law, inference_relative_mfu) for name in names("runs")]
    return sorted(found, key=lambda run: -run.overtraining_factor)


def _peak(record: RunRecord) -> float | None:
    if record.peak_flop_per_s is not None or record.chip is None:
        return record.peak_flop_per_s
    try:
        made_of = chip(record.chip)
    except UnknownNameError:
        return None
    return made_of.flop_per_s(PUBLISHED_PEAK) if made_of.supports(PUBLISHED_PEAK) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The best size of a compute budget as a power law (approaches 1 and 2), N = coefficient * C**exponent.

    Args:
        name: catalogue name, or what it was fitted to.
        coefficient: parameters at 1 FLOP [count].
        exponent: growth of the size with FLOP.
    """

    name: str
    coefficient: float
    exponent: float

    def at_params(self, params: Numbers) -> Allocation:
        """The compute budget for which a size [count] is the best."""
        (n,) = checked("frontier", params=params)
        c = (n / self.coefficient) ** (1.0 / self.exponent)
        return Allocation(params=plain(n), tokens=plain(c / (6.0 * n)), train_flop=plain(c))


def frontier(name: str) -> Frontier:
    """Look a frontier up: "chinchilla-1", "chinchilla-2" or a file.

    Raises:
        UnknownNameError: no such law.
        InputError: a law of another kind.

    >>> round(frontier("chinchilla-1").at_params(10e9).tokens / 1e9)
    206
    """
    record = law_record(name)
    if record.frontier is None:
        raise InputError(
            what="law", given=record.name, allowed="a frontier of size against FLOP", nearest="chinchilla-1"
        )
    return Frontier(name=record.name, coefficient=record.frontier.coefficient, exponent=record.frontier.exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLaw:
    """A loss law and how well it fits.

    Args:
        law: the constants.
        num_points: points that were fitted [count].
        num_excluded: points that were left out [count].
        median_abs_error: median of |predicted / measured - 1| over the fitted points.
    """

    law: LossLaw
    num_points: int
    num_excluded: int
    median_abs_error: float


def fit_loss_law(params: Any, tokens: Any, losses: Any, *, exclude_highest: int = 0, name: str = "fitted") -> FittedLaw:
    """Fit L(N, D) = E + A / N**alpha + B / D**beta to measured final losses.

    min over a, b, e, alpha, beta of sum Huber_0.001(logsumexp(a - alpha ln N, b - beta ln D, e) - ln L)

    Args:
        params: N of each run [count], shape (n,).
        tokens: D of each run [token], shape (n,).
        losses: L of each run [nat per token], shape (n,).
        exclude_highest: number of runs with the highest loss to leave out as outliers [count].
        name: name of the law.

    Returns:
        The law and its error.

    Raises:
        InputError: fewer than 8 points, a value that is not positive and finite, arrays of unequal length.

    Assumes: each loss is that of a finished run.

    Sources: Hoffmann et al. 2022, equation 3; Besiroglu et al. 2024 leave out the five highest losses.
    """
    n, d, measured = (
        np.atleast_1d(array) for array in checked("fit_loss_law", params=params, tokens=tokens, losses=losses)
    )
    if not n.shape == d.shape == measured.shape or n.ndim != 1:
        raise InputError(what="points", given=(n.shape, d.shape, measured.shape), allowed="arrays of equal length")
    kept = np.sort(np.argsort(measured, kind="stable")[: len(measured) - exclude_highest])
    if len(kept) < LEAST_POINTS:
        raise InputError(what="points", given=len(kept), allowed=f"at least {LEAST_POINTS} to fit five constants")
    log_n, log_d, log_loss = np.log(n[kept]), np.log(d[kept]), np.log(measured[kept])
    centre_n, centre_d = float(log_n.mean()), float(log_d.mean())
    best = _minimise(log_n - centre_n, log_d - centre_d, log_loss)
    a, b, e, alpha, beta = (float(value) for value in best)
    law = LossLaw(
        name=name,
        irreducible_loss=float(np.exp(e)),
        params_coefficient=float(np.exp(a + alpha * centre_n)),
        tokens_coefficient=float(np.exp(b + beta * centre_d)),
        params_exponent=alpha,
        tokens_exponent=beta,
    )
    predicted, _ = _terms(best, log_n - centre_n, log_d - centre_d)
    error = float(np.median(np.abs(np.expm1(predicted - log_loss))))
    return FittedLaw(law=law, num_points=len(kept), num_excluded=exclude_highest, median_abs_error=error)


def _terms(x: Any, log_n: Array, log_d: Array) -> tuple[Array, Array]:
    """ln L as predicted, and the share of each of the three terms in L."""
    terms = np.stack([x[0] - x[3] * log_n, x[1] - x[4] * log_d, np.full_like(log_n, x[2])])
    top = terms.max(axis=0)
    sizes = np.exp(terms - top)
    return top + np.log(sizes.sum(axis=0)), sizes / sizes.sum(axis=0)


def _minimise(log_n: Array, log_d: Array, log_loss: Array) -> Any:
    from scipy import optimize

    minimize = cast("Callable[..., Any]", optimize.minimize)  # pyright: ignore[reportUnknownMemberType]
    found: Any = None
    for alpha, beta in _STARTS:
        level = float(log_loss.min())
        x = np.array([level - 2.0, level - 2.0, level - 0.2, alpha, beta])
        result: Any = None
        for width in _WIDTHS:

            def huber(x: Any, width: float = width) -> tuple[float, Any]:
                predicted, share = _terms(x, log_n, log_d)
                off = predicted - log_loss
                size = np.abs(off)
                # in units of the width, so that the stopping rule of the minimiser is the same for all
                value = np.where(size <= width, 0.5 * (off / width) ** 2, size / width - 0.5)
                slope = np.clip(off, -width, width) / width**2
                by_term = share * slope
                gradient = np.array([*by_term.sum(axis=1), -(by_term[0] * log_n).sum(), -(by_term[1] * log_d).sum()])
                return float(value.sum()), gradient

            options = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-14, "gtol": 1e-8}
            result = minimize(huber, x, jac=True, method="L-BFGS-B", options=options)
            x = result.x
        if found is None or result.fun < found.fun:
            found = result
    return found.x


def fit_frontier(flop: Any, params: Any, *, name: str = "fitted") -> Frontier:
    """Fit N_opt = k C**a to the best sizes of several compute budgets.

    ln N = ln k + a ln C, least squares

    Args:
        flop: C of each budget [FLOP], shape (n,).
        params: the best N of each [count], shape (n,).
        name: name of the frontier.

    Returns:
        The frontier.

    Raises:
        InputError: fewer than two budgets, a value that is not positive and finite.

    Assumes: each point is the minimum of its budget.

    Sources: Hoffmann et al. 2022, approaches 1 and 2.

    >>> round(fit_frontier([1e20, 1e22], [1e9, 1e10]).exponent, 3)
    0.5
    """
    c, n = checked("fit_frontier", flop=flop, params=params)
    if c.ndim != 1 or c.shape != n.shape or len(np.unique(c)) < 2:
        raise InputError(what="points", given=c.shape, allowed="at least two compute budgets, one size each")
    exponent, log_coefficient = _polynomial(np.log(c), np.log(n), 1)
    return Frontier(name=name, coefficient=float(np.exp(log_coefficient)), exponent=exponent)


def isoflop_minimum(params: Any, losses: Any) -> float:
    """The best size of one compute budget, from runs of several sizes (approach 2).

    vertex of the parabola through (ln N, L)

    Args:
        params: N of each run [count], shape (n,).
        losses: L of each run [nat per token], shape (n,).

    Returns:
        N at the vertex [count].

    Raises:
        InputError: fewer than three sizes, a value that is not positive and finite, losses without a minimum.

    Assumes: all runs took the same FLOP and lie on both sides of the minimum.

    Sources: Hoffmann et al. 2022, section 3.2.

    >>> round(isoflop_minimum([1e8, 1e9, 1e10], [3.0, 2.0, 3.0]) / 1e9, 3)
    1.0
    """
    n, measured = checked("isoflop_minimum", params=params, losses=losses)
    if n.ndim != 1 or n.shape != measured.shape or len(np.unique(n)) < 3:
        raise InputError(what="points", given=n.shape, allowed="at least three sizes, one loss each")
    curvature, slope, _ = _polynomial(np.log(n), measured, 2)
    if curvature <= 0.0:
        raise InputError(what="losses", given=curvature, allowed="losses that have a minimum between the sizes")
    return float(np.exp(-slope / (2.0 * curvature)))


def _polynomial(x: Any, y: Any, degree: int) -> list[float]:
    """Coefficients of the least-squares polynomial, the highest power first."""
    fitted = cast("NDArray[np.float64]", np.polyfit(x, y, degree))
    return [float(value) for value in fitted]


COLUMNS = {"params": ("params", "n"), "tokens": ("tokens", "d_tokens", "d"), "loss": ("loss", "l")}


def fit_file(path: str, *, exclude_highest: int = 0) -> FittedLaw:
    """Fit a loss law to a CSV file with columns params (or N), tokens (or D) and loss.

    Args:
        path: the file.
        exclude_highest: number of runs with the highest loss to leave out [count].

    Returns:
        The law and its error.

    Raises:
        InputError: no such file, a column that is missing, a cell that is not a number above 0, too few points.
    """
    file = Path(path)
    try:
        rows = list(csv.DictReader(read_lines(file, what="points", allowed="a readable CSV file")))
    except csv.Error as error:
        raise InputError(what="points", given=str(path), allowed=f"a readable CSV file ({error})") from None
    header = {name.strip().lower(): name for name in (rows[0] if rows else {}) if isinstance(name, str)}
    values: dict[str, list[float]] = {}
    for column, spellings in COLUMNS.items():
        found = next((header[spelling] for spelling in spellings if spelling in header), None)
        if found is None:
            raise InputError(
                what="columns", given=", ".join(header) or "none", allowed=f"one of {', '.join(spellings)}", where=path
            )
        values[column] = [_number(row[found], found, f"{path}, line {line}") for line, row in enumerate(rows, start=2)]
    return fit_loss_law(
        values["params"], values["tokens"], values["loss"], exclude_highest=exclude_highest, name=file.stem
    )


def _number(text: str | None, column: str, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise InputError(what=column, given=text, allowed="a number above 0", where=where)
    return value
