"""One operation of a pass: its demand, linear in the features, its rates and overheads, and the line that times it.

    seconds = overhead + max t + exposed (sum t - max t) + ramp sqrt(overhead max t)        t = amount / (eta peak)

Everything that times an operation calls this line: the breakdown of a pass, training steps, exchanges between pools,
fits and scores of kernels. For speed, the line is implemented again for millions of points (`table`), as a scalar
function (`javascript`) and in the compiled loop of the simulator; a property test checks that they agree.

The rates of a calibration were measured at the chip's default power limit, so that they include what the limit costs
there. A lower cap lowers the clock of kernels that would draw more: their rate of compute falls with it, that of the
memory does not. So a cap costs dense products time, and a kernel bound by the memory none until its compute takes as
long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

import numpy as np

from rackline.errors import require
from rackline.hardware import Chip, ChipPower, Cluster
from rackline.passes.calibration import UNIT_COLLECTIVE, Calibration, CollectiveCalibration, OperationCalibration
from rackline.passes.features import ONE, Array, FloatLike, as_array

Resource = Literal["compute", "hbm", "scale_up", "scale_out"]
RESOURCES: tuple[Resource, ...] = ("compute", "hbm", "scale_up", "scale_out")
CHIP_RESOURCES: tuple[Resource, Resource] = ("compute", "hbm")
FABRIC_RESOURCES: tuple[Resource, Resource] = ("scale_up", "scale_out")
Amounts = Mapping[str, FloatLike]
_READ_PEERS = ("all_reduce_one_shot", "all_reduce_two_shot")
_BESIDE = ("padding", "launches", "extra", "depth", "tiles")  # amounts of a row that are no resource's


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation of the pass, all its layers together. Coefficients are scalars or one value per layout.

    A row works either on the chip (compute, hbm) or on the fabric (scale_up, scale_out).

    Args:
        name, group: name of the operation, and the part of the layer that it belongs to.
        op_class, dtype: the calibration that applies; dtype also selects the compute peak.
        compute: feature → FLOP per unit of the feature.
        hbm, scale_up, scale_out: feature → bytes per unit of the feature.
        padding: part of `compute` on rows that nobody asked for: it takes time, and hardly energy, since the inputs of
            such rows stay as they are.
        compute_dtype: data type of the matrix product, if it is not `dtype`.
        launches: feature → kernel or collective launches in the pass [count].
        extra: feature → bytes that helper kernels move: around a mixture of experts (`permute` of them count), or to
            quantise the input of a product (where the stack does not fuse it).
        depth: feature → elements that the kernel processes sequentially, on any number of cores [count].
        tiles: feature → tiles of work that the cores share [count].
        group_size: ranks of a collective [count].
        scale_up_steps, scale_out_steps: message steps in sequence, per unit of `step_feature` [count].
        step_feature: feature that message steps are proportional to; once per pass by default.
        stream: rows of one stream follow each other; streams overlap under the `overlap` policy.
        choice: rows with the same non-empty choice are kernels for one job; the fastest is used.
        formula: how the coefficients are computed.
    """

    name: str
    group: str
    op_class: str
    dtype: str
    compute: Amounts = field(default_factory=dict[str, FloatLike])
    hbm: Amounts = field(default_factory=dict[str, FloatLike])
    scale_up: Amounts = field(default_factory=dict[str, FloatLike])
    scale_out: Amounts = field(default_factory=dict[str, FloatLike])
    padding: Amounts = field(default_factory=dict[str, FloatLike])
    compute_dtype: str = ""
    launches: Amounts = field(default_factory=dict[str, FloatLike])
    extra: Amounts = field(default_factory=dict[str, FloatLike])
    depth: Amounts = field(default_factory=dict[str, FloatLike])
    tiles: Amounts = field(default_factory=dict[str, FloatLike])
    group_size: FloatLike = 1.0
    scale_up_steps: FloatLike = 0.0
    scale_out_steps: FloatLike = 0.0
    step_feature: str = ONE
    stream: str = "compute"
    choice: str = ""
    formula: str = ""

    def __post_init__(self) -> None:
        require(
            not ((self.compute or self.hbm) and (self.scale_up or self.scale_out)),
            what=f"row {self.name}",
            given="compute or hbm together with scale_up or scale_out",
            allowed="one pair of resources per row",
        )

    def amounts(self, resource: Resource) -> Amounts:
        """Coefficients of one resource."""
        return getattr(self, resource)

    @property
    def is_fabric(self) -> bool:
        """Whether the row moves bytes between chips."""
        return bool(self.scale_up or self.scale_out)

    @property
    def resources(self) -> tuple[Resource, Resource]:
        """The two resources that the row may use."""
        return FABRIC_RESOURCES if self.is_fabric else CHIP_RESOURCES

    def features(self) -> set[str]:
        """Features that any entry uses."""
        parts = (*(self.amounts(resource) for resource in RESOURCES), self.launches, self.extra, self.depth, self.tiles)
        return {name for part in parts for name in part} | ({self.step_feature} if self.is_fabric else set())

    def where(self, holds: Array) -> Row:
        """These rows without any work in the layouts where a condition does not hold."""
        shares = holds.astype(float)
        return replace(self, **{name: scaled(getattr(self, name), shares) for name in (*CHIP_RESOURCES, *_BESIDE)})

    def take(self, layouts: int | Array) -> Row:
        """The scalar row of one layout of several, or the row of some of them."""

        def pick(value: FloatLike) -> FloatLike:
            array = np.asarray(value)
            chosen = array[layouts] if array.ndim else array
            return chosen if chosen.ndim else float(chosen)

        amounts = {
            name: {feature: pick(value) for feature, value in getattr(self, name).items()}
            for name in (*RESOURCES, *_BESIDE)
        }
        numbers = {name: pick(getattr(self, name)) for name in ("group_size", "scale_up_steps", "scale_out_steps")}
        return replace(self, **amounts, **numbers)


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


