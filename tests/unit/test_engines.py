"""The engine of an answer: the same in every command, and what others would cost by estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import rackline as rl
from rackline.api.engines import common_engine
from rackline.api.plan import Planned, WhatIf
from rackline.api.resolve import named_engine
from rackline.arch import model
from rackline.bands.bands import LIMITED, SHARES, Band, Evidence, shipped_bands
from rackline.bands.defaults import stacks_on
from rackline.bands.engine_costs import (
    OUTLIER,
    OWN,
    SURE,
    ComparedEngines,
    EngineCost,
    SuspectRow,
    cheapest_engine,
    drawn,
    suspects,
)
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.report.engines_report import engines_lines

pytestmark = pytest.mark.usefixtures("searched_once")

QWEN: dict[str, Any] = {"on": "dgx-h200", "chips": 8, "input": "2k", "output": 500, "tpot": "40ms"}
LLAMA: dict[str, Any] = {"on": "dgx-h100", "input": "2k", "output": 300, "tpot": "30ms", "serving": "aggregated"}
GLM: dict[str, Any] = {
    "on": "dgx-h200", "precision": "fp8", "input": "8k", "output": "1k", "tpot": "50ms", "ttft": "2s",
    "serving": "aggregated", "layout": "tp=8",
}  # fmt: skip


def errors(engine: str = "a", spread: float = 0.2, middle: float = 0.0) -> Band:
    """Ratios that are spread evenly in the logarithm."""
    ratios = np.exp(middle + spread * np.linspace(-1.0, 1.0, len(SHARES))).tolist()
    of = Evidence(stack=engine, kind="dense", chip="c")
    return Band(
        metric="tpot_s", of=of, low=ratios[0], high=ratios[-1], num_cases=30, num_models=3, quantiles=tuple(ratios)
    )


def cost(engine: str, usd: float, *, share: float = 0.9, **of_errors: float) -> EngineCost:
    return EngineCost(engine=engine, version="1", cost=usd, own_share=share, errors=errors(engine, **of_errors))


def compared(*costs: EngineCost) -> ComparedEngines:
    """Engines next to the first one."""
    return ComparedEngines.of(costs, costs[0].engine)


def test_a_little_cheaper_is_not_recommended() -> None:
    assert compared(cost("own", 1.0), cost("other", 1.0)).rows[1].chance == pytest.approx(0.5, abs=0.05)
    assert compared(cost("own", 1.05), cost("other", 1.0)).cheaper is None


def test_much_cheaper_is_recommended() -> None:
    found = compared(cost("own", 1.5), cost("other", 1.0))
    assert found.cheaper is not None
    assert found.cheaper.estimate.engine == "other"
    assert (found.cheaper.chance or 0.0) >= SURE
    assert found.taken == "own"


def test_an_engine_that_is_slower_than_predicted_is_not_recommended() -> None:
    assert compared(cost("own", 1.5), cost("other", 1.0, middle=0.5)).cheaper is None


def test_numbers_of_others_are_not_recommended() -> None:
    assert compared(cost("own", 1.5), cost("other", 1.0, share=OWN - 0.01)).cheaper is None
    assert compared(cost("own", 1.5), cost("other", 1.0, share=OWN)).cheaper is not None


def test_of_several_cheaper_engines_the_cheapest_is_recommended() -> None:
    found = compared(cost("own", 2.0), cost("near", 1.2), cost("cheapest", 1.0))
    assert found.cheaper is not None
    assert found.cheaper.estimate.engine == "cheapest"


def test_a_suspect_engine_is_not_recommended() -> None:
    found = compared(cost("own", 4.0), cost("too cheap", 1.0), cost("third", 4.1))
    assert found.suspects == ("too cheap",)
    assert found.cheaper is None


def test_the_default_engine_can_be_the_suspect() -> None:
    found = compared(cost("own", 480.0), cost("a", 16.8), cost("b", 8.39))
    assert found.suspects == ("own",)
    assert found.cheaper is not None


@given(st.lists(st.floats(0.01, 1000.0), min_size=2, max_size=6), st.floats(0.1, 10.0))
def test_suspects_do_not_depend_on_the_unit(usd: list[float], unit: float) -> None:
    costs = {str(index): value for index, value in enumerate(usd)}
    found = suspects(costs)
    assert set(found) == set(suspects({name: value * unit for name, value in costs.items()})) or any(
        abs(first / second - OUTLIER) < 1e-6 for first in usd for second in usd
    )
    left = [value for name, value in costs.items() if name not in found]
    assert not left or max(left) / min(left) <= OUTLIER**2
    assert len(left) != 1


@given(st.floats(0.01, 100.0), st.lists(st.floats(1.0, 1.7), min_size=3, max_size=5), st.floats(10.0, 1e3))
def test_one_outlier_is_found_and_no_other(usd: float, near: list[float], times: float) -> None:
    costs = {f"near {index}": usd * value for index, value in enumerate(near)}
    assert suspects(costs | {"far": usd * times}) == ("far",)
    assert suspects(costs | {"far": usd / times}) == ("far",)
    assert cheapest_engine([cost(name, value) for name, value in (costs | {"far": usd / times}).items()]) != "far"


def test_the_cheapest_estimate_that_is_not_suspect_is_taken() -> None:
    assert cheapest_engine([cost("a", 2.0), cost("b", 1.0), cost("c", 1.5)]) == "b"
    assert cheapest_engine([cost("a", 1.0), cost("b", 9.0)]) == "a"  # either may be wrong: the default
    assert cheapest_engine([cost("a", float("inf")), cost("b", 9.0)]) == "b"
    assert cheapest_engine([cost("a", float("inf")), cost("b", float("inf"))]) == "a"


def test_lines_say_what_to_do() -> None:
    found = compared(cost("vllm", 1.5), cost("sglang", 1.2 * 0.8))
    (line,) = engines_lines(found)
    assert line.startswith("SGLang would cost 36 % less (")
    assert line.endswith(" of 10 draws): --engine sglang")
    none = compared(replace(cost("vllm", float("inf")), reason="fits nowhere"), cost("sglang", 1.0))
    assert engines_lines(none) == ["SGLang would serve it, for about $1.00 per M output tokens: --engine sglang"]
    assert engines_lines(compared(cost("vllm", 1.0), cost("sglang", 1.0))) == []


def test_a_suspect_line_names_the_operation() -> None:
    found = compared(cost("vllm", 1.0), cost("sglang", 1.1), cost("trtllm", 40.0))
    row = SuspectRow(phase="prefill", row="attention_prefill_index", seconds=1.2, others_s=0.16)
    rows = tuple(replace(one, row=row) if one.suspect else one for one in found.rows)
    (line,) = engines_lines(replace(found, rows=rows))
    assert line.startswith("TensorRT-LLM at $40.0 is suspect (")
    assert "attention_prefill_index takes 1.20 s of a prefill, 160 ms under the other engines" in line


def test_draws_are_the_same_in_every_run_and_differ_between_engines() -> None:
    ratios = errors().quantiles
    again = drawn.__wrapped__("a", ratios)
    assert np.array_equal(drawn("a", ratios), again)
    assert not np.array_equal(drawn("a", ratios), drawn("b", ratios))
    assert np.quantile(drawn("a", ratios), 0.5) == pytest.approx(1.0, rel=0.03)
    assert drawn("a", ratios).min() >= ratios[0]
    assert drawn("a", ratios).max() <= ratios[-1]


def test_the_ratios_of_a_band_run_between_its_ends() -> None:
    kept = [band for band in shipped_bands().values() if band.quantiles]
    assert {band.metric for band in kept} == set(LIMITED)
    for band in kept:
        assert len(band.quantiles) == len(SHARES)
        assert list(band.quantiles) == sorted(band.quantiles)
        assert (band.quantiles[SHARES.index(0.05)], band.quantiles[SHARES.index(0.95)]) == (band.low, band.high)


def planned(name: str, **ask: Any) -> Planned:
    """The result of a plan."""
    found = rl.plan(name, **ask).result
    assert isinstance(found, Planned)
    return found


@pytest.mark.parametrize(("name", "ask"), [("qwen3-235b-a22b", QWEN), ("llama-3.1-70b", LLAMA)])
def test_a_plan_is_that_of_its_engine_by_name(name: str, ask: dict[str, Any]) -> None:
    found = planned(name, **ask)
    assert found.engines is not None
    assert {row.estimate.engine for row in found.engines.rows} == set(stacks_on(found.plan.system.cluster.chip))
    alone = planned(name, **ask, engine=found.engines.taken)
    assert alone.engines is None
    assert alone.plan.best is not None
    assert found.plan.best is not None
    assert found.plan.best.label() == alone.plan.best.label()
    assert found.plan.best.usd_with_leftover == alone.plan.best.usd_with_leftover


def test_the_cheapest_engine_is_taken_and_simulated_where_any_is_asked() -> None:
    answer = rl.plan("llama-3.1-70b", **LLAMA, engine="any")
    found = answer.result
    assert isinstance(found, Planned)
    assert found.engines is not None
    least = min(row.estimate.cost for row in found.engines.rows if not row.suspect)
    assert found.engines.own.estimate.cost == least
    assert found.engines.taken_as == "cheapest estimate"
    assert found.plan.system.stack.name == found.engines.taken
    assert found.plan.best is not None
    assert found.plan.best.sustained is not None
    assert any("has the cheapest estimate of 3 engines" in line for line in answer.defaults)


def test_a_row_that_is_too_slow_is_named_and_its_engine_not_recommended() -> None:
    """TensorRT-LLM's own index kernel of sparse attention takes several times as long as that of others on Hopper."""
    answer = rl.plan("glm-5", **GLM, engine="any")
    engines = answer.to_dict()["engines"]
    assert engines["taken"] != "trtllm"
    assert engines["cheaper"] != "trtllm"
    trtllm = next(row for row in engines["rows"] if row["engine"] == "trtllm")
    assert trtllm["suspect"]
    assert "index" in trtllm["suspect_row"]["row"]
    assert trtllm["suspect_row"]["seconds"] > 3.0 * trtllm["suspect_row"]["others_s"]
    assert any("TensorRT-LLM" in line and "index" in line for line in answer.defaults)


