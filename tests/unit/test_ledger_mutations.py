"""Every verdict of the ledger can fail: other numbers of the catalogue or of the quote turn each of its comparisons.

What follows from definitions is marked so, and no value of the catalogue turns it.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, cast

import pytest

from rackline.catalog import names
from rackline.errors import RacklineError
from rackline.ledger.said import Claim, Quoted, Seen, claims, shipped
from rackline.ledger.table import EXAMINATIONS, examine, ledger
from rackline.ledger.work import (
    _RECORDS,
    BY_DEFINITION,
    FAILS,
    HOLDS,
    IN_UNITS,
    NO_NUMBER,
    NOT_COMPUTED,
    ONLY_IF,
    Finding,
    World,
)

FACTORS = (0.3, 4.0, 0.01, 100.0)
QUOTED_FACTORS = (0.3, 3.0, 0.03, 30.0, 1e-4, 1e4)
SIZES = {"ranks", "samples", "rounds", "layers", "endpoints", "stages"}  # of what is built: not made large
# keys of each kind of object whose values claims read; parts of a dotted key
KEYS = {
    "chips": ("hbm_bytes", "hbm_bytes_per_s", "peak_flop_per_s."),
    "clusters": ("num_chips", "levels.", "usd_per_chip_hour"),
    "models": ("num_layers", "experts_per_token", "total_params", "active_params", "kv_bytes_per_token", "d_model"),
    "memory": ("capacity_bytes", "bytes_per_s", "usd"),
    "prices": ("tiers.", "max_context_len"),
    "laws": ("routed.", "loss."),
}
UNITS = (
    "",
    "s",
    "B",
    "B/s",
    "B/token",
    "FLOP",
    "FLOP/B",
    "FLOP/s",
    "USD",
    "W",
    "requests/s",
    "tokens/s",
    "share",
    "times",
    "chips",
    "layers",
    "parameters",
    "rounds",
    "sequences",
    "stages",
    "systems",
    "tokens",
)
"""Units of computed values, one for each quantity: a share is a fraction of 1, a ratio is in times, "" is a count."""
EXAMINED = [one for one in claims() if one.id in EXAMINATIONS]


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {one.claim.id: one for one in ledger()}


def values_of(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Dotted keys of a record and their numbers."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from values_of(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            for part in value:
                if isinstance(part, dict) and "name" in part:
                    yield from values_of(part, f"{prefix}{key}.{part['name']}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + key, value


def changed_catalogues(base: Finding, factors: tuple[float, ...]) -> Iterator[dict[str, dict[str, object]]]:
    """The catalogue with one number changed that the claim reads."""
    for name in base.uses:
        for kind in _RECORDS:
            if name not in names(cast("Any", kind)):
                continue
            for key, value in values_of(_RECORDS[kind](name).model_dump()):
                if any(part in key for part in KEYS[kind]):
                    for factor in factors:
                        if isinstance(value, int) and factor > 4.0:
                            continue  # counts stay of a size that can be computed
                        new = max(1, round(value * factor)) if isinstance(value, int) else value * factor
                        yield {name: {key: new}}


def changed_readings(base: Finding) -> Iterator[dict[tuple[str, str], Seen]]:
    """The lab's results with one reading changed, of the experiments that the claim rests on."""
    for (name, quantity), one in shipped().items():
        if any(use.startswith(f"lab {name},") for use in base.uses):
            for factor in (-1.0, 0.3, 2.0, 4.0, 30.0):
                low, high = sorted((one.low * factor, one.high * factor))
                changed = dataclasses.replace(one, measured=one.measured * factor, low=low, high=high)
                yield {(name, quantity): changed}
                yield {(name, quantity): dataclasses.replace(changed, low=changed.measured, high=changed.measured)}


