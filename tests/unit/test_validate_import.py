"""Importers on small samples in the formats that the tools document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.errors import InputError, UnitError
from rackline.validation import Case
from rackline.validation.cases import read_line
from rackline.validation.importers import Given, import_results

VLLM: dict[str, Any] = {
    "date": "20260101-120000",
    "endpoint_type": "vllm",
    "backend": "vllm",
    "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 200,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "duration": 100.0,
    "completed": 200,
    "failed": 0,
    "total_input_tokens": 204800,
    "total_output_tokens": 25600,
    "request_throughput": 2.0,
    "output_throughput": 256.0,
    "total_token_throughput": 2304.0,
    "mean_ttft_ms": 81.5,
    "median_ttft_ms": 80.0,
    "mean_tpot_ms": 7.25,
    "median_tpot_ms": 7.2,
    "mean_itl_ms": 7.3,
}
GENAI_PERF: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "request_latency": {"unit": "ms", "avg": 900.0, "p99": 1000.0},
    "time_to_first_token": {"unit": "ms", "avg": 81.5, "p50": 80.0, "std": 3.0},
    "inter_token_latency": {"unit": "ms", "avg": 7.25, "p50": 7.2},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
    "input_config": {
        "model": ["meta-llama/Llama-3.1-8B-Instruct"],
        "backend": "vllm",
        "concurrency": 16,
        "synthetic_input_tokens_mean": 1024,
    },
}
AIPERF: dict[str, Any] = {
    "schema_version": "1.1",
    **{key: value for key, value in GENAI_PERF.items() if key != "input_config"},
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"], "streaming": True},
        "loadgen": {"concurrency": 16, "request_count": 200},
    },
}
INFERENCEX: dict[str, Any] = {
    "hw": "b200-trt",
    "conc": 64,
    "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2",
    "model": "openai/gpt-oss-120b",
    "infmax_model_prefix": "gptoss",
    "framework": "trt",
    "precision": "fp4",
    "spec_decoding": "none",
    "disagg": False,
    "isl": 1024,
    "osl": 8192,
    "is_multinode": False,
    "tp": 4,
    "ep": 4,
    "dp_attention": "false",
    "tput_per_gpu": 5000.0,
    "output_tput_per_gpu": 4400.0,
    "mean_ttft": 0.12,
    "median_ttft": 0.11,
    "mean_tpot": 0.0093,
    "median_tpot": 0.0092,
    "mean_intvty": 107.5,
}
ON = Given(chip="h100-sxm", num_chips=2, layout="tp=2", precision="fp8")


def load(folder: Path, form: str, data: Any, given: Given = ON, name: str = "result.json") -> list[dict[str, Any]]:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    lines = import_results([path], form, given).splitlines()
    for line in lines:
        assert isinstance(read_line(line, "here"), Case)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("form", "data"), [("vllm", VLLM), ("genai-perf", GENAI_PERF), ("aiperf", AIPERF)])
def test_three_formats_of_one_run_make_the_same_case(tmp_path: Path, form: str, data: dict[str, Any]) -> None:
    (found,) = load(tmp_path, form, data)
    assert found["kind"] == "serve"
    assert found["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (found["chip"], found["num_chips"], found["layout"]) == ("h100-sxm", 2, {"tp": 2})
    assert (found["input_len"], found["output_len"], found["concurrency"]) == (1024.0, 128.0, 16)
    assert found["measured"]["tpot_s"] == pytest.approx(7.25e-3)
    assert found["measured"]["ttft_s"] == pytest.approx(81.5e-3)
    assert found["source"] == f"{form}: result.json"
    counted = form == "vllm"  # the exports here do not count their requests
    assert found.get("num_prompts") == (200 if counted else None)
    assert "statistic" not in found, "a mean"


def test_a_median_is_said_and_requests_are_counted(tmp_path: Path) -> None:
    (found,) = load(tmp_path, "vllm", {**VLLM, "mean_ttft_ms": None})
    assert (found["statistic"], found["measured"]["ttft_s"]) == ("median", pytest.approx(0.08))
    (found,) = load(tmp_path, "genai-perf", {**GENAI_PERF, "request_count": {"unit": "requests", "avg": 160.0}})
    assert found["num_prompts"] == 160
    (found,) = load(tmp_path, "inferencex", INFERENCEX, Given())
    assert found["num_prompts"] == 10 * found["concurrency"]


def test_inferencex_says_everything_itself(tmp_path: Path) -> None:
    (found,) = load(tmp_path, "inferencex", INFERENCEX, Given())
    assert (found["chip"], found["num_chips"], found["stack"]) == ("b200", 4, "trtllm")
    assert found["layout"] == {"tp": 4, "ep": 4}
    assert found["length_distribution"] == "uniform_0.8_1.0"
    assert found["measured"] == {"tpot_s": 0.0093, "ttft_s": 0.12}
    assert found["speculative"] == "none"


def test_inferencex_attention_dp_and_speculation(tmp_path: Path) -> None:
    data = {**INFERENCEX, "dp_attention": "true", "spec_decoding": "mtp"}
    (found,) = load(tmp_path, "inferencex", data, Given())
    assert found["layout"] == {"attention_dp": 4, "ep": 4}
    assert found["speculative"] == "mtp"


@pytest.mark.parametrize("change", [{"disagg": True}, {"is_multinode": True}])
def test_disaggregated_runs_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="prefill and decode on separate chips"):
        load(tmp_path, "inferencex", {**INFERENCEX, **change}, Given())


def test_what_the_user_states_wins(tmp_path: Path) -> None:
    given = Given(model="llama-3.1-8b", chip="h200-sxm", num_chips=1, concurrency=4, stack="sglang", output_len=64.0)
    (found,) = load(tmp_path, "vllm", VLLM, given)
    assert (found["model"], found["chip"], found["layout"]) == ("llama-3.1-8b", "h200-sxm", {})
    assert (found["concurrency"], found["stack"], found["output_len"]) == (4, "sglang", 64.0)
    assert found["precision"] == "native"


@pytest.mark.parametrize("several", [json.dumps([VLLM, VLLM]), f"{json.dumps(VLLM)}\n{json.dumps(VLLM)}\n"])
def test_several_results_in_one_file(tmp_path: Path, several: str) -> None:
    assert [case["id"] for case in load(tmp_path, "vllm", several)] == ["result-1", "result-2"]


@pytest.mark.parametrize(
    ("form", "data", "given", "expected"),
    [
        ("vllm", {**VLLM, "mean_tpot_ms": None, "median_tpot_ms": None}, ON, "mean_tpot_ms .*got 'null'"),
        ("vllm", {k: v for k, v in VLLM.items() if k != "completed"}, ON, "completed of a result of vllm"),
        ("vllm", {**VLLM, "mean_ttft_ms": 0}, ON, "mean_ttft_ms .*got 0, allowed: a number above 0"),
        ("vllm", {**VLLM, "max_concurrency": None, "request_rate": 4.0}, ON, "this is an open loop"),
        ("vllm", GENAI_PERF, ON, "completed of a result of vllm: got 'no such key'"),
        ("genai-perf", VLLM, ON, "inter_token_latency of a result of genai-perf"),
        ("aiperf", {**AIPERF, "time_to_first_token": {"unit": "ms"}}, ON, "got 'a JSON object'.* unit and avg"),
        ("vllm", VLLM, Given(num_chips=2, layout="tp=2"), "--chip: got 'nothing'"),
        ("vllm", VLLM, Given(chip="h100-sxm", num_chips=2), "--layout: got 'nothing'"),
        ("vllm", VLLM, Given(chip="h100-sxm", num_chips=2, layout="tp=two"), "--layout: got 'tp=two'"),
        ("vllm", "{", ON, "a JSON object, a list of them, or one object per line"),
        ("vllm", "[]", ON, "a JSON object, a list of them"),
        ("vlm", VLLM, ON, "format: got 'vlm'.*nearest: vllm"),
    ],
)
def test_unusable_results_name_file_and_key(tmp_path: Path, form: str, data: Any, given: Given, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load(tmp_path, form, data, given)


def test_unknown_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnitError, match="time_to_first_token"):
        load(tmp_path, "aiperf", {**AIPERF, "time_to_first_token": {"unit": "fortnights", "avg": 1.0}})


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="result file"):
        import_results([tmp_path / "none.json"], "vllm", ON)
