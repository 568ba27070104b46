"""Traffic and limits: texts of `simulate` → requests, limits and cache tiers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from rackline.api.lengths import mixture_of_file
from rackline.api.option import count, si
from rackline.api.traffic_fields import SPREADS, TIME_UNITS
from rackline.errors import InputError, nearest_names
from rackline.units import parse_bytes, parse_count, parse_per_second, parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rackline.api.option import Quantity
    from rackline.simulation import CacheRules, Requests, Sessions, Slo, TierSpec
    from rackline.simulation.traces import TimeUnit
    from rackline.simulation.workloads import AnyLengths, Spread

_LIMITS = ("ttft", "tpot", "e2e")
_USUAL_REQUESTS = 1000


class Talks(Protocol):
    """The options of a question on conversations and agents."""

    @property
    def turns(self) -> Quantity | None: ...
    @property
    def think_time(self) -> Quantity | None: ...
    @property
    def system_prompt(self) -> Quantity: ...
    @property
    def tool_calls(self) -> Quantity | None: ...
    @property
    def tool_time(self) -> Quantity: ...
    @property
    def tool_output(self) -> Quantity | None: ...
    @property
    def session_lengths(self) -> str: ...


class Traffic(Talks, Protocol):
    """The options of traffic, in a question that has them."""

    @property
    def trace(self) -> str | None: ...
    @property
    def rate(self) -> Quantity | None: ...
    @property
    def users(self) -> Quantity | None: ...
    @property
    def requests(self) -> Quantity | None: ...
    @property
    def input(self) -> Quantity | None: ...
    @property
    def output(self) -> Quantity | None: ...
    @property
    def lengths(self) -> str: ...
    @property
    def mix(self) -> str | None: ...
    @property
    def arrival_cv(self) -> Quantity: ...
    @property
    def rate_scale(self) -> Quantity: ...
    @property
    def seed(self) -> Quantity: ...
    @property
    def time_unit(self) -> str | None: ...
    @property
    def skip_bad(self) -> bool: ...
    @property
    def diurnal_amplitude(self) -> Quantity: ...
    @property
    def high_priority_share(self) -> Quantity: ...
    @property
    def cache_hit(self) -> Quantity: ...
    @property
    def prefix_caching(self) -> bool: ...


def requests_of(question: Traffic, media_tokens: int = 0, usual: int = _USUAL_REQUESTS) -> Requests:
    """The requests of a question.

    Args:
        media_tokens: of images and sound, which come on top of each prompt, or of each message of a conversation
            [tokens].
        usual: number of synthetic requests where the question names none [requests].

    Raises:
        InputError: options that contradict each other or miss each other.
    """
    found = _recorded(question, question.trace) if question.trace is not None else _made(question, media_tokens, usual)
    if question.turns is None and media_tokens:
        found = replace(found, input_len=found.input_len + media_tokens)
    if question.cache_hit:
        found = _with_hits(question, found)
    rate_scale = si(question.rate_scale)
    return found.scaled(rate_scale) if rate_scale != 1.0 else found


def _with_hits(question: Traffic, requests: Requests) -> Requests:
    """The same requests with a share of each prompt in the cache when they arrive.

    Raises:
        InputError: requests that find what others left in the cache.
    """
    import numpy as np

    for name in ("turns", "prefix_caching"):
        value = getattr(question, name)
        if value:
            raise InputError(
                what="cache_hit", given=question.cache_hit, allowed=f"only without `{name}`, which finds it"
            )
    cached = np.rint(requests.input_len * si(question.cache_hit)).astype(np.int64)
    return replace(requests, computed=np.minimum(cached, requests.input_len - 1))


def encoded_over(question: Traffic, requests: Requests, media_tokens: int) -> float:
    """Tokens of a prompt over which the encoding of images and sound is spread: those of the mean prompt or message.

    Args:
        requests: as served.
        media_tokens: as in `requests_of` [tokens].
    """
    if question.turns is not None:
        return si(question.input) + media_tokens if question.input is not None else float(media_tokens)
    return float(requests.input_len.mean())


def _recorded(question: Traffic, trace: str) -> Requests:
    from rackline.simulation import read_trace

    for name in ("rate", "users", "input", "output", "mix", "turns"):
        value = getattr(question, name)
        if value is not None:
            raise InputError(what=name, given=value, allowed="only without `trace` (`rate_scale` scales its rate)")
    unit: TimeUnit | None = next((known for known in TIME_UNITS if known == question.time_unit), None)
    found = read_trace(trace, skip_bad=question.skip_bad, time_unit=unit)
    return found if question.requests is None else found.first(count(question.requests))


def _made(question: Traffic, media_tokens: int, usual: int) -> Requests:
    import numpy as np

    from rackline.simulation import closed_loop_of, open_arrivals

    if (question.rate is None) == (question.users is None):
        given = "neither" if question.rate is None else "both"
        raise InputError(what="traffic", given=given, allowed="one of `trace`, `rate` and `users`")
    lengths = _lengths(question, media_tokens if question.turns is not None else 0)
    rng = np.random.default_rng(count(question.seed))
    number = count(question.requests) or usual
    think_s = si(question.think_time) or 0.0
    if question.users is not None:
        return closed_loop_of(rng, number, count(question.users), lengths, think_s=think_s)
    rate = _rate(str(question.rate))
    if question.turns is not None or question.tool_calls is not None or question.tool_output is not None:
        return sessions_of(question).draw(rng, number, rate, lengths)
    return open_arrivals(
        rng,
        number,
        rate,
        lengths,
        arrival_cv=si(question.arrival_cv),
        diurnal_amplitude=si(question.diurnal_amplitude),
        high_priority_share=si(question.high_priority_share),
    )


def sessions_of(question: Talks) -> Sessions:
    """How conversations and agents go on.

    Raises:
        InputError: results of tools without calls, or calls without results.
    """
    from rackline.simulation import Sessions

    if question.turns is None:
        name = "tool_calls" if question.tool_calls is not None else "tool_output"
        raise InputError(what=name, given=getattr(question, name), allowed="only with `turns`")
    if (question.tool_calls is None) != (question.tool_output is None):
        missing = "tool_calls" if question.tool_calls is None else "tool_output"
        raise InputError(what=missing, given="nothing", allowed="both `tool_calls` and `tool_output`, or neither")
    return Sessions(
        turns=si(question.turns) or 1.0,
        tool_calls=si(question.tool_calls) or 0.0,
        think_s=si(question.think_time) or 0.0,
        tool_s=si(question.tool_time),
        tool_tokens=si(question.tool_output) or 0.0,
        system_tokens=int(si(question.system_prompt)),
        same_length=question.session_lengths == "fixed",
    )


def _lengths(question: Traffic, more_tokens: int) -> AnyLengths:
    """What prompts, with some tokens more, and answers are drawn from."""
    from rackline.simulation import Lengths

    if question.mix is not None:
        for name in ("input", "output", "turns"):
            value = getattr(question, name)
            if value is not None:
                raise InputError(what=name, given=value, allowed="only without `mix`")
        return mixture_of_file(question.mix)
    if question.input is None or question.output is None:
        name = "input" if question.input is None else "output"
        allowed = "mean tokens per request, such as 2k, or those of a use, such as `use` chat"
        raise InputError(what=name, given="nothing", allowed=allowed)
    spread: Spread = next(known for known in SPREADS if known == question.lengths)
    return Lengths(input_len=si(question.input) + more_tokens, output_len=si(question.output), spread=spread)


def _rate(text: str) -> float:
    return math.inf if text == "inf" else parse_per_second(text, name="rate", maximum=1e9)


def limits_of(text: str, name: str) -> Slo:
    """Read "ttft=2s,tpot=50ms@p99".

    Raises:
        InputError: another form.
    """
    from rackline.simulation import Slo

    limits, at, place = text.partition("@")
    found: dict[str, float] = {}
    for part in limits.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in _LIMITS or not equals:
            near = nearest_names(key, _LIMITS, 1)
            raise InputError(
                what=name,
                given=text,
                allowed="ttft, tpot or e2e with a time, and a percentile, such as ttft=2s,tpot=50ms@p99",
                nearest=f"{near[0]}=2s" if near else None,
            )
        found[f"{key}_s"] = parse_seconds(value, name=f"{name} {key}")
    percentile = 99.0
    if at:
        percentile = parse_count(place.strip().removeprefix("p"), name=f"{name} percentile", maximum=100.0)
    return Slo(**found, percentile=percentile)


def tiers_of(texts: Sequence[str], bytes_per_token: float) -> tuple[TierSpec, ...]:
    """Read "host=2TB@50GB/s[@10us][,ttl=1h]" for each tier behind HBM, per rank.

    Raises:
        InputError: another form.
    """
    from rackline.simulation import TierSpec

    found: list[TierSpec] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        rest, comma, lifetime = (piece.strip() for piece in rest.partition(","))
        parts, (key, _, ttl) = rest.split("@"), lifetime.partition("=")
        if not equals or len(parts) not in (2, 3) or (comma and key.strip() != "ttl"):
            allowed = "NAME=BYTES@RATE[@LATENCY][,ttl=TIME], such as host=500GB@50GB/s or flash=4TB@6GB/s,ttl=1h"
            raise InputError(what="tier", given=text, allowed=allowed)
        found.append(
            TierSpec(
                name=name.strip(),
                tokens=parse_bytes(parts[0], name=f"tier {name}") / bytes_per_token,
                tokens_per_s=parse_rate(parts[1], name=f"tier {name}") / bytes_per_token,
                latency_s=parse_seconds(parts[2], name=f"tier {name}") if len(parts) == 3 else 0.0,
                ttl_s=parse_seconds(ttl, name=f"tier {name} ttl") if comma else None,
                usd_per_byte_hour=_usd_per_byte_hour(name.strip()),
            )
        )
    return tuple(found)


def _usd_per_byte_hour(name: str) -> float | None:
    """What keeping a byte costs where a tier bears the catalogue name of a memory, else None [USD/byte/hour].

    Other spellings do not count: a tier that somebody calls "flash" is not the drive that the catalogue also calls so.
    """
    from rackline.catalog import names
    from rackline.hardware import memory_tier

    known = memory_tier(name) if name in names("memory") else None
    return None if known is None or known.usd_per_hour is None else known.usd_per_hour / known.capacity_bytes


class Lifetimes(Protocol):
    """The options of a question on what leaves a cache of prefixes."""

    @property
    def eviction(self) -> str: ...
    @property
    def cache_ttl(self) -> Quantity | None: ...
    @property
    def cache_ttl_from(self) -> str: ...


def cache_rules_of(question: Lifetimes) -> CacheRules:
    """Eviction and expiry of the prefix cache.

    Raises:
        UnknownNameError: an unknown eviction policy.
    """
    from rackline.simulation import CacheRules
    from rackline.simulation.evictions import eviction

    return CacheRules(
        eviction=eviction(question.eviction),
        ttl_s=math.inf if question.cache_ttl is None else si(question.cache_ttl),
        ttl_from_use=question.cache_ttl_from == "use",
    )
