"""The closed forms: the lecture's own numbers, how they hang together, and bad input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.serving import blackboard as bb

# DeepSeek's sizes in FP8 on 72 chips of 5 PFLOP/s and 8 TB/s
TOTAL, ACTIVE, WEIGHT_BYTES, KV = 671e9, 37e9, 1.0, 35_136.0
FLOP_PER_S, HBM = 72 * 5e15, 72 * 8e12
RIDGE = bb.dimensionless_ridge(FLOP_PER_S, HBM, WEIGHT_BYTES)


def one_pass(batch_size: float, context_len: float) -> float:
    return bb.pass_s(batch_size, TOTAL, ACTIVE, WEIGHT_BYTES, context_len, KV, FLOP_PER_S, HBM)


# --- numbers that the lecture says ---------------------------------------------------------------------


def test_weight_fetch_over_a_scale_up_domain() -> None:  # C76
    assert bb.weight_fetch_s(671e9, 1.0, 3.35e12, 8.0) == pytest.approx(25.0e-3, abs=0.05e-3)
    assert bb.weight_fetch_s(671e9, 1.0, 8e12, 72.0) == pytest.approx(1.16e-3, abs=0.005e-3)


def test_mfu_halves_at_twice_the_crossover() -> None:  # C16
    assert bb.mfu_at_context(np.array([50e3, 100e3, 200e3]), 100e3).tolist() == [1.0, 1.0, 0.5]


def test_train_latency() -> None:  # C27
    latency = bb.train_latency(0.020)
    assert latency.worst_s == pytest.approx(0.040)
    assert latency.mean_s == pytest.approx(0.030)
    assert bb.train_latency(0.020, 0.005).worst_s == pytest.approx(0.025)


def test_kv_bytes_per_token_of_one_shared_layer() -> None:  # C102
    assert bb.kv_bytes_per_token(1.0, 8.0, 128.0, 1.0) == 2048.0


@pytest.mark.parametrize(
    ("flop_per_s", "hbm", "printed"),
    [(600.0, 1.0, 1667), (989e12, 3.35e12, 3387), (1979e12, 3.35e12, 1693), (9e15, 8e12, 889)],
)
def test_kv_bytes_from_a_200k_crossover(flop_per_s: float, hbm: float, printed: int) -> None:  # C100, G10
    assert round(bb.kv_bytes_per_token_from_crossover(100e9, 200e3, flop_per_s, hbm)) == printed


# --- how the forms hang together -----------------------------------------------------------------------


def test_crossover_is_its_own_inverse() -> None:
    context = bb.crossover_context(ACTIVE, KV, FLOP_PER_S, HBM)
    assert bb.kv_bytes_per_token_from_crossover(ACTIVE, context, FLOP_PER_S, HBM) == pytest.approx(KV)


def test_pass_is_the_slower_of_its_parts_and_flat_from_the_floor() -> None:
    floor = bb.latency_floor_s(TOTAL, WEIGHT_BYTES, HBM)
    balance = bb.balance_batch(RIDGE, TOTAL / ACTIVE)
    assert one_pass(1.0, 0.0) == floor
    assert one_pass(balance, 0.0) == pytest.approx(floor)
    assert one_pass(2 * balance, 0.0) == pytest.approx(2 * floor)


@pytest.mark.parametrize("share_of_crossover", [0.1, 0.5, 0.9])
def test_at_the_balance_batch_with_kv_compute_equals_memory(share_of_crossover: float) -> None:
    context = share_of_crossover * bb.crossover_context(ACTIVE, KV, FLOP_PER_S, HBM)
    batch = bb.balance_batch_with_kv(RIDGE, TOTAL, ACTIVE, WEIGHT_BYTES, context, KV)
    assert batch > bb.balance_batch(RIDGE, TOTAL / ACTIVE)
    compute = bb.compute_s(batch, ACTIVE, FLOP_PER_S)
    memory = bb.memory_s(batch, TOTAL, WEIGHT_BYTES, context, KV, HBM)
    assert compute == pytest.approx(memory)
    assert bb.mfu(batch, ACTIVE, FLOP_PER_S, one_pass(batch, context)) == pytest.approx(1.0)


def test_no_batch_balances_from_the_crossover_on() -> None:
    crossover = bb.crossover_context(ACTIVE, KV, FLOP_PER_S, HBM)
    contexts = np.array([0.999, 1.001, 10.0]) * crossover
    batch = bb.balance_batch_with_kv(RIDGE, TOTAL, ACTIVE, WEIGHT_BYTES, contexts, KV)
    assert np.isfinite(batch).tolist() == [True, False, False]


def test_balance_without_kv_is_the_one_with_an_empty_cache() -> None:
    with_kv = bb.balance_batch_with_kv(RIDGE, TOTAL, ACTIVE, WEIGHT_BYTES, 0.0, KV)
    assert with_kv == pytest.approx(bb.balance_batch(RIDGE, TOTAL / ACTIVE))


@pytest.mark.parametrize("share_of_crossover", [0.3, 1.0, 4.0])
def test_cost_falls_with_batch_towards_the_floor(share_of_crossover: float) -> None:
    context = share_of_crossover * bb.crossover_context(ACTIVE, KV, FLOP_PER_S, HBM)
    batch = np.geomspace(1.0, 1e9, 60)
    cost = bb.cost_per_token_usd(batch, one_pass(batch, context), 144.0)
    floor = bb.cost_floor_usd(ACTIVE, context, KV, FLOP_PER_S, HBM, 144.0)
    assert (np.diff(cost) <= 1e-18).all()
    assert (cost >= floor * (1 - 1e-12)).all()
    assert cost[-1] == pytest.approx(floor, rel=1e-4)
    # and the ratio agrees with the form in relative units
    balance = bb.balance_batch(RIDGE, TOTAL / ACTIVE)
    assert cost / floor == pytest.approx(bb.batch_cost_ratio(batch, balance, share_of_crossover))


def test_serial_attention_is_never_faster_and_adds_the_kv_read_when_compute_binds() -> None:
    context, batch = 1000.0, 20_000.0
    serial = bb.attention_then_weights_s(batch, TOTAL, ACTIVE, WEIGHT_BYTES, context, KV, FLOP_PER_S, HBM)
    compute = bb.compute_s(batch, ACTIVE, FLOP_PER_S)
    assert one_pass(batch, context) == compute
    assert serial == pytest.approx(compute + bb.kv_fetch_s(batch, context, KV, HBM))


def test_sparse_read_never_exceeds_the_context() -> None:
    assert bb.sparse_read_tokens(np.array([10.0, 64.0, 6400.0]), 64.0).tolist() == [10.0, 64.0, 640.0]


# --- fast and slow mode --------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_over_compute", [0.0, 0.2, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("fast_batch", [5.0, 400.0, 2000.0])
def test_modes_agree_in_every_direction(fast_batch: float, kv_over_compute: float) -> None:
    normal, star = 9000.0, 2400.0
    trade = bb.mode_at_batch(normal, fast_batch, star, kv_over_compute)
    by_price = bb.mode_at_price(normal, trade.price_ratio, star, kv_over_compute)
    assert by_price.feasible
    assert by_price.batch_size == pytest.approx(fast_batch)
    assert by_price.speed_ratio == pytest.approx(trade.speed_ratio)
    revealed = bb.mode_batches(trade.speed_ratio, trade.price_ratio, star, kv_over_compute)
    assert revealed.normal_batch == pytest.approx(normal)
    assert revealed.fast_batch == pytest.approx(fast_batch)
    if kv_over_compute > 0:  # without KV every batch below the balance has the same speed
        by_speed = bb.mode_at_speed(normal, trade.speed_ratio, star, kv_over_compute)
        assert by_speed.batch_size == pytest.approx(fast_batch)
        assert by_speed.price_ratio == pytest.approx(trade.price_ratio)


def test_without_kv_the_cheapest_batch_of_a_speed_is_the_largest() -> None:
    trade = bb.mode_at_speed(6000.0, 2.5, 2400.0)
    assert trade.batch_size == pytest.approx(2400.0)
    assert trade.price_ratio == pytest.approx(1.0)


def test_more_speed_than_the_floor_allows_is_infeasible_with_a_reason() -> None:
    trade = bb.mode_at_speed(6000.0, np.array([2.0, 2.6]), 2400.0)
    assert np.asarray(trade.feasible).tolist() == [True, False]
    assert np.isnan(np.asarray(trade.batch_size)).tolist() == [False, True]
    assert "latency floor" in trade.reason
    assert bb.mode_at_speed(6000.0, 2.0, 2400.0).reason == ""


def test_slow_mode_cannot_go_below_the_cost_floor() -> None:
    # normal mode at half the balance batch: twice the floor, so half the price is the end
    slow = bb.mode_at_price(1200.0, 0.5, 2400.0)
    assert slow.feasible
    assert slow.batch_size == pytest.approx(2400.0)
    assert slow.speed_ratio == pytest.approx(1.0)
    cheaper = bb.mode_at_price(1200.0, 0.49, 2400.0)
    assert cheaper.feasible is False
    assert "cost floor" in cheaper.reason
    # KV bound: the floor is k and is only approached
    assert bb.mode_at_price(1200.0, 2.0 / 4.0, 2400.0, 2.0).feasible is False
    assert bb.mode_at_price(1200.0, 2.1 / 4.0, 2400.0, 2.0).feasible is True


def test_a_slower_speed_is_a_larger_and_cheaper_batch() -> None:
    slow = bb.mode_at_speed(1200.0, 0.5, 2400.0, 0.5)
    assert slow.batch_size > 1200.0
    assert slow.price_ratio < 1.0


@pytest.mark.parametrize("kv_over_compute", [0.0, 0.3, 1.0, 10.0])
def test_any_two_ratios_reveal_batches_that_give_them_back(kv_over_compute: float) -> None:
    speed, price = np.array([1.01, 2.5, 50.0])[:, None], np.array([1.01, 6.0, 100.0])
    revealed = bb.mode_batches(speed, price, 2400.0, kv_over_compute)
    back = bb.mode_at_batch(revealed.normal_batch, revealed.fast_batch, 2400.0, kv_over_compute)
    assert back.speed_ratio == pytest.approx(np.broadcast_to(speed, (3, 3)))
    assert back.price_ratio == pytest.approx(np.broadcast_to(price, (3, 3)))


@pytest.mark.parametrize(("speed", "price", "name"), [(1.0, 6.0, "speed_ratio"), (2.5, 0.5, "price_ratio")])
def test_a_fast_mode_is_faster_and_dearer(speed: float, price: float, name: str) -> None:
    with pytest.raises(InputError, match="above 1") as raised:
        bb.mode_batches(speed, price, 2400.0)
    assert raised.value.what == name


def test_knee_beyond_the_crossover_is_infinite() -> None:
    assert bb.max_speed_ratio_at_knee(np.array([0.0, 0.5, 1.0, 2.0])).tolist() == [1.0, 2.0, np.inf, np.inf]


# --- arrays and bad input ------------------------------------------------------------------------------


def test_floats_give_floats_and_arrays_broadcast() -> None:
    assert type(one_pass(1.0, 1000.0)) is float
    grid = one_pass(np.array([[1.0], [1000.0], [1e5]]), np.array([0.0, 1e4]))
    assert grid.shape == (3, 2)
    assert grid[1, 1] == one_pass(1000.0, 1e4)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "30ms", None, True, np.array([1.0, -2.0])])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: bb.dimensionless_ridge(x, 1.0, 1.0), "flop_per_s"),
        (lambda x: bb.pass_s(x, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), "batch_size"),
        (lambda x: bb.mfu(1.0, 1.0, 1.0, x), "pass_seconds"),
        (lambda x: bb.weight_fetch_s(1.0, 1.0, 1.0, x), "num_chips"),
        (lambda x: bb.hbm_drain_s(1.0, x), "hbm_bytes_per_s"),
        (lambda x: bb.balance_batch(300.0, x), "total_over_active"),
        (lambda x: bb.balance_batch_with_kv(x, 1.0, 1.0, 1.0, 1.0, 1.0), "ridge"),
        (lambda x: bb.crossover_context(1.0, x, 1.0, 1.0), "kv_bytes_per_token"),
        (lambda x: bb.cost_per_token_usd(1.0, 1.0, x), "usd_per_hour"),
        (lambda x: bb.mode_at_speed(1.0, x, 1.0), "speed_ratio"),
        (lambda x: bb.mode_at_price(1.0, x, 1.0), "price_ratio"),
        (lambda x: bb.mode_batches(2.0, x, 1.0), "price_ratio"),
        (lambda x: bb.train_latency(x), "interval_s"),
        (lambda x: bb.chip_memory(1.0, 1.0, 1.0, 1.0, 1.0, x), "expert_parallel"),
        (lambda x: bb.sparse_read_tokens(x), "context_len"),
    ],
)
def test_bad_input_names_the_argument(call: Callable[[object], object], name: str, bad: object) -> None:
    with pytest.raises(InputError) as raised:
        call(bad)
    assert raised.value.what == name
    assert "allowed: a finite number" in str(raised.value)


def test_no_kv_is_allowed_but_negative_kv_is_not() -> None:
    assert bb.kv_fetch_s(1.0, 0.0, 0.0, 1.0) == 0.0
    with pytest.raises(InputError, match="at least 0"):
        bb.kv_fetch_s(1.0, -1.0, 1.0, 1.0)


def test_total_below_active_is_refused() -> None:
    with pytest.raises(InputError, match=r"total_over_active: got 0\.125, allowed: .* at least 1"):
        bb.balance_batch(300.0, 1 / 8)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(InputError, match="broadcast"):
        bb.hbm_drain_s(np.ones(2), np.ones(3))
