"""`simulate` with tasks of several calls: time and cost of a task at each number of tasks in progress."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

from rackline.api.answer import Watch
from rackline.api.resolve import check_context, named, window_of
from rackline.api.server import server_of
from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import lengths_of, note_early_ends, sessions_of
from rackline.errors import InputError, nearest_name, require
from rackline.late import late
from rackline.units import parse_whole

with late:
    import numpy as np

    from rackline import arch, simulation
    from rackline.search import agent_runs, simulated_server
    from rackline.simulation import agent_traces, agents, evictions


USUAL_CALLS = 6000
_LEAST_DRAWN = 60_000  # calls, several hundred sessions
_RECORDED, _TURNS = "recorded", "turns"


def serve_agents(question: SimulateQuestion, watch: Watch) -> agent_runs.AgentRuns:
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
    ran: list[agent_runs.AgentRun] = []
    for name, number in itertools.product(policies, numbers):
        ran.append(_run(question, server, requests, name, number, watch))
        if ran[-1].interrupted:
            watch.warn("interrupted: the last row is of what was simulated so far, further ones are left out")
            break
    num_tasks = 1 if requests.task is None else int(requests.task[-1]) + 1
    return agent_runs.AgentRuns(
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
    server: simulated_server.Server,
    requests: simulation.Requests,
    policy: str,
    number: int | None,
    watch: Watch,
) -> agent_runs.AgentRun:
    """Serve a number of tasks in progress under a policy."""
    what = "tasks at their times" if number is None else f"{number} tasks at a time"
    with watch.serving(f"{what} ({policy})") as progress:
        return agent_runs.serve_tasks(
            server,
            requests,
            policy,
            number,
            num_calls=question.requests or USUAL_CALLS,
            seed=question.seed,
            skip_bad=question.skip_bad,
            progress=progress,
        )
