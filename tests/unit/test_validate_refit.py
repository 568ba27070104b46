"""Refits of the serving numbers: planted numbers come back, and a fold does not see what it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rackline.cli.main import run
from rackline.errors import InputError
from rackline.passes import Batch
from rackline.plain import plain
from rackline.serving.stack import IDEAL
from rackline.serving.steady import median_prompts
from rackline.validation import Case, CaseSet
from rackline.validation.cases import case_from
from rackline.validation.fit_cases import FitCases, ServingNumbers, prepare, shipped_numbers
from rackline.validation.predict import Predictor
from rackline.validation.refit import Refit, fold_name, refit, score_fold
from rackline.validation.refit_report import EFFECTS, ablation, ablation_markdown, refit_markdown
from rackline.validation.resolve import Resolver
from rackline.validation.run import read_cases, score_cases
from rackline.validation.serving_fit import fit_numbers, fit_pools, step_of

PLANTED = ServingNumbers(
    rank_skew_s=3e-6,
    prefill_slowdown=1.4,
    eager_s_per_layer=0.5e-3,
    first_token_s=0.04,
    first_token_equal_s=0.1,
    burst_share={"chunked": 0.12, "prefill_first": 0.3},
)
STACKS = ("vllm", "sglang")
VERSIONS = {"sglang": "0.5.9"}  # from 0.5.18 on CUDA graphs hold passes with prompts too, and few launch their layers


def line(model: str, stack: str, tp: int, concurrency: int, input_len: int = 1000) -> dict[str, Any]:
    return {
        "id": f"{model}-{stack}-{tp}-{concurrency}",
        "kind": "serve",
        "model": model,
        "chip": "h100-sxm",
        "num_chips": tp,
        "stack": stack,
        "stack_version": VERSIONS.get(stack, ""),
        "precision": "fp8",
        "layout": {"tp": tp},
        "input_len": input_len,
        "output_len": 300,
        "length_distribution": "fixed" if concurrency > 8 else "uniform_0.8_1.0",
        "concurrency": concurrency,
        "measured": {"tpot_s": 0.01, "ttft_s": 0.1},
    }


def cases_of(lines: list[dict[str, Any]]) -> list[Case]:
    found = [case_from(data, f"x, line {n}", {}) for n, data in enumerate(lines)]
    return [case for case in found if isinstance(case, Case)]


def lines(*models: str) -> list[dict[str, Any]]:
    return [
        line(model, stack, tp, concurrency, input_len)
        for model in models
        for stack in STACKS
        for tp in (2, 8)
        for concurrency, input_len in ((1, 1000), (8, 1000), (64, 200), (64, 4000))
    ]


def measured(cases: list[Case], numbers: ServingNumbers) -> list[Case]:
    """The cases with what these numbers predict as measurement."""
    ready = prepare(cases)
    predicted = ready.predict(numbers)
    return [
        replace(case, measured={"tpot_s": float(predicted.tpot_s[i]), "ttft_s": float(predicted.ttft_s[i])})
        for i, case in enumerate(ready.cases)
    ]


def case_set(cases: list[Case]) -> CaseSet:
    return CaseSet(cases=tuple(cases), unsupported=(), unknown_keys={})


@pytest.fixture(scope="module")
def planted() -> list[Case]:
    return measured(cases_of(lines("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b")), PLANTED)


@pytest.fixture(scope="module")
def ready(planted: list[Case]) -> FitCases:
    return prepare(planted)


@pytest.fixture(scope="module")
def left_out(planted: list[Case]) -> Refit:
    return refit(case_set(planted), "model", processes=1)


def test_kept_kernel_times_predict_the_same_as_the_scoreboard(ready: FitCases) -> None:
    predicted = ready.predict(shipped_numbers(ready))
    again = ready.predict(shipped_numbers(ready))
    board = score_cases(case_set(list(ready.cases)), num_worst=0)
    expected = {(s.case_id, s.where, s.metric): s.predicted for s in board.scores}
    for index, case in enumerate(ready.cases):
        for metric, value in ready.values(predicted, index).items():
            assert value == pytest.approx(expected[case.case_id, case.where, metric], rel=1e-9)
    assert np.array_equal(predicted.tpot_s, again.tpot_s)


def test_planted_numbers_come_back(ready: FitCases) -> None:
    start = shipped_numbers(ready)
    found = fit_numbers(ready, start, np.ones(len(ready.cases), dtype=bool))
    assert found.rank_skew_s == pytest.approx(PLANTED.rank_skew_s, rel=0.05)
    assert found.prefill_slowdown == pytest.approx(PLANTED.prefill_slowdown, rel=0.03)
    assert found.eager_s_per_layer == pytest.approx(PLANTED.eager_s_per_layer, rel=0.03)
    for name, value in PLANTED.flat.items():
        if name.startswith(("first_token", "burst_share")):
            assert found.get(name) == pytest.approx(value, rel=0.05), name


def test_fixed_numbers_stay(ready: FitCases) -> None:
    everything = np.ones(len(ready.cases), dtype=bool)
    fixed = {"rank_skew_s": 0.0, "burst_share": 0.0}
    found = fit_numbers(ready, shipped_numbers(ready), everything, fixed=fixed)
    assert found.rank_skew_s == 0.0
    assert set(found.burst_share.values()) == {0.0}
    assert found.prefill_slowdown > 1.0


def test_a_number_that_no_case_feels_takes_the_value_of_its_like(ready: FitCases) -> None:
    """Without any requests of one length their constant is that of spread lengths; an admission takes the others'."""
    start = shipped_numbers(ready)
    spread = np.array([case.text("length_distribution") != "fixed" for case in ready.cases])
    found = fit_numbers(ready, start, spread)
    assert found.first_token_equal_s == found.first_token_s
    found = fit_numbers(ready, start, ready.concerned("burst_share.chunked"))
    assert found.burst_of("prefill_first") == found.burst_of("chunked")
    assert PLANTED.burst_of("decode_first") == pytest.approx(0.21)


