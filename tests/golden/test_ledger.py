"""The lecture's ledger, section 4: the golden values G01-G06, G10, G11, G13-G17 from the closed forms.

Each test states the inputs of the ledger's row and compares to the digits that the row prints.
"""

from __future__ import annotations

import numpy as np
import pytest

from rackline.serving import blackboard as bb

TB, GB, TFLOP = 1e12, 1e9, 1e12

# chip, FLOP/s dense, bytes/s, bytes per weight, R as printed
G01 = [
    ("H100 BF16", 989 * TFLOP, 3.35 * TB, 2.0, 295),
    ("H100 FP8", 1979 * TFLOP, 3.35 * TB, 1.0, 295),
    ("B200 BF16", 2250 * TFLOP, 8.0 * TB, 2.0, 281),
    ("B200 FP4", 9000 * TFLOP, 8.0 * TB, 0.5, 281),
    ("B200 FP4 at 7.7 TB/s", 9000 * TFLOP, 7.7 * TB, 0.5, 292),
    ("H200 BF16", 989 * TFLOP, 4.8 * TB, 2.0, 206),
    ("A100 40 GB BF16", 312 * TFLOP, 1.555 * TB, 2.0, 201),
    ("A100 80 GB BF16", 312 * TFLOP, 2.039 * TB, 2.0, 153),
    ("GB300 FP4", 15000 * TFLOP, 8.0 * TB, 0.5, 469),
]


@pytest.mark.parametrize(("flop_per_s", "hbm", "weight_bytes", "printed"), [row[1:] for row in G01])
def test_g01_dimensionless_ridge(flop_per_s: float, hbm: float, weight_bytes: float, printed: int) -> None:
    assert round(bb.dimensionless_ridge(flop_per_s, hbm, weight_bytes)) == printed


# chip, bytes, bytes/s, drain in ms as printed
G02 = [
    ("A100 40 GB", 40 * GB, 1.555 * TB, 25.7),
    ("A100 80 GB", 80 * GB, 2.039 * TB, 39.2),
    ("H100", 80 * GB, 3.35 * TB, 23.9),
    ("H200", 141 * GB, 4.8 * TB, 29.4),
    ("B200", 192 * GB, 8.0 * TB, 24.0),
    ("GB300", 288 * GB, 8.0 * TB, 36.0),
    ("Rubin at 20 TB/s", 288 * GB, 20.0 * TB, 14.4),
    ("Rubin at 22 TB/s", 288 * GB, 22.0 * TB, 13.1),
    ("TPU v5e", 16 * GB, 0.819 * TB, 19.5),
    ("TPU v5p", 95 * GB, 2.765 * TB, 34.4),
    ("TPU v6e", 32 * GB, 1.64 * TB, 19.5),
    ("TPU7x", 192 * GB, 7.37 * TB, 26.1),
]


@pytest.mark.parametrize(("capacity", "bandwidth", "printed_ms"), [row[1:] for row in G02])
def test_g02_hbm_drain(capacity: float, bandwidth: float, printed_ms: float) -> None:
    assert round(bb.hbm_drain_s(capacity, bandwidth) * 1e3, 1) == printed_ms


def test_g03_balance_batch() -> None:
    ratios = np.array([256 / 32, 256 / 8, 700 / 37, 671 / 37])
    assert np.round(bb.balance_batch(300.0, ratios)).tolist() == [2400, 9600, 5676, 5441]


def test_g04_batch_of_one_costs_balance_batch_times_the_floor() -> None:
    balance = np.array([300.0, 2400.0, 5676.0])
    assert bb.batch_cost_ratio(1.0, balance).tolist() == balance.tolist()
    # the same from dollars: DeepSeek's sizes on one H100, KV ignored
    total, active, flop_per_s, hbm, weight_bytes = 671e9, 37e9, 1979 * TFLOP, 3.35 * TB, 1.0
    alone = bb.pass_s(1.0, total, active, weight_bytes, 0.0, 0.0, flop_per_s, hbm)
    cost = bb.cost_per_token_usd(1.0, alone, 2.0)
    floor = bb.cost_floor_usd(active, 0.0, 0.0, flop_per_s, hbm, 2.0)
    ridge = bb.dimensionless_ridge(flop_per_s, hbm, weight_bytes)
    assert cost / floor == pytest.approx(bb.balance_batch(ridge, total / active), rel=1e-12)


