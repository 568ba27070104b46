"""The energy of a pass: the line of its rows, in joules instead of seconds.

A row draws power while its kernel uses the chip, and energy for what it computes and moves (`rackline.hardware.chip`).
Both are the line again with other numbers: joules take the place of seconds, energies that of the overhead,

    joules = sum of energies + power · (max t + exposed · (sum t - max t))

so that all that evaluates seconds (grids of layouts, breakdowns, compiled functions) evaluates joules as well. What the
chip draws when nothing runs is left to the caller, who knows how long the pass takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rackline.hardware import Chip, drawn_w
from rackline.passes.breakdown import Breakdown, PassTime
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
    clock = numbers.clock_share
    watts = running_w(power, row.dtype) * clock**2
    dtype = row.compute_dtype or row.dtype
    energies = merge(
        scaled(row.compute, power.flop_joules(dtype) * clock),
        scaled(row.padding, -power.flop_joules(dtype) * clock),
        scaled(row.hbm, power.joules_per_hbm_byte),
    )
    rates: dict[Resource, FloatLike] = {name: rate / watts if watts else np.inf for name, rate in numbers.rates.items()}
    return replace(numbers, rates=rates, overhead_s=energies)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnergy:
    """Energy of one pass on one chip.

    Args:
        joules: of the pass [J].
        chip_w: mean power meanwhile [W].
        rows: energy of each row of the table, in order, with what the chip draws idle meanwhile [J].
        capped: whether the chip runs at its limit or cap.
        origin: chips to which its power was fitted.
    """

    joules: float
    chip_w: float
    rows: tuple[float, ...]
    capped: bool
    origin: str


def pass_energy(time: PassTime, chip: Chip, seconds: float) -> PassEnergy | None:
    """Energy of a pass row by row; None if nothing is known of the power of its chip.

    Args:
        time: the pass.
        seconds: how long it takes with what is around its kernels [s].
    """
    power, numbers = chip.power, time.breakdown.numbers
    if power is None:
        return None
    found = Breakdown.of(joule_numbers(numbers, chip), "serial").time(time.features)
    kernels = [joules if used else 0.0 for joules, used in zip(found.rows_s, time.used, strict=True)]
    whole = sum(kernels) + _busy_w(chip) * time.host_s
    chip_w = float(drawn_w(chip, whole, seconds))
    share = (chip_w - power.idle_w) * seconds / whole if whole else 1.0  # below 1 where the limit lowers the clock
    idle = [power.idle_w * row_s if used else 0.0 for row_s, used in zip(time.rows_s, time.used, strict=True)]
    return PassEnergy(
        joules=chip_w * seconds,
        chip_w=chip_w,
        rows=tuple(one * share + waiting for one, waiting in zip(kernels, idle, strict=True)),
        capped=share < 1.0 - 1e-9,
        origin=power.origin,
    )
