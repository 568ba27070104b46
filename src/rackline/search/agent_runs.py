"""Tasks of several calls on a server: time and cost of a task at each number of tasks in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.search.simulated_server import Server
from rackline.simulation import Requests
from rackline.simulation.calls import in_turns
from rackline.simulation.run import Progress
from rackline.simulation.tasks import TaskStatistics, task_statistics

_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """Tasks at one number in progress, under one policy.

    Args:
        between_calls: the policy.
        concurrency: tasks in progress; None at the recorded times [tasks].
        statistics: of the tasks.
        usd_per_task: rent of all chips over the tasks; None without a price [USD].
        chip_s_per_task: time of all chips over the tasks [chip s].
        preemptions: of calls that had begun [count].
        interrupted: whether it was cut short.
    """

    json_keys: ClassVar = ("between_calls", "concurrency", "*statistics", "usd_per_task", "chip_s_per_task",
                           "preemptions", "interrupted")  # fmt: skip

    between_calls: str
    concurrency: int | None
    statistics: TaskStatistics
    usd_per_task: float | None
    chip_s_per_task: float
    preemptions: int
    interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRuns:
    """Tasks of several calls, at each number in progress and under each policy.

    Args:
        server: that served.
        name: of the tasks.
        calls_per_task: mean number [requests].
        kv_tokens: KV cache of all ranks [tokens].
        ran: by policy, then by number in progress.
    """

    json_keys: ClassVar = (
        "deployment=server",
        "name",
        "calls_per_task",
        "kv_tokens",
        "most_before_the_cliff",
        "runs=ran",
    )

    server: Server
    name: str
    calls_per_task: float
    kv_tokens: int
    ran: tuple[AgentRun, ...]

    @property
    def first(self) -> Sequence[AgentRun]:
        """The runs of the first policy."""
        return [one for one in self.ran if one.between_calls == self.ran[0].between_calls]

    @property
    def most_before_the_cliff(self) -> int | None:
        """Most tasks in progress before the first at which the first policy finds less than half of what an unlimited
        cache holds; None where there is none [tasks]."""
        before = None
        for one in self.first:
            if one.statistics.hit_share < _HALF * one.statistics.unlimited_hit_share:
                return before
            before = one.concurrency
        return None


def serve_tasks(
    server: Server,
    requests: Requests,
    policy: str,
    number: int | None,
    *,
    num_calls: int,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> AgentRun:
    """Serve a number of tasks in progress under a policy.

    Args:
        policy: what becomes of the KV cache of a task between its calls.
        number: tasks in progress; None begins them at their recorded times [tasks].
        num_calls: calls of the run, where a number is given [requests].
        seed: of the order of the tasks.
        skip_bad: leave out requests that can never fit.
        progress: is told how far it is.
    """
    served = requests
    if number is not None:
        rng = np.random.default_rng([seed, number])
        served = in_turns(requests, number, num_calls, rng)
    spec = server.pool.spec
    rules = replace(spec.cache_rules, kept=policy)
    mine = replace(server, pool=replace(server.pool, spec=replace(spec, cache_rules=rules)))
    result = mine.serve(served, skip_bad, progress)
    found = task_statistics(result)
    return AgentRun(
        between_calls=policy,
        concurrency=number,
        statistics=found,
        usd_per_task=None if server.usd_per_s is None else found.usd_per_task(server.usd_per_s),
        chip_s_per_task=found.usd_per_task(float(server.chips)),
        preemptions=int(result.preempted.sum()),
        interrupted=result.interrupted,
    )
