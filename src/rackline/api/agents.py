"""`simulate` with tasks of several calls: time and cost of a task at each number of tasks in progress."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, ClassVar

from rich.text import Text

from rackline.api.answer import Watch
from rackline.api.resolve import check_context, named, window_of
from rackline.api.server import Server, server_of
from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import lengths_of, note_early_ends, sessions_of
from rackline.errors import InputError, nearest_name, require
from rackline.late import late
from rackline.units import format_seconds, format_usd, parse_whole

with late:
    import numpy as np

    from rackline import arch, simulation
    from rackline.display import column, wording
    from rackline.simulation import agent_traces, agents, calls, evictions, tasks


USUAL_CALLS = 6000
_HALF = 0.5
_LEAST_DRAWN = 60_000  # calls, several hundred sessions
_RECORDED, _TURNS = "recorded", "turns"


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
    statistics: tasks.TaskStatistics
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


def agent_runs(question: SimulateQuestion, watch: Watch) -> AgentRuns:
    """Serve tasks at each number in progress, under each policy.

    Raises:
        InputError: options that contradict each other.
    """
    numbers = _numbers(question.concurrency)
    policies = tuple(dict.fromkeys(question.between_calls or ("keep",)))
    for name in policies:
        _check(question, name)
    model, cluster = named(question, watch)
    requests = tasks_of(question, model, watch)
    longest = int((requests.input_len + requests.output_len).max())
    check_context(model, float(longest), watch)
    asked = replace(question, prefix_caching=True)
    server = server_of(asked, model, cluster, requests.hash_tokens, longest, watch)
    ran: list[AgentRun] = []
    for name, number in itertools.product(policies, numbers):
        ran.append(_run(question, server, requests, name, number, watch))
        if ran[-1].interrupted:
            watch.warn("interrupted: the last row is of what was simulated so far, further ones are left out")
            break
    num_tasks = 1 if requests.task is None else int(requests.task[-1]) + 1
    return AgentRuns(
        server=server,
        name=requests.name,
        calls_per_task=len(requests) / num_tasks,
        kv_tokens=server.pool.spec.pool_tokens * server.pool.num_ranks * server.pool.replicas,
        ran=tuple(ran),
    )


def _numbers(text: str) -> list[int | None]:
    """Read "1,2,4,8"; None stands for the recorded times."""
    if text == _RECORDED:
        return [None]
    try:
        return [parse_whole(one, name="concurrency", minimum=1, maximum=1e5) for one in text.split(",")]
    except InputError:
        near = nearest_name(text, (_RECORDED,))
        allowed = "whole numbers of at least 1 with commas between them, such as 1,2,4,8, or recorded"
        raise InputError(what="concurrency", given=text, allowed=allowed, nearest=near or "1,2,4,8") from None


def _check(question: SimulateQuestion, name: str) -> None:
    """Refuse a policy that the cache cannot follow."""
    found = evictions.KEEPINGS.find(name)
    require(
        found.place != "tier" or question.tier,
        what="between_calls",
        given=name,
        allowed="with a `tier` to move to",
        nearest="--tier host=1TB@50GB/s",
    )
    if name != "keep":
        question.refuse("eviction", "cache_ttl", allowed="only with `between_calls` keep")


def tasks_of(question: SimulateQuestion, model: arch.AnyModel, watch: Watch) -> simulation.Requests:
    """The tasks of a question: drawn from a profile or from its own numbers, or recorded.

    Raises:
        InputError: neither a profile, nor turns, nor a file of tasks.
    """
    name, number = question.agents or "", question.requests or USUAL_CALLS
    cap_s = inf if question.longest_pause is None else question.longest_pause
    rng = np.random.default_rng(question.seed)
    known = (*agents.PROFILES, _TURNS)
    if name in agents.PROFILES:
        profile = agents.PROFILES[name]
        longest = int(min(profile.max_tokens, window_of(model)))
        return replace(profile, max_tokens=longest).draw(rng, max(5 * number, _LEAST_DRAWN), cap_s=cap_s)
    if name == _TURNS:
        sessions = sessions_of(question, window_of(model))
        note_early_ends(question, model, 0, watch)
        return sessions.calls(rng, 3 * number, 1.0, lengths_of(question)).requests(sessions.name, cap_s=cap_s)
    answer = None if question.output is None else int(question.output)
    found, kind = agent_traces.read_tasks(name, known, cap_s=cap_s, skip_bad=question.skip_bad, answer_tokens=answer)
    if kind.is_estimate:
        per = agent_traces.CHARACTERS_A_TOKEN
        watch.warn(f"{found.name} has texts and no tokens: lengths are estimated at {per:g} characters a token")
    return found


def _run(
    question: SimulateQuestion,
    server: Server,
    requests: simulation.Requests,
    policy: str,
    number: int | None,
    watch: Watch,
) -> AgentRun:
    """Serve a number of tasks in progress under a policy."""
    served = requests
    if number is not None:
        rng = np.random.default_rng([question.seed, number])
        served = calls.in_turns(requests, number, question.requests or USUAL_CALLS, rng)
    spec = server.pool.spec
    rules = replace(spec.cache_rules, kept=policy)
    mine = replace(server, pool=replace(server.pool, spec=replace(spec, cache_rules=rules)))
    what = "tasks at their times" if number is None else f"{number} tasks at a time"
    with watch.serving(f"{what} ({policy})") as progress:
        result = mine.serve(served, question.skip_bad, progress)
    found = tasks.task_statistics(result)
    return AgentRun(
        between_calls=policy,
        concurrency=number,
        statistics=found,
        usd_per_task=None if server.usd_per_s is None else found.usd_per_task(server.usd_per_s),
        chip_s_per_task=found.usd_per_task(float(server.chips)),
        preemptions=int(result.preempted.sum()),
        interrupted=result.interrupted,
    )


def summary(found: AgentRuns) -> str:
    """The answer in a line: the cheapest number in progress, and where the hit rate falls."""
    best = min(found.first, key=lambda one: one.chip_s_per_task)
    cost = (
        f"{wording.written(best.chip_s_per_task)} chip-seconds"
        if best.usd_per_task is None
        else format_usd(best.usd_per_task)
    )
    took = _time(best.statistics.task_s["mean"])
    there = "at the recorded times" if best.concurrency is None else f"with {best.concurrency:,} at a time"
    hit = wording.percent(best.statistics.hit_share)
    return f"a task costs {cost} and takes {took} on average {there}, with {hit} of its prompt tokens cached"


def report(found: AgentRuns, *, elapsed_s: float) -> Iterable[Any]:
    """Everything that is printed.

    Args:
        elapsed_s: wall time [s].
    """
    server = found.server
    body = Text(summary(found), style="bold")
    cliff = found.most_before_the_cliff
    first = found.first
    if cliff is not None:
        fallen = next(one for one in first if one.concurrency is not None and one.concurrency > cliff)
        share = wording.percent(fallen.statistics.hit_share)
        body.append(
            f"\nbeyond {cliff:,} at a time the hit rate falls to {share}: contexts no longer fit into the KV cache",
            style="bold yellow",
        )
    title = f"{server.deployment.model.name} on {server.deployment.cluster.name}: {found.name}"
    calls_per_task, millions = wording.written(found.calls_per_task), wording.written(found.kv_tokens / 1e6)
    below = f"{calls_per_task} calls a task; KV cache of {millions}M tokens"
    yield column.spaced([wording.Box(body, title, below, "green" if cliff is None else "yellow"), _sheet(found)])
    if any(one.statistics.task_s["p90"] == inf for one in found.ran):
        yield wording.Prose("-: too few tasks ended to tell (simulate more calls with --requests)", style="dim")
    yield wording.Prose(f"simulated in {format_seconds(elapsed_s)}", style="dim")


def _time(seconds: float) -> str:
    return format_seconds(seconds) if isfinite(seconds) else "an unknown time"


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _sheet(found: AgentRuns) -> column.Sheet[AgentRun]:
    Column = column.Column
    columns: list[column.Column[AgentRun]] = [
        Column("concurrency", "at a time", "whole"),
        Column("hit_share", "hit rate", "share", "statistics.hit_share"),
        Column("unlimited_hit_share", "unlimited cache", "share", "statistics.unlimited_hit_share", priority=4),
        Column("task_s.mean", "task mean", "s", lambda one: _finite(one.statistics.task_s["mean"])),
        Column("task_s.p50", "task p50", "s", lambda one: _finite(one.statistics.task_s["p50"]), priority=1),
        Column("task_s.p90", "task p90", "s", lambda one: _finite(one.statistics.task_s["p90"]), priority=2),
        Column("usd_per_task", "$ a task", "USD", lambda one: _finite(one.usd_per_task)),
        Column("ttft_s", "TTFT p50", "s", "statistics.ttft_s"),
        Column("tokens.fresh", "fresh", "count", lambda one: one.statistics.tokens["fresh"], priority=1),
        Column("tokens.cached", "cached", "count", lambda one: one.statistics.tokens["cached"], priority=2),
        Column("tokens.generated", "generated", "count", lambda one: one.statistics.tokens["generated"], priority=2),
        Column("tokens_per_s", "tokens/s", "count", "statistics.tokens_per_s", priority=3),
    ]
    if len({one.between_calls for one in found.ran}) > 1:
        columns.insert(0, Column("between_calls", "between calls"))
    return column.Sheet(
        "runs", columns, found.ran, "tasks in progress (tokens are of a task: computed, found, written)"
    )


def rows(found: AgentRuns) -> list[dict[str, Any]]:
    """A row for each run."""
    return [{each.key: each.value(one, 0) for each in _sheet(found).columns} for one in found.ran]


def points(found: AgentRuns) -> list[dict[str, Any]]:
    """What the figure is drawn from."""
    return [
        {
            "series": one.between_calls,
            "concurrency": one.concurrency or 1,
            "hit_share": one.statistics.hit_share,
            "unlimited_hit_share": one.statistics.unlimited_hit_share,
            "task_s": one.statistics.task_s["mean"],
            "usd_per_task": one.usd_per_task,
        }
        for one in found.ran
    ]
