"""Cost per token of one deployment by context length, without margin, and the ways to serve a context tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from rackline.errors import require
from rackline.hardware import drawn_w
from rackline.parallel import Deployment, Layout
from rackline.parallel.memory import fitting_sequences
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.fleet import Power, output_joules, power_of, prompt_joules, request_joules
from rackline.serving.steady import Engine
from rackline.serving.workload import Mixture, Mode, Workload
from rackline.system import System

HOURS_PER_YEAR = 8766.0
_MENU = np.unique(np.rint(np.geomspace(1, 8192, 105)))  # sequences on a rank, in steps of an eighth of an octave


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """Hourly cost of a chip, and its power.

    Args:
        usd_per_chip_hour: rent, or purchase and energy over the chip's life [USD/hour].
        power_w_per_chip: power with host and network; None if unknown [W].
        pue: power of the site over that of the machines; 1 where the power includes cooling [ratio].
        usd_per_kwh: electricity price; None if not stated [USD/kWh].
        how: "rent" or "purchase"; a rent includes electricity.
        kind: of the rent, with its date or what it is estimated from, in words; empty where it was given.
    """

    usd_per_chip_hour: float
    power_w_per_chip: float | None = None
    pue: float = 1.0
    usd_per_kwh: float | None = None
    how: str = "rent"
    kind: str = ""

    def __post_init__(self) -> None:
        require(
            self.usd_per_chip_hour > 0 and np.isfinite(self.usd_per_chip_hour),
            what="rent",
            given=self.usd_per_chip_hour,
            allowed="USD per chip-hour above 0",
        )
        require(1.0 <= self.pue <= 10.0, what="PUE", given=self.pue, allowed="1 to 10", nearest="1")


def purchase_usd_per_hour(
    purchase_usd: float, years: float, power_w_per_chip: float, pue: float, usd_per_kwh: float
) -> float:
    """Hourly cost of a purchased chip.

    cost = purchase / (years · 8766 h) + power · PUE · usd_per_kwh / 1000

    Args:
        purchase_usd: price of the chip with its share of host, network and building [USD].
        years: depreciation period, without residual value [years].
        power_w_per_chip: power with host and network [W].
        pue: power of the site over that of the machines [ratio].
        usd_per_kwh: price of energy [USD/kWh].

    Returns:
        USD per hour.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: straight-line depreciation, no interest, full power all the time.

    >>> round(purchase_usd_per_hour(40_000.0, 4.0, 1730.0, 1.25, 0.08), 3)
    1.314
    """
    for what, value in (("purchase", purchase_usd), ("years", years), ("power", power_w_per_chip), ("pue", pue)):
        require(value > 0 and np.isfinite(value), what=what, given=value, allowed="a finite number above 0")
    require(
        usd_per_kwh >= 0 and np.isfinite(usd_per_kwh),
        what="energy price",
        given=usd_per_kwh,
        allowed="USD per kWh, not negative",
        nearest="0",
    )
    return purchase_usd / (years * HOURS_PER_YEAR) + power_w_per_chip * pue / 1000.0 * usd_per_kwh


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """Chip-seconds per token of a deployment at full utilisation of its chips.

    Decode takes, among the batches that fit and meet the time limit, the one with the least chip-seconds per token. For
    each batch the step does not get shorter as the context grows and fewer batches fit, so the cost of a token never
    falls with context.

    Args:
        engine, deployment: the engine and its deployment.
        mode: of prefill, for the tokens of one pass.
    """

    system: System
    deployment: Deployment
    engine: Engine
    mode: Mode

    @classmethod
    def of(cls, system: System, layout: Layout, mode: Mode | None = None) -> TokenCosts:
        """Costs of a system under a layout.

        Args:
            mode: of prefill; the default of the stack where it is None.
        """
        return cls(
            system=system,
            deployment=system.deployment(layout),
            engine=system.engine(layout),
            mode=mode or system.stack.scheduler.mode(),
        )

    @property
    def num_chips(self) -> int:
        """Chips of one replica."""
        return self.deployment.layout.chips_per_replica

    def batches_that_fit(self, context_len: FloatLike) -> Array:
        """Sequences of a context that one rank and micro-batch holds, shape of the contexts [sequences]."""
        contexts = np.atleast_1d(as_array(context_len))
        d = self.deployment
        server = self.system.server(self.mode.max_batched_tokens)
        return fitting_sequences(d.model, d.layout, d.precision, d.cluster.chip, server, contexts)

    def decode_steps_s(self, context_len: FloatLike) -> Array:
        """Step of each batch of the menu at each context [s], shape (batches, contexts)."""
        batch = Batch(decode_sequences=_MENU[:, None], context_len=np.atleast_1d(as_array(context_len))[None, :])
        times = self.engine.time_table(self.mode.two_batch_overlap)
        return self.engine.decode_s(batch, times, two_batch_overlap=self.mode.two_batch_overlap)

    def decode_chip_s(self, context_len: FloatLike, tpot_s: float | None = None) -> Array:
        """Least chip-seconds of one generated token at each context; infinite where no batch fits in the limit [s]."""
        return self._decode(context_len, tpot_s)[0]

    def decode_batch(self, context_len: FloatLike, tpot_s: float | None = None) -> tuple[Array, Array]:
        """Sequences on the replica and step time [s] of the cheapest batch at each context; 0 where none fits."""
        chip_s, pick = self._decode(context_len, tpot_s)
        d = self.deployment
        steps = np.take_along_axis(self.decode_steps_s(context_len), pick[None, :], axis=0)[0]
        sequences = _MENU[pick] * d.layout.attention_dp * d.layout.pp
        return np.where(np.isfinite(chip_s), sequences, 0.0), np.where(np.isfinite(chip_s), steps, np.inf)

    def _decode(self, context_len: FloatLike, tpot_s: float | None) -> tuple[Array, Array]:
        steps = self.decode_steps_s(context_len)
        layout = self.deployment.layout
        chip_s = steps / (_MENU[:, None] * layout.attention_dp * layout.pp) * self.num_chips
        fits = _MENU[:, None] <= self.batches_that_fit(context_len)[None, :]
        if tpot_s is not None:
            fits &= steps <= tpot_s
        chip_s = np.where(fits, chip_s, np.inf)
        return chip_s.min(axis=0), chip_s.argmin(axis=0)

    def prefill_chip_s(self, prompt_len: FloatLike) -> Array:
        """Chip-seconds of one prompt token, in passes that are full of prompts [s], shape of the prompts.

        A prompt longer than a pass goes through in chunks, with on average half of it cached before.
        """
        prompts = np.atleast_1d(as_array(prompt_len))
        room = float(self.mode.max_batched_tokens)
        chunk = np.minimum(prompts, room)
        batch = Batch(
            prefill_sequences=room / chunk,
            chunk_tokens=chunk,
            prefix_tokens=np.maximum(prompts - chunk, 0.0) / 2.0,
        )
        overlap = self.mode.two_batch_overlap
        seconds = self.engine.seconds(batch, self.engine.time_table(overlap), two_batch_overlap=overlap)
        full = np.broadcast_to(self.engine.with_prompts_s(0.0, seconds, tokens=room), prompts.shape)
        # all attention-dp ranks prefill side by side, and pp micro-batches are under way
        ranks = self.deployment.layout.attention_dp * self.deployment.layout.pp
        return np.asarray(full * self.num_chips / (room * ranks))

    def request_chip_s(self, prompt_len: FloatLike, output_len: FloatLike, tpot_s: float | None = None) -> Array:
        """Chip-seconds of one request: its prefill, which makes the first output token, and the decode of the others.

        Equation:
            prompt · prefill(prompt) + (output - 1) · decode(prompt + output)

        Args:
            prompt_len, output_len: [tokens], broadcast.
            tpot_s: limit on the step of a token [s].

        Returns:
            [s]; infinite where no batch fits in the limit. Decode is counted at the final context, an upper bound.
        """
        prompts, outputs = np.broadcast_arrays(np.atleast_1d(as_array(prompt_len)), np.atleast_1d(as_array(output_len)))
        made = np.where(outputs > 1.0, (outputs - 1.0) * self.decode_chip_s(prompts + outputs, tpot_s), 0.0)
        return np.asarray(prompts * self.prefill_chip_s(prompts) + made)

    def kv_bytes(self, context_len: FloatLike) -> Array:
        """KV cache of one whole sequence, all chips together [bytes]."""
        d = self.deployment
        return np.asarray(d.model.kv_bytes(context_len, storage_bytes(d.precision.kv_cache)), dtype=float)


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
        """The way with the cheapest batch whose steps meet the limit [s]."""
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
