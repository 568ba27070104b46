"""The entrance of a server: what requests pass before a router gives them to a replica.

Tokenisers and HTTP servers of a frontend are queues, first come, first served, before a number of servers. A bare
tokeniser is about eight times as fast as what a whole frontend reaches with it: rates are those of whole frontends
where they were measured.

A rule of admission refuses requests (HTTP 429). It is asked before the router, with the replicas as of the last pass
that began; what was admitted once is not asked again. The urgent are those of the lowest tier that the requests have.
A new rule is an entry of `ADMISSIONS`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from rackline.errors import unknown_name
from rackline.passes.features import Array
from rackline.simulation.policies import Family
from rackline.simulation.requests import Requests
from rackline.simulation.routers import Standing
from rackline.simulation.statistics import Spread, percentiles
from rackline.units import parse_per_second, parse_whole

BYTES_PER_TOKEN = 4.0
"""Bytes of a token of English text (assumed, to read a rate of bytes as a rate of tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One kind of server of a frontend.

    Args:
        name: of it.
        tokens_per_s: prompt tokens that one server takes in [tokens/s].
        servers: processes or cores [count].
        source: of the rate; empty where it was given.
    """

    name: str
    tokens_per_s: float
    servers: int
    source: str = ""


STAGES = {
    one.name: one
    for one in (
        Stage(
            name="dynamo",
            tokens_per_s=7.43 * 60_000 / 4,
            servers=4,
            source="NVIDIA Dynamo's frontend with the Hugging Face tokeniser: 7.43 requests/s of 60,000 tokens on 4 "
            "cores (ai-dynamo/dynamo pull request 9742, read 2026-11-25)",
        ),
        Stage(
            name="dynamo-cached",
            tokens_per_s=22.88 * 60_000 / 4,
            servers=4,
            source="the same with its cache of tokenised prefixes, 99.75 % hits: 22.88 requests/s (9742; on by default "
            "since 11078)",
        ),
        Stage(
            name="tensorrt-llm",
            tokens_per_s=38_000 / 43.7e-3,
            servers=1,
            source="TensorRT-LLM's input processor: 43.7 ms for prompts of 38,000 tokens (NVIDIA/TensorRT-LLM pull "
            "request 18389, read 2026-11-25)",
        ),
        Stage(
            name="tensorrt-llm-cached",
            tokens_per_s=38_000 / 5.49e-3,
            servers=1,
            source="the same with its cache of tokenised prefixes: 5.49 ms (18389)",
        ),
        Stage(
            name="llm-d",
            tokens_per_s=130 * 220e3 / BYTES_PER_TOKEN,
            servers=1,
            source="llm-d's router: 128 to 132 requests/s at prompts of 220 KB at any load (llm-d/llm-d-router "
            "issue 1109, read 2026-11-23); that its time goes with the bytes, and 4 bytes a token, are assumed",
        ),
    )
}


def stages_of(text: str) -> tuple[Stage, ...]:
    """Read "dynamo", "llm-d,dynamo=8" or "120k/s=16": what requests pass, in this order.

    Raises:
        InputError: another form.
    """
    found: list[Stage] = []
    for part in text.split(","):
        name, equals, servers = (piece.strip() for piece in part.partition("="))
        if name[:1].isdigit():
            rate = parse_per_second(name, name="frontend", maximum=1e12)
            stage = Stage(name=f"{name} tokeniser", tokens_per_s=rate, servers=1)
        elif name in STAGES:
            stage = STAGES[name]
        else:
            raise unknown_name("frontend", name, (*STAGES, "prompt tokens of a server such as 120k/s"))
        number = parse_whole(servers, name="frontend servers", minimum=1, maximum=100_000) if equals else stage.servers
        found.append(replace(stage, servers=number))
    return tuple(found)


class StageData(TypedDict):
    """What a stage of the frontend did.

    Args:
        name, servers: of it.
        requests_per_s: that it can pass, at the mean prompt [requests/s].
        utilization: requests that came over those that it can pass [1].
        wait_s: before a server is free [s].
        service_s: mean time in a server [s].
    """

    name: str
    servers: int
    requests_per_s: float
    utilization: float
    wait_s: Spread
    service_s: float


class Frontend:
    """Stages during one run.

    Args:
        stages: in the order in which requests pass them.
        requests: of the run.
    """

    def __init__(self, stages: Sequence[Stage], requests: Requests) -> None:
        self.stages = tuple(stages)
        self.free = [[0.0] * one.servers for one in self.stages]
        self.service_s: list[list[float]] = [(requests.input_len / one.tokens_per_s).tolist() for one in self.stages]
        self.came_s = np.full((len(self.stages), len(requests)), np.nan)
        self.wait_s = np.full((len(self.stages), len(requests)), np.nan)

    def leave(self, stage: int, request: int, time_s: float) -> float:
        """When a request leaves a stage to which it comes now; calls are in the order of time [s]."""
        free = self.free[stage]
        begin = max(free[0], time_s)
        end = begin + self.service_s[stage][request]
        heapq.heapreplace(free, end)
        self.came_s[stage, request], self.wait_s[stage, request] = time_s, begin - time_s
        return end

    def pass_all(self, times_s: Array, skips: Array) -> Array:
        """When requests that come at these times have passed all stages [s], (n,).

        Args:
            skips: mask of those that pass none, (n,).
        """
        for stage in range(len(self.stages)):
            left, order = times_s.copy(), np.argsort(times_s, kind="stable")
            for request in order[~skips[order]].tolist():
                left[request] = self.leave(stage, request, float(times_s[request]))
            times_s = left
        return times_s

    def data(self) -> list[StageData]:
        """What each stage did so far."""
        found: list[StageData] = []
        for index, stage in enumerate(self.stages):
            came = np.isfinite(self.came_s[index])
            if not came.any():
                continue
            service = np.asarray(self.service_s[index])[came]
            times = self.came_s[index][came]
            able = stage.servers / float(service.mean())
            span = float(times.max() - times.min())
            found.append(
                {
                    "name": stage.name,
                    "servers": stage.servers,
                    "requests_per_s": able,
                    "utilization": (len(times) - 1) / span / able if span > 0 else float("inf"),
                    "wait_s": percentiles(self.wait_s[index]),
                    "service_s": float(service.mean()),
                }
            )
        return found


class Admission:
    """A rule during one run.

    Args:
        limit: its number; None for its own.
        rng: for rules that draw.
    """

    usual: float | None = None
    """The limit where none is given; None where there must be one."""
    has_limit = True
    """Whether it takes a number."""
    for_less_urgent = False
    """Whether it refuses less urgent requests only."""

    def __init__(self, limit: float | None, rng: np.random.Generator) -> None:
        self.limit, self.rng = self.usual if limit is None else limit, rng

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether a request that comes now is served."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """A rule before it runs.

    Args:
        name: of the rule.
        limit: its number; None for its own.
        seed: of what it draws.
    """

    name: str
    limit: float | None = None
    seed: int = 0

    def begin(self) -> Admission:
        """The rule for one run."""
        return ADMISSIONS.find(self.name)(self.limit, np.random.default_rng([self.seed, 429]))


MOST_QUEUED, MOST_KV = 5.0, 0.8


def saturation_of(standing: Standing) -> float:
    """How full a pool is: mean over replicas of max(waiting / 5, KV in use / 0.8) [1].

    Source: llm-d/llm-d-router @ ebab6879, pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization, read
    2026-11-23.
    """
    each = zip(standing.queued, standing.kv_use, strict=True)
    return sum(max(queued / MOST_QUEUED, use / MOST_KV) for queued, use in each) / len(standing.replicas)


class Concurrency(Admission):
    """Admits at most a number of requests in flight, running and waiting, for each replica.

    Sources: the limit of concurrency that providers answer with 429 (docs.coreweave.com/support/inference/articles/
    api-error-code-429-concurrency-limit-rea, read 2026-11-25); 100 is the capacity of llm-d's concurrency-detector
    (llm-d/llm-d-router @ ebab6879, pkg/epp/framework/plugins/flowcontrol/saturationdetector/concurrency).
    """

    usual = 100.0

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether there is room for one more."""
        return sum(standing.loads) < (self.limit or 0.0) * len(standing.replicas)


class Queue(Admission):
    """Admits while at most a number of requests wait for each replica.

    Source: SGLang --max-queued-requests (sgl-project/sglang pull request 7565, off by default, answered with 503).
    There the limit is that of the scheduler that a request was sent to; here of all together. With priorities SGLang
    drops a less urgent waiting request instead (8746), which is not modelled.
    """

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether the queues have room for one more."""
        return sum(standing.queued) < (self.limit or 0.0) * len(standing.replicas)


class Saturation(Admission):
    """Less urgent requests are refused while the pool is saturated; urgent ones never.

    Source: llm-d/llm-d-router @ ebab6879, pkg/epp/flowcontrol (429 at the ceiling of saturation, 1.0; requests of a
    priority below 0 are sheddable) without its queue, in which requests wait for up to 60 s.
    """

    usual = 1.0
    for_less_urgent = True

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether it is urgent, or the pool below the ceiling."""
        return urgent or saturation_of(standing) < (self.limit or 0.0)


class Probabilistic(Admission):
    """Less urgent requests are refused with a probability of min(1, 300 · saturation^5); urgent ones never.

    Source: llm-d/llm-d-router @ ebab6879, pkg/epp/framework/plugins/requestcontrol/admitter/probabilisticadmitter, read
    2026-11-23. All are refused from a saturation of 0.32 on.
    """

    has_limit = False
    for_less_urgent = True

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether it is urgent, or the draw is above the probability."""
        return urgent or float(self.rng.random()) >= 300.0 * saturation_of(standing) ** 5.0


ADMISSIONS = Family[type[Admission]](
    "admission",
    {"concurrency": Concurrency, "probabilistic": Probabilistic, "queue": Queue, "saturation": Saturation},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """What requests pass before they are in the queue of a replica.

    Args:
        router: its name.
        admission: rule that refuses requests; None serves all.
        frontend: stages of tokenisers and HTTP servers.
        beyond_s: time from arrival to the scheduler beside them (network) [s].
    """

    router: str = "round-robin"
    admission: AdmissionRule | None = None
    frontend: tuple[Stage, ...] = ()
    beyond_s: float = 0.0
