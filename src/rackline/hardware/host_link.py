"""A chip's way to the memory of its host: PCIe, or the link of a superchip."""

from __future__ import annotations

from rackline.hardware.chip import Chip

PCIE_BYTES_PER_S = {"volta": 12.5e9, "turing": 12.5e9, "ampere": 25e9, "ada": 25e9}
"""PCIe of 16 lanes less its headers, 3.0 (15.8 GB/s) and 4.0 (31.5 GB/s), by generation of chips (assumed share)."""
HOST_BYTES_PER_S = 50e9
"""The same of all later chips: PCIe 5.0 of 16 lanes, 63 GB/s less its headers (assumed share)."""
GRACE_BYTES_PER_S = 400e9
"""NVLink-C2C of a Grace superchip: 450 GB/s each way by its data sheet (assumed share)."""


def has_grace(chip: Chip) -> bool:
    """Whether the chip's host is a Grace CPU, joined by NVLink-C2C: the "Grace Blackwell" superchips."""
    return chip.name.startswith(("gb200", "gb300", "gh200"))


def host_bytes_per_s(chip: Chip) -> float:
    """Speed at which a chip exchanges data with the memory of its host, each way [bytes/s]."""
    if has_grace(chip):
        return GRACE_BYTES_PER_S
    return PCIE_BYTES_PER_S.get(chip.generation.split("-")[0], HOST_BYTES_PER_S)