def changed_quotes(claim: Claim, base: Finding) -> Iterator[Claim]:
    """The claim with numbers said otherwise, each by itself, then all; among others as the computed values have it."""

    def said(numbers: dict[str, float]) -> Claim:
        changed = {name: dataclasses.replace(claim.numbers[name], value=value) for name, value in numbers.items()}
        return dataclasses.replace(claim, numbers=MappingProxyType({**claim.numbers, **changed}))

    for name, quoted in claim.numbers.items():
        targets = [one.value / quoted.value for one in base.computed if one.passes is not None and one.value]
        for factor in (*QUOTED_FACTORS, *targets, *(1.0 / target for target in targets if target)):
            if 1e-6 < factor < (4.0 if name in SIZES else 1e6):
                yield said({name: quoted.value * factor})
    for factor in QUOTED_FACTORS:
        if not SIZES & set(claim.numbers):
            yield said({name: quoted.value * factor for name, quoted in claim.numbers.items()})


def outcomes(finding: Finding) -> dict[str, bool]:
    return {one.label: one.passes for one in finding.computed if one.passes is not None}


def turned(base: Finding, after: Finding | None) -> set[int]:
    """Places of the comparisons that came out otherwise."""
    if after is None:
        return set()
    pairs = enumerate(zip(base.computed, after.computed, strict=False))  # an examination may end early
    return {place for place, (one, other) in pairs if one.passes is not other.passes}


