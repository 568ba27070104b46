"""Text to SI and back: units, bounds, and messages that help."""

import math
import re
from collections.abc import Callable

import pint
import pytest
from hypothesis import given, strategies as st

from rackline import units
from rackline.api.what_if import setting
from rackline.arch import model
from rackline.errors import UnitError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_seconds, "30ms", 0.03),
        (units.parse_seconds, "2 s", 2.0),
        (units.parse_seconds, "1h", 3600.0),
        (units.parse_seconds, "5us", 5e-6),
        (units.parse_seconds, "2min", 120.0),
        (units.parse_seconds, 0.03, 0.03),
        (units.parse_seconds, "0.03s", 0.03),
        (units.parse_bytes, "141GB", 141e9),
        (units.parse_bytes, "96GiB", 96 * 2**30),
        (units.parse_bytes, 1e9, 1e9),
        (units.parse_count, "4k", 4000),
        (units.parse_count, "1M", 1e6),
        (units.parse_count, "128Ki", 131072),
        (units.parse_count, "671B", 671e9),
        (units.parse_count, "1_000", 1000),
        (units.parse_rate, "3.35TB/s", 3.35e12),
        (units.parse_rate, "1KiB/s", 1024),
        (units.parse_flop_rate, "989TFLOP/s", 989e12),
        (units.parse_flop_rate, 989e12, 989e12),
        (units.parse_flop_rate, "15PFLOPS", 15e15),
        (units.parse_usd_per_hour, "$2.50", 2.5),
        (units.parse_usd_per_hour, "2.5USD/h", 2.5),
        (units.parse_fraction, "90%", 0.9),
        (units.parse_fraction, "0.9", 0.9),
        (units.parse_fraction, 0, 0.0),
        (units.parse_fraction, 1, 1.0),
    ],
)
def test_reads_quantities(parse: Callable[..., float], text: str | float, value: float) -> None:
    assert parse(text, name="x") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("unit", ["ms", "us", "ns", "s", "min", "h"])
def test_time_units_agree_with_pint(unit: str) -> None:
    registry = pint.UnitRegistry()
    assert units.parse_seconds(f"7{unit}") == pytest.approx(registry.Quantity(7, unit).to("s").magnitude)


@pytest.mark.parametrize("unit", ["kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"])
def test_byte_units_agree_with_pint(unit: str) -> None:
    registry = pint.UnitRegistry()
    assert units.parse_bytes(f"7{unit}") == pytest.approx(registry.Quantity(7, unit).to("byte").magnitude)


def test_wrong_unit_says_what_is_allowed() -> None:
    with pytest.raises(UnitError) as caught:
        units.parse_seconds("30GB", name="--tpot")
    assert str(caught.value) == "--tpot: got '30GB', allowed: a time such as 30ms or 0.03s"


