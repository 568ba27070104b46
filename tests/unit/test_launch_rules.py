"""Launch rules: which layouts an engine starts, alone and in a grid, and what a plan says of better ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import planned
from rackline.arch import model
from rackline.catalog import launch_rules_record, names
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.parallel import Layout, LayoutGrid, enumerate_layouts, precision
from rackline.passes import calibration
from rackline.search import Plan, SearchSpace
from rackline.search.candidate import PoolPair
from rackline.search.launch_rules import CHECKS, Asked, launch_rules, rules_of
from rackline.search.pools import without_context
from rackline.serving.workload import Mode, Workload
from rackline.system import Constraints
from rackline.validation.cases import shipped_cases
from rackline.validation.run import read_cases

CHUNKED = Mode(admission="chunked", max_batched_tokens=2048)


def asked(layout: Layout, of: str = "deepseek-v3", on: str = "h100-96", label: str = "native", **more: object) -> Asked:
    place = cluster(on)
    found = Asked(
        model=model(of),
        cluster=place,
        sharding=layout,
        precision=precision(label, model(of), place.chip),
        mode=CHUNKED,
        role="both",
    )
    return replace(found, **more)  # type: ignore[arg-type]


REFUSED = [
    ("vllm", Layout(tp=1, attention_dp=8, ep=4, moe_tp=2), {}, "over all ranks"),
    ("vllm", Layout(tp=1, pp=9), {"of": "llama-3.1-70b"}, "same number of chips on each"),
    ("vllm", Layout(tp=4, pp=2), {"of": "llama-3.1-70b", "role": "decode"}, "NixlConnector"),
    ("vllm", Layout(tp=1, attention_dp=6, ep=6), {}, "2, 4 or 8 ranks"),
    ("vllm", Layout(tp=8, attention_dp=2, ep=1, moe_tp=16), {"of": "qwen3-235b-a22b", "label": "fp8_block"}, "scale"),
    ("vllm", Layout(tp=8), {"of": "llama-3.1-70b", "mode": Mode(admission="prefill_first")}, "prompt chunks"),
    ("vllm", Layout(tp=8, ep=8), {"mode": replace(CHUNKED, two_batch_overlap=True)}, "--enable-dbo"),
    ("sglang", Layout(tp=6, ep=6), {}, "redundant"),
    ("sglang", Layout(tp=8, cp=2), {"of": "llama-3.1-70b", "role": "prefill", "cp": 2}, "--attn-cp-size"),
    ("trtllm", Layout(tp=2, attention_dp=4, ep=8), {}, "enable_attention_dp"),
    ("trtllm", Layout(tp=8), {"of": "llama-3.1-70b", "on": "mi300x-8"}, "NVIDIA"),
    ("trtllm", Layout(tp=8), {"of": "llama-3.1-70b", "label": "fp4"}, "generation"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "layout", "more", "says"), REFUSED)
def test_what_an_engine_refuses_names_the_rule(engine: str, layout: Layout, more: dict[str, object], says: str) -> None:
    reason = launch_rules(engine).refusal(asked(layout, **more))  # type: ignore[arg-type]
    assert reason is not None
    assert says in reason
    assert reason.startswith(engine)


STARTED = [
    ("vllm", Layout(tp=1, attention_dp=16, ep=16), {}),
    ("vllm", Layout(tp=8, pp=2), {"of": "llama-3.1-70b"}),
    ("vllm", Layout(tp=1, attention_dp=72, ep=72), {"on": "gb200-nvl72"}),
    ("sglang", Layout(tp=8), {"of": "llama-3.1-70b", "mode": Mode(admission="prefill_first")}),
    ("sglang", Layout(tp=1, attention_dp=72, ep=72), {"on": "gb200-nvl72"}),
    ("trtllm", Layout(tp=1, attention_dp=8, ep=4, moe_tp=2), {}),
    *(
        (engine, Layout(tp=tp, moe_tp=tp), {"of": of, "on": "dgx-h100"})
        for engine in ("vllm", "sglang", "trtllm")
        for of in ("gpt-oss-20b", "gpt-oss-120b")
        for tp in (2, 4, 8)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "layout", "more"), STARTED)
def test_what_an_engine_starts_is_not_refused(engine: str, layout: Layout, more: dict[str, object]) -> None:
    assert launch_rules(engine).refusal(asked(layout, **more)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["fp8_block", "int4", "fp4"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_other_types_with_shared_scales_are_not_cut(engine: str, label: str) -> None:
    """fp8_utils.py, auto_awq.py and modelopt.py of vLLM raise where a rank's share is no multiple of the group."""
    qwen = model("qwen3-235b-a22b").moe()  # type: ignore[union-attr]
    assert qwen is not None
    groups = {"fp8_block": 128, "int4": 128, "fp4": 16}
    for tp in (2, 4, 8, 16, 32, 64):
        one = asked(Layout(tp=tp, moe_tp=tp), "qwen3-235b-a22b", "gb200-nvl72", label)
        refused = "share a scale" in str(launch_rules(engine).refusal(one))
        assert refused == (qwen.d_expert // tp % groups[label] != 0), tp


def test_vllm_does_not_cut_blocks_that_it_makes_while_loading() -> None:
    """vllm 0.33.0, online/mxfp4.py:186; 1536 / 64 is 24 values, less than a block."""
    fine, cut = (asked(Layout(tp=tp, moe_tp=tp), "qwen3-235b-a22b", "gb200-nvl72", "mxfp4") for tp in (16, 64))
    assert launch_rules("vllm").refusal(fine) is None
    assert "share a scale" in str(launch_rules("vllm").refusal(cut))


def test_engines_start_every_layout_that_somebody_measured_with_gpt_oss() -> None:
    """The open cases have servers of vLLM with tp=2, 4 and 8, and of TensorRT-LLM with tp=4 and 8."""
    seen = set[tuple[str, int]]()
    for case in read_cases(shipped_cases()).cases:
        engine = getattr(case, "stack", None)
        if "gpt-oss" not in case.model or engine not in ("vllm", "sglang", "trtllm") or case.kind != "serve":
            continue
        parts = dict(case.layout or {})
        tp, ep = parts.get("tp", 1), parts.get("ep", 1)
        if parts.get("attention_dp", 1) > 1:
            continue
        layout = Layout(tp=tp, ep=ep, moe_tp=tp // ep)
        assert launch_rules(engine).refusal(asked(layout, case.model, "dgx-h100")) is None
        seen.add((engine, tp))
    assert {("vllm", 8), ("trtllm", 4), ("trtllm", 8)} <= seen


def test_a_grid_is_judged_as_its_layouts_are_one_by_one() -> None:
    options = enumerate_layouts(model("deepseek-v3"), 32)
    for engine in ("vllm", "sglang", "trtllm", "generic"):
        rules = launch_rules(engine)
        for role in ("both", "prefill", "decode"):
            whole = rules.launches(asked(options[0], sharding=LayoutGrid.of(options), role=role))
            alone = [rules.refusal(asked(one, role=role)) is None for one in options[::7]]
            assert whole[::7].tolist() == alone
            assert whole.any()


def test_rules_follow_the_version() -> None:
    first = Mode(admission="prefill_first")
    assert launch_rules("vllm", "0.7.3").refusal(asked(Layout(tp=8), "llama-3.1-70b", mode=first)) is None
    mixed = asked(Layout(tp=4, pp=2), "llama-3.1-70b")
    assert "--pp-size" in str(launch_rules("sglang", "0.5.6").refusal(mixed))
    assert launch_rules("sglang").refusal(mixed) is None
    with pytest.raises(InputError, match="version"):
        launch_rules("vllm", "newest")


def test_every_rule_of_the_catalogue_is_checked_and_has_a_source() -> None:
    seen: set[str] = set()
    for name in names("launch_rules"):
        record = launch_rules_record(name)
        assert all(record.source_of(f"rules.{rule}") for rule in record.rules)
        seen |= set(record.rules)
    assert seen == set(CHECKS)


def test_the_blackboard_has_no_engine() -> None:
    assert rules_of(calibration("unit")) is None
    chip = cluster("dgx-h100").chip
    assert str(rules_of(calibration("sglang", chip))).startswith("LaunchRules(engine='sglang'")


def test_a_plan_has_only_layouts_that_the_engine_starts_and_names_a_better_one_that_it_refuses() -> None:
    place = cluster("h100-96").with_num_chips(6)
    numbers = calibration("sglang", place.chip)
    space = SearchSpace()
    question = {
        "workload": Workload(input_len=2048, output_len=512),
        "calibration": numbers,
        "precisions": [precision("fp8", model("qwen3-235b-a22b"), place.chip)],
        "constraints": Constraints(tpot_s=0.05),
        "served": False,
    }
    found = planned(model("qwen3-235b-a22b"), place, **question, search_space=space)  # type: ignore[arg-type]
    free = planned(model("qwen3-235b-a22b"), place, **question, search_space=replace(space, any_layout=True))  # type: ignore[arg-type]
    rules = rules_of(numbers)
    assert rules is not None
    assert found.best is not None
    assert free.best is not None
    for one in (found.aggregated, *found.ranked):
        assert one is not None
        now = asked(one.layout, of="qwen3-235b-a22b", label=one.precision.label, mode=one.mode)
        assert rules.refusal(now) is None
    assert found.pools is None or found.pools.layout.pp == 1
    assert found.rules_name == "sglang 0.5.23"
    assert free.rules_name == ""
    assert free.best.usd_per_mtok_output_all_in <= found.best.usd_per_mtok_output_all_in
    named = [one for one in found.rejected if one.reason.startswith("launch: ")]
    assert named
    assert "sglang 0.5.23 does not launch it" in named[0].reason
    assert not any(one.reason.startswith("launch: ") for one in free.rejected)


def test_a_layout_that_is_asked_for_and_not_launched_is_an_answer_with_the_reason() -> None:
    place = cluster("dgx-h100")
    found = planned(
        model("llama-3.1-70b"),
        place,
        Workload(input_len=1024, output_len=256),
        calibration=calibration("vllm", place.chip),
        prefill=None,
        served=False,
        search_space=SearchSpace(modes=[Mode(admission="prefill_first", max_batched_tokens=8192)]),
    )
    assert found.best is None
    assert "launches none of these" in found.reason
    assert np.isfinite(found.candidates_evaluated)


def test_a_better_pair_that_is_refused_is_named_with_its_rule() -> None:
    """Qwen3-235B on one node: tensor-parallel attention beside whole experts is cheaper, and TensorRT-LLM has none."""
    name, place = "qwen3-235b-a22b", cluster("dgx-h200")
    numbers = calibration("trtllm", place.chip)
    work, limits = Workload(input_len=4000, output_len=500), Constraints(tpot_s=0.04, ttft_s=3.0)

    def among(space: SearchSpace) -> Plan:
        return planned(
            model(name), place, work, calibration=numbers, constraints=limits, search_space=space, served=False
        )

    found, free = among(SearchSpace()), among(SearchSpace(any_layout=True))
    (one,) = [each for each in found.rejected if isinstance(each.candidate, PoolPair)]
    assert one.reason.startswith("launch: ")
    assert "pool: " in one.reason
    assert "does not launch it" in one.reason
    assert found.best is not None
    assert one.candidate.usd_per_mtok_output_all_in < found.best.estimate.usd_per_mtok_output_all_in
    pairs = list(free.disaggregated.contenders) if free.disaggregated else []
    assert min(each.usd_per_mtok_output_all_in for each in pairs) <= one.candidate.usd_per_mtok_output_all_in
    assert not any(isinstance(each.candidate, PoolPair) for each in free.rejected)
    pair = one.candidate
    assert isinstance(pair, PoolPair)
    rules = rules_of(numbers)
    assert rules is not None
    said = [
        rules.refusal(asked(without_context(pool.layout, model(name)), of=name, on="dgx-h200",
                            label=pool.precision.label, mode=pool.mode, role=role, cp=pool.layout.cp))
        for role, pool in (("prefill", pair.prefill), ("decode", pair.decode))
    ]  # fmt: skip
    assert any(said)


def test_a_pair_that_is_launched_names_none() -> None:
    place = cluster("dgx-h100")
    found = planned(
        model("llama-3.1-70b"),
        place,
        Workload(input_len=2000, output_len=500),
        calibration=calibration("auto", place.chip),
        constraints=Constraints(tpot_s=0.05, ttft_s=2.0),
        served=False,
    )
    assert found.pools is not None
    assert not any(isinstance(one.candidate, PoolPair) for one in found.rejected)
