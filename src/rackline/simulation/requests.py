"""The requests of a run as columns, their arrival times, and the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from math import nan
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from rackline.errors import InputError, require
from rackline.passes.features import Array

USUAL_FILL = 0.8
"""Share of the KV blocks up to which an offline class fills a replica: at it llm-d holds a pod for saturated
(llm-d/llm-d-router @ ebab6879, utilization detector, read 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLimit:
    """A limit on a latency.

    Args:
        latency: ttft_s, tpot_s or e2e_s.
        seconds: that it may take [s].
        percentile: share of the requests that must stay below it; None limits the mean [%].
    """

    latency: str
    seconds: float
    percentile: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """A class of requests.

    Args:
        name: of it.
        priority: tier, a lower one being more urgent.
        limits: on its latencies.
        offline: whether it is a backlog that fills what is idle.
        requests: of a backlog, all there at the start [requests].
        fill: share of the KV blocks of a replica that a backlog may fill [1].
    """

    name: str
    priority: int = 0
    limits: tuple[ClassLimit, ...] = ()
    offline: bool = False
    requests: int = 0
    fill: float = USUAL_FILL


class Joins(NamedTuple):
    """Further requests that must finish before some others start, besides `after`; columns, (k,) each.

    Args:
        request: that waits.
        before: that it waits for.
        pause_s: from its end [s].
    """

    request: Array
    before: Array
    pause_s: Array


class Turns(NamedTuple):
    """Tasks that are kept going: the next one begins when another has ended.

    Args:
        lanes: tasks at a time [count].
        calls: requests that end before nothing more arrives [requests].
    """

    lanes: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Requests in the order of arrival, as columns.

    Args:
        arrival_s: arrival time; for a request that follows another one, the pause after the end of that one [s], (n,).
        input_len, output_len: prompt and output lengths, at least 1 [tokens], (n,).
        priority: priority tier, a lower number being more urgent, (n,); None when all are equal.
        after: index of the request that must finish first, -1 for none, (n,); None when none follows another.
        joins: what requests wait for besides `after`; None where nothing waits for more than one.
        task: number of the task that a request belongs to, ascending from 0, (n,); None where there are no tasks.
        turns: how tasks take turns; None where they begin at their times.
        hashes: for each request, hashes of the full blocks of its prompt from the start; None when nothing is shared.
        answer_hashes: for each request, hashes of the further full blocks of prompt and answer, which its answer fills;
            None when no request begins with an answer.
        classes: class of each request, its place in `kinds`, (n,); None where there are none.
        kinds: the classes.
        adapters: low-rank adapter that each request uses, counted from 0, (n,); None for one or none.
        hash_tokens: tokens per hashed block [tokens].
        computed: prompt tokens that are cached when the request arrives; all of them to start with decoding [tokens],
            (n,). None when none are.
        name: display name.
        skipped: malformed lines of the source that were left out [count].
        lines: line of the source by request, for messages, (n,).
        process: stationary process that they are drawn from: arrivals at a constant mean rate (open), or a constant
            number of users, of whom the first to be free sends the next request (closed). None where there is none, as
            in a trace, a burst or a day: every request counts.

    Raises:
        InputError: columns differ in length, times decrease or are negative, or lengths are below 1.
    """

    arrival_s: Array
    input_len: Array
    output_len: Array
    priority: Array | None = None
    after: Array | None = None
    joins: Joins | None = None
    task: Array | None = None
    turns: Turns | None = None
    hashes: Sequence[Sequence[int]] | None = None
    answer_hashes: Sequence[Sequence[int]] | None = None
    classes: Array | None = None
    kinds: tuple[RequestClass, ...] = ()
    adapters: Array | None = None
    hash_tokens: int = 512
    computed: Array | None = None
    name: str = ""
    skipped: int = 0
    lines: Array | None = None
    process: Literal["open", "closed"] | None = None

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        require(count, what=self.name or "requests", given="none", allowed="at least one request")
        for name in (*_ARRAYS, *_OPTIONAL, *_HASHES):
            column = getattr(self, name)
            if column is not None:
                given = f"{len(column)} values"
                require(len(column) == count, what=name, given=given, allowed=f"{count}, one per request")
        self._refuse("arrival_s", ~(np.isfinite(self.arrival_s) & (self.arrival_s >= 0)), "0 or more")
        free = self.arrival_s if self.after is None else self.arrival_s[self.after < 0]
        if np.any(np.diff(free) < 0):
            bad = int(np.argmax(np.diff(free) < 0)) + 1
            raise InputError(
                what="arrival_s", given=float(free[bad]), allowed=f"at least {free[bad - 1]:g}, the one before it",
                where=self.where(bad),
            )  # fmt: skip
        self._refuse("input_len", self.input_len < 1, "at least 1")
        self._refuse("output_len", self.output_len < 1, "at least 1")
        if self.computed is not None:
            self._refuse("computed", (self.computed < 0) | (self.computed > self.input_len), "0 up to the prompt")
        if self.after is not None:
            self._refuse("after", self.after >= np.arange(count), "an earlier request")
        require(
            self.joins is None or not np.any(self.joins.before >= self.joins.request),
            what="joins",
            given="a later request",
            allowed="earlier requests",
        )

    def _refuse(self, name: str, bad: Array, allowed: str) -> None:
        """Raise an error about the first value of a column that is bad."""
        if np.any(bad):
            place = int(np.argmax(bad))
            given = np.asarray(getattr(self, name))[place].item()
            raise InputError(what=name, given=given, allowed=allowed, where=self.where(place))

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def offline(self) -> Array | None:
        """Mask of the requests of offline classes, (n,); None without any."""
        if self.classes is None or not any(one.offline for one in self.kinds):
            return None
        return np.array([one.offline for one in self.kinds])[self.classes]

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate [requests/s]; infinite when all arrive at once."""
        last = float(np.max(self.arrival_s))
        return (len(self) - 1) / last if last > 0 else float("inf")

    def scaled(self, factor: float) -> Requests:
        """The same requests at `factor` times the arrival rate.

        Raises:
            InputError: the factor is not above 0.
        """
        require(factor > 0, what="rate scale", given=factor, allowed="above 0", nearest="1")
        return replace(self, arrival_s=self.arrival_s / factor)

    def where(self, index: int) -> str:
        """Where a request comes from: the name of the source and the line, for messages."""
        line = "" if self.lines is None else f", line {int(self.lines[index])}"
        return f"{self.name or 'requests'}{line or f', request {index}'}"

    def pick(self, keep: Array) -> Requests:
        """A selection of the requests; none may follow one that is left out.

        Args:
            keep: mask of the requests to keep, (n,).
        """

        names = [name for name in (*_ARRAYS, *_OPTIONAL) if getattr(self, name) is not None]
        found: dict[str, Any] = {name: getattr(self, name)[keep] for name in names}
        for name in _HASHES:
            rows: Sequence[Sequence[int]] | None = getattr(self, name)
            if isinstance(rows, BlockHashes):
                found[name] = rows.pick(keep)
            elif isinstance(rows, BlockRuns):
                found[name] = rows.take(np.flatnonzero(keep))
            else:
                found[name] = None if rows is None else list(compress(rows, keep))
        place = np.cumsum(keep) - 1
        if self.after is not None:
            found["after"] = np.where(found["after"] < 0, -1, place[found["after"]])
        if self.joins is not None:
            mine = keep[self.joins.request]
            request, before = place[self.joins.request[mine]], place[self.joins.before[mine]]
            found["joins"] = Joins(request, before, self.joins.pause_s[mine])
        if self.task is not None:
            found["task"] = np.unique(self.task[keep], return_inverse=True)[1]
        return replace(self, **found)

    def waits(self) -> list[tuple[int, int, float]]:
        """(request, one that must end first, pause from its end [s]): first those of `after`, then those of `joins`."""
        links = [] if self.joins is None else [self.joins]
        if self.after is not None:
            mine = np.flatnonzero(self.after >= 0)
            links.insert(0, Joins(mine, self.after[mine], self.arrival_s[mine]))
        return [row for some in links for row in zip(*(column.tolist() for column in some), strict=True)]

    def without(self, gone: Array) -> Requests:
        """The others, of which those that waited for one that is left out wait for it no more.

        Args:
            gone: mask of the requests to leave out, (n,).
        """
        after, times, joins = self.after, self.arrival_s, self.joins
        if joins is not None:
            mine = ~gone[joins.before]
            joins = Joins(joins.request[mine], joins.before[mine], joins.pause_s[mine])
        if after is not None:
            lost = (after >= 0) & gone[after]
            after, times = np.where(lost, -1, after), np.where(lost, 0.0, times)
            if joins is not None:  # one that it joins takes the place, and is waited for twice
                held = lost[joins.request]
                after[joins.request[held]], times[joins.request[held]] = joins.before[held], joins.pause_s[held]
        return replace(self, after=after, arrival_s=times, joins=joins).pick(~gone)

    def first(self, count: int) -> Requests:
        """The first `count` requests; of tasks, the first whole ones, at least one."""
        if count >= len(self):
            return self
        if self.task is not None:
            ends: Array = np.searchsorted(self.task, self.task, side="left")  # first call of each one's task
            count = max(int(ends[count]), int(np.sum(self.task == 0)))
        return self.pick(np.arange(len(self)) < count)


_ARRAYS = ("arrival_s", "input_len", "output_len")
_OPTIONAL = ("priority", "after", "task", "classes", "adapters", "computed", "lines")
_HASHES = ("hashes", "answer_hashes")


class RequestLog:
    """Lengths [tokens], times [s] and counts by request; times are NaN until they are known."""

    __slots__ = (
        "adapter_loads",
        "adapters",
        "admitted_s",
        "answer_hashes",
        "arrival_s",
        "cached",
        "computed",
        "engine_s",
        "finish_s",
        "first_s",
        "generated",
        "hashes",
        "input_len",
        "last_s",
        "output_len",
        "preempted",
        "priority",
        "ready",
        "tier_tokens",
    )

    def __init__(self, requests: Requests, num_tiers: int = 0) -> None:
        count = len(requests)
        self.input_len: list[int] = requests.input_len.tolist()
        self.output_len: list[int] = requests.output_len.tolist()
        self.priority: list[int] | None = None if requests.priority is None else requests.priority.tolist()
        self.hashes: Sequence[Sequence[int]] | None = requests.hashes
        self.answer_hashes: Sequence[Sequence[int]] | None = requests.answer_hashes
        self.adapters: list[int] | None = None if requests.adapters is None else requests.adapters.tolist()
        self.adapter_loads = 0  # transfers of adapters from the host
        self.arrival_s = [nan] * count
        self.engine_s = [nan] * count  # when the scheduler sees it
        self.admitted_s = [nan] * count
        self.first_s = [nan] * count
        self.finish_s = [nan] * count
        self.last_s: dict[int, float] = {}  # last token of a preempted request
        self.generated: dict[int, int] = {}  # output tokens before it was preempted or handed over
        self.ready: set[int] = set()  # requests whose prompt was computed elsewhere
        self.computed: list[int] | None = None  # prompt tokens that are cached on arrival
        if requests.computed is not None:
            self.computed = requests.computed.tolist()
            self.ready.update(np.flatnonzero(requests.computed >= requests.input_len).tolist())
        self.preempted = [0] * count
        self.cached = [0] * count  # prompt tokens found in a cache
        self.tier_tokens = [0] * (1 + num_tiers)

    def make_ready(self, requests: Array) -> None:
        """The prompts of these requests have been computed elsewhere."""
        self.ready.update(requests.tolist())

    def forget(self, requests: Array) -> None:
        """These requests, whose replica has failed, are as new."""
        for one in requests.tolist():
            self.admitted_s[one] = self.first_s[one] = nan
            self.last_s.pop(one, None)
            self.generated.pop(one, None)
            self.ready.discard(one)


class BlockHashes(Sequence[Sequence[int]]):
    """For each request, the hashes of its prompt's full blocks, 8 bytes per hash.

    Args:
        flat: hashes of all requests, concatenated, int64, (sum of blocks,).
        ends: end of each request's hashes in `flat`, (requests,).

    Example:
        >>> hashes = BlockHashes.of([[7, 8], [], [7]])
        >>> len(hashes), hashes[0], hashes[-1]
        (3, [7, 8], [7])
    """

    __slots__ = ("_ends", "_flat")

    def __init__(self, flat: Array, ends: Array) -> None:
        self._flat = flat
        self._ends = ends

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> BlockHashes:
        """Pack rows of hashes.

        Raises:
            TypeError: a hash is not an integer.
            OverflowError: a hash does not fit into 64 bits.
        """
        kept = list(rows)
        flat = list(chain.from_iterable(kept))
        if not all(kind is int for kind in set(map(type, flat))):
            raise TypeError("hashes that are not whole numbers")
        ends = np.cumsum(np.fromiter(map(len, kept), dtype=np.int64, count=len(kept)))
        return cls(np.array(flat, dtype=np.int64), ends)

    @classmethod
    def joined(cls, parts: Sequence[BlockHashes]) -> BlockHashes:
        """All parts, concatenated."""
        starts = np.cumsum([0, *(len(part._flat) for part in parts)])
        ends = [part._ends + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part._flat for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        """Number of requests."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        """Hashes of one request or of several."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        start = int(self._ends[place - 1]) if place else 0
        return self._flat[start : int(self._ends[place])].tolist()

    def pick(self, keep: Array) -> BlockHashes:
        """The hashes of selected requests.

        Args:
            keep: mask of the requests to keep, (requests,).
        """
        lengths = np.diff(self._ends, prepend=0)
        return BlockHashes(self._flat[np.repeat(keep, lengths)], np.cumsum(lengths[keep]))


class BlockRuns(Sequence[Any]):
    """The same for blocks whose hashes are consecutive numbers, as runs of them; a row is an array.

    Args:
        first, length: first number and length of each run of all requests, concatenated, (runs,).
        ends: end of each request's runs, (requests,).

    Example:
        >>> runs = BlockRuns(np.array([0, 7]), np.array([2, 3]), np.array([2]))
        >>> runs[0].tolist(), runs.size
        ([0, 1, 7, 8, 9], 10)
    """

    __slots__ = ("ends", "first", "length")

    def __init__(self, first: Array, length: Array, ends: Array) -> None:
        self.first, self.length, self.ends = first, length, ends

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> BlockRuns:
        """Runs of any rows."""
        flat = np.array(list(chain.from_iterable(rows)), dtype=np.int64)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        begins = np.diff(flat, prepend=-1) != 1
        begins[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        places = np.flatnonzero(begins)
        return cls(flat[places], np.diff(places, append=len(flat)), np.searchsorted(places, np.cumsum(lengths)))

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        """Blocks of one request."""
        start = self.ends[index - 1] if index else 0
        runs = slice(start, self.ends[index])
        pairs: Any = zip(self.first[runs].tolist(), self.length[runs].tolist(), strict=True)
        parts: list[Array] = [np.arange(one, one + more) for one, more in pairs]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def runs(self) -> Iterator[list[tuple[int, int]]]:
        """The runs of each request, each from its first block number up to, not including, the second."""
        pairs = list(zip(self.first.tolist(), (self.first + self.length).tolist(), strict=True))
        ends: list[int] = self.ends.tolist()
        return (pairs[start:end] for start, end in zip([0, *ends], ends, strict=False))

    @property
    def size(self) -> int:
        """One more than the highest number [count]."""
        return int((self.first + self.length).max(initial=0))

    def take(self, index: Array, apart: Array | None = None) -> BlockRuns:
        """The blocks of selected requests.

        Args:
            index: requests, (k,).
            apart: by how many times all numbers those of each are shifted; None for none, (k,).
        """
        lengths = np.diff(self.ends, prepend=0)
        count = lengths[index]
        ends = np.cumsum(count)
        which = np.arange(int(count.sum())) + np.repeat((self.ends - lengths)[index] - ends + count, count)
        shift = 0 if apart is None else np.repeat(apart * self.size, count)
        return BlockRuns(self.first[which] + shift, self.length[which], ends)
