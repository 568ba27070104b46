"""Collective algorithms against a small simulation that sends the chunks one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import deploy, model, numbers
from rackline.catalog import calibration_record
from rackline.errors import CatalogError
from rackline.hardware import cluster
from rackline.parallel import LayoutGrid, parse_layout
from rackline.parallel.exchange import crossing_hops, make_group, torus_penalty
from rackline.passes import Batch, PassTable, collectives as c
from rackline.system import System

SIZES = [2, 3, 4, 8, 16]


def simulate_ring_all_reduce(ranks: int) -> tuple[float, int]:
    """Reduce-scatter and all-gather in a ring on real numbers: (buffers sent by a rank, steps)."""
    rng = np.random.default_rng(ranks)
    data = rng.random((ranks, ranks))  # a chunk for each rank
    expected = data.sum(axis=0)
    held, sent, steps = data.copy(), 0.0, 0
    for phase in ("reduce", "gather"):
        for step in range(ranks - 1):
            before = held.copy()
            for rank in range(ranks):
                chunk = (rank - step + (phase == "gather")) % ranks
                target = (rank + 1) % ranks
                if phase == "reduce":
                    held[target, chunk] = before[target, chunk] + before[rank, chunk]
                else:
                    held[target, chunk] = before[rank, chunk]
            sent += 1.0 / ranks
            steps += 1
    assert np.allclose(held, expected)
    return sent, steps


@pytest.mark.parametrize("ranks", SIZES)
def test_ring_all_reduce_is_what_a_ring_sends(ranks: int) -> None:
    sent, steps = simulate_ring_all_reduce(ranks)
    cost = c.all_reduce_ring(c.Group(inside=ranks))
    assert float(cost.scale_up_bytes) == pytest.approx(sent)
    assert float(cost.scale_up_steps) == steps
    assert float(cost.scale_out_bytes) == float(cost.scale_out_steps) == 0.0


def messages(ranks: int, per_message: float) -> np.ndarray:
    """Bytes from each rank to each other one."""
    return np.full((ranks, ranks), per_message) * ~np.eye(ranks, dtype=bool)


@pytest.mark.parametrize("ranks", SIZES)
def test_one_shot_sends_the_whole_buffer_to_all(ranks: int) -> None:
    cost = c.all_reduce_one_shot(c.Group(inside=ranks))
    assert float(cost.scale_up_bytes) == messages(ranks, 1.0).sum(axis=1).max()
    assert float(cost.scale_up_steps) == 1.0


@pytest.mark.parametrize(("inside", "outside"), [(4, 1), (8, 1), (4, 2), (8, 3), (1, 4)])
def test_all_to_all_sends_a_share_to_each_other_rank(inside: int, outside: int) -> None:
    ranks = inside * outside
    sent = messages(ranks, 1.0 / ranks)
    domain = np.arange(ranks) // inside
    same = domain[:, None] == domain[None, :]
    cost = c.all_to_all(c.Group(inside=inside, outside=outside))
    assert float(cost.scale_up_bytes) == pytest.approx((sent * same).sum(axis=1).max())
    assert float(cost.scale_out_bytes) == pytest.approx((sent * ~same).sum(axis=1).max())


@pytest.mark.parametrize(("inside", "outside"), [(8, 2), (4, 4), (72, 2)])
def test_hierarchical_all_gather_delivers_the_whole_buffer(inside: int, outside: int) -> None:
    """A chip owns 1/n: it gets the other domains' shares from outside and the rest from inside."""
    cost = c.all_gather(c.Group(inside=inside, outside=outside))
    own = 1.0 / (inside * outside)
    from_outside = (outside - 1) * own
    from_inside = (inside - 1) * outside * own
    assert float(cost.scale_out_bytes) == pytest.approx(from_outside)
    assert float(cost.scale_up_bytes) == pytest.approx(from_inside)
    assert own + from_outside + from_inside == pytest.approx(1.0)


