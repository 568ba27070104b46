"""Seasonal prediction: the load of the coming minutes is that of a day before, or of the day that was given as history.

Without either (the first day of a run without history) the rate of the last interval is taken. Replicas are begun so
early that they are ready when the load comes.

Source: the seasonal naive forecast, Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd edition,
section 5.2 (OTexts).
"""

from __future__ import annotations

from math import ceil

import numpy as np

from rackline.simulation.autoscalers import Autoscaler, Seen, Setting
from rackline.simulation.workloads import DAY_S

INTERVAL_S = 300.0


class Seasonal(Autoscaler):
    """The seasonal naive forecast."""

    interval_s = INTERVAL_S

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.seen: list[int] = []  # requests by interval

    def wish(self, seen: Seen) -> int:
        """Replicas of the highest rate that is expected until those begun at the next interval would be ready."""
        if seen.time_s > 0.0:
            self.seen.append(seen.arrived)
        ahead = ceil((self.setting.start_s + INTERVAL_S) / INTERVAL_S)
        times = seen.time_s + INTERVAL_S * np.arange(ahead + 1)
        season = round(DAY_S / INTERVAL_S)
        known = [self.seen[place] for place in range(len(self.seen) - season, len(self.seen) - season + ahead + 1)
                 if 0 <= place < len(self.seen)] if len(self.seen) >= season else []  # fmt: skip
        if known:
            rate = max(known) / INTERVAL_S
        elif self.setting.history is not None:
            rate = float(self.setting.history.at(times % self.setting.history.seconds).max())
        elif self.seen:
            rate = self.seen[-1] / INTERVAL_S
        else:
            return seen.replicas
        return self.setting.enough(rate)


AUTOSCALER = Seasonal
