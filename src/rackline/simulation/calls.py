"""Calls of tasks and sessions, one after another or side by side, as requests with their block hashes.

Calls are read from traces, or drawn for conversations and agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rackline.errors import require
from rackline.passes.features import Array
from rackline.simulation.requests import BlockRuns, Joins, Requests, Turns

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

        Raises:
            ValueError: a length below 0, or it waits for a call of another task.
        """
        if prompt < 0 or answer < 0:
            raise ValueError(f"a prompt of {prompt} and an answer of {answer} tokens")
        if any(self.task[one.call] != task for one in before):
            raise ValueError("it waits for a call of another task")
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
        """The calls as requests to a server.

        Args:
            name: of them.
            cap_s: longest pause between calls [s].
            skipped: malformed lines that were left out [count].
        """
        require(self.task, what="trace", given="no usable call", allowed="at least one request", where=name)
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
    hashes: dict[str, Any] = {name: getattr(requests, name) for name in ("hashes", "answer_hashes")}
    found = replace(
        requests,
        arrival_s=np.where(after < 0, 0.0, requests.arrival_s[index]),
        input_len=requests.input_len[index],
        output_len=requests.output_len[index],
        after=np.where(after < 0, -1, after + moved),
        joins=joins,
        task=owner,
        turns=turns,
        **{name: None if rows is None else rows.take(index, copy[owner]) for name, rows in hashes.items()},
        lines=None if requests.lines is None else requests.lines[index],
        priority=None,
    )
    return found.without((owner < len(cuts)) & (place < np.append(cuts, 0)[np.minimum(owner, len(cuts))]))