class TestG05FastMode:
    """B* = 2,400 (300 x 8); without KV unless said."""

    def test_both_ratios_give_both_batches(self) -> None:
        batches = bb.mode_batches(2.5, 6.0, 2400.0)
        assert batches.normal_batch == pytest.approx(6000.0)
        assert batches.fast_batch == pytest.approx(400.0)

    def test_batches_give_both_ratios(self) -> None:
        trade = bb.mode_at_batch(6000.0, 400.0, 2400.0)
        assert (trade.speed_ratio, trade.price_ratio) == pytest.approx((2.5, 6.0))

    @pytest.mark.parametrize(("price", "batch"), [(6.0, 400.0), (100.0, 24.0)])
    def test_price_gives_batch_and_never_more_speed_than_the_floor(self, price: float, batch: float) -> None:
        trade = bb.mode_at_price(6000.0, price, 2400.0)
        assert trade.batch_size == pytest.approx(batch)
        assert trade.speed_ratio == pytest.approx(2.5)

    def test_below_the_balance_batch_a_smaller_batch_buys_no_speed(self) -> None:
        assert bb.max_speed_ratio(2400.0, 2400.0) == 1.0
        assert bb.mode_at_batch(2400.0, 24.0, 2400.0).speed_ratio == 1.0

    def test_with_kv_at_the_knee(self) -> None:
        assert bb.max_speed_ratio_at_knee(0.6) == pytest.approx(2.5)
        knee = 2400.0 / (1 - 0.6)
        assert bb.max_speed_ratio(knee, 2400.0, 0.6) == pytest.approx(2.5)
        almost = bb.mode_at_batch(knee, 1.0, 2400.0, 0.6).speed_ratio
        assert 2.499 < almost < 2.5


def test_g06_memory_per_chip() -> None:
    stages = np.array([1.0, 2.0, 4.0, 8.0])
    held = bb.chip_memory(700e9, 1.0, 2400.0, 1e5, 2048.0, 64.0, stages)
    assert np.round(held.weights_bytes / GB, 2).tolist() == [10.94, 5.47, 2.73, 1.37]
    assert held.kv_bytes == pytest.approx(7.68 * GB)


# model, active parameters, KV bytes per token in BF16, L* as printed
G11 = [
    ("DeepSeek V3", 37e9, 61 * (512 + 64) * 2.0, 3570),
    ("Llama-3-70B", 70e9, 80 * 2 * 8 * 128 * 2.0, 1448),
]


@pytest.mark.parametrize(("active", "kv", "printed"), [row[1:] for row in G11])
def test_g11_crossover_context(active: float, kv: float, printed: int) -> None:
    # The row rounds the H100's 989e12 / 3.35e12 to 295 FLOP per byte; the exact quotient is 0.07 % higher.
    assert bb.crossover_context(active, kv, 295.0, 1.0) == pytest.approx(printed, abs=0.5)
    assert bb.crossover_context(active, kv, 989 * TFLOP, 3.35 * TB) == pytest.approx(printed, rel=1e-3)


def test_g13_scale_up_over_scale_out() -> None:
    experts = np.array([8.0, 16.0, 32.0, 3.0, 3.0])
    layers = np.array([1.0, 1.0, 1.0, 1.0, 2.0])
    ratio = bb.scale_up_over_scale_out_time(8.0, experts, layers)
    assert ratio.tolist() == [2.0, 4.0, 8.0, 0.75, 1.5]


