"""The numbers of a row under a calibration: achieved rates, overheads and their origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rackline.hardware import Chip, Cluster
from rackline.passes.calibration import UNIT_COLLECTIVE, Calibration, CollectiveCalibration, OperationCalibration
from rackline.passes.clock import clock_share
from rackline.passes.features import FloatLike
from rackline.passes.row import Resource, Row, merge, scaled

CORES_WHEN_UNKNOWN = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNumbers:
    """A row under a calibration, on a chip with its links.

    Args:
        row: the operation.
        rates: resource that the row uses → rate that it reaches [FLOP/s or bytes/s].
        overhead_s: feature → launches, message steps and helper kernels per unit of the feature [s].
        exposed: share of the shorter resource time that is not overlapped; 0 on the fabric, whose levels work
            concurrently.
        ramp: slow-down of mid-size messages; 0 on the chip.
        known: whether the stack has this kernel; alternatives that it lacks are dropped.
        evidence, origin: kind of evidence for the numbers, and where they come from.
        median_error: median error on held-out shapes; NaN if unknown [1].
        clock_share: share of the clock at which it computes under the chip's power cap; its rate has it already [1].
    """

    row: Row
    rates: Mapping[Resource, FloatLike]
    overhead_s: Mapping[str, FloatLike]
    exposed: float
    ramp: FloatLike
    known: bool
    evidence: str
    origin: str
    median_error: float
    clock_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassNumbers:
    """All rows of a pass table under a calibration.

    Args:
        rows: rows in the order of the table, including alternatives that the stack lacks.
        calibration: the calibration.
        num_layouts: None for scalar coefficients, else the length of every coefficient array.
    """

    rows: tuple[RowNumbers, ...]
    calibration: Calibration
    num_layouts: int | None = None

    def in_use(self) -> tuple[RowNumbers, ...]:
        """Rows whose kernel the stack has."""
        return tuple(numbers for numbers in self.rows if numbers.known)


def row_numbers(row: Row, calibration: Calibration, chip: Chip, cluster: Cluster | None) -> RowNumbers:
    """Resolve peaks, links and a calibration for a row.

    Args:
        row: the operation.
        calibration: efficiencies and overheads.
        chip, cluster: peaks and links; cluster None for a single chip.

    Raises:
        InputError: the chip does not support the data type in matrix products.
    """
    if row.is_fabric:
        return _fabric_numbers(row, calibration, cluster)
    found = calibration.lookup(row.op_class, row.dtype, row.compute_dtype)
    rates: dict[Resource, FloatLike] = {}
    clock = 1.0
    if row.compute:
        of = row.compute_dtype or row.dtype
        flop_per_s = found.eta_compute * chip.flop_per_s(of)
        clock = clock_share(chip, row.dtype, of, flop_per_s)
        rates["compute"] = flop_per_s * clock
    if row.hbm:
        rates["hbm"] = found.eta_memory * chip.hbm_bytes_per_s
    return RowNumbers(
        row=row,
        rates=rates,
        overhead_s=_kernel_overhead_s(row, found, calibration, chip),
        exposed=found.exposed,
        ramp=0.0,
        known=True,
        evidence=found.evidence,
        origin=found.origin,
        median_error=found.median_error,
        clock_share=clock,
    )


def _kernel_overhead_s(
    row: Row, found: OperationCalibration, calibration: Calibration, chip: Chip
) -> dict[str, FloatLike]:
    launch_s, helpers, depth_s = found.overhead_s, found.permute / chip.hbm_bytes_per_s, found.depth_s
    if row.op_class == "gemm" and found.quantise_s:
        # scales may double the time along the depth of a product; what is beyond that is its quantisation
        depth_s = min(depth_s, 2.0 * calibration.lookup("gemm", "bf16").depth_s)
        if row.dtype in calibration.separate_quantise:
            launch_s += found.quantise_s
            helpers = 1.0 / (found.eta_memory * chip.hbm_bytes_per_s)
    return merge(
        scaled(row.launches, launch_s),
        scaled(row.extra, helpers),
        scaled(row.depth, depth_s),
        scaled(row.tiles, found.tile_s / (chip.cores or CORES_WHEN_UNKNOWN)),
    )


def _fabric_numbers(row: Row, calibration: Calibration, cluster: Cluster | None) -> RowNumbers:
    peer_access = cluster is None or cluster.scale_up.peer_access
    kernel = calibration.collective(row.op_class, peer_access=peer_access)
    found = kernel or UNIT_COLLECTIVE
    overhead_s, eta_link, ramp = found.at(row.group_size)
    rates: dict[Resource, FloatLike] = {}
    for resource in row.resources:
        if row.amounts(resource):
            level = None if cluster is None else cluster.scale_up if resource == "scale_up" else cluster.scale_out
            rates[resource] = np.inf if level is None else eta_link * level.bytes_per_s_each_way
    return RowNumbers(
        row=row,
        rates=rates,
        overhead_s=merge(
            scaled(row.launches, overhead_s), {row.step_feature: _steps_s(row, found, calibration, cluster)}
        ),
        exposed=0.0,
        ramp=ramp,
        known=kernel is not None,
        evidence=found.evidence,
        origin=found.origin,
        median_error=float("nan"),
    )


def _steps_s(row: Row, found: CollectiveCalibration, calibration: Calibration, cluster: Cluster | None) -> FloatLike:
    """Message steps; one beyond the domain takes the extra latency of the outer level as well. Unit has no latency."""
    steps = row.scale_up_steps * found.alpha_s
    if cluster is None or cluster.scale_out is None or calibration.is_unit:
        return steps
    extra = cluster.scale_out.latency_s - cluster.scale_up.latency_s
    return steps + row.scale_out_steps * (found.alpha_s + np.maximum(extra, 0.0))
