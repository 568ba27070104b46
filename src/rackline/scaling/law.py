"""Loss laws: the training loss of a model of N parameters on D tokens, of mixtures of experts, and of repeated data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.catalog import Source, law_record
from rackline.checked import Num, checked, plain
from rackline.errors import InputError

Numbers = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLaw:
    """Constants of L(N, D) = E + A / N**alpha + B / D**beta.

    Args:
        name: catalogue name, or what it was fitted to.
        irreducible_loss: E, the loss that no size and no data removes [nat per token].
        params_coefficient: A [nat per token].
        tokens_coefficient: B [nat per token].
        params_exponent: alpha.
        tokens_exponent: beta.
        useful_repeats: R*, after how many repeats of data most of their value is gone; None where not fitted.
        sources: where the numbers come from.
    """

    name: str
    irreducible_loss: float
    params_coefficient: float
    tokens_coefficient: float
    params_exponent: float
    tokens_exponent: float
    useful_repeats: float | None = None
    sources: tuple[Source, ...] = field(default=(), repr=False, hash=False)

    def __post_init__(self) -> None:
        """Refuse constants with which the loss would not fall."""
        checked(
            f"law {self.name}",
            zero=("irreducible_loss",),
            irreducible_loss=self.irreducible_loss,
            params_coefficient=self.params_coefficient,
            tokens_coefficient=self.tokens_coefficient,
            params_exponent=self.params_exponent,
            tokens_exponent=self.tokens_exponent,
        )

    @property
    def evidence(self) -> str:
        """Kind of the source that covers the constants, "derived" for a fit of one's own."""
        return str(self.sources[-1].kind) if self.sources else "derived"


def loss(law: LossLaw, params: Num, tokens: Num) -> Num:
    """Training loss of a model of N parameters after D tokens.

    L = E + A / N**alpha + B / D**beta

    Args:
        law: the constants.
        params: N, for a mixture of experts the active ones [count], any shape.
        tokens: D [token], broadcasts.

    Returns:
        Loss [nat per token], broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: one pass over the data, a learning rate tuned for this run; see `effective_tokens` for repeats.

    Sources: Hoffmann et al. 2022, equation 2.

    >>> round(loss(loss_law("chinchilla"), 70e9, 1.4e12), 3)
    1.937
    """
    n, d = checked("loss", params=params, tokens=tokens)
    by_size = law.params_coefficient * n**-law.params_exponent
    by_data = law.tokens_coefficient * d**-law.tokens_exponent
    return plain(law.irreducible_loss + by_size + by_data)


def check_loss(law: LossLaw, wanted: Any, where: str) -> Any:
    """Return the part of a loss that size and data have to reach, refusing a loss at or below E.

    Args:
        law: the constants.
        wanted: L [nat per token], any shape.
        where: name of the function that asks, for the message.

    Returns:
        L - E [nat per token], as array.

    Raises:
        InputError: not a finite number above the irreducible loss.
    """
    (target,) = checked(where, loss=wanted)
    reducible = target - law.irreducible_loss
    if not (reducible > 0.0).all():
        raise InputError(
            what="loss",
            given=float(target[~(reducible > 0.0)].flat[0]),
            allowed=f"above {law.irreducible_loss:.4g}, the irreducible loss of the law {law.name}",
            where=where,
        )
    return reducible


def loss_law(name: str, overrides: Mapping[str, object] | None = None) -> LossLaw:
    """Look a loss law up by name, alias or TOML file.

    Args:
        name: "besiroglu", "chinchilla", "chinchilla-unrounded", "muennighoff", "sardana", or a file.
        overrides: dotted keys such as loss.irreducible_loss and the values that replace the catalogue's.

    Raises:
        UnknownNameError: no such law.
        InputError: a law of another kind.

    >>> loss_law("besiroglu").params_exponent
    0.3478
    """
    record = law_record(name, overrides=overrides)
    if record.loss is None:
        raise InputError(
            what="law", given=record.name, allowed="a law of loss against size and tokens", nearest="besiroglu"
        )
    return LossLaw(name=record.name, sources=record.sources, **record.loss.model_dump())