def test_each_case_is_scored_once_by_the_fold_that_did_not_see_it(left_out: Refit, planted: list[Case]) -> None:
    assert {fold.left_out for fold in left_out.folds} == {"llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"}
    assert sorted((s.case_id, s.where) for s in left_out.board.scores if s.metric == "tpot_s") == sorted(
        (case.case_id, case.where) for case in planted
    )
    for fold in left_out.folds:
        assert {score.groups["model"] for score in fold.scores} == {fold.left_out}
    assert left_out.board.metrics["tpot_s"].median_abs_error < 0.02


@pytest.mark.slow
def test_what_is_left_out_does_not_move_its_fold(left_out: Refit, planted: list[Case]) -> None:
    name = "llama-3.1-8b"
    wrong = [
        replace(case, measured={key: 3.0 * value for key, value in case.measured.items()})
        if case.model == name
        else case
        for case in planted
    ]
    moved = refit(case_set(wrong), "model", processes=1)
    before = {fold.left_out: fold.numbers for fold in left_out.folds}
    after = {fold.left_out: fold.numbers for fold in moved.folds}
    assert after[name] == before[name]
    assert after["llama-3.1-70b"] != before["llama-3.1-70b"]
    stats = {fold.left_out: fold.scores for fold in moved.folds}[name]
    assert np.median([score.predicted / score.measured for score in stats]) == pytest.approx(1 / 3, rel=0.05)


def test_medians_are_not_fitted_as_means_and_rates_are_scored() -> None:
    plain = line("llama-3.1-8b", "vllm", 1, 8)
    rate = {**plain, "id": "rate", "measured": {"tpot_s": 0.01, "output_tokens_per_s": 800.0}}
    median = {**rate, "id": "median", "source": "ml-energy/leaderboard@2026-01-01"}
    ready = prepare(cases_of([plain, rate, median]))
    assert [case.case_id for case in ready.cases] == [plain["id"], "rate"]
    assert [(one.case_id, "median" in one.cause) for one in ready.unsupported] == [("median", True)]
    fold = score_fold(ready, shipped_numbers(ready), np.array([False, True]))
    found = {one.metric: one.predicted for one in fold.scores}
    whole = Predictor(Resolver()).predict(ready.cases[1])
    assert found["tpot_s"] == pytest.approx(whole["tpot_s"])
    assert found["served_tokens_per_s"] == pytest.approx(whole["output_tokens_per_s"], rel=0.01)


def test_a_refit_needs_two_folds(planted: list[Case]) -> None:
    with pytest.raises(InputError, match="at least two"):
        refit(case_set(planted), "chip", processes=1)


def test_summaries_of_a_refit(left_out: Refit) -> None:
    groups = [g.stats.median_abs_error for g in left_out.board.groups if g.by == "model" and g.metric == "tpot_s"]
    assert left_out.macro_median("tpot_s") == pytest.approx(np.mean(groups))
    assert left_out.worst_group("tpot_s")[1] == max(groups)  # each model has 16 cases
    low, high, whole = left_out.ranges()["prefill_slowdown"]
    assert low <= whole <= high
    assert json.loads(json.dumps(plain(left_out)))["folds"][0]["cases"] == 16
    assert f"| {left_out.folds[0].left_out} | 16 |" in refit_markdown(left_out)


