"""Speculative decoding: tokens per step, the verifying pass, drafts, and when they pay."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import rackline as rl
from rackline.errors import InputError
from rackline.parallel.deployment import draft_table
from rackline.passes import Batch
from rackline.serving import Mode, Workload, closed_loop
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import IDEAL
from rackline.serving.workload import (
    MEASURED_TOKENS_PER_STEP,
    PLAIN,
    Speculation,
    breakeven_tokens,
    expected_tokens,
    usual_speculation,
)
from rackline.validation.cases import Case, case_from
from rackline.validation.page import speculation_markdown
from rackline.validation.predict import Predictor, predict_serve, speculation_of
from rackline.validation.resolve import Resolver
from rackline.validation.scoreboard import both_ways, by_group

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def deployment(name: str = "deepseek-v3", layout: str = "tp=8,ep=8") -> rl.Deployment:
    model = rl.model(name)
    on = rl.cluster("dgx-b200")
    return rl.Deployment(
        model=model,
        cluster=on,
        layout=rl.parse_layout(layout, model),
        precision=rl.precision("fp8", model, on.chip),
        calibration=rl.calibration("auto", on.chip),
    )


@given(st.floats(0.0, 1.0), st.integers(0, 12))
def test_expected_tokens_lie_between_one_and_all(acceptance: float, drafts: int) -> None:
    found = expected_tokens(acceptance, drafts)
    assert 1.0 <= found <= drafts + 1.0
    assert expected_tokens(acceptance, drafts + 1) >= found
    if acceptance < 1.0:
        assert found == pytest.approx((1 - acceptance ** (drafts + 1)) / (1 - acceptance))


def test_table_is_the_mean_of_the_measured_ones() -> None:
    path = SHARED / "facts" / "spec_decode_acceptance_length.csv"
    if not path.exists():
        pytest.skip("the shared facts are not beside this checkout")
    found: dict[int, list[float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["num_speculative_tokens"]), []).append(float(row["mean_acceptance_length"]))
    assert {k: round(float(np.mean(v)), 2) for k, v in found.items()} == dict(MEASURED_TOKENS_PER_STEP)


def test_usual_drafts() -> None:
    assert usual_speculation(0) is PLAIN
    assert usual_speculation(2).tokens_per_step == MEASURED_TOKENS_PER_STEP[2]
    assert usual_speculation(15).tokens_per_step == MEASURED_TOKENS_PER_STEP[8]
    for wrong in ({"draft_tokens": -1}, {"draft_tokens": 2, "tokens_per_step": 3.5}, {"tokens_per_step": 0.5}):
        with pytest.raises(InputError):
            Speculation(**wrong)  # type: ignore[arg-type]


def test_verifying_reads_the_cache_once_and_computes_for_every_token() -> None:
    table = deployment().table()
    one, four = (table.features(Batch(decode_sequences=8, decode_tokens=k, context_len=1000)) for k in (1, 4))
    assert four["kv_tokens:mla"] == one["kv_tokens:mla"]
    for name in ("tokens", "logit_rows", "decode_tokens", "kv_pairs:mla"):
        assert four[name] == pytest.approx(4 * np.asarray(one[name]))
    single = float(table.seconds(Batch(decode_sequences=8, context_len=1000)))
    verify = float(table.seconds(Batch(decode_sequences=8, decode_tokens=4, context_len=1000)))
    assert single < verify < 4 * single


def test_a_draft_costs_a_small_share_of_a_step() -> None:
    d = deployment()
    batch = Batch(decode_sequences=8, context_len=1000)
    draft, step = (float(table.seconds(batch)) for table in (draft_table(d), d.table()))
    assert 0.5 / 61 * step < draft < 5 / 61 * step


def test_drafts_pay_at_small_batches_and_not_where_compute_binds() -> None:
    d = deployment("llama-3.1-8b", "tp=1")
    engine = engine_of(d, IDEAL, usual_speculation())
    times = engine.time_table(False)

    def needed(batch_size: float) -> float:
        plain = Batch(decode_sequences=batch_size, context_len=50.0)
        verify = replace(plain, decode_tokens=4.0)
        parts = [float(engine.decode_s(b, times, two_batch_overlap=False)) for b in (verify, plain)]
        draft = float(np.asarray(engine.drafts_s(batch_size, 50.0))) / 3
        return breakeven_tokens(parts[0], draft, parts[1], 3)

    assert needed(1.0) < MEASURED_TOKENS_PER_STEP[3] < needed(2000.0)
    assert needed(1.0) < needed(64.0) < needed(2000.0)


def test_a_loop_with_drafts_is_faster_and_obeys_littles_law() -> None:
    d, work = deployment(), Workload(input_len=1000, output_len=500)
    plain, drafting = (
        closed_loop(d, work, Mode(), 8, engine=engine_of(d, IDEAL, s)) for s in (PLAIN, usual_speculation())
    )
    assert plain.tpot_s / 2.94 < drafting.tpot_s < 0.7 * plain.tpot_s
    rate = drafting.output_tokens_per_s / 499
    assert rate * drafting.request_s == pytest.approx(8, rel=0.02)
    nothing = closed_loop(d, work, Mode(), 8, engine=engine_of(d, IDEAL, Speculation()))
    assert nothing == plain


def test_drafts_of_a_pipeline_run_on_its_last_stage() -> None:
    d = deployment("llama-3.1-70b", "tp=2,pp=4")
    assert float(draft_table(d).seconds(Batch(decode_sequences=4, context_len=100))) > 0
    with pytest.raises(InputError, match="layers"):
        draft_table(deployment("lecture-frontier", "tp=8"))


# ------------------------------------------------------------------------------------ cases of unknown speculation


def case(speculative: str, tpot_s: float = 0.01) -> Case:
    found = case_from(
        {
            "id": "x",
            "kind": "serve",
            "model": "deepseek-v3",
            "chip": "b200-sxm",
            "num_chips": 8,
            "stack": "sglang",
            "precision": "fp8",
            "layout": {"tp": 8, "ep": 8},
            "input_len": 1024,
            "output_len": 1024,
            "concurrency": 16,
            "speculative": speculative,
            "measured": {"tpot_s": tpot_s},
        },
        "x, line 1",
        {},
    )
    assert isinstance(found, Case)
    return found


@pytest.mark.parametrize(
    ("text", "drafts"), [("none", 0), ("unknown", 0), ("MTP", 3), ("mtp-1", 1), ("eagle3-5", 5), ("eagle=2", 2)]
)
def test_what_a_case_says_of_its_drafts(text: str, drafts: int) -> None:
    assert speculation_of(case(text)).draft_tokens == drafts


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(InputError, match=r"speculative: got 'lookahead'.*mtp-K"):
        speculation_of(case("lookahead"))


def test_unknown_cases_are_predicted_both_ways_and_placed() -> None:
    predictor = Predictor(resolver=Resolver())
    slow, fast = (predictor.predict(case(how))["tpot_s"] for how in ("none", "mtp-3"))
    assert fast < 0.8 * slow
    times = {"faster": 0.9 * fast, "between": 0.5 * (fast + slow), "slower": 1.1 * slow}
    cases = [case("unknown", value) for value in times.values()] + [case("none"), case("mtp")]
    rows = both_ways(cases, lambda c, s: predict_serve(predictor, c, s))
    assert [row.place for row in rows] == list(times)
    everything = by_group(rows)[0]
    assert everything.cases == 3
    assert everything.shares == pytest.approx([1 / 3] * 3)
    assert "| all | 3 | 33 % | 33 % | 33 % |" in speculation_markdown(rows)
