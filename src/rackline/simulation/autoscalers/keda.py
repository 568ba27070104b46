"""KEDA on the length of the queue: between 0 and 1 replica by itself, from 1 on by the Horizontal Pod Autoscaler.

Rules: the trigger is polled every 30 s; it is active while requests wait; 300 s after it was active last, the last
replica goes, where the least number is 0. From 1 on the metric is that of an external source: n' = ceil(queue / target)
unless the mean over the replicas is within 0.1 of the target.

Sources: kedacore/keda-docs, 2.17, scaledobject-spec.md (read 2026-11-23); 5 waiting requests are the mark at which
llm-d's scheduler calls a replica saturated (llm-d/llm-d-router@ebab6879, pkg/epp/flowcontrol).
"""

from __future__ import annotations

from math import ceil, inf

from rackline.simulation.autoscalers import Autoscaler, Seen, Setting
from rackline.simulation.autoscalers.hpa import TOLERANCE, Behaviour

POLL_S, COOLDOWN_S, TARGET = 30.0, 300.0, 5.0


class Keda(Autoscaler):
    """KEDA with its Horizontal Pod Autoscaler, which is asked every 15 s."""

    def __init__(self, setting: Setting) -> None:
        self.target = setting.target or TARGET
        self.behaviour = Behaviour()
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


AUTOSCALER = Keda