def tokens_for_loss(law: LossLaw, params: Num, loss: Num) -> Num:
    """Tokens after which a model of N parameters reaches a loss; inf where it never does.

    D = (B / (L - E - A / N**alpha)) ** (1 / beta)

    Args:
        law: the constants.
        params: N [count], any shape.
        loss: L [nat per token], broadcasts.

    Returns:
        Tokens, broadcast shape.

    Raises:
        InputError: a loss at or below the irreducible one; a size that is not positive and finite.

    Assumes: as in `loss`.

    Sources: inverse of Hoffmann et al. 2022, equation 2.

    >>> law = loss_law("chinchilla")
    >>> tokens_for_loss(law, 1e9, 1.9)
    inf
    """
    (n,) = checked("tokens_for_loss", params=params)
    room = np.asarray(check_loss(law, loss, "tokens_for_loss") - law.params_coefficient * n**-law.params_exponent)
    ratio = np.divide(law.tokens_coefficient, room, out=np.full(room.shape, np.inf), where=room > 0.0)
    return plain(ratio ** (1.0 / law.tokens_exponent))


def effective_tokens(tokens: Num, unique_tokens: Num, useful_repeats: Num) -> Num:
    """Fresh tokens that would be worth as much as these, some of which are repeated.

    D' = U + U R* (1 - exp(-(D / U - 1) / R*)) for D > U, else D

    Args:
        tokens: D, tokens that are trained on, repeats counted [token], any shape.
        unique_tokens: U, different tokens that there are [token], broadcasts.
        useful_repeats: R*, 15.4 in the fit of the paper [repeats], broadcasts.

    Returns:
        Tokens, broadcast shape; at most U (1 + R*).

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: all data is repeated equally often; one fit on models up to 9 B parameters.

    Sources: Muennighoff et al. 2023, arXiv:2305.16264, section 3.

    >>> round(effective_tokens(4e12, 1e12, 15.387756) / 1e12, 2)
    3.73
    """
    d, u, r = checked("effective_tokens", tokens=tokens, unique_tokens=unique_tokens, useful_repeats=useful_repeats)
    return plain(np.minimum(d, u) + u * r * -np.expm1(-np.maximum(d / u - 1.0, 0.0) / r))


def tokens_of_effective(effective: Num, unique_tokens: Num, useful_repeats: Num) -> Num:
    """Tokens to train on, repeats included, to match a given number of fresh ones.

    D = U (1 - R* ln(1 - (D' / U - 1) / R*)) for D' > U, else D'

    Args:
        effective: D' [token], any shape.
        unique_tokens: U [token], broadcasts.
        useful_repeats: R* [repeats], broadcasts.

    Returns:
        Tokens, broadcast shape; inf from U (1 + R*) on, which no number of repeats is worth.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: as in `effective_tokens`, of which it is the inverse.

    Sources: Muennighoff et al. 2023, arXiv:2305.16264, section 3.

    >>> round(tokens_of_effective(3.73e12, 1e12, 15.387756) / 1e12, 1)
    4.0
    """
    e, u, r = checked(
        "tokens_of_effective", effective=effective, unique_tokens=unique_tokens, useful_repeats=useful_repeats
    )
    left = np.asarray(1.0 - np.maximum(e / u - 1.0, 0.0) / r)
    logarithm = np.log(left, out=np.full(left.shape, -np.inf), where=left > 0.0)
    return plain(np.where(e > u, u * (1.0 - r * logarithm), e))


FFN_SHARE = 2.0 / 3.0  # of a block with d_ff = 4 d_model: 8 of 12 d_model**2 parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedLaw:
    """Constants of log10 L = a log10 N + b log10 E' + c log10 N log10 E' + d at fixed tokens.

    Args:
        name: catalogue name.
        params_slope: a.
        experts_slope: b.
        interaction_slope: c.
        intercept: d.
        experts_start: E_start of `saturated_experts` [count].
        experts_max: E_max of `saturated_experts` [count].
    """

    name: str
    params_slope: float
    experts_slope: float
    interaction_slope: float
    intercept: float
    experts_start: float
    experts_max: float


