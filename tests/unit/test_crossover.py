"""Crossover context for any attention kind: closed form where attention is dense, a root elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from helpers import gqa_model, model
from rackline.catalog import names
from rackline.serving.blackboard import crossover_context
from rackline.serving.curve import model_crossover_context

CHIP = {"flop_per_s": 989e12, "hbm_bytes_per_s": 3.35e12}


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gpt-3-175b", "palm-540b", "lecture-frontier"])
def test_dense_attention_has_the_closed_form(name: str) -> None:
    m = model(name)
    closed = crossover_context(m.active_params, m.kv_bytes_per_token(2.0), *CHIP.values())
    assert model_crossover_context(m, **CHIP, bytes_per_element=2.0) == pytest.approx(closed, rel=1e-5)


@pytest.mark.parametrize("name", names("models"))
def test_the_root_is_where_both_times_are_equal(name: str) -> None:
    m = model(name)
    found = model_crossover_context(m, **CHIP, bytes_per_element=1.0)
    budget = 2.0 * m.active_params / CHIP["flop_per_s"] * CHIP["hbm_bytes_per_s"]
    if math.isinf(found):
        assert float(np.asarray(m.kv_read_bytes(1e9, 1.0))) < budget
    elif found == 0.0:
        assert 2.0 * m.state_bytes() >= budget
    else:
        assert float(np.asarray(m.kv_read_bytes(found, 1.0))) == pytest.approx(budget, rel=1e-4)


def test_a_window_alone_never_crosses_on_a_small_chip() -> None:
    small = gqa_model(attention={"kind": "gqa", "num_q_heads": 8, "num_kv_heads": 1, "head_dim": 64, "window": 8})
    assert math.isinf(model_crossover_context(small, flop_per_s=1e12, hbm_bytes_per_s=1e13, bytes_per_element=1.0))


@given(factor=st.floats(1.1, 100.0))
def test_more_bandwidth_moves_the_crossover_out(factor: float) -> None:
    m = model("deepseek-v3.2")
    near = model_crossover_context(m, **CHIP, bytes_per_element=1.0)
    far = model_crossover_context(m, flop_per_s=989e12, hbm_bytes_per_s=3.35e12 * factor, bytes_per_element=1.0)
    assert far > near
