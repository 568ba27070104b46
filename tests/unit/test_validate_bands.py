"""Error bands: their quantiles, which group counts, and that they hold what they promise on unseen models."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from rackline.bands.bands import (
    ANY,
    COVERAGE,
    Evidence,
    band,
    find_band,
    read_bands,
    shipped_bands,
    to_toml,
)
from rackline.errors import InputError, RacklineError
from rackline.parallel import Layout
from rackline.validation import Case, Score
from rackline.validation.coverage import coverage_markdown, held_out_coverage, make_bands
from rackline.validation.scoreboard import blocks_of

SERVED = ("tpot_s", "ttft_s", "request_s")


def score(
    ratio: float,
    number: int = 0,
    *,
    model: str = "m",
    stack: str = "vllm",
    chip: str = "c",
    layout: str = "tp",
    metric: str = "tpot_s",
) -> Score:
    """A case whose measured value is `ratio` times the predicted one."""
    groups = {
        "kind": "serve",
        "model": model,
        "chip": chip,
        "stack": stack,
        "version": "-",
        "precision": "fp8",
        "op": "",
        "layout": layout,
        "laboratory": "l",
        "blocks": "dense",
    }
    return Score(case_id=f"case {number}", where="x", metric=metric, measured=2.0 * ratio, predicted=2.0, groups=groups)


def random_models(seed: int, spread_of_models: float, per_model: int = 40, models: int = 12) -> list[Score]:
    """Cases that scatter by 5 % around an error of their model."""
    draw = np.random.default_rng(seed)
    found: list[Score] = []
    for model in range(models):
        shift = draw.normal(0.0, spread_of_models)
        stack = "vllm" if model % 2 else "sglang"
        for ratio in np.exp(shift + draw.normal(0.0, 0.05, per_model)):
            found.append(score(float(ratio), len(found), model=f"model {model}", stack=stack))
    return found


def test_a_band_of_one_model_runs_from_the_5th_to_the_95th_of_99_values() -> None:
    """With 99 values, Weibull's 5 % quantile is the 5th of them."""
    ratios = np.exp(np.linspace(-1.0, 1.0, 99))
    found = make_bands([score(float(ratio)) for ratio in ratios])["tpot_s", Evidence()]
    assert found.low == pytest.approx(ratios[4], rel=1e-6)
    assert found.high == pytest.approx(ratios[94], rel=1e-6)
    assert (found.num_cases, found.num_models) == (99, 1)


def test_small_groups_fall_back_to_the_wider_one() -> None:
    few = [score(1.0 + 0.01 * n, n, chip="small") for n in range(19)]
    many = [score(2.0 + 0.01 * n, n) for n in range(20)]
    other = [score(9.0, n, stack="sglang") for n in range(5)]
    bands = make_bands([*few, *many, *other])
    of = Evidence(stack="vllm", kind="dense", chip="c", layout="tp")
    assert find_band(bands, "tpot_s", of).num_cases == 20
    assert find_band(bands, "tpot_s", Evidence(stack="vllm", kind="dense", chip="small", layout="tp")).num_cases == 39
    assert find_band(bands, "tpot_s", Evidence(stack="sglang", kind="dense")).num_cases == 44
    assert find_band(bands, "tpot_s", Evidence(stack="of tomorrow")).of == Evidence()
    assert of.text() == "vllm dense c tp"
    assert Evidence().text() == "all stacks"
    with pytest.raises(InputError, match="tpot_s"):
        find_band(bands, "tpott_s", of)


def test_a_group_of_few_models_is_mixed_with_the_one_around_it() -> None:
    """One model on a chip of its own, always 2.0: a third of the way from the band of all, which is around 1.0."""
    everywhere = [score(1.0, n, model=f"model {n % 10}") for n in range(400)]
    alone = [score(2.0, n, model="alone", chip="own") for n in range(40)]
    bands = make_bands([*everywhere, *alone])
    around = find_band(bands, "tpot_s", Evidence(stack="vllm", kind="dense"))
    own = find_band(bands, "tpot_s", Evidence(stack="vllm", kind="dense", chip="own"))
    assert around.low < own.low < 2.0
    assert own.num_models == 1


