"""The ledger of the lecture: complete, computed from the catalogue, and changed where the catalogue is changed."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rackline.errors import CatalogError, InputError
from rackline.ledger.said import Claim, Quoted, claims
from rackline.ledger.table import EXAMINATIONS, examine, ledger
from rackline.ledger.work import (
    BY_DEFINITION,
    FAILS,
    HOLDS,
    IN_UNITS,
    NO_NUMBER,
    NOT_COMPUTED,
    ONLY_IF,
    VERDICTS,
    Finding,
    Work,
    World,
    overrides_from_texts,
    write,
)

SOURCE = Path(__file__).resolve().parents[2] / "src" / "rackline" / "ledger"


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {one.claim.id: one for one in ledger()}


def test_every_claim_is_there_in_order(findings: dict[str, Finding]) -> None:
    wanted = (
        [f"C{n:02d}" for n in range(1, 134)]
        + [f"N{n}" for n in range(34, 57)]
        + [f"G{n:02d}" for n in range(1, 18)]
        + [f"N{n:02d}" for n in range(1, 23)]
        + [f"Q{n}" for n in range(1, 28)]
    )
    assert list(findings) == wanted
    assert [one.id for one in claims()] == wanted
    assert set(EXAMINATIONS) <= set(wanted)


def test_claims_with_number_or_formula_are_computed(findings: dict[str, Finding]) -> None:
    """A few quoted figures are of a kind that no formula gives; they say why."""
    for one in findings.values():
        assert one.verdict in VERDICTS
        assert one.reason.strip()
        assert one.claim.said.endswith((".", "?"))
        if one.verdict == NO_NUMBER:
            assert not one.claim.formula
            assert not one.claim.quoted
            assert one.claim.why_not
        elif one.verdict == NOT_COMPUTED:
            assert one.claim.why_not
        else:
            assert one.computed
            assert any(number.passes is not None for number in one.computed)
            assert (one.verdict in (ONLY_IF, IN_UNITS)) == bool(one.condition)
    assert {one.claim.id for one in findings.values() if one.verdict == NOT_COMPUTED} == {"C129", "N54", "N21"}


def test_golden_values_hold(findings: dict[str, Finding]) -> None:
    golden = {name: one.verdict for name, one in findings.items() if name.startswith("G")}
    assert len(golden) == 17
    assert set(golden.values()) == {HOLDS, BY_DEFINITION}


def test_inconsistencies_are_inconsistent(findings: dict[str, Finding]) -> None:
    """None of them dissolves: each holds only in part or not at all; a summary is wrong where it was said to be."""
    numeric = [one for name, one in findings.items() if name.startswith("N") and one.computed]
    assert len(numeric) == 21 + 21  # the lecture's own and those of summaries
    assert {one.verdict for one in numeric} <= {ONLY_IF, FAILS}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("C03", IN_UNITS),
        ("C07", HOLDS),
        ("C09", ONLY_IF),
        ("C13", ONLY_IF),
        ("C21", ONLY_IF),
        ("C28", ONLY_IF),
        ("C34", HOLDS),
        ("C40", HOLDS),
        ("C47", HOLDS),
        ("C70", BY_DEFINITION),
        ("C82", ONLY_IF),
        ("C86", ONLY_IF),
        ("C95", ONLY_IF),
        ("C96", ONLY_IF),
        ("C99", BY_DEFINITION),
        ("C100", IN_UNITS),
        ("C111", ONLY_IF),
        ("C123", ONLY_IF),
        ("C130", BY_DEFINITION),
        ("N47", FAILS),
        ("N01", ONLY_IF),
        ("N11", FAILS),
        ("C31", ONLY_IF),
        ("C35", ONLY_IF),
        ("C59", HOLDS),
        ("C93", ONLY_IF),
        ("C113", ONLY_IF),
        ("N49", FAILS),
    ],
)
def test_known_verdicts(findings: dict[str, Finding], claim: str, verdict: str) -> None:
    assert findings[claim].verdict == verdict


def test_by_definition_is_said_where_nothing_could_fail(findings: dict[str, Finding]) -> None:
    named = ["C24", "C72", "C83", "C85", "C90", "C110", "C116", "C117", "C122", "C132"]
    assert {findings[claim].verdict for claim in named} == {BY_DEFINITION}


# One value of the catalogue each (bandwidth, chips in a rack, price, shape, part, law) and claims that must change.
MUTATIONS: list[tuple[dict[str, dict[str, object]], set[str]]] = [
    ({"gb200": {"hbm_bytes_per_s": 16e12}}, {"C20", "C26", "C76"}),
    ({"h100-sxm": {"hbm_bytes_per_s": 6.7e12}}, {"C18", "C19", "C28", "C76", "C100", "G01", "G02"}),
    ({"gb200-nvl72": {"levels.scale_up.size": 144, "num_chips": 144}}, {"C02", "C40", "C49", "C76", "C77"}),
    ({"anthropic-claude-opus-4.6": {"tiers.fast.usd_per_mtok_output": 60.0}}, {"C01"}),
    ({"anthropic-claude-opus-4.6": {"tiers.standard.usd_per_mtok_output": 10.0}}, {"C01", "C105", "C107"}),
    ({"google-gemini-3.1-pro": {"tiers.standard-200k.usd_per_mtok_input": 3.0}}, {"C96", "N48"}),
    ({"gb200-nvl72": {"usd_per_chip_hour": 2.2}}, {"C10"}),
    ({"deepseek-v3": {"architecture.moe.experts_per_token": 32}}, {"C21", "C39", "N35"}),
    ({"hdd-20tb": {"bytes_per_s": 5e9}}, {"C120", "C123", "N53", "G17"}),
    ({"clark-s-base": {"routed.experts_slope": -0.08}}, {"C34", "G08"}),
]


@pytest.mark.parametrize(
    ("overrides", "changed"), MUTATIONS, ids=[next(iter(m[0])) + f"-{n}" for n, m in enumerate(MUTATIONS)]
)
def test_mutated_catalogue_changes_verdicts(
    findings: dict[str, Finding], overrides: dict[str, dict[str, object]], changed: set[str]
) -> None:
    """The computed column follows the catalogue: verdicts of claims that read the value change, and no others."""
    (name,) = overrides
    after = {one.claim.id: one for one in ledger(World(overrides))}
    different = {claim for claim, one in after.items() if _judgement(one) != _judgement(findings[claim])}
    assert changed <= different
    for claim in different:
        assert name in after[claim].uses, f"{claim} changed but says that it does not read {name}"
    for claim, one in after.items():
        if name not in one.uses:
            assert one.computed == findings[claim].computed


def _judgement(one: Finding) -> tuple[str, tuple[bool | None, ...]]:
    return one.verdict, tuple(number.passes for number in one.computed)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


@pytest.mark.parametrize("file", sorted(SOURCE.glob("*.py")), ids=lambda file: file.name)
def test_no_computed_value_is_typed_in(file: Path) -> None:
    """The value handed to a comparison is never a literal, nor arithmetic of literals."""
    for call in _calls(ast.parse(file.read_text(encoding="utf-8"))):
        if call.func.attr in {"near", "least", "most", "same", "identity", "show"} and len(call.args) >= 2:
            names = [n for n in ast.walk(call.args[1]) if isinstance(n, ast.Name | ast.Attribute | ast.Call)]
            assert names, f"{file.name}:{call.lineno}: the computed value is a literal"


class _Counting(dict[str, Quoted]):
    """Numbers that remember which were asked for."""

    def __init__(self, numbers: Any) -> None:
        super().__init__(numbers)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Quoted:
        self.asked.add(name)
        return super().__getitem__(name)


def test_every_quoted_number_is_used() -> None:
    world, unused = World(), []
    for claim in claims():
        if claim.id in EXAMINATIONS:
            numbers = _Counting(claim.numbers)
            examine(dataclasses.replace(claim, numbers=numbers), world)
            unused += [f"{claim.id}: {name}" for name in numbers if name not in numbers.asked]
    assert not unused


class TestVerdict:
    def work(self) -> Work:
        numbers = MappingProxyType({"ten": Quoted(value=10.0, within=0.1)})
        return Work(Claim(id="C01", segment=1, said="It is ten.", numbers=numbers), World())

    def test_all_some_none(self) -> None:
        for values, verdict in (((10.0, 10.9), HOLDS), ((10.0, 12.0), ONLY_IF), ((8.9, 12.0), FAILS)):
            it = self.work()
            assert (
                it.done(*(it.near(f"{value}", value, "", "ten") for value in values), because="why").verdict == verdict
            )

    def test_condition_names_the_cases_that_agree(self) -> None:
        it = self.work()
        rows = it.near("a", 10.0, "", "ten"), it.near("b", 20.0, "", "ten")
        assert it.done(*rows, because="why").verdict_text == "holds only if it is about a"
        assert it.done(*rows, because="why", units=True).verdict_text == "holds in these units: a"

    def test_condition_names_the_premises_that_hold_in_full(self) -> None:
        it = self.work()
        rows = [
            it.near("a", 10.0, "", "ten", when="it is small"),
            it.near("b", 20.0, "", "ten", when="it is large"),
            it.near("c", 10.0, "", "ten", when="it is large"),
            it.near("d", 10.0, "", "ten", when="it is cold"),
        ]
        assert it.done(*rows, because="why").verdict_text == "holds only if it is small or if it is cold"
        rows.append(it.near("e", 20.0, "", "ten"))
        assert it.done(*rows, because="why").condition == "it is small or if it is cold, and not about e"

    def test_without_a_premise_that_holds_the_labels_are_named(self) -> None:
        it = self.work()
        rows = [it.near(name, value, "", "ten", when="it is large") for name, value in (("a", 10.0), ("b", 20.0))]
        assert it.done(*rows, because="why").condition == "it is about a"

    def test_identities_decide_only_by_themselves(self) -> None:
        it = self.work()
        rows = [it.identity("a", 10.0, 10.0)]
        assert it.done(*rows, because="why").verdict == BY_DEFINITION
        rows.append(it.near("b", 20.0, "", "ten"))
        assert it.done(*rows, because="why").verdict == FAILS
        rows.append(it.identity("c", 10.0, 11.0))
        assert [one.mark for one in it.done(*rows, because="why").computed] == ["≡", "✗", "✗"]

    def test_values_that_are_only_shown_decide_nothing(self) -> None:
        it = self.work()
        rows = it.show("aside", 1e9, ""), it.near("a", 10.0, "", "ten")
        assert it.done(*rows, because="why").verdict == HOLDS

    def test_infinite_values_do_not_agree(self) -> None:
        it = self.work()
        assert not it.near("a", float("inf"), "", "ten").passes
        assert not it.near("b", float("nan"), "", "ten").passes

    @pytest.mark.parametrize(
        ("value", "unit", "text"),
        [
            (0.0239, "s", "23.9 ms"),
            (1667.4, "B/token", "1,667 B/token"),
            (0.5, "share", "50.0 %"),
            (151e3, "W", "151 kW"),
            (float("inf"), "s", "without bound"),
        ],
    )
    def test_values_are_written_with_units(self, value: float, unit: str, text: str) -> None:
        assert write(value, unit) == text


class TestQuestions:
    def test_segment_and_claim(self) -> None:
        assert {one.claim.segment for one in ledger(segment=3)} == {3}
        assert [one.claim.id for one in ledger(claim="c99")] == ["C99"]

    def test_a_flash_card_gives_the_claims_that_answer_it(self) -> None:
        assert [one.claim.id for one in ledger(claim="Q8")] == ["Q8", "C20", "C21"]
        known = {one.id for one in claims()}
        cards = [one for one in claims() if one.segment == 11]
        assert len(cards) == 27
        for card in cards:
            assert bool(card.answered_by) != (card.id in EXAMINATIONS)
            assert set(card.answered_by) <= known

    @pytest.mark.parametrize(("arguments", "words"), [({"segment": 12}, "1 to 11"), ({"claim": "C999"}, "nearest")])
    def test_unknown_ones_are_refused(self, arguments: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            ledger(**arguments)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("gb20:hbm_bytes_per_s", "nearest: gb200"),
            ("gb200:hbm_bytes", ""),
            ("gb200:hbm_byte", "nearest: gb200:hbm_bytes"),
        ],
    )
    def test_overrides_are_checked(self, text: str, words: str) -> None:
        if not words:
            assert overrides_from_texts({text: "1TB"}) == {"gb200": {"hbm_bytes": "1TB"}}
            return
        with pytest.raises(CatalogError, match=words):
            overrides_from_texts({text: "1TB"})
