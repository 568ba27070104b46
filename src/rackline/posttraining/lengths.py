"""Lengths of answers: log-normal, cut off at a longest one, with a given mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array

_POINTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLengths:
    """A distribution of answer lengths.

    Args:
        mean: after the cut [tokens].
        spread: standard deviation over the mean before the cut; 0 for equal lengths [1].
        longest: where generation is cut off [tokens].

    Raises:
        InputError: a mean below 1 token or above the longest answer.
    """

    mean: float
    spread: float
    longest: float

    def __post_init__(self) -> None:
        if not self.mean >= 1.0:
            raise InputError(what="--output", given=self.mean, allowed="at least 1 token", nearest="1")
        if not self.mean <= self.longest:
            raise InputError(
                what="--output",
                given=f"{self.mean:g} tokens on average",
                allowed=f"at most the longest answer, {self.longest:g} tokens",
                nearest=f"{self.longest:g}",
            )

    def sorted_lengths(self, count: int) -> Array:
        """What `count` answers are expected to be, in rising order: the quantiles (i + 1/2) / count [tokens], (count,).

        >>> found = AnswerLengths(mean=1000.0, spread=0.6, longest=4096.0).sorted_lengths(2000)
        >>> round(float(found.mean())), round(float(found[-1]))
        (1000, 4096)
        """
        from scipy.special import ndtri

        deviation = math.sqrt(math.log1p(self.spread**2))
        centre = self._centre(deviation)
        places = (np.arange(count) + 0.5) / count
        return np.minimum(np.exp(centre + deviation * np.asarray(ndtri(places))), self.longest)

    def _centre(self, deviation: float) -> float:
        """Mean of the logarithm with which the mean after the cut is the given one."""
        from scipy.special import ndtri

        noise = deviation * np.asarray(ndtri((np.arange(_POINTS) + 0.5) / _POINTS))
        low, high = math.log(self.mean) - 1.0, math.log(self.longest) + 12.0 * deviation + 1.0
        for _ in range(60):
            middle = (low + high) / 2.0
            short = float(np.minimum(np.exp(middle + noise), self.longest).mean()) < self.mean
            low, high = (middle, high) if short else (low, middle)
        return (low + high) / 2.0

    @property
    def cut_share(self) -> float:
        """Share of the answers that are cut off [1]."""
        return float(np.mean(self.sorted_lengths(_POINTS) >= self.longest))
