"""Optimal models: size and tokens of least loss for a FLOP budget, and those that reach a loss at least lifetime cost.

Compute-optimal training splits a FLOP budget between size and tokens, and nobody uses the model. Over a life:

A phase of t tokens with k FLOP per parameter and token at the relative MFU m costs as much machine time as
k t / m FLOP per parameter of pre-training. The sum of that over all phases but pre-training is
`lifetime_flop_per_param`, K. The cost of a model of N parameters is then N (6 D + K), with D the tokens that bring it
to the loss. With u = (A / N**alpha) / (L - E), the share of the reducible loss that is left to the size,

    N = (A / (u c))**(1 / alpha)    D = (B / ((1 - u) c))**(1 / beta)    c = L - E

and the derivative of ln cost by ln N is zero where 6 D (r - 1) = K, r = alpha u / (beta (1 - u)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain
from rackline.scaling.law import LossLaw, Numbers, check_loss, tokens_for_loss, tokens_of_effective

TOKENS_PER_PARAM = 20.0  # the rule that people draw from Hoffmann et al., tables 3 and A3
PRETRAIN_FLOP_PER_PARAM_TOKEN = 6.0
FORWARD_FLOP_PER_PARAM_TOKEN = 2.0
DEFAULT_USEFUL_REPEATS = 15.387756  # Muennighoff et al. 2023, for laws that were fitted without repeats
_STEPS = 80  # halvings of the range of logit(u), 80 wide: below the rounding of a float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A model and what it is trained on.

    Args:
        params: N [count].
        tokens: D [token].
        train_flop: 6 N D [FLOP].
    """

    params: float | NDArray[np.float64]
    tokens: float | NDArray[np.float64]
    train_flop: float | NDArray[np.float64]


def train_flop(active_params: Num, tokens: Num) -> Num:
    """FLOP of pre-training.

    C = 6 * N_active * D

    Args:
        active_params: N_active [count], any shape.
        tokens: D [token], broadcasts.

    Returns:
        FLOP, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: attention's own products are left out; nothing is computed twice to save memory.

    Sources: lecture C81.

    >>> train_flop(70e9, 1.4e12)
    5.88e+23
    """
    n, d = checked("train_flop", active_params=active_params, tokens=tokens)
    # 6: a multiply-add forward (2), its gradient by the input (2) and by the weight (2)
    return plain(6.0 * n * d)


def chinchilla_tokens(active_params: Num, tokens_per_param: Num | float = TOKENS_PER_PARAM) -> Num:
    """Tokens of compute-optimal training by the rule of thumb.

    D = 20 * N

    Args:
        active_params: N [count], any shape.
        tokens_per_param: the ratio, 20 [token per parameter], broadcasts.

    Returns:
        Tokens, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: the ratio of one law at one compute budget; laws give 4 to 40 at 1e26 FLOP.

    Sources: lecture C94; Hoffmann et al. 2022, table 3 (1.4e12 tokens for 70e9 parameters).

    >>> chinchilla_tokens(100e9)
    2000000000000.0
    """
    n, ratio = checked("chinchilla_tokens", active_params=active_params, tokens_per_param=tokens_per_param)
    return plain(ratio * n)


def overtraining_factor(active_params: Num, tokens: Num, tokens_per_param: Num | float = TOKENS_PER_PARAM) -> Num:
    """How many times longer than compute-optimal a model was trained.

    factor = D / (20 * N_active)

    Args:
        active_params: N_active [count], any shape.
        tokens: D [token], broadcasts.
        tokens_per_param: the compute-optimal ratio [token per parameter], broadcasts.

    Returns:
        Ratio, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: as in `chinchilla_tokens`.

    Sources: lecture C95.

    >>> overtraining_factor(100e9, 200e12)
    100.0
    """
    (d,) = checked("overtraining_factor", tokens=tokens)
    return plain(d / chinchilla_tokens(active_params, tokens_per_param))


