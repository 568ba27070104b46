"""Which serving stack is taken where none is named, and whether one can be called cheaper than another.

The cheapest of several predictions wins by its error as often as by its merit. So a stack is called cheaper only if its
cost is lower in most of many paired draws, one error for each stack, from what measured servers of that stack, kind of
model and chip deviated by from predictions that had not seen their model; and only if such servers ran under it, and
most of its decode step stands on kernels that were measured under it on the chip. Otherwise the costs cannot be told
apart, and the stack of which most is known is taken. That one is also the default where nothing is searched.

The errors of two stacks are drawn independently. What a model or a chip has in common under both would cancel, so that
the share of draws is on the careful side of 50 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal
from zlib import crc32

import numpy as np

from rackline.bands.bands import SHARES, Band
from rackline.passes.features import Array

SURE = 0.8
"""Share of the draws in which a stack that is called cheaper costs less."""
OWN = 0.7
"""Share of a decode step that stands on its own measured rows."""
_DRAWS = 4000
_ABOVE = 1e-9  # of a cost, so that it is beaten and not equal
_SEED = 20261123

Basis = Literal["simulated", "estimate", "bound"]


@cache
def drawn(stack: str, ratios: tuple[float, ...]) -> Array:
    """Errors of a stack, the same in every run, shape (draws,) [measured / predicted].

    Args:
        ratios: quantiles at SHARES; what lies beyond them is drawn as they are.
    """
    shares = np.random.default_rng([_SEED, crc32(stack.encode())]).random(_DRAWS)
    return np.exp(np.interp(shares, SHARES, np.log(ratios)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCost:
    """The answer under one stack.

    Args:
        stack: name.
        version: that is launched.
        cost: of its answer, with engines on chips that are left over, or a lower bound of it [USD or chip-hours per
            million output tokens, all-in; J an output token]; infinite where it has no answer.
        basis: simulated, an estimate of what cannot be simulated, or a bound where that is dear enough.
        own_share: of the decode step of its answer, on rows measured under it on the chip [1].
        errors: what measured servers of its kind deviate by.
        reason: why it has no answer; empty where it has one.
    """

    json_keys: ClassVar = (
        "stack",
        "version",
        "cost",
        "basis",
        "own_share",
        "can_be_called_cheaper=stands",
        "errors.of=errors.of.text()",
        "errors.low=errors.low",
        "errors.high=errors.high",
        "errors.cases=errors.num_cases",
        "errors.models=errors.num_models",
        "reason",
    )

    stack: str
    version: str
    cost: float
    basis: Basis
    own_share: float
    errors: Band
    reason: str = ""

    @property
    def stands(self) -> bool:
        """Whether it can be called cheaper: its own kernels were measured here, and servers of its own stack."""
        return self.own_share >= OWN and self.errors.of.stack == self.stack

    def chance_below(self, other: StackCost) -> float:
        """Share of paired draws in which this costs less: a server r times as slow a token costs r times as much."""
        mine, others = drawn(self.stack, self.errors.quantiles), drawn(other.stack, other.errors.quantiles)
        return float(np.mean(self.cost * mine < other.cost * others))

    def beats(self, other: StackCost) -> bool:
        """Whether it can be called cheaper."""
        return self.stands and self.basis != "bound" and self.chance_below(other) >= SURE

    def beats_from(self, stack: str, errors: Iterable[Band]) -> float:
        """Cost from which on it can be called cheaper than another stack, by any of its errors; infinite for none."""
        if not self.stands or self.basis == "bound":
            return math.inf
        mine = drawn(self.stack, self.errors.quantiles)
        over = [mine / drawn(stack, each.quantiles) for each in errors]
        return (1.0 + _ABOVE) * self.cost * max(float(np.quantile(one, SURE, method="higher")) for one in over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A stack weighed against the one that is taken.

    Args:
        found: its answer.
        chance: share of the draws in which the one that is taken costs less; None for itself.
        beaten_by: a stack that can be called cheaper; empty without one.
    """

    json_keys: ClassVar = ("*found", "chance_taken_is_cheaper=chance", "beaten_by")

    found: StackCost
    chance: float | None
    beaten_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """All stacks that were asked, and the one that is taken.

    Args:
        taken: name.
        rows: those with an answer, cheapest first, then the others.
        measurement: command line that would tell most of what cannot be separated; empty where nothing is open.
    """

    json_keys: ClassVar = ("taken", "verdict", "rows", "measurement")

    taken: str
    rows: tuple[Weighed, ...]
    measurement: str = ""

    @classmethod
    def of(cls, found: Sequence[StackCost]) -> Stacks | None:
        """Weigh what was found; None where no stack has an answer.

        Args:
            found: of each stack, that of which most is known first; see `default_stacks`.
        """
        by_cost = sorted(found, key=lambda one: one.cost)
        answers = [one for one in by_cost if math.isfinite(one.cost)]
        if not answers:
            return None
        beaten = {
            one.stack: next((other.stack for other in answers if other is not one and other.beats(one)), "")
            for one in answers
        }
        left = [one for one in found if not beaten.get(one.stack, "beaten") and one.basis != "bound"]
        taken = next((one for one in left if one.stands), left[0])
        return cls(
            taken=taken.stack,
            rows=tuple(
                Weighed(
                    found=one,
                    chance=None if one is taken or not math.isfinite(one.cost) else taken.chance_below(one),
                    beaten_by=beaten.get(one.stack, ""),
                )
                for one in by_cost
            ),
        )

    @property
    def open(self) -> tuple[StackCost, ...]:
        """The stacks than which no other can be called cheaper, cheapest first; the one that is taken is among them."""
        return tuple(one.found for one in self.rows if math.isfinite(one.found.cost) and not one.beaten_by)

    @property
    def best(self) -> StackCost:
        """The stack that is taken, with its cost."""
        return next(one.found for one in self.rows if one.found.stack == self.taken)

    @property
    def verdict(self) -> str:
        """ "cheaper", or "not separable"."""
        return "cheaper" if len(self.open) == 1 and self.best.stands else "not separable"

    @property
    def to_measure(self) -> str:
        """The stack of which one measured server would tell most: that with the widest errors; empty for one alone."""
        if len(self.open) < 2:
            return ""
        return max(self.open, key=lambda one: one.errors.high / one.errors.low).stack
