"""From a case to its deployment and prediction: names, layouts, precisions, kinds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rackline.catalog.index import stack_name
from rackline.errors import InputError, LayoutError, UnknownNameError
from rackline.parallel import Layout
from rackline.serving.stack import IDEAL
from rackline.serving.steady import median_step_s
from rackline.validation import Case, validate
from rackline.validation.cases import (
    known_sources,
    laboratory_of,
    read_line,
    request_s,
    rounds_of,
    source_of,
    workload_of,
)
from rackline.validation.predict import Predictor, output_rate, run_of
from rackline.validation.resolve import Resolver, architecture_record, layouts_of, version_of

SHAPE: dict[str, Any] = {
    "num_layers": 24,
    "d_model": 2048,
    "num_q_heads": 16,
    "d_ff": 8192,
    "vocab_size": 50_000,
    "attention": "mha",
    "ffn": "gelu",
}
SERVE: dict[str, Any] = {
    "id": "a",
    "kind": "serve",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "chip": "h100-sxm",
    "num_chips": 2,
    "stack": "vllm",
    "precision": "fp8",
    "layout": {"tp": 2},
    "input_len": 1000,
    "output_len": 101,
    "concurrency": 8,
    "measured": {"tpot_s": 0.006, "ttft_s": 0.05},
}


def case(**changes: Any) -> Case:
    data = {key: value for key, value in {**SERVE, **changes}.items() if value is not ...}
    found = read_line(json.dumps(data), "cases.jsonl, line 1")
    assert isinstance(found, Case), found
    return found


def layout_of(**changes: Any) -> Layout:
    item = case(**changes)
    (found,) = layouts_of(item, Resolver().model(item))
    return found


def predict(**changes: Any) -> dict[str, float]:
    return Predictor(resolver=Resolver(calibration_name="unit")).predict(case(**changes))


# ---------------------------------------------------------------------------------------------- deployments


def test_hugging_face_id_resolves_by_the_alias_rules() -> None:
    assert Resolver().model(case()).name == "llama-3.1-8b"


def test_a_lone_chip_has_no_link_to_wait_for() -> None:
    """No cluster of the catalogue has this chip; alone it sends nothing, so no rate of a link is made up."""
    found = Resolver().cluster_of(case(chip="t4", num_chips=1, layout={"tp": 1}))
    assert found.levels[0].bytes_per_s_each_way == math.inf
    assert all(math.isfinite(value) for value in predict(chip="t4", num_chips=1, layout={"tp": 1}).values())


def test_unknown_names_say_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: .*llama-3\.1-8b"):
        Resolver().model(case(model="llama-3.1-9b"))
    with pytest.raises(UnknownNameError, match="h100-sxm"):
        Resolver().deployments(case(chip="h100-smx"))


def test_inline_architecture_is_used_as_it_stands() -> None:
    model = Resolver().model(case(model="GPT-1.3B", architecture=SHAPE))
    assert model.total_params == pytest.approx(24 * 12 * 2048**2 + 50_000 * 2048, rel=2e-3)
    attention = model.layer_groups[0].attention  # type: ignore[union-attr]
    assert (attention.num_kv_heads, attention.head_dim) == (16, 128)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"colour": 1}, "architecture: got 'colour'"),
        ({"num_layers": None}, "num_layers"),
        ({"attention": "mamba"}, "architecture.attention: got 'mamba'"),
        ({"attention": "gqa"}, "num_kv_heads"),
    ],
)
def test_unusable_architecture_names_the_key(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        architecture_record({**SHAPE, **change}, "mine", "here")


def test_inline_config_is_read_as_a_hugging_face_config() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    assert Resolver().model(case(model="mine", config=config)).num_layers == 2  # type: ignore[union-attr]


def test_replicas_fill_up_the_chips() -> None:
    assert layout_of(num_chips=8, layout={"tp": 2, "pp": 2}) == Layout(tp=2, pp=2, dp=2)


def test_dense_models_ignore_the_expert_parts_and_attention_dp_counts_as_replicas() -> None:
    assert layout_of(num_chips=4, layout={"tp": 2, "ep": 4, "moe_tp": 3, "attention_dp": 2}) == Layout(tp=2, dp=2)


def test_moe_tp_follows_from_the_other_parts() -> None:
    mixtral = {"model": "mistralai/Mixtral-8x7B-v0.1", "num_chips": 8}
    assert layout_of(**mixtral, layout={"tp": 4, "attention_dp": 2, "ep": 4}) == Layout(
        tp=4, attention_dp=2, ep=4, moe_tp=2
    )
    assert layout_of(**mixtral, layout={"tp": 8}) == Layout(tp=8, moe_tp=8)


def test_missing_ep_of_a_throughput_case_leaves_all_values_open() -> None:
    item = case(model="mistralai/Mixtral-8x7B-v0.1", num_chips=4, layout={"tp": 4}, kind="max-throughput",
                measured={"output_tokens_per_s": 1.0})  # fmt: skip
    found = layouts_of(item, Resolver().model(item))
    assert [(layout.ep, layout.moe_tp) for layout in found] == [(1, 4), (2, 2), (4, 1)]


@pytest.mark.parametrize(
    ("layout", "num_chips", "expected"),
    [
        ({"tp": 3}, 8, "3 chips per replica to divide num_chips=8"),
        ({"tq": 2}, 8, "nearest: tp"),
        ({"tp": "two"}, 8, "layout.tp: got 'two'"),
    ],
)
def test_impossible_layout_says_why(layout: dict[str, Any], num_chips: int, expected: str) -> None:
    with pytest.raises(LayoutError, match=expected):
        layout_of(layout=layout, num_chips=num_chips)


def test_chips_are_joined_by_the_cluster_that_holds_them_as_it_is() -> None:
    resolver = Resolver()
    h100, gb200 = resolver.chip("h100-sxm"), resolver.chip("gb200")
    assert resolver.cluster(h100, 4).name == "dgx-h100"
    assert resolver.cluster(h100, 64).name == "h100-96"
    assert resolver.cluster(gb200, 4).scale_up.size == 72
    with pytest.raises(InputError, match="num_chips: got 64, allowed: at most 8"):
        resolver.cluster(resolver.chip("l40s"), 64)


def test_shared_kv_head_lets_query_heads_be_padded() -> None:
    item = case(model="palm-540b", chip="tpu-v4", num_chips=64, layout={"tp": 64}, precision="bf16")
    (deployment,) = Resolver().deployments(item)
    assert deployment.model.num_q_heads == 64  # type: ignore[union-attr]


def test_precision_detail_replaces_parts_of_the_label() -> None:
    (deployment,) = Resolver().deployments(case(precision_detail={"kv": "bf16"}))
    assert (deployment.precision.linear_weights, deployment.precision.kv_cache) == ("fp8", "bf16")


def test_stacks_are_known_by_several_names() -> None:
    assert stack_name("TensorRT-LLM") == stack_name("trt") == "trtllm"
    assert stack_name("FasterTransformer") == "fastertransformer"


# ---------------------------------------------------------------------------------------------- predictions


def test_serve_predicts_both_times_and_their_sum() -> None:
    found = predict()
    assert found["tpot_s"] > 0
    assert found["request_s"] == pytest.approx(found["ttft_s"] + 100 * found["tpot_s"])


def test_random_lengths_are_shorter_than_nominal() -> None:
    item = case(length_distribution="uniform_0.8_1.0")
    assert workload_of(item).input_len == pytest.approx(900)
    assert request_s(item, tpot_s=0.01, ttft_s=1.0) == pytest.approx(1.0 + (0.9 * 101 - 1) * 0.01)
    with pytest.raises(InputError, match="length_distribution"):
        predict(length_distribution="zipf")


def test_unknown_speculation_is_predicted_plain_and_drafts_make_it_faster() -> None:
    assert predict(speculative="unknown") == predict(speculative="none")
    assert predict(speculative="mtp")["tpot_s"] < predict(speculative="none")["tpot_s"]
    with pytest.raises(InputError, match="speculative: got 'lookahead'"):
        predict(speculative="lookahead")


def test_static_batch_total_is_prefill_and_steps() -> None:
    found = predict(kind="static-batch", batch_size=4, measured={"total_s": 1.0})
    assert found["total_s"] == pytest.approx(found["prefill_s"] + 100 * found["token_s"])


def test_throughput_takes_the_best_of_the_open_layouts() -> None:
    base = {"kind": "max-throughput", "model": "mistralai/Mixtral-8x7B-v0.1", "num_chips": 4,
            "measured": {"output_tokens_per_s": 1.0}}  # fmt: skip
    each = [predict(**base, layout={"tp": 4, "ep": ep})["output_tokens_per_s"] for ep in (1, 2, 4)]
    assert predict(**base, layout={"tp": 4})["output_tokens_per_s"] == pytest.approx(max(each))


def test_params_are_those_of_the_model() -> None:
    found = predict(kind="params", measured={"total_params": 8.03e9})
    assert found["total_params"] == pytest.approx(8.03e9, rel=1e-3)
    assert found["kv_bytes_per_token"] == 32 * 2 * 8 * 128  # fp8
    bare = predict(kind="params", chip=..., precision=..., num_chips=..., measured={"total_params": 8.03e9})
    assert bare["kv_bytes_per_token"] == 2 * 32 * 2 * 8 * 128


OPS = {
    "gemm": {"dtype": "bfloat16", "m": 4096, "n": 8192, "k": 8192},
    "attention_decode": {"dtype": "bfloat16", "kv_dtype": "fp8", "batch": 64, "context": 4096, "q_heads": 32,
                         "kv_heads": 8, "head_dim": 128},
    "attention_prefill": {"dtype": "bfloat16", "kv_dtype": "bfloat16", "batch": 1, "tokens": 8192, "q_heads": 32,
                          "kv_heads": 8, "head_dim": 128},
    "mla_decode": {"dtype": "bfloat16", "kv_dtype": "bfloat16", "batch": 64, "context": 4096, "q_heads": 128},
    "mla_prefill": {"dtype": "bfloat16", "kv_dtype": "bfloat16", "batch": 1, "tokens": 4096, "q_heads": 128},
    "moe": {"dtype": "bfloat16", "tokens": 4096, "d_model": 4096, "d_ff": 14336, "top_k": 2, "num_experts": 8,
            "moe_tp": 1, "ep": 1, "distribution": "balanced"},
    "collective": {"collective": "all_reduce", "num_chips": 8, "message_bytes": 1 << 30},
    "custom_all_reduce": {"implementation": "vllm_graph", "num_chips": 8, "message_bytes": 1 << 20},
    "deepep_low_latency": {"num_nodes": 1, "d_model": 7168, "tokens": 128, "top_k": 8, "num_experts": 256},
}  # fmt: skip


def op_line(op: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": op,
        "kind": "op",
        "op": op,
        "chip": "h100-sxm",
        "stack": "vllm",
        "measured": {"seconds": 1e-3},
        **OPS[op],
        **changes,
    }


@pytest.mark.parametrize("op", OPS)
def test_every_operation_has_a_prediction(op: str, tmp_path: Path) -> None:
    path = tmp_path / "ops.jsonl"
    path.write_text(json.dumps(op_line(op)))
    board = validate([path], "unit")
    assert [score.metric for score in board.scores] == ["seconds"]
    assert 1e-7 < board.scores[0].predicted < 1e-1


def test_ideal_operations_are_the_roofline(tmp_path: Path) -> None:
    path = tmp_path / "ops.jsonl"
    path.write_text("\n".join(json.dumps(op_line(op)) for op in ("gemm", "collective")))
    seconds = {score.groups["op"]: score.predicted for score in validate([path], "unit").scores}
    chip = Resolver().chip("h100-sxm")
    assert seconds["gemm"] == pytest.approx(2 * 4096 * 8192**2 / chip.flop_per_s("bf16"))
    link = Resolver().cluster(chip, 8).scale_up.bytes_per_s_each_way
    # the switch adds up and multicasts: each chip sends its part of the buffer once and what it has added up once
    assert seconds["collective"] == pytest.approx(9 / 8 * 2**30 / link)


def test_one_bad_operation_does_not_take_its_table_along(tmp_path: Path) -> None:
    path = tmp_path / "ops.jsonl"
    bad = op_line("moe", distribution="unheard-of", id="bad")
    path.write_text("\n".join(json.dumps(line) for line in (op_line("moe"), bad, op_line("gemm", dtype="fp3", id="x"))))
    board = validate([path], "unit")
    assert [score.case_id for score in board.scores][:1] == ["moe"]
    reasons = {case.case_id: case.reason for case in board.unsupported}
    assert "fp3" in reasons["x"]
    assert reasons["x"].startswith("ops.jsonl, line 3: ")


# ---------------------------------------------------------------------------------------------- whole files


def test_bad_cases_are_counted_and_the_rest_scored(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    lines = [SERVE, {**SERVE, "id": "b", "model": "nobody/knows"}, {**SERVE, "id": "c", "chip": "h900"}]
    lines.append({**SERVE, "id": "d", "precision": "fp3"})
    path.write_text("\n".join(json.dumps(line) for line in lines))
    board = validate([path], "unit")
    assert board.num_cases == 4
    assert {score.case_id for score in board.scores} == {"a"}
    assert [case.case_id for case in board.unsupported] == ["b", "c", "d"]
    assert all(case.reason.startswith("cases.jsonl, line ") for case in board.unsupported)
    assert board.metrics["tpot_s"].n == 4
    assert board.worst[0]["passes"]["decode"]["seconds"] > 0


def test_cases_of_one_id_keep_their_own_prediction(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (SERVE, {**SERVE, "concurrency": 64})))
    board = validate([path], "unit")
    assert len({score.predicted for score in board.scores if score.metric == "tpot_s"}) == 2
    assert {entry["where"] for entry in board.worst} == {"cases.jsonl, line 1", "cases.jsonl, line 2"}


def test_unknown_calibration_is_an_error_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(SERVE))
    with pytest.raises(UnknownNameError, match="calibration"):
        validate([path], "vlm")


def test_stacks_can_be_replaced_and_the_ideal_roofline_has_none_of_their_extras() -> None:
    slow = IDEAL.with_values({"name": "vllm", "arrivals.first_token_s": 1.0})
    plain = Predictor(resolver=Resolver(change=lambda _: replace(IDEAL, name="vllm")))
    late = Predictor(resolver=Resolver(change=lambda _: slow))
    assert late.predict(case())["ttft_s"] > plain.predict(case())["ttft_s"] + 0.9
    ideal = Predictor(resolver=Resolver(calibration_name="unit", change=lambda _: slow))
    assert ideal.predict(case())["ttft_s"] < plain.predict(case())["ttft_s"]


POOLS: dict[str, Any] = {
    "kind": "serve-disaggregated",
    "num_chips": 6,
    "layout": ...,
    "prefill": {"workers": 2, "layout": {"tp": 1}},
    "decode": {"workers": 1, "layout": {"tp": 4}},
    "derived": {"output_tokens_per_s_per_chip": 1.0},
}


def test_pools_are_parts_of_one_cluster() -> None:
    prefill, decode = Resolver().pools(case(**POOLS))
    assert (prefill.layout, decode.layout) == (Layout(dp=2), Layout(tp=4))
    assert prefill.cluster.name == decode.cluster.name == "dgx-h100"
    assert (prefill.cluster.num_chips, decode.cluster.num_chips) == (2, 4)


def test_pools_are_scored_by_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "pools.jsonl"
    data = {key: value for key, value in {**SERVE, **POOLS}.items() if value is not ...}
    file.write_text(json.dumps(data), encoding="utf-8")
    board = validate([file])
    scores = {score.metric: score for score in board.scores}
    assert set(scores) == {"pools_tpot_s", "pools_ttft_s", "pools_request_s"}
    one = Predictor(resolver=Resolver()).pools(case(**POOLS)).closed_loop(workload_of(case(**POOLS)), 8)
    assert scores["pools_tpot_s"].predicted == pytest.approx(one.tpot_s)
    assert scores["pools_request_s"].predicted == pytest.approx(one.ttft_s + 100 * one.tpot_s)


def test_workers_must_add_up_to_the_chips() -> None:
    with pytest.raises(InputError, match="num_chips: got 5, allowed: 2 of the prefill and 4 of the decode workers"):
        Resolver().pools(case(**{**POOLS, "num_chips": 5}))


@pytest.mark.parametrize("pool", [{"workers": 1}, {"workers": 0, "layout": {}}, {"workers": 1, "layout": 1}, []])
def test_a_pool_has_workers_and_a_layout(pool: object) -> None:
    data = {key: value for key, value in {**SERVE, **POOLS, "decode": pool}.items() if value is not ...}
    found = read_line(json.dumps(data), "x")
    assert not isinstance(found, Case)
    assert "decode" in found.reason
    assert found.metrics == ("tpot_s", "ttft_s")


@pytest.mark.parametrize(
    ("said", "stack", "found"),
    [
        ("0.11.0", "vllm", "0.11.0"),
        ("rocm/vllm:rocm7.0.0_vllm_0.11.1_20251103", "vllm", "0.11.1"),
        ("rocm/atom-dev:vllm-v0.19.0-nightly_20260522", "vllm", "0.19.0"),
        ("lmsysorg/sglang:v0.5.12-rocm700-mi35x", "sglang", "0.5.12"),
        ("nightly-dev-20260216-d3bae71e", "sglang", "nightly-dev-20260216-d3bae71e"),
    ],
)
def test_the_version_of_an_image_is_in_its_tag(said: str, stack: str, found: str) -> None:
    assert version_of(case(stack=stack, stack_version=said)) == found


def test_a_case_without_a_version_runs_no_newer_one_than_its_source_can() -> None:
    dated = case(source="aic:systems/silicon_sample.csv#source_file=2026-04-06.csv", chip="b200-sxm")
    assert version_of(dated) == "0.18.0"
    assert version_of(case(chip="b200-sxm")) == ""
    assert (
        Resolver().stack(dated).scheduler.max_batched_tokens
        < Resolver().stack(case(chip="b200-sxm")).scheduler.max_batched_tokens
    )


def test_the_offline_class_has_defaults_of_its_own() -> None:
    burst = {"kind": "max-throughput", "concurrency": ..., "measured": {"output_tokens_per_s": 1.0}}
    served, called = (
        Resolver().stack(case(**burst, stack_version="0.11.0", chip="a100-sxm-80gb", **said))
        for said in ({}, {"offline": True})
    )
    assert (served.scheduler.max_batched_tokens, called.scheduler.max_batched_tokens) == (2048, 8192)
    own = case(**burst, offline=True, max_num_batched_tokens=4096)
    assert Resolver().stack(own).scheduler.max_batched_tokens == 4096
    amd = {"source": "ROCm/vllm@8bd11e205:docs/dev-docker/README.md", "stack_version": "0.10.0", "chip": "mi300x"}
    assert Resolver().stack(case(**burst, **amd)).scheduler.max_batched_tokens == 131_072
    streams = case(kind="static-batch", batch_size=1, concurrency=..., measured={"total_s": 1.0}, **amd)
    assert Resolver().stack(streams).scheduler.max_batched_tokens == 16384


def test_numbers_of_dynamo_are_not_those_of_its_engine() -> None:
    old = case(**{**POOLS, "stack": "trtllm", "stack_version": "0.8.1"})
    image = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1"
    of_dynamo = case(**{**POOLS, "stack": "trtllm", "stack_version": "0.8.1", "image": image})
    assert Resolver().stack(old).memory.logit_bytes > Resolver().stack(of_dynamo).memory.logit_bytes


ENGINE: dict[str, Any] = {
    "model": "openai/gpt-oss-120b",
    "num_chips": 1,
    "stack_version": "0.11.1",
    "precision": "mxfp4",
    "layout": {"tp": 1},
}


def test_the_settings_that_a_case_states_are_those_of_its_engine() -> None:
    """A server on one H100 holds this model where it draws the tokens of 64 requests, not of 1,024 (the default)."""
    with pytest.raises(InputError, match="no memory for one request"):
        Predictor(resolver=Resolver()).predict(case(**ENGINE))
    held = Predictor(resolver=Resolver()).predict(case(**ENGINE, max_num_seqs=64))
    assert held["tpot_s"] > 0
    stated = Resolver().stack(case(max_num_seqs=64, max_num_batched_tokens=512, memory_fraction=0.5))
    assert (stated.scheduler.max_num_seqs, stated.scheduler.max_batched_tokens, stated.memory.memory_fraction) == (
        64,
        512,
        0.5,
    )


def test_a_cap_below_the_concurrency_makes_requests_wait() -> None:
    free, capped = (Predictor(resolver=Resolver()).predict(case(concurrency=64, **more)) for more in ({}, CAPPED))
    assert capped["tpot_s"] < free["tpot_s"]
    assert capped["ttft_s"] > free["ttft_s"]


CAPPED: dict[str, Any] = {"max_num_seqs": 16}


@pytest.mark.parametrize("share", [0.0, 1.5, "90 %"])
def test_a_share_of_the_memory_is_at_most_all_of_it(share: object) -> None:
    found = read_line(json.dumps({**SERVE, "memory_fraction": share}), "cases.jsonl, line 1")
    assert not isinstance(found, Case)
    assert "memory_fraction" in found.cause


ENERGY = {
    "source": "ml-energy/leaderboard@0cd52dab89:public/data/models/x.json",
    "stack_version": "0.11.1",
    "assumed": ["input_len"],
    "input_len": 600,
    "concurrency": 64,
    "async_scheduling": True,
}


def test_what_a_benchmark_does_is_known_by_its_source() -> None:
    """ML.ENERGY publishes medians, draws tokens by top-p and assumes nothing of its prompts."""
    plain, known = case(), case(**ENERGY)
    assert source_of(plain).tpot == "mean"
    assert (source_of(known).tpot, source_of(known).sampling) == ("median", "top_p")
    assert workload_of(known).input_len == source_of(known).assumed_input_len
    assert workload_of(case(**{**ENERGY, "assumed": []})).input_len == 600
    assert workload_of(known).mean_context > workload_of(known).input_len + 101 / 2
    (deployment,) = Resolver().deployments(known)
    assert deployment.sample_bytes_per_logit > 0
    assert (deployment.precision.linear_weights, deployment.precision.kv_cache) == ("fp8", "bf16")
    assert Resolver().deployments(plain)[0].sample_bytes_per_logit == 0.0
    assert all(source.urls and source.accessed for source in known_sources())


def test_launch_commands_of_a_benchmark_decide() -> None:
    """Commands of InferenceX for gpt-oss store the cache in fp8 on B200 and as released on H100; both capture 2,048."""
    nightly = {
        "source": "aic:systems/silicon_sample.csv#source_file=2026-04-06.csv",
        "model": "openai/gpt-oss-120b",
        "stack": "vllm",
        "stack_version": "0.18.0",
        "precision": "fp4",
    }
    resolver = Resolver()
    for chip, kept in (("b200-sxm", "fp8"), ("h100-sxm", "bf16")):
        one = case(**{**nightly, "chip": chip})
        assert resolver.deployments(one)[0].precision.kv_cache == kept
        assert resolver.stack(one).graphs.captured_prompt_tokens == 2048
    assert resolver.stack(case(**{**nightly, "model": "meta-llama/Llama-3.1-70B"})).graphs.captured_prompt_tokens == 512
    assert laboratory_of(case(**nightly)) == "nightly runs of 2026-04-06"


def test_a_published_median_is_predicted_as_one() -> None:
    predictor, known = Predictor(resolver=Resolver()), case(**ENERGY)
    (deployment,), around = predictor.resolver.deployments(known), predictor.resolver.stack(known)
    step_s = median_step_s(
        predictor.engine(deployment, around),
        workload_of(known),
        around.scheduler.mode(),
        np.array([known.number("concurrency")]),
    )
    assert predictor.predict(known)["tpot_s"] == pytest.approx(float(step_s[0]))


def test_assumed_keys_are_a_list_of_names() -> None:
    found = read_line(json.dumps({**SERVE, "assumed": "input_len"}), "x, line 1")
    assert not isinstance(found, Case)
    assert "assumed" in found.reason


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"tp": 1, "moe_tp": 8}, Layout(attention_dp=8, moe_tp=8)),
        ({"tp": 2, "moe_tp": 8, "ep": 1}, Layout(tp=2, attention_dp=4, moe_tp=8)),
        ({"tp": 2, "moe_tp": 4, "ep": 2}, Layout(tp=2, attention_dp=4, moe_tp=4, ep=2)),
        ({"tp": 1, "ep": 8}, Layout(attention_dp=8, ep=8)),
        ({"tp": 1, "attention_dp": 1, "moe_tp": 8, "ep": 1}, Layout(attention_dp=8, moe_tp=8)),
        ({"tp": 2, "attention_dp": 4}, Layout(tp=2, attention_dp=4, moe_tp=8)),
        ({"tp": 8, "ep": 8}, Layout(tp=8, ep=8)),
        ({"tp": 4}, Layout(tp=4, moe_tp=4, dp=2)),
    ],
)
def test_experts_over_more_chips_than_attention_are_attention_dp(layout: dict[str, int], expected: Layout) -> None:
    found = layout_of(model="qwen3-235b-a22b", num_chips=8, layout=layout)
    assert found == expected
    assert found.moe_tp * found.ep == found.tp * found.attention_dp
    data = case(model="qwen3-235b-a22b", num_chips=8, layout=layout)
    assert Predictor(resolver=Resolver()).predict(data)["tpot_s"] > 0


# ------------------------------------------------------------------------------------------- runs as they were run

NIGHTLY = "aic:systems/silicon_sample.csv#source_file=2026-04-06.csv"


def test_requests_per_user_come_from_the_case_or_its_benchmark() -> None:
    assert rounds_of(case()) == math.inf
    assert rounds_of(case(num_prompts=40)) == 5.0
    assert rounds_of(case(source=NIGHTLY)) == 10.0
    assert rounds_of(case(source=NIGHTLY, statistic="median")) == math.inf, "half of the requests came later"


def test_a_first_burst_lengthens_the_mean_time_to_first_token_alone() -> None:
    endless, finite = predict(concurrency=64), predict(concurrency=64, num_prompts=640)
    assert finite["ttft_s"] > 1.2 * endless["ttft_s"]
    assert finite["tpot_s"] == pytest.approx(endless["tpot_s"])


def test_a_launch_setting_holds_for_its_lengths_and_layouts() -> None:
    said: dict[str, Any] = {"source": NIGHTLY, "stack": "trtllm", "model": "meta-llama/Llama-3.1-70B"}
    equal = {"input_len": 1024, "output_len": 1024}

    def waits(**changes: Any) -> int:
        return Resolver().stack(case(**{**said, **equal, **changes})).scheduler.batch_wait_steps

    assert waits() == 20
    assert waits(output_len=8192) == waits(layout={"tp": 8}, num_chips=8) == waits(stack="vllm") == 0


def test_a_run_with_long_tails_is_simulated() -> None:
    said: dict[str, Any] = {"kind": "max-throughput", "concurrency": ..., "measured": {"output_tokens_per_s": 1.0}}
    chats = case(**said, num_prompts=300, data_set="sharegpt", input_len=217.4, output_len=201.6)
    run = run_of(chats)
    assert len(run) == 300
    assert np.mean(run.input_len) == pytest.approx(217.4, rel=0.01)
    assert np.mean(run.output_len) == pytest.approx(201.6, rel=0.01)
    assert np.max(run.output_len) > 3 * 201.6
    found = Predictor(resolver=Resolver()).predict(chats)["output_tokens_per_s"]
    resolver = Resolver()
    assert found == pytest.approx(output_rate(resolver.deployments(chats)[0], resolver.stack(chats), chats))
    equal = case(**said, num_prompts=300, input_len=217.4, output_len=201.6)
    assert found < 0.95 * Predictor(resolver=Resolver()).predict(equal)["output_tokens_per_s"], "the last one ends late"
    slow = case(**said, num_prompts=300, data_set="sharegpt", input_len=217.4, output_len=201.6, request_rate=2.0)
    assert Predictor(resolver=Resolver()).predict(slow)["output_tokens_per_s"] == pytest.approx(2.0 * 201.6, rel=0.25)


def test_a_serving_beyond_the_peak_of_its_chips_is_listed_and_not_scored(tmp_path: Path) -> None:
    """An 8B in fp8 on two H100 reads 4 GB a chip: no token comes in a tenth of the 1.2 ms that takes."""
    rows = [{**SERVE, "id": "fast", "measured": {"tpot_s": 1.2e-4}}, {**SERVE, "id": "true"}]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    board = validate([file])
    (listed,) = board.unsupported
    assert (listed.case_id, listed.bad_input) == ("fast", False)
    assert "no machine does the work as stated: 0.12 ms a token measured, at least 1" in listed.reason
    assert {score.case_id for score in board.scores} == {"true"}


def test_gaps_between_kernels_add_up_over_layers() -> None:
    amd: dict[str, Any] = {"chip": "mi300x", "model": "meta-llama/Llama-3.1-8B-Instruct"}
    for stack, each in (("sglang", 35e-6), ("atom", 35e-6), ("vllm", 0.0)):
        numbers = Resolver().deployments(case(**amd, stack=stack))[0].calibration
        assert numbers.host_s_per_step == pytest.approx(32 * each)
    assert Resolver().deployments(case(stack="sglang"))[0].calibration.host_s_per_step == 0.0
