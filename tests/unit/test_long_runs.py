"""Long runs and long sequences: goodput against published tables, memory of stages, methods of context parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rackline as rl
from helpers import micro_batch
from rackline import arch
from rackline.display.wording import written
from rackline.errors import RacklineError
from rackline.hardware import cluster
from rackline.report.memory_report import memory_over_time, stages_sheet
from rackline.search.train import TrainPlan, stages_of
from rackline.training.contexts import METHODS, context_method, heads_exchanged
from rackline.training.reliability import (
    CHECKPOINT_BYTES_PER_PARAM,
    STRAGGLING,
    Operations,
    checkpoint_interval,
    lost_share,
    none_spare,
    reliability,
    seconds_between_failures,
    slowest_over_mean,
    spares_needed,
    straggling_quantile,
)
from rackline.training.runs import TrainLayout
from rackline.training.stack import training_stack, with_context
from rackline.training.work import work_of

HOUR, MINUTE = 3600.0, 60.0


def rsc(gpus: int, write_s: float, restart_s: float, interval_s: float = 0.0) -> float:
    """Share of the time that trains at the failure rate of Meta's RSC-1: 6.50 in 1,000 node-days of 8 A100."""
    between = hours_between(gpus) * HOUR
    interval = interval_s or float(checkpoint_interval(write_s, between))
    return 1.0 - float(lost_share(interval, write_s, between, restart_s))


def goodput(params: float, chips: int, restart_min: float) -> float:
    return reliability(params, chips, operations=Operations(restart_s=restart_min * MINUTE)).goodput


def llama_3() -> float:
    return reliability(405e9, 16_384).goodput


def mega_scale() -> float:
    # found and diagnosed within 10 minutes; that it catches up within 15 is the lost half of an interval
    return reliability(175e9, 12_288, operations=Operations(restart_s=10 * MINUTE)).goodput


RSC_CHIP_HOURS = 24.0 * 8 / 6.50e-3


def hours_between(gpus: int) -> float:
    return float(seconds_between_failures(gpus, RSC_CHIP_HOURS)) / HOUR


PUBLISHED: tuple[tuple[str, float, Callable[[], float], float], ...] = (
    # what, published, predicted, how far off it may be
    ("hours between failures of 16,384 A100, RSC-1", 1.8, lambda: hours_between(16_384), 0.02),
    ("hours between failures of 131,072 A100", 0.23, lambda: hours_between(131_072), 0.03),
    ("effective time of 12,000 saved in 10 s, RSC", 0.90, lambda: rsc(12_000, 10.0, 10 * MINUTE), 0.05),
    ("of 100,000 saved and restarted in 2 min, RSC", 0.90, lambda: rsc(100_000, 1.0, 2 * MINUTE, 2 * MINUTE), 0.10),
    ("hours between failures of Llama 3 405B", 3.1, lambda: float(seconds_between_failures(16_384)) / HOUR, 0.01),
    ("time of BLOOM that saving takes, 40 s in 3 h", 0.0037, lambda: float(lost_share(3 * HOUR, 40, 1e15, 0)), 0.02),
    ("terabytes of a checkpoint of BLOOM", 2.3, lambda: CHECKPOINT_BYTES_PER_PARAM * 176e9 / 1e12, 0.10),
    ("OLMo Hybrid, 512 B200, restarts of 39 min", 0.97, lambda: goodput(7e9, 512, 39.0), 0.03),
    ("ByteRobust, 9,600 chips, dense, three months", 0.97, lambda: goodput(70e9, 9600, 10.0), 0.04),
)
"""Sources: Kokolis et al. 2024 (arXiv:2410.21680) for RSC, arXiv:2407.21783 for Llama 3, stas00/ml-engineering for
BLOOM, Lambda's report of Olmo Hybrid, ByteRobust (arXiv:2509.16293)."""


