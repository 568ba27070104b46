"""Synthetic workloads: open-loop arrivals, a closed loop of users, conversations and agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf, log, sqrt
from typing import Literal, Protocol

import numpy as np

from rackline.arch import AppliedAdapter
from rackline.errors import require
from rackline.passes.features import Array
from rackline.simulation.calls import HASH_TOKENS, Before, Calls
from rackline.simulation.requests import Requests
from rackline.units import plural

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
            require(
                getattr(self, name) >= 1, what=name, given=getattr(self, name), allowed="at least 1 token", nearest="1"
            )

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) in whole tokens, at least 1 [tokens], (count,) each."""
        return self._one(rng, count, self.input_len), self._one(rng, count, self.output_len)

    def _one(self, rng: np.random.Generator, count: int, mean: float) -> Array:
        if self.spread == "fixed":
            return np.full(count, round(mean), dtype=np.int64)
        sigma = LOGNORMAL_SIGMA
        drawn: dict[Spread, Callable[[], Array]] = {
            "uniform": lambda: rng.uniform(self.low * mean, (2.0 - self.low) * mean, count),
            "exponential": lambda: rng.exponential(mean, count),
            "lognormal": lambda: rng.lognormal(np.log(mean) - 0.5 * sigma**2, sigma, count),
        }
        return np.maximum(np.rint(drawn[self.spread]()), 1).astype(np.int64)


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
        require(
            0.0 <= high_priority_share <= 1.0,
            what="high_priority_share",
            given=high_priority_share,
            allowed="0 to 1",
            nearest="0.1",
        )
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
    require(
        count >= round(a_day),
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
    require(users >= 1, what="users", given=users, allowed="at least 1", nearest="1")
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


_SAMPLED = 200_000  # requests from which the share of sessions that end early is estimated
_RARELY_REACHED = 1e-3  # probability of a request of a session below which later ones do not count


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
        max_tokens: longest prompt with its answer; a session ends before a request that exceeds it, which engines
            refuse [tokens].
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
    max_tokens: float = inf
    same_length: bool = False
    hash_tokens: int = HASH_TOKENS

    def __post_init__(self) -> None:
        require(self.turns >= 1, what="turns", given=self.turns, allowed="at least 1", nearest="5")
        require(
            self.tool_calls == 0 or (self.tool_calls > 0 and self.tool_tokens >= 1),
            what="tool calls",
            given=f"{self.tool_calls:g} with results of {self.tool_tokens:g} tokens",
            allowed="0 or more, with results of at least 1 token",
        )

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
        """Requests of sessions that begin at random; arguments as of `calls`."""
        return replace(self.calls(rng, count, rate_per_s, lengths).requests(self.name), task=None, process="open")

    def calls(self, rng: np.random.Generator, count: int, rate_per_s: float, lengths: AnyLengths) -> Calls:
        """Calls of sessions that begin at random, each session a task.

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
        calls = Calls(shared_tokens=self.system_tokens, hash_tokens=self.hash_tokens)
        most = int(self.requests) if self.same_length else count
        places = np.arange(min(count, most) + 1)
        reached = self.reached(places)
        on = np.divide(reached[1:], reached[:-1], out=np.zeros(len(places) - 1), where=reached[:-1] > 0)
        tools = self.after_tool(places)
        session = 0
        while len(calls.task) < count:
            context = self.system_tokens
            for place in range(count - len(calls.task)):
                index = len(calls.task)
                tool = kind[index] < tools[place]
                prompt = context + int(results[index] if tool else messages[index])
                context = prompt + int(answers[index])
                if place and context > self.max_tokens:
                    break
                pause_s = float(pauses[index]) * (self.tool_s if tool else self.think_s)
                before = (Before(index - 1, pause_s),) if place else ()
                start_s = float(starts[session])
                calls.add(session, prompt, int(answers[index]), path=session, before=before, start_s=start_s)
                if chance[index] >= on[place]:
                    break
            session += 1
        return calls

    def share_ended_early(self, lengths: AnyLengths) -> float:
        """Estimate the share of sessions that end because their next request would exceed the longest context [1].

        Equation:
            E[reached(k)], where k is the first request that does not fit

        Args:
            lengths: as of `calls`.
        """
        number = self.requests
        if not self.same_length and number > 1.0:
            number = log(_RARELY_REACHED) / log(1.0 - 1.0 / number)
        places = np.arange(min(ceil(number), _SAMPLED))
        sessions, rng = _SAMPLED // len(places), np.random.default_rng(0)
        shape = (sessions, len(places))
        messages, answers = (drawn.reshape(shape) for drawn in lengths.draw(rng, sessions * len(places)))
        results = np.maximum(np.rint(messages * (self.tool_tokens / max(float(messages.mean()), 1.0))), 1)
        added = np.where(rng.random(shape) < self.after_tool(places), results, messages)
        too_long = self.system_tokens + np.cumsum(added + answers, axis=1) > self.max_tokens
        too_long[:, 0] = False  # the first request of a session is always sent
        first = np.argmax(too_long, axis=1)
        return float(np.where(first > 0, self.reached(first), 0.0).mean())

    @property
    def name(self) -> str:
        """Short description."""
        if self.tool_calls:
            return f"agents of {self.turns:g} turns with {self.tool_calls:g} tool {plural(self.tool_calls, 'call')}"
        return f"conversations of {self.turns:g} turns"


class DrawnLengths(AnyLengths, Protocol):
    """Several lengths, each with its share of the requests."""

    def draw_decoding(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Draw lengths of requests that are decoding at some time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests with random arrivals, of one length or of several, as seen by one of several equal servers.

    When the run begins, some requests are decoding already, at evenly spread positions of their outputs. Then come
    warm-up requests, the measured ones, and enough others after them to keep the servers busy until the last measured
    one has finished.

    Args:
        input_len, output_len: lengths of each request [tokens].
        cached_tokens: prompt tokens that are cached on arrival [tokens].
        lengths: drawn for each request, of which input_len and output_len are then the means; None for one length.
        measured: requests in the measurement window [requests].
        warm_up: requests before the window [requests].
        servers: servers that receive the arrivals round-robin; one of them is simulated [count].
        seed: random seed. The same seed gives the same inter-arrival times, scaled by the rate.
    """

    input_len: int
    output_len: int
    cached_tokens: int = 0
    lengths: DrawnLengths | None = None
    measured: int = 4000
    warm_up: int = 1000
    servers: int = 1
    seed: int = 1

    def requests(self, rate_per_s: float, begun: int, decode_s: float) -> Requests:
        """The requests of one server.

        Args:
            rate_per_s: arrival rate at this server [requests/s].
            begun: requests that are decoding when the run begins [requests].
            decode_s: approximate time that a request takes to decode [s].
        """
        rng = np.random.default_rng(self.seed)
        behind = ceil(1.1 * rate_per_s * decode_s + 3.0 * sqrt(rate_per_s * decode_s)) + 20
        if self.lengths is not None:
            behind *= 2  # some answers are longer than the mean
        count = self.warm_up + self.measured + behind
        # every n-th arrival of a Poisson process: inter-arrival times are sums of n exponential ones
        gaps = gamma(rng, count, 1.0, 1.0 / sqrt(self.servers))
        gaps *= count / (gaps[-1] * rate_per_s)  # exactly the mean rate over the run
        place = np.random.default_rng(self.seed + 1).permutation(begun)
        prompts, answers = np.full(count, self.input_len), np.full(count, self.output_len)
        begun_prompts, begun_answers = np.full(begun, self.input_len), np.full(begun, self.output_len)
        if self.lengths is not None:
            drawn = np.random.default_rng(self.seed + 2)
            prompts, answers = self.lengths.draw(drawn, count)
            begun_prompts, begun_answers = self.lengths.draw_decoding(drawn, begun)
        # cached tokens of an answer that has one more already, and at least one to come
        written = place * (begun_answers - 1) // max(begun, 1)
        inputs = np.concatenate([begun_prompts + written, prompts])
        outputs = np.concatenate([begun_answers - written, answers])
        cached = prompts * self.cached_tokens // max(self.input_len, 1)
        computed = np.concatenate([begun_prompts + written, cached])
        return Requests(
            arrival_s=np.concatenate([np.zeros(begun), gaps]),
            input_len=inputs,
            output_len=outputs,
            computed=computed if begun or self.cached_tokens else None,
            name="random arrivals",
        )

    def measured_part(self, arrival_s: Array) -> slice:
        """The measurement window of a run, as a slice of its requests that arrived at these times [s]."""
        begun = int(np.sum(arrival_s <= 0.0))
        return slice(begun + self.warm_up, begun + self.warm_up + self.measured)


DAY_S = 86400.0


def poisson(rng: np.random.Generator, count: int, rate_per_s: float) -> Array:
    """Poisson arrival times at a mean rate [s], (count,), ascending.

    Args:
        count: number of arrivals [requests].
        rate_per_s: mean rate [requests/s].

    Raises:
        InputError: the rate is not above 0.

    >>> times = poisson(np.random.default_rng(0), 10_000, 5.0)
    >>> round(float(times[-1]) / 2000, 1)
    1.0
    """
    return gamma(rng, count, rate_per_s, 1.0)


def gamma(rng: np.random.Generator, count: int, rate_per_s: float, arrival_cv: float) -> Array:
    """Arrival times with gamma-distributed inter-arrival times [s], (count,), ascending.

    Args:
        count: number of arrivals [requests].
        rate_per_s: mean rate [requests/s].
        arrival_cv: coefficient of variation of the inter-arrival times (standard deviation over mean): 1 is Poisson,
            more is burstier, 0 is evenly spaced [1].

    Raises:
        InputError: the rate is not above 0, or the coefficient of variation is negative.

    Sources: Vidur (arXiv:2405.05465) and vLLM's benchmark, whose --burstiness is 1 / cv², draw inter-arrival times in
    this way.
    """
    require(rate_per_s > 0, what="rate", given=rate_per_s, allowed="above 0 requests/s", nearest="1")
    require(arrival_cv >= 0, what="arrival_cv", given=arrival_cv, allowed="0 or more", nearest="1")
    if arrival_cv == 0:
        return np.arange(count) / rate_per_s
    shape = 1.0 / arrival_cv**2
    return np.cumsum(rng.gamma(shape, 1.0 / (rate_per_s * shape), count))


def diurnal(
    rng: np.random.Generator, count: int, rate_per_s: float, amplitude: float, period_s: float = DAY_S
) -> Array:
    """Arrival times of a Poisson process whose rate follows a daily sine [s], (count,), ascending.

    rate(t) = rate · (1 - amplitude · cos(2 pi t / period))

    Args:
        count: number of arrivals [requests].
        rate_per_s: mean rate [requests/s].
        amplitude: relative amplitude of the rate, 0 (constant) to 1 (no arrivals at the quietest time) [1].
        period_s: period of the sine, which starts at the quietest time [s].

    Raises:
        InputError: the amplitude is outside [0, 1], or the rate or period is not above 0.
    """
    require(0.0 <= amplitude <= 1.0, what="amplitude", given=amplitude, allowed="0 to 1", nearest="0.5")
    require(period_s > 0, what="period", given=period_s, allowed="above 0 s", nearest="86400")
    even = poisson(rng, count, 1.0) / rate_per_s if rate_per_s > 0 else poisson(rng, count, rate_per_s)
    # inverse of the cumulative rate: maps arrivals of a constant rate to those of the varying one
    last = float(even[-1])
    grid: Array = np.linspace(0.0, last + 2.0 * period_s, int(2000 * (last / period_s + 2.0)), dtype=np.float64)
    angle = 2.0 * np.pi / period_s
    cumulated: Array = grid - amplitude * np.sin(angle * grid) / angle
    return np.interp(even, cumulated, grid)


def with_chosen_adapters(requests: Requests, adapter: AppliedAdapter | None, seed: int) -> Requests:
    """The same requests, each with one of the adapters by their popularity; those of a conversation with one.

    Args:
        adapter: of the model; the requests stay as they are without one, or with a single one.
        seed: of the choice.
    """
    if adapter is None or adapter.number == 1:
        return requests
    chosen = adapter.draw(np.random.default_rng([seed, adapter.number]), len(requests))
    if requests.after is not None:
        for index, before in enumerate(requests.after.tolist()):
            if before >= 0:
                chosen[index] = chosen[before]
    return replace(requests, adapters=chosen)
