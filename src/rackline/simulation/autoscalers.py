"""Autoscalers: policies that choose the number of replicas.

`rackline.simulation.fleet` asks them at regular times, starts and drains replicas, and pays for them. A new one is an
entry of `AUTOSCALERS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.load import Load
from rackline.simulation.policies import Family
from rackline.simulation.workloads import DAY_S


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
        setting: what it knows before.
    """

    interval_s: float = 15.0
    """Between two questions [s]."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def wish(self, seen: Seen) -> int:
        """Replicas that it wants [count]; the fleet keeps them between its least and its most."""
        raise NotImplementedError


class Fixed(Autoscaler):
    """No autoscaling: the replicas of the start."""

    interval_s = 60.0

    def wish(self, seen: Seen) -> int:
        """The replicas of the start."""
        return self.setting.begin


TOLERANCE, STABILISATION_S, GROWTH, GROWTH_PODS = 0.1, 300.0, 2.0, 4  # of Kubernetes


class Behaviour:
    """How fast the number of replicas may follow a wish."""

    def __init__(self) -> None:
        self.wishes: deque[tuple[float, int]] = deque()

    def allowed(self, seen: Seen, wish: int) -> int:
        """The wish, or the highest of the last five minutes where that is more, and no more than growth allows."""
        if not self.wishes:
            self.wishes.append((seen.time_s, seen.replicas))
        self.wishes.append((seen.time_s, wish))
        while self.wishes[0][0] < seen.time_s - STABILISATION_S:
            self.wishes.popleft()
        current = seen.replicas
        if wish < current:
            return min(max(old for _, old in self.wishes), current)
        return min(wish, max(int(GROWTH * current), current + GROWTH_PODS))


class Hpa(Autoscaler):
    """The Horizontal Pod Autoscaler of Kubernetes on a metric of the pods: n' = ceil(n · metric / target).

    Rules: asked every 15 s; nothing changes while the ratio is within 0.1 of 1; a pod that is not ready counts as
    without load when growing and is left out when shrinking; up by at most 100 % or four pods in 15 s, at once; down to
    the highest wish of the last 300 s. Kubernetes has no usual target: it is what a replica has at 70 % of its highest
    rate within the limits.

    Sources: kubernetes/website, horizontal-pod-autoscale.md (read 2026-11-23), "Algorithm details" and "Default
    behavior"; the order of the tests is that of kubernetes/kubernetes, pkg/controller/podautoscaler/
    replica_calculator.go (calcPlainMetricReplicas, from memory).

    Args:
        read: the metric summed over the ready replicas.
        usual: its target for one replica.
    """

    def __init__(self, setting: Setting, read: Callable[[Seen], float], usual: float) -> None:
        super().__init__(setting)
        self.read, self.target, self.behaviour = read, max(setting.target or usual, 1e-9), Behaviour()

    def wish(self, seen: Seen) -> int:
        """Replicas by the rule; those that are there while none is ready, as there is no metric then."""
        current = seen.replicas
        if not seen.ready:
            return current
        total = self.read(seen)
        pods = seen.ready
        ratio = total / (self.target * pods)
        if seen.starting and ratio > 1.0:
            pods = current
            ratio = max(total / (self.target * pods), 1.0)
        wish = current if abs(ratio - 1.0) <= TOLERANCE else ceil(ratio * pods - 1e-9)
        return self.behaviour.allowed(seen, wish)


def on_concurrency(setting: Setting) -> Hpa:
    """The rule of `Hpa` on requests in a replica, running and waiting."""
    return Hpa(setting, lambda seen: float(seen.running + seen.waiting), setting.running)


def on_kv_use(setting: Setting) -> Hpa:
    """The rule of `Hpa` on the share of KV blocks in use, as vLLM's gpu_cache_usage_perc."""
    return Hpa(setting, lambda seen: seen.kv_use, setting.kv_use)


POLL_S, COOLDOWN_S, TARGET = 30.0, 300.0, 5.0


