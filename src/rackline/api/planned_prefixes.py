"""The prefixes of a plan's question: traffic that repeats them, and for how long which memory keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rackline.api.option import si, texts
from rackline.api.traffic import cache_rules_of, sessions_of, tiers_of
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.plan_question import PlanQuestion
    from rackline.arch import AnyModel
    from rackline.search.kept_prefixes import Keeping
    from rackline.simulation.hits_by_tier import Repeating, RepeatingSessions

_OF_SESSIONS = ("tool_calls", "tool_output")
_LIFETIMES = ("cache_ttl", "tier")
_OF_LIFETIMES = {"eviction": "lru", "cache_ttl_from": "use"}


def sessions_repeating(question: PlanQuestion, media_tokens: int) -> RepeatingSessions:
    """Conversations or agents of a question.

    Args:
        media_tokens: that images and sound add to a message [tokens].

    Raises:
        InputError: lengths or results of tools that are missing.
    """
    from rackline.simulation.hits_by_tier import RepeatingSessions

    for name, example in (("input", "300"), ("output", "400")):
        if getattr(question, name) is None:
            raise InputError(what=name, given="nothing", allowed=f"with `turns`, mean tokens such as {example}")
    return RepeatingSessions(
        sessions=sessions_of(question),
        message_tokens=(si(question.input) or 1.0) + media_tokens,
        answer_tokens=si(question.output) or 2.0,
    )


def keeping_of(question: PlanQuestion, media_tokens: int, model: AnyModel) -> Keeping | None:
    """Prefixes that come again, and how long they are kept; None where nothing says so.

    Args:
        media_tokens: as above [tokens].
        model: that is served.

    Raises:
        InputError: options that contradict or miss each other.
    """
    given = [name for name in _LIFETIMES if getattr(question, name)]
    given += [name for name, usual in _OF_LIFETIMES.items() if getattr(question, name) != usual]
    if question.turns is None:
        for name in _OF_SESSIONS:
            if getattr(question, name) is not None:
                raise InputError(what=name, given=getattr(question, name), allowed="only with `turns`")
        if not given:
            return None
        if question.trace is None:
            allowed = "only with `turns` or `trace`, whose prefixes are kept"
            raise InputError(what=given[0], given=getattr(question, given[0]), allowed=allowed)
    if si(question.cache_hit):
        name = "turns" if question.turns is not None else given[0]
        raise InputError(what="cache_hit", given=question.cache_hit, allowed=f"only without `{name}`, which gives it")
    for name in ("prefill_on", "prefill_chips", "prefill_layout"):
        if getattr(question, name) is not None:
            allowed = "only without prompts that repeat, which are planned on single engines"
            raise InputError(what=name, given=getattr(question, name), allowed=allowed)
    from rackline.arch import Model
    from rackline.search.kept_prefixes import Keeping
    from rackline.simulation.prefix_cache import PrefixCache

    adapter = model.adapter if isinstance(model, Model) else None
    if adapter is not None and adapter.number > 1:
        raise InputError(what="adapters", given=adapter.number, allowed="1 with a cache of prefixes")
    rules, tiers = cache_rules_of(question), tiers_of(texts(question.tier), 1.0)
    PrefixCache(1, 1, tiers, rules)  # refuses a tier that expires before a faster one
    return Keeping(traffic=_traffic(question, media_tokens), rules=rules, tiers=tiers)


def _traffic(question: PlanQuestion, media_tokens: int) -> Repeating:
    if question.turns is not None:
        for name in ("trace", "mix"):
            if getattr(question, name) is not None:
                raise InputError(what=name, given=getattr(question, name), allowed="only without `turns`")
        return sessions_repeating(question, media_tokens)
    from rackline.api.repeats import reuse_in
    from rackline.simulation import read_trace
    from rackline.simulation.hits_by_tier import RepeatingTrace

    trace = question.trace or ""
    return RepeatingTrace.of(Path(trace).name, read_trace(trace), reuse_in(trace))
