"""Reading prices: the lecture's deductions, conflicts, cache tiers, fast modes, price changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rackline.errors import InputError, UnknownNameError
from rackline.pricing import (
    PriceSheet,
    PriceTier,
    Range,
    Reading,
    Unknowns,
    default_offers,
    default_unknowns,
    price_sheet,
    read_prices,
)
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.pricing.sheet import CacheWrite, PastPrice


def read(name: str, **changes: object) -> Reading:
    return read_prices(price_sheet(name), replace(default_unknowns(), **changes) if changes else None)  # type: ignore[arg-type]


def sheet(*tiers: PriceTier, **more: object) -> PriceSheet:
    return PriceSheet(name="x", provider="p", sold_as="s", date="2026-11-21", tiers=tiers, **more)  # type: ignore[arg-type]


def standard(given: float | None = 2e-6, made: float | None = 10e-6, **more: object) -> PriceTier:
    return PriceTier(name="standard", mode="standard", input_usd=given, output_usd=made, **more)  # type: ignore[arg-type]


def exact(chip: str, dtype: str) -> Unknowns:
    """A single chip and data type at its peaks, the step at the crossover: the blackboard of the lecture."""
    one = Range(low=1.0, high=1.0)
    return Unknowns(
        offers=default_offers([chip]),
        dtypes=(dtype,),
        rent_factor=one,
        margin=(0.0, 0.0),
        utilisation=one,
        mfu=one,
        hbm_share=one,
        step_over_crossover=one,
    )


@pytest.mark.parametrize(("chip", "dtype", "printed"), [("h100-sxm", "bf16", 3387), ("h100-sxm", "fp8", 1693)])
def test_g10_kv_bytes_of_the_200k_step_with_100_b_active(chip: str, dtype: str, printed: int) -> None:
    reading = read_prices(price_sheet("gemini-3.1-pro"), exact(chip, dtype), active_params=100e9)
    found = reading.find("kv_bytes_per_token", "context step, active parameters known")
    assert found is not None
    assert found.low == pytest.approx(found.high)
    assert found.low == pytest.approx(printed, abs=1)


def test_lecture_s_1667_bytes_are_shown_as_what_they_are() -> None:  # C100
    found = read("gemini-3.1-pro").find("kv_bytes_per_token", "lecture")
    assert found is not None
    assert found.low == found.high == pytest.approx(1667, abs=0.5)
    assert "600 FLOP per byte" in found.note
    interval = read("gemini-3.1-pro").find("kv_bytes_per_token", "context step, lecture")
    assert interval is not None
    assert interval.range.holds(found.low)
    for kv in (889.0, 1693.0, 3387.0):  # G10: B200 FP4, H100 FP8, H100 BF16
        assert interval.range.holds(kv)


def test_input_price_and_known_parameters_agree_when_nothing_is_unknown() -> None:
    """C99: N from the price put into the crossover is the form in which N has cancelled."""
    unknowns = exact("h100-sxm", "fp8")
    step = PriceTier(name="b", mode="standard", above_context_len=200e3, input_usd=2e-6, output_usd=15e-6)
    made = sheet(standard(), step)
    active = read_prices(made, unknowns).find("active_params")
    assert active is not None
    given = read_prices(made, unknowns, active_params=active.low)
    known = given.find("kv_bytes_per_token", "context step, active")
    cancelled = given.find("kv_bytes_per_token", "context step")
    assert known is not None
    assert cancelled is not None
    assert known.low == pytest.approx(cancelled.low, rel=1e-9)


def test_output_over_input_is_memory_over_compute() -> None:  # C107
    reading = read("claude-opus-4.6")
    ratio, mfu = reading.find("memory_over_compute"), reading.find("decode_mfu")
    assert ratio is not None
    assert mfu is not None
    assert ratio.low == ratio.high == pytest.approx(5.0)
    assert (mfu.low, mfu.high) == pytest.approx((0.2 / 5, 0.7 / 5))


def test_conflicts_n46_n47_n48_are_reported() -> None:
    claims = " | ".join(conflict.claims for conflict in read("gemini-3.1-pro").conflicts)
    for number in ("N46", "N47", "N48"):
        assert number in claims
    texts = {conflict.claims[:3]: conflict.text for conflict in read("gemini-3.1-pro").conflicts}
    assert "6 times as long as compute" in texts["N46"]
    assert "5.24" in texts["N47"]
    assert "input rises 2 times and output 1.5 times" in texts["N48"]


def test_no_conflict_where_the_sheet_has_none() -> None:
    step = PriceTier(name="b", mode="standard", above_context_len=200e3, input_usd=3e-6, output_usd=15e-6)
    consistent = sheet(standard(2e-6, 2.1e-6), replace(step, input_usd=3e-6, output_usd=3.15e-6), max_context_len=250e3)
    assert read_prices(consistent).conflicts == ()
    assert read("deepinfra-kimi-k2").conflicts == ()


def test_storage_like_chip_memory_is_a_conflict() -> None:
    # with contexts as short as a chat's, host memory fits as well
    reading = read("gemini-2.5-pro", context_len=Range(low=2e3, high=16e3))
    assert any("chip's own memory" in conflict.text for conflict in reading.conflicts)
    storage = reading.find("storage_usd_per_mtok_hour")
    assert storage is not None
    assert storage.low == pytest.approx(4.5)
    hbm = reading.find("kv_bytes_per_token", "storage price, if kept in hbm")
    disk = reading.find("kv_bytes_per_token", "storage price, if kept in disk")
    assert hbm is not None
    assert disk is not None
    assert disk.low > 1000 * hbm.high


def test_two_lifetimes_give_a_slope_and_a_write() -> None:  # C119
    slope = storage_usd_per_token_s(6.25e-6, 300.0, 10e-6, 3600.0)
    assert slope * 3600 * 1e6 == pytest.approx(4.09, abs=0.005)
    reading = read("claude-opus-4.6")
    once = reading.find("cache_write_usd_per_mtok")
    assert once is not None
    assert once.low == pytest.approx(1.25 - slope * 300 * 1e6)
    kept = [(each.lifetime_s, each.rule_tier) for each in reading.kept_in]
    assert kept == [(300.0, "nvme-4tb"), (3600.0, "qlc-31tb")]  # N53: an hour is no spinning disk


def test_fast_mode_gives_batches_of_g05() -> None:
    unknowns = replace(
        exact("h100-sxm", "bf16"),
        total_over_active=Range(low=2400 / 295.2, high=2400 / 295.2),
        kv_over_compute=Range(low=1e-9, high=1e-9),
    )
    fast = PriceTier(name="fast", mode="fast", output_usd=60e-6, speed_ratio=2.5)
    reading = read_prices(sheet(standard(), fast), unknowns)
    normal, quick = reading.find("normal_batch"), reading.find("fast_batch")
    assert normal is not None
    assert quick is not None
    assert normal.low == pytest.approx(6000, rel=1e-3)
    assert quick.high == pytest.approx(400, rel=1e-3)
    opus = read("claude-opus-4.6").find("normal_batch")
    assert opus is not None
    assert opus.range.holds(6000)


@pytest.mark.parametrize(
    ("fast", "reason"),
    [
        (PriceTier(name="f", mode="fast", output_usd=20e-6), "states no speed"),
        (PriceTier(name="f", mode="fast", output_usd=None, speed_ratio=2.0), "no usable output price"),
        (PriceTier(name="f", mode="fast", output_usd=9e-6, speed_ratio=2.0), "trades nothing"),
    ],
)
def test_fast_modes_that_reveal_nothing(fast: PriceTier, reason: str) -> None:
    missing = {each.quantity: each.reason for each in read_prices(sheet(standard(), fast)).missing}
    assert reason in missing["batches"]


def test_batch_discount_bounds_price_over_cost_and_narrows_parameters() -> None:
    plain = read_prices(sheet(standard()))
    halved = read_prices(sheet(standard(), PriceTier(name="b", mode="batch", input_usd=1e-6, output_usd=5e-6)))
    least, before, after = halved.find("price_over_cost"), plain.find("active_params"), halved.find("active_params")
    assert least is not None
    assert before is not None
    assert after is not None
    assert least.bound == "at least"
    assert least.low == pytest.approx(2.0)
    assert after.high < before.high
    assert after.low == before.low


def test_a_discount_beyond_all_ranges_is_a_conflict() -> None:
    deep = PriceTier(name="b", mode="batch", input_usd=1e-8, output_usd=5e-8)
    assert any("more price over cost" in c.text for c in read_prices(sheet(standard(), deep)).conflicts)


def test_kv_bytes_that_cannot_both_hold_are_a_conflict() -> None:
    """A cache hit that is sold for almost nothing leaves no room for the KV that the context step needs."""
    step = PriceTier(name="b", mode="standard", above_context_len=2e3, input_usd=2e-6, output_usd=15e-6)
    reading = read_prices(sheet(standard(cached_input_usd=1e-12), step))
    assert any("cache hit" in conflict.text and "context step" in conflict.text for conflict in reading.conflicts)


def test_likely_lies_inside_certain() -> None:
    for name in ("claude-opus-4.6", "gemini-2.5-pro", "gpt-6.1-sol", "deepinfra-deepseek-v3"):
        assert len(read(name).inferences) > 3
        for inference in read(name).inferences:
            assert inference.low <= inference.likely_low * (1 + 1e-9), inference
            assert inference.likely_high <= inference.high * (1 + 1e-9), inference


def test_knowing_more_narrows_the_interval() -> None:
    sheets = price_sheet("deepinfra-deepseek-v3")
    wide = read_prices(sheets).find("active_params")
    narrow = read_prices(sheets, replace(default_unknowns(["h100-sxm"]), margin=(0.2, 0.5))).find("active_params")
    assert wide is not None
    assert narrow is not None
    assert wide.low < narrow.low < narrow.high < wide.high


def change(given: float, made: float) -> str:
    past = PastPrice(name="before", until=None, input_usd=given * 2e-6, output_usd=made * 10e-6)
    (found,) = read_prices(sheet(standard(), history=(past,))).changes
    assert found.input_ratio == pytest.approx(given)
    assert found.left_over == pytest.approx(given / (found.hardware_gain * found.precision_gain))
    return found.text


def test_what_a_price_change_implies() -> None:
    assert "newer chips alone" in change(1.3, 1.3)
    assert "one step in precision" in change(3.0, 3.0)
    assert "smaller model, less margin or more utilisation" in change(50.0, 50.0)
    assert "by different factors" in change(3.0, 5.0)
    assert "rose" in change(0.5, 0.5)
    assert change(1.0, 1.0) == "no change"
    luna = read("gpt-5.6-luna").changes
    assert luna[0].input_ratio == pytest.approx(5.0)


def test_history_of_deepseek_is_a_rise() -> None:
    (found,) = read("deepseek-deepseek-v3").changes
    assert found.input_ratio < 1
    assert "rose" in found.text


def test_a_sheet_without_standard_tier() -> None:
    reading = read_prices(sheet(PriceTier(name="b", mode="batch", input_usd=1e-6)))
    assert reading.inferences == ()
    assert reading.missing[0].quantity == "everything"


def test_a_second_tier_that_is_no_dearer_reveals_no_crossover() -> None:
    step = PriceTier(name="b", mode="standard", above_context_len=2e5, input_usd=2e-6, output_usd=10e-6)
    missing = {each.quantity: each.reason for each in read_prices(sheet(standard(), step)).missing}
    assert "no higher" in missing["crossover_context"]


def test_cache_writes_of_one_price_reveal_no_tier() -> None:
    writes = tuple(CacheWrite(name=n, lifetime_s=t, usd=2e-6) for n, t in (("a", 300.0), ("b", 3600.0)))
    missing = {each.quantity: each.reason for each in read_prices(sheet(standard(cache_writes=writes))).missing}
    assert "costs no more" in missing["memory tier of the cache"]


def test_bad_unknowns() -> None:
    with pytest.raises(InputError, match="low <= high"):
        Range(low=2.0, high=1.0)
    with pytest.raises(InputError, match="margin"):
        replace(default_unknowns(), margin=(0.5, 0.1))
    with pytest.raises(InputError, match="shares above 0 to 1"):
        replace(default_unknowns(), mfu=Range(low=0.5, high=1.5))
    with pytest.raises(InputError, match="data type"):
        replace(default_unknowns(["a100-sxm-80gb"]), dtypes=("fp4",))
    with pytest.raises(InputError, match="a chip with a rent"):
        default_offers(["h20"])
    with pytest.raises(UnknownNameError, match="nearest: h100-sxm"):
        default_offers(["h1000"])