def feature_names(rows: Iterable[Row]) -> tuple[str, ...]:
    """Features of all rows in a stable order."""
    return tuple(sorted({name for row in rows for name in row.features()} | {ONE}))


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
    kernel = calibration.collective(row.op_class, peer_access=cluster is None or cluster.scale_up.peer_access)
    found = kernel or UNIT_COLLECTIVE
    overhead_s, eta_link, ramp = found.at(row.group_size)
    apart = _out_of_reach(row, calibration, cluster)
    if np.all(apart):
        kernel = None
    elif np.any(apart):
        overhead_s = np.where(apart, _NEVER_S, overhead_s)
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


_NEVER_S = 1e3
"""Overhead of an alternative in the layouts of a grid in which it does not run, so that another one counts."""


def _out_of_reach(row: Row, calibration: Calibration, cluster: Cluster | None) -> Array:
    """Whether the ranks of an all-reduce in which each reads the memory of all others do not reach each other.

    They do within a scale-up domain. Some stacks share that memory between the processes of one host only.

    Source: vLLM, distributed/device_communicators/custom_all_reduce.py (`in_the_same_node_as`): "Custom allreduce is
        disabled because this process group spans across nodes".
    """
    if cluster is None or calibration.is_unit or row.op_class not in _READ_PEERS:
        return np.zeros(np.shape(row.group_size), bool)
    reach = cluster.scale_up.size
    if calibration.reduces_in_host:
        reach = min(reach, cluster.host_chips)
    return as_array(row.group_size) > reach


def _steps_s(row: Row, found: CollectiveCalibration, calibration: Calibration, cluster: Cluster | None) -> FloatLike:
    """Message steps; one beyond the domain takes the extra latency of the outer level as well. Unit has no latency."""
    steps = row.scale_up_steps * found.alpha_s
    if cluster is None or cluster.scale_out is None or calibration.is_unit:
        return steps
    extra = cluster.scale_out.latency_s - cluster.scale_up.latency_s
    return steps + row.scale_out_steps * (found.alpha_s + np.maximum(extra, 0.0))