_PLACES = ("dgx-h100", "dgx-b200", "gb200-nvl72", "l40s-8", "mi300x-8", "rtx-4090-8", "dgx-a100", "tpu-v6e-256")


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(("llama-3.1-8b", "gpt-oss-20b", "qwen3-8b", "deepseek-v2-lite")), st.sampled_from(_PLACES))
def test_all_commands_take_the_same_engine(name: str, place: str) -> None:
    explained = rl.explain(name, on=place, batch=8, context="4k")
    others = [
        rl.fit(name, on=place, context="4k"),
        rl.tiers(name, on=place, price=1),
        rl.simulate(name, on=place, rate=0.5, input=500, output=20, requests=20),
        rl.plan(name, on=place, input=500, output=20, use="batch", layout="pp=1", serving="aggregated"),
    ]
    (line,) = [text for text in explained.defaults if text.startswith("engine ")]
    for answer in others:
        assert line in answer.defaults


def test_a_priced_model_and_a_compared_one_have_the_engine_of_the_plan() -> None:
    plain = rl.explain("gpt-oss-20b", on="gb200-nvl72", batch=8, context="4k").defaults
    assert plain[0].startswith("engine sglang: ")
    sold = rl.price("gpt-oss-20b", on="gb200-nvl72", contexts=["8k"], layout="tp=1", fast=["1.5"])
    assert plain[0] in sold.defaults
    asked: dict[str, Any] = {"input": 500, "output": 50, "use": "batch", "chips": 1, "serving": "aggregated"}
    sides = rl.compare(["gpt-oss-20b@gb200-nvl72", "qwen3-8b@gb200-nvl72"], **asked)
    assert {side.deployed.engine for side in sides.result.sides} == {"vllm"}
    assert "engine vllm for all deployments (--engine)" in sides.defaults


