"""Pools for prefill and decode: rates, waiting, KV transfer, and the pairing against brute force."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import rackline as rl
from helpers import planned, system
from rackline.hardware import billed_chips, cluster, taken_chips
from rackline.parallel import Layout, LayoutGrid, Precision
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.plain import plain
from rackline.search import PrefillPool, SearchSpace
from rackline.search.pool_pairs import Budget, pair
from rackline.search.pool_points import PoolPoints
from rackline.search.pools import Side
from rackline.serving import Workload
from rackline.serving.closed_loop import prompt_time_s
from rackline.serving.disaggregated import MOST_LOAD, PrefillPasses, kv_transfer, prefill_rate
from rackline.system import Constraints

WORK = Workload(input_len=4096, output_len=1024)


@pytest.fixture(scope="module")
def rack_plan():
    """DeepSeek-V3 on the rack, wide expert parallelism among the layouts."""
    model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72")
    layouts = [rl.Layout(tp=1, attention_dp=n, ep=n, moe_tp=1) for n in (4, 8, 16, 24, 32, 48, 64)] + [
        rl.Layout(tp=4, ep=4),
        rl.Layout(tp=8, ep=8),
    ]
    return planned(
        model,
        on,
        WORK,
        precisions=[rl.precision("fp8", model, on.chip)],
        calibration=rl.calibration("auto", on.chip),
        constraints=Constraints(tpot_s=0.03, ttft_s=2.0),
        served=False,
        search_space=SearchSpace(layouts=layouts),
    )


def test_separate_pools_cure_the_eager_passes_of_wide_expert_parallelism(rack_plan) -> None:
    """One engine keeps 30 ms only with small replicas; a decode pool keeps it with wide ones at less than half."""
    pools = rack_plan.pools
    assert pools is not None
    assert rack_plan.best is pools
    assert pools.serving == "disaggregated"
    assert pools.layout.attention_dp >= 16
    alone = rack_plan.runner_up
    assert alone is rack_plan.aggregated
    assert alone is None or pools.usd_per_mtok_output_all_in < 0.5 * alone.usd_per_mtok_output_all_in


def test_pools_keep_the_limits_and_add_up(rack_plan) -> None:
    found = rack_plan.pools.estimate
    assert found.tpot_s <= 0.030
    assert found.ttft_s <= 2.0
    assert found.num_chips == found.prefill.num_chips + found.decode.num_chips <= 72
    assert found.requests_per_s <= found.decode.requests_per_s * (1 + 1e-9)
    assert found.prefill.load <= MOST_LOAD + 1e-9
    assert found.decode.load <= 1 + 1e-9
    price = rack_plan.system.cluster.usd_per_chip_hour / 3600.0
    per_request = found.num_chips * price / found.requests_per_s
    assert found.usd_per_mtok_output_all_in == pytest.approx(per_request / WORK.output_len * 1e6)
    parts = found.usd_per_mtok_output + found.usd_per_mtok_input * WORK.input_len / WORK.output_len
    assert parts == pytest.approx(found.usd_per_mtok_output_all_in)
    # time to first token from its parts
    assert found.ttft_s >= found.ttft_alone_s >= found.transfer.seconds
    assert found.basis == "open_loop_estimate"


def test_a_prefill_chip_holds_the_prompts_that_it_makes_and_as_many_that_it_sends(rack_plan) -> None:
    best = rack_plan.pools
    made = max(best.prefill_pool.mode.max_batched_tokens / WORK.input_len, 1.0)
    one = kv_bytes_per_sequence(rack_plan.system.model, best.prefill_pool.layout, best.precision, WORK.input_len)
    assert float(best.inside.prefill_memory.kv_cache) == pytest.approx(2.0 * made * float(one))


def test_pools_in_plain_data(rack_plan) -> None:
    data = plain(rack_plan)
    best = data["best"]
    assert best["serving"] == "disaggregated"
    for key in ("layout", "batch_size", "num_chips", "tpot_s", "ttft_s", "memory", "binding", "usd_per_mtok_input"):
        assert key in best, key
    for pool in ("prefill_pool", "decode_pool"):
        held = best[pool]["memory"]
        assert held["free_bytes"] >= 0
        assert best[pool]["binding"]


def test_the_front_of_pools_is_a_front(rack_plan) -> None:
    front = rack_plan.disaggregated.pareto
    speeds, costs = [p.tokens_per_s_per_user for p in front], [p.usd_per_mtok_output_all_in for p in front]
    assert speeds == sorted(speeds, reverse=True)
    assert costs == sorted(costs, reverse=True)


def test_no_limit_costs_no_more_and_a_tight_one_says_why(rack_plan) -> None:
    model, on = rack_plan.system.model, rack_plan.system.cluster
    common = {
        "calibration": rack_plan.system.calibration,
        "search_space": SearchSpace(layouts=[rl.Layout(tp=1, attention_dp=n, ep=n) for n in (8, 16, 32)]),
        "served": False,
        "precisions": [rl.precision("fp8", model, on.chip)],
    }
    free = planned(model, on, WORK, **common).disaggregated
    tight = planned(model, on, WORK, constraints=Constraints(tpot_s=0.001), **common).disaggregated
    late = planned(model, on, WORK, constraints=Constraints(ttft_s=0.001), **common).disaggregated
    assert free.best.usd_per_mtok_output_all_in <= rack_plan.pools.usd_per_mtok_output_all_in
    assert tight.best is None
    assert "time per output token" in tight.reason
    assert late.best is None
    assert "time to first token" in late.reason


def test_pools_on_two_kinds_of_chip() -> None:
    """H100 prefill for GB200: the cache goes over the slower network, both prices are paid."""
    model = rl.model("deepseek-v3")
    decode_on, prefill_on = rl.cluster("gb200-nvl72").with_num_chips(16), rl.cluster("h100-96").with_num_chips(64)
    found = planned(
        model,
        decode_on,
        WORK,
        precisions=[rl.precision("fp8", model, decode_on.chip)],
        calibration=rl.calibration("auto", decode_on.chip),
        served=False,
        search_space=SearchSpace(layouts=[rl.Layout(attention_dp=16, ep=16)]),
        prefill=PrefillPool(
            system=rl.System.of(model, prefill_on, calibration=rl.calibration("auto", prefill_on.chip)),
            layouts=[rl.Layout(attention_dp=32, ep=32)],
        ),
    ).pools.estimate
    assert (found.prefill.cluster, found.decode.cluster) == ("h100-96", "gb200-nvl72")
    assert found.transfer.level == "scale_out"
    paid = found.prefill.num_chips * prefill_on.usd_per_chip_hour + found.decode.num_chips * decode_on.usd_per_chip_hour
    tokens = found.requests_per_s * WORK.output_len * 3600.0
    assert found.usd_per_mtok_output_all_in == pytest.approx(paid / tokens * 1e6)


def test_pools_without_a_network_between_them_are_refused() -> None:
    model = rl.model("llama-3.1-8b")
    tpu = rl.cluster("tpu-v5e-16")
    if tpu.scale_out is not None:
        pytest.skip("this cluster has a network")
    on = rl.cluster("dgx-h100")
    with pytest.raises(rl.RacklineError, match="network"):
        planned(
            model,
            on,
            Workload(input_len=512, output_len=64),
            calibration=rl.calibration("unit"),
            prefill=PrefillPool(system=rl.System.of(model, tpu, calibration=rl.calibration("unit"))),
        )


class TestTransfer:
    def test_deepseek_kv_of_a_prompt(self) -> None:
        """70,272 bytes per token (ISCA 2025, table 1) over a 400 Gb/s card: 4,096 tokens in 5.8 ms."""
        model, on = rl.model("deepseek-v3"), rl.cluster("h100-96")
        layout = rl.Layout(attention_dp=32, ep=32)
        sent = kv_transfer(
            model,
            WORK,
            rl.precision("fp8,kv=bf16", model, on.chip),
            prefill_layout=layout,
            decode_layout=layout,
            prefill_link=on.scale_out,
            decode_link=on.scale_out,
        )
        assert sent.kv_bytes == pytest.approx(70_272 * 4096)
        assert sent.seconds == pytest.approx(70_272 * 4096 / 50e9 + on.scale_out.latency_s)

    @settings(max_examples=20, deadline=None)
    @given(st.floats(1.0, 8.0))
    def test_more_bandwidth_is_never_slower(self, factor: float) -> None:
        import dataclasses

        model, on = rl.model("llama-3.1-70b"), rl.cluster("h100-96")
        links = [on.scale_out, dataclasses.replace(on.scale_out, bytes_per_s_each_way=factor * 50e9)]
        layout = rl.Layout(tp=4)
        precision = rl.precision("fp8", model, on.chip)
        seconds = [
            kv_transfer(
                model, WORK, precision, prefill_layout=layout, decode_layout=layout, prefill_link=a, decode_link=b
            ).seconds
            for a, b in ((links[0], links[0]), (links[1], links[0]), (links[1], links[1]))
        ]
        assert seconds == sorted(seconds, reverse=True)


def passes(each: int, peers: int, fixed: float) -> tuple[PrefillPasses, np.ndarray]:
    """Passes of up to `each` prompts per rank, a share of whose time is fixed, and the time of 1, 2, ... prompts."""
    alone = fixed + (1.0 - fixed) / each
    prompts = np.arange(1, each * peers + 1)
    rounds = np.ceil(prompts / peers)
    seconds = alone + (1.0 - alone) * (rounds - 1) / max(each - 1, 1)
    one = PrefillPasses(alone_s=alone, full_s=seconds[-1], together=float(each * peers), peers=float(peers))
    return one, seconds


class TestWaiting:
    @pytest.mark.slow
    def test_the_short_form_is_near_the_chain(self) -> None:
        """Random replicas and loads: eight of ten within 16 %, all within 50 %."""
        rng = np.random.default_rng(0)
        errors: list[float] = []
        for _ in range(60):
            each, peers = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.choice([1, 1, 2, 4, 8]))
            in_turn = int(rng.choice([1, 2, 3, 6, 12]))
            if each * peers * in_turn > 100:
                continue
            one, seconds = passes(each, peers, float(rng.choice([0.02, 0.1, 0.3, 0.6])))
            for load in (0.1, 0.3, 0.6, 0.8, 0.9, 0.95):
                exact = prompt_time_s(seconds, load * each * peers / seconds[-1], in_turn)
                errors.append(float(one.prompt_s(load, in_turn)) / exact - 1.0)
        low, high = np.percentile(errors, (10.0, 90.0))
        assert -0.16 < low < high < 0.16
        assert np.max(np.abs(errors)) < 0.5

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 16), st.integers(1, 8), st.floats(0.02, 0.9), st.integers(1, 12), st.floats(0.5, 30.0))
    def test_the_highest_load_is_just_within_the_limit(
        self, each: int, peers: int, fixed: float, in_turn: int, limit: float
    ) -> None:
        one, _ = passes(each, peers, fixed)
        load = float(one.highest_load(limit, in_turn))
        assert 0.0 <= load <= MOST_LOAD
        if load > 0.0:
            assert float(one.prompt_s(load, in_turn)) <= limit
        if load < MOST_LOAD:
            assert float(one.prompt_s(load + 2e-3, in_turn)) > limit

    def test_prompts_come_alone_unless_said_otherwise(self) -> None:
        one, _ = passes(4, 2, 0.1)
        found = [float(one.highest_load(*given)) for given in ((1.5,), (1.5, 1.0), (1.5, 2.0))]
        assert found[0] == found[1] != found[2]

    def test_no_time_left_means_no_load(self) -> None:
        assert float(passes(4, 1, 0.1)[0].highest_load(-0.1)) == 0.0


@pytest.mark.parametrize(("name", "label"), [("deepseek-v3", "fp8"), ("llama-3.1-70b", "bf16")])
def test_prefill_rate_of_a_grid_is_that_of_each_layout(name: str, label: str) -> None:
    from rackline.search.space import Space
    from rackline.serving.workload import Mode

    serves = system(name, label=label, calibration="auto", routing=rl.Routing())
    layouts = [rl.Layout(attention_dp=8, ep=8), rl.Layout(tp=4, ep=4), rl.Layout(attention_dp=16, ep=16, pp=2)]
    if name == "llama-3.1-70b":  # no column of loads of experts beside the passes
        layouts = [rl.Layout(tp=2), rl.Layout(tp=8), rl.Layout(tp=4, pp=2)]

    def rate(options: list[rl.Layout]):
        space = Space(
            system=serves,
            workload=WORK,
            grid=LayoutGrid.of(options),
            modes=[Mode()],
            batches=np.array([1.0]),
        )
        (part,) = space.parts()
        return prefill_rate(part.engine, WORK, 8192, space.grid.pp.astype(float))

    together = rate(layouts)
    for index, layout in enumerate(layouts):
        alone = rate([layout])
        assert together.prompts_per_s[index] == pytest.approx(alone.prompts_per_s[0])
        # full passes: ranks · stages · budget new tokens in the time of a pass
        tokens = layout.attention_dp * layout.pp * 8192 / together.pass_s[index]
        assert together.prompts_per_s[index] * WORK.new_tokens == pytest.approx(tokens)


def _points(rng: np.random.Generator, size: int) -> PoolPoints:
    return PoolPoints(
        label=np.zeros(size, dtype=int),
        mode=np.zeros(size, dtype=int),
        row=np.arange(size),
        per_rank=np.ones(size),
        chips=rng.integers(1, 6, size),
        seconds=(seconds := rng.uniform(0.1, 1.0, size)),
        alone_s=seconds,
        requests_per_s=rng.uniform(0.5, 8.0, size),
        link_s=rng.uniform(0.001, 0.1, size),
        together=np.ones(size),
        peers=np.ones(size),
        cp=np.ones(size, dtype=int),
        input_cv2=np.zeros(size),
        evaluated=size,
        fitting=size,
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slack_s", [None, 1.2])
@pytest.mark.parametrize("shared", [True, False])
def test_pairing_is_that_of_brute_force(seed: int, slack_s: float | None, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    first, then = _points(rng, 5), _points(rng, 6)
    budget = Budget(
        prefill_chips=9,
        decode_chips=12,
        shared_chips=12 if shared else None,
        prefill_usd_per_chip_s=1.0,
        decode_usd_per_chip_s=2.0,
    )
    found, _ = pair(first, then, budget, slack_s)
    costs: list[float] = []
    for d in range(then.chips.size):
        best = math.inf
        for p, n_first, n_then in itertools.product(range(first.chips.size), range(1, 13), range(1, 13)):
            used = (n_first * int(first.chips[p]), n_then * int(then.chips[d]))
            if (shared and sum(used) > 12) or (not shared and (used[0] > 9 or used[1] > 12)):
                continue
            load = MOST_LOAD
            if slack_s is not None:
                late = slack_s - max(first.link_s[p], then.link_s[d])
                load = float(first.passes(p).highest_load(late, n_first))
            rate = min(n_first * first.requests_per_s[p] * load, n_then * then.requests_per_s[d])
            if rate > 0:
                best = min(best, (used[0] * 1.0 + used[1] * 2.0) / rate)
        if slack_s is None:
            assert found.usd_per_request[d] == pytest.approx(best)
        else:  # partners are found with the load of one replica and of four, ratios with that of their number
            assert best * (1 - 1e-9) <= found.usd_per_request[d] <= best * 1.15
            costs.append(found.usd_per_request[d] / best)
    assert np.mean(costs or [1.0]) < 1.03


@pytest.mark.parametrize("seed", range(6))
def test_pairs_that_fill_whole_hosts_are_nearly_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, then = _points(rng, 5), _points(rng, 6)
    for chips in (8, 24):
        on = cluster("dgx-h100").with_num_chips(chips)
        budget = Budget(
            prefill_chips=chips,
            decode_chips=chips,
            shared_chips=chips,
            prefill_usd_per_chip_s=1.0,
            decode_usd_per_chip_s=1.0,
            prefill_on=on,
            decode_on=on,
        )
        (found, _), excess = pair(first, then, budget, None), list[float]()
        for d in range(then.chips.size):
            best = math.inf
            for p, n, m in itertools.product(range(first.chips.size), range(1, chips + 1), range(1, chips + 1)):
                taken = n * float(taken_chips(on, first.chips[p])) + m * float(taken_chips(on, then.chips[d]))
                if taken <= chips:
                    rate = min(n * first.requests_per_s[p] * MOST_LOAD, m * then.requests_per_s[d])
                    best = min(best, float(billed_chips(on, taken)) / rate)
            if math.isfinite(best):
                assert best * (1 - 1e-9) <= found.usd_per_request[d]
                excess.append(found.usd_per_request[d] / best)
        assert max(excess) < 1.15
        assert np.mean(excess) < 1.03  # fewer hosts than all of them are not considered


def test_a_rounded_decode_pool_leaves_the_rest_to_prefill() -> None:
    """A pair of seed 1 on eight hosts that no rounded prefill pool reaches."""
    rng = np.random.default_rng(1)
    first, then = _points(rng, 5), _points(rng, 6)
    on = cluster("dgx-h100").with_num_chips(64)
    budget = Budget(
        prefill_chips=64,
        decode_chips=64,
        shared_chips=64,
        prefill_usd_per_chip_s=1.0,
        decode_usd_per_chip_s=1.0,
        prefill_on=on,
        decode_on=on,
    )
    best = math.inf
    for p, n, m in itertools.product(range(5), range(1, 65), range(1, 65)):
        taken = n * float(taken_chips(on, first.chips[p])) + m * float(taken_chips(on, then.chips[2]))
        if taken <= 64:
            rate = min(n * first.requests_per_s[p] * MOST_LOAD, m * then.requests_per_s[2])
            best = min(best, float(billed_chips(on, taken)) / rate)
    assert best < pair(first, then, budget, None)[0].usd_per_request[2] < 1.02 * best


def test_precisions_of_both_pools_are_the_same(rack_plan) -> None:
    found = rack_plan.pools.estimate
    assert isinstance(found.prefill.precision, Precision)
    assert found.prefill.precision.label == found.decode.precision.label


@pytest.mark.parametrize(
    ("attention_dp", "cp", "ranks"), [(8, 4, 2), (8, 8, 1), (6, 4, 1), (7, 2, 1), (1, 4, 1), (8, 1, 8)]
)
def test_ranks_that_share_contexts_form_groups(attention_dp: int, cp: int, ranks: int) -> None:
    grid = SimpleNamespace(layout=lambda row: Layout(attention_dp=attention_dp))
    pool: Any = SimpleNamespace(space=SimpleNamespace(grid=grid))
    found = Side.layout(pool, 0, cp, 3)
    assert (found.attention_dp, found.cp, found.dp) == (ranks, cp, 3)