@pytest.mark.parametrize(
    "algorithm", [*c.ALL_REDUCE, c.all_gather, c.reduce_scatter, c.all_to_all], ids=lambda a: a.__name__
)
def test_one_domain_is_the_flat_form(algorithm) -> None:  # type: ignore[no-untyped-def]
    flat = algorithm(c.Group(inside=8))
    assert float(flat.scale_out_bytes) == float(flat.scale_out_steps) == 0.0
    level = algorithm(c.Group(inside=8, outside=1))
    assert float(level.scale_up_bytes) == float(flat.scale_up_bytes) > 0
    alone = algorithm(c.Group(inside=1))
    parts = (alone.scale_up_bytes, alone.scale_out_bytes, alone.scale_up_steps, alone.scale_out_steps)
    assert all(float(part) == 0.0 for part in parts)


def test_two_levels_send_less_outside_than_a_flat_ring() -> None:
    """Inside first: a domain of 8 sends an eighth of what one flat ring over all chips sends."""
    cost = c.all_reduce_ring(c.Group(inside=8, outside=4))
    flat = 2 * (32 - 1) / 32
    assert float(cost.scale_out_bytes) == pytest.approx(2 * 3 / 4 / 8)
    assert float(cost.scale_out_bytes) < flat / 8


def test_tree_and_two_shot_trade_steps_for_bytes() -> None:
    group = c.Group(inside=8)
    ring, two, one, tree = (algorithm(group) for algorithm in c.ALL_REDUCE)
    assert float(two.scale_up_bytes) == float(ring.scale_up_bytes)
    assert float(two.scale_up_steps) == 2
    assert float(tree.scale_up_steps) == 6
    assert float(ring.scale_up_steps) == 14
    assert float(one.scale_up_bytes) > float(tree.scale_up_bytes) > float(ring.scale_up_bytes)


def test_small_buffers_take_one_shot_and_large_ones_the_ring() -> None:
    links = {"scale_up_bytes_per_s": 450e9, "scale_up_latency_s": 1e-6}
    times = {
        cost.algorithm: [float(cost.seconds(size, **links)) for size in (1e3, 1e9)]
        for cost in (algorithm(c.Group(inside=8)) for algorithm in c.ALL_REDUCE)
    }
    assert min(times, key=lambda name: times[name][0]) == "one_shot"
    assert min(times, key=lambda name: times[name][1]) == "two_shot"
    assert times["ring"][1] == pytest.approx(14e-6 + 1e9 * 1.75 / 450e9)


def test_seconds_add_both_levels() -> None:
    cost = c.all_gather(c.Group(inside=8, outside=2))
    seconds = cost.seconds(
        16e6,
        scale_up_bytes_per_s=400e9,
        scale_out_bytes_per_s=50e9,
        scale_up_latency_s=1e-6,
        scale_out_latency_s=5e-6,
    )
    assert float(seconds) == pytest.approx(7e-6 + 5e-6 + 14e6 / 400e9 + 1e6 / 50e9)


def test_torus_all_to_all_passes_a_quarter_of_an_axis_per_axis() -> None:
    plain = c.all_to_all(c.Group(inside=64))
    torus = c.all_to_all(c.Group(inside=64, torus_axis=8.0, torus_axes=2.0))
    assert float(torus.scale_up_bytes) == pytest.approx(4.0 * float(plain.scale_up_bytes))


def test_send_recv_uses_the_level_that_joins() -> None:
    inside, across = c.send_recv(crosses_domain=0.0), c.send_recv(crosses_domain=1.0)
    assert (float(inside.scale_up_bytes), float(inside.scale_out_bytes)) == (1.0, 0.0)
    assert (float(across.scale_up_bytes), float(across.scale_out_bytes)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("size", "stride", "domain", "expected"),
    [
        (8, 1, 8, (8, 1)),
        (16, 1, 8, (8, 2)),
        (4, 8, 8, (1, 4)),
        (4, 4, 8, (2, 2)),
        (12, 1, 8, (6, 2)),
        (1, 1, 8, (1, 1)),
        (2, 16, 8, (1, 2)),
    ],
)
def test_split_group(size: int, stride: int, domain: int, expected: tuple[int, int]) -> None:
    inside, outside = c.split_group(size, stride, domain)
    assert (float(inside), float(outside)) == expected


