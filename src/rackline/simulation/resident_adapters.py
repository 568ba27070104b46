"""Low-rank adapters of a rank: those in memory, those in use, and transfers of others from the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rackline.arch import AppliedAdapter
from rackline.errors import InputError
from rackline.simulation.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSlots:
    """Room for adapters on a rank.

    Args:
        slots: adapters in memory at a time [count].
        load_s: transfer of one from the memory of the host [s].
    """

    slots: int
    load_s: float

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise InputError(what="resident adapters", given=self.slots, allowed="at least 1", nearest="1")


class ResidentAdapters:
    """Adapters in memory; of those that no running request uses, the one least recently used makes room."""

    __slots__ = ("idle", "loads", "spec", "users")

    def __init__(self, spec: AdapterSlots) -> None:
        self.spec = spec
        self.users: dict[int, int] = {}  # adapter in use → running requests that use it
        self.idle: dict[int, None] = {}  # adapters in memory that nobody uses, the least recently used first
        self.loads = 0

    def has_room(self, adapter: int) -> bool:
        """Whether a request with this adapter can start: it is in memory, or another one can leave."""
        return adapter in self.users or len(self.users) < self.spec.slots

    def use(self, adapter: int) -> float:
        """A request with this adapter starts; returns the time of its transfer, 0 if it is in memory [s]."""
        if adapter in self.users:
            self.users[adapter] += 1
            return 0.0
        self.users[adapter] = 1
        if adapter in self.idle:
            del self.idle[adapter]
            return 0.0
        if len(self.users) + len(self.idle) > self.spec.slots:
            del self.idle[next(iter(self.idle))]
        self.loads += 1
        return self.spec.load_s

    def release(self, adapter: int) -> None:
        """A request with this adapter ends or is preempted."""
        self.users[adapter] -= 1
        if not self.users[adapter]:
            del self.users[adapter]
            self.idle[adapter] = None


def with_chosen_adapters(requests: Requests, adapter: AppliedAdapter | None, seed: int) -> Requests:
    """The same requests, each with one of the adapters by their popularity; those of a conversation with one.

    Args:
        adapter: of the model; the requests stay as they are without one, or with a single one.
        seed: of the choice.
    """
    if adapter is None or adapter.number == 1:
        return requests
    chosen = adapter.draw(np.random.default_rng([seed, adapter.number]), len(requests))
    if requests.after is not None:
        for index, before in enumerate(requests.after.tolist()):
            if before >= 0:
                chosen[index] = chosen[before]
    return replace(requests, adapters=chosen)
