"""Attention-dp ranks that wait for each other's prompts: rates and latencies where prompts of all ranks run together.

A pass with a prompt on one rank is as long for all ranks that share experts. Engines can hold prompts until others
join them, so that fewer passes are long. Between two passes with prompts, P long, lies a time I without any
prompt and a time H in which prompts are held; with n sequences on a rank that take J steps of D each,

    C = P + I + H        tpot = C / ((I + H) / D + d)        lambda = n / (J tpot)

where d is the share of sequences that decode in the pass with prompts too, and k = lambda C prompts of each rank run in
it. A prompt that comes during P or H waits for the rest of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.prompt_queue import most_of

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
        """This alignment with another number of passes; two numbers keep their ratio."""
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
