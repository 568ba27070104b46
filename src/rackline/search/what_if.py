"""What-if: the optimum while one quantity varies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

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

    json_keys: ClassVar = (
        "value",
        "setting",
        "best=plan.best",
        "reason",
    )

    value: str
    number: float
    setting: str
    plan: Plan

    @property
    def cost(self) -> float:
        """Cheapest cost [USD per million output tokens]; infinite without an answer."""
        return self.plan.best.usd_per_mtok_output_all_in if self.plan.best is not None else math.inf

    @property
    def reason(self) -> str:
        """Why there is no answer; empty where there is one."""
        return self.plan.reason if self.plan.best is None else ""
