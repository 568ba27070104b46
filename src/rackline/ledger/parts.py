"""Shared by several claims: the machines that they refer to, and a few derived values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rackline.arch import AnyModel
from rackline.hardware import Chip
from rackline.ledger.world import World
from rackline.serving import blackboard as bb

RACK = "gb200-nvl72"  # the lecture's "Blackwell rack"
HOPPER = "dgx-h100"
FRONTIER = "lecture-frontier"
HBM_CHIPS = (
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
    "gb300",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7",
)
ELEMENT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}


def ridge(chip: Chip, dtype: str) -> float:
    """Multiplies per weight read of a chip at a data type."""
    return bb.dimensionless_ridge(chip.flop_per_s(dtype), chip.hbm_bytes_per_s, ELEMENT_BYTES[dtype])


def ridges(world: World, names: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Label and ridge of each CHIP:DTYPE."""
    for name in names:
        chip, _, dtype = name.partition(":")
        yield f"{chip} {dtype.upper()}", ridge(world.chip(chip), dtype)


def attention_slope(model: AnyModel) -> float:
    """FLOP that one token spends on each token of its context."""
    far = 1e5
    return (float(model.flop_per_token(far)) - float(model.flop_per_token(0.0))) / far
