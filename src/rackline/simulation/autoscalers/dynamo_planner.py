"""Dynamo's planner, predictive: replicas = ceil(predicted rate / rate of a replica that meets the limits).

Rules: every 180 s the requests of the next interval are predicted from those of the intervals before, here by its
Kalman filter (a level with a trend, variances 1 and 0.1 of the steps, 10 of the observation, the last value until there
are five). The rate of a replica is what profiling finds within the limits before the deployment. Prompts and outputs
have pools of their own, each with its own rate.

Source: ai-dynamo/dynamo, planner/core/throughput_scaling.py and config/defaults.py (read 2026-11-23). Its default
predictor is ARIMA; lengths of prompts and outputs, which it predicts too, are taken as constant.
"""

from __future__ import annotations

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.autoscalers import Autoscaler, Seen, Setting

INTERVAL_S = 180.0
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
    """The planner's predictive mode."""

    interval_s = INTERVAL_S

    def __init__(self, setting: Setting) -> None:
        self.setting, self.kalman = setting, Kalman()

    def wish(self, seen: Seen) -> int:
        """Replicas of the predicted rate; those of the start before anything was seen."""
        if seen.time_s <= 0.0:
            return seen.replicas
        return self.setting.enough(self.kalman.next(float(seen.arrived)) / self.interval_s)


AUTOSCALER = DynamoPlanner
