"""Requests that wait for others, and tasks of several of them: which comes when, and what tasks took over a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, nan
from typing import TypedDict

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.metrics import Result
from rackline.simulation.requests import Requests
from rackline.simulation.reuse import unlimited_hit_share
from rackline.simulation.statistics import Spread, percentiles


class Flow:
    """The arrivals of a run, as its requests end.

    A request waits for the one that it follows and for all that it joins, each with its pause. Users of a closed loop
    take the next request of all. Where tasks take turns, one begins when another has ended, so that their number stays;
    once enough requests have ended, or no further task is left, nothing more arrives.

    Args:
        requests: of the run.
    """

    def __init__(self, requests: Requests) -> None:
        self.times: list[float] = requests.arrival_s.tolist()
        before: list[int] = [-1] * len(self.times) if requests.after is None else requests.after.tolist()
        self._followers: dict[int, list[tuple[int, float]]] = {}
        number = Counter[int]()  # of those that a request waits for
        for index, one, pause_s in requests.waits():
            self._followers.setdefault(one, []).append((index, pause_s))
            number[index] += 1
        self._missing = {index: several for index, several in number.items() if several > 1}
        self._ready_s: dict[int, float] = {}
        # a user who is free sends the next request of all, so that no user runs out of them before the others
        rest = sorted(index for index, one in enumerate(before) if one >= 0) if requests.process == "closed" else []
        self._rest: Iterator[int] | None = iter(rest) if requests.process == "closed" else None
        self._free = [index for index, one in enumerate(before) if one < 0]
        self._task: list[int] = []
        self._roots: list[list[int]] = []
        self._begun = self._ended = 0
        self._turns = requests.turns if requests.task is not None else None
        if self._turns is not None and requests.task is not None:
            self._task = requests.task.tolist()
            self._left = np.bincount(requests.task).tolist()
            self._roots = [[] for _ in self._left]
            for index in self._free:
                self._roots[self._task[index]].append(index)
            self._begun = min(self._turns.lanes, len(self._roots))

    @property
    def goes_on(self) -> bool:
        """Whether any request waits for others."""
        return bool(self._followers) or self._turns is not None

    def first(self) -> Sequence[tuple[int, float]]:
        """(request, time [s]) of those that wait for no other."""
        if self._turns is None:
            return [(index, self.times[index]) for index in self._free]
        return [one for task in range(self._begun) for one in self._task_from(task, 0.0)]

    def _task_from(self, task: int, time_s: float) -> list[tuple[int, float]]:
        start = min(self.times[index] for index in self._roots[task])
        return [(index, time_s + self.times[index] - start) for index in self._roots[task]]

    def after(self, request: int, end_s: float) -> Sequence[tuple[int, float]]:
        """(request, time [s]) of those that come because one has ended."""
        if self._rest is not None:
            return [(index, end_s + self.times[index]) for index in islice(self._rest, 1)]
        found: list[tuple[int, float]] = []
        for index, pause_s in self._followers.get(request, ()):
            time_s = end_s + pause_s
            if index in self._missing:
                time_s = self._ready_s[index] = max(time_s, self._ready_s.get(index, 0.0))
                self._missing[index] -= 1
                if self._missing[index]:
                    continue
            found.append((index, time_s))
        if self._turns is None:
            return found
        self._ended += 1
        task = self._task[request]
        self._left[task] -= 1
        if not self._left[task]:
            self._begun += 1
            if self._begun <= len(self._roots):
                found += self._task_from(self._begun - 1, end_s)
        return [] if self._ended >= self._turns.calls or self._begun > len(self._roots) else found


class TokensPerTask(TypedDict):
    """Mean tokens of a task [tokens]: computed prompts, prompts found in a cache, answers."""

    fresh: float
    cached: float
    generated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """Tasks of a run, in the time in which all lanes were busy, or over the whole of it without lanes.

    Args:
        seconds: that time [s].
        calls: that ended in it [requests].
        tasks: that they are worth: each call counts as its share of the calls of its task [tasks].
        task_s: time from the first call of a task to the end of the last; those that were cut short count as lasting
            at least as long as they were seen; infinite where too few tasks ended [s].
        tokens: per task.
        hit_share, unlimited_hit_share: share of prompt tokens found in a cache, and in an unlimited one [1].
        ttft_s, call_s: median time to the first token, median time of a call [s].
        context_tokens: mean prompt [tokens].
        output_tokens_per_s: of all calls [tokens/s].
        tokens_per_s: of prompts and answers [tokens/s].
    """

    seconds: float
    calls: int
    tasks: float
    task_s: Spread
    tokens: TokensPerTask
    hit_share: float
    unlimited_hit_share: float
    ttft_s: float
    call_s: float
    context_tokens: float
    output_tokens_per_s: float
    tokens_per_s: float

    def usd_per_task(self, usd_per_s: float) -> float:
        """Rent of all chips over the tasks that they did, rent · seconds / tasks [USD].

        Args:
            usd_per_s: rent [USD/s].
        """
        return usd_per_s * self.seconds / self.tasks if self.tasks else inf


def task_statistics(result: Result) -> TaskStatistics:
    """Statistics of a run of tasks.

    Args:
        result: of requests that belong to tasks.
    """
    requests = result.requests
    task = np.zeros(len(requests), dtype=np.int64) if requests.task is None else requests.task
    sizes = np.bincount(task)
    start, end, whole = _spans(result, task, len(sizes))
    begin_s, end_s = _window(result, task)
    mine = (result.finish_s >= begin_s) & (result.finish_s <= end_s)
    share = float((mine / sizes[task]).sum())
    given, cached = requests.input_len[mine], result.cached_tokens[mine]
    made = float(requests.output_len[mine].sum())
    seconds = end_s - begin_s
    turns = requests.turns
    first = 0 if turns is None else turns.lanes  # tasks that had begun before the run
    known = np.flatnonzero(np.isfinite(start) & (np.arange(len(sizes)) >= first))
    seen_s = np.where(whole[known], end[known], end_s) - start[known]
    times = survival_percentiles(np.maximum(seen_s, 0.0), whole[known] & (end[known] <= end_s))
    mean_s = float(seen_s.mean()) if len(known) and whole[known].all() else nan
    if turns is not None:  # Little's law
        mean_s = turns.lanes * seconds / share if share else inf
    total = float(given.sum())
    return TaskStatistics(
        seconds=seconds,
        calls=int(mine.sum()),
        tasks=share,
        task_s={"mean": mean_s, "p50": times[0], "p90": times[1], "p99": times[2]},
        tokens={
            "fresh": _per(total - float(cached.sum()), share), "cached": _per(float(cached.sum()), share),
            "generated": _per(made, share),
        },
        hit_share=_per(float(cached.sum()), total),
        unlimited_hit_share=unlimited_hit_share(requests) or 0.0,
        ttft_s=percentiles(result.ttft_s[mine])["p50"],
        call_s=percentiles(result.e2e_s[mine])["p50"],
        context_tokens=float(given.mean()) if len(given) else nan,
        output_tokens_per_s=_per(made, seconds),
        tokens_per_s=_per(total + made, seconds),
    )  # fmt: skip


def _spans(result: Result, task: Array, count: int) -> tuple[Array, Array, Array]:
    """(start [s], end of the last call [s], whether all calls ended) by task; not finite where none came."""
    start, end = np.full(count, inf), np.full(count, -inf)
    came = np.isfinite(result.arrival_s)
    np.minimum.at(start, task[came], result.arrival_s[came])
    done = result.finished
    np.maximum.at(end, task[done], result.finish_s[done])
    return start, end, np.bincount(task[done], minlength=count) == np.bincount(task, minlength=count)


def _window(result: Result, task: Array) -> tuple[float, float]:
    """The time in which all lanes were busy with caches that had been filled [s]."""
    turns, done = result.requests.turns, np.sort(result.finish_s[result.finished])
    begin_s = float(np.nanmin(result.arrival_s))
    if turns is None or not len(done):
        return begin_s, float(done[-1]) if len(done) else begin_s
    over_s = float(done[min(turns.calls, len(done)) - 1])
    first_s, ended = np.full(int(task.max()) + 1, inf), result.finished
    np.minimum.at(first_s, task[ended], result.finish_s[ended])
    first_s = first_s[: turns.lanes]
    filled_s = float(first_s[first_s < inf].max(initial=begin_s))
    return (filled_s if filled_s < 0.5 * (begin_s + over_s) else begin_s), over_s


def survival_percentiles(
    seconds: Array, ended: Array, percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)
) -> list[float]:
    """Percentiles of times of which some are only known to be longer.

    S(t) = prod over times t_i ≤ t of (1 − ended_i / at risk_i); a percentile is the first time with S ≤ 1 − p / 100.

    Args:
        seconds: times, or for how long they were seen [s], (n,).
        ended: whether they ended then, (n,).
        percentiles: to find.

    Returns:
        The times; infinite beyond the longest that ended [s].

    Sources: Kaplan and Meier 1958 (J. Amer. Statist. Assoc. 53, 457).

    >>> survival_percentiles(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, True]), (50.0, 90.0))
    [2.0, 4.0]
    """
    order = np.lexsort((~ended, seconds))
    times, events = seconds[order], ended[order]
    survives = np.cumprod(1.0 - events / np.arange(len(times), 0, -1))
    found: list[float] = []
    for percentile in percentiles:
        reached = np.flatnonzero((survives <= 1.0 - percentile / 100.0 + 1e-12) & events)
        found.append(float(times[reached[0]]) if len(reached) else inf)
    return found


def _per(amount: float, base: float) -> float:
    return amount / base if base else nan
