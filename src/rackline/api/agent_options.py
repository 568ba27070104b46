"""Options of tasks of several calls: agents and conversations, and what happens to their KV cache between the calls."""

from __future__ import annotations

from rackline.api.question import MOST_SECONDS, MaybeNumber, Question, Texts, option, question

AGENTS = "Agents"


@question
class Tasked(Question):
    """A question of tasks, each of which is a tree of calls with tools between them."""

    agents: str | None = option(
        "text",
        "tasks of several calls, and what one of them takes and costs: coding or agentx (sessions drawn from published "
        "statistics), turns (drawn from `turns` and its options), or a file or folder of recorded ones: Weka, agentic "
        "Mooncake, OpenTelemetry GenAI spans, conversations (ShareGPT) or inputs of aiperf",
        default=None,
        group=AGENTS,
    )
    concurrency: str = option(
        "text",
        "tasks in progress at a time, one number or several, such as 1,2,4,8; or recorded, to begin them at the times "
        "of their file",
        default="1,2,4,8,16,32",
        group=AGENTS,
    )
    between_calls: Texts = option(
        "text",
        "KV cache of a task between its calls: keep (in HBM until memory is needed), offload (to the first `tier` at "
        "once) or drop; may be repeated; keep by default",
        default=None,
        several=True,
        repeated=True,
        group=AGENTS,
    )
    longest_pause: MaybeNumber = option(
        "seconds",
        "shorten pauses between calls (tools, people) to at most this, such as 5min, as benchmarks do",
        default=None,
        unit="s",
        zero=True,
        maximum=MOST_SECONDS,
        group=AGENTS,
    )
