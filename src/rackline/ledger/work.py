"""How a claim is examined: numbers computed by the library from the catalogue, against those quoted, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from rackline.arch import AnyModel, Model, build_model
from rackline.catalog import law_record, model_record, names, price_sheet_record, settable_keys
from rackline.errors import CatalogError, nearest_name
from rackline.hardware import (
    Chip,
    Cluster,
    MemoryTier,
    chip,
    chip_name_of,
    chip_record,
    cluster,
    cluster_record,
    memory_record,
    memory_tier,
)
from rackline.ledger.said import Claim, Readings, Seen, shipped
from rackline.pricing import PriceSheet, sheet_from_record
from rackline.scaling import LossLaw, RoutedLaw, loss_law, routed_law
from rackline.scaling.law import Numbers
from rackline.serving import blackboard as bb
from rackline.units import (
    format_bytes,
    format_count,
    format_flop_rate,
    format_percent,
    format_rate,
    format_seconds,
    format_usd,
    format_watts,
)

if TYPE_CHECKING:
    from rackline.arch.kinds import Core
    from rackline.catalog.base import SourcedRecord


T = TypeVar("T")

_RECORDS: Mapping[str, Callable[..., SourcedRecord]] = {
    "chips": chip_record,
    "clusters": cluster_record,
    "models": model_record,
    "memory": memory_record,
    "prices": price_sheet_record,
    "laws": law_record,
}


class World:
    """Catalogue objects, each read once, and readings of experiments, with a record of those that were used.

    Args:
        overrides: dotted keys and values that replace those of the catalogue, by name of the object.
        readings: of experiments, which replace the shipped ones.

    >>> World({"h100-sxm": {"hbm_bytes_per_s": 6.7e12}}).chip("h100-sxm").hbm_bytes_per_s
    6700000000000.0
    """

    def __init__(
        self, overrides: Mapping[str, Mapping[str, object]] | None = None, readings: Readings | None = None
    ) -> None:
        self._readings = {**shipped(), **(readings or {})}
        self._overrides = {name: dict(values) for name, values in (overrides or {}).items()}
        self._known: dict[tuple[str, str], Any] = {}
        self.asked: list[str] = []

    def _of(self, name: str) -> dict[str, object] | None:
        return self._overrides.get(name)

    def _get(self, kind: str, name: str, read: Callable[[], T]) -> T:
        if name not in self.asked:
            self.asked.append(name)
        if (kind, name) not in self._known:
            self._known[kind, name] = read()
        return cast("T", self._known[kind, name])

    def chip(self, name: str) -> Chip:
        """A chip of the catalogue."""
        return self._get("chips", name, lambda: chip(name, self._of(name)))

    def cluster(self, name: str) -> Cluster:
        """A cluster of the catalogue; overrides of its chip apply to it too."""

        def read() -> Cluster:
            of_chip = self._of(chip_name_of(cluster_record(name))) or {}
            replaced = {f"chip.{key}": value for key, value in of_chip.items()}
            return cluster(name, {**(self._of(name) or {}), **replaced} or None)

        found = self._get("clusters", name, read)
        if found.chip.name not in self.asked:
            self.asked.append(found.chip.name)
        return found

    def model(self, name: str) -> AnyModel:
        """A model of the catalogue."""
        return self._get("models", name, lambda: build_model(model_record(name, self._of(name))))

    def tier(self, name: str) -> MemoryTier:
        """A memory tier of the catalogue."""
        return self._get("memory", name, lambda: memory_tier(name, self._of(name)))

    def sheet(self, name: str) -> PriceSheet:
        """A price sheet of the catalogue."""
        return self._get("prices", name, lambda: sheet_from_record(price_sheet_record(name, self._of(name))))

    def law(self, name: str) -> LossLaw:
        """A loss law of the catalogue."""
        return self._get("laws", name, lambda: loss_law(name, self._of(name)))

    def seen(self, experiment: str, quantity: str) -> Seen:
        """A reading of an experiment."""
        found = self._readings[experiment, quantity]
        run = f"lab {experiment}, {found.run}"
        if run not in self.asked:
            self.asked.append(run)
        return found

    def routed(self, name: str) -> RoutedLaw:
        """A law of routed models of the catalogue."""
        return self._get("laws", name, lambda: routed_law(name, self._of(name)))


def overrides_from_texts(texts: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Parse pairs of NAME:KEY and a value, such as "gb200:hbm_bytes_per_s" and "16TB/s".

    Raises:
        CatalogError: there is no such object or key; the message names the nearest.
    """
    found: dict[str, dict[str, object]] = {}
    for text, value in texts.items():
        name, colon, key = text.partition(":")
        kinds = [kind for kind in _RECORDS if name in names(cast("Any", kind))]
        if not (colon and key) or not kinds:
            known = [known for kind in _RECORDS for known in names(cast("Any", kind))]
            near = nearest_name(name, known)
            raise CatalogError(
                what="--set",
                given=f"{text}={value}",
                allowed="NAME:KEY=VALUE with a name of the catalogue, such as gb200:hbm_bytes_per_s=16TB/s",
                nearest=f"{near}:{key or 'KEY'}={value}" if near else None,
            )
        keys = [key for kind in kinds for key in settable_keys(_RECORDS[kind](name))]
        if key not in keys:
            near = nearest_name(key, keys)
            raise CatalogError(
                what="--set",
                given=f"{text}={value}",
                allowed=f"a key of {name}",
                nearest=f"{name}:{near}={value}" if near else None,
            )
        found.setdefault(name, {})[key] = value
    return found


