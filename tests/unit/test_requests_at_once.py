"""Requests that all come at once, in whole waves and a part of one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackline.validation import Case
from rackline.validation.cases import read_line, requests_of
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver

PEAK: dict[str, Any] = {
    "id": "a",
    "kind": "max-throughput",
    "model": "meta-llama/Llama-3.1-8B",
    "chip": "h100-sxm",
    "num_chips": 1,
    "stack": "trtllm",
    "stack_version": "1.0",
    "precision": "fp8",
    "layout": {"tp": 1},
    "input_len": 128,
    "output_len": 2048,
    "measured": {"output_tokens_per_s": 20000.0},
}


def case(**changes: Any) -> Case:
    found = read_line(json.dumps({**PEAK, **changes}), "cases.jsonl, line 1")
    assert isinstance(found, Case), found
    return found


def rate(**changes: Any) -> float:
    return Predictor(resolver=Resolver()).predict(case(**changes))["output_tokens_per_s"]


def test_the_number_of_requests_is_the_cases_or_its_benchmarks() -> None:
    assert requests_of(case()) == 0
    assert requests_of(case(num_prompts=77)) == 77
    overview = "NVIDIA/TensorRT-LLM@258c7540:docs/source/performance/perf-overview.md"
    assert requests_of(case(source=overview)) == 3000
    assert requests_of(case(source=overview, input_len=7)) == 0


def test_whole_waves_are_as_fast_as_requests_without_end() -> None:
    endless, seqs = rate(max_num_seqs=64), 64
    assert rate(max_num_seqs=seqs, num_prompts=10 * seqs) == pytest.approx(endless, rel=0.01)


def test_the_rest_of_a_wave_costs_nearly_a_wave() -> None:
    """One request more than a wave takes a second wave that is nearly empty: well over half of the rate is lost."""
    endless = rate(max_num_seqs=64)
    more = rate(max_num_seqs=64, num_prompts=65)
    assert 0.5 * endless < more < 0.7 * endless
    assert more < rate(max_num_seqs=64, num_prompts=120) < endless


def test_fewer_requests_than_places_run_as_their_own_batch() -> None:
    assert rate(max_num_seqs=256, num_prompts=32) == pytest.approx(rate(max_num_seqs=32), rel=0.02)