@pytest.mark.parametrize(
    ("parse", "text", "nearest"),
    [
        (units.parse_bytes, "141gb", "141GB"),
        (units.parse_rate, "3tb/s", "3TB/s"),
        (units.parse_seconds, "30MS", "30ms"),
        (units.parse_count, "1m", "1M"),
        (units.parse_seconds, "-30ms", "30ms"),
    ],
)
def test_a_slip_of_case_or_sign_names_what_was_meant(parse: Callable[..., float], text: str, nearest: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(
    "bad",
    [
        "nan",
        "inf",
        math.nan,
        math.inf,
        -math.inf,
        "1e999",
        "",
        "ms",
        "abc",
        "1 2",
        "--3",
        True,
        None,
        [1],
        10**400,
    ],
)
def test_refuses_what_is_not_a_finite_number(bad: object) -> None:
    for parse in (units.parse_seconds, units.parse_bytes, units.parse_count, units.parse_fraction):
        with pytest.raises(UnitError):
            parse(bad, name="x")  # type: ignore[arg-type]


def test_zero_only_where_allowed() -> None:
    with pytest.raises(UnitError, match="more than zero"):
        units.parse_count(0)
    assert units.parse_count(0, zero_allowed=True) == 0.0
    with pytest.raises(UnitError, match="more than zero"):
        units.parse_seconds("0ms")


def test_bounds_are_kept_and_the_nearest_value_is_named() -> None:
    with pytest.raises(UnitError) as caught:
        units.parse_seconds("2h", name="--tpot", maximum=60.0)
    assert caught.value.nearest == "1.00 min"
    with pytest.raises(UnitError) as caught:
        units.parse_fraction("120%", name="--memory-fraction")
    assert caught.value.nearest == "100 %"
    with pytest.raises(UnitError) as caught:
        units.parse_count(1, minimum=2, maximum=8)
    assert (caught.value.nearest, "2 to 8" in str(caught.value)) == ("2", True)
    assert units.parse_count(2, minimum=2) == 2


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("hbm_bytes", "192GB", 192e9),
        ("hbm_bytes_per_s", "20TB/s", 20e12),
        ("levels.scale_up.bytes_per_s_each_way", "1.8TB/s", 1.8e12),
        ("levels.scale_up.latency_s", "2us", 2e-6),
        ("peak_flop_per_s.fp4", "15PFLOP/s", 15e15),
        ("usd_per_chip_hour", "$3", 3.0),
        ("num_chips", "144", 144),
        ("host_s_per_step", "1ms", 1e-3),
    ],
)
def test_catalogue_keys_know_their_unit(key: str, text: str, value: float) -> None:
    assert units.parse_number_for_key(text, name=key) == pytest.approx(value)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (units.format_seconds(0.0304), "30.4 ms"),
        (units.format_seconds(0.0), "0 s"),
        (units.format_seconds(0.9999), "1.00 s"),
        (units.format_seconds(86400.0), "1.00 d"),
        (units.format_seconds(math.inf), "inf"),
        (units.format_seconds(3e-12), "0.00300 ns"),
        (units.format_bytes(80e9), "80.0 GB"),
        (units.format_bytes(999.9e9), "1.00 TB"),
        (units.format_bytes(-2e9), "-2.00 GB"),
        (units.format_count(12), "12"),
        (units.format_count(999.6), "1.00k"),
        (units.format_count(2.5), "2.50"),
        (units.format_count(671e9), "671B"),
        (units.format_rate(450e9), "450 GB/s"),
        (units.format_flop_rate(1.1e18), "1.10 EFLOP/s"),
        (units.format_usd(0.0123), "$0.0123"),
        (units.format_usd(1234.5), "$1,234"),
        (units.format_usd(-2.0), "-$2.00"),
        (units.format_usd(0), "$0"),
        (units.format_percent(1.0), "100 %"),
        (units.format_percent(math.nan), "nan"),
    ],
)
def test_writes_three_significant_digits_with_unit(written: str, text: str) -> None:
    assert written == text


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_written_time_reads_back_within_its_digits(seconds: float) -> None:
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=6e-3)


@given(st.floats(min_value=1.0, max_value=9e17))
def test_written_bytes_read_back_within_their_digits(amount: float) -> None:
    assert units.parse_bytes(units.format_bytes(amount)) == pytest.approx(amount, rel=6e-3)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_a_unit_error(text: str) -> None:
    try:
        value = units.parse_seconds(text)
    except UnitError:
        return
    assert value > 0
    assert math.isfinite(value)


@pytest.mark.parametrize(
    ("parse", "text", "readings"),
    [
        (units.parse_seconds, "50", "50 s or 50 ms?"),
        (units.parse_seconds, "0.03", "0.03 s or 0.03 ms?"),
        (units.parse_bytes, "80", "80 B or 80 GB?"),
        (units.parse_rate, "450", "450 B/s or 450 GB/s?"),
        (units.parse_flop_rate, "989", "989 FLOP/s or 989 TFLOP/s?"),
    ],
)
def test_a_number_in_text_needs_its_unit(parse: Callable[..., float], text: str, readings: str) -> None:
    with pytest.raises(UnitError, match=re.escape(readings)):
        parse(text, name="x")
    assert parse(float(text), name="x") == float(text), "a number is SI"
    assert parse("0", name="x", zero_allowed=True) == 0.0


@pytest.mark.parametrize("key", ["hbm_bytes_per_s", "hbm_bytes", "alpha_s", "chip.flop_per_s.bf16"])
def test_a_key_that_names_the_unit_is_enough(key: str) -> None:
    assert units.parse_number_for_key("20e12", name=key) == 20e12


def test_a_fraction_above_one_needs_its_unit() -> None:
    assert units.parse_fraction("30%", maximum=1000.0) == pytest.approx(0.3)
    assert units.parse_fraction("0.3", maximum=1000.0) == pytest.approx(0.3)
    assert units.parse_fraction(30, maximum=1000.0) == 30.0
    assert units.parse_fraction("30.0", maximum=1000.0) == 30.0
    with pytest.raises(UnitError, match=r"30 % or 3000 %\?"):
        units.parse_fraction("30", name="margin", maximum=1000.0)


@pytest.mark.parametrize(
    ("name", "value"), [("hbm_bandwidth", "8"), ("hbm_capacity", "80"), ("scale_up_bandwidth", "1")]
)
def test_a_varied_quantity_needs_its_unit(name: str, value: str) -> None:
    with pytest.raises(UnitError, match="with its unit"):
        setting(name, value, model("llama-3.1-8b"))