# case, active parameters, (layers, query heads, QK width, V width), context as printed, its last digit
G14 = [
    ("Llama-3-70B", 70e9, (80, 64, 128, 128), 53e3, 1e3),
    ("100 B, 80 layers", 100e9, (80, 64, 128, 128), 76e3, 1e3),
    ("100 B, 1 global layer", 100e9, (1, 64, 128, 128), 6.1e6, 0.1e6),
    ("DeepSeek V3 expanded", 37e9, (61, 128, 128 + 64, 128), 14.8e3, 0.1e3),
    ("DeepSeek V3 absorbed", 37e9, (61, 128, 512 + 64, 512), 4.4e3, 0.1e3),
]


@pytest.mark.parametrize(("active", "shape", "printed", "digit"), [row[1:] for row in G14])
def test_g14_attention_flop_equals_weight_flop(
    active: float, shape: tuple[int, int, int, int], printed: float, digit: float
) -> None:
    slope = bb.attention_flop_per_context_token(*(float(value) for value in shape))
    context = bb.attention_equals_weights_context(active, slope)
    assert context == pytest.approx(printed, abs=digit / 2)


def test_g15_square_root_savings() -> None:
    context = np.array([200e3, 1e6, 100e6])
    assert np.round(context / bb.sparse_read_tokens(context)).tolist() == [447, 1000, 10000]


def test_g16_usd_per_million_tokens() -> None:
    usd_per_hour = 72 * 2.0
    assert round(bb.cost_per_token_usd(2400.0, 0.020, usd_per_hour) * 1e6, 2) == 0.33
    assert bb.cost_per_token_usd(1.0, 0.020, usd_per_hour) * 1e6 == pytest.approx(800.0)
    # 128k tokens per second: 2,000 sequences, 64 passes a second (C32)
    assert bb.tokens_per_s(2000.0, 1 / 64) == 128_000.0
    assert round(bb.cost_per_token_usd(2000.0, 1 / 64, usd_per_hour) * 1e6, 2) == 0.31


# chip, FLOP/s dense, bytes/s, KV bytes per token of 100 B active parameters at 200K as printed
G10 = [
    ("as said", 600e12, 1e12, 1667),
    ("H100 BF16", 989 * TFLOP, 3.35 * TB, 3387),
    ("H100 FP8", 1979 * TFLOP, 3.35 * TB, 1693),
    ("B200 FP4", 9000 * TFLOP, 8.0 * TB, 889),
]


@pytest.mark.parametrize(("flop_per_s", "hbm", "printed"), [row[1:] for row in G10])
def test_g10_kv_bytes_of_a_200k_crossover(flop_per_s: float, hbm: float, printed: int) -> None:
    assert bb.kv_bytes_per_token_from_crossover(100e9, 200e3, flop_per_s, hbm) == pytest.approx(printed, abs=0.7)


# part, bytes, bytes/s, drain time [s], its last digit
G17 = [
    ("DDR 480 GB", 480 * GB, 0.5 * TB, 0.96, 0.01),
    ("DDR 1.5 TB", 1.5 * TB, 0.46 * TB, 3.3, 0.1),
    ("NVMe 4 TB", 4 * TB, 7 * GB, 571.0, 1.0),
    ("QLC 30.7 TB", 30.72 * TB, 7 * GB, 1.2 * 3600, 0.1 * 3600),
    ("QLC 61.4 TB", 61.44 * TB, 7 * GB, 2.4 * 3600, 0.1 * 3600),
    ("QLC 122.9 TB", 122.88 * TB, 7.4 * GB, 4.6 * 3600, 0.1 * 3600),
    ("HDD 20 TB", 20 * TB, 0.285 * GB, 19.5 * 3600, 0.1 * 3600),
]


@pytest.mark.parametrize(("capacity", "bandwidth", "printed_s", "digit"), [row[1:] for row in G17])
def test_g17_drain_times_of_memory_tiers(capacity: float, bandwidth: float, printed_s: float, digit: float) -> None:
    assert bb.hbm_drain_s(capacity, bandwidth) == pytest.approx(printed_s, abs=digit / 2 * 1.001)
