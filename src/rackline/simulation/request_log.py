"""The outcome of each request, written by all replicas of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rackline.simulation.requests import Requests


class RequestLog:
    """Lengths [tokens], times [s] and counts by request; times are None until they are known."""

    __slots__ = (
        "adapter_loads",
        "adapters",
        "admitted_s",
        "answer_hashes",
        "arrival_s",
        "cached",
        "computed",
        "engine_s",
        "finish_s",
        "first_s",
        "generated",
        "hashes",
        "input_len",
        "last_s",
        "output_len",
        "preempted",
        "priority",
        "ready",
        "tier_tokens",
    )

    def __init__(self, requests: Requests, num_tiers: int = 0) -> None:
        count = len(requests)
        self.input_len: list[int] = requests.input_len.tolist()
        self.output_len: list[int] = requests.output_len.tolist()
        self.priority: list[int] | None = None if requests.priority is None else requests.priority.tolist()
        self.hashes: Sequence[Sequence[int]] | None = requests.hashes
        self.answer_hashes: Sequence[Sequence[int]] | None = requests.answer_hashes
        self.adapters: list[int] | None = None if requests.adapters is None else requests.adapters.tolist()
        self.adapter_loads = 0  # transfers of adapters from the host
        self.arrival_s: list[float | None] = [None] * count
        self.engine_s: list[float | None] = [None] * count  # when the scheduler sees it
        self.admitted_s: list[float | None] = [None] * count
        self.first_s: list[float | None] = [None] * count
        self.finish_s: list[float | None] = [None] * count
        self.last_s: dict[int, float] = {}  # last token of a preempted request
        self.generated: dict[int, int] = {}  # output tokens before it was preempted or handed over
        self.ready: set[int] = set()  # requests whose prompt was computed elsewhere
        self.computed: list[int] | None = None  # prompt tokens that are cached on arrival
        if requests.computed is not None:
            self.computed = requests.computed.tolist()
            self.ready.update(np.flatnonzero(requests.computed >= requests.input_len).tolist())
        self.preempted: dict[int, int] = {}
        self.cached: dict[int, int] = {}  # prompt tokens found in a cache
        self.tier_tokens = [0] * (1 + num_tiers)

    def is_urgent(self, request: int) -> int:
        """Tier of a request; a lower one is more urgent."""
        return 0 if self.priority is None else self.priority[request]
