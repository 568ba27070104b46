"""Observed runs: what a client saw of a live server, request by request, as a case that is simulated and scored.

One JSON object is one run: the deployment as far as it is known, the load that was sent, what limited the load
generator, and every request with its times, however it ended. The simulator gets the requests at the moments at
which they were sent, with the lengths that the server counted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.serving.workload import PLAIN, usual_speculation
from rackline.simulation import CacheConfig, Requests
from rackline.validation.cases import Case
from rackline.validation.requests import ServedRun, recorded_run
from rackline.validation.resolve import Resolver

KIND = "observed"
Outcome = Literal[
    "finished",  # the stream came to its end
    "timeout",  # the request took longer than it was given
    "stalled",  # no byte for longer than a stream may pause
    "cut",  # the connection closed before the end of the stream
    "garbage",  # what came is no stream of events
    "connection",  # no connection
    "rate_limited",  # 429, more often than it was sent again
    "refused",  # another 4xx
    "server_error",  # 5xx, or an error inside the stream
    "unfinished",  # the run ended first
    "not_sent",  # the run ended before its turn
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
TIMING_LIMIT_S = 10e-3
"""Timing error of a load generator, at the 99th percentile, beyond which it limits the run itself [s]."""
_DIGITS = 6  # of times in files: microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """One request as its client saw it; times count from the start of the run.

    Args:
        arrival_s: when it was due [s].
        outcome: what became of it.
        input_len, output_len: prompt and answer that were asked for [tokens].
        sent_s: when it was sent, the last time if several; None where it was not [s].
        token_s: when each piece of the answer came, one or more tokens each [s].
        end_s: when its stream ended, well or not [s].
        prompt_tokens, output_tokens, cached_tokens: as the server counted them; None where it did not [tokens].
        status: of HTTP; None without a response.
        error: what went wrong, in the server's words or ours.
        retries, waited_s: how often it was sent again, and the time between [count, s].
        malformed: events that could not be read [count].
        after: index of the request whose end it waited for; -1 for none.
        blocks: hashes of the full blocks of its prompt that may be shared.
        class_name: of its class; empty without any.
    """

    arrival_s: float
    outcome: Outcome
    input_len: int
    output_len: int
    sent_s: float | None = None
    token_s: tuple[float, ...] = ()
    end_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    status: int | None = None
    error: str = ""
    retries: int = 0
    waited_s: float = 0.0
    malformed: int = 0
    after: int = -1
    blocks: tuple[int, ...] = ()
    class_name: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether its stream came to its end."""
        return self.outcome == "finished"

    @property
    def ttft_s(self) -> float:
        """Sent to first token; NaN without one [s]."""
        return self.token_s[0] - self.sent_s if self.token_s and self.sent_s is not None else math.nan

    @property
    def tokens(self) -> int:
        """Tokens of the answer: as the server counted them, else its pieces [tokens]."""
        return len(self.token_s) if self.output_tokens is None else self.output_tokens

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt: as the server counted them, else as asked for [tokens]."""
        return self.prompt_tokens or self.input_len

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first; NaN for answers of one token [s]."""
        if len(self.token_s) < 2 or self.tokens < 2:
            return math.nan
        return (self.token_s[-1] - self.token_s[0]) / (self.tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Sent to last token; NaN without one [s]."""
        return self.token_s[-1] - self.sent_s if self.token_s and self.sent_s is not None else math.nan

    @property
    def late_s(self) -> float:
        """How much later than due it was sent the first time; NaN if it was not [s]."""
        return math.nan if self.sent_s is None else self.sent_s - self.waited_s - self.arrival_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorLimits:
    """The load generator's own errors.

    Args:
        late_p50_s, late_p99_s: how much later than due requests were sent [s].
        lag_p50_s, lag_p99_s: how long an event that came at a random moment waited to be seen [s].
        lag_max_s: the longest of these waits [s].
        busy_share: processor time of the process over the time of the run [1].
        requests_per_s, events_per_s: what it sent and read [1/s].
        in_flight: most requests at once [requests].
    """

    json_keys: ClassVar = (
        "late_p50_s", "late_p99_s", "lag_p50_s", "lag_p99_s", "lag_max_s", "timing_error_p99_s", "busy_share",
        "requests_per_s", "events_per_s", "in_flight", "binds",
    )  # fmt: skip

    late_p50_s: float = math.nan
    late_p99_s: float = math.nan
    lag_p50_s: float = math.nan
    lag_p99_s: float = math.nan
    lag_max_s: float = math.nan
    busy_share: float = math.nan
    requests_per_s: float = math.nan
    events_per_s: float = math.nan
    in_flight: int = 0

    @property
    def timing_error_p99_s(self) -> float:
        """The larger of the two errors, at the 99th percentile [s]."""
        return float(np.nanmax([self.late_p99_s, self.lag_p99_s, 0.0]))

    @property
    def binds(self) -> bool:
        """Whether the load generator, not the server, limits what was measured."""
        return self.timing_error_p99_s > TIMING_LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """All requests of one load on one server.

    Args:
        run_id: name of the run.
        requests: each of them, in the order of the load.
        deployment: keys of a case that say what was served: model or config, chip, num_chips, stack, ...
        load: options of the load.
        url, endpoint, served_name: where it was sent, and as which model.
        started: date and time.
        generator: errors of the load generator; None where another tool measured.
        hash_tokens: tokens of a block of `ObservedRequest.blocks` [tokens].
        interrupted: whether it was ended before the load was.
        source: what measured it.
    """

    run_id: str
    requests: tuple[ObservedRequest, ...]
    deployment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    load: Mapping[str, Any] = field(default_factory=dict[str, Any])
    url: str = ""
    endpoint: str = ""
    served_name: str = ""
    started: str = ""
    generator: GeneratorLimits | None = None
    hash_tokens: int = 64
    interrupted: bool = False
    source: str = "rackline observe"

    def measured(self, name: Literal["ttft_s", "tpot_s", "e2e_s"], of_class: str | None = None) -> Array:
        """A time of all finished requests, or of those of a class, without those that lack it, (n,) [s]."""
        done = [one for one in self.requests if one.outcome == "finished" and of_class in (None, one.class_name)]
        found = np.array([getattr(one, name) for one in done], dtype=np.float64)
        return found[np.isfinite(found)]

    @property
    def counts(self) -> dict[str, int]:
        """Requests by what became of them, finished ones first [requests]."""
        found = Counter(one.outcome for one in self.requests)
        return {name: found[name] for name in OUTCOMES if found[name] or name == "finished"}

    @property
    def duration_s(self) -> float:
        """Start to the end of the last stream [s]."""
        return max((one.end_s for one in self.requests if one.end_s is not None), default=0.0)

    def line(self) -> str:
        """The run as one line of a file of cases."""
        from rackline.plain import plain

        data: dict[str, Any] = {"id": self.run_id, "kind": KIND, **self.deployment}
        for name in ("started", "url", "endpoint", "served_name", "source", "hash_tokens"):
            if getattr(self, name):
                data[name] = getattr(self, name)
        data["interrupted"] = self.interrupted
        data["load"] = dict(self.load)
        if self.generator is not None:
            data["generator"] = plain(self.generator)
        data["requests"] = [_request_data(one) for one in self.requests]
        return json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"


_USUAL: dict[str, Any] = {one.name: one.default for one in fields(ObservedRequest)}


def _request_data(request: ObservedRequest) -> dict[str, Any]:
    """What differs from the defaults."""

    def written(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, _DIGITS)
        return [written(one) for one in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value

    return {name: written(value) for name in _USUAL if (value := getattr(request, name)) != _USUAL[name]}


def _whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is no whole number of at least {least}")
    return value


_READ: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("arrival_s", "sent_s", "end_s", "waited_s"), float),
    **dict.fromkeys(("outcome", "error", "class_name"), str),
    **{name: partial(_whole, least=1) for name in ("input_len", "output_len")},
    **{
        name: partial(_whole, least=0)
        for name in ("prompt_tokens", "output_tokens", "cached_tokens", "status", "retries", "malformed")
    },
    "after": partial(_whole, least=-1),
    "token_s": lambda times: tuple(map(float, times)),
    "blocks": lambda hashes: tuple(_whole(one, -(2**63)) for one in hashes),
}
"""Field of a request → its value as a file has it, checked."""
_MAY_BE_NONE = frozenset(name for name, usual in _USUAL.items() if usual is None)


def request_from(data: Mapping[str, Any], where: str) -> ObservedRequest:
    """Read one request of a run.

    Raises:
        InputError: an unknown key, a value of another type, times that decrease.
    """
    for name in data:
        if name not in _USUAL:
            raise InputError(what="request", given=name, allowed=", ".join(_USUAL), where=where)
    outcome = data.get("outcome")
    if outcome not in OUTCOMES:
        raise InputError(what="outcome", given=outcome, allowed=", ".join(OUTCOMES), where=where)
    try:
        given: dict[str, Any] = {
            name: None if data.get(name) is None and name in _MAY_BE_NONE else _READ[name](data[name])
            for name in ("arrival_s", "input_len", "output_len", *data)
        }
        found = ObservedRequest(**given)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(what="request", given=reason, allowed="times [s] and lengths [tokens]", where=where) from None
    times = [one for one in (found.sent_s, *found.token_s) if one is not None]
    if not all(math.isfinite(one) for one in (found.arrival_s, *times)) or times != sorted(times):
        raise InputError(what="request", given="times that decrease", allowed="sent_s, then token_s", where=where)
    return found


def requests_from(case: Case) -> tuple[ObservedRequest, ...]:
    """The requests of an observed case.

    Raises:
        InputError: as `request_from`.
    """
    rows = cast("Sequence[Mapping[str, Any]]", case.values["requests"])
    return tuple(request_from(row, f"{case.where}, request {number}") for number, row in enumerate(rows))


def observed_run(resolver: Resolver, case: Case) -> ServedRun:
    """The finished requests of an observed case, at the moments at which they were sent, and its server.

    Raises:
        RacklineError: none finished; what was served is not said, or does not run.
    """
    every = requests_from(case)
    done = [one for one in every if one.outcome == "finished" and one.sent_s is not None and one.tokens > 0]
    if not done:
        raise InputError(what="requests", given="none that finished", allowed="at least one", where=case.where)
    for name in ("model", "chip"):
        if not getattr(case, name) and not (name == "model" and (case.config or case.architecture)):
            how = "what was served and where: `model` and `on` of observe"
            raise InputError(what=name, given="nothing", allowed=how, where=case.where)
    done.sort(key=lambda one: one.sent_s or 0.0)
    hash_tokens, drafts = case.whole("hash_tokens", 64), case.whole("drafts")
    requests = Requests(
        arrival_s=np.maximum(np.array([one.sent_s for one in done], dtype=np.float64), 0.0),
        input_len=np.array([one.prompt_len for one in done], dtype=np.int64),
        output_len=np.array([one.tokens for one in done], dtype=np.int64),
        hashes=[list(one.blocks) for one in done] if any(one.blocks for one in done) else None,
        hash_tokens=hash_tokens,
        name=case.case_id,
    )
    caching = case.values.get("prefix_caching")
    return ServedRun(
        requests=requests,
        measured={
            name: np.array([getattr(one, name) for one in done], dtype=np.float64)
            for name in ("ttft_s", "tpot_s", "e2e_s")
        },
        deployment=resolver.deployments(case)[0],
        stack=resolver.stack(case),
        cache=CacheConfig(
            pool_tokens=case.whole("kv_tokens") or None,
            prefix_caching=requests.hashes is not None if caching is None else bool(caching),
            hash_tokens=hash_tokens,
        ),
        speculation=usual_speculation(drafts) if drafts else PLAIN,
    )


def served_run(resolver: Resolver, case: Case) -> ServedRun:
    """The run of a case of kind observed or requests.

    Raises:
        RacklineError: as `observed_run` and `rackline.validation.requests.recorded_run`.
    """
    return (observed_run if case.kind == KIND else recorded_run)(resolver, case)