def routed_law(name: str = "clark-s-base", overrides: Mapping[str, object] | None = None) -> RoutedLaw:
    """Look a routed law up: "clark-s-base", "clark-rl-r", "clark-hash" or a file.

    Raises:
        UnknownNameError: no such law.
        InputError: a law of another kind.

    >>> routed_law().experts_max
    314.478
    """
    record = law_record(name, overrides=overrides)
    if record.routed is None:
        raise InputError(what="law", given=record.name, allowed="a law of routed models", nearest="clark-s-base")
    return RoutedLaw(name=record.name, **record.routed.model_dump())


def saturated_experts(num_experts: Num, experts_start: Num, experts_max: Num) -> Num:
    """Number of experts as a routed law counts them: bent at few and at many.

    1 / E' = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

    Args:
        num_experts: E, 1 for a dense model [count], any shape.
        experts_start: E_start; the number of experts a dense model counts as [count], broadcasts.
        experts_max: E_max; no model counts as more [count], broadcasts.

    Returns:
        E' [count], broadcast shape.

    Raises:
        InputError: less than one expert, or a value that is not positive and finite.

    Assumes: each token goes to one expert of the size of the dense block.

    Sources: Clark et al. 2022, arXiv:2202.01169 (the bounded count of experts); Ludziejewski et al. 2025.

    >>> round(saturated_experts(1.0, 1.847, 314.478), 3)
    1.847
    """
    (e,) = checked("saturated_experts", at_least_one=("num_experts",), num_experts=num_experts)
    start, top = checked("saturated_experts", experts_start=experts_start, experts_max=experts_max)
    return plain(1.0 / (1.0 / (e - 1.0 + 1.0 / (1.0 / start - 1.0 / top)) + 1.0 / top))


def routed_loss(law: RoutedLaw, active_params: Num, num_experts: Num) -> Num:
    """Loss of a routed model.

    log10 L = a log10 N + b log10 E' + c log10 N log10 E' + d

    Args:
        law: the constants.
        active_params: N, parameters that one token visits [count], any shape.
        num_experts: E [count], broadcasts.

    Returns:
        Loss [nat per token], broadcast shape.

    Raises:
        InputError: see `saturated_experts`.

    Assumes: the 130 billion tokens of the paper for each model.

    Sources: Clark et al. 2022, equation 1 and table 3.

    >>> routed_loss(routed_law(), 370e6, 64.0) < routed_loss(routed_law(), 370e6, 1.0)
    True
    """
    (n,) = checked("routed_loss", active_params=active_params)
    n, e = np.log10(n), np.log10(saturated_experts(num_experts, law.experts_start, law.experts_max))
    return plain(10.0 ** (law.params_slope * n + law.experts_slope * e + law.interaction_slope * n * e + law.intercept))


def dense_equivalent_params(law: RoutedLaw, active_params: Num, num_experts: Num) -> Num:
    """Size of the dense model that reaches the loss of a routed one.

    log10 N_dense = (log10 L(N, E) - d - b log10 E'(1)) / (a + c log10 E'(1))

    Args:
        law: the constants.
        active_params: N [count], any shape.
        num_experts: E [count], broadcasts.

    Returns:
        Parameters [count], broadcast shape.

    Raises:
        InputError: see `saturated_experts`.

    Assumes: as in `routed_loss`.

    Sources: Clark et al. 2022 (the effective number of parameters); lecture C34, ledger check G08.

    >>> round(dense_equivalent_params(routed_law(), 370e6, 64.0) / 1e6)
    1369
    """
    reached = np.log10(routed_loss(law, active_params, num_experts))
    dense = np.log10(saturated_experts(1.0, law.experts_start, law.experts_max))
    slope = law.params_slope + law.interaction_slope * dense
    return plain(10.0 ** ((reached - law.intercept - law.experts_slope * dense) / slope))


