"""Properties of the steady state and of memory over random deployments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from helpers import deploy, layouts
from rackline.parallel import ServerMemory
from rackline.serving.steady import Engine, steady_state
from rackline.serving.workload import Mode, Workload

MODELS = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b")

workloads = st.builds(
    Workload,
    input_len=st.floats(1.0, 5e4),
    output_len=st.floats(2.0, 1e4),
    cache_hit=st.sampled_from([0.0, 0.5, 0.95]),
)
modes = st.builds(
    Mode,
    admission=st.sampled_from(["chunked", "prefill_first"]),
    max_batched_tokens=st.sampled_from([512, 2048, 8192, 16384]),
    two_batch_overlap=st.booleans(),
)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25)
@given(data=st.data(), work=workloads, mode=modes)
def test_the_steady_state_is_consistent(name: str, data: st.DataObject, work: Workload, mode: Mode) -> None:
    layout = data.draw(st.sampled_from(layouts(name, 16)))
    d = deploy(name, layout, label="native")
    engine = Engine(table=d.table(), attention_dp=float(layout.attention_dp), stage_imbalance=d.stage_imbalance)
    batch = np.geomspace(1.0, 4096.0, 14)
    state = steady_state(engine, work, mode, batch)
    assert np.all(state.tpot_s >= state.decode_s * (1 - 1e-12))
    assert np.all((state.prefill_cost_share >= 0) & (state.prefill_cost_share < 1))
    blocked = state.prefill_utilisation >= 1
    tpot = state.tpot_s[~blocked]  # beyond, the batch cannot be kept full and the state does not exist
    assert np.all(np.diff(tpot) >= -1e-9 * tpot[1:])
    assert np.array_equal(np.isinf(state.ttft_s), blocked)
    assert not np.any(np.isnan(state.ttft_s))
    assert np.all(state.ttft_s[~blocked] >= (state.mixed_s + 0.5 * state.tpot_s)[~blocked] * (1 - 1e-12))
    if mode.admission == "chunked":  # prefill first: the share of time that prompts take, against decoding
        assert np.all(np.diff(state.prefill_utilisation) >= -1e-12)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25)
@given(
    data=st.data(),
    context=st.floats(100.0, 1e5),
    batched=st.sampled_from([512.0, 8192.0]),
    fraction=st.floats(0.3, 1.0),
)
def test_memory_parts_sum_and_the_maximum_is_the_maximum(
    name: str, data: st.DataObject, context: float, batched: float, fraction: float
) -> None:
    layout = data.draw(st.sampled_from(layouts(name, 16)))
    d = deploy(name, layout, label="native")
    server = ServerMemory(batched_tokens=batched, memory_fraction=fraction, max_num_seqs=128.0)
    need = {"context_len": context, "server": server}
    most = d.max_sequences(**need)
    use = d.memory(sequences=max(most, 1), **need)
    parts = sum(map(float, use.weights.values())) + float(use.kv_cache) + float(use.activations)
    assert parts + use.runtime == pytest.approx(float(use.used), rel=1e-12)
    assert float(d.memory(sequences=most + layout.attention_dp, **need).free) < 0
    assume(most > 0)
    assert float(use.free) >= 0
    assert most % layout.attention_dp == 0


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15)
@given(data=st.data(), context=st.floats(1.0, 1e6))
def test_more_chips_per_rank_never_hold_fewer_sequences(name: str, data: st.DataObject, context: float) -> None:
    """Doubling tp at the same experts per chip leaves at least as much room for KV."""
    narrow = data.draw(st.sampled_from([x for x in layouts(name, 32) if x.pp == 1]))
    wide = [
        x
        for x in layouts(name, 64)
        if x.pp == 1 and (x.tp, x.attention_dp, x.ep) == (2 * narrow.tp, narrow.attention_dp, narrow.ep)
    ]
    assume(wide)
    need = {"context_len": context, "server": ServerMemory(batched_tokens=2048.0)}
    one, two = (deploy(name, x, label="native").max_sequences(**need) for x in (narrow, wide[0]))
    assert two >= one
