"""The prefixes of a plan's question: traffic that repeats them, and for how long which memory keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rackline.api.traffic import cache_rules_of, sessions_of, tiers_of
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.plan_question import PlanQuestion
    from rackline.arch import AnyModel
    from rackline.search.kept_prefixes import Keeping
    from rackline.simulation.hits_by_tier import Repeating, RepeatingSessions


def sessions_repeating(question: PlanQuestion, media_tokens: int) -> RepeatingSessions:
    """Conversations or agents of a question.

    Args:
        media_tokens: that images and sound add to a message [tokens].

    Raises:
        InputError: lengths or results of tools that are missing.
    """
    from rackline.simulation.hits_by_tier import RepeatingSessions

    if question.input is None:
        raise InputError(what="input", given="nothing", allowed="with `turns`, mean tokens such as 300")
    if question.output is None:
        raise InputError(what="output", given="nothing", allowed="with `turns`, mean tokens such as 400")
    return RepeatingSessions(
        sessions=sessions_of(question),
        message_tokens=question.input + media_tokens,
        answer_tokens=question.output,
    )


def keeping_of(question: PlanQuestion, media_tokens: int, model: AnyModel) -> Keeping | None:
    """Prefixes that come again, and how long they are kept; None where nothing says so.

    Args:
        media_tokens: as above [tokens].
        model: that is served.

    Raises:
        InputError: options that contradict or miss each other.
    """
    given = question.given("turns", "cache_ttl", "tier", "eviction", "cache_ttl_from")
    if question.turns is None:
        question.refuse("tool_calls", "tool_output", allowed="only with `turns`")
        if not given:
            return None
        if question.trace is None:
            question.refuse(*given, allowed="only with `turns` or `trace`, whose prefixes are kept")
    question.refuse("cache_hit", allowed=f"only without `{next(iter(given))}`, which gives it")
    allowed = "only without prompts that repeat, which are planned on single engines"
    question.refuse("prefill_on", "prefill_chips", "prefill_layout", allowed=allowed)
    from rackline.arch import Model
    from rackline.search.kept_prefixes import Keeping
    from rackline.simulation.prefix_cache import PrefixCache

    adapter = model.adapter if isinstance(model, Model) else None
    if adapter is not None and adapter.number > 1:
        raise InputError(what="adapters", given=adapter.number, allowed="1 with a cache of prefixes")
    rules, tiers = cache_rules_of(question), tiers_of(question.tier, 1.0)
    PrefixCache(1, 1, tiers, rules)  # refuses a tier that expires before a faster one
    return Keeping(traffic=_traffic(question, media_tokens), rules=rules, tiers=tiers)


def _traffic(question: PlanQuestion, media_tokens: int) -> Repeating:
    if question.turns is not None:
        question.refuse("trace", "mix", allowed="only without `turns`")
        return sessions_repeating(question, media_tokens)
    from rackline.api.repeats import reuse_in
    from rackline.simulation import read_trace
    from rackline.simulation.hits_by_tier import RepeatingTrace

    trace = question.trace or ""
    return RepeatingTrace.of(Path(trace).name, read_trace(trace), reuse_in(trace))
