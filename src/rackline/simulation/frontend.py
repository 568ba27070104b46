"""The frontend of a server: tokenisers and HTTP servers that a request passes before the scheduler sees it.

Each is a queue, first come, first served, before a number of servers. A bare tokeniser is about eight times as fast as
what a whole frontend reaches with it: rates are those of whole frontends where they were measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from rackline.errors import unknown_name
from rackline.passes.features import Array
from rackline.simulation.requests import Requests
from rackline.simulation.statistics import Spread, percentiles
from rackline.units import parse_per_second, parse_whole

BYTES_PER_TOKEN = 4.0
"""Of English text (assumed, to read a rate of bytes as one of tokens)."""


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
