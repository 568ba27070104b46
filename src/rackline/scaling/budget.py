"""A budget: model size and tokens for a target quality and expected inference, and the cost of each phase.

By the lecture's rule pre-training, reinforcement learning and inference cost the same.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain
from rackline.errors import InputError
from rackline.scaling.law import LossLaw, routed_total_params
from rackline.scaling.optimum import (
    FORWARD_FLOP_PER_PARAM_TOKEN,
    PRETRAIN_FLOP_PER_PARAM_TOKEN,
    Allocation,
    LifetimeOptimum,
    compute_optimal_of_loss,
    compute_optimal_of_params,
    lifetime_flop_of,
    optimal_allocation,
    overtraining_factor,
)

CURVE_POINTS = 241
_CURVE_MOST = 1e3  # times the least cost: beyond, a size just reaches the loss, and rounding errors decide its tokens
CURVE_SPAN = 30.0  # the curve shows sizes from the best over 30 to the best times 30
FLAT = (0.05, 0.20)
HOUR_S = 3600.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is done with a model after its pre-training.

    Args:
        inference_tokens: D_inf, tokens that it will generate [token].
        prompt_tokens: tokens that it will read [token].
        rl_tokens: D_RL, tokens of reinforcement learning [token].
        rl_flop_per_param_token: k, 2 if no rollout is trained on, 6 if each is [FLOP].
    """

    inference_tokens: float = 0.0
    prompt_tokens: float = 0.0
    rl_tokens: float = 0.0
    rl_flop_per_param_token: float = 3.0

    def __post_init__(self) -> None:
        """Refuse negative tokens and a k outside 2 to 6."""
        for name in ("inference_tokens", "prompt_tokens", "rl_tokens"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise InputError(what=name, given=getattr(self, name), allowed="tokens, 0 or more")
        if not 2.0 <= self.rl_flop_per_param_token <= 6.0:
            raise InputError(
                what="rl_flop_per_param_token",
                given=self.rl_flop_per_param_token,
                allowed="2 (rollouts only) to 6 (every rollout is trained on)",
                nearest=f"{min(max(self.rl_flop_per_param_token, 2.0), 6.0):g}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMfu:
    """Share of the peak that each phase reaches.

    Args:
        pretrain: of pre-training; prompts are read at the same.
        rl: of reinforcement learning.
        inference: of generation.
    """

    pretrain: float
    rl: float
    inference: float

    def __post_init__(self) -> None:
        """Refuse anything that is not above 0 and at most 1."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise InputError(what=f"MFU of {name}", given=value, allowed="above 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """What one phase costs.

    Args:
        name: pretrain, rl, prompts or inference.
        tokens: tokens of the phase [token].
        flop: model FLOP [FLOP].
        mfu: share of the peak.
        chip_hours: hours of one chip [hour].
        usd: at the price of the cluster, or None [USD].
        share: of the chip-hours of all phases.
    """

    name: str
    tokens: float
    flop: float
    mfu: float
    chip_hours: float
    usd: float | None
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The cheapest model of a quality over its life, and what is around it.

    Args:
        law: loss law.
        loss: target loss [nat per token].
        usage: what is done with the model.
        mfu: share of the peak by phase.
        num_experts: E of the mixture, 1 for a dense model [count].
        unique_tokens: different tokens that there are, or None [token].
        peak_flop_per_s: dense peak of one chip [FLOP/s].
        usd_per_chip_hour: price, or None [USD/hour].
        lifetime_flop_per_param: K of `optimum` [FLOP].
        optimum: the cheapest size and tokens.
        total_params: all parameters of that size, experts included [count].
        phases: what it costs.
        compute_optimal: what the loss would take if nobody used the model.
        compute_optimal_lifetime_flop: what that model would cost over its life [FLOP].
        equal_costs: tokens by the lecture's rule.
        curve_params: sizes around the optimum [count], shape (n,).
        curve_flop: lifetime cost of each [FLOP], inf where it never reaches the loss, or only at an absurd cost.
        flat: for each tolerance, the smallest and largest size whose cost is within it [count].
    """

    json_keys: ClassVar = (
        "law=law.name",
        "law_evidence=law.evidence",
        "loss",
        "feasible",
        "reason=optimum.reason",
        "active_params=optimum.params",
        "total_params",
        "num_experts",
        "tokens=optimum.tokens",
        "unique_tokens",
        "overtraining_factor",
        "tokens_over_compute_optimal",
        "chip_hours",
        "usd",
        "peak_flop_per_s",
        "usd_per_chip_hour",
        "phases",
        "compute_optimal.params=compute_optimal.params",
        "compute_optimal.tokens=compute_optimal.tokens",
        "compute_optimal.train_flop=compute_optimal.train_flop",
        "compute_optimal.lifetime_over_optimum=compute_optimal_over_optimum",
        "equal_costs",
        "curve.params=curve_params",
        "curve.lifetime_over_optimum=curve_over_optimum",
        "flat=flat_spans",
    )

    law: LossLaw
    loss: float
    usage: Usage
    mfu: PhaseMfu
    num_experts: float
    unique_tokens: float | None
    peak_flop_per_s: float
    usd_per_chip_hour: float | None
    lifetime_flop_per_param: float
    optimum: LifetimeOptimum
    total_params: float
    phases: tuple[PhaseCost, ...]
    compute_optimal: Allocation
    compute_optimal_lifetime_flop: float
    equal_costs: EqualCosts | None
    curve_params: NDArray[np.float64]
    curve_flop: NDArray[np.float64]
    flat: dict[float, tuple[float, float]]

    @property
    def feasible(self) -> bool:
        """Whether any size reaches the loss."""
        return bool(self.optimum.feasible)

    @property
    def chip_hours(self) -> float:
        """Chip-hours of all phases; NaN where no size reaches the loss [hour]."""
        return sum(phase.chip_hours for phase in self.phases) if self.feasible else math.nan

    @property
    def usd(self) -> float | None:
        """Cost of all phases; NaN where no size reaches the loss [USD]."""
        return None if self.usd_per_chip_hour is None else self.chip_hours * self.usd_per_chip_hour

    @property
    def overtraining_factor(self) -> float:
        """Tokens over 20 per active parameter."""
        return float(overtraining_factor(self.optimum.params, self.optimum.tokens)) if self.feasible else float("nan")

    @property
    def tokens_over_compute_optimal(self) -> float:
        """Tokens over those that this law finds best for the same size, when nobody uses it."""
        if not self.feasible:
            return float("nan")
        return float(self.optimum.tokens / compute_optimal_of_params(self.law, self.optimum.params).tokens)

    @property
    def compute_optimal_over_optimum(self) -> float:
        """Cost over life of the compute-optimal model over the least cost."""
        return self.compute_optimal_lifetime_flop / float(self.optimum.lifetime_flop)

    @property
    def curve_over_optimum(self) -> np.ndarray:
        """Cost over life of each size over the least cost."""
        return self.curve_flop / float(self.optimum.lifetime_flop)

    @property
    def flat_spans(self) -> list[dict[str, float]]:
        """Sizes that cost no more than a share above the least."""
        return [{"within": share, "params_low": low, "params_high": high} for share, (low, high) in self.flat.items()]


def lifetime_flop_per_param(usage: Usage, mfu: PhaseMfu) -> float:
    """K: machine time of all use, per parameter, in FLOP of pre-training.

    K = k D_RL m_pre / m_RL + 2 D_prompt + 2 D_inf m_pre / m_inf

    Args:
        usage: tokens by phase.
        mfu: share of the peak by phase.

    Returns:
        FLOP per parameter.

    Assumes: the same chips in all phases; prompts are read at the MFU of pre-training.

    Sources: lecture C82, C83; Sardana et al. 2024, equation 6.
    """
    return (
        usage.rl_flop_per_param_token * usage.rl_tokens * mfu.pretrain / mfu.rl
        + FORWARD_FLOP_PER_PARAM_TOKEN * usage.prompt_tokens
        + FORWARD_FLOP_PER_PARAM_TOKEN * usage.inference_tokens * mfu.pretrain / mfu.inference
    )


def budget(
    law: LossLaw,
    loss: float,
    usage: Usage,
    *,
    mfu: PhaseMfu,
    peak_flop_per_s: float,
    usd_per_chip_hour: float | None = None,
    num_experts: float = 1.0,
    unique_tokens: float | None = None,
) -> Budget:
    """The cheapest model of a quality over its life.

    Args:
        law: loss law; for a mixture that of its number of experts (`joint_law`).
        loss: target loss [nat per token].
        usage: what is done with the model.
        mfu: share of the peak by phase.
        peak_flop_per_s: dense peak of one chip [FLOP/s].
        usd_per_chip_hour: price of a chip, or None [USD/hour].
        num_experts: E of the mixture, for its total size only [count].
        unique_tokens: different tokens that there are, None for no limit [token].

    Returns:
        The budget; not feasible where so few different tokens do not bring any size to the loss.

    Raises:
        InputError: a loss at or below the irreducible one; a value out of range.
    """
    k = lifetime_flop_per_param(usage, mfu)
    best = optimal_allocation(law, loss, k, unique_tokens)
    centre = float(best.params) if best.feasible else float(compute_optimal_of_loss(law, loss).params)
    sizes = np.geomspace(centre / CURVE_SPAN, centre * CURVE_SPAN, CURVE_POINTS)
    costs = np.asarray(lifetime_flop_of(law, sizes, loss, k, unique_tokens))
    if best.feasible:
        costs = np.where(costs <= _CURVE_MOST * float(best.lifetime_flop), costs, np.inf)
    plain_optimum = compute_optimal_of_loss(law, loss)
    rule = None
    if usage.inference_tokens > 0.0:
        rule = equal_costs(
            usage.inference_tokens,
            usage.rl_flop_per_param_token,
            mfu.rl / mfu.pretrain,
            mfu.inference / mfu.pretrain,
        )
    return Budget(
        law=law,
        loss=loss,
        usage=usage,
        mfu=mfu,
        num_experts=num_experts,
        unique_tokens=unique_tokens,
        peak_flop_per_s=peak_flop_per_s,
        usd_per_chip_hour=usd_per_chip_hour,
        lifetime_flop_per_param=k,
        optimum=best,
        total_params=float(routed_total_params(best.params, num_experts)) if best.feasible else float("nan"),
        phases=_phases(best, usage, mfu, peak_flop_per_s, usd_per_chip_hour) if best.feasible else (),
        compute_optimal=plain_optimum,
        compute_optimal_lifetime_flop=float(lifetime_flop_of(law, plain_optimum.params, loss, k, unique_tokens)),
        equal_costs=rule,
        curve_params=sizes,
        curve_flop=costs,
        flat={within: _within(law, loss, k, unique_tokens, best, within) for within in FLAT} if best.feasible else {},
    )


def _phases(
    best: LifetimeOptimum, usage: Usage, mfu: PhaseMfu, peak_flop_per_s: float, usd_per_chip_hour: float | None
) -> tuple[PhaseCost, ...]:
    params = float(best.params)
    rows = [
        ("pretrain", PRETRAIN_FLOP_PER_PARAM_TOKEN, float(best.tokens), mfu.pretrain),
        ("rl", usage.rl_flop_per_param_token, usage.rl_tokens, mfu.rl),
        ("prompts", FORWARD_FLOP_PER_PARAM_TOKEN, usage.prompt_tokens, mfu.pretrain),
        ("inference", FORWARD_FLOP_PER_PARAM_TOKEN, usage.inference_tokens, mfu.inference),
    ]
    hours = [chip_hours_of_flop(k * params * tokens, share, peak_flop_per_s) for _, k, tokens, share in rows]
    total = sum(hours)
    return tuple(
        PhaseCost(
            name=name,
            tokens=tokens,
            flop=k * params * tokens,
            mfu=share,
            chip_hours=hour,
            usd=None if usd_per_chip_hour is None else hour * usd_per_chip_hour,
            share=hour / total,
        )
        for (name, k, tokens, share), hour in zip(rows, hours, strict=True)
        if tokens > 0.0
    )


def _within(
    law: LossLaw, loss: float, k: float, unique: float | None, best: LifetimeOptimum, tolerance: float
) -> tuple[float, float]:
    """Smallest and largest size that costs at most (1 + tolerance) times the least."""
    brentq: Any = importlib.import_module("scipy.optimize").brentq  # takes a tenth of a second to import

    limit = float(best.lifetime_flop) * (1.0 + tolerance)

    def excess(log_ratio: float) -> float:
        """Cost over the limit; finite where no amount of tokens reaches the loss."""
        cost = float(lifetime_flop_of(law, float(best.params) * np.exp(log_ratio), loss, k, unique))
        return min(cost / limit - 1.0, 1e9)

    ends: list[float] = []
    for side in (-1.0, 1.0):
        inside, outside = 0.0, side
        while excess(outside) <= 0.0:
            inside, outside = outside, 2.0 * outside
        ends.append(float(best.params) * math.exp(brentq(excess, inside, outside)))
    return ends[0], ends[1]
