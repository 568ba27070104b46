"""Properties of every pass: monotone, parts sum, one point is the scalar case of many layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import rackline as rl
from helpers import deploy, grid_table, layouts
from rackline.hardware import cluster
from rackline.parallel import Routing
from rackline.passes import Batch

POLICIES = ("serial", "overlap", "blackboard")
DEPLOYMENTS = [
    ("llama-3.1-70b", "tp=8", "dgx-h100", "bf16"),
    ("llama-3.1-70b", "tp=16", "h100-96", "fp8"),
    ("qwen3-235b-a22b", "tp=4,attention_dp=2,ep=8", "dgx-h100", "fp8"),
    ("deepseek-v3", "attention_dp=32,ep=32", "gb200-nvl72", "fp8"),
    ("deepseek-v3", "tp=8,ep=8,pp=2", "gb200-nvl72", "fp4"),
    ("gpt-oss-120b", "tp=4,ep=4", "dgx-h200", "native"),
    ("lecture-frontier", "tp=72", "gb200-nvl72", "fp4"),
]
GRIDS = [
    ("llama-3.1-70b", "h100-96", 32, "bf16"),
    ("qwen3-235b-a22b", "dgx-h100", 8, "fp8"),
    ("deepseek-v3", "h800-144", 24, "fp8"),
    ("gpt-oss-120b", "dgx-b200", 8, "native"),
]

numbers_of_a_batch = {
    "decode": st.floats(1.0, 2000.0),
    "context": st.floats(1.0, 1e5),
    "prompts": st.sampled_from([0.0, 1.0, 2.5]),
    "chunk": st.floats(1.0, 8192.0),
    "prefix": st.floats(0.0, 3e4),
}


def make_batch(decode: float, context: float, prompts: float, chunk: float, prefix: float, ranks: float) -> Batch:
    return Batch(
        decode_sequences=decode,
        context_len=context,
        prefill_sequences=prompts,
        chunk_tokens=chunk if prompts else 0.0,
        prefix_tokens=prefix if prompts else 0.0,
        group_tokens=(decode + prompts * chunk) * ranks,
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "layout", "on", "label"), DEPLOYMENTS)
@settings(max_examples=12)
@given(**numbers_of_a_batch)
def test_parts_sum_to_the_total(policy: str, name: str, layout: str, on: str, label: str, **drawn: float) -> None:
    d = deploy(name, layout, on=on, label=label)
    table = d.table()
    batch = make_batch(**drawn, ranks=float(d.layout.attention_dp))
    found = table.time(batch, policy)  # type: ignore[arg-type]
    assert found.seconds == pytest.approx(float(table.seconds(batch, policy)), rel=1e-9)  # type: ignore[arg-type]
    used = [row for row in found.rows if row.used]
    if policy == "serial":
        assert sum(row.seconds for row in used) + found.host_s == pytest.approx(found.seconds, rel=1e-12)
        assert sum(found.by_group().values()) + found.host_s == pytest.approx(found.seconds, rel=1e-12)
    ramps = {one.row.name: float(np.asarray(one.ramp)) for one in table.numbers().in_use()}
    for row in found.rows:
        parts = row.resource_s.values()
        longest = max(parts, default=0.0)
        low, high = row.overhead_s + longest, row.overhead_s + sum(parts)
        low += ramps.get(row.name, 0.0) * (row.overhead_s * longest) ** 0.5
        high += ramps.get(row.name, 0.0) * (row.overhead_s * longest) ** 0.5
        assert low <= row.seconds * (1 + 1e-12)
        assert row.seconds <= high * (1 + 1e-12)


@pytest.mark.parametrize(("name", "layout", "on", "label"), DEPLOYMENTS)
@settings(max_examples=8)
@given(**numbers_of_a_batch)
def test_policies_are_ordered(name: str, layout: str, on: str, label: str, **drawn: float) -> None:
    """Under unit numbers max of sums ≤ streams side by side ≤ one after the other."""
    d = deploy(name, layout, on=on, label=label, calibration="unit")
    batch = make_batch(**drawn, ranks=float(d.layout.attention_dp))
    table = d.table()
    blackboard, overlap, serial = (
        float(table.seconds(batch, policy)) for policy in ("blackboard", "overlap", "serial")
    )
    assert blackboard <= overlap * (1 + 1e-9)
    assert overlap <= serial * (1 + 1e-9)


@pytest.mark.parametrize(("name", "on", "chips", "label"), [*GRIDS, ("deepseek-v3", "h800-144", 144, "fp8")])
@settings(max_examples=3)
@given(**numbers_of_a_batch)
def test_policies_are_ordered_in_every_layout(name: str, on: str, chips: int, label: str, **drawn: float) -> None:
    table = grid_table(name, on, chips, label, "unit")
    batch, _ = grid_batch(name, chips, **drawn)
    blackboard, overlap, serial = (table.seconds(batch, p) for p in ("blackboard", "overlap", "serial"))
    over = (blackboard / overlap).reshape(len(layouts(name, chips)), -1)[:, 0]
    worst = int(np.argmax(over))
    assert over[worst] <= 1 + 1e-9, f"{layouts(name, chips)[worst].label()}: {over[worst]:.3f}"
    assert np.all(overlap <= serial * (1 + 1e-9))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "layout", "on", "label"), DEPLOYMENTS)
def test_time_never_falls_with_batch_or_context(policy: str, name: str, layout: str, on: str, label: str) -> None:
    d = deploy(name, layout, on=on, label=label)
    table = d.table()
    batch = np.concatenate([np.arange(1.0, 70.0), np.geomspace(70.0, 8192.0, 80)])[:, None]
    context = np.geomspace(1.0, 2e5, 25)[None, :]
    ranks = d.layout.attention_dp
    decode = Batch(decode_sequences=batch, context_len=context, group_tokens=batch * ranks)
    seconds = table.seconds(decode, policy)  # type: ignore[arg-type]
    assert np.all(np.diff(seconds, axis=0) >= -1e-12 * seconds[1:])
    assert np.all(np.diff(seconds, axis=1) >= -1e-12 * seconds[:, 1:])
    if policy == "serial":
        assert np.all(np.diff(seconds, axis=0) > 0)


@pytest.mark.parametrize(("name", "layout", "on", "label"), DEPLOYMENTS[:6])
def test_time_never_falls_with_chunk_or_prefix(name: str, layout: str, on: str, label: str) -> None:
    d = deploy(name, layout, on=on, label=label)
    table = d.table()
    chunk = np.geomspace(1.0, 16384.0, 60)[:, None]
    prefix = np.linspace(0.0, 1e5, 25)[None, :]
    seconds = table.seconds(
        Batch(
            prefill_sequences=1.0,
            chunk_tokens=chunk,
            prefix_tokens=prefix,
            group_tokens=chunk * d.layout.attention_dp,
        )
    )
    assert np.all(np.diff(seconds, axis=0) > 0)
    assert np.all(np.diff(seconds, axis=1) >= -1e-12 * seconds[:, 1:])


@pytest.mark.parametrize("law", ["balanced", "uniform", "power_law"])
def test_time_never_falls_with_batch_under_any_routing(law: str) -> None:
    routing = Routing(law=law, exponent=0.6)  # type: ignore[arg-type]
    d = deploy("deepseek-v3", "attention_dp=32,ep=32", label="fp8", routing=routing)
    batch = np.concatenate([[0.03125, 0.25, 0.5], np.arange(1.0, 200.0), np.geomspace(200.0, 4e4, 90)])
    seconds = d.table().seconds(Batch(decode_sequences=batch, context_len=100.0, group_tokens=batch * 32))
    assert np.all(np.diff(seconds) > 0)


def grid_batch(name: str, chips: int, **drawn: float) -> tuple[Batch, np.ndarray]:
    """One batch per layout: each rank the same, the expert group as large as the layout says."""
    ranks = np.array([layout.attention_dp for layout in layouts(name, chips)], dtype=float)
    alone = make_batch(**drawn, ranks=1.0)
    ones = np.ones((len(ranks), 1))
    batch = Batch(
        decode_sequences=alone.decode_sequences * ones,
        context_len=alone.context_len,
        prefill_sequences=alone.prefill_sequences,
        chunk_tokens=alone.chunk_tokens,
        prefix_tokens=alone.prefix_tokens,
        group_tokens=np.asarray(alone.group_tokens) * ranks[:, None],
    )
    return batch, ranks


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "on", "chips", "label"), GRIDS)
@settings(max_examples=4)
@given(data=st.data(), **numbers_of_a_batch)
def test_one_layout_is_the_scalar_case_of_many(
    policy: str,
    name: str,
    on: str,
    chips: int,
    label: str,
    data: st.DataObject,
    **drawn: float,
) -> None:
    table = grid_table(name, on, chips, label)
    batch, ranks = grid_batch(name, chips, **drawn)
    together = table.seconds(batch, policy)  # type: ignore[arg-type]
    assert together.shape == (len(ranks), 1)
    found = layouts(name, chips)
    index = data.draw(st.integers(0, len(found) - 1))
    scalar = make_batch(**drawn, ranks=float(ranks[index]))
    picked = table.layout(index)
    built = deploy(name, found[index], on=on, label=label).table()
    for one in (picked, built):
        assert float(one.seconds(scalar, policy)) == pytest.approx(together[index, 0], rel=1e-9)  # type: ignore[arg-type]
        assert one.time(scalar, policy).seconds == pytest.approx(together[index, 0], rel=1e-9)  # type: ignore[arg-type]


BETTER = [
    ("llama-3.1-70b", "dgx-h100", "tp=8"),
    ("llama-3.1-70b", "dgx-b300", "tp=8"),
    ("gpt-oss-120b", "dgx-h200", "tp=4"),
    ("qwen3-235b-a22b", "dgx-b200", "tp=8,ep=8"),
    ("deepseek-v3", "gb200-nvl72", "attention_dp=32,ep=32"),
    ("llama-3.1-70b", "mi300x-8", "tp=8"),
]


@pytest.mark.parametrize(("name", "on", "layout"), BETTER)
@settings(max_examples=8)
@given(data=st.data())
def test_a_better_rate_never_makes_an_explained_pass_slower(
    name: str, on: str, layout: str, data: st.DataObject
) -> None:
    """Of one rate of the chip or of a link, set with `--set`, whatever `auto` would choose for the better machine."""
    chip = (place := cluster(on)).chip
    rates = {"hbm_bytes_per_s": chip.hbm_bytes_per_s}
    rates |= {f"levels.{one.name}.bytes_per_s_each_way": one.bytes_per_s_each_way for one in place.levels}
    rates |= {f"peak_flop_per_s.{dtype}": value for dtype, value in chip.peak_flop_per_s.items()}
    key, times = data.draw(st.sampled_from(sorted(rates))), data.draw(st.floats(1.0, 8.0))
    asked: dict[str, Any] = {
        "on": on,
        "layout": layout,
        "batch": data.draw(st.integers(1, 512)),
        "context": data.draw(st.integers(1, 9000)),
    }
    asked |= {"prefill": data.draw(st.integers(1, 9000))} if data.draw(st.booleans()) else {}
    before, after = (
        rl.explain(name, **asked, set=more).result.explanation for more in ([], [f"{key}={rates[key] * times!r}"])
    )
    for part in ("server_s", "time", "ideal"):
        was, now = (getattr(one, part) for one in (before, after))
        if part != "server_s":
            was, now = was.seconds, now.seconds
        assert now <= was * (1.0 + 1e-9), (key, times, part)
