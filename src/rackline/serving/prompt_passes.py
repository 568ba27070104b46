"""Passes with prompts on both sides of the largest CUDA graph, which holds only some of them.

A pass with k prompts of n tokens beside b decodes is held by a graph up to H tokens; beyond, the host launches every
layer, which can take several times as long. While the token budget does not fill, all prompts that arrive during one
pass are in the next, so that their number is a Markov chain

    k' ~ Poisson(lambda T(k))        T(0) = D,  T(k) = held(k n) or beyond(k n)

Its states are lumped by what a pass is: without prompts, held by a graph, beyond it. In each of the three the number of
prompts has the mean and variance that follow from the Poisson distributions of the three before. Each prompt belongs to
one pass, before which it waits for the rest of another:

    wait = E[T²] / (2 E[T]) + E[k T] / E[k]

Where the budget fills, almost all passes are beyond the graph, and `rackline.serving.prompt_queue` holds by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rackline.passes.features import Array, FloatLike
from rackline.serving.prompt_queue import PromptQueue

if TYPE_CHECKING:
    from rackline.serving.steady import Engine

_CHAIN_ROUNDS = 6  # of the mean passes of the three kinds
_TINY = 1e-30
PROMPTS = 40  # at most, of a pass that a graph holds
_FULL = 2.0  # budgets over mean prompt tokens of a pass, from which on passes fill and prompts are left behind
_FIELDS = (
    "pass_s", "prompt_pass_s", "some", "prompt_tokens", "wait_s", "backlog", "left_behind", "settling", "growth",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPasses:
    """Passes of one rank with prompts, by whether a CUDA graph holds them; arrays that broadcast.

    Args:
        engine: the engine, which knows its largest graph and what the host does beyond it.
        applies: where passes may lie on both sides of the graph.
        decode_s: D, pass without prompts [s].
        kernels_s: kernel time of a pass with one prompt [s].
        kernels_s_per_prompt: of each further one [s].
        sequences: mean number of sequences decoding beside them [sequences].
        new_tokens: n, new tokens of a prompt [tokens].
        spread: standard deviation of prompts over their mean [1].
        room: prompt tokens that a pass can take [tokens].
    """

    engine: Engine
    applies: Array
    decode_s: Array
    kernels_s: Array
    kernels_s_per_prompt: Array
    sequences: Array
    new_tokens: float
    spread: float
    room: Array

    def pass_s(self, prompts: Array, *, held: bool) -> Array:
        """A pass with this many prompts, held by a graph or beyond it [s]."""
        kernels = self.kernels_s + (prompts - 1.0) * self.kernels_s_per_prompt
        tokens = 1.0 if held else np.inf
        return self.engine.with_prompts_s(self.decode_s, kernels, tokens=tokens, sequences=self.sequences)

    def beyond(self, prompts: FloatLike) -> Array:
        """Chance that a pass with this many prompts is beyond the largest graph [1].

        Assumes: a normal distribution of the prompts' tokens, in its logistic form.
        """
        tokens = prompts * self.new_tokens + self.sequences * self.engine.speculation.verified_tokens
        variance = prompts * (self.spread * self.new_tokens) ** 2
        z = (tokens - self.engine.stack.graphs.held_tokens - 0.5) / np.sqrt(np.maximum(variance, 1.0))
        return 1.0 / (1.0 + np.exp(-1.702 * np.clip(z, -30.0, 30.0)))

    def queue(self, full: PromptQueue, prompts_per_s: Array, steps: float, growth_s: Array) -> PromptQueue:
        """The queue of prompts, where graphs hold some of the passes with prompts.

        The number of sequences that decode changes more slowly than the passes, so the queue is the mean of those with
        a standard deviation more and less of them.

        Args:
            full: the queue with all passes beyond the graph, which holds where the budget fills.
            prompts_per_s: lambda, arrival rate [requests/s].
            steps: J, decode passes of a request [count].
            growth_s: increase of D with one more sequence, which also leaves prompts a token less in a graph [s].
        """
        spread = np.sqrt(self.sequences * self._uneven(prompts_per_s, steps, growth_s))
        apart = np.minimum(spread, 0.9 * self.sequences)
        fewer, more = (lumped(self.moved(by, growth_s), prompts_per_s) for by in (-apart, apart))
        least_s = 2.0 * apart * np.maximum(growth_s, 1e-9 * self.decode_s)
        found = {name: 0.5 * (getattr(fewer, name) + getattr(more, name)) for name in _FIELDS}
        found["growth"] = np.maximum((more.pass_s - fewer.pass_s) / least_s, 1.0)
        # where passes fill their budget, prompts wait for more than the next pass
        part = np.where(self.applies, np.clip(1.0 - _FULL * more.prompt_tokens / self.room, 0.0, 1.0), 0.0)
        return replace(full, **{name: part * found[name] + (1.0 - part) * getattr(full, name) for name in _FIELDS})

    def _uneven(self, rate: Array, steps: float, growth_s: Array) -> Array:
        """Variance of the sequences that decode over their mean: busy passes end many requests, and feed back."""
        here, more = (lumped(self.moved(by, growth_s), rate) for by in (0.0, 1.0))
        share = np.clip(1.0 - self.decode_s / here.pass_s, 0.0, 0.97)
        bursts = 1.0 + (1.0 / (1.0 - share) ** 2 - 1.0) * steps / (steps + here.settling)
        return bursts / (1.0 - np.clip(rate * steps * (more.pass_s - here.pass_s), 0.0, 0.9))

    def moved(self, sequences: FloatLike, growth_s: Array) -> GraphPasses:
        """These passes with more sequences decoding."""
        longer_s = sequences * growth_s
        return replace(
            self,
            decode_s=self.decode_s + longer_s,
            kernels_s=self.kernels_s + longer_s,
            sequences=self.sequences + sequences,
        )


class _Kinds(NamedTuple):
    """Shares of the three kinds of passes, mean and variance of the prompts in held ones and in those beyond.

    `again` is the chance that a pass beyond the graph follows another, `anew` that it follows one of the other kinds.
    """

    none: Array
    held: Array
    beyond: Array
    in_held: Array
    in_beyond: Array
    held_variance: Array
    beyond_variance: Array
    again: Array
    anew: Array


def _kinds(coming: Array, chances: Sequence[Array], most: Array) -> _Kinds:
    """The kinds of passes where a mean number of prompts comes in a pass of each kind, (3, ...).

    Args:
        chances: that a graph holds a pass with 1, 2, ... prompts; none beyond.
        most: prompts of a pass at most.
    """
    none = np.exp(-coming)
    some, ones, squares = np.zeros(coming.shape), np.zeros(coming.shape), np.zeros(coming.shape)
    term = none
    for count, chance in enumerate(chances, start=1):
        term = term * coming / count
        inside = term * chance
        some, ones, squares = some + inside, ones + count * inside, squares + count * count * inside
    over = np.maximum(1.0 - none - some, 0.0)
    # the stationary distribution of three states, by their spanning trees
    (_, h0, b0), (n1, _, b1), (n2, h2, b2) = ((none[i], some[i], over[i]) for i in range(3))
    trees = (n1 * n2 + n1 * h2 + b1 * n2, h0 * h2 + h0 * n2 + b0 * h2, b0 * b1 + b0 * n1 + h0 * b1)
    shares = np.stack(trees) / sum(trees)
    of_held = np.maximum((shares * some).sum(axis=0), _TINY)
    of_beyond = np.maximum((shares * over).sum(axis=0), _TINY)
    in_held = np.clip((shares * ones).sum(axis=0) / of_held, 1.0, most)
    in_beyond = np.clip((shares * np.maximum(coming - ones, 0.0)).sum(axis=0) / of_beyond, 1.0, most)
    square_beyond = (shares * np.maximum(coming + coming**2 - squares, 0.0)).sum(axis=0) / of_beyond
    return _Kinds(
        none=shares[0],
        held=shares[1],
        beyond=shares[2],
        in_held=in_held,
        in_beyond=in_beyond,
        held_variance=np.maximum((shares * squares).sum(axis=0) / of_held - in_held**2, 0.0),
        beyond_variance=np.maximum(square_beyond - in_beyond**2, 0.0),
        again=b2,
        anew=(shares[0] * b0 + shares[1] * b1) / np.maximum(shares[0] + shares[1], _TINY),
    )


def lumped(passes: GraphPasses, rate: Array) -> PromptQueue:
    """The chain of passes without prompts, with held ones and with ones beyond; it knows no `load` or `growth`.

    Args:
        rate: lambda, prompts that arrive [requests/s].
    """
    new, decode_s, stack = passes.new_tokens, passes.decode_s, passes.engine.stack
    most = passes.room / new
    decoded = passes.sequences * passes.engine.speculation.verified_tokens
    least = np.maximum(stack.graphs.held_tokens - decoded, 0.0) / new
    counts = range(1, int(min(float(np.max(least)) + 4.0, PROMPTS)) + 1)
    chances = [1.0 - passes.beyond(float(count)) for count in counts]
    shape = np.broadcast_shapes(np.shape(rate), np.shape(decode_s), np.shape(passes.kernels_s))
    held_s = passes.pass_s(np.ones(shape), held=True)
    beyond_s = passes.pass_s(np.broadcast_to(np.floor(least) + 1.0, shape), held=False)
    for _ in range(_CHAIN_ROUNDS):
        found = _kinds(_coming(rate, decode_s, held_s, beyond_s), chances, most)
        held_s = passes.pass_s(found.in_held, held=True)
        found_s = passes.pass_s(found.in_beyond, held=False)
        feedback = np.clip(rate * passes.kernels_s_per_prompt * stack.graphs.prefill_slowdown * found.again, 0.0, 0.9)
        beyond_s = np.maximum(beyond_s + (found_s - beyond_s) / (1.0 - feedback), 0.5 * found_s)
    found = _kinds(_coming(rate, decode_s, held_s, beyond_s), chances, most)
    of_held_s, of_beyond_s = (
        passes.pass_s(mean + 0.5, held=held) - passes.pass_s(mean - 0.5, held=held)
        for mean, held in ((found.in_held, True), (found.in_beyond, False))
    )
    held_noise, beyond_noise = of_held_s * found.held_variance, of_beyond_s * found.beyond_variance
    mean_s = found.none * decode_s + found.held * held_s + found.beyond * beyond_s
    square = (
        found.none * decode_s**2
        + found.held * (held_s**2 + of_held_s * held_noise)
        + found.beyond * (beyond_s**2 + of_beyond_s * beyond_noise)
    )
    with_prompt_s = (
        found.held * (found.in_held * held_s + held_noise) + found.beyond * (found.in_beyond * beyond_s + beyond_noise)
    ) / (found.held * found.in_held + found.beyond * found.in_beyond)
    some = found.held + found.beyond
    stays = np.maximum(found.again - found.anew, rate * (found.held * of_held_s + found.beyond * of_beyond_s))
    return PromptQueue(
        pass_s=mean_s,
        prompt_pass_s=(found.held * held_s + found.beyond * beyond_s) / some,
        some=some,
        own=some,
        prompt_tokens=rate * new * mean_s,
        wait_s=square / (2.0 * mean_s) + with_prompt_s,
        backlog=rate * new * mean_s,
        left_behind=rate * new * with_prompt_s,
        load=np.zeros(shape),
        settling=1.0 / (1.0 - np.clip(stays, 0.0, 0.98)),
        growth=np.ones(shape),
    )


def _coming(rate: Array, *pass_s: Array) -> Array:
    """Prompts that arrive in each kind of pass, (3, ...) [prompts]."""
    return np.stack(np.broadcast_arrays(*(rate * seconds for seconds in pass_s)))
