"""Text to SI numbers and back, at the boundary only.

Inside the library everything is an SI float; here "30ms" becomes 0.03 and 0.03 becomes "30.0 ms".
Prefixes are case-sensitive where they must be (m = milli, M = mega) and binary prefixes carry an i
(GB = 1e9 bytes, GiB = 2**30 bytes). The same holds for tokens, everywhere: 8k is 8,000 and 8Ki is 8,192. A context
that is sold as "128k" often has 131,072 tokens, so that a length with a k stays within it. Lower-case b after a prefix
is refused, because it could mean bits.
A number is SI; a text needs its unit where the quantity has one ("50" is refused: 50 s or 50 ms?).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypedDict, Unpack

from rackline.errors import UnitError

Quantity = float | int | str

_NUMBER = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNT = {**_DECIMAL, **_BINARY, "B": 1e9}
_BYTES = {"": 1.0} | {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_RATE = {"": 1.0} | {f"{unit}/s": factor for unit, factor in _BYTES.items() if unit}
_FLOP_RATE = {"": 1.0} | {
    f"{prefix}{unit}": factor for prefix, factor in _DECIMAL.items() for unit in ("FLOP/s", "FLOPS", "FLOPs/s", "OP/s")
}
USUAL_PERCENTILE = 99.0
"""Share of the requests that must stay below a limit which does not say another one [%]."""
_PER_HOUR = ("", "$", "USD", "$/h", "$/hour", "USD/h", "USD/hour", "usd/h", "usd/hour")
_PER_TIME = (
    {"": 1.0}
    | {
        f"{prefix}/{word}": factor / seconds
        for prefix, factor in {**_COUNT, "": 1.0}.items()
        for word, seconds in {"s": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0, "d": 86400.0}.items()
    }
    | _COUNT
)
_USD: dict[str, float] = dict.fromkeys(_PER_HOUR, 1.0)
_USD_ALONE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}
_USD_PER_MONTH: dict[str, float] = {
    f"{prefix}{per}": factor * months
    for prefix, factor in _USD_ALONE.items()
    for per, months in (
        ("", 1.0),
        ("/month", 1.0),
        ("/mo", 1.0),
        ("/year", 1 / 12),
        ("/yr", 1 / 12),
        ("/day", 365 / 12),
        ("/h", 730.0),
        ("/hour", 730.0),
    )
}
_POWER: dict[str, float] = {"": 1.0, "W": 1.0, "w": 1.0, "kW": 1e3, "kw": 1e3}
_FRACTION = {"": 1.0, "%": 0.01}
# what a text without a unit might mean, the likelier reading last
_READINGS: dict[str, tuple[str, str]] = {
    "seconds": ("s", "ms"),
    "bytes": ("B", "GB"),
    "rate": ("B/s", "GB/s"),
    "flop_rate": ("FLOP/s", "TFLOP/s"),
}


class Bounds(TypedDict, total=False):
    """What a quantity must keep to, in its SI unit.

    Args:
        minimum: Smallest accepted value; without it, anything positive.
        maximum: Largest accepted value.
        zero_allowed: Whether zero is accepted; without it, it is not.
    """

    minimum: float
    maximum: float
    zero_allowed: bool


_UP_TO_ONE: Bounds = {"maximum": 1.0, "zero_allowed": True}


def _parse(
    value: Quantity,
    *,
    name: str,
    units: Mapping[str, float],
    example: str,
    show: str,
    **bounds: Unpack[Bounds],
) -> float:
    """Read a number with an optional unit and check it against its bounds."""

    def refuse(allowed: str, nearest: str | None = None) -> UnitError:
        return UnitError(what=name, given=value, allowed=allowed, nearest=nearest)

    if isinstance(value, bool) or not isinstance(value, (int, float, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refuse(example)
    if isinstance(value, str):
        match = _NUMBER.match(value)
        if match is None:
            raise refuse(example)
        factor = units.get(match.group(2))
        if factor is None:
            raise refuse(example, _nearest_unit(match.group(1), match.group(2), units))
        number = float(match.group(1).replace("_", "")) * factor
        if not match.group(2) and number != 0.0 and show in _READINGS:
            first, second = (f"{match.group(1)} {unit}" for unit in _READINGS[show])
            raise refuse(f"{example}, with its unit ({first} or {second}?)", second.replace(" ", ""))
    else:
        number = float(value) if abs(value) < 1e308 else math.inf
    if not math.isfinite(number):
        raise refuse(f"{example}, finite")
    write = _FORMATS[show]
    low, high = bounds.get("minimum", 0.0), bounds.get("maximum")
    span = f"at least {write(low)}" if high is None else f"{write(low)} to {write(high)}"
    if high is not None and number > high:
        raise refuse(f"{example}, {span}", write(high))
    if number == 0.0 and not bounds.get("zero_allowed", low < 0):
        raise refuse(f"{example}, more than zero", write(low) if low > 0 else None)
    if number < low:
        # Below zero the sign was most likely a slip; elsewhere the bound is the nearest value.
        positive = str(value).strip().lstrip("-")
        raise refuse(f"{example}, {span if low or high else 'not negative'}", write(low) if low else positive)
    return number


def _nearest_unit(number: str, unit: str, units: Mapping[str, float]) -> str | None:
    """Return the quantity with the unit that differs only in case, if exactly one does; minutes for "m"."""
    if unit == "m" and "min" in units:
        return f"{number}min"
    close = [known for known in units if known and known.lower() == unit.lower()]
    return f"{number}{close[0]}" if len(close) == 1 else None


def parse_seconds(value: Quantity, *, name: str = "time", **bounds: Unpack[Bounds]) -> float:
    """Read a time [s].

    Args:
        value: "30ms", "2s", "5min", "1h", or seconds as a number.
        name: What it is, for the message.
        bounds: `Bounds`: minimum and maximum in the SI unit, and zero_allowed.

    Returns:
        Seconds [s].

    Raises:
        UnitError: Not a time, not finite, negative, or out of bounds.

    Example:
        >>> parse_seconds("30ms"), parse_seconds("1h"), parse_seconds(2)
        (0.03, 3600.0, 2.0)
    """
    return _parse(value, name=name, units=_SECONDS, example="a time such as 30ms or 0.03s", show="seconds", **bounds)


def parse_bytes(value: Quantity, *, name: str = "size", **bounds: Unpack[Bounds]) -> float:
    """Read an amount of memory [bytes]; GB is 1e9 and GiB is 2**30. Arguments as in `parse_seconds`.

    Example:
        >>> parse_bytes("141GB"), parse_bytes("1KiB")
        (141000000000.0, 1024.0)
    """
    return _parse(value, name=name, units=_BYTES, example="bytes such as 141GB or 96GiB", show="bytes", **bounds)


def parse_count(value: Quantity, *, name: str = "count", **bounds: Unpack[Bounds]) -> float:
    """Read a count of tokens, requests or parameters; k = 1000 and Ki = 1024.

    ``B`` and ``T`` are 1e9 and 1e12, as in "70B parameters". Arguments as in `parse_seconds`.

    Example:
        >>> parse_count("4k"), parse_count("128Ki"), parse_count("70B")
        (4000.0, 131072.0, 70000000000.0)
    """
    return _parse(value, name=name, units=_COUNT, example="a count such as 4096, 4k or 128Ki", show="count", **bounds)


def parse_per_second(value: Quantity, *, name: str = "rate", **bounds: Unpack[Bounds]) -> float:
    """Read how often something happens, a second [1/s]; a number without a unit is a second's.

    Arguments as in `parse_seconds`.

    Example:
        >>> parse_per_second("50/s"), parse_per_second("3k/min"), parse_per_second("1.8M/h"), parse_per_second(7)
        (50.0, 50.0, 500.0, 7.0)
    """
    return _parse(
        value, name=name, units=_PER_TIME, example="a rate such as 50/s, 3k/min or 1M/h", show="count", **bounds
    )


def parse_whole(value: Quantity, *, name: str = "count", **bounds: Unpack[Bounds]) -> int:
    """Read a whole number; arguments as in `parse_seconds`.

    Raises:
        UnitError: as `parse_count`; a fraction.

    Example:
        >>> parse_whole("8k")
        8000
    """
    found = parse_count(value, name=name, **bounds)
    if not found.is_integer():
        nearest = str(max(int(bounds.get("minimum", 0)), round(found)))
        raise UnitError(what=name, given=value, allowed="a whole number", nearest=nearest)
    return int(found)


def parse_limit(value: Quantity, *, name: str, **bounds: Unpack[Bounds]) -> tuple[float, float | None]:
    """Read a limit of a latency: "2s" for 99 of 100 requests, "2s@p90" for another share, "2s@mean" for the mean.

    Returns:
        The limit [s] and the percentile; None for the mean.

    Raises:
        UnitError: another form.

    Example:
        >>> parse_limit("2s", name="ttft"), parse_limit("50ms@p90", name="tpot"), parse_limit("1min@mean", name="ttft")
        ((2.0, 99.0), (0.05, 90.0), (60.0, None))
    """
    if not isinstance(value, str) or "@" not in value:
        return parse_seconds(value, name=name, **bounds), USUAL_PERCENTILE
    time, _, place = (part.strip() for part in value.partition("@"))
    seconds = parse_seconds(time, name=name, **bounds)
    if place == "mean":
        return seconds, None
    if not place.startswith("p") or not place[1:]:
        allowed = "a time such as 2s, for 99 of 100 requests, or 2s@p90 or 2s@mean"
        raise UnitError(what=name, given=value, allowed=allowed, nearest=f"{time}@p99")
    return seconds, parse_count(place[1:], name=f"{name} percentile", maximum=99.99)


def format_limit(seconds: float, percentile: float | None) -> str:
    """Write a limit of a latency as `parse_limit` reads it.

    Example:
        >>> format_limit(2.0, 99.0), format_limit(0.05, 90.0), format_limit(0.05, None)
        ('2.0s', '0.05s@p90', '0.05s@mean')
    """
    if percentile == USUAL_PERCENTILE:
        return f"{seconds!r}s"
    return f"{seconds!r}s@{statistic_name(percentile)}"


def statistic_name(percentile: float | None) -> str:
    """Return the name of a percentile, or of the mean for None: "p99", "mean"."""
    return "mean" if percentile is None else f"p{percentile:g}"


def parse_rate(value: Quantity, *, name: str = "bandwidth", **bounds: Unpack[Bounds]) -> float:
    """Read a bandwidth [bytes/s]. Arguments as in `parse_seconds`.

    Example:
        >>> parse_rate("3.35TB/s")
        3350000000000.0
    """
    return _parse(
        value,
        name=name,
        units=_RATE,
        example="bytes per second such as 3.35TB/s or 450GB/s",
        show="rate",
        **bounds,
    )


def parse_flop_rate(value: Quantity, *, name: str = "peak rate", **bounds: Unpack[Bounds]) -> float:
    """Read a rate of arithmetic [FLOP/s]; a multiply-add is 2 FLOP. Arguments as in `parse_seconds`.

    Example:
        >>> parse_flop_rate("989TFLOP/s"), parse_flop_rate(989e12)
        (989000000000000.0, 989000000000000.0)
    """
    return _parse(
        value,
        name=name,
        units=_FLOP_RATE,
        example="FLOP per second such as 989TFLOP/s",
        show="flop_rate",
        **bounds,
    )


def parse_usd_per_hour(value: Quantity, *, name: str = "price", **bounds: Unpack[Bounds]) -> float:
    """Read a price per hour [USD/hour]. Arguments as in `parse_seconds`.

    Example:
        >>> parse_usd_per_hour("$2.50"), parse_usd_per_hour("2.5 USD/h")
        (2.5, 2.5)
    """
    return _parse_usd(value, name, _USD, "dollars per hour such as 2.50 or 2.50USD/h", **bounds)


def parse_usd(value: Quantity, *, name: str = "price", **bounds: Unpack[Bounds]) -> float:
    """Read an amount of dollars [USD]. Arguments as in `parse_seconds`.

    Example:
        >>> parse_usd("$30k"), parse_usd("0.08 USD")
        (30000.0, 0.08)
    """
    return _parse_usd(value, name, _USD_ALONE, "dollars such as 30k or 0.08", **bounds)


def parse_usd_per_month(value: Quantity, *, name: str = "budget", **bounds: Unpack[Bounds]) -> float:
    """Read a budget [USD/month]; a number without a unit is a month's. Arguments as in `parse_seconds`.

    A month has 730 hours.

    Example:
        >>> parse_usd_per_month("40k/month"), parse_usd_per_month("$480k/year"), parse_usd_per_month("2 USD/h")
        (40000.0, 40000.0, 1460.0)
    """
    return _parse_usd(value, name, _USD_PER_MONTH, "dollars a month such as 40k/month or 480k/year", **bounds)


def _parse_usd(value: Quantity, name: str, units: Mapping[str, float], example: str, **bounds: Unpack[Bounds]) -> float:
    """Read an amount of dollars; $ and USD may stand beside it."""
    text = value
    if isinstance(value, str):
        text = value.strip().removeprefix("$")
        if units is not _USD:
            text = re.sub(r"\s*(USD|usd|\$)\s*", "", text)
    try:
        return _parse(text, name=name, units=units, example=example, show="usd", **bounds)
    except UnitError as error:
        raise UnitError(what=name, given=value, allowed=error.allowed, nearest=error.nearest) from None


def parse_watts(value: Quantity, *, name: str = "power", **bounds: Unpack[Bounds]) -> float:
    """Read a power [W]. Arguments as in `parse_seconds`.

    Example:
        >>> parse_watts("500W"), parse_watts("1.2kW"), parse_watts(700.0)
        (500.0, 1200.0, 700.0)
    """
    return _parse(value, name=name, units=_POWER, example="watts such as 500W", show="count", **bounds)


def parse_fraction(value: Quantity, *, name: str = "fraction", **bounds: Unpack[Bounds]) -> float:
    """Read a fraction of one, as a number or in percent; 0 to 1 unless told otherwise.

    Arguments as in `parse_seconds`. Where more than one is allowed, a whole number above one needs its unit in a text:
    30 may be 30 % or 3000 %, 30.0 is 30.

    Example:
        >>> parse_fraction("90%"), parse_fraction(0.9)
        (0.9, 0.9)
    """
    most = bounds.get("maximum")
    plain = _NUMBER.match(value) if isinstance(value, str) and most is not None and most > 1.0 else None
    if plain is not None and not plain.group(2) and "." not in plain.group(1):
        number = float(plain.group(1).replace("_", ""))
        if number > 1.0:
            readings = f"{number:g} % or {100.0 * number:g} %?"
            raise UnitError(
                what=name,
                given=value,
                allowed=f"a fraction such as 0.9 or 90%, with its unit above 1 ({readings})",
                nearest=f"{number:g}%",
            )
    return _parse(
        value,
        name=name,
        units=_FRACTION,
        example="a fraction such as 0.9 or 90%",
        show="percent",
        **(_UP_TO_ONE | bounds),
    )


def parse_number_for_key(text: str, *, name: str) -> float:
    """Read the value of a catalogue key, whose last word tells the unit.

    Args:
        text: "20TB/s", "192GB", "5us", "20e12".
        name: The dotted key, such as ``hbm_bytes_per_s``.

    Returns:
        The value in SI units.

    Raises:
        UnitError: Not a number of that unit, or negative.

    Example:
        >>> parse_number_for_key("20TB/s", name="hbm_bytes_per_s")
        20000000000000.0
    """
    key = name.rsplit(".", 1)[-1]
    match = _NUMBER.match(text)
    value: Quantity = text
    if match is not None and not match.group(2):
        value = float(match.group(1).replace("_", ""))  # the key names the unit
    if "flop_per_s" in name:
        return parse_flop_rate(value, name=name, zero_allowed=True)
    if "bytes_per_s" in key:
        return parse_rate(value, name=name, zero_allowed=True)
    if "bytes" in key:
        return parse_bytes(value, name=name, zero_allowed=True)
    if key.startswith("usd_per"):
        return parse_usd_per_hour(text, name=name, zero_allowed=True)
    if key.endswith("_s") or key == "host_s_per_step":
        return parse_seconds(value, name=name, zero_allowed=True)
    return parse_count(text, name=name, zero_allowed=True)


# ---------------------------------------------------------------------------------------------- to text


def _significant(number: float, digits: int = 3) -> str:
    """Write a number of moderate size with `digits` significant digits, with commas and without an exponent."""
    if number == 0.0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    rounded = round(number, digits - 1 - magnitude)
    magnitude = math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"


Steps = tuple[tuple[float, str], ...]


def _si(unit: str, *more: tuple[float, str]) -> Steps:
    return (
        (1e18, f"E{unit}"),
        (1e15, f"P{unit}"),
        (1e12, f"T{unit}"),
        (1e9, f"G{unit}"),
        (1e6, f"M{unit}"),
        (1e3, f"k{unit}"),
        (1.0, unit),
        *more,
    )


SECOND_STEPS: Steps = (
    (86400.0, "d"),
    (3600.0, "h"),
    (60.0, "min"),
    (1.0, "s"),
    (1e-3, "ms"),
    (1e-6, "us"),
    (1e-9, "ns"),
)
BYTE_STEPS, RATE_STEPS = _si("B"), _si("B/s")
FLOP_STEPS, FLOP_RATE_STEPS = _si("FLOP"), _si("FLOP/s")
WATT_STEPS = _si("W")
JOULE_STEPS = _si("J", (1e-3, "mJ"), (1e-6, "uJ"), (1e-9, "nJ"), (1e-12, "pJ"))
COUNT_STEPS: Steps = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))
"""The units in which a quantity is written, the largest first, each with its size in SI."""


def format_steps(number: float, steps: Steps, separator: str = " ") -> str:
    """Write a number with the largest unit that keeps it at or above one after rounding.

    Args:
        number: in SI.
        steps: units to choose from, the largest first.
        separator: between number and unit.

    Example:
        >>> format_steps(1500.0, WATT_STEPS), format_steps(1020.0, ((1.0, "ms"),))
        ('1.50 kW', '1,020 ms')
    """
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if number == 0.0:
        base = next((unit for factor, unit in steps if factor == 1.0), steps[-1][1])
        return f"0{separator}{base}".strip()
    size = float(f"{abs(number):.2e}")
    factor, unit = next(((f, u) for f, u in steps if size >= f), steps[-1])
    return f"{_significant(number / factor)}{separator}{unit}".strip()


def format_seconds(seconds: float) -> str:
    """Write a time with three significant digits [s].

    Example:
        >>> format_seconds(0.0304), format_seconds(7200), format_seconds(4.2e-6)
        ('30.4 ms', '2.00 h', '4.20 us')
    """
    return format_steps(seconds, SECOND_STEPS)


def format_bytes(amount: float) -> str:
    """Write an amount of memory in decimal units [bytes].

    Example:
        >>> format_bytes(141e9), format_bytes(512)
        ('141 GB', '512 B')
    """
    return format_steps(amount, BYTE_STEPS)


def plural(number: float, noun: str, nouns: str = "") -> str:
    """The singular or the plural of a noun, by the number before it.

    Example:
        >>> plural(1, "chip"), plural(8, "chip"), plural(2, "copy", "copies")
        ('chip', 'chips', 'copies')
    """
    return noun if number == 1 else nouns or f"{noun}s"


def several(number: float, noun: str, nouns: str = "") -> str:
    """A number of things.

    Example:
        >>> several(1, "chip"), several(1024, "chip")
        ('1 chip', '1,024 chips')
    """
    return f"{number:,} {plural(number, noun, nouns)}"


def format_count(count: float) -> str:
    """Write a count; k = 1000, then M, B (1e9) and T (1e12).

    Example:
        >>> format_count(70.6e9), format_count(4096), format_count(8)
        ('70.6B', '4.10k', '8')
    """
    if abs(count) < 1000 and float(count).is_integer():
        return f"{count:.0f}"
    return format_steps(count, COUNT_STEPS, separator="")


def format_rate(bytes_per_s: float) -> str:
    """Write a bandwidth [bytes/s].

    Example:
        >>> format_rate(3.35e12)
        '3.35 TB/s'
    """
    return format_steps(bytes_per_s, RATE_STEPS)


def format_flop_rate(flop_per_s: float) -> str:
    """Write a rate of arithmetic [FLOP/s].

    Example:
        >>> format_flop_rate(989e12)
        '989 TFLOP/s'
    """
    return format_steps(flop_per_s, FLOP_RATE_STEPS)


def format_watts(watts: float) -> str:
    """Write a power [W].

    Example:
        >>> format_watts(700.0), format_watts(151e3)
        ('700 W', '151 kW')
    """
    return format_steps(watts, WATT_STEPS)


def format_usd(usd: float) -> str:
    """Write an amount of money [USD].

    Example:
        >>> format_usd(0.4567), format_usd(2.5), format_usd(1.25e6)
        ('$0.457', '$2.50', '$1.25M')
    """
    if not math.isfinite(usd):
        return format_steps(usd, ((1.0, ""),))
    sign = "-" if usd < 0 else ""
    size = abs(usd)
    if size >= 1e6:
        return f"{sign}${format_count(size)}"
    if size >= 100:
        return f"{sign}${size:,.0f}"
    return f"{sign}${_significant(size)}"


def format_percent(fraction: float) -> str:
    """Write a fraction in percent.

    Example:
        >>> format_percent(0.9), format_percent(0.0123)
        ('90.0 %', '1.23 %')
    """
    return f"{_significant(fraction * 100.0)} %" if math.isfinite(fraction) else str(fraction)


def spaced_quantity(text: str) -> str:
    """A quantity as it was typed, as answers write it: three digits, and a space before the unit.

    Example:
        >>> spaced_quantity("4.7622TB/s"), spaced_quantity("12TB/s"), spaced_quantity("fp8")
        ('4.76 TB/s', '12.0 TB/s', 'fp8')
    """
    found = _NUMBER.match(text)
    if found is None or not found.group(2):
        return text
    return f"{_significant(float(found.group(1).replace('_', '')))} {found.group(2)}"


_FORMATS = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "count": format_count,
    "rate": format_rate,
    "flop_rate": format_flop_rate,
    "usd": format_usd,
    "percent": format_percent,
}
