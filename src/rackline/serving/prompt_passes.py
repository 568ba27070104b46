"""Passes with prompts whose time is no line in their tokens: aligned ranks, and CUDA graphs that hold only some.

**Aligned ranks.** Attention-dp ranks wait for each other's prompts: rates and latencies where prompts of all ranks run
together. A pass with a prompt on one rank is as long for all ranks that share experts. Engines can hold prompts until
others join them, so that fewer passes are long. Between two passes with prompts, P long, lies a time I without any
prompt and a time H in which prompts are held; with n sequences on a rank that take J steps of D each,

    C = P + I + H        tpot = C / ((I + H) / D + d)        lambda = n / (J tpot)

where d is the share of sequences that decode in the pass with prompts too, and k = lambda C prompts of each rank run in
it. A prompt that comes during P or H waits for the rest of both.

**Passes on both sides of the largest CUDA graph.** A pass with k prompts of n tokens beside b decodes is held by a
graph up to H tokens; beyond, the host launches every layer, which can take several times as long. While the token
budget does not fill, all prompts that arrive during one pass are in the next, so that their number is a Markov chain

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
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.prompt_queue import PromptQueue, most_of

if TYPE_CHECKING:
    from rackline.serving.steady import Engine

_POINTS = 8  # of the time for which prompts are held
_LOADS = 5  # prompts of a pass at which its time is evaluated
_ROUNDS = 16  # of the rate; each halves the error at least
# all three by eye on tests/golden/test_aligned_ranks.py, which holds the result to the simulator
_CHANCE = 1.4  # spread of prompts over ranks relative to random assignment: those that ran together end together
_EVEN = 1.5  # how fast all ranks have a prompt, over random assignment: each goes to the least loaded rank
_BEHIND = 0.25  # cycles that prompts wait when passes fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """When the ranks that run their passes together admit prompts; prompts are never held where nothing decodes.

    Args:
        name: of the policy that has it.
        some_passes: passes that prompts are held at most while a rank has none [passes].
        all_passes: passes that they are held once every rank has one, for more to join them [passes].
        idle_releases: whether a rank with nothing to decode releases the prompts of all.
        counts_always: whether passes count towards `some_passes` in which no rank has a prompt.
        holds_chunks: whether prompts of which a part has run are held as well.
        every: prompts run in each pass whose number is a multiple of this; 0 for any pass [passes].
        decodes_after: passes without prompts after each that had some [passes].
        options: words of the engine's command, or lines of its file of options, with {passes} and {more} for
            the numbers of passes.
    """

    json_keys: ClassVar = ("name", "passes", "options=words")

    name: str
    some_passes: int = 0
    all_passes: int = 0
    idle_releases: bool = False
    counts_always: bool = False
    holds_chunks: bool = True
    every: int = 0
    decodes_after: int = 0
    options: Sequence[str] = ()

    @property
    def passes(self) -> int:
        """Passes for which prompts are held, at most where that depends [passes]."""
        return max(self.some_passes + 1 if self.some_passes else 0, self.every, self.decodes_after)

    def of(self, passes: int) -> Alignment:
        """This plan with another number of passes; where there are two numbers, in the same ratio to each other."""
        return replace(
            self,
            some_passes=passes - 1 if self.some_passes else 0,
            all_passes=round(self.all_passes * passes / self.passes),
            every=passes if self.every else 0,
            decodes_after=passes if self.decodes_after else 0,
        )

    @property
    def words(self) -> list[str]:
        """Its options for a launch."""
        return [word.format(passes=self.passes, more=self.all_passes) for word in self.options]

    def label(self) -> str:
        """Short label for reports."""
        return f"{self.name.replace('_', ' ')} {self.passes}"

    def gaps_s(
        self, rate: FloatLike, prompt_s: FloatLike, decode_s: FloatLike, peers: FloatLike, sequences: FloatLike
    ) -> tuple[Array, Array]:
        """Mean times between two passes with prompts: those in which prompts are held, and those without any [s].

        Args:
            rate: prompts that come to each rank [1/s].
            prompt_s, decode_s: passes with and without prompts [s].
            peers: ranks that wait for each other [count].
            sequences: decoding on each [sequences].
        """
        each, passes_s, one_s = as_array(rate), as_array(prompt_s), as_array(decode_s)
        coming = np.maximum(each * peers, 1e-9)
        if self.every or self.decodes_after:
            held_s = (self.every - 1 if self.every else self.decodes_after) * one_s
            return held_s, np.exp(-coming * (passes_s + held_s)) / coming
        longest_s = self.some_passes * one_s
        complete: FloatLike = 0.0
        held_s: FloatLike = 0.0
        for place in (np.arange(_POINTS) + 0.5) / _POINTS:
            complete = (-np.expm1(-_EVEN * each * (passes_s + place * longest_s))) ** peers
            held_s = held_s + (1.0 - complete) * longest_s / _POINTS
        idle_s = np.exp(-coming * passes_s) / coming
        if self.counts_always:  # the first prompt comes at any of these passes
            held_s = np.maximum(held_s - np.minimum(idle_s, 0.5 * longest_s), 0.0)
        held_s = held_s + self.all_passes * one_s * complete
        decoding = as_array(sequences) * peers
        decode = -np.expm1(-decoding)
        if self.idle_releases:  # each request goes to the least loaded rank, so none is idle from one for each on
            decode = 1.0 / (1.0 + np.exp(-1.702 * np.clip((decoding - peers) / np.sqrt(decoding), -30.0, 30.0)))
        return held_s * decode, idle_s

    def wait_s(self, rate: Array, prompt_s: Array, held_s: Array, idle_s: Array, peers: FloatLike) -> Array:
        """Mean time from the arrival of a prompt to the beginning of a pass that may run it [s]."""
        coming = rate * peers
        first = coming * idle_s  # it finds no other
        held_first_s = 0.0 if self.every or self.decodes_after else held_s
        waited = coming * (prompt_s * (0.5 * prompt_s + held_s) + 0.5 * held_s**2) + first * held_first_s
        return waited / (coming * (prompt_s + held_s) + first)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedPasses:
    """Passes of aligned ranks with prompts; arrays that broadcast.

    Args:
        alignment: of the ranks.
        prompts: mean prompts of a rank, ascending, (loads, ...) [prompts].
        seconds: passes with as many, (loads, ...) [s].
        decode_s: pass without prompts [s].
        room: prompt tokens that a pass takes from one rank [tokens].
        peers: ranks that wait for each other [count].
        mixed: whether ranks decode beside their own prompts.
    """

    alignment: Alignment
    prompts: Array
    seconds: Array
    decode_s: Array
    room: Array
    peers: FloatLike
    mixed: bool

    def at(self, prompts: Array) -> Array:
        """A pass with a mean number of prompts on each rank [s]."""
        found = self.seconds[0] + 0.0 * prompts
        for low, high, before, after in zip(
            self.prompts, self.prompts[1:], self.seconds, self.seconds[1:], strict=False
        ):
            found = found + np.clip((prompts - low) / np.maximum(high - low, 1e-12), 0.0, 1.0) * (after - before)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedState:
    """Rates and times of aligned ranks in steady state; arrays.

    Args:
        rate: prompts of each rank [1/s].
        step_s: decode step as a sequence sees it [s].
        wait_s: from the arrival of a prompt to the end of its pass [s].
        prompt_s: pass with prompts [s].
        some: share of the passes with prompts [1].
        load: of the room for prompts [1].
    """

    rate: Array
    step_s: Array
    wait_s: Array
    prompt_s: Array
    some: Array
    load: Array


def prompts_of(new_tokens: float, room: Array, peers: FloatLike) -> tuple[Array, Array]:
    """Mean prompts of a rank at which passes are evaluated, and tokens of the busiest rank, both (loads, ...)."""
    least, most = 1.0 / as_array(peers), np.maximum(room / new_tokens, 2.0 / as_array(peers))
    share = np.linspace(0.0, 1.0, _LOADS).reshape((_LOADS,) + (1,) * np.ndim(room))
    prompts = least * (most / least) ** share
    busiest = prompts * most_of(prompts, np.broadcast_to(peers, prompts.shape), _CHANCE)
    return prompts, np.minimum(np.maximum(busiest, 1.0) * new_tokens, room)


def aligned(passes: AlignedPasses, new_tokens: float, sequences: Array, steps: float) -> AlignedState:
    """The rate at which a mean number of sequences decodes on each rank.

    Args:
        sequences: n [sequences].
        steps: J, decode steps of a request [count].

    Assumes: Poisson arrivals; a rank finds room for all prompts that were held.
    """
    of, decode_s, peers, n = passes.alignment, passes.decode_s, passes.peers, np.maximum(sequences, 1e-6)
    rate = n / (steps * decode_s) * 0.7
    cycle_s = 2.0 * decode_s + passes.seconds[0]
    prompt_s = held_s = idle_s = step_s = decode_s
    for _ in range(_ROUNDS):
        prompt_s = passes.at(rate * cycle_s)
        held_s, idle_s = of.gaps_s(rate, prompt_s, decode_s, peers, n)
        cycle_s = prompt_s + held_s + idle_s
        beside = 1.0 if passes.mixed else np.exp(-rate * cycle_s)
        step_s = cycle_s / ((held_s + idle_s) / decode_s + beside)
        rate = np.sqrt(rate * n / (steps * step_s))
    load = (rate * cycle_s * new_tokens) / passes.room
    fit = np.maximum(passes.room / new_tokens, 1.0)
    below = np.clip(load, 1e-9, 1.0 - 1e-6)
    # passes that are nearly full leave prompts for the next one: a queue of as many servers as prompts fit
    behind_s = _BEHIND * cycle_s * below ** (np.sqrt(2.0 * (fit + 1.0)) - 1.0) / (fit * (1.0 - below))
    pieces = np.ceil(new_tokens / passes.room - 1e-9)
    again_s = cycle_s if of.holds_chunks else prompt_s
    return AlignedState(
        rate=rate,
        step_s=step_s,
        wait_s=of.wait_s(rate, prompt_s, held_s, idle_s, peers) + prompt_s + behind_s + (pieces - 1.0) * again_s,
        prompt_s=prompt_s,
        some=1.0 / ((held_s + idle_s) / decode_s + 1.0),
        load=load,
    )


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
        z = (tokens - self.engine.stack.held_tokens - 0.5) / np.sqrt(np.maximum(variance, 1.0))
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
        """These numbers with more sequences decoding."""
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
    least = np.maximum(stack.held_tokens - passes.sequences * passes.engine.speculation.verified_tokens, 0.0) / new
    counts = range(1, int(min(float(np.max(least)) + 4.0, PROMPTS)) + 1)
    chances = [1.0 - passes.beyond(float(count)) for count in counts]
    shape = np.broadcast_shapes(np.shape(rate), np.shape(decode_s), np.shape(passes.kernels_s))
    held_s = passes.pass_s(np.ones(shape), held=True)
    beyond_s = passes.pass_s(np.broadcast_to(np.floor(least) + 1.0, shape), held=False)
    for _ in range(_CHAIN_ROUNDS):
        found = _kinds(_coming(rate, decode_s, held_s, beyond_s), chances, most)
        held_s = passes.pass_s(found.in_held, held=True)
        found_s = passes.pass_s(found.in_beyond, held=False)
        feedback = np.clip(rate * passes.kernels_s_per_prompt * stack.prefill_slowdown * found.again, 0.0, 0.9)
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
