"""A way to serve the prompts of a context tier, and what its tokens cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from rackline.hardware import drawn_w
from rackline.passes.features import Array, FloatLike, as_array
from rackline.pricing.costs import TokenCosts
from rackline.serving.energy import Power, output_joules, power_of, prompt_joules, request_joules
from rackline.serving.mixture import Mixture
from rackline.serving.workload import Workload

SHORTEST = 128.0  # prompt of the first tier [tokens]
_POINTS = 64

EarnedAt = Literal["mean", "longest"]
"""Prompts of a tier at which the margin is earned: all of them on average, or the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """Lengths of the prompts of a tier: those of a mixture, as many in each doubling, or all of them the longest.

    Args:
        from_len, until_len: longer than the first, which is at least 128, and up to the second [tokens].
        earned_at: whether all of them count or the longest.
        mixture: the requests of the tier; None for as many in each doubling (log-uniform).

    Example:
        >>> round(PromptLengths(from_len=32e3, until_len=128e3).mean)
        69249
    """

    from_len: float
    until_len: float
    earned_at: EarnedAt = "mean"
    mixture: Mixture | None = None

    @property
    def shortest(self) -> float:
        """[tokens]."""
        return self.until_len if self.earned_at == "longest" else max(self.from_len, min(SHORTEST, self.until_len))

    @property
    def known(self) -> Mixture | None:
        """The mixture, where the margin is earned over its prompts."""
        return None if self.earned_at == "longest" else self.mixture

    @property
    def mean(self) -> float:
        """(b - a) / ln(b / a), or the mixture's [tokens]."""
        if self.known is not None:
            return self.known.mean(self.known.input_len)
        a, b = self.shortest, self.until_len
        return b if b <= a * (1.0 + 1e-9) else (b - a) / float(np.log(b / a))

    def output_len(self, usual: float) -> float:
        """Tokens of an answer, on average [tokens].

        Args:
            usual: where the tier has no requests of its own [tokens].
        """
        return usual if self.known is None else self.known.mean(self.known.output_len)

    @property
    def points(self) -> tuple[Array, Array]:
        """(lengths [tokens], shares of the prompts [1]): of a mixture all, else 64 with equal shares."""
        if self.known is not None:
            return self.known.input_len, self.known.shares
        a, b = self.shortest, self.until_len
        return a * (b / a) ** ((np.arange(_POINTS) + 0.5) / _POINTS), np.full(_POINTS, 1.0 / _POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A deployment with its batch, and chip-seconds of its tokens at the mean of a tier's lengths.

    Args:
        costs: of the engine or pool that decodes, by length, for other lengths than the mean.
        prefill: the same of a pool for prompts; None where one engine does both.
        lengths: of the prompts.
        output_len: tokens of an answer [tokens].
        tpot_limit_s: that it meets, None for none [s].
        scheduler: in words.
        batch_size: sequences on one replica [sequences].
        tpot_s: mean time per output token [s].
        input_chip_s, output_chip_s: chip-seconds of a prompt token, the mean over the tokens of all prompts, and of an
            output token; chips that are paid for with those in use count [s].
        used_share: chips in use over chips that are paid for [fraction].
    """

    costs: TokenCosts
    lengths: PromptLengths
    output_len: float
    tpot_limit_s: float | None
    scheduler: str
    batch_size: float
    tpot_s: float
    input_chip_s: float
    output_chip_s: float
    used_share: float = 1.0
    prefill: TokenCosts | None = None

    @property
    def prompts(self) -> TokenCosts:
        """Costs of what computes the prompts."""
        return self.prefill or self.costs

    @property
    def request_chip_s(self) -> float:
        """Chip-seconds of the mean request [s]."""
        return self.lengths.mean * self.input_chip_s + self.output_len * self.output_chip_s

    @property
    def power(self) -> Power | None:
        """Mean power of a chip while it serves the tier's mean request; None where nothing is known of it."""
        deployment, layout = self.costs.deployment, self.costs.deployment.layout
        work = Workload(input_len=self.lengths.mean, output_len=max(self.output_len, 2.0))
        per_rank = max(self.batch_size / (layout.attention_dp * layout.pp), 1.0)
        if self.prefill is None:
            joules = request_joules(self.costs.engine, layout, work, per_rank)
        else:
            first, tokens = self.prefill.deployment.layout, float(self.prefill.mode.max_batched_tokens)
            joules = output_joules(self.costs.engine, layout, work, per_rank)
            joules += prompt_joules(self.prefill.engine, first, work, tokens)
        return power_of(deployment.cluster, float(drawn_w(deployment.cluster.chip, joules, self.request_chip_s)))

    def input_at(self, prompt_len: FloatLike) -> Array:
        """Chip-seconds of a prompt token of prompts of one length [s], shape of the lengths."""
        tokens = prefill_chip_s(self.prompts, prompt_len)
        return self.input_chip_s * tokens / mean_prefill_chip_s(self.prompts, self.lengths)

    def output_at(self, prompt_len: FloatLike) -> Array:
        """Chip-seconds of an output token behind prompts of one length alone [s]; infinite where no batch fits."""
        contexts = np.atleast_1d(as_array(prompt_len)) + self.output_len
        own, mean = (
            self.costs.decode_chip_s(at, self.tpot_limit_s) for at in (contexts, self.lengths.mean + self.output_len)
        )
        if not np.isfinite(mean[0]):  # the limit holds for the batch of the way, not for decodes alone
            own, mean = (self.costs.decode_chip_s(at) for at in (contexts, self.lengths.mean + self.output_len))
        return self.output_chip_s * own / mean


class Ways(Protocol):
    """What finds the cheapest way to serve a tier: a search over layouts, or one deployment."""

    def cheapest(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        """The cheapest way within a limit on the time per output token, or why there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDeployment:
    """One deployment for all tiers and modes, its passes full of prompts or of decodes."""

    costs: TokenCosts

    def cheapest(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        """With the cheapest batch whose steps meet the limit [s]."""
        costs, end = self.costs, lengths.until_len + output_len
        if costs.batches_that_fit(end)[0] < 1:
            return f"one sequence of {end:,.0f} tokens does not fit on the replica"
        mean = lengths.mean + output_len
        batch, step = costs.decode_batch(mean, tpot_s)
        if batch[0] == 0.0:
            return f"no batch meets {tpot_s or 0:.3g} s per token at {mean:,.0f} tokens"
        return Way(
            costs=costs,
            lengths=lengths,
            output_len=output_len,
            tpot_limit_s=tpot_s,
            scheduler=costs.mode.label(),
            batch_size=float(batch[0]),
            tpot_s=float(step[0]),
            input_chip_s=mean_prefill_chip_s(costs, lengths),
            output_chip_s=float(costs.decode_chip_s(mean, tpot_s)[0]),
        )


def mean_prefill_chip_s(costs: TokenCosts, lengths: PromptLengths) -> float:
    """Chip-seconds of a prompt token, the mean over the tokens of all prompts [s].

    sum of length · cost(length) over the sum of lengths
    """
    points, shares = lengths.points
    return float(np.sum(shares * points * prefill_chip_s(costs, points)) / np.sum(shares * points))


def prefill_chip_s(costs: TokenCosts, prompt_len: FloatLike) -> Array:
    """Chip-seconds of a prompt token of prompts of one length [s], shape of the lengths.

    A prompt shorter than a pass costs no more per token than one that fills it; its logits are sold as output.
    """
    return costs.prefill_chip_s(np.maximum(np.atleast_1d(as_array(prompt_len)), float(costs.mode.max_batched_tokens)))
