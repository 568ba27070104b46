"""The pass table: a row for each operation, a column for each resource, entries linear in the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from rackline.errors import InputError
from rackline.hardware import Chip, Cluster
from rackline.passes.breakdown import PassTime, break_down
from rackline.passes.calibration import (
    UNIT_COLLECTIVE,
    Calibration,
    CollectiveCalibration,
    OperationCalibration,
    StepPolicy,
)
from rackline.passes.evaluate import TimeTable
from rackline.passes.features import ONE, Array, Batch, ExpertLaw, FloatLike, ReadLaw

if TYPE_CHECKING:
    from rackline.passes.compile import StepFunction

Resource = Literal["compute", "hbm", "scale_up", "scale_out"]
RESOURCES: tuple[Resource, ...] = ("compute", "hbm", "scale_up", "scale_out")
Amounts = Mapping[str, FloatLike]
CORES_WHEN_UNKNOWN = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation of the pass, all its layers together. Coefficients are scalars or one value per layout.

    A row works either on the chip (compute, hbm) or on the fabric (scale_up, scale_out).

    Args:
        name, group: what it is and to which part of the layer it belongs.
        op_class, dtype: the calibration that applies; dtype also selects the compute peak.
        compute: feature → FLOP per unit of the feature.
        hbm, scale_up, scale_out: feature → bytes per unit of the feature.
        compute_dtype: data type of the multiply, when it is not `dtype`.
        launches: feature → kernel or collective launches in the pass [count].
        extra: feature → bytes that helper kernels move: around a mixture of experts (`permute` of them count), or to
            quantise the input of a product (where the stack does not fuse it).
        depth: feature → elements that the kernel goes through in order, however many cores it has [count].
        tiles: feature → tiles of work that the cores share [count].
        group_size: ranks of a collective [count].
        scale_up_steps, scale_out_steps: message steps in sequence in the pass [count].
        stream: rows of one stream follow each other; streams overlap under the `overlap` policy.
        choice: rows with the same non-empty choice are kernels for one job; the fastest is used.
        formula: how the coefficients come about, for people.
    """

    name: str
    group: str
    op_class: str
    dtype: str
    compute: Amounts = field(default_factory=dict[str, FloatLike])
    hbm: Amounts = field(default_factory=dict[str, FloatLike])
    scale_up: Amounts = field(default_factory=dict[str, FloatLike])
    scale_out: Amounts = field(default_factory=dict[str, FloatLike])
    compute_dtype: str = ""
    launches: Amounts = field(default_factory=dict[str, FloatLike])
    extra: Amounts = field(default_factory=dict[str, FloatLike])
    depth: Amounts = field(default_factory=dict[str, FloatLike])
    tiles: Amounts = field(default_factory=dict[str, FloatLike])
    group_size: FloatLike = 1.0
    scale_up_steps: FloatLike = 0.0
    scale_out_steps: FloatLike = 0.0
    stream: str = "compute"
    choice: str = ""
    formula: str = ""

    def __post_init__(self) -> None:
        if (self.compute or self.hbm) and (self.scale_up or self.scale_out):
            raise InputError(
                what=f"row {self.name}",
                given="compute or hbm together with scale_up or scale_out",
                allowed="one pair of resources a row",
            )

    def amounts(self, resource: Resource) -> Amounts:
        """Coefficients of one resource."""
        return {
            "compute": self.compute,
            "hbm": self.hbm,
            "scale_up": self.scale_up,
            "scale_out": self.scale_out,
        }[resource]

    @property
    def is_fabric(self) -> bool:
        """Whether the row moves bytes between chips."""
        return bool(self.scale_up or self.scale_out)

    def features(self) -> set[str]:
        """Features that any entry uses."""
        parts = (*(self.amounts(resource) for resource in RESOURCES), self.launches, self.extra, self.depth, self.tiles)
        return {name for part in parts for name in part}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTable:
    """All rows of a pass on one chip of a deployment (or of many layouts at once).

    Args:
        rows: the operations.
        chip, cluster: whose peaks and links are used; cluster None for a single chip.
        calibration: the numbers of the line; its step policy is the default policy.
        kinds: attention kinds by label, for the features.
        experts: law of the busiest expert-parallel rank, None for dense models.
        num_layouts: None for scalar coefficients, else the length of every coefficient array.
        assumptions: what the table takes for granted, for people.
    """

    rows: tuple[Row, ...]
    chip: Chip
    cluster: Cluster | None
    calibration: Calibration
    kinds: Mapping[str, ReadLaw]
    experts: ExpertLaw | None = None
    num_layouts: int | None = None
    assumptions: tuple[str, ...] = ()

    def with_calibration(self, calibration: Calibration) -> PassTable:
        """The same rows under other numbers."""
        return replace(self, calibration=calibration)

    def rows_in_use(self) -> tuple[Row, ...]:
        """Rows whose kernel the calibration knows; alternatives that the stack does not have fall away."""
        return tuple(
            row for row in self.rows if not row.is_fabric or self.calibration.collective(row.op_class) is not None
        )

    def numbers(self, row: Row) -> OperationCalibration:
        """Calibration numbers of a row that works on the chip."""
        return self.calibration.lookup(row.op_class, row.dtype, row.compute_dtype)

    def fabric_numbers(self, row: Row) -> tuple[Array, Array, Array, CollectiveCalibration]:
        """(overhead, eta_link, ramp) at the row's group size, and where they come from."""
        found = self.calibration.collective(row.op_class) or UNIT_COLLECTIVE
        return (*found.at(row.group_size), found)

    def exposed(self, row: Row) -> float:
        """Share of the shorter resource that shows; the levels of the fabric work side by side."""
        return 0.0 if row.is_fabric else self.numbers(row).exposed

    def ramp(self, row: Row) -> FloatLike:
        """Slowness of mid-size messages, 0 for kernels."""
        return self.fabric_numbers(row)[2] if row.is_fabric else 0.0

    def origin(self, row: Row) -> tuple[str, str]:
        """(evidence, where the numbers of a row come from)."""
        found = self.fabric_numbers(row)[3] if row.is_fabric else self.numbers(row)
        return found.evidence, found.origin

    def rate(self, row: Row, resource: Resource) -> FloatLike:
        """Reached rate of a resource for a row [FLOP/s or bytes/s]."""
        if resource == "compute":
            return self.numbers(row).eta_compute * self.chip.flop_per_s(row.compute_dtype or row.dtype)
        if resource == "hbm":
            return self.numbers(row).eta_memory * self.chip.hbm_bytes_per_s
        if self.cluster is None:
            return np.inf
        level = self.cluster.scale_up if resource == "scale_up" else self.cluster.scale_out
        return np.inf if level is None else self.fabric_numbers(row)[1] * level.bytes_per_s_each_way

    def overhead_s(self, row: Row) -> dict[str, FloatLike]:
        """Launches, message steps and helper kernels of a row: feature → seconds per unit [s]."""
        if not row.is_fabric:
            numbers = self.numbers(row)
            launch_s, helpers, depth_s = (
                numbers.overhead_s,
                numbers.permute / self.chip.hbm_bytes_per_s,
                numbers.depth_s,
            )
            if row.op_class == "gemm" and numbers.quantise_s:
                # scales may double the time along the depth of a product; what is beyond that is its quantisation
                depth_s = min(depth_s, 2.0 * self.calibration.lookup("gemm", "bf16").depth_s)
                if row.dtype in self.calibration.separate_quantise:
                    launch_s += numbers.quantise_s
                    helpers = 1.0 / (numbers.eta_memory * self.chip.hbm_bytes_per_s)
            return merge(
                scaled(row.launches, launch_s),
                scaled(row.extra, helpers),
                scaled(row.depth, depth_s),
                scaled(row.tiles, numbers.tile_s / (self.chip.cores or CORES_WHEN_UNKNOWN)),
            )
        overhead, _, _, found = self.fabric_numbers(row)
        steps = row.scale_up_steps * found.alpha_s
        if self.cluster is not None and self.cluster.scale_out is not None and self.calibration.operations:
            # beyond the domain a step takes the extra latency of the outer level
            extra = self.cluster.scale_out.latency_s - self.cluster.scale_up.latency_s
            steps = steps + row.scale_out_steps * (found.alpha_s + max(extra, 0.0))
        return merge(scaled(row.launches, overhead), {ONE: steps})

    def time_table(self, policy: StepPolicy | None = None) -> TimeTable:
        """Resolve rates and efficiencies: the form that evaluates millions of points."""
        return TimeTable.build(self, policy or self.calibration.step_policy)

    def features(self, batch: Batch) -> dict[str, FloatLike]:
        """Features of a batch for this table."""
        return batch.features(self.kinds, self.experts)

    def seconds(self, batch: Batch, policy: StepPolicy | None = None) -> Array:
        """Time of the pass [s].

        Args:
            batch: fields of shape (), (points,) or (layouts, points).

        Returns:
            Shape of the batch, with a leading axis of layouts when the table has several.
        """
        return self.time_table(policy).seconds(self.features(batch))

    def time(self, batch: Batch, policy: StepPolicy | None = None) -> PassTime:
        """Break one pass down row by row. Raises InputError when the table or batch has more than one point."""
        return break_down(self, batch, policy or self.calibration.step_policy)

    def compile(self, policy: StepPolicy | None = None) -> StepFunction:
        """One scalar function of the features, for simulators. Raises InputError for several layouts."""
        from rackline.passes.compile import compile_table

        return compile_table(self, policy)

    def layout(self, index: int) -> PassTable:
        """The scalar table of one layout of several."""
        if self.num_layouts is None:
            return self

        def pick(value: FloatLike) -> FloatLike:
            array = np.asarray(value)
            return float(array[index]) if array.ndim else float(array)

        def pick_all(amounts: Amounts) -> Amounts:
            return {name: pick(value) for name, value in amounts.items()}

        rows = tuple(
            replace(
                row,
                compute=pick_all(row.compute),
                hbm=pick_all(row.hbm),
                scale_up=pick_all(row.scale_up),
                scale_out=pick_all(row.scale_out),
                launches=pick_all(row.launches),
                extra=pick_all(row.extra),
                depth=pick_all(row.depth),
                tiles=pick_all(row.tiles),
                group_size=pick(row.group_size),
                scale_up_steps=pick(row.scale_up_steps),
                scale_out_steps=pick(row.scale_out_steps),
            )
            for row in self.rows
        )
        select = getattr(self.experts, "layout", None)
        experts = select(index) if select is not None else self.experts
        return replace(self, rows=rows, experts=experts, num_layouts=None)


def merge(*amounts: Amounts) -> dict[str, FloatLike]:
    """Add coefficients of the same feature."""
    total: dict[str, FloatLike] = {}
    for part in amounts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def scaled(amounts: Amounts, factor: FloatLike) -> dict[str, FloatLike]:
    """Multiply all coefficients."""
    return {name: value * factor for name, value in amounts.items()}


def feature_names(rows: Sequence[Row]) -> tuple[str, ...]:
    """Features of all rows in a stable order."""
    return tuple(sorted({name for row in rows for name in row.features()} | {"1"}))
