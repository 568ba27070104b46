"""Calls of tasks, one after another or side by side, as requests with their block hashes; sessions of agents as such.

Calls are read from traces or drawn from a few published statistics of agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.simulation.requests import BlockRuns, Joins, Requests, Turns
from rackline.simulation.workloads import LOGNORMAL_SIGMA

HASH_TOKENS = 64  # of the blocks of tasks without hashes of their own, as in the AgentX corpus (aiperf weka-trace.md)


class Before(NamedTuple):
    """A call that must end first, and the pause from its end [s]."""

    call: int
    pause_s: float


@dataclass(slots=True, kw_only=True)
class Calls:
    """Calls as they are read or drawn; each may wait for earlier ones of its task.

    The prompt of a call repeats the beginning of its path: a path is a context that only grows, such as that of an
    agent until it is compacted. Calls with block ids of their own need none.

    Args:
        shared_tokens: beginning that all paths have in common [tokens].
        hash_tokens: tokens of a block [tokens].
        task, input_len, output_len, path, line: by call.
        start_s: for a call that waits for none, when it comes [s]; else 0.
        before: calls that it waits for.
        blocks: ids of the blocks of its prompt, of its task or of all; None where they follow from its path.
    """

    shared_tokens: int = 0
    hash_tokens: int = HASH_TOKENS
    task: list[int] = field(default_factory=list[int])
    input_len: list[int] = field(default_factory=list[int])
    output_len: list[int] = field(default_factory=list[int])
    path: list[int] = field(default_factory=list[int])
    line: list[int] = field(default_factory=list[int])
    start_s: list[float] = field(default_factory=list[float])
    before: list[tuple[Before, ...]] = field(default_factory=list[tuple[Before, ...]])
    blocks: list[Sequence[object] | None] = field(default_factory=list[Sequence[object] | None])

    def add(
        self, task: int, prompt: int, answer: int, *, path: int = 0, before: Sequence[Before] = (),
        start_s: float = 0.0, blocks: Sequence[object] | None = None, line: int = 0,
    ) -> int:  # fmt: skip
        """Add a call; returns its number.

        Args:
            prompt, answer: lengths [tokens].
            path, before, start_s, blocks, line: as above.
        """
        self.task.append(task)
        self.input_len.append(max(prompt, 1))
        self.output_len.append(max(answer, 1))
        self.path.append(path)
        self.line.append(line)
        self.start_s.append(start_s)
        self.before.append(tuple(before))
        self.blocks.append(blocks)
        return len(self.task) - 1

    def requests(self, name: str, *, cap_s: float = np.inf, skipped: int = 0) -> Requests:
        """As requests.

        Args:
            name: of them.
            cap_s: longest pause between calls [s].
            skipped: malformed lines that were left out [count].
        """
        if not self.task:
            raise InputError(what="trace", given="no usable call", allowed="at least one request", where=name)
        first = [one[0] if one else Before(-1, start) for one, start in zip(self.before, self.start_s, strict=True)]
        joins = [(index, *one) for index, some in enumerate(self.before) for one in some[1:]]
        after = np.array([one.call for one in first], dtype=np.int64)
        pauses = np.array([one.pause_s for one in first])
        table = np.array(joins, dtype=float).reshape(-1, 3)
        hashes, answers = self._explicit() if self.blocks[0] is not None else self._of_paths()
        return Requests(
            arrival_s=np.where(after < 0, pauses, np.minimum(pauses, cap_s)),
            input_len=np.array(self.input_len),
            output_len=np.array(self.output_len),
            after=after,
            joins=Joins(table[:, 0].astype(int), table[:, 1].astype(int), np.minimum(table[:, 2], cap_s))
            if joins
            else None,
            task=np.array(self.task),
            hashes=hashes,
            answer_hashes=answers,
            hash_tokens=self.hash_tokens,
            name=name,
            skipped=skipped,
            lines=np.array(self.line) if any(self.line) else None,
        )

    def _of_paths(self) -> tuple[BlockRuns, BlockRuns]:
        """Blocks of prompts and answers: those that all share, then those of the path, numbered from its own start."""
        unit = self.hash_tokens
        path, prompt = np.array(self.path), np.array(self.input_len)
        whole = prompt + np.array(self.output_len)
        own = max(self.shared_tokens // unit, 0)
        sizes = np.zeros(int(path.max()) + 1, dtype=np.int64)
        np.maximum.at(sizes, path, np.maximum(whole // unit - own, 0))
        base = (own + np.cumsum(sizes) - sizes)[path]
        full = prompt // unit
        shared, mine = np.minimum(full, own), np.maximum(full - own, 0)
        kept = (whole - 1) // unit  # the last token of an answer is not in the cache yet
        first = np.stack([np.zeros_like(base), base], axis=1).ravel()
        count = np.stack([shared, mine], axis=1).ravel()
        ends = np.arange(2, 2 * len(path) + 2, 2)
        answers = BlockRuns(base + mine, np.maximum(kept - own, 0) - mine, np.arange(1, len(path) + 1))
        return BlockRuns(first, count, ends), answers

    def _explicit(self) -> tuple[BlockRuns, BlockRuns]:
        """Blocks as they were recorded, numbered anew; an answer fills those by which the next prompt goes on."""
        unit = self.hash_tokens
        numbers: dict[object, int] = {}
        rows: list[list[int]] = []
        for given in self.blocks:
            row = [numbers.setdefault(block, len(numbers)) for block in given or ()]
            whole = len(row) == len(set(row))  # a chain of hashes does not repeat one
            rows.append(row if whole else row[: next(i for i in range(len(row)) if row[i] in row[:i])])
        answers: list[list[int]] = [[] for _ in rows]
        for index, some in enumerate(self.before):
            for call, _ in some:
                full = self.input_len[call] // unit
                if rows[index][:full] == rows[call][:full] and not answers[call]:
                    answers[call] = rows[index][full : (self.input_len[call] + self.output_len[call] - 1) // unit]
        return BlockRuns.of(rows), BlockRuns.of(answers)


def as_tasks(requests: Requests, cap_s: float = np.inf) -> Requests:
    """Sessions, each of whose requests follows the one before, as tasks.

    Args:
        cap_s: longest pause [s].
    """
    after = np.full(len(requests), -1) if requests.after is None else requests.after
    return replace(
        requests,
        arrival_s=np.where(after < 0, requests.arrival_s, np.minimum(requests.arrival_s, cap_s)),
        task=np.cumsum(after < 0) - 1,
        process=None,
        **_runs(requests),
    )


def _runs(requests: Requests) -> dict[str, Any]:
    """Blocks of prompts and of answers, as runs."""
    rows = {name: getattr(requests, name) for name in ("hashes", "answer_hashes")}
    return {
        name: some if some is None or isinstance(some, BlockRuns) else BlockRuns.of(some) for name, some in rows.items()
    }


def in_turns(requests: Requests, lanes: int, calls: int, rng: np.random.Generator) -> Requests:
    """The same tasks, a number of them kept going, from a moment at which it has been going for long.

    Tasks in progress at a moment are not like all tasks: one is met in proportion to its calls, and anywhere within.
    So each of the first is that of a call drawn from all, and begins with it. Tasks are repeated, with blocks of their
    own, where they do not suffice.

    Args:
        requests: that belong to tasks.
        lanes: tasks at a time [count].
        calls: after which nothing more arrives [requests].
        rng: of the first tasks.

    Sources: the inspection paradox, such as Ross, Introduction to Probability Models, 7.7. AgentX begins 25 to 75 %
    into each of its traces for the same reason (aiperf semianalysis-agentx-faq.md).
    """
    sizes = np.bincount(requests.task if requests.task is not None else [])
    starts = np.cumsum(sizes) - sizes
    copies = -(-lanes // len(sizes))
    drawn = rng.permutation(np.repeat(np.arange(len(requests)), copies))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order: list[tuple[int, int]] = []  # (task, copy)
    cuts: list[int] = []
    taken = [0] * len(sizes)  # copies of each task
    for call in drawn.tolist():
        task = int(owner[call])
        if taken[task] < copies:
            order.append((task, taken[task]))
            taken[task] += 1
            cuts.append(call - int(starts[task]))
        if len(order) == lanes:
            break
    there = set(order)
    needed, copy = calls - int(sum(sizes[task] for task, _ in order)) + sum(cuts), 0
    while needed > -int(sizes.sum()):
        more = [(task, copy) for task in range(len(sizes)) if (task, copy) not in there]
        order += more
        needed -= int(sum(sizes[task] for task, _ in more))
        copy += 1
    return _repeated(requests, np.array(order), starts, sizes, np.array(cuts), Turns(lanes, calls))


def _repeated(requests: Requests, order: Array, starts: Array, sizes: Array, cuts: Array, turns: Turns) -> Requests:
    """Tasks in an order, the first of them without their first calls.

    Args:
        order: (task, copy), (m, 2).
        starts, sizes: first call and number of calls by task.
        cuts: calls that the first tasks have behind them.
        turns: how they take turns.
    """
    task, copy = order.T
    length = sizes[task]
    first = np.cumsum(length) - length
    owner = np.repeat(np.arange(len(task)), length)
    place = np.arange(int(length.sum())) - first[owner]
    index = starts[task][owner] + place
    moved = first[owner] - starts[task][owner]
    joins = None
    if requests.joins is not None:
        at = np.argsort(requests.joins.request, kind="stable")
        request, before, pause_s = requests.joins.request[at], requests.joins.before[at], requests.joins.pause_s[at]
        left, right = np.searchsorted(request, index), np.searchsorted(request, index, side="right")
        rows = np.repeat(np.arange(len(index)), right - left)
        which = np.arange(len(rows)) - np.repeat(np.cumsum(right - left) - (right - left), right - left) + left[rows]
        joins = Joins(rows, before[which] + moved[rows], pause_s[which])
    after = np.full(len(index), -1) if requests.after is None else requests.after[index]
    found = replace(
        requests,
        arrival_s=np.where(after < 0, 0.0, requests.arrival_s[index]),
        input_len=requests.input_len[index],
        output_len=requests.output_len[index],
        after=np.where(after < 0, -1, after + moved),
        joins=joins,
        task=owner,
        turns=turns,
        **{name: None if rows is None else rows.take(index, copy[owner]) for name, rows in _runs(requests).items()},
        lines=None if requests.lines is None else requests.lines[index],
        priority=None,
    )
    return found.without((owner < len(cuts)) & (place < np.append(cuts, 0)[np.minimum(owner, len(cuts))]))


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
        if not 0.0 <= self.median <= self.mean or (self.median == 0.0 < self.mean):
            raise InputError(what="median", given=self.median, allowed=f"above 0, up to the mean {self.mean:g}")

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
