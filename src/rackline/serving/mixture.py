"""Requests of several lengths: how often each comes, and the moments that a steady state needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.prompt_queue import PromptSizes

_CLASSES = 5  # of prompts in an estimate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Lengths of requests with their shares.

    Args:
        shares: of the requests, they add up to 1, (lengths,).
        input_len, output_len: of each, whole tokens, (lengths,) [tokens].
        name: of the file that they are from.
    """

    json_keys: ClassVar = ("name", "num_lengths", "input_cv2", "longest_context")

    shares: Array
    input_len: Array
    output_len: Array
    name: str = ""

    @classmethod
    def of(cls, shares: FloatLike, input_len: Array, output_len: Array, name: str = "") -> Mixture:
        """Lengths with weights that need not add up to 1; equal lengths become one.

        Raises:
            InputError: no lengths, weights that are not positive, prompts below 1 or answers below 1 token.
        """
        inputs, outputs = np.rint(as_array(input_len)), np.rint(as_array(output_len))
        weights = np.broadcast_to(as_array(shares), inputs.shape)
        if not inputs.size:
            raise InputError(what="mix", given="nothing", allowed="at least one length", where=name)
        for what, values, least in (("share", weights, 0.0), ("input_len", inputs, 1.0), ("output_len", outputs, 1.0)):
            bad = values <= 0.0 if least == 0.0 else values < least
            if np.any(bad | ~np.isfinite(values)):
                worst = float(values[int(np.argmax(bad | ~np.isfinite(values)))])
                allowed = "more than 0" if least == 0.0 else f"at least {least:g} token"
                raise InputError(what=what, given=worst, allowed=allowed, where=name)
        outputs = np.maximum(outputs, 2.0)  # the first token is the prompt's; an answer decodes at least once
        both, place = np.unique(np.stack([inputs, outputs], axis=1), axis=0, return_inverse=True)
        total = np.bincount(place.ravel(), weights=weights)
        return cls(shares=total / total.sum(), input_len=both[:, 0], output_len=both[:, 1], name=name)

    @property
    def num_lengths(self) -> int:
        """Different lengths [count]."""
        return len(self.shares)

    def mean(self, values: Array) -> float:
        """Over requests."""
        return float(self.shares @ values)

    def between(self, from_len: float, until_len: float) -> Mixture | None:
        """The requests with prompts longer than the first and up to the second; None where there are none."""
        inside = (self.input_len > from_len) & (self.input_len <= until_len)
        if not np.any(inside):
            return None
        return Mixture.of(self.shares[inside], self.input_len[inside], self.output_len[inside], self.name)

    def share_between(self, from_len: float, until_len: float) -> float:
        """Of all requests [1]."""
        return float(self.shares[(self.input_len > from_len) & (self.input_len <= until_len)].sum())

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) of requests at random, (count,) each [tokens]."""
        return self._spread(rng, count, self.shares)

    def draw_decoding(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """The same of requests that are decoding at some time: long answers more often."""
        return self._spread(rng, count, self.shares * (self.output_len - 1.0))

    def _spread(self, rng: np.random.Generator, count: int, weights: Array) -> tuple[Array, Array]:
        """Each length as often as its weight says, to one request, in random order."""
        ends: Array = as_array(np.cumsum(weights))
        quantiles = (rng.permutation(count) + rng.random(count)) / max(count, 1)
        place = np.searchsorted(ends, quantiles * float(ends[-1])).clip(0, len(ends) - 1)
        return self.input_len[place].astype(np.int64), self.output_len[place].astype(np.int64)

    def prompt_sizes(self, new_share: float = 1.0) -> PromptSizes:
        """Classes of prompts with an equal share of the tokens each, and their second moment.

        Args:
            new_share: of the prompts that is not cached.
        """
        order = np.argsort(self.input_len)
        tokens: Array = as_array(self.shares * self.input_len)[order]
        middle = np.cumsum(tokens) - 0.5 * tokens
        place = np.clip(middle / tokens.sum() * _CLASSES, 0.0, _CLASSES - 1.0).astype(np.int64)
        weights = np.bincount(place, weights=self.shares[order], minlength=_CLASSES)
        sums = np.bincount(place, weights=tokens, minlength=_CLASSES)
        some = weights > 0.0
        return PromptSizes(
            shares=weights[some],
            tokens=np.maximum(new_share * sums[some] / weights[some], 1.0),
            squared=1.0 + self.input_cv2,
        )

    @property
    def input_cv2(self) -> float:
        """Variance of prompts over the square of their mean."""
        mean = self.mean(self.input_len)
        return self.mean(self.input_len**2) / mean**2 - 1.0

    @property
    def mean_context(self) -> float:
        """Context of a decoding sequence, averaged over those in flight [tokens].

        Equation:
            E[o (i + o / 2)] / E[o], i prompt, o output tokens
        """
        return self.mean(self.output_len * (self.input_len + self.output_len / 2.0)) / self.mean(self.output_len)

    @property
    def final_context(self) -> float:
        """What a decoding sequence will hold at its end, averaged over those in flight [tokens]."""
        return self.mean(self.output_len * (self.input_len + self.output_len)) / self.mean(self.output_len)

    def slots(self, room: float) -> float:
        """Sequences for which there is nearly always room: their contexts add up to n m + 2 s sqrt(n) or less.

        Args:
            room: sequences of the mean final context that memory holds [sequences].
        """
        weights = self.shares * self.output_len / self.mean(self.output_len)
        final, mean = self.input_len + self.output_len, self.final_context
        spread = sqrt(float(weights @ (final - mean) ** 2)) / mean
        return (sqrt(spread**2 + max(room, 0.0)) - spread) ** 2

    @property
    def longest_context(self) -> float:
        """At the end of the longest request [tokens]."""
        return float(np.max(self.input_len + self.output_len))
