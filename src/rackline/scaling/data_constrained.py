"""Limited data: the value of repeated tokens."""

from __future__ import annotations

import numpy as np

from rackline.checked import Num, checked, plain


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
