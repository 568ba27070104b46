"""Sessions: conversations and agents, whose prompts repeat all that was said before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.simulation.arrivals import gamma
from rackline.simulation.requests import Requests
from rackline.simulation.workloads import AnyLengths

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
