"""A loss law: the training loss of a model of N parameters on D tokens, and the value of repeated ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.catalog import LawRecord, Source, law_record
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


def law_from_record(record: LawRecord) -> LossLaw:
    """Build the loss law of a record.

    Raises:
        InputError: the record is a law of another kind.
    """
    if record.loss is None:
        raise InputError(
            what="law", given=record.name, allowed="a law of loss against size and tokens", nearest="besiroglu"
        )
    return LossLaw(name=record.name, sources=record.sources, **record.loss.model_dump())


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
    return law_from_record(law_record(name, overrides=overrides))


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
    out = np.full(room.shape, np.inf)
    ratio = np.divide(law.tokens_coefficient, room, out=out, where=room > 0.0)
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
    repeats = np.maximum(d / u - 1.0, 0.0)
    return plain(np.minimum(d, u) + u * r * -np.expm1(-repeats / r))


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