VERDICTS = (
    "holds",
    "by definition",
    "holds in these units",
    "holds only if",
    "does not hold",
    "not computed",
    "no number",
)
HOLDS, BY_DEFINITION, IN_UNITS, ONLY_IF, FAILS, NOT_COMPUTED, NO_NUMBER = VERDICTS


_WRITE = {
    "s": format_seconds,
    "B": format_bytes,
    "B/s": format_rate,
    "FLOP/s": format_flop_rate,
    "USD": format_usd,
    "share": format_percent,
    "W": format_watts,
}


def write(value: float, unit: str) -> str:
    """A number with its unit, to three significant digits.

    >>> write(0.0239, "s"), write(2.4e3, "sequences"), write(8.0, "")
    ('23.9 ms', '2.40k sequences', '8')
    >>> write(math.inf, "s"), write(math.inf, "rounds")
    ('without bound', 'no number of rounds')
    """
    if value == math.inf:
        return f"no number of {unit}" if unit in ("rounds", "layers") else "without bound"
    if unit in _WRITE:
        return _WRITE[unit](value)
    if unit.startswith("B/"):
        return f"{value:,.0f} {unit}"
    text = f"{value:.3g}" if abs(value) < 1000.0 and not float(value).is_integer() else format_count(value)
    return f"{text} {unit}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A number that the library computes for a claim.

    Args:
        label: name of the quantity.
        value: value in SI units; None for a statement that is true or false.
        unit: unit of the value.
        passes: whether it agrees with the claim; None if it is only shown.
        when: premise of the comparison, as a clause; empty if the label says it.
        by_definition: whether it follows from definitions, so that no value of the catalogue could change it.
    """

    label: str
    value: float | None
    unit: str
    passes: bool | None
    when: str = ""
    by_definition: bool = False

    @property
    def mark(self) -> str:
        """Mark of the outcome: agrees, agrees by definition, does not agree; empty if it is only shown."""
        if self.passes is None:
            return ""
        return ("≡" if self.by_definition else "✓") if self.passes else "✗"

    @property
    def text(self) -> str:
        """Label and formatted value."""
        if self.value is None:
            return f"{self.label}: {'yes' if self.passes else 'no'}"
        return f"{self.label} {write(self.value, self.unit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding on one claim.

    Args:
        claim: what was said.
        computed: our numbers.
        verdict: one of `VERDICTS`.
        condition: units in which the claim holds, or premise under which it does.
        reason: one sentence.
        uses: catalogue objects whose values were read, and runs of experiments.
    """

    json_keys: ClassVar = (
        "claim=claim.id",
        "segment=claim.segment",
        "at=claim.at",
        "speaker=claim.speaker",
        "said=claim.said",
        "formula=claim.formula",
        "quoted=claim.quoted",
        "quoted_numbers",
        "computed",
        "verdict",
        "condition",
        "reason",
        "uses",
    )

    claim: Claim
    computed: tuple[Computed, ...]
    verdict: str
    condition: str
    reason: str
    uses: tuple[str, ...]

    @property
    def verdict_text(self) -> str:
        """Verdict with its condition."""
        if not self.condition:
            return self.verdict
        return f"{self.verdict}: {self.condition}" if self.verdict == IN_UNITS else f"{self.verdict} {self.condition}"

    @property
    def quoted_numbers(self) -> dict[str, float]:
        """The quoted numbers by name."""
        return {name: number.value for name, number in self.claim.numbers.items()}


