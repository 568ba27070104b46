"""Requests, traffic and limits: texts → lengths, requests in time, limits, cache tiers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from rackline.api.answer import Watch
from rackline.api.groups import Served
from rackline.api.question import Question, options
from rackline.api.resolve import window_of
from rackline.errors import InputError, nearest_name
from rackline.late import late
from rackline.units import (
    USUAL_PERCENTILE,
    format_limit,
    format_seconds,
    parse_bytes,
    parse_limit,
    parse_rate,
    parse_seconds,
    statistic_name,
)

with late:
    from rackline import arch, catalog, hardware, simulation
    from rackline.api import groups, rates
    from rackline.display import wording
    from rackline.serving import mixture_file, workload
    from rackline.simulation import classes, evictions, hits_by_tier, load, reuse as simulation_reuse, traces, workloads


USUAL = "chat"
_LIMITED = {"tpot": "time per output token", "ttft": "time to first token", "slo": "limits", "capacity": "limits"}
"""Options that limit a latency."""


Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a use added to a question.

    Args:
        name: of the use.
        asked: whether it was asked for; else it is the usual one.
        filled: options that it gave, with their values as text.
        sources: where they are from, by option.
    """

    name: str
    asked: bool
    filled: dict[str, str]
    sources: dict[str, str]

    @property
    def text(self) -> str:
        """One line: "for chat (the default): input 1,155"; empty where it added nothing but limits that stand above."""
        filled = {name: value for name, value in self.filled.items() if self.asked or name not in _LIMITED}
        if not filled:
            return f"for {self.name}: no latency is limited" if self.asked else ""
        how = "" if self.asked else " (the default)"
        values = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in filled.items())
        return f"for {self.name}{how}: {values}"

    @property
    def limits_text(self) -> str:
        """Say which limits apply because nobody gave any; empty where somebody did."""
        limits = {name: value for name, value in self.filled.items() if name in _LIMITED}
        if self.asked or not limits:
            return ""
        texts = " and ".join(f"{_LIMITED[name]} {value}" for name, value in limits.items())
        return f"No limits given, so those of {self.name} apply: {texts}."


def limits_lines(use: Use | None) -> Iterable[Any]:
    """Yield the line above an answer that says which limits apply because nobody gave any."""
    if use is not None and use.limits_text:
        yield wording.Prose(use.limits_text)


def use_lines(use: Use | None, *, full: bool = False) -> Iterable[Any]:
    """What a terminal shows of lengths and limits that nobody asked for; with their sources in full."""
    if use is None or not use.text:
        return
    others = "" if use.asked else "; --for agents, summarise or batch has others"
    yield wording.Prose(f"{use.text}{others}", style="dim")
    if full:
        for source in dict.fromkeys(use.sources.values()):
            yield wording.Prose(f"  {source}", style="dim")


def record_of(use: str | None) -> catalog.UseRecord:
    """A use of the catalogue or of a file; chat for None.

    Raises:
        UnknownNameError: neither.
    """
    return catalog.use_record(use or USUAL)


def with_use(question: Q) -> tuple[Q, Use]:
    """The question with the lengths and limits of its use where it has none; of chat where it names no use.

    A question gets what it has an option for: `simulate` its limits as `slo`, `price` no prompts.

    Raises:
        UnknownNameError: neither a use of the catalogue nor a file.
    """
    known, given = options(type(question)), vars(question)
    record = record_of(given["use"])
    lengths: dict[str, float | None] = {}
    alone = given["mix"] is None and given["trace"] is None and given.get("classes") is None
    if alone and not load.is_recorded(given.get("load") or ""):
        lengths = {"input": record.input_len, "output": record.output_len}
    if lengths and given.get("input") is None and given.get("turns") is None:  # conversations find their own
        lengths["cache_hit"] = record.cache_hit or None
    limits: dict[str, float] = {}
    # a limit that nobody gave is not applied beside one that somebody gave
    if given["use"] is not None or not any(given.get(name) is not None for name in _LIMITED):
        limits = {name: value for name, value in (("tpot", record.tpot_s), ("ttft", record.ttft_s)) if value}
    percentile = record.percentile or USUAL_PERCENTILE
    texts = {name: format_limit(value, percentile) for name, value in limits.items()}
    values: dict[str, float | str] = {
        name: value for name, value in lengths.items() if name in known and value is not None and not given[name]
    }
    shown = {name: f"{value:.0%}" if name == "cache_hit" else f"{value:,.0f}" for name, value in values.items()}
    if "slo" in known:
        if given["slo"] is None and limits:
            values["slo"] = ",".join(f"{name}={text}" for name, text in texts.items())
            shown |= {name: _shown_limit(value, percentile) for name, value in limits.items()}
        limits = {}
    for name, value in limits.items():
        if name in known and given[name] is None:
            values[name] = texts[name]
            shown[name] = _shown_limit(value, percentile)
    use = Use(
        name=record.name,
        asked=given["use"] is not None,
        filled=shown,
        sources={name: _source(record, name) for name in shown},
    )
    return replace(question, **values), use


