"""How near its peak a chip without a table of its own comes, when the table is that of another chip of its generation.

Dense products draw the most power of all kernels. A chip whose peak is high for its power (an L40S, 1.03 TFLOP/s a
watt) is held below its peak by power; one of the same generation whose peak was cut (a GeForce card, whose fp32
accumulation runs at half rate: 0.37) is not, and comes as near its peak as any chip does.
"""

from __future__ import annotations

from collections.abc import Iterable

from rackline.catalog import chip_record, names
from rackline.errors import InputError
from rackline.hardware import Chip, chip_from_record


def with_headroom(eta_compute: float, ratio: float, ceiling: float) -> float:
    """Share of the peak that a chip reaches, from that of another chip of its generation.

    eta = min(eta_other · max(ratio, 1), max(ceiling, eta_other))

    Args:
        eta_compute: reached by the other chip [fraction].
        ratio: peak FLOP/s over power of the other chip, over the same of this one.
        ceiling: the most that any chip reaches in such kernels [fraction].

    Returns:
        [fraction]; never less than `eta_compute`.

    Assumes: what holds the other chip below its peak is power; a ratio below 1 changes nothing.

    >>> with_headroom(0.6, 2.8, 0.95), with_headroom(0.6, 0.7, 0.95), with_headroom(0.6, 1.2, 0.95)
    (0.95, 0.6, 0.72)
    """
    return min(eta_compute * max(ratio, 1.0), max(ceiling, eta_compute))


def headroom(chip: Chip, dtype: str, measured: Iterable[str]) -> float:
    """Peak over power of the measured chips of this generation, over that of this chip; 1 where either is unknown.

    Args:
        dtype: of the multiply.
        measured: names of chips with tables of their own.
    """
    mine = _per_watt(chip, dtype)
    known = set(names("chips"))
    others = [chip_from_record(chip_record(name)) for name in measured if name in known]
    found = [value for other in others if other.generation == chip.generation if (value := _per_watt(other, dtype))]
    return min(found) / mine if mine and found else 1.0


def _per_watt(chip: Chip, dtype: str) -> float:
    try:
        peak = chip.flop_per_s(dtype.partition("_")[0])
    except InputError:
        return 0.0
    return peak / chip.power_w if chip.power_w else 0.0
