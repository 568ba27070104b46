"""The Horizontal Pod Autoscaler of Kubernetes on concurrency: n' = ceil(n · metric / target).

Rules: asked every 15 s; nothing changes while the ratio is within 0.1 of 1; a pod that is not ready counts as without
load when growing and is left out when shrinking; up by at most 100 % or four pods in 15 s, at once; down to the highest
wish of the last 300 s.

Sources: kubernetes/website, horizontal-pod-autoscale.md (read 2026-11-23), "Algorithm details" and "Default behavior";
the order of the tests is that of kubernetes/kubernetes, pkg/controller/podautoscaler/replica_calculator.go
(calcPlainMetricReplicas, from memory). Kubernetes has no usual target: it is what a replica has at 70 % of its highest
rate within the limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil

from rackline.simulation.autoscalers import Autoscaler, Seen, Setting

TOLERANCE = 0.1
STABILISATION_S = 300.0
GROWTH, GROWTH_PODS = 2.0, 4


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
    """Kubernetes' rule on a metric of the pods.

    Args:
        read: the metric summed over the ready replicas.
        target: of one replica.
    """

    def __init__(self, read: Callable[[Seen], float], target: float) -> None:
        self.read, self.target, self.behaviour = read, max(target, 1e-9), Behaviour()

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
    """The rule on requests in a replica, running and waiting."""
    target = setting.target or setting.running
    return Hpa(lambda seen: float(seen.running + seen.waiting), target)


AUTOSCALER = on_concurrency
