"""Calibration of a chip without measurements from those of other chips of its generation.

Two properties differ between chips of one generation, so that a share of the peak does not carry over:

- Power. Dense products draw the most power of all kernels. A chip with a high peak for its power (L4, H100 PCIe) stays
further below its peak; one with a reduced peak (GeForce with accumulation in fp32, H20) comes closer to it.
- Check bits. Memory with inline ECC (GDDR6 of L40S, L4, T4) stores and moves one byte of them per fifteen bytes of
data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rackline.catalog import CalibrationRecord, OperationRecord, names
from rackline.errors import InputError
from rackline.hardware import Chip
from rackline.hardware import chip as find_chip
from rackline.passes.calibration import OperationCalibration

INLINE_ECC_DATA_SHARE = 15.0 / 16.0  # of capacity and traffic; NVIDIA Tesla V100 white paper (2017): 6.25 % are bits
POWERED = ("gemm", "attention_prefill")  # classes whose time is dense products


def share_by_power(eta_compute: float, ratio: float, ceiling: float) -> float:
    """Share of the peak that a chip reaches in dense products, from that of another chip of its generation.

    eta = min(eta_other · sqrt(ratio), max(ceiling, eta_other))

    Args:
        eta_compute: reached by the other chip [fraction].
        ratio: peak FLOP/s over power of the other chip, over the same for this chip [ratio].
        ceiling: highest share that any chip reaches in such kernels [fraction].

    Returns:
        [fraction].

    Assumes: power limits both chips below their peaks; dynamic power is proportional to the square of the clock.

    >>> share_by_power(0.6, 2.8, 0.95), share_by_power(0.6, 1.44, 0.95), share_by_power(0.6, 0.25, 0.95)
    (0.95, 0.72, 0.3)
    """
    return min(eta_compute * ratio**0.5, max(ceiling, eta_compute))


def adapted(
    operations: Mapping[tuple[str, str], OperationCalibration],
    chip: Chip,
    tables: Iterable[OperationRecord],
    shared: CalibrationRecord,
) -> dict[tuple[str, str], OperationCalibration]:
    """Calibration that a chip inherits from its generation, corrected for its power and its memory.

    Args:
        operations: (class, data type) → numbers as they were found; those that `shared` has for the generation say so
            in their origin.
        chip: the chip that inherits them.
        tables: measured entries of all chips.
        shared: the calibration of generations and of all chips.

    Returns:
        The same keys; numbers of a chip with its own measurements, and those of other calibrations, are unchanged.
    """
    changed = dict(operations)
    origin = f"{shared.name}, {chip.generation}"
    borrowed = [key for key, numbers in operations.items() if numbers.origin.endswith(origin)]
    measured: dict[tuple[str, str], set[str]] = {}
    for entry in tables:
        if entry.chip == chip.name:
            return changed
        measured.setdefault((entry.operation_class, entry.dtype), set()).add(entry.chip)
    ceilings: dict[tuple[str, str], float] = {}
    for entry in shared.operation:
        key = (entry.operation_class, entry.dtype)
        ceilings[key] = max(ceilings.get(key, 0.0), entry.eta_compute)
    for key in borrowed:
        numbers = operations[key]
        siblings = _siblings(chip, measured.get(key, ()))
        compute, memory, why = numbers.eta_compute, numbers.eta_memory, numbers.origin
        if key[0] in POWERED:
            compute = share_by_power(compute, power_ratio(chip, key[1], siblings), ceilings[key])
            why += ", by power" if compute != numbers.eta_compute else ""
        factor = ecc_ratio(chip, siblings)
        if factor != 1.0:
            memory = min(memory * factor, 1.0)
            why += ", with inline ECC" if chip.inline_ecc else ", without inline ECC"
        changed[key] = replace(numbers, eta_compute=compute, eta_memory=memory, origin=why)
    return changed


def _siblings(chip: Chip, measured: Iterable[str]) -> list[Chip]:
    known = set(names("chips"))
    found = [find_chip(name) for name in sorted(measured) if name in known]
    return [other for other in found if other.generation == chip.generation]


def power_ratio(chip: Chip, dtype: str, siblings: Iterable[Chip]) -> float:
    """Peak over power of the measured chips of this generation, over that of this chip; 1 if either is unknown.

    Args:
        dtype: data type of the matrix products.
        siblings: measured chips of the generation.
    """
    mine = _per_watt(chip, dtype)
    found = [value for other in siblings if (value := _per_watt(other, dtype))]
    return min(found) / mine if mine and found else 1.0


def ecc_ratio(chip: Chip, siblings: Iterable[Chip]) -> float:
    """Data per byte of memory traffic of this chip, over that of its siblings; 1 if the siblings differ."""
    states = {other.inline_ecc for other in siblings}
    if len(states) != 1 or chip.inline_ecc in states:
        return 1.0
    return INLINE_ECC_DATA_SHARE if chip.inline_ecc else 1.0 / INLINE_ECC_DATA_SHARE


def _per_watt(chip: Chip, dtype: str) -> float:
    try:
        peak = chip.flop_per_s(dtype.partition("_")[0])
    except InputError:
        return 0.0
    return peak / chip.power_w if chip.power_w else 0.0