class Keda(Autoscaler):
    """KEDA on the length of the queue: between 0 and 1 replica by itself, from 1 on by the Horizontal Pod Autoscaler.

    Rules: the trigger is polled every 30 s; it is active while requests wait; 300 s after it was active last, the last
    replica goes, where the least number is 0. From 1 on the metric is that of an external source: n' = ceil(queue /
    target) unless the mean over the replicas is within 0.1 of the target.

    Sources: kedacore/keda-docs, 2.17, scaledobject-spec.md (read 2026-11-23); 5 waiting requests are the mark at which
    llm-d's scheduler calls a replica saturated (llm-d/llm-d-router@ebab6879, pkg/epp/flowcontrol).
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.target, self.behaviour = setting.target or TARGET, Behaviour()
        self.polled_s, self.active_s = -inf, 0.0

    def wish(self, seen: Seen) -> int:
        """Replicas by both rules."""
        polls = seen.time_s - self.polled_s >= POLL_S - 1e-9
        if polls:
            self.polled_s = seen.time_s
            if seen.waiting:
                self.active_s = seen.time_s
        if not seen.replicas:
            return 1 if polls and seen.waiting else 0
        if polls and not seen.waiting and seen.time_s - self.active_s >= COOLDOWN_S:
            return 0
        ratio = seen.waiting / (self.target * seen.replicas)
        wish = seen.replicas if abs(ratio - 1.0) <= TOLERANCE else ceil(seen.waiting / self.target - 1e-9)
        return self.behaviour.allowed(seen, max(wish, 1))


LEVEL_VARIANCE, TREND_VARIANCE, OBSERVED_VARIANCE, LEAST_POINTS = 1.0, 0.1, 10.0, 5


class Kalman:
    """A local linear trend: level and trend follow random walks, and the level is observed with noise."""

    def __init__(self) -> None:
        self.state: Array = np.zeros(2)
        self.spread: Array = np.diag([1e6, 1e3])
        self.points = 0

    def next(self, value: float) -> float:
        """Take a value and predict the next one; the value itself until there are five."""
        step = np.array([[1.0, 1.0], [0.0, 1.0]])
        if self.points:
            self.state = step @ self.state
            self.spread = step @ self.spread @ step.T + np.diag([LEVEL_VARIANCE, TREND_VARIANCE])
        gain = self.spread[:, 0] / (self.spread[0, 0] + OBSERVED_VARIANCE)
        self.state = self.state + gain * (value - self.state[0])
        self.spread = self.spread - np.outer(gain, self.spread[0])
        self.points += 1
        return value if self.points < LEAST_POINTS else float(max(self.state.sum(), 0.0))


class DynamoPlanner(Autoscaler):
    """Dynamo's planner, predictive: replicas = ceil(predicted rate / rate of a replica that meets the limits).

    Rules: every 180 s the requests of the next interval are predicted from those of the intervals before, here by its
    Kalman filter (a level with a trend, variances 1 and 0.1 of the steps, 10 of the observation, the last value until
    there are five). The rate of a replica is what profiling finds within the limits before the deployment. Prompts and
    outputs have pools of their own, each with its own rate.

    Source: ai-dynamo/dynamo, planner/core/throughput_scaling.py and config/defaults.py (read 2026-11-23). Its default
    predictor is ARIMA; lengths of prompts and outputs, which it predicts too, are taken as constant.
    """

    interval_s = 180.0

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.kalman = Kalman()

    def wish(self, seen: Seen) -> int:
        """Replicas of the predicted rate; those of the start before anything was seen."""
        if seen.time_s <= 0.0:
            return seen.replicas
        return self.setting.enough(self.kalman.next(float(seen.arrived)) / self.interval_s)


class Seasonal(Autoscaler):
    """Seasonal prediction: the load of the coming minutes is that of a day before, or of the day given as history.

    Without either (the first day of a run without history) the rate of the last interval is taken. Replicas are begun
    so early that they are ready when the load comes.

    Source: the seasonal naive forecast, Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd edition,
    section 5.2 (OTexts).
    """

    interval_s = 300.0

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen: list[int] = []  # requests by interval

    def wish(self, seen: Seen) -> int:
        """Replicas of the highest rate that is expected until those begun at the next interval would be ready."""
        if seen.time_s > 0.0:
            self.seen.append(seen.arrived)
        ahead = ceil((self.setting.start_s + self.interval_s) / self.interval_s)
        times = seen.time_s + self.interval_s * np.arange(ahead + 1)
        season = round(DAY_S / self.interval_s)
        known = [self.seen[place] for place in range(len(self.seen) - season, len(self.seen) - season + ahead + 1)
                 if 0 <= place < len(self.seen)] if len(self.seen) >= season else []  # fmt: skip
        if known:
            rate = max(known) / self.interval_s
        elif self.setting.history is not None:
            rate = float(self.setting.history.at(times % self.setting.history.seconds).max())
        elif self.seen:
            rate = self.seen[-1] / self.interval_s
        else:
            return seen.replicas
        return self.setting.enough(rate)


class Oracle(Autoscaler):
    """An oracle: it knows all arrivals of the run, and begins replicas so early that they are ready for the load.

    It is no policy that one can run but the mark that others are measured by: with the same start-up times and the same
    rate of a replica, what it spends more than a perfect system is the price of start-up and of whole replicas, and
    what a policy spends more than it is the price of not knowing.
    """

    window_s = 60.0  # over which arrivals are a rate

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        last = float(setting.arrivals_s[-1]) if len(setting.arrivals_s) else 0.0
        counts, _ = np.histogram(setting.arrivals_s, bins=np.arange(0.0, last + 2.0 * self.window_s, self.window_s))
        self.rates = counts / self.window_s

    def wish(self, seen: Seen) -> int:
        """Replicas [count]."""
        first = int(seen.time_s // self.window_s)
        until = int((seen.time_s + self.setting.start_s + self.interval_s) // self.window_s)
        coming = self.rates[first : until + 1]
        return self.setting.enough(float(coming.max()) if len(coming) else 0.0)


AUTOSCALERS = Family[Callable[[Setting], Autoscaler]](
    "autoscaler",
    {
        "dynamo_planner": DynamoPlanner,
        "fixed": Fixed,
        "hpa": on_concurrency,
        "hpa_kv": on_kv_use,
        "keda": Keda,
        "oracle": Oracle,
        "seasonal": Seasonal,
    },
)