def line_seconds(
    overhead_s: FloatLike, resource_s: Sequence[FloatLike], *, exposed: FloatLike = 0.0, ramp: FloatLike = 0.0
) -> FloatLike:
    """Time of one operation [s].

    Equation:
        overhead + max t + exposed (sum t - max t) + ramp sqrt(overhead max t)

    Args:
        overhead_s: fixed overhead, independent of the amounts [s].
        resource_s: t, time of each resource at the rate it reaches [s]; floats or arrays that broadcast.
        exposed: share of the shorter times that is not overlapped with the longest, 0 to 1.
        ramp: slow-down of messages whose latency and transfer time are similar.

    Returns:
        Seconds, in the broadcast shape.

    Assumes: none is negative.

    >>> float(line_seconds(1.0, (3.0, 2.0), exposed=0.5)), float(line_seconds(1.0, (4.0,), ramp=0.25))
    (5.0, 5.5)
    """
    longest: FloatLike = 0.0
    rest: FloatLike = 0.0
    for index, seconds in enumerate(resource_s):
        if index:  # the sum of all but the longest, without the cancellation of sum - max
            rest = rest + np.minimum(longest, seconds)
        longest = np.maximum(longest, seconds) if index else seconds
    total = overhead_s + longest + exposed * rest
    return total + ramp * np.sqrt(overhead_s * longest) if np.any(ramp) else total


def row_seconds(numbers: RowNumbers, features: Mapping[str, FloatLike]) -> FloatLike:
    """Time of a row [s].

    Args:
        numbers: the row with its numbers; coefficients are scalars or one value per layout.
        features: name → value, floats or arrays that broadcast with the coefficients; missing ones are 0.
    """
    row = numbers.row
    resource_s = [total(row.amounts(resource), features) / rate for resource, rate in numbers.rates.items()]
    return line_seconds(total(numbers.overhead_s, features), resource_s, exposed=numbers.exposed, ramp=numbers.ramp)


def collective_seconds(numbers: CollectiveCalibration, group_size: FloatLike, wire_s: Sequence[FloatLike]) -> FloatLike:
    """Time of one call of a collective whose bytes are known [s].

    Args:
        numbers: calibration of the collective.
        group_size: ranks [count].
        wire_s: bytes that a rank sends over the rate of its links, for each level [s].
    """
    overhead_s, eta_link, ramp = numbers.at(group_size)
    return line_seconds(overhead_s, [seconds / eta_link for seconds in wire_s], ramp=ramp)


def fastest(seconds: Iterable[FloatLike]) -> Array:
    """Time of a job with alternative kernels: that of the fastest at each point [s]."""
    return reduce(np.minimum, (np.asarray(each, dtype=np.float64) for each in seconds))


def total(amounts: Mapping[str, FloatLike], features: Mapping[str, FloatLike]) -> FloatLike:
    """Sum of coefficients times features; features that are missing are 0."""
    return sum((value * features[name] for name, value in amounts.items() if name in features), 0.0)


def coefficients(amounts: Mapping[str, FloatLike], names: tuple[str, ...], layouts: int) -> Array:
    """Per unit of each feature: (layouts, features)."""
    found = np.zeros((layouts, len(names)))
    for name, value in amounts.items():
        found[:, names.index(name)] += as_array(value)
    return found


def lane(numbers: RowNumbers, resource: Resource, names: tuple[str, ...], layouts: int) -> Array:
    """Seconds of one resource per unit of each feature: (layouts, features)."""
    rate = numbers.rates.get(resource)
    if rate is None:
        return np.zeros((layouts, len(names)))
    return coefficients({name: value / rate for name, value in numbers.row.amounts(resource).items()}, names, layouts)


def shortest_on_the_wire(rows: Sequence[RowNumbers], names: tuple[str, ...], layouts: int) -> Array:
    """Which rows count on the blackboard, 1 or 0: (rows, layouts).

    Of alternative kernels each layout takes the one with the shortest link time, at any batch size: the
    alternatives of one job depend on the same features.
    """
    jobs: dict[str, list[int]] = {}
    for index, numbers in enumerate(rows):
        jobs.setdefault(numbers.row.choice or f"#{index}", []).append(index)
    chosen = np.ones((len(rows), layouts))
    for members in jobs.values():
        if len(members) == 1:
            continue
        lanes = [[lane(rows[i], resource, names, layouts) for resource in rows[i].row.resources] for i in members]
        best = np.argmin(np.stack([np.maximum(*pair).sum(axis=1) for pair in lanes]), axis=0)
        for number, index in enumerate(members):
            chosen[index] = best == number
    return chosen