@pytest.mark.parametrize(("what", "published", "predicted", "tolerance"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_failures_and_goodput(
    what: str, published: float, predicted: Callable[[], float], tolerance: float
) -> None:
    assert predicted() == pytest.approx(published, rel=tolerance), what


def test_bounds_of_effective_time() -> None:
    """More than 90 % each: Llama 3 (arXiv:2407.21783) and MegaScale (arXiv:2402.15627)."""
    assert llama_3() > 0.90
    assert mega_scale() > 0.90


def test_asynchronous_checkpoints_stop_work_for_less_and_lose_what_is_not_stored_yet() -> None:
    store = Operations(store_bytes_per_s=100e9), Operations(store_bytes_per_s=100e9, checkpoint="async")
    sync, behind = (reliability(405e9, 16_384, operations=how) for how in store)
    assert behind.write_s < 0.1 * sync.write_s
    assert behind.upload_s == sync.upload_s == sync.write_s
    assert behind.goodput > sync.goodput
    assert behind.interval_s >= behind.upload_s - behind.write_s


def test_spares_follow_the_poisson_law_and_their_lack_makes_a_run_wait() -> None:
    rng = np.random.default_rng(3)
    out = rng.poisson(2.0, 200_000)
    assert np.mean(out <= spares_needed(2.0)) >= 0.99 > np.mean(out <= spares_needed(2.0) - 1)
    assert none_spare(2.0, 3) == pytest.approx(np.mean(out >= 3), abs=0.005)
    few, enough = (reliability(405e9, 16_384, operations=Operations(spares=spares)) for spares in (0, 20))
    assert few.goodput < enough.goodput
    assert few.wait_s == pytest.approx(2.2 * HOUR)
    assert enough.wait_s < 1.0


def test_the_slowest_of_many_ranks_is_the_mean_of_a_largest_draw() -> None:
    rng = np.random.default_rng(5)
    drawn = (1.0 + 0.02 * rng.standard_normal((4000, 256))).max(axis=1)
    assert float(slowest_over_mean(256, 0.02)) == pytest.approx(drawn.mean(), rel=0.001)
    slow = reliability(70e9, 1024, operations=Operations(slow_node=149 / 140))
    # BLOOM: one slow node took the whole job from 149 to 140 TFLOP/s (ml-engineering)
    assert slow.goodput / reliability(70e9, 1024).goodput == pytest.approx(140 / 149)


def test_runs_straggle_as_published() -> None:
    """Three quantiles are fitted; the share of all chip-hours that is lost, 10.4 %, and the mean slowdown of the runs
    above 1.1, 1.28, are in the source beside them (arXiv:2505.05713, sections 4.1 and 5.1)."""
    for share, slowdown in STRAGGLING:
        assert float(straggling_quantile(share)) == pytest.approx(slowdown, rel=0.02)
    found = np.asarray(straggling_quantile((np.arange(100_000) + 0.5) / 100_000))
    assert np.mean(1.0 - 1.0 / found) == pytest.approx(0.104, abs=0.003)
    assert np.mean(found[found > 1.1]) == pytest.approx(1.28, rel=0.05)


def test_a_plan_says_how_much_longer_slow_ranks_make_it() -> None:
    asked: dict[str, Any] = {"on": "dgx-h100", "tokens": "1T", "global_batch": "4Mi", "layout": "tp=2,pp=1,cp=1"}
    tuned, published, small = (
        rl.train("llama-3.1-8b", **asked, chips=chips, pace=pace).result
        for chips, pace in ((256, "tuned"), (256, "published"), (64, "tuned"))
    )
    for one in tuned.stragglers:
        assert one.slowdown == pytest.approx(float(straggling_quantile(one.share)))
        assert one.days == pytest.approx(one.slowdown * tuned.best[0].days)
        assert one.usd == pytest.approx(one.slowdown * tuned.best[0].usd)
    middle, *_, worst = published.stragglers
    assert (middle.share, middle.slowdown, worst.share) == (0.5, 1.0, 0.99)
    assert worst.step_s == pytest.approx(published.best[0].step_s * 1.80 / 1.08, rel=0.01)
    assert small.stragglers == ()


def test_a_slow_host_costs_the_time_of_all() -> None:
    asked: dict[str, Any] = {"on": "dgx-h100", "chips": 256, "tokens": "1T", "global_batch": "4Mi", "pace": "tuned"}
    well, slow = (rl.train("llama-3.1-8b", **asked, slow_node=factor) for factor in ("1", "1.25"))
    days = slow.result.best[0].days
    assert days == pytest.approx(1.25 * well.result.best[0].days)
    words = " ".join(slow._repr_html_().split())
    assert f"takes 1.25 times as long, which costs {written(0.2 * days)} days and $" in words
    assert "times as long, which costs" not in " ".join(well._repr_html_().split())


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return rl.train(
        "llama-3.1-70b", on="dgx-h100", chips=64, global_batch="1Mi", seq="8Ki", recompute=["full"],
        schedule=["1f1b", "gpipe", "zb-h1"], layout="tp=8,pp=8,cp=1,virtual_pp=1",
    ).result  # fmt: skip


def test_the_fullest_stage_is_the_closed_form_of_the_memory(plan: TrainPlan) -> None:
    for one in plan.best:
        stages = stages_of(plan, one)
        assert len(stages) == one.layout.pp
        assert max(stage.total_bytes for stage in stages) == pytest.approx(one.memory["total_bytes"], rel=0.02)
        for stage in stages:
            assert stage.total_bytes == pytest.approx(max(stage.held_bytes))
            assert stage.held_bytes[-1] < stage.total_bytes  # all activations are freed by the end
            parts = ("dense", "expert", "gradient", "optimizer", "activation", "logit", "runtime", "margin")
            assert stage.total_bytes == pytest.approx(sum(getattr(stage, f"{part}_bytes") for part in parts))
        assert stages[-1].logit_bytes > 0.0 == stages[1].logit_bytes


def test_stages_are_in_table_figure_and_json() -> None:
    answer = rl.train("llama-3.1-70b", on="dgx-h100", chips=64, global_batch="1Mi", layout="tp=4,pp=4,cp=1")
    assert [one["stage"] for one in answer.to_dict()["stages"]] == [0, 1, 2, 3]
    sheet = stages_sheet(answer.result)
    assert sheet is not None
    assert "each stage" in sheet.title
    assert stages_sheet(rl.train("llama-3.1-8b", on="dgx-h100", chips=8, global_batch="1Mi").result) is None
    assert "fullest" in memory_over_time(answer.result).subtitle


def test_a_model_is_asked_with_the_stack_of_its_authors_by_name() -> None:
    """DeepSeek-V3: 2.664 million H800 hours (arXiv:2412.19437, table 1), without a pace over its own steps."""
    run_ = {
        "on": "h800-8", "chips": 2048, "tokens": "14.8T", "global_batch": "62.9M", "seq": "4Ki",
        "precision": "fp8-block", "layout": "pp=16,ep=64,cp=1,tp=1,micro_batch=1,zero=1",
    }  # fmt: skip
    own = rl.train("deepseek-v3", stack="hai-llm", **run_)
    assert own.result.practice is None
    assert own.result.best[0].days * 24.0 * 2048 == pytest.approx(2.664e6, rel=0.10)
    assert any("--stack hai-llm" in text for text in rl.train("deepseek-v3", **run_).defaults)
    assert not any("--stack" in text for text in own.defaults)


def test_context_methods_exchange_what_their_papers_say() -> None:
    model, tp, cp = arch.model("llama-3.1-8b"), np.array([1.0]), np.array([8.0])
    core = next(iter(model.cores().values()))
    width, kv = 32 * 128, 2 * 8 * 128
    assert float(np.ravel(METHODS["ring"].elements(core, tp, cp))[0]) == kv * 8  # keys and values of the sequence
    assert float(np.ravel(heads_exchanged(core, tp, cp))[0]) == 2 * width + kv  # keys and values once
    assert float(np.ravel(heads_exchanged(core, tp, 2 * cp))[0]) == 2 * width + 2 * kv  # of 8 heads for 16 chips
    with pytest.raises(RacklineError, match="ring"):
        context_method("rign")


def test_ulysses_sends_less_than_a_ring_on_many_chips_and_hides_nothing() -> None:
    on, model = cluster("dgx-h100").with_num_chips(64), arch.model("llama-3.1-8b")
    sizes = {}
    for name in METHODS:
        stack = with_context(training_stack("megatron-bridge"), name)
        batch = micro_batch(model, [TrainLayout(cp=8, dp=8)], on, seq_len=131_072, stack=stack, batch=64)
        rows = [one.row for one in work_of(batch) if one.kind == "context"]
        sizes[name] = sum(float(np.ravel(row.scale_up[key])[0]) for row in rows for key in row.scale_up)
        assert (stack.communication.context_exposed == 1.0) == (name != "ring")
    assert sizes["ring"] == sizes["all-gather"]
    assert sizes["ulysses"] < 0.5 * sizes["ring"]


def test_a_group_that_cuts_heads_is_refused_where_it_cannot() -> None:
    with pytest.raises(RacklineError, match="32 heads"):
        rl.train(
            "llama-3.1-8b", on="dgx-h100", chips=64, global_batch="8Mi", seq="128Ki", layout="tp=8,cp=8",
            context_parallel="ulysses",
        )  # fmt: skip


def test_gradients_take_the_place_of_activations_in_a_step_of_one_micro_batch() -> None:
    """FSDP2 allocates gradients in the backward pass: its fullest moment is the loss, or the end with all of them."""
    asked: dict[str, Any] = {"on": "dgx-h100", "chips": 8, "seq": "8Ki", "layout": "tp=1,pp=1,zero=3,micro_batch=1"}
    for batch, recompute in (("64Ki", "none"), ("64Ki", "full"), ("128Ki", "none")):
        plan = rl.train(
            "llama-3.2-1b", **asked, global_batch=batch, recompute=[recompute], stack="torch-fsdp"
        ).result  # fmt: skip
        one = plan.best[0]
        (stage,) = stages_of(plan, one)
        assert stage.total_bytes == pytest.approx(one.memory["total_bytes"], rel=0.02)
        if batch == "64Ki":  # one micro-batch
            assert one.memory["gradients_bytes"] == 0.0
            assert 0.0 == stage.gradient_bytes < stage.logit_bytes
        else:
            assert one.memory["gradients_bytes"] > 0.0
