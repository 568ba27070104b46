"""Compute-optimal training, and the lecture's rule for over-training.

Compute-optimal training splits a FLOP budget between size and tokens; by the lecture's rule pre-training,
reinforcement learning and inference cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rackline.catalog import law_record
from rackline.checked import Num, checked, plain
from rackline.errors import InputError
from rackline.scaling.law import LossLaw, Numbers, check_loss

TOKENS_PER_PARAM = 20.0  # the rule that people draw from Hoffmann et al., tables 3 and A3


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


PRETRAIN_FLOP_PER_PARAM_TOKEN = 6.0
FORWARD_FLOP_PER_PARAM_TOKEN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualCosts:
    """Tokens of the three phases when they cost the same.

    Args:
        pretrain_tokens: D_pre [token].
        rl_tokens: D_RL [token].
        inference_tokens: D_inf [token].
    """

    json_keys: ClassVar = ("pretrain_tokens", "rl_tokens")

    pretrain_tokens: float | NDArray[np.float64]
    rl_tokens: float | NDArray[np.float64]
    inference_tokens: float | NDArray[np.float64]


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


def equal_cost_ratio(flop_per_param_token: Num, relative_mfu: Num | float = 1.0) -> Num:
    """Pre-training tokens per token of another phase, when both take the same machine time.

    D_pre / D = k / (6 * m),  m = MFU of the phase / MFU of pre-training

    Args:
        flop_per_param_token: k, 2 for use, 2 to 6 for reinforcement learning [FLOP], any shape.
        relative_mfu: m [ratio], broadcasts. Dividing is right: a phase of less MFU takes more time, so fewer of its
            tokens cost the same. The lecture first multiplied and took it back.

    Returns:
        Ratio, broadcast shape: alpha of reinforcement learning, beta of use.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: the same model and chips in both phases; attention left out.

    Sources: lecture C85, C86; ledger check G12.

    >>> round(equal_cost_ratio(2.0, 1 / 3), 2), round(equal_cost_ratio(3.0, 1 / 3), 2)
    (1.0, 1.5)
    """
    k, m = checked("equal_cost_ratio", flop_per_param_token=flop_per_param_token, relative_mfu=relative_mfu)
    return plain(k / (PRETRAIN_FLOP_PER_PARAM_TOKEN * m))


def equal_costs(
    inference_tokens: Num,
    rl_flop_per_param_token: Num | float = 3.0,
    rl_relative_mfu: Num | float = 1.0 / 3.0,
    inference_relative_mfu: Num | float = 1.0 / 3.0,
) -> EqualCosts:
    """Tokens of each phase by the lecture's rule that all three cost the same.

    D_pre = alpha * D_RL = beta * D_inf

    Args:
        inference_tokens: D_inf [token], any shape.
        rl_flop_per_param_token: k, 2 if no rollout is trained on, 6 if each is [FLOP], broadcasts.
        rl_relative_mfu: MFU of reinforcement learning over that of pre-training [ratio], broadcasts.
        inference_relative_mfu: MFU of use over that of pre-training [ratio], broadcasts.

    Returns:
        Tokens by phase, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: equal costs are near the least cost (see `power_sum_minimum` and `optimal_allocation` for the exact
        optimum, which depends on the loss law).

    Sources: lecture C84, C85, C87.

    >>> equal_costs(259.2e12).pretrain_tokens
    259200000000000.0
    """
    (used,) = checked("equal_costs", inference_tokens=inference_tokens)
    pretrain = used * equal_cost_ratio(FORWARD_FLOP_PER_PARAM_TOKEN, inference_relative_mfu)
    rl = pretrain / equal_cost_ratio(rl_flop_per_param_token, rl_relative_mfu)
    return EqualCosts(pretrain_tokens=plain(pretrain), rl_tokens=plain(rl), inference_tokens=plain(used))


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
