"""Fit a loss law to measured losses: Huber loss of the logarithms, minimised by L-BFGS; losses from a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rackline.checked import checked
from rackline.errors import InputError
from rackline.files import read_lines
from rackline.scaling.chinchilla import Frontier
from rackline.scaling.law import LossLaw

Array = NDArray[np.float64]
LEAST_POINTS = 8
# Huber's width: wide first, so that the start does not matter, then that of the paper.
_WIDTHS = (0.1, 1e-2, 1e-3)
_STARTS = ((0.3, 0.3), (0.5, 0.3), (0.3, 0.5), (0.15, 0.15))


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