def test_groups_of_a_cluster() -> None:
    group = make_group(cluster("h100-96"), np.array([4, 8, 32]))
    assert np.asarray(group.inside).tolist() == [4, 8, 8]
    assert np.asarray(group.outside).tolist() == [1, 1, 4]
    assert np.asarray(group.size).tolist() == [4, 8, 32]


def test_a_group_on_one_axis_of_a_torus_uses_one_axis_of_links() -> None:
    torus = cluster("tpu-v5e-256")
    axes = torus.scale_up.torus_axes
    assert axes == (16, 16)
    penalty = torus_penalty(torus, make_group(torus, np.array([1, 4, 16, 256])))
    assert penalty.tolist() == [2.0, 2.0, 2.0, 1.0]
    switch = cluster("dgx-h100")
    assert torus_penalty(switch, make_group(switch, np.array([2, 8]))).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("ranks", "bus_bytes_per_s"), [(4, 370e9), (5, 420e9), (6, 440e9), (7, 460e9), (8, 480e9)])
def test_a_switch_that_reduces_explains_rates_above_the_link(ranks: int, bus_bytes_per_s: float) -> None:
    """NCCL issue 1455, 8 H100 with NVLS: rates as nccl-tests prints them, 2 (n - 1)/n of the buffer over time, rise
    from 370 to 480 GB/s with the group, above the link's 450; what goes over the wire is one rate, that of 4 ranks."""
    cost = c.all_reduce_ring(c.Group(inside=ranks, in_network=True))
    wire_bytes_per_s = 370e9 / 1.5 * 1.25  # 2 (n - 1)/n and (n + 1)/n for n = 4
    seconds = float(cost.scale_up_bytes) / wire_bytes_per_s
    assert 2.0 * (ranks - 1) / ranks / seconds == pytest.approx(bus_bytes_per_s, rel=0.025)


def test_small_groups_and_other_switches_send_what_a_ring_sends() -> None:
    for ranks in SIZES:
        ring = 2.0 * (ranks - 1) / ranks
        plain, reducing = (c.all_reduce_ring(c.Group(inside=ranks, in_network=it)) for it in (False, True))
        assert float(plain.scale_up_bytes) == pytest.approx(ring)
        assert float(reducing.scale_up_bytes) == pytest.approx(min(ring, (ranks + 1.0) / ranks))
    assert make_group(cluster("dgx-h100"), 8.0).in_network
    assert not make_group(cluster("dgx-a100"), 8.0).in_network


@pytest.mark.parametrize("name", ["generic", "trtllm", "vllm", "sglang"])
def test_no_fitted_share_of_a_link_is_above_one(name: str) -> None:
    shares = [entry.eta_link for entry in calibration_record(name).collective]
    assert shares
    assert max(shares) <= 1.0


