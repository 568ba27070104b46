"""An oracle: it knows all arrivals of the run, and begins replicas so early that they are ready when the load comes.

It is no policy that one can run but the mark that others are measured by: with the same start-up times and the same
rate of a replica, what it spends more than a perfect system is the price of start-up and of whole replicas, and what a
policy spends more than it is the price of not knowing.
"""

from __future__ import annotations

import numpy as np

from rackline.simulation.autoscalers import Autoscaler, Seen, Setting

WINDOW_S = 60.0  # over which arrivals are a rate


class Oracle(Autoscaler):
    """Replicas of the highest rate until those begun at the next question would be ready."""

    interval_s = 15.0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        last = float(setting.arrivals_s[-1]) if len(setting.arrivals_s) else 0.0
        counts, _ = np.histogram(setting.arrivals_s, bins=np.arange(0.0, last + 2.0 * WINDOW_S, WINDOW_S))
        self.rates = counts / WINDOW_S

    def wish(self, seen: Seen) -> int:
        """Replicas [count]."""
        first = int(seen.time_s // WINDOW_S)
        until = int((seen.time_s + self.setting.start_s + self.interval_s) // WINDOW_S)
        coming = self.rates[first : until + 1]
        return self.setting.enough(float(coming.max()) if len(coming) else 0.0)


AUTOSCALER = Oracle
