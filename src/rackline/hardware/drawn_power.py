"""What a chip draws for what it does, and what a machine draws with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.hardware.chip import Chip
    from rackline.hardware.fabric import Cluster

HOST_W_PER_CHIP = 200.0
"""Of a machine whose record does not say: host, fans and switches of eight-chip machines, per chip [W]."""
SUPPLY_EFFICIENCY = 0.94
"""Of a machine whose record does not say: power supplies of the 80 PLUS Titanium class at half to full load."""
LEAST_CAP = 0.2
"""Lowest power cap, as the share of the range between idle and the limit."""


def checked_cap(chip: Chip, cap_w: float) -> float:
    """A power cap that the chip can keep [W].

    Raises:
        InputError: nothing is known of the chip's power, or it is beyond what the chip can be set to.
    """
    power = chip.power
    if power is None:
        raise InputError(
            what="power cap", given=f"{cap_w:g} W", allowed=f"a chip whose power is known; {chip.name}'s is not"
        )
    least = power.idle_w + LEAST_CAP * (power.limit_w - power.idle_w)
    if not least <= cap_w <= power.limit_w:
        raise InputError(
            what="power cap",
            given=f"{cap_w:g} W",
            allowed=f"{least:.0f} to {power.limit_w:g} W on {chip.name}",
            nearest=f"{min(max(cap_w, least), power.limit_w):.0f}W",
        )
    return cap_w


def drawn_w(chip: Chip, kernel_joules: Any, seconds: Any) -> NDArray[np.float64]:
    """Mean power of a chip over some time [W].

    Equation:
        min(idle_w + kernel_joules / seconds, cap or limit)

    Args:
        chip: with what it draws.
        kernel_joules: energy of its kernels in that time beyond idle [J].
        seconds: the time [s].

    Returns:
        In the shape of both; not a number where nothing is known of the chip.
    """
    power = chip.power
    if power is None:
        return np.full(np.shape(seconds), np.nan)
    limit = power.limit_w if chip.power_cap_w is None else chip.power_cap_w
    return np.minimum(power.idle_w + np.asarray(kernel_joules) / seconds, limit)


def wall_w(cluster: Cluster, chip_w: float) -> float:
    """Power of a machine at the wall, per chip, from what its chips draw [W].

    Equation:
        (chip_w + host_w_per_chip) / supply_efficiency

    Args:
        cluster: its record's host and supplies, else those of eight-chip machines.
        chip_w: mean power of a chip [W].
    """
    host = HOST_W_PER_CHIP if cluster.host_w_per_chip is None else cluster.host_w_per_chip
    supply = SUPPLY_EFFICIENCY if cluster.supply_efficiency is None else cluster.supply_efficiency
    return (chip_w + host) / supply