def joint_law(num_experts: float, name: str = "ludziejewski", overrides: Mapping[str, object] | None = None) -> LossLaw:
    """The loss law of mixtures with a given number of experts, in active parameters and tokens.

    L = a E'**delta N**(alpha + gamma ln E') + b E'**omega D**(beta + zeta ln E') + c, which at one E is
    E + A / N**alpha + B / D**beta again, so that all of `optimum` holds for it

    Args:
        num_experts: E, one of which a token visits; 1 for a dense model [count].
        name: catalogue name or file.
        overrides: dotted keys and the values that replace the catalogue's.

    Returns:
        The law at this E.

    Raises:
        UnknownNameError: no such law.
        InputError: a law of another kind; too many experts: the loss would not fall with size or data.

    Assumes: one expert per token; finer experts count as E = total over active of the expert parameters.

    Sources: Ludziejewski et al. 2025, arXiv:2502.05172 (the joint law).

    >>> from rackline.scaling.optimum import compute_optimal
    >>> dense, four = compute_optimal(joint_law(1.0), 1e20), compute_optimal(joint_law(4.0), 1e20)
    >>> round(dense.params / 1e9, 1), round(four.params / 1e9, 1)
    (1.7, 1.2)
    """
    record = law_record(name, overrides=overrides)
    if record.joint is None:
        raise InputError(what="law", given=record.name, allowed="a joint law of experts", nearest="ludziejewski")
    it = record.joint
    e = saturated_experts(float(num_experts), it.experts_start, it.experts_max)
    log_e = float(np.log(e))
    return LossLaw(
        name=f"{record.name} with {num_experts:g} experts" if num_experts > 1 else f"{record.name}, dense",
        irreducible_loss=it.irreducible_loss,
        params_coefficient=it.params_coefficient * e**it.params_experts_slope,
        tokens_coefficient=it.tokens_coefficient * e**it.tokens_experts_slope,
        params_exponent=-(it.params_slope + it.params_interaction_slope * log_e),
        tokens_exponent=-(it.tokens_slope + it.tokens_interaction_slope * log_e),
        sources=record.sources,
    )


def routed_total_params(active_params: Num, num_experts: Num, ffn_share: Num | float = FFN_SHARE) -> Num:
    """All parameters of a mixture of which one expert in E is active.

    N_total = N_active * (1 + share * (E - 1))

    Args:
        active_params: N_active [count], any shape.
        num_experts: E, total over active of the expert parameters [count], broadcasts.
        ffn_share: share of the active parameters that are in experts [ratio], broadcasts.

    Returns:
        Parameters [count], broadcast shape.

    Raises:
        InputError: less than one expert, or a value that is not positive and finite.

    Assumes: every layer is a mixture; embeddings are not counted.

    Sources: 8 of the 12 d_model**2 parameters of a block are in its feed-forward part (d_ff = 4 d_model).

    >>> routed_total_params(3e9, 4.0)
    9000000000.0
    """
    (e,) = checked("routed_total_params", at_least_one=("num_experts",), num_experts=num_experts)
    n, share = checked("routed_total_params", active_params=active_params, ffn_share=ffn_share)
    return plain(n * (1.0 + share * (e - 1.0)))


def routed_num_experts(total_params: Num, active_params: Num, ffn_share: Num | float = FFN_SHARE) -> Num:
    """Number of experts, one of them active, that a mixture of these sizes is like.

    E = 1 + (N_total / N_active - 1) / share

    Args:
        total_params: N_total [count], any shape.
        active_params: N_active [count], broadcasts.
        ffn_share: share of the active parameters that are in experts [ratio], broadcasts.

    Returns:
        E [count], broadcast shape.

    Raises:
        InputError: a model smaller than its active part; a value that is not positive and finite.

    Assumes: as in `routed_total_params`, of which it is the inverse.

    Sources: `routed_total_params`.

    >>> routed_num_experts(9e9, 3e9)
    4.0
    """
    total, n, share = checked(
        "routed_num_experts", total_params=total_params, active_params=active_params, ffn_share=ffn_share
    )
    if not (total >= n).all():
        smallest = float(np.broadcast_to(total, np.broadcast_shapes(total.shape, n.shape))[total < n].flat[0])
        raise InputError(
            what="total_params",
            given=smallest,
            allowed="at least the active parameters: a model is not smaller than its active part",
            where="routed_num_experts",
        )
    return plain(1.0 + (total / n - 1.0) / share)
