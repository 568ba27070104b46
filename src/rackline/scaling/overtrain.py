"""The lecture's rule for over-training: pre-training, reinforcement learning and inference cost the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain

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