def examined(claim: Claim, world: World) -> Finding | None:
    """The finding; None where the changed value is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values far off overflow somewhere
        try:
            return examine(claim, world)
        except (RacklineError, ArithmeticError, ValueError, TypeError):
            return None


def consistent(finding: Finding) -> bool:
    """Whether verdict and condition are those of the comparisons."""
    judged = [one for one in finding.computed if one.passes is not None]
    deciding = [one for one in judged if one.when or not one.by_definition] or judged
    if all(one.passes for one in judged):
        return finding.verdict == (BY_DEFINITION if all(one.by_definition for one in judged) else HOLDS)
    if not any(one.passes for one in deciding):
        return finding.verdict == FAILS
    held = {one.when for one in judged if one.when} - {one.when for one in judged if not one.passes}
    missed = {one.when for one in judged if one.when and not one.passes} - held
    named = [premise for premise in held if premise in finding.condition]
    return (
        finding.verdict in (ONLY_IF, IN_UNITS)
        and (len(named) == len(held) or any(one.label in finding.condition for one in judged if one.passes))
        and not any(f"if {premise}" in f"if {finding.condition}".split(", and not")[0] for premise in missed)
    )


@pytest.mark.parametrize("claim", EXAMINED, ids=lambda claim: claim.id)
def test_each_comparison_can_fail_or_says_by_definition(claim: Claim, findings: dict[str, Finding]) -> None:
    base = findings[claim.id]
    assert consistent(base)
    left = {place for place, one in enumerate(base.computed) if one.passes is not None and not one.by_definition}
    for other in changed_quotes(claim, base):
        if not left:
            break
        after = examined(other, World())
        left -= turned(base, after)
    for overrides in changed_catalogues(base, FACTORS):
        if not left:
            break
        after = examined(claim, World(overrides))
        if turned(base, after):
            assert after is not None
            assert consistent(after), overrides
            assert (after.verdict, after.condition, outcomes(after)) != (base.verdict, base.condition, outcomes(base))
        left -= turned(base, after)
    for readings in changed_readings(base):
        left -= turned(base, examined(claim, World(readings=readings)))
    assert not left, [base.computed[place].label for place in left]


def inputs_that_turn(claim: Claim, base: Finding) -> str:
    """What of the catalogue, the lab or the premises that were said gives another verdict; empty if nothing does.

    Results that were said (with a tolerance) stay as they are: with another result anything would fail.
    """

    def other(after: Finding | None) -> bool:
        return after is not None and (after.verdict, after.condition) != (base.verdict, base.condition)

    for readings in changed_readings(base):
        if other(examined(claim, World(readings=readings))):
            return str(readings)
    premises = {name for name, number in claim.numbers.items() if number.within == Quoted(value=1.0).within}
    for changed in changed_quotes(claim, base):
        different = {name for name, number in changed.numbers.items() if number != claim.numbers[name]}
        if different <= premises and other(examined(changed, World())):
            return str(different)
    mesh: dict[str, object] = {"levels.scale_up.topology": "mesh", "levels.scale_up.in_network_reduction": False}
    meshes = ({name: mesh} for name in base.uses if name in names("clusters"))
    for overrides in itertools.chain(meshes, changed_catalogues(base, FACTORS)):
        if other(examined(claim, World(overrides))):
            return str(overrides)
    return ""


@pytest.mark.parametrize("claim", [one for one in claims() if one.id.startswith("C")], ids=lambda claim: claim.id)
def test_each_of_133_claims_can_fail_or_is_marked(claim: Claim, findings: dict[str, Finding]) -> None:
    """Other inputs give another verdict, or the claim is marked: by definition, or without anything to compute.

    Formulas whose units or kind of attention decide are definitions as well, though they hold for some only.
    """
    base = findings[claim.id]
    if base.verdict in (NO_NUMBER, NOT_COMPUTED):
        assert claim.why_not
    elif not all(one.by_definition for one in base.computed if one.passes is not None):
        assert inputs_that_turn(claim, base)


@pytest.mark.parametrize(
    "claim", [one for one in EXAMINED if one.id.startswith(("C", "G"))], ids=lambda claim: claim.id
)
def test_what_holds_by_definition_holds_on_any_machine(claim: Claim, findings: dict[str, Finding]) -> None:
    base = findings[claim.id]
    fixed = {place for place, one in enumerate(base.computed) if one.by_definition}
    if not fixed:
        return
    seen: set[str] = set()
    for overrides in changed_catalogues(base, (0.5,)):
        (name,) = overrides
        if name in seen:
            continue
        after = examined(claim, World(overrides))
        if after is not None and len(after.computed) == len(base.computed):
            seen.add(name)
            assert not turned(base, after) & fixed, overrides


# Claims that read the catalogue, a change of it, and what becomes of verdict and condition.
TURNS: list[tuple[str, dict[str, dict[str, object]], str, str]] = [
    ("C78", {"gb200": {"hbm_bytes_per_s": 1e12}}, "does not hold", "9.32 ms"),
    ("C100", {"h100-sxm": {"hbm_bytes_per_s": 1.65e12}}, "holds in these units", "(h100-sxm BF16)"),
    ("C113", {"h100-sxm": {"hbm_bytes_per_s": 33.5e12}}, "holds only if", "a token at 200K"),
    ("C46", {"dgx-h100": {"levels.scale_out.bytes_per_s_each_way": 25e9}}, "holds only if", "gb300-nvl72"),
    ("C10", {"dgx-h100": {"usd_per_chip_hour": 2.0}}, "holds only if", "dgx-h100"),
    ("C07", {"deepseek-v3": {"architecture.moe.experts_per_token": 32}}, "holds only if", "all parameters"),
    ("C112", {"h100-sxm": {"peak_flop_per_s.bf16": 1e16}}, "holds", ""),
    ("N09", {"gb200": {"hbm_bytes": 4e9}}, "holds", ""),
    ("N16", {"gb200-nvl72": {"num_chips": 8, "levels.scale_up.size": 8}}, "does not hold", ""),
    ("C59", {"gb200": {"peak_flop_per_s.fp8": 1e17}}, "holds only if", "d_ff"),
]


@pytest.mark.parametrize(("claim", "overrides", "verdict", "words"), TURNS, ids=[turn[0] for turn in TURNS])
def test_condition_follows_the_catalogue(
    findings: dict[str, Finding], claim: str, overrides: dict[str, dict[str, object]], verdict: str, words: str
) -> None:
    (after,) = ledger(World(overrides), claim=claim)
    before = findings[claim]
    assert after.verdict == verdict
    assert words in f"{after.condition} {after.reason}"
    assert (after.verdict, after.condition, after.reason) != (before.verdict, before.condition, before.reason)


def test_one_unit_a_quantity(findings: dict[str, Finding]) -> None:
    """Shares are fractions and say so; "%" stands on the screen only."""
    units = {one.unit for finding in findings.values() for one in finding.computed}
    assert units <= set(UNITS)
    for finding in findings.values():
        for one in finding.computed:
            if one.unit == "share" and one.value is not None:
                assert one.text.endswith("%")
                assert one.value < 50.0
