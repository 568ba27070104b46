"""Sessions of agents, drawn from a few published statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from rackline.errors import require
from rackline.passes.features import Array
from rackline.simulation.calls import Before, Calls
from rackline.simulation.requests import Requests
from rackline.simulation.workloads import LOGNORMAL_SIGMA

MOST_CALLS = 10**9
_BATCH = 4096  # steps that are drawn at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewed:
    """A log-normal quantity.

    Args:
        median, mean: of it; equal for a constant.
    """

    median: float
    mean: float

    def __post_init__(self) -> None:
        require(
            0.0 < self.median <= self.mean or self.median == self.mean == 0.0,
            what="median",
            given=self.median,
            allowed=f"above 0, up to the mean {self.mean:g}",
        )

    @classmethod
    def of_percentiles(cls, p50: float, p90: float) -> Skewed:
        """The distribution with this median and 90th percentile: ln x is normal, and p90 lies 1.2816 deviations above.

        >>> round(Skewed.of_percentiles(1.0, exp(1.2816)).mean, 4)
        1.6487
        """
        return cls(median=p50, mean=p50 * exp(0.5 * (log(p90 / p50) / 1.2816) ** 2))

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Values, (count,)."""
        if self.mean == self.median:
            return np.full(count, self.mean)
        return rng.lognormal(log(self.median), sqrt(2.0 * log(self.mean / self.median)), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProfile:
    """How the sessions of an agent go on.

    A step is one call. It adds a tool's result or the user's message to the context, and its answer. Some steps start
    subagents side by side, each with a context of its own; the next step waits for all of them. A context that would
    grow beyond the longest is compacted to its beginning.

    Args:
        name: short name.
        steps: of a session, without those of subagents [count].
        user_share: share of the steps that follow the user, the others follow a tool [1].
        system_tokens: system prompt and tools, shared by all sessions and subagents [tokens].
        added: what a step adds to the context beside its answer [tokens].
        answer: of a step [tokens].
        tool_s: time of a tool [s].
        human_s: pause before the user goes on [s].
        max_tokens: longest context before it is compacted [tokens].
        spawn_share: share of the steps that start subagents [1].
        fan_out: subagents side by side [count].
        child_steps: mean steps of each, geometrically distributed [count].
    """

    name: str
    steps: Skewed
    user_share: float
    system_tokens: int
    added: Skewed
    answer: Skewed
    tool_s: Skewed
    human_s: Skewed
    max_tokens: int
    spawn_share: float
    fan_out: int
    child_steps: float

    def draw(self, rng: np.random.Generator, count: int, *, cap_s: float = np.inf) -> Requests:
        """Sessions of `count` calls or somewhat more, one after another.

        Args:
            count: calls of all sessions together, at least [requests].
            cap_s: longest pause [s].
        """
        calls, steps_of, paths = Calls(shared_tokens=self.system_tokens), _steps(self, rng), iter(range(MOST_CALLS))
        task = 0
        while len(calls.task) < count:
            self._chain(calls, task, steps_of, paths, max(round(float(self.steps.draw(rng, 1)[0])), 1), ())
            task += 1
        return calls.requests(f"{self.name} agents", cap_s=cap_s)

    def _chain(
        self, calls: Calls, task: int, steps_of: Iterator[_Step], paths: Iterator[int], steps: int,
        before: Sequence[Before],
    ) -> int:  # fmt: skip
        """Calls of one context after another; returns the last. One that waits for a call is a subagent's."""
        child, context, path, call = bool(before), self.system_tokens, next(paths), -1
        for _ in range(steps):
            step = next(steps_of)
            added = min(step.added, self.max_tokens - self.system_tokens - step.answer)
            if context + added + step.answer > self.max_tokens:
                context, path = self.system_tokens, next(paths)
            context += added
            call = calls.add(task, context, step.answer, path=path, before=before)
            context += step.answer
            before = (Before(call, step.tool_s if child else step.pause_s),)
            if step.spawns and not child:
                forks = [
                    self._chain(calls, task, steps_of, paths, step.child_steps, (Before(call, 0.0),))
                    for _ in range(self.fan_out)
                ]
                before = tuple(Before(fork, 0.0) for fork in forks)
        return call


class _Step(NamedTuple):
    """What is drawn for a step: tokens, the pause after it, that of a tool, and subagents that it may start."""

    added: int
    answer: int
    pause_s: float
    tool_s: float
    spawns: bool
    child_steps: int


def _steps(profile: AgentProfile, rng: np.random.Generator) -> Iterator[_Step]:
    """Steps, as many as are wanted, drawn many at a time."""
    while True:
        tool_s = profile.tool_s.draw(rng, _BATCH)
        human = rng.random(_BATCH) < profile.user_share
        columns = (
            np.maximum(np.rint(profile.added.draw(rng, _BATCH)), 1).astype(int),
            np.maximum(np.rint(profile.answer.draw(rng, _BATCH)), 1).astype(int),
            np.where(human, profile.human_s.draw(rng, _BATCH), tool_s),
            tool_s,
            rng.random(_BATCH) < profile.spawn_share,
            rng.geometric(1.0 / profile.child_steps, _BATCH),
        )
        for row in zip(*(column.tolist() for column in columns), strict=True):
            yield _Step(*row)


# TraceLab: 357,161 steps of 4,265 sessions of Claude Code and Codex (arXiv:2606.30560; uw-syfi/TraceLab@0b8a262b
# artifacts/*/README.md, read 2026-11-25). Steps of a session: median 15 + 1, mean 73.6 + 8.9, of which 8.9 follow the
# user. A growing step adds 1,750 tokens, less its answer; the median of that is 251. Tools: median 0.3 s, mean 16.8 s.
# People: p50 1.4 min, p90 20.6 min. An answer: mean 523 tokens, with the spread of public traces (`LOGNORMAL_SIGMA`).
# System prompt and tools of main agents and subagents alike: hpfreilabs.com/blog/anatomy-of-claude-code-session.
# The longest context is derived: with it the mean prompt of a main agent is TraceLab's, 154,000 tokens.
# Subagents: of the 99,000 calls of 393 traces of AgentX 062126, main agents have 57,000 (aiperf
# semianalysis-agentx-faq.md), 145 a trace; 615 subagents of corpus 060826 hide 3,100 contexts (aiperf weka-trace.md),
# about 5 each, and a corpus of that month has 183 traces: 3.4 times 5 contexts of 6.2 steps a trace.
CODING = AgentProfile(
    name="coding",
    steps=Skewed(median=16.0, mean=82.5),
    user_share=8.9 / 82.5,
    system_tokens=19_000,
    added=Skewed(median=251.0, mean=1_750.0 - 523.0),
    answer=Skewed(median=523.0 * exp(-0.5 * LOGNORMAL_SIGMA**2), mean=523.0),
    tool_s=Skewed(median=0.3, mean=16.8),
    human_s=Skewed.of_percentiles(84.0, 1236.0),
    max_tokens=367_000,
    spawn_share=615.0 / 183.0 / 145.0,
    fan_out=5,
    child_steps=6.2,
)
# AgentX's traces: 145 steps of a main agent, contexts up to the million tokens of their models.
AGENTX = replace(CODING, name="agentx", steps=Skewed(median=145.0 * 16.0 / 82.5, mean=145.0), max_tokens=1_048_576)
PROFILES = {one.name: one for one in (CODING, AGENTX)}