@pytest.mark.parametrize("spread_of_models", [0.0, 0.1, 0.3])
def test_models_that_nobody_has_seen_are_held(spread_of_models: float) -> None:
    """Bands hold nine of ten cases of new models also where the errors of models differ more than those of cases."""
    bands = make_bands(random_models(1, spread_of_models, models=40))
    new = random_models(2, spread_of_models, models=60)
    inside = [
        found.low <= one.measured / one.predicted <= found.high
        for one in new
        for found in [find_band(bands, "tpot_s", Evidence(stack=one.groups["stack"], kind="dense", chip="c"))]
    ]
    assert 0.85 <= np.mean(inside) <= 0.97
    (whole,) = (one for one in held_out_coverage(random_models(1, spread_of_models, 20)) if not one.group)
    assert abs(whole.share - COVERAGE) <= 0.1
    assert whole.by == "model"


def test_a_chip_whose_few_models_differ_more_is_held_too() -> None:
    """Six models that differ by 15 % on a chip of their own, beside sixteen by 5 %; one factor for all holds 67 %."""
    draw = np.random.default_rng(3)
    rough = [
        score(float(np.exp(shift + deviation)), n, model=f"rough {model}", chip="rough")
        for model in range(6)
        for shift in [draw.normal(0.0, 0.15)]
        for n, deviation in enumerate(draw.normal(0.0, 0.05, 8))
    ]
    found = held_out_coverage([*random_models(5, 0.05, 25, 16), *rough])
    shares = {one.group: one for one in found if one.metric == "tpot_s"}
    assert shares["rough"].num_cases == 48
    assert shares["rough"].share >= 0.75
    assert shares["rough"].width > 1.5 * shares["c"].width
    assert 0.87 <= shares[""].share <= 0.97


def test_a_stack_of_one_model_takes_turns_in_halves() -> None:
    """Leaving the model out would leave nothing of its stack."""
    alone = [score(1.5 + 0.01 * (n % 20), n, model="alone", stack="vllm of 2023") for n in range(60)]
    found = held_out_coverage([*random_models(5, 0.05), *alone])
    shares = {one.group: one for one in found if one.metric == "tpot_s"}
    assert shares[""].by == "model; half of vllm of 2023"
    assert shares["alone"].share > 0.8


def test_metrics_of_one_model_take_turns_in_halves() -> None:
    whole = held_out_coverage([score(1.0 + 0.01 * (n % 20), n) for n in range(60)])[0]
    assert (whole.by, whole.num_cases) == ("half", 60)
    assert whole.share > 0.8


def test_a_file_of_bands_reads_back() -> None:
    bands = make_bands([score(1.0 + 0.01 * n, n) for n in range(30)])
    again = read_bands(tomllib.loads(to_toml(bands, ["somewhere/a.jsonl"])))
    assert set(again) == set(bands)
    for key, one in bands.items():
        assert (again[key].num_cases, again[key].num_models) == (one.num_cases, one.num_models)
        assert (again[key].low, again[key].high) == pytest.approx((one.low, one.high), rel=1e-3)


def test_the_table_of_a_page_names_the_worst_groups() -> None:
    text = coverage_markdown(held_out_coverage(random_models(3, 0.1)))
    assert "| tpot_s | model | 480 |" in text
    assert "Groups of 30 cases and more under 75%" in text


def test_shipped_bands_answer_for_every_stack() -> None:
    for metric in (*SERVED, "output_tokens_per_s", "pools_tpot_s", "step_s"):
        low, high = band(metric)
        assert 0.1 < low < 1.0 < high < 8.0
        assert band(metric, Evidence(stack="a stack of tomorrow", chip="c")) == (low, high)
    assert band("tpot_s", Evidence(stack="vllm", kind="mixture")) != band("tpot_s")
    assert len(shipped_bands()) > 100
    spread = {metric: np.log(band(metric)[1] / band(metric)[0]) for metric in SERVED}
    assert spread["ttft_s"] > 1.5 * spread["tpot_s"]


def test_kinds_and_layouts() -> None:
    def blocks(**described: Any) -> str:
        return blocks_of(Case(case_id="c", kind="serve", where="x", measured={}, **described))

    assert blocks(model="openai/gpt-oss-120b") == "mixture"
    assert blocks(model="meta-llama/Llama-3.1-70B") == "dense"
    # nothing is known of its blocks, so it counts for all kinds, not for dense models
    assert blocks(model="a model of tomorrow") == blocks() == ANY
    mixtral = {
        "model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "num_local_experts": 8,
        "num_experts_per_tok": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    assert blocks(model="no-such-mixture", config=mixtral) == "mixture"
    with pytest.raises(RacklineError):  # a description that cannot be read is an error, not a dense model
        blocks(model="x", config={"model_type": "mixtral"})
    assert [one.kind for one in (Layout(), Layout(pp=2), Layout(attention_dp=8, ep=8))] == [
        "one",
        "tp",
        "attention_dp",
    ]
