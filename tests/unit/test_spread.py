"""Likely numbers and headroom for laboratories never seen: populations whose quantiles are known, and brute force."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import rackline as rl
from rackline.bands.bands import SHARES, Evidence
from rackline.bands.spread import find_spread, read_spreads, shipped_spreads, spreads_toml
from rackline.cli.main import run
from rackline.validation.cases import publisher_of
from rackline.validation.laboratories import (
    ACCEPTED,
    HeadroomCoverage,
    headroom_coverage,
    held_out_spreads,
    likely_stats,
    make_spreads,
)
from rackline.validation.scoreboard import Score

PER_LABORATORY = 25


def score(ratio: float, laboratory: str, *, metric: str = "tpot_s", **groups: str) -> Score:
    """A case whose measured value is `ratio` times the predicted one."""
    names = {
        "kind": "serve",
        "model": "m",
        "chip": "c",
        "stack": "vllm",
        "layout": "tp",
        "laboratory": laboratory,
        "blocks": "dense",
    }
    return Score(
        case_id=f"{laboratory} {ratio}",
        where="x",
        metric=metric,
        measured=2.0 * ratio,
        predicted=2.0,
        groups={**names, **groups},
    )


def population(
    seed: int, laboratories: int, *, between: float = 0.1, within: float = 0.05, usual: float = 0.0
) -> list[Score]:
    """Laboratories as random effects: each has its own middle, around which its cases scatter (logarithms)."""
    draw = np.random.default_rng(seed)
    scores: list[Score] = []
    for number in range(laboratories):
        middle = draw.normal(usual, between)
        ratios = np.exp(middle + draw.normal(0.0, within, PER_LABORATORY))
        scores += [score(float(ratio), f"laboratory {number}") for ratio in ratios]
    return scores


def total(rows: list[HeadroomCoverage]) -> HeadroomCoverage:
    return next(row for row in rows if not row.by)


def test_headroom_from_many_laboratories_is_the_quantile_of_their_distribution() -> None:
    spread = make_spreads(population(1, 200), {})["tpot_s", Evidence()]
    exact = stats.norm(0.0, math.hypot(0.1, 0.05))
    for share in (0.5, 0.8, 0.9, 0.95):
        assert math.log(spread.ratio_within(share)) == pytest.approx(exact.ppf(share), abs=0.02), share


def test_a_new_laboratory_is_covered_as_often_as_the_headroom_says() -> None:
    rows = [total(headroom_coverage(population(seed, 12), "laboratory")) for seed in range(20)]
    for place, level in enumerate((0.8, 0.9)):
        # 20 · 12 laboratories, in which cases hardly differ: a standard error of about 2.5 %
        assert np.mean([row.covered[place] for row in rows]) == pytest.approx(level, abs=0.05)


def test_the_coverage_is_the_brute_force_one() -> None:
    """All cases of one kind: the quantile of all cases of the other laboratories, by scipy."""
    scores = population(7, 9)
    found = total(headroom_coverage(scores, "laboratory"))
    laboratories = np.array([one.groups["laboratory"] for one in scores])
    ratios = np.array([one.measured / one.predicted for one in scores])
    for place, level in enumerate((0.8, 0.9)):
        covered = [
            ratio <= math.exp(stats.mstats.mquantiles(np.log(ratios[laboratories != own]), level, 0.0, 0.0)[0])
            for ratio, own in zip(ratios, laboratories, strict=True)
        ]
        assert found.covered[place] == pytest.approx(np.mean(covered), abs=1e-9)


def test_a_rate_is_slower_where_it_is_lower() -> None:
    scores = population(3, 8)
    rates = [replace(one, metric="served_tokens_per_s", measured=4.0 / one.measured) for one in scores]
    times, inverted = (total(headroom_coverage(own, "laboratory")) for own in (scores, rates))
    assert inverted.covered == pytest.approx(times.covered)
    assert inverted.ratios == pytest.approx(times.ratios)


def test_few_laboratories_correct_less() -> None:
    likely = [
        make_spreads(population(5, number, between=0.01, usual=math.log(1.1)), {"tpot_s": 1.0})[
            "tpot_s", Evidence()
        ].likely
        for number in (1, 2, 6, 60)
    ]
    assert 1.0 < likely[0] < likely[1] < likely[2] < likely[3]
    assert likely[0] < 1.03
    assert likely[3] == pytest.approx(1.1, abs=0.01)


def test_narrower_groups_of_the_same_laboratory_do_not_count_again() -> None:
    """One laboratory with one chip and layout under one engine: as far from 1 as the widest group."""
    spreads = make_spreads([score(1.2, "a", model=str(number)) for number in range(30)], {"tpot_s": 1.0})
    likely = {round(spread.likely, 9) for spread in spreads.values()}
    assert likely == {round(1.2**0.25, 9)}


@pytest.mark.parametrize("seed", range(4))
def test_likely_numbers_are_no_worse_and_help_where_laboratories_agree(seed: int) -> None:
    scattered = likely_stats(population(seed, 5))[0]
    agreeing = likely_stats(population(seed, 8, between=0.01, usual=math.log(1.2)))[0]
    assert not scattered.is_worse
    assert not agreeing.is_worse
    assert agreeing.strength == 1.0
    assert agreeing.median_abs_error < 0.5 * agreeing.computed_median


def test_a_single_laboratory_has_neither_correction_nor_coverage() -> None:
    scores = population(0, 1)
    assert [one.spread for one in held_out_spreads(scores, "laboratory")] == [None] * PER_LABORATORY
    assert likely_stats(scores)[0].strength == 0.0
    assert headroom_coverage(scores, "laboratory") == []


def test_the_laboratory_left_out_does_not_count() -> None:
    """However slow a laboratory is, the spread of its own cases stays the same."""
    scores = population(2, 6)
    slower = [
        replace(one, measured=9.0 * one.measured) if one.groups["laboratory"] == "laboratory 3" else one
        for one in scores
    ]
    own = [
        [
            one.spread
            for one in held_out_spreads(cases, "laboratory")
            if one.score.groups["laboratory"] == "laboratory 3"
        ]
        for cases in (scores, slower)
    ]
    assert own[0] == own[1]
    assert own[0][0] is not None


def test_pools_take_what_they_lack_from_single_engines() -> None:
    scores = population(4, 10)
    pools = [score(1.5, "b", metric="pools_tpot_s", layout="pools", model=str(number)) for number in range(25)]
    spreads = make_spreads([*scores, *pools], {})
    single = spreads["tpot_s", Evidence()]
    assert spreads["pools_tpot_s", Evidence()].quantiles == pytest.approx(single.quantiles)
    only_single = find_spread(make_spreads(scores, {}), "pools_tpot_s", Evidence(layout="pools"))
    assert only_single is not None
    assert only_single.quantiles == single.quantiles


def test_files_keep_spreads() -> None:
    spreads = make_spreads(population(6, 5))
    read = read_spreads(tomllib.loads(spreads_toml(spreads, ["cases.jsonl"])))
    assert read.keys() == spreads.keys()
    for key, spread in spreads.items():
        assert read[key].quantiles == pytest.approx(spread.quantiles, rel=1e-3)
        assert read[key].likely == pytest.approx(spread.likely, rel=1e-3)


def test_shipped_spreads_rise_and_have_the_median_near_the_likely_value() -> None:
    for spread in shipped_spreads().values():
        assert list(spread.quantiles) == sorted(spread.quantiles)
        assert spread.ratio_within(0.1) < spread.likely < spread.ratio_within(0.9)
        for share in SHARES[1:-1]:
            assert spread.share_within(spread.ratio_within(share)) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize(
    ("covered", "accepted"), [((0.8, 0.9), True), ((0.74, 0.9), False), ((0.8, 0.96), False), ((0.87, 0.85), True)]
)
def test_coverage_is_accepted_within_its_ranges(covered: tuple[float, float], accepted: bool) -> None:
    row = HeadroomCoverage(
        metric="tpot_s", left_out="model", by="", group="", num_cases=1, num_alone=0, covered=covered, ratios=(1.0, 1.0)
    )
    assert row.is_accepted == accepted
    assert len(ACCEPTED) == len(covered)


@pytest.mark.parametrize(
    ("source", "publisher"),
    [
        ("github.com/NVIDIA/dgxc-benchmarking grok1/README.md", "NVIDIA/dgxc-benchmarking"),
        ("https://github.com/a/b/tree/04ba8ab/results/x_y", "a/b"),
        ("https://github.com/a/b/pull/16458 (2025-04-11)", "https://github.com/a/b/pull/16458 (2025-04-11)"),
        ("https://intel.com/content/www/page.html (release 1.18.0)", "intel.com"),
        ("arXiv:2211.05102 (Pope et al. 2022) Table D.3", "arXiv:2211.05102"),
        ("owner/name@commit", "owner/name"),
    ],
)
def test_pages_of_one_publisher_are_one_laboratory(source: str, publisher: str) -> None:
    assert publisher_of(source) == publisher


ASKED: dict[str, Any] = {"on": "dgx-h100", "batch": 64, "context": "8k", "layout": "tp=8", "calibration": "sglang"}


def test_explain_shows_the_computed_and_the_likely_value(capsys: pytest.CaptureFixture[str]) -> None:
    data = rl.explain("llama-3.1-70b", **ASKED).to_dict()["likely"]
    evidence = Evidence(stack="sglang", kind="dense", chip="h100-sxm", layout="tp")
    spread = find_spread(shipped_spreads(), "tpot_s", evidence)
    assert spread is not None
    assert data["likely_s"] == pytest.approx(data["computed_s"] * spread.likely)
    assert data["likely_over_computed"] == spread.likely
    words = [text for name, value in ASKED.items() for text in (f"--{name}", str(value))]
    assert run(["explain", "llama-3.1-70b", *words]) == 0
    assert "likely" in capsys.readouterr().out.partition("╰")[0]


def test_the_ideal_roofline_has_no_likely_value() -> None:
    assert rl.explain("llama-3.1-70b", **{**ASKED, "calibration": "unit"}).to_dict()["likely"] is None


@pytest.mark.parametrize("more", [{"refit": "model"}, {"ablation": True}])
def test_headroom_is_refused_beside_refits(more: dict[str, Any]) -> None:
    with pytest.raises(rl.errors.InputError, match="headroom"):
        rl.validate(headroom=True, **more)


def test_validate_shows_headroom_and_likely_numbers(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Two laboratories with 40 static batches each; those of one are twice as slow."""
    file = tmp_path / "cases.jsonl"
    lines = [
        {
            "id": f"{source} {batch}", "kind": "static-batch", "source": source, "model": "llama-3.1-8b",
            "chip": "h100-sxm", "num_chips": 1, "stack": "trtllm", "precision": "bf16", "layout": {"tp": 1},
            "batch_size": batch, "input_len": 1000, "output_len": 100, "measured": {"token_s": slower * 0.008},
        }
        for source, slower in (("owner/fast", 1.0), ("owner/slow", 2.0)) for batch in range(1, 41)
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert run(["validate", str(file), "--headroom", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    rows = {(row["left_out"], row["by"], row["group"]): row for row in data["headroom"]}
    assert rows["laboratory", "laboratory", "owner/fast"]["covered_at_80"] > 0.9
    assert rows["laboratory", "laboratory", "owner/slow"]["covered_at_80"] < 0.7
    assert data["likely"][0]["likely"]["median_abs_error"] <= data["likely"][0]["computed"]["median_abs_error"]
    assert run(["validate", str(file), "--headroom"]) == 0
    assert "laboratory owner/slow" in capsys.readouterr().out
