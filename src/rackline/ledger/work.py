"""How a claim is examined: numbers computed by the library beside those that were quoted, and the verdict of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rackline.ledger.said import Claim
from rackline.ledger.world import World
from rackline.scaling.law import Numbers
from rackline.units import (
    format_bytes,
    format_count,
    format_flop_rate,
    format_percent,
    format_rate,
    format_seconds,
    format_usd,
)

HOLDS = "holds"
IN_UNITS = "holds in these units"
ONLY_IF = "holds only if"
FAILS = "does not hold"
NO_NUMBER = "no number"
NOT_COMPUTED = "not computed"
VERDICTS = (HOLDS, IN_UNITS, ONLY_IF, FAILS, NOT_COMPUTED, NO_NUMBER)

_WRITE = {
    "s": format_seconds,
    "B": format_bytes,
    "B/s": format_rate,
    "FLOP/s": format_flop_rate,
    "USD": format_usd,
    "%": format_percent,
}


def write(value: float, unit: str) -> str:
    """A number with its unit, three significant digits.

    >>> write(0.0239, "s"), write(2.4e3, "sequences"), write(8.0, "")
    ('23.9 ms', '2.40k sequences', '8')
    """
    if unit in _WRITE:
        return _WRITE[unit](value)
    if unit.startswith("B/"):
        return f"{value:,.0f} {unit}"
    small = abs(value) < 1000.0 and not float(value).is_integer()
    text = f"{value:.3g}" if small else format_count(value)
    return f"{text} {unit}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A number that the library computes for a claim.

    Args:
        label: of what.
        value: in SI units; None for a statement that is true or not.
        unit: of the value.
        passes: whether it agrees with what was said; None where it is only shown.
    """

    label: str
    value: float | None
    unit: str
    passes: bool | None

    @property
    def text(self) -> str:
        """Label and value for people."""
        if self.value is None:
            return f"{self.label}: {'yes' if self.passes else 'no'}"
        return f"{self.label} {write(self.value, self.unit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came out for one claim.

    Args:
        claim: what was said.
        computed: our numbers.
        verdict: one of `VERDICTS`.
        condition: in which units, or only if what.
        reason: one sentence.
        uses: catalogue objects whose values were read.
    """

    claim: Claim
    computed: tuple[Computed, ...]
    verdict: str
    condition: str
    reason: str
    uses: tuple[str, ...]

    @property
    def verdict_text(self) -> str:
        """Verdict and condition in one."""
        if not self.condition:
            return self.verdict
        return f"{self.verdict}: {self.condition}" if self.verdict == IN_UNITS else f"{self.verdict} {self.condition}"

    def as_dict(self) -> dict[str, Any]:
        """Data for JSON, SI units."""
        said = self.claim
        return {
            "claim": said.id,
            "segment": said.segment,
            "at": said.at,
            "speaker": said.speaker,
            "said": said.said,
            "formula": said.formula,
            "quoted": said.quoted,
            "quoted_numbers": {name: number.value for name, number in said.numbers.items()},
            "computed": [
                {"label": one.label, "value": one.value, "unit": one.unit, "passes": one.passes}
                for one in self.computed
            ],
            "verdict": self.verdict,
            "condition": self.condition,
            "reason": self.reason,
            "uses": list(self.uses),
        }


class Work:
    """A claim on the bench: its quoted numbers, the catalogue, and what has been computed so far.

    Args:
        claim: what was said.
        world: the catalogue.
    """

    def __init__(self, claim: Claim, world: World) -> None:
        self.claim, self.world = claim, world
        self._computed: list[Computed] = []

    def q(self, name: str) -> float:
        """A quoted number by name."""
        return self.claim.numbers[name].value

    def near(self, label: str, value: Numbers, unit: str, name: str) -> bool:
        """Compare with a quoted number, as closely as it was said."""
        quoted = self.claim.numbers[name]
        number = float(value)
        ratio = number / quoted.value if quoted.value else float("inf")
        slack = 1.0 + quoted.within
        return self._add(label, number, unit, 1.0 / slack <= ratio <= slack)

    def least(self, label: str, value: Numbers, unit: str, bound: Numbers) -> bool:
        """Whether a value is at least a bound."""
        number = float(value)
        return self._add(label, number, unit, number >= float(bound) * (1.0 - 1e-9))

    def most(self, label: str, value: Numbers, unit: str, bound: Numbers) -> bool:
        """Whether a value is at most a bound."""
        number = float(value)
        return self._add(label, number, unit, number <= float(bound) * (1.0 + 1e-9))

    def same(self, label: str, value: Numbers, other: Numbers, unit: str = "") -> bool:
        """Whether two ways of computing give the same value."""
        one, two = float(value), float(other)
        return self._add(label, one, unit, abs(one - two) <= 1e-9 * max(abs(one), abs(two)))

    def true(self, label: str, passes: bool) -> bool:
        """A statement that follows from computed values."""
        return self._add(label, None, "", passes)

    def show(self, label: str, value: Numbers, unit: str) -> float:
        """A value for the reader that decides nothing."""
        self._computed.append(Computed(label=label, value=float(value), unit=unit, passes=None))
        return float(value)

    def _add(self, label: str, value: float | None, unit: str, passes: bool) -> bool:
        self._computed.append(Computed(label=label, value=value, unit=unit, passes=passes))
        return passes

    def done(self, reason: str, *, only_if: str = "", units: str = "") -> Finding:
        """The verdict: all agree, none does, or some do.

        Args:
            reason: one sentence.
            only_if: the condition, where some agree; those that do by default.
            units: the units in which it holds, where the cases differ in units only.
        """
        judged = [one for one in self._computed if one.passes is not None]
        passing = [one for one in judged if one.passes]
        verdict, condition = HOLDS, ""
        if not passing:
            verdict = FAILS
        elif len(passing) < len(judged):
            verdict = IN_UNITS if units else ONLY_IF
            condition = units or only_if or "it is about " + _listed([one.label for one in passing])
        return Finding(
            claim=self.claim,
            computed=tuple(self._computed),
            verdict=verdict,
            condition=condition,
            reason=reason,
            uses=tuple(self.world.asked),
        )


def _listed(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} or {labels[-1]}"


def without_number(claim: Claim) -> Finding:
    """A claim without a number or formula, or with a number that nothing in the library could give."""
    verdict = NOT_COMPUTED if claim.quoted else NO_NUMBER
    return Finding(
        claim=claim, computed=(), verdict=verdict, condition="", reason=claim.why_not or "a statement in words", uses=()
    )


def counts(findings: tuple[Finding, ...]) -> Mapping[str, int]:
    """How many findings have each verdict."""
    return {verdict: sum(one.verdict == verdict for one in findings) for verdict in VERDICTS}