@pytest.mark.parametrize("domain", [1, 2, 8, 12, 72])
@pytest.mark.parametrize("chips", [1, 2, 3, 4, 8, 16])
def test_hops_between_stages_that_leave_a_domain_by_counting(chips: int, domain: int) -> None:
    """Stages lie one after the other; a hop leaves where the chips of both stages are not in one domain."""
    pp = np.arange(1.0, 17.0)
    found = crossing_hops(pp, float(chips), domain)
    for stages in range(1, 17):
        places = [{(stage * chips + chip) // domain for chip in range(chips)} for stage in range(stages)]
        pairs = [(stage, stage + 1) for stage in range(stages - 1)]
        crossing = sum(len(places[a] | places[b]) > 1 for a, b in pairs)
        if stages > 1:
            crossing += len(set.union(*places)) > 1
        assert found[stages - 1] == crossing


def test_small_rings_send_every_byte_at_least_one_hop() -> None:
    """Four chips in a ring: each byte passes at least one link, as on a switch."""
    ring, switch = c.all_to_all(c.Group(inside=4, torus_axis=4.0, torus_axes=1.0)), c.all_to_all(c.Group(inside=4))
    assert float(np.asarray(ring.scale_up_bytes)) == pytest.approx(float(np.asarray(switch.scale_up_bytes)))


def test_without_peer_access_collectives_go_through_the_host() -> None:
    """Rings only, at what the memory of the host passes on; the engines' own kernels need access."""
    staged = deploy("llama-3.1-8b", "tp=4", on="rtx-5090-8", calibration="vllm")
    free = replace(staged, cluster=cluster("rtx-5090-8", overrides={"levels.scale_up.peer_access": True}))
    batch = Batch(prefill_sequences=1.0, chunk_tokens=4096.0)
    names = [
        {row.op_class for row in one.table().rows if row.op_class.startswith("all_reduce")} for one in (free, staged)
    ]
    assert names[1] == {"all_reduce_ring"} < names[0]
    times = [float(one.table().time(batch).seconds) for one in (free, staged)]
    assert times[1] > 1.5 * times[0]
    with pytest.raises(CatalogError, match="peer_access"):
        cluster("gb200-nvl72", overrides={"levels.scale_out.peer_access": False})


ALL_REDUCES = {"all_reduce_ring", "all_reduce_two_shot", "all_reduce_one_shot"}


@pytest.mark.parametrize(
    ("on", "label", "stack", "known"),
    [
        ("h100-96", "tp=8", "vllm", ALL_REDUCES),
        ("h100-96", "tp=16", "vllm", {"all_reduce_ring"}),
        ("h100-96", "tp=16", "trtllm", {"all_reduce_ring"}),
        ("gb200-nvl72", "tp=4", "vllm", ALL_REDUCES),
        ("gb200-nvl72", "tp=8", "vllm", {"all_reduce_ring"}),
        ("gb200-nvl72", "tp=8", "trtllm", ALL_REDUCES),
    ],
)
def test_kernels_that_read_peers_stay_where_these_are(on: str, label: str, stack: str, known: set[str]) -> None:
    """Within a scale-up domain, of vLLM within a host; an all-reduce beyond them is a ring."""
    found = reached("llama-3.1-70b", label, on=on, stack=stack)
    rows = found.numbers().rows
    assert {one.row.op_class for one in rows if one.known and one.row.op_class in ALL_REDUCES} == known
    assert {row.op_class for row in found.rows if row.op_class in ALL_REDUCES} == ALL_REDUCES


def reached(name: str, label: str, *, on: str, stack: str) -> PassTable:
    """The table of one layout with what the stack adds to its kernels."""
    system = System.of(model(name), cluster(on), calibration=numbers(stack, on))
    return system.deployment(parse_layout(label, model(name))).table()


def test_a_grid_takes_each_layout_as_it_is_alone() -> None:
    """Also where kernels of some layouts do not reach all ranks."""
    on, batch = "h100-96", Batch(decode_sequences=32.0, context_len=1000.0)
    labels = ("tp=8", "tp=16", "tp=4")
    one = model("llama-3.1-70b")
    system = System.of(one, cluster(on), calibration=numbers("vllm", on))
    grid = LayoutGrid.of([parse_layout(label, one) for label in labels])
    together = system.table(grid).seconds(batch)
    alone = [reached("llama-3.1-70b", label, on=on, stack="vllm").time(batch).seconds for label in labels]
    assert np.ravel(together) == pytest.approx(alone)


def test_ranks_share_what_the_host_passes_on() -> None:
    """Fits of chips that the host limited are of chips without access to each other's memory."""
    record = calibration_record("generic")
    found = {
        (entry.chip, entry.group_size): entry.eta_link
        for entry in record.collective
        if entry.collective_class == "all_reduce_ring_staged"
    }
    assert found["l40s", 4] < 0.3 * found["l40s", 2]
    assert found["*", 8] == pytest.approx(found["*", 4] / 2, rel=1e-3)
