"""The model size that reaches a loss at minimum lifetime cost, training and inference; and known training runs.

A phase of t tokens with k FLOP per parameter and token at the relative MFU m costs as much machine time as
k t / m FLOP per parameter of pre-training. The sum of that over all phases but pre-training is
`lifetime_flop_per_param`, K. The cost of a model of N parameters is then N (6 D + K), with D the tokens that bring it
to the loss. With u = (A / N**alpha) / (L - E), the share of the reducible loss that is left to the size,

    N = (A / (u c))**(1 / alpha)    D = (B / ((1 - u) c))**(1 / beta)    c = L - E

and the derivative of ln cost by ln N is zero where 6 D (r - 1) = K, r = alpha u / (beta (1 - u)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.catalog import Evidence, RunRecord, names, run_record
from rackline.checked import Num, checked, plain
from rackline.errors import InputError, UnknownNameError
from rackline.hardware import chip
from rackline.scaling.chinchilla import (
    FORWARD_FLOP_PER_PARAM_TOKEN,
    PRETRAIN_FLOP_PER_PARAM_TOKEN,
    equal_cost_ratio,
    overtraining_factor,
    train_flop,
)
from rackline.scaling.law import LossLaw, check_loss, tokens_for_loss, tokens_of_effective

DEFAULT_USEFUL_REPEATS = 15.387756  # Muennighoff et al. 2023, for laws that were fitted without repeats
_STEPS = 80  # halvings of the range of logit(u), 80 wide: below the rounding of a float


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeOptimum:
    """The cheapest model of a quality over its whole life.

    Args:
        params: N, active parameters [count]; NaN where there is none.
        tokens: D, tokens of pre-training, repeats counted [token]; NaN where there is none.
        lifetime_flop: N (6 D + K), all phases in FLOP of pre-training [FLOP]; NaN where there is none.
        feasible: whether any size reaches the loss.
        reason: why not, where not; empty when everything is feasible.
    """

    params: float | NDArray[np.float64]
    tokens: float | NDArray[np.float64]
    lifetime_flop: float | NDArray[np.float64]
    feasible: bool | NDArray[np.bool_]
    reason: str = ""


def lifetime_flop_of(
    law: LossLaw, params: Num, loss: Num, lifetime_flop_per_param: Num | float, unique_tokens: Num | float | None = None
) -> Num:
    """What a model of N parameters costs that is trained to a loss and then used.

    cost = N (6 D(N, L) + K)

    Args:
        law: the constants.
        params: N [count], any shape.
        loss: L [nat per token], broadcasts.
        lifetime_flop_per_param: K, see the module [FLOP], 0 allowed, broadcasts.
        unique_tokens: different tokens that there are, None for no limit [token], broadcasts.

    Returns:
        FLOP of pre-training, broadcast shape; inf where the size never reaches the loss.

    Raises:
        InputError: a loss at or below the irreducible one; a negative value.

    Assumes: `loss`; K does not depend on N.

    Sources: Sardana et al. 2024, equations 3 and 6; lecture C80 to C84.

    >>> from rackline.scaling.law import loss_law
    >>> lifetime_flop_of(loss_law("besiroglu"), 1e9, 1.9, 0.0)
    inf
    """
    (k,) = checked(
        "lifetime_flop_of", zero=("lifetime_flop_per_param",), lifetime_flop_per_param=lifetime_flop_per_param
    )
    tokens = _tokens(law, np.asarray(tokens_for_loss(law, params, loss)), unique_tokens)
    return plain(flop_over_life(np.asarray(params), tokens, k))


def flop_over_life(params: Any, tokens: Any, lifetime_flop_per_param: Any) -> Any:
    """N (6 D + K), of arrays or traced numbers [FLOP].

    Args:
        params: N [count].
        tokens: D [token].
        lifetime_flop_per_param: K, see the module [FLOP].
    """
    return params * (PRETRAIN_FLOP_PER_PARAM_TOKEN * tokens + lifetime_flop_per_param)


def optimal_allocation(
    law: LossLaw, loss: Num, lifetime_flop_per_param: Num | float = 0.0, unique_tokens: Num | float | None = None
) -> LifetimeOptimum:
    """The size and tokens that reach a loss and cost the least over training and use.

    6 D (r - 1) = K,  r = alpha A N**-alpha / (beta B D**-beta)

    Args:
        law: the constants.
        loss: L [nat per token], any shape.
        lifetime_flop_per_param: K, see the module [FLOP], 0 for a model that nobody uses, broadcasts.
        unique_tokens: different tokens that there are; more are repeats; None for no limit [token], broadcasts.

    Returns:
        The optimum, broadcast shape. Without use it is compute-optimal; with more and more use N falls towards
        the least size that reaches the loss on any amount of data.

    Raises:
        InputError: a loss at or below the irreducible one; a negative value.

    Assumes: as in `lifetime_flop_of`. The law is trusted far beyond the tokens per parameter it was fitted to.

    Sources: Sardana et al. 2024, equation 3; ledger check G09.

    >>> from rackline.scaling.law import loss_law
    >>> best = optimal_allocation(loss_law("besiroglu"), 1.94, 0.0)
    >>> round(best.params / 1e9)
    147
    """
    (k,) = checked(
        "optimal_allocation", zero=("lifetime_flop_per_param",), lifetime_flop_per_param=lifetime_flop_per_param
    )
    reducible, k = np.broadcast_arrays(check_loss(law, loss, "optimal_allocation"), k)
    low, high = np.full(reducible.shape, -40.0), np.full(reducible.shape, 40.0)
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        params, effective, ratio = _at(law, reducible, middle)
        tokens = _tokens(law, effective, unique_tokens)
        with np.errstate(invalid="ignore", over="ignore"):
            excess = (
                PRETRAIN_FLOP_PER_PARAM_TOKEN * tokens * (ratio * _growth(law, effective, tokens, unique_tokens) - 1.0)
            )
            too_small = ~(excess < k)
        low, high = np.where(too_small, low, middle), np.where(too_small, middle, high)
    params, effective, _ = _at(law, reducible, low)
    tokens = _tokens(law, effective, unique_tokens)
    feasible = np.isfinite(tokens)
    tokens = np.where(feasible, tokens, np.nan)
    params = np.where(feasible, params, np.nan)
    return LifetimeOptimum(
        params=plain(params),
        tokens=plain(tokens),
        lifetime_flop=plain(params * (PRETRAIN_FLOP_PER_PARAM_TOKEN * tokens + k)),
        feasible=bool(feasible) if feasible.ndim == 0 else feasible,
        reason="" if feasible.all() else "with so few unique tokens no model size reaches this loss",
    )


def optimal_tokens_of_params(law: LossLaw, params: Num, lifetime_flop_per_param: Num | float) -> Num:
    """Training tokens at which N parameters are the compute-optimal size.

    6 D (r - 1) = K at fixed N

    Args:
        law: the constants.
        params: N [count], any shape.
        lifetime_flop_per_param: K, see the module [FLOP], 0 allowed, broadcasts.

    Returns:
        Tokens, broadcast shape.

    Raises:
        InputError: a value that is negative or not finite, or a size of 0.

    Assumes: as in `optimal_allocation`, at the loss that this size reaches on these tokens.

    Sources: ledger check G09.

    >>> from rackline.scaling.law import loss_law
    >>> round(optimal_tokens_of_params(loss_law("besiroglu"), 100e9, 6 * 259.2e12) / 1e12)
    84
    """
    (n,) = checked("optimal_tokens_of_params", params=params)
    (k,) = checked(
        "optimal_tokens_of_params", zero=("lifetime_flop_per_param",), lifetime_flop_per_param=lifetime_flop_per_param
    )
    n, k = np.broadcast_arrays(n, k)
    low, high = np.full(n.shape, 0.0), np.full(n.shape, 92.0)  # ln of 1 to 1e40 tokens
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        too_many = implied_lifetime_flop_per_param(law, n, np.exp(middle)) > k
        low, high = np.where(too_many, low, middle), np.where(too_many, middle, high)
    return plain(np.exp((low + high) / 2.0))


def implied_lifetime_flop_per_param(law: LossLaw, params: Num, tokens: Num) -> Num:
    """How much use justifies that a model of N parameters was trained on D tokens.

    K = 6 D (r - 1),  r = alpha A N**-alpha / (beta B D**-beta)

    Args:
        law: the constants.
        params: N [count], any shape.
        tokens: D [token], broadcasts.

    Returns:
        FLOP of pre-training per parameter, broadcast shape; below 0 where the model is larger than compute-optimal,
        which no amount of use justifies.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: as in `optimal_allocation`; those who trained it chose its size by this law.

    Sources: ledger check G09.

    >>> from rackline.scaling.law import loss_law
    >>> implied_lifetime_flop_per_param(loss_law("besiroglu"), 540e9, 780e9) < 0
    True
    """
    n, d = checked("implied_lifetime_flop_per_param", params=params, tokens=tokens)
    by_size = law.params_exponent * law.params_coefficient * n**-law.params_exponent
    by_data = law.tokens_exponent * law.tokens_coefficient * d**-law.tokens_exponent
    return plain(PRETRAIN_FLOP_PER_PARAM_TOKEN * d * (by_size / by_data - 1.0))


def _at(law: LossLaw, reducible: Any, logit: Any) -> tuple[Any, Any, Any]:
    """Size, fresh tokens and r where the size leaves u = 1 / (1 + exp(-logit)) of the reducible loss."""
    u, rest = 1.0 / (1.0 + np.exp(-logit)), 1.0 / (1.0 + np.exp(logit))
    params = (law.params_coefficient / (u * reducible)) ** (1.0 / law.params_exponent)
    tokens = (law.tokens_coefficient / (rest * reducible)) ** (1.0 / law.tokens_exponent)
    return params, tokens, law.params_exponent / law.tokens_exponent * np.exp(logit)


def _useful_repeats(law: LossLaw) -> float:
    return DEFAULT_USEFUL_REPEATS if law.useful_repeats is None else law.useful_repeats


def _tokens(law: LossLaw, effective: Any, unique: Any) -> Any:
    """Tokens, repeats included, that are worth a given number of fresh ones."""
    if unique is None:
        return effective
    finite = np.isfinite(effective)
    with_repeats = tokens_of_effective(np.where(finite, effective, 1.0), unique, _useful_repeats(law))
    return np.where(finite, with_repeats, np.inf)


def _growth(law: LossLaw, effective: Any, tokens: Any, unique: Any) -> Any:
    """d ln D / d ln D': 1 for fresh tokens, more where each further one is a repeat."""
    if unique is None:
        return 1.0
    left = np.maximum(1.0 - np.maximum(effective / unique - 1.0, 0.0) / _useful_repeats(law), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(effective > unique, effective / tokens / left, 1.0)


PUBLISHED_PEAK = "bf16"  # the data type whose peak published MFU refer to
HOUR_S = 3600.0


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


def chip_hours_of_flop(flop: Num, mfu: Num, peak_flop_per_s: Num) -> Num:
    """Chip-hours for a number of FLOP.

    hours = FLOP / (MFU * peak * 3600)

    Args:
        flop: FLOP of the model [FLOP], any shape, 0 allowed.
        mfu: share of the peak that is reached, at most 1 [ratio], broadcasts.
        peak_flop_per_s: dense peak of one chip [FLOP/s], broadcasts.

    Returns:
        Hours of one chip, broadcast shape.

    Raises:
        InputError: an MFU above 1, a value that is not positive and finite.

    Assumes: a constant MFU.

    Sources: definition of MFU (PaLM, Chowdhery et al. 2022, appendix B).

    >>> round(chip_hours_of_flop(6.3e24, 0.4, 459e12) / 8960 / 24)  # days of LLaMA 3 70B on a pod of TPU v5p
    44
    """
    c, share, peak = checked("chip_hours_of_flop", zero=("flop",), flop=flop, mfu=mfu, peak_flop_per_s=peak_flop_per_s)
    if not (share <= 1.0).all():
        raise InputError(
            what="mfu", given=float(share.max()), allowed="above 0 to 1: no run is above the peak", nearest="1"
        )
    return plain(c / (share * peak * HOUR_S))


def lifetime_tokens_of_flop(lifetime_flop_per_param: float, relative_mfu: float) -> float:
    """Inference tokens that cost K FLOP of pre-training per parameter: K m / 2 [token]."""
    return lifetime_flop_per_param * relative_mfu / FORWARD_FLOP_PER_PARAM_TOKEN


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
            lifetime_tokens_of_flop(lifetime, inference_relative_mfu) if lifetime >= 0.0 else None
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