def _shown_limit(limit_s: float, percentile: float | None) -> str:
    return f"{format_seconds(limit_s)} ({statistic_name(percentile)})"


def _source(record: catalog.UseRecord, name: str) -> str:
    keys = {"input": "input_len", "output": "output_len", "tpot": "tpot_s", "ttft": "ttft_s"}
    source = record.source_of(keys.get(name, name))
    return "" if source is None else source.text


def mixture_of(question: Served, *alone: str) -> workload.Mixture | None:
    """The lengths of a question's file or trace; None without one.

    Args:
        alone: options that say the same, which no file stands beside.

    Raises:
        InputError: lengths that are given in two ways, or a file of another form.
    """
    first, *more = [*question.given("mix", "trace"), ""]
    if not first:
        return None
    question.refuse(*filter(None, more), *alone, allowed=f"only without `{first}`")
    return mixture_of_file(question.mix) if question.mix is not None else traces.mixture_of_trace(question.trace or "")


def mixture_of_file(path: str) -> workload.Mixture:
    """The lengths of a file: shares with their lengths, or recorded requests, each as often as it is there.

    Raises:
        InputError: a file of another form.
    """
    return traces.mixture_of_trace(path) if traces.is_trace(path, what="mix") else mixture_file.mixture_of_file(path)


_LIMITS = ("ttft", "tpot", "e2e")
_USUAL_REQUESTS = 1000


def requests_of(
    question: groups.Traffic, window: float, media_tokens: int = 0, usual: int = _USUAL_REQUESTS
) -> simulation.Requests:
    """The requests of a question.

    Args:
        window: longest request that the model takes, at which sessions end [tokens].
        media_tokens: of images and sound, which come on top of each prompt, or of each message of a conversation
            [tokens].
        usual: number of synthetic requests where the question names none [requests].

    Raises:
        InputError: options that contradict each other or miss each other.
    """
    if question.classes is not None:
        found = rates.requests_in(question, usual)
    elif question.load is not None:
        found = _over_time(question)
    elif question.trace is not None:
        found = _recorded(question, question.trace)
    else:
        found = _made(question, window, media_tokens, usual)
    if question.turns is None and media_tokens:
        found = replace(found, input_len=found.input_len + media_tokens)
    if question.cache_hit:
        found = _with_hits(question, found)
    return found.scaled(question.rate_scale) if question.rate_scale != 1.0 else found


def _with_hits(question: groups.Traffic, requests: simulation.Requests) -> simulation.Requests:
    """The same requests with a share of each prompt in the cache when they arrive.

    Raises:
        InputError: requests that find what others left in the cache.
    """
    for name in question.given("turns", "prefix_caching"):
        question.refuse("cache_hit", allowed=f"only without `{name}`, which finds it")
    cached = (requests.input_len * question.cache_hit).round().astype("int64")
    return replace(requests, computed=cached.clip(max=requests.input_len - 1))


def encoded_over(question: groups.Traffic, requests: simulation.Requests, media_tokens: int) -> float:
    """Tokens of a prompt over which the encoding of images and sound is spread: those of the mean prompt or message.

    Args:
        requests: as served.
        media_tokens: as in `requests_of` [tokens].
    """
    if question.turns is not None:
        return question.input + media_tokens if question.input is not None else float(media_tokens)
    return float(requests.input_len.mean())


def _recorded(question: groups.Traffic, trace: str) -> simulation.Requests:
    found = rates.trace_of(question, trace)
    return found if question.requests is None else found.first(question.requests)


