"""Cost per token of one deployment by context length, without margin: chip-seconds of decode and prefill, and USD."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.errors import InputError
from rackline.parallel import Deployment, Layout
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.steady import Engine
from rackline.serving.workload import Mode
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
        if not (self.usd_per_chip_hour > 0 and np.isfinite(self.usd_per_chip_hour)):
            raise InputError(what="rent", given=self.usd_per_chip_hour, allowed="USD per chip-hour above 0")
        if not 1.0 <= self.pue <= 10.0:
            raise InputError(what="PUE", given=self.pue, allowed="1 to 10", nearest="1")


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
        if not (value > 0 and np.isfinite(value)):
            raise InputError(what=what, given=value, allowed="a finite number above 0")
    if not (usd_per_kwh >= 0 and np.isfinite(usd_per_kwh)):
        raise InputError(what="energy price", given=usd_per_kwh, allowed="USD per kWh, not negative", nearest="0")
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
            mode=mode or system.stack.mode(),
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
        contexts = np.atleast_1d(as_array(context_len))
        batch = Batch(decode_sequences=_MENU[:, None], context_len=contexts[None, :])
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
        tokens = _MENU[:, None] * layout.attention_dp * layout.pp
        chip_s = steps / tokens * self.num_chips
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
        decode = self.decode_chip_s(prompts + outputs, tpot_s)
        made = np.where(outputs > 1.0, (outputs - 1.0) * decode, 0.0)
        return np.asarray(prompts * self.prefill_chip_s(prompts) + made)

    def kv_bytes(self, context_len: FloatLike) -> Array:
        """KV cache of one whole sequence, all chips together [bytes]."""
        d = self.deployment
        per_element = _kv_element_bytes(d)
        return np.asarray(d.model.kv_bytes(context_len, per_element), dtype=float)


def _kv_element_bytes(deployment: Deployment) -> float:
    from rackline.parallel.precision import storage_bytes

    return storage_bytes(deployment.precision.kv_cache)