def compute_optimal(law: LossLaw, flop: Numbers) -> Allocation:
    """The size and tokens of least loss for a FLOP budget (approach 3).

    N = G * (C / 6)**a, D = (C / 6)**b / G, G = (alpha A / (beta B))**(1 / (alpha + beta)),
    a = beta / (alpha + beta), b = alpha / (alpha + beta)

    Args:
        law: the constants.
        flop: C [FLOP], any shape.

    Returns:
        The allocation, shape of `flop`.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: C = 6 N D; nobody will use the model (see `optimal_allocation`).

    Sources: Hoffmann et al. 2022, equation 4.

    >>> from rackline.scaling.law import loss_law
    >>> best = compute_optimal(loss_law("besiroglu"), 5.76e23)
    >>> round(best.tokens / best.params, 1)
    18.4
    """
    (c,) = checked("compute_optimal", flop=flop)
    alpha, beta = law.params_exponent, law.tokens_exponent
    g = (alpha * law.params_coefficient / (beta * law.tokens_coefficient)) ** (1.0 / (alpha + beta))
    n = g * (c / 6.0) ** (beta / (alpha + beta))
    d = (c / 6.0) ** (alpha / (alpha + beta)) / g
    return Allocation(params=plain(n), tokens=plain(d), train_flop=plain(c))


def compute_optimal_of_loss(law: LossLaw, loss: Numbers) -> Allocation:
    """The size and tokens that reach a loss with the fewest FLOP.

    A / N**alpha = (L - E) * beta / (alpha + beta),  B / D**beta = (L - E) * alpha / (alpha + beta)

    Args:
        law: the constants.
        loss: L [nat per token], any shape.

    Returns:
        The allocation, shape of `loss`.

    Raises:
        InputError: a loss at or below the irreducible one.

    Assumes: as in `compute_optimal`, of which it is the inverse.

    Sources: Hoffmann et al. 2022, equations 2 and 4.

    >>> from rackline.scaling.law import loss_law
    >>> law = loss_law("besiroglu")
    >>> round(compute_optimal_of_loss(law, 1.94).params / 1e9)
    147
    """
    c = check_loss(law, loss, "compute_optimal_of_loss")
    alpha, beta = law.params_exponent, law.tokens_exponent
    n = (law.params_coefficient * (alpha + beta) / (beta * c)) ** (1.0 / alpha)
    d = (law.tokens_coefficient * (alpha + beta) / (alpha * c)) ** (1.0 / beta)
    return Allocation(params=plain(n), tokens=plain(d), train_flop=plain(6.0 * n * d))


def compute_optimal_of_params(law: LossLaw, params: Numbers) -> Allocation:
    """The compute budget for which a size is the best, and its tokens.

    D = (beta B N**alpha / (alpha A))**(1 / beta)

    Args:
        law: the constants.
        params: N [count], any shape.

    Returns:
        The allocation, shape of `params`.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: as in `compute_optimal`.

    Sources: Hoffmann et al. 2022, equation 4 and table A3.

    >>> from rackline.scaling.law import loss_law
    >>> round(compute_optimal_of_params(loss_law("chinchilla-unrounded"), 1e9).tokens / 1e9)
    29
    """
    (n,) = checked("compute_optimal_of_params", params=params)
    alpha, beta = law.params_exponent, law.tokens_exponent
    d = (beta * law.tokens_coefficient / (alpha * law.params_coefficient) * n**alpha) ** (1.0 / beta)
    return Allocation(params=plain(n), tokens=plain(d), train_flop=plain(6.0 * n * d))


def power_sum_minimum(rising_coefficient: Num, rising: Num, falling_coefficient: Num, falling: Num) -> Num:
    """Where a rising and a falling power law have the least sum.

    x* = (q b / (p a))**(1 / (p + q)) of a x**p + b x**-q;  there p a x**p = q b x**-q

    Args:
        rising_coefficient: a, any shape.
        rising: p, above 0, broadcasts.
        falling_coefficient: b, broadcasts.
        falling: q, above 0, broadcasts.

    Returns:
        x*, broadcast shape. The two parts are equal there only for p = q; in general they are as q to p.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: nothing.

    Sources: lecture C80, whose rule is that the parts are about equal.

    >>> power_sum_minimum(1.0, 1.0, 1.0, 1.0)
    1.0
    """
    a, p, b, q = checked(
        "power_sum_minimum",
        rising_coefficient=rising_coefficient,
        rising=rising,
        falling_coefficient=falling_coefficient,
        falling=falling,
    )
    return plain((q * b / (p * a)) ** (1.0 / (p + q)))


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