class Work:
    """A claim being examined, with its quoted numbers and the catalogue: comparisons are values, `done` judges them.

    Args:
        claim: what was said.
        world: the catalogue.
    """

    def __init__(self, claim: Claim, world: World) -> None:
        self.claim, self.world = claim, world

    def q(self, name: str) -> float:
        """A quoted number by name."""
        return self.claim.numbers[name].value

    def near(self, label: str, value: Numbers, unit: str, name: str, *, when: str = "") -> Computed:
        """Compare with a quoted number, within its tolerance."""
        quoted = self.claim.numbers[name]
        ratio = float(value) / quoted.value if quoted.value else float("inf")
        slack = 1.0 + quoted.within
        return _compared(label, value, unit, 1.0 / slack <= ratio <= slack, when)

    def least(self, label: str, value: Numbers, unit: str, bound: Numbers, *, when: str = "") -> Computed:
        """Check that a value is at least a bound."""
        return _compared(label, value, unit, float(value) >= float(bound) * (1.0 - 1e-9), when)

    def most(
        self, label: str, value: Numbers, unit: str, bound: Numbers, *, when: str = "", by_definition: bool = False
    ) -> Computed:
        """Check that a value is at most a bound."""
        return _compared(label, value, unit, float(value) <= float(bound) * (1.0 + 1e-9), when, by_definition)

    def seen_most(self, label: str, seen: Seen, unit: str, bound: Numbers, *, when: str = "") -> Computed:
        """Check that all of the interval of what an experiment measured is at most a bound."""
        return _compared(label, seen.measured, unit, seen.high <= float(bound) * (1.0 + 1e-9), when)

    def seen_least(self, label: str, seen: Seen, unit: str, bound: Numbers, *, when: str = "") -> Computed:
        """Check that all of the interval of what an experiment measured is at least a bound."""
        return _compared(label, seen.measured, unit, seen.low >= float(bound) * (1.0 - 1e-9), when)

    def identity(self, label: str, value: Numbers, other: Numbers, unit: str = "", *, when: str = "") -> Computed:
        """Check that two calculations agree by definition, so that no value of the catalogue could change it."""
        one, two = float(value), float(other)
        return _compared(label, value, unit, abs(one - two) <= 1e-9 * max(abs(one), abs(two)), when, by_definition=True)

    def true(self, label: str, passes: bool, *, when: str = "", by_definition: bool = False) -> Computed:
        """Check a statement that follows from computed values."""
        return _compared(label, None, "", passes, when, by_definition)

    def show(self, label: str, value: Numbers, unit: str) -> Computed:
        """Show a value that does not affect the verdict."""
        return _compared(label, value, unit, None)

    def done(self, *computed: Computed, because: str, units: bool = False) -> Finding:
        """The verdict: all comparisons agree, none does, or some do.

        Comparisons that hold by definition decide only if there are no others. The condition is made from the
        comparisons: the premises under which all of them agree, else the labels of those that do.

        Args:
            computed: comparisons and shown values, in order.
            because: the reason, one sentence.
            units: whether the cases differ only in units.
        """
        judged = [one for one in computed if one.passes is not None]
        real = [one for one in judged if not (one.by_definition and one.passes)]
        deciding = [one for one in judged if one.when or not one.by_definition] or judged
        verdict, condition = HOLDS, ""
        if not real:
            verdict = BY_DEFINITION if judged else FAILS
        elif not any(one.passes for one in deciding):
            verdict = FAILS
        elif not all(one.passes for one in judged):
            verdict = IN_UNITS if units else ONLY_IF
            condition = _condition([one for one in judged if one in deciding or not one.passes], units)
        return Finding(
            claim=self.claim,
            computed=computed,
            verdict=verdict,
            condition=condition,
            reason=because,
            uses=tuple(self.world.asked),
        )