def test_sides_share_an_engine_where_one_runs_everywhere() -> None:
    small = model("llama-3.1-8b")
    nvidia, amd, groq = (cluster(name) for name in ("dgx-h100", "mi300x-8", "groq-576"))
    assert common_engine([(small, nvidia), (small, amd)]) == "vllm"
    assert common_engine([(model("gpt-oss-120b"), cluster("gb200-nvl72"))] * 2) == "sglang"
    assert common_engine([(small, nvidia), (small, groq)]) == ""


def test_a_what_if_keeps_the_engine_of_the_answer() -> None:
    ask: dict[str, Any] = {**QWEN, "serving": "aggregated"}
    taken = planned("qwen3-235b-a22b", **ask).plan.system.stack.name
    found = rl.plan("qwen3-235b-a22b", **ask, what_if="hbm_bandwidth=5TB/s,10TB/s")
    assert isinstance(found.result, WhatIf)
    assert {point.plan.system.stack.name for point in found.result.points} == {taken}


def test_only_a_search_compares_engines() -> None:
    assert planned("llama-3.1-8b", on="mi300x-8", chips=1, input="1k", output=200).engines is None
    assert planned("llama-3.1-8b", on="dgx-h100", chips=1, input="1k", output=200, engine="vllm").engines is None
    assert planned("llama-3.1-8b", on="dgx-h100", chips=1, input="1k", output=200, calibration="vllm").engines is None


def test_names_of_engines_are_those_of_the_catalogue() -> None:
    assert named_engine("llama.cpp") == named_engine("llama-cpp") == "llama-cpp"
    assert named_engine("tensorrt-llm=1.2.0") == "trtllm=1.2.0"
    assert (named_engine("auto"), named_engine("any")) == ("", "any")
    for text in ("vlm", "any=1", "auto=2"):
        with pytest.raises(InputError):
            named_engine(text)


PLAN = ("plan", "llama-3.1-8b", "--on", "l40s-8", "--input", "1k", "--output", "200")
EXPLAIN = ("explain", "llama-3.1-8b", "--on", "l40s-8", "--batch", "1", "--context", "1k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*PLAN, "--launch", "vllm"), "--engine vllm --launch"),
        ((*PLAN, "--launch", "--calibration", "generic"), "an engine whose options were read"),
        ((*PLAN, "--engine", "any", "--calibration", "vllm"), "each engine has its own"),
        ((*PLAN, "--stack", "vllm"), "--stack"),
        ((*EXPLAIN, "--engine", "any"), "nothing is searched here"),
        ((*EXPLAIN, "--engine", "vlm"), "nearest: vllm"),
        (("compare", "llama-3.1-8b@l40s-8", "--engine", "vllm,any"), "names of engines"),
    ],
)
def test_what_contradicts_is_refused_in_a_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1
