"""The lecture's second and third parts with their numbers: racks, expert parallelism over racks, pipelines of racks.

Claims C39-C79 and the golden values G06 and G13 of the ledger; published bounds beside them.
"""

from __future__ import annotations

import numpy as np
import pytest

import rackline as rl
from helpers import planned
from rackline.hardware import (
    fat_tree,
    path_between,
    rack_bill,
    scale_out_path,
    scale_up_cables,
    scale_up_path,
    torus_hops,
)
from rackline.parallel.exchange import (
    ExpertRouting,
    combine_traffic,
    dispatch_traffic,
    drawn_dispatch,
    forwarded_traffic,
)
from rackline.passes import collectives as c
from rackline.passes.routing import distinct_ranks, power_law_picks
from rackline.serving import blackboard as bb

DEEPSEEK = {"num_experts": 256, "experts_per_token": 8}


class TestRack:
    def test_c40_64_of_72_chips_hold_four_experts_each(self) -> None:
        routing = ExpertRouting(num_ranks=64, **DEEPSEEK)
        assert routing.num_experts / routing.num_ranks == 4
        with pytest.raises(rl.RacklineError, match="divisor of 256"):
            ExpertRouting(num_ranks=72, **DEEPSEEK)

    def test_c45_two_hops_over_one_switch(self) -> None:
        path = scale_up_path(rl.cluster("gb200-nvl72").scale_up)
        assert (path.hops, path.num_switches) == (2, 1)
        assert path_between(rl.cluster("gb200-nvl72"), 0, 71).hops == 2

    def test_c46_leaving_the_domain_is_several_times_slower(self) -> None:
        for name, ratio in (("h100-96", 9.0), ("gb200-nvl72", 18.0), ("h800-144", 4.0)):
            on = rl.cluster(name)
            assert on.scale_out is not None
            assert on.scale_up.bytes_per_s_each_way / on.scale_out.bytes_per_s_each_way == pytest.approx(ratio)

    def test_c48_cables_double_with_the_chips(self) -> None:
        level = rl.cluster("gb200-nvl72").scale_up
        one, two = scale_up_cables(level, 36), scale_up_cables(level, 72)
        assert one is not None
        assert two == 2 * one == 1296
        # NVIDIA counts 5,184 copper pairs of the spine: each NVLink 5 has two lanes a direction
        assert two * 4 == 5184

    def test_c49_chips_of_the_domain_as_a_swept_variable(self) -> None:
        """8, 72, 144, 576: switches and cables grow with the chips, hops do not, weights are read in less time."""
        seconds = []
        for size in (8, 72, 144, 576):
            on = rl.cluster("gb200-nvl72", {"levels.scale_up.size": size, "num_chips": size})
            bill = rack_bill(on)
            assert bill.scale_up_switches == np.ceil(size * 18 / 72)
            assert bill.scale_up_cables == 18 * size
            assert scale_up_path(on.scale_up).hops == 2
            seconds.append(bb.weight_fetch_s(671e9, 1.0, on.chip.hbm_bytes_per_s, float(size)))
        assert np.allclose(np.array(seconds[:-1]) / np.array(seconds[1:]), [9.0, 2.0, 4.0])

    def test_c44_power_and_price_of_a_rack(self) -> None:
        bill = rack_bill(rl.cluster("gb200-nvl72"))
        assert (bill.num_racks, bill.chips_per_rack, bill.scale_up_switches) == (1, 72, 18)
        assert bill.rack_power_w == pytest.approx(151.2e3)  # 120 kW of the rack itself, the rest host, network, cooling
        assert bill.rack_usd_per_hour == pytest.approx(237.6)
        assert rack_bill(rl.cluster("gb200-nvl72"), 73).num_racks == 2

    def test_c50_memory_of_the_domains(self) -> None:
        hopper, blackwell = rl.cluster("dgx-h100"), rl.cluster("gb200-nvl72")
        assert hopper.num_chips * hopper.chip.hbm_bytes == 8 * 81559 * 2**20  # "640 GB"
        assert 10e12 < blackwell.num_chips * blackwell.chip.hbm_bytes < 20e12  # room for 5 T parameters and their KV

    def test_c74_path_over_the_network(self) -> None:
        on = rl.cluster("gb200-nvl72")
        assert on.scale_out is not None
        path = scale_out_path(on.scale_out)
        assert path.stops == (
            "chip",
            "network card",
            "top-of-rack switch",
            "spine switch",
            "top-of-rack switch",
            "network card",
            "chip",
        )
        assert path_between(on, 0, 72).hops == path.hops == 6
        assert path.seconds(50e9) == pytest.approx(1.0, rel=1e-4)

    def test_network_counts(self) -> None:
        assert fat_tree(64, 64).num_switches == 1
        two = fat_tree(64 * 32, 64)
        assert (two.num_switches, two.num_cables, two.max_hops) == (96, 4096, 4)
        three = fat_tree(64**3 // 4, 64)  # Al-Fares et al.: 5 p²/4 switches, 3 cables an endpoint
        assert (three.num_switches, three.num_cables, three.max_hops) == (5 * 64**2 // 4, 3 * 65536, 6)
        with pytest.raises(rl.RacklineError, match="65536"):
            fat_tree(65537, 64)

    @pytest.mark.parametrize("axes", [(4,), (2, 2), (4, 4, 4), (5, 3)])
    def test_torus_hops_by_walking(self, axes: tuple[int, ...]) -> None:
        places = np.stack(np.meshgrid(*(np.arange(n) for n in axes), indexing="ij"), axis=-1).reshape(-1, len(axes))
        apart = np.abs(places[:, None] - places[None, :])
        walked = np.minimum(apart, np.array(axes) - apart).sum(axis=-1)
        mean, most = torus_hops(axes)
        assert mean == pytest.approx(walked.sum() / (len(places) * (len(places) - 1)))
        assert most == walked.max()


class TestExpertsAcrossRacks:
    @pytest.mark.parametrize(("racks", "share"), [(1, 0.0), (2, 0.5), (4, 0.75)])
    def test_c47_share_that_crosses(self, racks: int, share: float) -> None:
        routing = ExpertRouting(num_ranks=128, ranks_per_domain=128 // racks, **DEEPSEEK)
        assert dispatch_traffic(routing, 100.0, 7168.0).crossing_share == pytest.approx(share)

    def test_c47_two_racks_are_four_times_slower_when_the_slow_link_sets_the_time(self) -> None:
        """Half of the bytes over links that are 8 times slower: ½ · 8."""
        one = dispatch_traffic(ExpertRouting(num_ranks=128, **DEEPSEEK), 1.0, 1.0)
        two = dispatch_traffic(ExpertRouting(num_ranks=128, ranks_per_domain=64, **DEEPSEEK), 1.0, 1.0)
        assert two.seconds(8.0, 1.0) / one.seconds(8.0, 1.0) == pytest.approx(4.0, rel=0.01)

    @pytest.mark.parametrize(("picked", "distinct"), [(8, 7.7), (16, 14.6), (32, 26.6)])
    def test_y13_distinct_chips_of_64(self, picked: int, distinct: float) -> None:
        routing = ExpertRouting(num_ranks=64, num_experts=256, experts_per_token=picked)
        copies = dispatch_traffic(routing, 1.0, 1.0).sent.sum(axis=1)
        assert np.round(copies, 1) == pytest.approx(distinct)
        with_duplicates = dispatch_traffic(routing, 1.0, 1.0, once_per_rank=False).sent.sum(axis=1)
        assert with_duplicates == pytest.approx(picked)

    def test_c41_combine_is_dispatch(self) -> None:
        picks = power_law_picks(256, 8, 0.8)
        routing = ExpertRouting(num_ranks=32, ranks_per_domain=8, picks=picks, **DEEPSEEK)
        out = dispatch_traffic(routing, 128.0, 7168.0)
        back = combine_traffic(out, 1.0)
        assert back.sent.sum() == pytest.approx(out.sent.sum())
        assert np.array_equal(back.sent, out.sent.T)
        assert back.link_bytes()["scale_out_in"] == pytest.approx(out.link_bytes()["scale_out_out"])
        assert combine_traffic(out, 2.0).sent.sum() == pytest.approx(2 * out.sent.sum())

    @pytest.mark.parametrize("groups", [(1, 1), (8, 4), (8, 8)])
    @pytest.mark.parametrize("ranks", [4, 16, 64])
    def test_expectation_is_what_drawn_tokens_send(self, ranks: int, groups: tuple[int, int]) -> None:
        routing = ExpertRouting(num_ranks=ranks, num_groups=groups[0], groups_per_token=groups[1], **DEEPSEEK)
        drawn = drawn_dispatch(routing, 20_000 // ranks, np.random.default_rng(ranks))
        expected = dispatch_traffic(routing, 20_000 // ranks, 1.0)
        assert drawn.sum() == pytest.approx(expected.sent.sum(), rel=0.01)

    def test_an_uneven_router_loads_one_link(self) -> None:
        """Imbalance: the busiest receiver sets the time; drawn tokens agree within the independence assumed."""
        even = dispatch_traffic(ExpertRouting(num_ranks=32, **DEEPSEEK), 1000.0, 1.0)
        routing = ExpertRouting(num_ranks=32, picks=power_law_picks(256, 8, 0.7), **DEEPSEEK)
        skewed = dispatch_traffic(routing, 1000.0, 1.0)
        assert skewed.seconds(1.0, 1.0) > 1.3 * even.seconds(1.0, 1.0)
        drawn = drawn_dispatch(routing, 1000, np.random.default_rng(0))
        assert drawn.sum() == pytest.approx(skewed.sent.sum(), rel=0.05)

    def test_node_limited_routing_bounds_the_nodes(self) -> None:
        """DeepSeek-V3: at most 4 of 8 nodes, 3.6 on average instead of 5.3."""
        assert float(distinct_ranks(8, 256, 8)) == pytest.approx(5.3, abs=0.05)
        assert float(distinct_ranks(8, 256, 8, 8, 4)) == pytest.approx(3.6, abs=0.05)
        moe = rl.model("deepseek-v3").moe()
        assert (moe.num_groups, moe.groups_per_token) == (8, 4)

    def test_forwarding_is_what_the_pass_table_pays(self) -> None:
        routing = ExpertRouting(num_ranks=64, ranks_per_domain=8, num_groups=8, groups_per_token=4, **DEEPSEEK)
        links = forwarded_traffic(routing, 1.0, 1.0).link_bytes()
        cost = c.forwarded_all_to_all(
            c.Group(inside=8, outside=8),
            ranks=distinct_ranks(64, 256, 8, 8, 4),
            domains=distinct_ranks(8, 256, 8, 8, 4),
        )
        assert links["scale_up_out"] == pytest.approx(float(cost.scale_up_bytes))
        assert links["scale_out_out"] == pytest.approx(float(cost.scale_out_bytes))
        straight = dispatch_traffic(routing, 1.0, 1.0).link_bytes()
        assert np.all(links["scale_out_out"] < straight["scale_out_out"])

    def test_published_bounds_of_the_exchange(self) -> None:
        """ISCA 2025: 120.96 us and 6.72 us per layer, 14.76 ms and 0.82 ms per token."""
        infiniband = bb.exchange_step_s(32.0, 9.0, 7000.0, 50e9, 61.0)
        assert infiniband == pytest.approx(14.76e-3, rel=1e-3)
        assert infiniband / 61 / 2 == pytest.approx(120.96e-6)
        assert bb.exchange_step_s(32.0, 9.0, 7000.0, 900e9, 61.0) == pytest.approx(0.82e-3, rel=1e-2)

    @pytest.mark.parametrize(("experts", "ratio"), [(8, 2.0), (16, 4.0), (32, 8.0)])
    def test_g13_scale_up_over_scale_out(self, experts: int, ratio: float) -> None:
        assert bb.scale_up_over_scale_out_time(8.0, float(experts), 1.0) == ratio

    def test_g13_three_experts(self) -> None:
        """C57's drawing: one layer per stage fails, two are enough."""
        assert bb.scale_up_over_scale_out_time(8.0, 3.0, 1.0) == 0.75
        assert bb.scale_up_over_scale_out_time(8.0, 3.0, 2.0) == 1.5

    def test_c56_from_bytes(self) -> None:
        """The same ratio from the matrices: what a layer sends inside over what a stage sends on, duplicates kept."""
        routing = ExpertRouting(num_ranks=64, num_experts=256, experts_per_token=32)
        inside = dispatch_traffic(routing, 1.0, 1.0, once_per_rank=False)
        both_ways = 2 * float(inside.sent.sum(axis=1)[0]) / 8.0
        assert both_ways == pytest.approx(bb.scale_up_over_scale_out_time(8.0, 32.0, 1.0))


class TestPipelineOfRacks:
    @pytest.mark.parametrize("stages", [1, 2, 4, 8])
    def test_g06_c70_kv_does_not_depend_on_the_stages(self, stages: int) -> None:
        memory = bb.chip_memory(700e9, 1.0, 2400.0, 1e5, 2048.0, 64.0, float(stages))
        assert memory.weights_bytes == pytest.approx(10.9375e9 / stages)
        assert memory.kv_bytes == pytest.approx(7.68e9)

    def test_c70_in_the_real_tables(self) -> None:
        """DeepSeek-V3 with as many micro-batches as stages: weights shrink, KV of a chip does not."""
        model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72")
        used = []
        for pp in (1, 2, 4):
            deployment = rl.Deployment(
                model=model,
                cluster=on,
                layout=rl.Layout(tp=1, attention_dp=16, ep=16, pp=pp),
                precision=rl.precision("fp8", model, on.chip),
                calibration=rl.calibration("unit"),
            )
            memory = deployment.memory(sequences=64.0 * 16 * pp, context_len=4096.0)
            used.append((float(memory.weight_total), float(memory.kv_cache)))
        weights, kv = np.array(used).T
        assert np.all(np.diff(weights) < 0)
        assert kv == pytest.approx(kv[0], rel=0.05)  # 61 layers do not divide evenly

    def test_c61_one_after_the_other_wastes_three_quarters(self) -> None:
        assert bb.ring_step(0.02, 4.0, 1.0, 2000.0).idle_share == pytest.approx(0.75)

    @pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 8])
    def test_c62_c69_no_bubble_when_micro_batches_reach_the_stages(self, micro_batches: int) -> None:
        step = bb.ring_step(0.02, 4.0, float(micro_batches), 2000.0)
        assert step.idle_share == pytest.approx(max(0.0, 1 - micro_batches / 4))
        if micro_batches <= 4:
            assert step.token_s == pytest.approx(0.02)  # neutral for latency
        assert bb.ring_step(0.02, 4.0, 4.0, 2000.0).tokens_per_s == pytest.approx(4 * 2000 / 0.02)

    def test_ring_by_walking_through_the_slots(self) -> None:
        """A simulated ring of stages agrees with the closed form, with and without hops."""
        for stages, batches, hop in ((4, 1, 0.0), (4, 4, 0.0), (4, 6, 0.0), (4, 4, 2.5e-3), (3, 5, 1e-3)):
            ready = np.zeros(batches)  # when the next stage may begin
            free = np.zeros(stages)
            work = 0.02 / stages
            rounds = 200
            done = np.zeros((rounds, batches))
            for turn in range(rounds):
                for stage in range(stages):
                    for batch in range(batches):
                        start = max(ready[batch], free[stage])
                        free[stage] = start + work
                        ready[batch] = start + work + hop
                done[turn] = ready
            token_s = (done[-1] - done[100]).mean() / (rounds - 1 - 100)
            assert token_s == pytest.approx(float(bb.ring_step(0.02, stages, batches, 1.0, hop).token_s), rel=1e-3)

    def test_c74_c75_hops_add_up(self) -> None:
        """20 ms become 30 ms with four hops of 2.5 ms."""
        assert bb.ring_step(0.02, 4.0, 4.0, 2000.0, 2.5e-3).token_s == pytest.approx(0.03)

    def test_c76_weight_fetch_of_the_domain(self) -> None:
        """671 GB: 25.0 ms on 8 H100, 1.16 ms on 72 B200; more stages do not help."""
        assert bb.weight_fetch_s(671e9, 1.0, 3.35e12, 8.0) == pytest.approx(25.0e-3, rel=2e-3)
        assert bb.weight_fetch_s(671e9, 1.0, 8e12, 72.0) == pytest.approx(1.16e-3, rel=5e-3)

    def test_c77_growth_of_domain_bandwidth(self) -> None:
        hopper, blackwell = rl.cluster("dgx-h100"), rl.cluster("gb200-nvl72")
        growth = (72 * blackwell.chip.hbm_bytes_per_s) / (8 * hopper.chip.hbm_bytes_per_s)
        assert growth == pytest.approx(21.5, rel=0.02)

    def test_c60_stages_do_not_shorten_a_pass(self) -> None:
        """A pass through the tables takes as long with one stage as with four, but for the hops."""
        model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72")
        from rackline.passes import Batch

        seconds = []
        for pp in (1, 4):
            deployment = rl.Deployment(
                model=model,
                cluster=on,
                layout=rl.Layout(tp=1, attention_dp=16, ep=16, pp=pp),
                precision=rl.precision("fp8", model, on.chip),
                calibration=rl.calibration("unit"),
            )
            batch = Batch(decode_sequences=64.0, context_len=4096.0, group_tokens=1024.0)
            seconds.append(float(deployment.table().seconds(batch)))
        assert seconds[1] == pytest.approx(seconds[0], rel=0.01)


def test_c32_c33_one_system_is_a_thousandth_of_a_provider() -> None:
    assert bb.tokens_per_s(2000.0, 1 / 64) == pytest.approx(128_000)
    assert bb.tokens_per_s(2000.0, 0.020) == pytest.approx(100_000)
    share = 128_000 / np.array([378e6, 502e6])
    assert np.round(1 / share, -1) == pytest.approx([2950, 3920])


# DeepEP README at commit 7ce8da4 (2025-06-27): H800, one 400 Gb/s card per chip, 4,096 tokens, hidden 7168, 8 of 256
# experts in 4 of 8 groups, fp8 dispatch and bf16 combine: chips → (dispatch, combine) in GB/s over RDMA.
DEEPEP_NORMAL = {16: (43e9, 43e9), 32: (58e9, 57e9), 64: (51e9, 50e9)}
# Low latency: 128 tokens, chips → dispatch in seconds.
DEEPEP_LOW_LATENCY = {32: 155e-6, 64: 173e-6, 128: 192e-6, 256: 194e-6}


class TestDeepEp:
    """Ideal times of our traffic against the tables that DeepEP publishes."""

    @pytest.mark.parametrize("chips", DEEPEP_NORMAL)
    @pytest.mark.parametrize("way", [0, 1])
    def test_forwarding_explains_the_bandwidth_of_the_normal_kernels(self, chips: int, way: int) -> None:
        """The table counts a token once for each of its nodes, its own included: that is how 58 GB/s pass a 50 GB/s
        card. Of what links of 160 GB/s (in effect) and 50 GB/s could do, the kernels reach 0.65 on two nodes, where the
        links inside set the time, and 0.86 to 0.89 on more."""
        routing = ExpertRouting(num_ranks=chips, ranks_per_domain=8, num_groups=8, groups_per_token=4, **DEEPSEEK)
        seconds = forwarded_traffic(routing, 4096.0, 7168.0).seconds(160e9, 50e9)
        counted = 4096 * 7168 * float(distinct_ranks(chips // 8, 256, 8, 8, 4))
        reached = DEEPEP_NORMAL[chips][way] / (counted / seconds)
        assert reached == pytest.approx(0.65 if chips == 16 else 0.85, abs=0.05)

    @pytest.mark.parametrize("chips", DEEPEP_LOW_LATENCY)
    def test_low_latency_kernels_send_straight_over_the_cards(self, chips: int) -> None:
        routing = ExpertRouting(num_ranks=chips, ranks_per_domain=1, **DEEPSEEK)
        seconds = dispatch_traffic(routing, 128.0, 7168.0).seconds(np.inf, 50e9)
        assert 0.65 < seconds / DEEPEP_LOW_LATENCY[chips] < 1.0


@pytest.mark.parametrize("ranks", [8, 32, 128])
@pytest.mark.parametrize("skew", [0.0, 0.8])
def test_bytes_are_conserved_over_links(ranks: int, skew: float) -> None:
    """What all chips send on a level all chips receive, straight or forwarded, even or not."""
    picks = power_law_picks(256, 8, skew) if skew else None
    routing = ExpertRouting(num_ranks=ranks, ranks_per_domain=8, picks=picks, **DEEPSEEK)
    for matrix in (dispatch_traffic(routing, 64.0, 7168.0), forwarded_traffic(routing, 64.0, 7168.0)):
        links = matrix.link_bytes()
        for level in ("scale_up", "scale_out"):
            assert links[f"{level}_out"].sum() == pytest.approx(links[f"{level}_in"].sum())
        assert matrix.seconds(2e9, 1e9) <= matrix.seconds(1e9, 1e9)


class TestRecipe:
    """What the lecture recommends, against the plan: expert parallelism within one domain, little pipelining."""

    def test_c42_every_rank_talks_to_every_other(self) -> None:
        sent = dispatch_traffic(ExpertRouting(num_ranks=64, **DEEPSEEK), 128.0, 7168.0).sent
        assert sent.shape == (64, 64)
        assert np.all(sent > 0)

    def test_c65_a_rack_holds_a_model_of_1_t_parameters_many_times(self) -> None:
        rack = rl.cluster("gb200-nvl72")
        assert rack.num_chips * rack.chip.hbm_bytes / 1e12 > 10

    def test_c67_c68_demand_of_the_system_is_that_of_its_chips(self) -> None:
        whole = 700e9 + 4 * 2400 * 1e5 * 2048.0
        chip = bb.chip_memory(700e9, 1.0, 2400.0, 1e5, 2048.0, 64.0, 4.0)
        assert chip.total_bytes * 64 * 4 == pytest.approx(whole)

    def test_c71_two_stages_and_weights_are_minor(self) -> None:
        chip = bb.chip_memory(700e9, 1.0, 2400.0, 1e5, 2048.0, 64.0, 2.0)
        assert chip.weights_bytes < chip.kv_bytes

    def test_c53_c73_the_plan_takes_experts_and_no_stages(self) -> None:
        from rackline.search import SearchSpace
        from rackline.serving import Workload
        from rackline.system import Constraints

        model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72").with_num_chips(32)
        wide = [rl.Layout(attention_dp=n, ep=n) for n in (8, 16)]
        sliced = [rl.Layout(attention_dp=n, ep=1, moe_tp=n) for n in (8, 16)]
        staged = [rl.Layout(attention_dp=n // 2, ep=n // 2, pp=2) for n in (8, 16)]
        found = planned(
            model,
            on,
            Workload(input_len=4096, output_len=1024),
            precisions=[rl.precision("fp8", model, on.chip)],
            calibration=rl.calibration("auto", on.chip),
            constraints=Constraints(tpot_s=0.05),
            search_space=SearchSpace(layouts=[*wide, *sliced, *staged]),
        )
        assert found.pools is not None
        assert found.pools.layout.moe_tp == 1  # tensor parallelism of small experts does not pay
        assert found.pools.layout.pp == 1

    def test_c78_stages_give_capacity_and_no_latency(self) -> None:
        """Four boxes of eight H100 in a pipeline hold four times as much; a pass takes as long as on one."""
        assert bb.chip_memory(671e9, 1.0, 0.0, 0.0, 0.0, 8.0, 4.0).weights_bytes == pytest.approx(671e9 / 32)
        one_box = bb.weight_fetch_s(671e9, 1.0, 3.35e12, 8.0)
        assert bb.ring_step(one_box, 4.0, 4.0, 1.0).token_s == pytest.approx(one_box)
        assert one_box / bb.weight_fetch_s(671e9, 1.0, 8e12, 72.0) > 20
