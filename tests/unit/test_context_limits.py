"""Every command that takes lengths says when they are beyond what the model was made for."""

from __future__ import annotations

from typing import Any

import pytest

import rackline as rl
from rackline.catalog import model_record, names

ON = "dgx-h100"
LONG: dict[str, dict[str, Any]] = {
    "plan": {"input": "8k", "output": 500, "chips": 1, "layout": "tp=1", "serving": "aggregated"},
    "simulate": {"chips": 1, "rate": 1, "requests": 5, "input": "8k", "output": 500},
    "explain": {"batch": 1, "context": "9k", "layout": "tp=1"},
    "fit": {"context": "9k", "layout": "tp=1"},
    "price": {"contexts": "4k,9k", "layout": "tp=1"},
    "tiers": {"prompt": "9k", "layout": "tp=1"},
}


@pytest.mark.parametrize("name", LONG)
def test_a_request_beyond_the_limit_is_marked_with_the_nearest_that_is_not(name: str) -> None:
    found = getattr(rl, name)("llama-3.1-8b", on=ON, set=["max_context_len=8192"], **LONG[name])
    assert [text for text in found.warnings if "made for 8,192" in text and text.endswith("is 8192")], found.warnings


def test_a_comparison_of_deployments_is_marked() -> None:
    found = rl.compare(["llama-3.1-8b@wse3-1", "qwen3-8b@wse3-1"], input="200k", output="1k")
    said = [text for text in found.warnings if "was made for" in text]
    assert [text.partition(":")[0] for text in said] == ["llama-3.1-8b", "qwen3-8b"]


def test_nothing_is_said_within_the_limit() -> None:
    found = rl.fit("llama-3.1-8b", on=ON, context="8k", set=["max_context_len=8192"], layout="tp=1")
    assert not found.warnings


def test_every_open_model_of_the_catalogue_has_a_limit() -> None:
    for name in names("models"):
        architecture = model_record(name).architecture
        assert architecture is None or architecture.max_context_len, name
