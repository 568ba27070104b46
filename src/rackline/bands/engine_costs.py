"""What serving engines cost by estimates, how surely one is cheaper, and which cost is suspect.

An engine is called cheaper than the one that is taken only if its estimated cost is lower in most of many paired draws,
one error for each engine, from what measured servers of that engine, kind of model and chip deviated by from
predictions that had not seen their model. Estimates are compared with estimates.

The errors of two engines are drawn independently. What a model or a chip has in common under both would cancel, so that
the share of draws is on the careful side of 50 %.

Engines run the same model on the same chips, so their costs are near each other. A cost that differs from those of the
others by more than three times points to an operation that was measured or fitted wrongly, and is not recommended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import ClassVar, Literal
from zlib import crc32

import numpy as np

from rackline.bands.bands import SHARES, Band
from rackline.passes.features import Array

SURE = 0.8
"""Share of the draws in which an engine that is called cheaper costs less."""
OWN = 0.5
"""Share of a decode step that must rest on an engine's own measured rows, so that its cost is its own."""
OUTLIER = 3.0
"""Ratio of costs beyond which one is suspect: no two engines that both work were measured this far apart."""
_DRAWS = 4000
_SEED = 20261123

Phase = Literal["decode", "prefill"]


@cache
def drawn(engine: str, ratios: tuple[float, ...]) -> Array:
    """Return errors of an engine, the same in every run, shape (draws,) [measured / predicted].

    Args:
        ratios: quantiles at SHARES; what lies beyond them is drawn as they are.
    """
    shares = np.random.default_rng([_SEED, crc32(engine.encode())]).random(_DRAWS)
    return np.exp(np.interp(shares, SHARES, np.log(ratios)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """The estimated cost of the answer under one engine.

    Args:
        engine: name.
        version: that is launched.
        cost: of its cheapest deployment, with engines on chips that are left over [USD or chip-hours per million
            output tokens, all-in]; infinite where it has none.
        own_share: of the decode step of this deployment, on rows measured under the engine on the chip [1].
        errors: what measured servers of its kind deviate by.
        reason: why it has no deployment; empty where it has one.
    """

    json_keys: ClassVar = (
        "engine",
        "version",
        "estimated_cost=cost",
        "own_share",
        "errors.of=errors.of.text()",
        "errors.low=errors.low",
        "errors.high=errors.high",
        "errors.cases=errors.num_cases",
        "errors.models=errors.num_models",
        "reason",
    )

    engine: str
    version: str
    cost: float
    own_share: float
    errors: Band
    reason: str = ""

    def chance_below(self, other: EngineCost) -> float:
        """Return the share of paired draws in which this costs less than another engine.

        A server that takes r times as long for a token costs r times as much.
        """
        mine, others = drawn(self.engine, self.errors.quantiles), drawn(other.engine, other.errors.quantiles)
        return float(np.mean(self.cost * mine < other.cost * others))


def suspects(costs: Mapping[str, float]) -> tuple[str, ...]:
    """Return the engines whose cost differs from the median of the others by more than `OUTLIER`, the worst first.

    The engine that is farthest from the others is taken out before the rest are compared, so that it does not make
    them suspect. Of two that differ as much, either may be wrong: both are returned, the more expensive one first.

    Args:
        costs: by engine; an engine without an answer is left out.

    >>> suspects({"a": 480.0, "b": 16.8, "c": 8.39}), suspects({"a": 1.0, "b": 2.0}), suspects({"a": 1.0, "b": 4.0})
    (('a',), (), ('b', 'a'))
    """
    left = {engine: cost for engine, cost in costs.items() if math.isfinite(cost)}
    outliers: list[str] = []
    while len(left) > 1:
        apart = {engine: _apart(cost, [left[name] for name in left if name != engine]) for engine, cost in left.items()}
        worst = max(left, key=lambda engine: (round(apart[engine], 9), left[engine]))
        if apart[worst] <= OUTLIER:
            break
        outliers.append(worst)
        del left[worst]
        if len(left) == 1:
            outliers += left
    return tuple(outliers)


def _apart(cost: float, others: Iterable[float]) -> float:
    """Return how many times a cost is above or below the median of others, at least 1."""
    middle = math.exp(median(math.log(other) for other in others))
    return max(cost / middle, middle / cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRow:
    """The operation of a step that differs most between an engine and the others.

    Args:
        phase: step that it belongs to: of decoding, or of a prompt.
        row: its name.
        seconds: under the engine [s].
        others_s: under the other engines, the median [s].
    """

    phase: Phase
    row: str
    seconds: float
    others_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedEngine:
    """An engine next to the one that is taken.

    Args:
        estimate: its cost.
        chance: share of the draws in which it costs less than the engine that is taken; None for that engine itself,
            and where one of them has no answer.
        suspect: whether its cost differs from the others by more than `OUTLIER`.
        row: operation that makes the difference; None without a suspicion.
    """

    json_keys: ClassVar = ("*estimate", "chance_cheaper=chance", "suspect", "suspect_row=row")

    estimate: EngineCost
    chance: float | None = None
    suspect: bool = False
    row: SuspectRow | None = None

    @property
    def is_cheaper(self) -> bool:
        """Whether it can be called cheaper than the engine that is taken."""
        own = self.estimate.own_share >= OWN and not self.suspect
        return own and self.chance is not None and self.chance >= SURE


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedEngines:
    """The engine of an answer, next to the others by their estimates.

    Args:
        taken: name of the engine.
        taken_as: default, or cheapest estimate.
        rows: those with an answer, cheapest first, then the others.
    """

    json_keys: ClassVar = ("taken", "taken_as", "cheaper=cheaper.estimate.engine", "suspects", "rows")

    taken: str
    taken_as: Literal["default", "cheapest estimate"]
    rows: tuple[ComparedEngine, ...]

    @classmethod
    def of(cls, costs: Sequence[EngineCost], taken: str, *, cheapest: bool = False) -> ComparedEngines:
        """Compare the estimated costs of engines.

        Args:
            costs: of each engine.
            taken: engine that answers.
            cheapest: whether it was taken for its estimate, and not as the default.
        """
        own = next(cost for cost in costs if cost.engine == taken)
        wrong = suspects({cost.engine: cost.cost for cost in costs})

        def chance(cost: EngineCost) -> float | None:
            known = cost is not own and math.isfinite(cost.cost) and math.isfinite(own.cost)
            return cost.chance_below(own) if known else None

        rows = [
            ComparedEngine(estimate=cost, chance=chance(cost), suspect=cost.engine in wrong)
            for cost in sorted(costs, key=lambda cost: (cost.cost, cost.engine != taken))
        ]
        return cls(taken=taken, taken_as="cheapest estimate" if cheapest else "default", rows=tuple(rows))

    @property
    def suspects(self) -> tuple[str, ...]:
        """Names of the engines whose cost is suspect."""
        return tuple(row.estimate.engine for row in self.rows if row.suspect)

    @property
    def cheaper(self) -> ComparedEngine | None:
        """The cheapest engine that can be called cheaper than the one that is taken; None without one."""
        return next((row for row in self.rows if row.is_cheaper), None)

    @property
    def own(self) -> ComparedEngine:
        """The engine that is taken."""
        return next(row for row in self.rows if row.estimate.engine == self.taken)


def cheapest_engine(costs: Sequence[EngineCost]) -> str:
    """Return the engine of the cheapest estimate that is not suspect; the first one where there is no such engine."""
    wrong = suspects({cost.engine: cost.cost for cost in costs})
    sound = [cost for cost in costs if math.isfinite(cost.cost) and cost.engine not in wrong]
    if sound:
        return min(sound, key=lambda cost: cost.cost).engine
    return next((cost.engine for cost in costs if math.isfinite(cost.cost)), costs[0].engine)
