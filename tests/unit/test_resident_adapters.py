"""Adapters that do not all fit: which are in memory, who waits, what transfers cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.arch.adapters import AppliedAdapter
from rackline.errors import InputError
from rackline.simulation import PlainClock, Pool, RankSpec, Requests, simulate
from rackline.simulation.policies import POLICIES
from rackline.simulation.server import AdapterSlots, ResidentAdapters
from rackline.simulation.workloads import with_chosen_adapters

LOAD_S = 0.25


def pool(slots: int | None, **more: Any) -> Pool:
    room = None if slots is None else AdapterSlots(slots=slots, load_s=LOAD_S)
    spec = RankSpec(pool_tokens=10_000, adapters=room, **more)
    return Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=POLICIES.find("chunked"))


def requests(adapters: list[int], gap_s: float = 10.0, output_len: int = 5) -> Requests:
    count = len(adapters)
    return Requests(
        arrival_s=np.arange(count) * gap_s,
        input_len=np.full(count, 20),
        output_len=np.full(count, output_len),
        adapters=np.array(adapters),
    )


def least_recently_used(adapters: list[int], slots: int) -> int:
    held: list[int] = []
    misses = 0
    for adapter in adapters:
        misses += adapter not in held
        held = [*(one for one in held if one != adapter), adapter][-slots:]
    return misses


def test_requests_one_after_another_load_what_a_plain_cache_misses() -> None:
    adapters = np.random.default_rng(3).integers(0, 9, 300).tolist()
    for slots in (1, 3, 6, 9):
        result = simulate(requests(adapters), pool(slots))
        assert result.adapter_loads == least_recently_used(adapters, slots)
        without = simulate(requests(adapters), pool(None))
        late = float(np.sum(result.ttft_s - without.ttft_s))
        assert late == pytest.approx(LOAD_S * result.adapter_loads)
        assert result.summary()["adapter_hit_share"] == pytest.approx(1 - result.adapter_loads / 300)


def test_adapters_in_use_stay() -> None:
    held = ResidentAdapters(AdapterSlots(slots=2, load_s=LOAD_S))
    assert [held.use(0), held.use(1), held.use(1)] == [LOAD_S, LOAD_S, 0.0]
    assert not held.has_room(2)
    assert held.has_room(1)
    held.release(1)
    assert not held.has_room(2)
    held.release(1)
    assert held.has_room(2)
    assert held.use(2) == LOAD_S
    assert not held.has_room(1)
    with pytest.raises(InputError, match="resident adapters"):
        AdapterSlots(slots=0, load_s=0.0)


def test_a_request_whose_adapter_has_no_room_is_overtaken() -> None:
    crowd = requests([0, 1, 0], gap_s=0.001, output_len=50)
    result = simulate(crowd, pool(1))
    assert result.admitted_s[2] < result.admitted_s[1]
    assert result.admitted_s[1] >= result.finish_s[0]
    assert result.adapter_loads == 2
    assert np.all(np.isfinite(result.finish_s))


def test_preempted_requests_give_their_adapter_back() -> None:
    count = 40
    crowd = replace(requests([index % 7 for index in range(count)], gap_s=0.0, output_len=300))
    result = simulate(crowd, pool(7, reserve="chunk", block_size=16, max_num_seqs=40))
    assert result.preempted.sum() > 0
    assert np.all(np.isfinite(result.finish_s))
    assert result.adapter_loads == 7  # all fit: no second transfer


def folder(path: Path, rank: int = 32) -> str:
    config = {"peft_type": "LORA", "r": rank, "target_modules": ["q_proj", "v_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def served(path: Path, **more: Any) -> Any:
    asked: dict[str, Any] = {"on": "dgx-a100", "chips": 1, "layout": "tp=1", "rate": 6, "requests": 300}
    lengths: dict[str, Any] = {"input": 200, "output": 60, "lengths": "uniform", "adapter": folder(path)}
    return rl.simulate("llama-2-7b", **asked, **lengths, **more).result


def test_steps_together_or_one_by_one(tmp_path: Path) -> None:
    found = served(tmp_path, adapters=50, resident_adapters=20, adapter_popularity=0.8)
    traffic, server = found.requests, found.run.server
    whole, steps = (simulate(traffic, server.pool, stepwise=each) for each in (False, True))
    assert np.allclose(whole.finish_s, steps.finish_s, rtol=1e-9)
    assert whole.adapter_loads == steps.adapter_loads > 0
    counts = np.bincount(traffic.adapters, minlength=50)
    assert counts[:5].sum() > 2 * counts[25:30].sum()  # the most popular come first


def test_fewer_resident_adapters_wait_more_and_a_slow_link_costs(tmp_path: Path) -> None:
    ttft = [
        float(np.mean(served(tmp_path, adapters=60, resident_adapters=slots, adapter_link=link).run.result.ttft_s))
        for slots, link in ((60, "25GB/s"), (25, "25GB/s"), (25, "1GB/s"))
    ]
    assert ttft[0] < ttft[1] < ttft[2]


def test_passes_of_different_numbers_of_adapters(tmp_path: Path) -> None:
    one, many = (served(tmp_path, adapters=number).run for number in (1, 200))
    assert np.mean(one.result.tpot_s) < np.mean(many.result.tpot_s)
    law = many.server.deployment.model.adapter
    rng = np.random.default_rng(0)
    for exponent in (0.0, 0.9):
        mine = replace(law, popularity=exponent)
        drawn = [len(set(mine.draw(rng, 30).tolist())) for _ in range(800)]
        assert mine.adapters_touched(30.0) == pytest.approx(np.mean(drawn), rel=0.02)
        few = replace(mine, resident=12)
        assert float(mine.adapters_touched(few.most_sequences)) == pytest.approx(12.0, rel=0.02)
        assert np.all(few.adapters_touched(np.array([1.0, 500.0])) <= 12.0)


def test_sequences_are_no_more_than_their_adapters_allow(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"on": "dgx-a100", "context": "1k", "adapter": folder(tmp_path), "adapters": 100}
    rows = [rl.fit("llama-2-7b", **asked, resident_adapters=resident).result.capacity.rows[0] for resident in (100, 40)]
    expected = int(np.floor(np.log(1 - 0.4) / np.log(1 - 1 / 100)))
    assert rows[0].max_concurrency > 100
    assert rows[1].max_concurrency == expected * rows[1].layout.attention_dp * rows[1].layout.pp


def test_requests_of_a_conversation_keep_their_adapter() -> None:
    chain = replace(requests([0, 0, 0, 0]), adapters=None, after=np.array([-1, 0, 1, -1]), arrival_s=np.zeros(4))
    adapter = AppliedAdapter(name="a", base="", modules=(), number=1000, resident=1000)
    chosen = with_chosen_adapters(chain, adapter, 1).adapters
    assert chosen is not None
    assert len(set(chosen[:3].tolist())) == 1
    assert chosen[3] != chosen[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"adapters": 3, "adapter": None}, "only with `adapter`"),
        ({"resident_adapters": 4}, "only with `adapters`"),
        ({"adapters": 5, "resident_adapters": 9}, "up to 5"),
        ({"adapters": 5, "prefix_caching": True}, "cache of prefixes"),
    ],
)
def test_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"on": "dgx-a100", "rate": 1, "input": 10, "output": 5, "adapter": folder(tmp_path)}
    with pytest.raises(InputError, match=message):
        rl.simulate("llama-2-7b", **{**asked, **more})
