"""The energy of a pass: the line of its rows, in joules instead of seconds.

A row draws power while its kernel uses the chip, and energy for what it computes and moves (`rackline.hardware.power`).
Both are the line again with other numbers: joules take the place of seconds, energies that of the overhead,

    joules = sum of energies + power · (max t + exposed · (sum t - max t))

so that whatever evaluates seconds (grids of layouts, breakdowns, compiled functions) evaluates joules as well. What the
chip draws when nothing runs is left to the caller, who knows how long the pass takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rackline.hardware import Chip
from rackline.passes.clock import running_w
from rackline.passes.features import FloatLike
from rackline.passes.numbers import PassNumbers, RowNumbers
from rackline.passes.row import Resource, merge, scaled


def joule_numbers(numbers: PassNumbers, chip: Chip) -> PassNumbers:
    """The rows of a pass with joules in place of seconds; see the module.

    Args:
        numbers: rows with their rates [FLOP/s or bytes/s].
        chip: with what it draws; without it, nothing but idle power is known, and all energies are 0.
    """
    return replace(
        numbers,
        rows=tuple(_joules(row, chip) for row in numbers.rows),
        calibration=replace(numbers.calibration, host_s_per_step=_busy_w(chip) * numbers.calibration.host_s_per_step),
    )


def _busy_w(chip: Chip) -> float:
    """Power of small kernels in addition to idle: those that a step runs beside its rows [W]."""
    return 0.0 if chip.power is None else running_w(chip.power, "")


def _joules(numbers: RowNumbers, chip: Chip) -> RowNumbers:
    row, power = numbers.row, chip.power
    if power is None:
        none: Mapping[Resource, FloatLike] = dict.fromkeys(numbers.rates, np.inf)
        return replace(numbers, rates=none, overhead_s={}, ramp=0.0)
    if row.is_fabric:
        moved = merge(*(scaled(row.amounts(one), power.joules_per_link_byte) for one in row.resources))
        return replace(numbers, rates=dict.fromkeys(numbers.rates, np.inf), overhead_s=moved, ramp=0.0)
    clock = numbers.clock
    watts = running_w(power, row.dtype) * clock**2
    dtype = row.compute_dtype or row.dtype
    energies = merge(
        scaled(row.compute, power.flop_joules(dtype) * clock),
        scaled(row.hbm, power.joules_per_hbm_byte),
    )
    rates: dict[Resource, FloatLike] = {name: rate / watts if watts else np.inf for name, rate in numbers.rates.items()}
    return replace(numbers, rates=rates, overhead_s=energies)
