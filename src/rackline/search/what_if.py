"""What-if: the optimum while one quantity varies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rackline.search.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPoint:
    """The optimum at one value.

    Args:
        value: as given.
        number: of the value, without its unit.
        setting: what was set for it.
        plan: the answer there.
    """

    value: str
    number: float
    setting: str
    plan: Plan

    @property
    def cost(self) -> float:
        """What the plan's objective has least of [USD per million output tokens, or J a token]; infinite without."""
        best = self.plan.best
        if best is None:
            return math.inf
        if self.plan.objective == "joules" and best.energy is not None:
            return best.energy.joules_per_output_token
        return best.usd_per_mtok_output_all_in

    @property
    def reason(self) -> str:
        """Why there is no answer; empty where there is one."""
        return self.plan.reason if self.plan.best is None else ""