def load_of(question: groups.Traffic) -> load.Load:
    """The rates over time of a question that has a load, of all its classes together.

    Raises:
        InputError: as `rates_of`.
    """
    shared = rates.base_load(question)
    if question.classes is None:
        return shared
    return load.together(classes.loads_of(rates.classes_of(question), shared), shared.name)


def _over_time(question: groups.Traffic) -> simulation.Requests:
    """Requests at the rates of the load, with the lengths of the question, else with those of its trace."""
    import numpy as np

    rng = np.random.default_rng(question.seed)
    return load_of(question).draw(rng, lengths_of(question), question.arrival_cv)


def lengths_of(question: groups.Traffic) -> workloads.AnyLengths:
    """What prompts and answers of a load are drawn from: its classes, the lengths of the question, else its trace."""
    if question.classes is not None:
        return rates.lengths_in(question)
    if not question.given("input", "output", "mix") and load.is_recorded(question.load or ""):
        trace = rates.trace_of(question, question.load or "")
        return workload.Mixture.of(1.0, trace.input_len, trace.output_len, name=trace.name)
    return _lengths(question, 0)


def _made(question: groups.Traffic, window: float, media_tokens: int, usual: int) -> simulation.Requests:
    import numpy as np

    lengths = _lengths(question, media_tokens if question.turns is not None else 0)
    rng = np.random.default_rng(question.seed)
    number = question.requests or usual
    think_s = question.think_time or 0.0
    if question.users is not None:
        return simulation.closed_loop_of(rng, number, question.users, lengths, think_s=think_s)
    rate = rates.rate_of(str(question.rate))
    if question.turns is not None or question.tool_calls is not None or question.tool_output is not None:
        return sessions_of(question, window).draw(rng, number, rate, lengths)
    return simulation.open_arrivals(
        rng,
        number,
        rate,
        lengths,
        arrival_cv=question.arrival_cv,
        diurnal_amplitude=question.diurnal_amplitude,
        high_priority_share=question.high_priority_share,
    )


def sessions_of(question: groups.Sessions, window: float) -> simulation.Sessions:
    """How conversations and agents go on.

    Args:
        window: longest request that the model takes, at which they end [tokens].

    Raises:
        InputError: results of tools without calls, or calls without results.
    """
    if question.turns is None:
        question.refuse("tool_calls", "tool_output", allowed="only with `turns`")
    if (question.tool_calls is None) != (question.tool_output is None):
        missing = "tool_calls" if question.tool_calls is None else "tool_output"
        raise InputError(what=missing, given="nothing", allowed="both `tool_calls` and `tool_output`, or neither")
    return simulation.Sessions(
        turns=question.turns or 1.0,
        tool_calls=question.tool_calls or 0.0,
        think_s=question.think_time or 0.0,
        tool_s=question.tool_time,
        tool_tokens=question.tool_output or 0.0,
        system_tokens=int(question.system_prompt),
        max_tokens=window,
        same_length=question.session_lengths == "fixed",
    )


def note_early_ends(question: groups.Sessions, model: arch.AnyModel, media_tokens: int, watch: Watch) -> None:
    """Note how many conversations end because they outgrow the longest request that the model takes.

    Args:
        media_tokens: that images and sound add to a message [tokens].
    """
    window = window_of(model)
    if question.turns is None or window == math.inf:
        return
    share = sessions_of(question, window).share_ended_early(_messages_of(question, media_tokens))
    if share > 0:
        watch.warn(
            f"{wording.percent(share)} of the conversations end early: their next request would be longer than the "
            f"{window:,.0f} tokens that {model.name} takes"
        )


def _messages_of(question: groups.Sessions, media_tokens: int) -> workloads.AnyLengths:
    """What messages and answers of conversations are drawn from."""
    if isinstance(question, groups.Traffic):
        return _lengths(question, media_tokens)
    return simulation.Lengths(input_len=(question.input or 1.0) + media_tokens, output_len=question.output or 1.0)


def _lengths(question: groups.Traffic, more_tokens: int) -> workloads.AnyLengths:
    """What prompts, with some tokens more, and answers are drawn from."""
    if question.mix is not None:
        return mixture_of_file(question.mix)
    if question.input is None or question.output is None:
        name = "input" if question.input is None else "output"
        raise InputError(
            what=name,
            given="nothing",
            allowed="mean tokens per request, such as 2k, or those of a use, such as `use` chat",
        )
    spread = cast("workloads.Spread", question.lengths)  # one of its choices
    return simulation.Lengths(input_len=question.input + more_tokens, output_len=question.output, spread=spread)


