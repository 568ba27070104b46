"""Context parallelism: nothing is lost or counted twice, one rank changes nothing, faster links are never slower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import rackline as rl
from helpers import planned
from rackline.passes import Batch
from rackline.passes.calibration import CollectiveCalibration
from rackline.search import SearchSpace
from rackline.search.pools import without_context
from rackline.serving import Engine, Workload
from rackline.serving.disaggregated import (
    ContextGroup,
    context_decode_s,
    exchange_s,
    kv_exchange_bytes,
    prefill_chunk,
    split_kv_bytes,
)
from rackline.system import Constraints

LONG = Workload(input_len=131072, output_len=1024)


def _engine(name: str = "deepseek-v3", on: str = "gb200-nvl72", **layout: int) -> tuple[Engine, rl.Deployment]:
    model, cluster = rl.model(name), rl.cluster(on)
    deployment = rl.Deployment(
        model=model,
        cluster=cluster,
        layout=rl.Layout(**layout),
        precision=rl.precision("fp8", model, cluster.chip),
        calibration=rl.calibration("auto", cluster.chip),
    )
    return (
        Engine(
            table=deployment.table(),
            attention_dp=float(deployment.layout.attention_dp),
            num_layers=deployment.model.num_layers,
        ),
        deployment,
    )


def _prefill_s(engine: Engine, d: rl.Deployment, cp: int) -> float:
    """A full prefill pass of a context group with an all-gather of keys and values, kernels only [s]."""
    batch, group = prefill_chunk(LONG, 8192.0, cp), ContextGroup(cp=cp)
    device = engine.seconds(batch, engine.time_table(False), two_batch_overlap=False)
    sent = kv_exchange_bytes(d.model, d.precision, LONG, 8192.0, group)
    return float(device + (exchange_s(engine, d.cluster, sent, group, "all_gather") if cp > 1 else 0.0))


@pytest.mark.parametrize("new", [4096.0, 65536.0, 131072.0])
@pytest.mark.parametrize("cp", [1, 2, 8])
def test_query_key_pairs_of_a_prompt_are_conserved(new: float, cp: int) -> None:
    """All passes of all ranks together do the causal pairs of the prompt, whatever the cut."""
    work = Workload(input_len=new, output_len=2)
    budget = 8192.0
    one = prefill_chunk(work, budget, cp)
    prompts = budget * cp / new  # of a pass of the group, less than 1 when it takes several
    pairs = one.prefill_sequences * one.chunk_tokens * (one.prefix_tokens + one.chunk_tokens / 2.0) * cp
    assert one.prefill_tokens == pytest.approx(budget)
    assert pairs / prompts == pytest.approx(new * new / 2.0)


def test_one_rank_is_no_context_parallelism() -> None:
    engine, d = _engine(attention_dp=8, ep=8)
    alone = ContextGroup(cp=1)
    step = engine.seconds(
        Batch(decode_sequences=16.0, context_len=LONG.mean_context), engine.time_table(False), two_batch_overlap=False
    )
    assert float(context_decode_s(engine, d.model, d.cluster, LONG, 16.0, alone)) == pytest.approx(float(step))
    assert float(kv_exchange_bytes(d.model, d.precision, LONG, 8192.0, alone)) == 0.0
    assert float(split_kv_bytes(d.model, 16.0, alone)) == 0.0


def test_keys_that_arrive_are_those_of_the_other_ranks() -> None:
    """70,272 bytes of bf16 latent a token, half of that in fp8: 7/8 of 65,536 tokens."""
    _, d = _engine(attention_dp=8, ep=8)
    precision = dataclasses.replace(d.precision, kv_cache="bf16")
    work = Workload(input_len=65536, output_len=2)
    got = kv_exchange_bytes(d.model, precision, work, 8192.0, ContextGroup(cp=8))
    assert float(got) == pytest.approx(70_272 * 65536 * 7 / 8)


@pytest.mark.parametrize(("on", "tp", "cp", "inside"), [("gb200-nvl72", 8, 4, True), ("h100-96", 8, 4, False)])
def test_an_exchange_is_a_row_of_the_fabric(on: str, tp: int, cp: int, inside: bool) -> None:
    """Under unit it takes its bytes over the link only; else a launch and its messages per layer as well."""
    engine, d = _engine("llama-3.1-70b", on, tp=tp)
    group, sent = ContextGroup(cp=cp, tp=float(tp)), np.array(1e9)
    up, out = d.cluster.levels
    level = up if inside else out
    ideal = dataclasses.replace(engine, table=engine.table.with_calibration(rl.calibration("unit")))
    wire = 1e9 / level.bytes_per_s_each_way
    for name, steps in (("all_gather", cp - 1), ("all_to_all", 1)):
        assert float(exchange_s(ideal, d.cluster, sent, group, name)) == pytest.approx(wire, rel=1e-12)
        numbers = CollectiveCalibration(overheads_s=(3e-6,), eta_links=(0.5,), ramps=(0.4,), alpha_s=2e-6)
        table = engine.table.with_calibration(
            dataclasses.replace(engine.table.calibration, collectives={name: numbers})
        )
        message = 2e-6 + (0.0 if inside else out.latency_s - up.latency_s)
        fixed = 80 * (3e-6 + steps * message)
        expected = fixed + 2.0 * wire + 0.4 * np.sqrt(fixed * 2.0 * wire)
        timed = dataclasses.replace(engine, table=table)
        assert float(exchange_s(timed, d.cluster, sent, group, name)) == pytest.approx(expected, rel=1e-12)


def test_a_long_prompt_is_there_sooner() -> None:
    """One prompt over 8 ranks: the first token comes much earlier, the pool serves no fewer prompts per pass."""
    engine, d = _engine(attention_dp=8, ep=8)
    seconds = [_prefill_s(engine, d, cp) * np.ceil(LONG.input_len / (8192 * cp)) for cp in (1, 8)]
    assert 4.0 < seconds[0] / seconds[1] < 9.0


def test_a_single_long_sequence_decodes_faster_over_several_ranks() -> None:
    """Where reading the cache is most of the step: Llama-3.1-70B, one sequence of a million tokens."""
    engine, d = _engine("llama-3.1-70b", "dgx-h200", tp=2)
    work = Workload(input_len=1_000_000, output_len=1000)
    steps = [
        float(context_decode_s(engine, d.model, d.cluster, work, 1.0, ContextGroup(cp=cp, tp=2.0))) for cp in (1, 2, 4)
    ]
    assert steps[0] > steps[1] > steps[2]
    assert steps[0] / steps[2] > 1.5


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0, 20.0), st.sampled_from([2, 4, 16]))
def test_faster_links_are_never_slower(factor: float, cp: int) -> None:
    engine, d = _engine(attention_dp=16, ep=16)
    level = d.cluster.scale_up
    faster = dataclasses.replace(level, bytes_per_s_each_way=level.bytes_per_s_each_way * factor)
    better = dataclasses.replace(d.cluster, levels=(faster, *d.cluster.levels[1:]))
    sent = np.asarray(1e9)
    group = ContextGroup(cp=cp)
    assert exchange_s(engine, better, sent, group, "all_gather") <= exchange_s(
        engine, d.cluster, sent, group, "all_gather"
    )


def test_the_plan_uses_it_for_long_prompts_only() -> None:
    model, on = rl.model("llama-3.1-70b"), rl.cluster("dgx-h200")
    common = {
        "calibration": rl.calibration("auto", on.chip),
        "search_space": SearchSpace(batches=np.array([1, 2, 4, 8]), any_layout=True),
        "served": False,
        "precisions": [rl.precision("fp8", model, on.chip)],
    }
    alone = planned(model, on, LONG, constraints=Constraints(ttft_s=30.0), **common).disaggregated
    short = planned(model, on, Workload(input_len=2048, output_len=256), **common).disaggregated
    assert short.best.prefill_pool.layout.cp == short.best.decode_pool.layout.cp == 1
    used = {pool.layout.cp for pair in alone.pareto for pool in (pair.prefill, pair.decode)}
    assert max(used) > 1
    for pair in alone.pareto:
        assert pair.num_chips <= on.num_chips


def test_chips_of_a_context_group() -> None:
    moe, dense = rl.model("deepseek-v3"), rl.model("llama-3.1-70b")
    shared = rl.Layout(tp=1, attention_dp=2, cp=8, ep=16)
    assert without_context(shared, moe) == rl.Layout(tp=1, attention_dp=16, ep=16)
    assert without_context(rl.Layout(tp=4, cp=2), dense) == rl.Layout(tp=4)
    assert shared.chips_per_replica == 16
