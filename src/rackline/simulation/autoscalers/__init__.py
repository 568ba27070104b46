"""Policies that choose the number of replicas, one file each; a new file with an AUTOSCALER is registered by itself.

`rackline.simulation.fleet` asks them at regular times, starts and drains replicas, and pays for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.load import Load
from rackline.simulation.policies import found_in, names_in


class Seen(NamedTuple):
    """What a policy sees of a pool.

    Args:
        time_s: now [s].
        ready: replicas that take requests [count].
        starting: that do not yet [count].
        running: requests in passes of all replicas [requests].
        waiting: requests in their queues and before them [requests].
        kv_use: KV blocks in use, summed over ready replicas as shares [replicas].
        arrived: requests since it was asked last [requests].
    """

    time_s: float
    ready: int
    starting: int
    running: int
    waiting: int
    kv_use: float
    arrived: int

    @property
    def replicas(self) -> int:
        """Ready and starting [count]."""
        return self.ready + self.starting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What a policy knows before the run.

    Args:
        capacity_per_s: highest rate of a replica within the limits [requests/s].
        running: requests in a replica at 70 % of that rate [requests].
        kv_use: its KV blocks in use, likewise [1].
        start_s: from a decision until a replica takes requests [s].
        begin: replicas at the start [count].
        target: what a replica shall have of the policy's metric; None for the policy's own.
        arrivals_s: of all requests of the run, ascending, which only an oracle reads [s], (n,).
        history: load of an earlier day or week; None without one.
    """

    capacity_per_s: float
    running: float
    kv_use: float
    start_s: float
    begin: int
    arrivals_s: Array
    target: float | None = None
    history: Load | None = None

    def enough(self, rate_per_s: float) -> int:
        """Replicas that serve a rate within the limits [count]."""
        return int(np.ceil(rate_per_s / self.capacity_per_s - 1e-9))


class Autoscaler:
    """A policy during one run, with what it remembers.

    Args:
        interval_s: between two questions [s].
    """

    interval_s: float = 15.0

    def wish(self, seen: Seen) -> int:
        """Replicas that it wants [count]; the fleet keeps them between its least and its most."""
        raise NotImplementedError


def autoscaler_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    return names_in(__path__)


def autoscaler(name: str) -> Callable[[Setting], Autoscaler]:
    """Find a policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    return found_in(__name__, __path__, "autoscaler", name)
