"""The clock at which a kernel runs under a power cap.

The rates of a calibration were measured at the chip's default limit, so that they include what the limit costs there. A
lower cap lowers the clock of kernels that would draw more: their rate of compute falls with it, that of the memory does
not. So a cap costs dense products time, and a kernel bound by the memory none until its compute takes as long.
"""

from __future__ import annotations

from rackline.hardware import Chip, ChipPower

CONVERTED = ("_block", "_bf16")
"""Ends of data types whose weights are scaled or converted on the way to the matrix units."""


def converts(dtype: str) -> bool:
    """Whether kernels of a data type scale or convert weights outside of the matrix units.

    >>> converts("fp8_block"), converts("mxfp4_bf16"), converts("fp8"), converts("bf16")
    (True, True, False, False)
    """
    return dtype.endswith(CONVERTED)


def running_w(power: ChipPower, dtype: str) -> float:
    """Power in addition to idle, while a kernel of a data type of a calibration runs [W]."""
    return power.busy_w + (power.converting_w if converts(dtype) else 0.0)


def clock_share(chip: Chip, dtype: str, compute_dtype: str, flop_per_s: float) -> float:
    """Share of the clock at which a kernel that computes keeps below the chip's power cap [1].

    Args:
        dtype: of the calibration.
        compute_dtype: of the matrix product.
        flop_per_s: its rate at the default limit [FLOP/s].

    >>> from rackline.hardware import chip
    >>> clock_share(chip("h100-sxm"), "bf16", "bf16", 600e12)
    1.0
    """
    power = chip.power
    if power is None or chip.power_cap_w is None:
        return 1.0
    drawn_w = power.idle_w + running_w(power, dtype) + power.flop_joules(compute_dtype) * flop_per_s
    return power.clock_under(chip.power_cap_w, drawn_w)