def test_first_tokens_where_the_cache_fits_stand_once_below_all(left_out: Refit) -> None:
    assert "KV fits" not in refit_markdown(left_out)
    waits = replace(left_out.whole, memory_bound=(left_out.board.scores[0].case_id,))
    rows = [row.split(" | ")[0] for row in refit_markdown(replace(left_out, whole=waits)).splitlines()]
    assert [row for row in rows if "KV fits" in row] == ["| ttft_s, KV fits"]
    assert rows[rows.index("| ttft_s, KV fits") - 1] == "| ttft_s"


def test_a_case_that_waits_for_memory_is_named(planted: list[Case]) -> None:
    big = cases_of([line("llama-3.1-70b", "vllm", 2, 4000, 8000)])
    ready = prepare([*planted, *big])
    assert ready.predict(PLANTED).memory_bound.tolist() == [False] * len(planted) + [True]


@pytest.mark.slow
def test_an_effect_that_is_there_costs_accuracy_when_switched_off(planted: list[Case]) -> None:
    names = ("nothing", "eager floor", "fitted kernels")
    rows = ablation(case_set(planted), effects=names, processes=1)
    assert [row.name for row in rows] == list(names)
    errors = [row.metrics["tpot_s"].median_abs_error for row in rows]
    assert errors[0] < 0.01 < errors[1] < errors[2]
    assert rows[1].fold.numbers.eager_s_per_layer == 0.0
    assert "| eager floor | all passes in CUDA graphs |" in ablation_markdown(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", EFFECTS)
def test_each_effect_changes_predictions_when_switched_off(name: str, planted: list[Case]) -> None:
    """All other numbers as before; what an effect needs is among these cases."""
    effect = EFFECTS[name]
    fp4 = cases_of([{**line("llama-3.1-8b", "vllm", 1, 8), "chip": "b200-sxm", "precision": "fp4"}])
    chosen = measured([*planted[:2], *planted[-10:], *fp4], PLANTED)
    ready = prepare(
        chosen,
        calibration_name=effect.calibration_name or "auto",
        change=effect.change,
        scheduler=effect.scheduler,
    )
    fixed = {key: value for key, value in effect.fixed.items() if key != "burst_share"}
    if "burst_share" in effect.fixed:
        fixed |= {f"burst_share.{key}": effect.fixed["burst_share"] for key in PLANTED.burst_share}
    predicted = ready.predict(PLANTED.changed(fixed))
    same = [
        np.allclose(predicted.tpot_s, [case.measured["tpot_s"] for case in chosen], rtol=1e-3),
        np.allclose(predicted.ttft_s, [case.measured["ttft_s"] for case in chosen], rtol=1e-3),
    ]
    assert all(same) == (name == "nothing")


@pytest.mark.slow
def test_command(planted: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.jsonl"
    chosen = [line("llama-3.1-8b", stack, 2, c) for stack in ("vllm", "trtllm") for c in (1, 4, 8, 16, 32)]
    path.write_text("\n".join(json.dumps(data) for data in chosen))
    assert run(["validate", str(path), "--refit", "stack", "--json"]) in (0, None)
    data = json.loads(capsys.readouterr().out)
    assert data["left_out_by"] == "stack"
    assert [fold["left_out"] for fold in data["folds"]] == ["trtllm", "vllm"] or len(data["folds"]) == 2
    assert set(data["metrics"]) == {"tpot_s", "ttft_s", "request_s"}


@pytest.mark.parametrize(
    "options",
    [("--refit", "model", "--plot", "x.svg"), ("--ablation", "--refit", "model"), ("--ablation", "--stored", "x.json")],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(line("llama-3.1-8b", "vllm", 1, 1)))
    try:
        status = run(["validate", str(path), *options])
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 2
    assert "only without" in (err := capsys.readouterr().err) or "alone" in err


def pools_case(concurrency: int, workers: int) -> dict[str, Any]:
    data = line("llama-3.1-8b", "vllm", 1, concurrency)
    return {
        **data,
        "id": f"pools-{concurrency}-{workers}",
        "kind": "serve-disaggregated",
        "num_chips": workers + 1,
        "prefill": {"workers": 1, "layout": {"tp": 1}},
        "decode": {"workers": workers, "layout": {"tp": 1}},
        "length_distribution": "uniform_0.8_1.0",
    }


def test_planted_numbers_of_pools_come_back() -> None:
    cases = cases_of([pools_case(concurrency, workers) for concurrency in (1, 4, 16, 64) for workers in (1, 3)])
    numbers = replace(PLANTED, handover_s=0.15, pool_burst_share=0.25)
    predictor = Predictor(resolver=Resolver(change=numbers.stack))
    planted = [replace(case, measured={"ttft_s": predictor.predict(case)["ttft_s"]}) for case in cases]
    found = fit_pools(planted, replace(PLANTED, handover_s=0.05, pool_burst_share=0.05), "auto")
    assert found.handover_s == pytest.approx(0.15, rel=0.02)
    assert found.pool_burst_share == pytest.approx(0.25, rel=0.02)
    assert fit_pools(planted[:3], PLANTED, "auto") == PLANTED


def test_halves_are_made_of_configurations() -> None:
    cases = cases_of([pools_case(concurrency, workers) for concurrency in (1, 4) for workers in range(1, 9)])
    halves = {case.case_id: fold_name(case, "half") for case in cases}
    assert set(halves.values()) == {"first half", "second half"}
    assert all(halves[f"pools-1-{workers}"] == halves[f"pools-4-{workers}"] for workers in range(1, 9))


def test_candidates_and_mended_releases_are_left_out_together() -> None:
    case = cases_of([pools_case(1, 1)])[0]
    versions = ("0.11.1", "0.11.1rc2", "0.11.2", "")
    found = [fold_name(replace(case, stack="vllm", stack_version=one), "version") for one in versions]
    assert found == ["vllm 0.11.1", "vllm 0.11.1", "vllm 0.11.2", "vllm unknown"]


def test_preparing_a_step_leaves_the_stacks_of_the_resolver_alone() -> None:
    """The kernels are timed around the bare stack, that of the case stays."""
    median = {**line("llama-3.1-8b", "vllm", 1, 8), "source": "ml-energy/leaderboard@2026-01-01"}
    (case,) = cases_of([{**median, "stack_version": "0.11.1"}])
    predictor = Predictor(resolver=Resolver())
    chosen = predictor.resolver.stack(case)
    assert chosen.host.s_per_step > 0.0
    step = step_of(predictor, case)
    assert predictor.resolver.stack(case) == chosen
    assert step == step_of(Predictor(resolver=Resolver()), case)
    assert predictor.resolver.deployments(case)[0].calibration.host_s_per_step > 0.0


def test_a_case_that_cannot_be_fitted_does_not_end_the_others() -> None:
    """A median, a layout that no chips have, and a case of another kind stand between two that are fitted."""
    cases = read_cases([Path(__file__).parents[1] / "golden" / "asked" / "cases.jsonl"]).cases
    serving = [case for case in cases if case.kind == "serve" and "tpot_s" in case.measured]
    first, last = serving[:2]
    odd = replace(first, case_id="odd", num_chips=3)
    found = prepare([first, odd, *(case for case in cases if case.kind == "static-batch"), last])
    assert [case.case_id for case in found.cases] == [first.case_id, last.case_id]
    assert [case.case_id for case in found.unsupported] == ["odd"]
    assert found.tpot_s.tolist() == [first.measured["tpot_s"], last.measured["tpot_s"]]
    assert len(found.schedulers) == 2


def test_a_median_step_carries_the_prompts_of_the_requests_that_end_in_it() -> None:
    """Of 8 sequences with 5 tokens two end in a step, so that the median step has three quarters of two prompts."""
    (case,) = cases_of([line("llama-3.1-8b", "vllm", 2, 8, 100) | {"output_len": 5, "length_distribution": "fixed"}])
    predictor = Predictor(resolver=Resolver())
    around = predictor.resolver.stack(case)
    bare = around.with_values(
        {"host.s_per_step": 0.0, "host.s_per_sequence": 0.0, "kernels.sample_bytes_per_logit": 0.0}
    )
    (deployment,) = predictor.resolver.deployments(case, stack=bare)
    engine = predictor.engine(deployment, IDEAL)
    prompts = float(median_prompts(np.array(2.0)))
    assert 1.4 < prompts < 1.5
    batch = Batch(decode_sequences=8.0, context_len=102.5)
    times = engine.time_table(False)
    mixed = replace(batch, prefill_sequences=prompts, chunk_tokens=100.0)
    alone, both = (float(engine.seconds(one, times, two_batch_overlap=False)) for one in (batch, mixed))
    slowdown = (step_of(predictor, case).kernels_s - alone) / (both - alone)
    assert slowdown == pytest.approx(1.0) or slowdown == pytest.approx(around.graphs.prefill_slowdown)