def _compared(
    label: str, value: Numbers | None, unit: str, passes: bool | None, when: str = "", by_definition: bool = False
) -> Computed:
    number = None if value is None else float(value)
    return Computed(label=label, value=number, unit=unit, passes=passes, when=when, by_definition=by_definition)


def _condition(judged: list[Computed], units: bool) -> str:
    """Premises under which all comparisons agree; those that fail without a premise are excluded by name."""
    premises: dict[str, bool] = {}
    for one in judged:
        if one.when:
            premises[one.when] = premises.get(one.when, True) and bool(one.passes)
    held = [premise for premise, holds in premises.items() if holds]
    if not held or (len(held) == len(premises) and not units):
        labels = _listed([one.label for one in judged if one.passes])
        return labels if units else f"it is about {labels}"
    missed = [one.label for one in judged if not one.when and not one.passes]
    either = held[0] if len(held) == 1 else f"{', if '.join(held[:-1])} or if {held[-1]}"
    return either + (f", and not about {_listed(missed)}" if missed else "")


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def without_number(claim: Claim) -> Finding:
    """Finding on a claim without a number or formula, or with a number that the library cannot compute."""
    verdict = NOT_COMPUTED if claim.quoted else NO_NUMBER
    return Finding(
        claim=claim, computed=(), verdict=verdict, condition="", reason=claim.why_not or "a statement in words", uses=()
    )


def counts(findings: Sequence[Finding]) -> Mapping[str, int]:
    """Number of findings by verdict."""
    return {verdict: sum(one.verdict == verdict for one in findings) for verdict in VERDICTS}


RACK = "gb200-nvl72"  # the lecture's "Blackwell rack"
HOPPER = "dgx-h100"
FRONTIER = "lecture-frontier"
HBM_CHIPS = (
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
    "gb300",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7",
)
ELEMENT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}


def ridge(chip: Chip, dtype: str) -> float:
    """Multiplies per weight read of a chip at a data type."""
    return bb.dimensionless_ridge(chip.flop_per_s(dtype), chip.hbm_bytes_per_s, ELEMENT_BYTES[dtype])


def ridges(world: World, names: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Label and ridge of each CHIP:DTYPE."""
    for name in names:
        chip, _, dtype = name.partition(":")
        yield f"{chip} {dtype.upper()}", ridge(world.chip(chip), dtype)


def attention_slope(model: AnyModel) -> float:
    """FLOP that one token spends on each token of its context."""
    far = 1e5
    return (float(model.flop_per_token(far)) - float(model.flop_per_token(0.0))) / far


def cores_of(model: AnyModel) -> Mapping[str, Core]:
    """The attention cores of a model whose layers are known, by name; none of another."""
    return model.cores() if isinstance(model, Model) else {}
