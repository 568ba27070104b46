"""Synthetic workloads: open-loop arrivals, a closed loop of users, conversations and agents."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol, assert_never

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.simulation.requests import DAY_S, Requests, diurnal, gamma

Spread = Literal["fixed", "uniform", "exponential", "lognormal"]
LOGNORMAL_SIGMA = 1.0  # spread of ln(length) in public traces is about 1 (Azure 2023)


class AnyLengths(Protocol):
    """Lengths that are drawn for each request."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len), whole tokens, at least 1, (count,) each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of prompt and output lengths around their means.

    Args:
        input_len, output_len: mean lengths [tokens].
        spread: fixed; uniform from `low` to 2 - `low` times the mean; exponential; or lognormal (a long tail).
        low: least length over the mean for "uniform" [1].
    """

    input_len: float
    output_len: float
    spread: Spread = "fixed"
    low: float = 0.8

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if not getattr(self, name) >= 1:
                raise InputError(what=name, given=getattr(self, name), allowed="at least 1 token", nearest="1")

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) in whole tokens, at least 1 [tokens], (count,) each."""
        return self._one(rng, count, self.input_len), self._one(rng, count, self.output_len)

    def _one(self, rng: np.random.Generator, count: int, mean: float) -> Array:
        if self.spread == "fixed":
            return np.full(count, round(mean), dtype=np.int64)
        if self.spread == "uniform":
            values = rng.uniform(self.low * mean, (2.0 - self.low) * mean, count)
        elif self.spread == "exponential":
            values = rng.exponential(mean, count)
        elif self.spread == "lognormal":
            sigma = LOGNORMAL_SIGMA
            values = rng.lognormal(np.log(mean) - 0.5 * sigma**2, sigma, count)
        else:
            assert_never(self.spread)
        return np.maximum(np.rint(values), 1).astype(np.int64)


def open_arrivals(
    rng: np.random.Generator,
    count: int,
    rate_per_s: float,
    lengths: AnyLengths,
    *,
    arrival_cv: float = 1.0,
    diurnal_amplitude: float = 0.0,
    high_priority_share: float = 0.0,
) -> Requests:
    """Open-loop requests, which arrive independently of the server.

    Args:
        count: number of requests; with a daily cycle at most, as it covers whole days [requests].
        rate_per_s: mean arrival rate; infinite for all at once [requests/s].
        lengths: distribution of prompt and output lengths.
        arrival_cv: coefficient of variation of the inter-arrival times, 1 is Poisson; see `gamma` [1].
        diurnal_amplitude: relative amplitude of the daily cycle of the rate; see `diurnal` [1].
        high_priority_share: share of high-priority requests (tier 0; the others are tier 1) [1].

    Raises:
        InputError: too few requests for a day with a daily cycle, or a share outside [0, 1].
    """
    if diurnal_amplitude and not np.isinf(rate_per_s):
        count = _of_whole_days(count, rate_per_s)
    if np.isinf(rate_per_s):
        times = np.zeros(count)
    elif diurnal_amplitude:
        times = diurnal(rng, count, rate_per_s, diurnal_amplitude)
    else:
        times = gamma(rng, count, rate_per_s, arrival_cv)
    inputs, outputs = lengths.draw(rng, count)
    priority = None
    if high_priority_share:
        if not 0.0 <= high_priority_share <= 1.0:
            raise InputError(what="high_priority_share", given=high_priority_share, allowed="0 to 1", nearest="0.1")
        priority = (rng.random(count) >= high_priority_share).astype(np.int64)
    return Requests(
        arrival_s=times,
        input_len=inputs,
        output_len=outputs,
        priority=priority,
        name="synthetic requests",
        process=None if np.isinf(rate_per_s) or diurnal_amplitude else "open",
    )