def limits_of(text: str, name: str) -> simulation.Slo:
    """Read "ttft=2s,tpot=50ms@p90", each limit as `parse_limit` reads it.

    Raises:
        InputError: another form.
    """
    limits: dict[str, float | None] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in _LIMITS or not equals:
            near = nearest_name(key, _LIMITS)
            raise InputError(
                what=name,
                given=text,
                allowed="ttft, tpot or e2e with a time, such as ttft=2s,tpot=50ms (for 99 of 100 requests) or "
                "ttft=2s@p90",
                nearest=near and f"{near}=2s",
            )
        limits[f"{key}_s"], limits[f"{key}_percentile"] = parse_limit(value, name=f"{name} {key}")
    return simulation.Slo(**limits)


def tiers_of(texts: Sequence[str], bytes_per_token: float) -> tuple[simulation.TierSpec, ...]:
    """Read "host=2TB@50GB/s[@10us][,ttl=1h]" for each tier behind HBM, per rank.

    Raises:
        InputError: another form.
    """
    found: list[simulation.TierSpec] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        rest, comma, lifetime = (piece.strip() for piece in rest.partition(","))
        parts, (key, _, ttl) = rest.split("@"), lifetime.partition("=")
        if not equals or len(parts) not in (2, 3) or (comma and key.strip() != "ttl"):
            raise InputError(
                what="tier",
                given=text,
                allowed="NAME=BYTES@RATE[@LATENCY][,ttl=TIME], such as host=500GB@50GB/s or flash=4TB@6GB/s,ttl=1h",
            )
        # what keeping a byte costs where the tier bears the catalogue name of a memory; other spellings do not count: a
        # tier that somebody calls "flash" is not the drive that the catalogue also calls so
        known = hardware.memory_tier(name.strip()) if name.strip() in catalog.names("memory") else None
        usd = None if known is None else known.usd_per_hour
        found.append(
            simulation.TierSpec(
                name=name.strip(),
                tokens=parse_bytes(parts[0], name=f"tier {name}") / bytes_per_token,
                tokens_per_s=parse_rate(parts[1], name=f"tier {name}") / bytes_per_token,
                latency_s=parse_seconds(parts[2], name=f"tier {name}") if len(parts) == 3 else 0.0,
                ttl_s=parse_seconds(ttl, name=f"tier {name} ttl") if comma else None,
                usd_per_byte_hour=None if usd is None or known is None else usd / known.capacity_bytes,
            )
        )
    return tuple(found)


def cache_rules_of(question: groups.Lifetimes) -> simulation.CacheRules:
    """Eviction and expiry of the prefix cache.

    Raises:
        UnknownNameError: an unknown eviction policy.
    """
    return simulation.CacheRules(
        eviction=evictions.EVICTIONS.find(question.eviction),
        ttl_s=math.inf if question.cache_ttl is None else question.cache_ttl,
        ttl_from_use=question.cache_ttl_from == "use",
    )


def repeating_of(
    question: groups.Sessions, window: float, trace: str | None, media_tokens: int = 0
) -> hits_by_tier.Repeating:
    """Requests whose prefixes come again: conversations or agents, else those of a trace.

    Args:
        window: longest request that the model takes, at which conversations end [tokens].
        media_tokens: that images and sound add to a message [tokens].

    Raises:
        InputError: lengths or results of tools that are missing; a trace without hashes.
    """
    if question.turns is None:
        recorded = simulation.read_trace(trace or "")
        return hits_by_tier.RepeatingTrace.of(Path(trace or "").name, recorded, simulation_reuse.reuse_in(trace or ""))
    if question.input is None or question.output is None:
        name, like = ("input", 300) if question.input is None else ("output", 400)
        raise InputError(what=name, given="nothing", allowed=f"with `turns`, mean tokens such as {like}")
    return hits_by_tier.RepeatingSessions.of(
        sessions_of(question, window),
        message_tokens=question.input + media_tokens,
        answer_tokens=question.output,
    )