def _of_whole_days(count: int, rate_per_s: float) -> int:
    """The requests of the whole days among `count`: a part of a day says nothing of the rest, and it begins quietly."""
    a_day = rate_per_s * DAY_S
    if count < round(a_day):
        raise InputError(
            what="requests",
            given=count,
            allowed=f"at least {ceil(a_day)}, a day of the daily cycle at {rate_per_s:g} requests/s",
            nearest=str(ceil(a_day)),
        )
    return round(max(count // a_day, 1.0) * a_day)


def closed_loop_of(
    rng: np.random.Generator, count: int, users: int, lengths: AnyLengths, *, think_s: float = 0.0
) -> Requests:
    """A closed loop: a fixed number of users, each of whom sends the next request when the last one has finished.

    Args:
        count: requests of all users together [requests].
        users: number of users, the most requests in flight [count].
        think_s: mean think time before the next request, exponentially distributed; 0 for none [s]. Users start in the
            middle of it, as they are found at any time of a long run: the rest of an exponential time is distributed
            as all of it.
    """
    if not users >= 1:
        raise InputError(what="users", given=users, allowed="at least 1", nearest="1")
    inputs, outputs = lengths.draw(rng, count)
    index = np.arange(count)
    pause = rng.exponential(think_s, count) if think_s > 0 else np.zeros(count)
    first = index < users
    pause[first] = np.sort(pause[first])
    return Requests(
        arrival_s=pause,
        input_len=inputs,
        output_len=outputs,
        after=np.where(first, -1, index - users),
        name=f"{users} users",
        process="closed",
    )


MAX_TOKENS = 131072


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How sessions go on. Each turn is a message of the user; an agent calls tools and reads their results before it
    answers, each time with a request of its own.

    Args:
        turns: mean number of turns, at least 1 [count].
        tool_calls: mean number of tool calls in a turn [count].
        think_s: mean pause between an answer and the next message [s].
        tool_s: mean time that a tool takes [s].
        tool_tokens: mean result of a tool [tokens].
        system_tokens: system prompt, shared by all sessions [tokens].
        max_tokens: longest context; a session ends before it exceeds this [tokens].
        same_length: whether all sessions have these numbers of turns and calls, rounded; else they are geometrically
            distributed.
        hash_tokens: tokens per hashed block of a prefix [tokens].

    Assumes: pauses and times of tools are exponentially distributed.
    """

    turns: float = 5.0
    tool_calls: float = 0.0
    think_s: float = 10.0
    tool_s: float = 0.0
    tool_tokens: float = 0.0
    system_tokens: int = 0
    max_tokens: int = MAX_TOKENS
    same_length: bool = False
    hash_tokens: int = 64

    def __post_init__(self) -> None:
        if not self.turns >= 1:
            raise InputError(what="turns", given=self.turns, allowed="at least 1", nearest="5")
        if self.tool_calls < 0 or (self.tool_calls > 0 and self.tool_tokens < 1):
            raise InputError(
                what="tool calls", given=f"{self.tool_calls:g} with results of {self.tool_tokens:g} tokens",
                allowed="0 or more, with results of at least 1 token",
            )  # fmt: skip

    @property
    def requests(self) -> float:
        """Mean requests of a session that does not meet the longest context [requests]."""
        if self.same_length:
            return float(round(self.turns) * (1 + round(self.tool_calls)))
        return self.turns * (1.0 + self.tool_calls)

    def after_tool(self, steps: Array) -> Array:
        """Probability that a request follows a tool and not a message, given that there is one [1].

        Args:
            steps: its place in the session, from 0.
        """
        if self.same_length:
            return np.where(steps % (1 + round(self.tool_calls)) != 0, 1.0, 0.0)
        again = self.tool_calls / (1.0 + self.tool_calls)
        goes_on = again + (1.0 - again) * (1.0 - 1.0 / self.turns)
        return np.where(steps > 0, again / goes_on if goes_on else 0.0, 0.0)

    def reached(self, steps: Array) -> Array:
        """Probability that a session has this many requests before it ends by itself [1]; `steps` as above."""
        if self.same_length:
            return np.where(steps < self.requests, 1.0, 0.0)
        return (1.0 - 1.0 / self.requests) ** steps

    def draw(self, rng: np.random.Generator, count: int, rate_per_s: float, lengths: AnyLengths) -> Requests:
        """Requests of sessions that begin at random.

        Args:
            count: requests of all sessions together [requests].
            rate_per_s: sessions started per second [1/s].
            lengths: distribution of the tokens of a message and of an answer; results of tools vary as messages do.
        """
        messages, answers = lengths.draw(rng, count)
        results = np.maximum(np.rint(messages * (self.tool_tokens / max(float(messages.mean()), 1.0))), 1)
        chance, kind = rng.random(count), rng.random(count)
        pauses = rng.exponential(1.0, count)
        starts = gamma(rng, count, rate_per_s, 1.0)
        columns: list[tuple[float, int, int, int]] = []
        hashes: list[tuple[int, ...]] = []
        answered: list[tuple[int, ...]] = []
        shared = self.system_tokens // self.hash_tokens
        fresh = shared
        session = 0
        most = int(self.requests) if self.same_length else count
        places = np.arange(min(count, most) + 1)
        reached = self.reached(places)
        on = np.divide(reached[1:], reached[:-1], out=np.zeros(len(places) - 1), where=reached[:-1] > 0)
        tools = self.after_tool(places)
        while len(columns) < count:
            context, before = self.system_tokens, -1
            known = tuple(range(shared))
            for place in range(count - len(columns)):
                index = len(columns)
                tool = kind[index] < tools[place]
                prompt = context + int(results[index] if tool else messages[index])
                answer = int(answers[index])
                if before >= 0 and prompt + answer > self.max_tokens:
                    break
                full, kept = prompt // self.hash_tokens, (prompt + answer) // self.hash_tokens
                if kept > len(known):
                    known = (*known, *range(fresh, fresh + kept - len(known)))
                    fresh = known[-1] + 1
                pause_s = float(pauses[index]) * (self.tool_s if tool else self.think_s)
                columns.append((float(starts[session]) if before < 0 else pause_s, prompt, answer, before))
                hashes.append(known[:full])
                # the last token of an answer is not in the cache yet
                answered.append(known[full : (prompt + answer - 1) // self.hash_tokens])
                context, before = prompt + answer, index
                if chance[index] >= on[place]:
                    break
            session += 1
        table = np.array(columns)
        return Requests(
            arrival_s=table[:, 0],
            input_len=table[:, 1].astype(np.int64),
            output_len=table[:, 2].astype(np.int64),
            after=table[:, 3].astype(np.int64),
            hashes=hashes,
            answer_hashes=answered,
            hash_tokens=self.hash_tokens,
            name=self.name,
            process="open",
        )

    @property
    def name(self) -> str:
        """Short description."""
        if self.tool_calls:
            return f"agents of {self.turns:g} turns with {self.tool_calls:g} tool calls"
        return f"conversations of {self.turns:g} turns"
