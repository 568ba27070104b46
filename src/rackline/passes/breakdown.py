"""The result of one pass, row by row: amounts, times, bottleneck, energy.

A row draws power while its kernel uses the chip, and energy for what it computes and moves (`rackline.hardware.chip`).
Both are the line again with other numbers: joules take the place of seconds, energies that of the overhead,

    joules = sum of energies + power · (max t + exposed · (sum t - max t))

so that all that evaluates seconds (grids of layouts, breakdowns, compiled functions) evaluates joules as well. What the
chip draws when nothing runs is left to the caller, who knows how long the pass takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, assert_never

import numpy as np

from rackline.errors import require
from rackline.hardware import Chip, drawn_w
from rackline.passes.calibration import StepPolicy
from rackline.passes.features import Array, FloatLike
from rackline.passes.row import (
    RESOURCES,
    PassNumbers,
    Resource,
    RowNumbers,
    feature_names,
    line_seconds,
    merge,
    running_w,
    scaled,
    shortest_on_the_wire,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """One row of a pass at one point.

    Args:
        amounts: resource → FLOP or bytes.
        resource_s: resource → time at the reached rate [s].
        overhead_s: launches and message steps [s].
        seconds: the one line [s].
        binds: the longest resource, or "overhead".
        evidence, origin: those of the calibration numbers that timed it.
        used: False for an alternative that is slower than another kernel or that the stack lacks; its time does not
            count.
    """

    json_keys: ClassVar = (
        "name",
        "group",
        "class=op_class",
        "dtype",
        "amounts",
        "resource_s",
        "overhead_s",
        "seconds",
        "binds",
        "evidence",
        "origin",
    )

    name: str
    group: str
    op_class: str
    dtype: str
    stream: str
    amounts: dict[str, float]
    resource_s: dict[str, float]
    overhead_s: float
    seconds: float
    binds: str
    used: bool
    formula: str
    evidence: str
    origin: str

    @property
    def rest_s(self) -> float:
        """What its time has beyond the overhead and the longest resource: the exposed part of the shorter ones, and
        the ramp of mid-size messages [s]."""
        rest_s = self.seconds - self.overhead_s - max(self.resource_s.values(), default=0.0)
        return rest_s if rest_s > 1e-12 * self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """A pass broken down.

    Args:
        seconds: total [s].
        by_resource: time of each resource over all rows as if alone, and the overhead [s].
        binds: the bottleneck of the pass.
        policy: how the rows were combined.
        calibration, evidence: name and kind of evidence of the calibration.
        host_s: host time that each step adds [s].
        assumptions: assumptions of the table.
        features: values of the features.
        breakdown: the part that does not depend on the batch.
        amounts, resource_s: of the two resources of each row, in order [FLOP or bytes], [s].
        overheads_s, rows_s: overhead and time of each row, in order [s].
        used: whether each row counts.
    """

    json_keys: ClassVar = (
        "seconds",
        "binds",
        "policy",
        "calibration",
        "evidence",
        "host_s",
        "by_resource_s=by_resource",
        "by_group_s=by_group()",
        "features",
        "rows=used_rows",
        "assumptions",
    )

    seconds: float
    by_resource: dict[str, float]
    binds: str
    policy: StepPolicy
    calibration: str
    evidence: str
    host_s: float
    assumptions: tuple[str, ...]
    features: dict[str, float]
    breakdown: Breakdown = field(repr=False, compare=False)
    amounts: tuple[list[float], list[float]] = field(repr=False)
    resource_s: tuple[list[float], list[float]] = field(repr=False)
    overheads_s: list[float] = field(repr=False)
    rows_s: list[float] = field(repr=False)
    used: list[bool] = field(repr=False)

    @property
    def rows(self) -> tuple[RowTime, ...]:
        """Every row of the table."""
        return tuple(self._row(index, numbers) for index, numbers in enumerate(self.breakdown.numbers.rows))

    def _row(self, index: int, numbers: RowNumbers) -> RowTime:
        row = numbers.row
        amounts: dict[str, float] = {}
        resource_s: dict[str, float] = {}
        for place, resource in enumerate(row.resources):
            if resource in numbers.rates:
                amounts[resource] = self.amounts[place][index]
                if numbers.known:
                    resource_s[resource] = self.resource_s[place][index]
        overhead_s = self.overheads_s[index]
        longest = max(resource_s.values(), default=0.0)
        binds = "" if not numbers.known else "overhead"
        if resource_s and overhead_s <= longest:
            binds = max(resource_s, key=lambda resource: resource_s[resource])
        return RowTime(
            name=row.name,
            group=row.group,
            op_class=row.op_class,
            dtype=row.dtype,
            stream=row.stream,
            amounts=amounts,
            resource_s=resource_s,
            overhead_s=overhead_s,
            seconds=self.rows_s[index],
            binds=binds,
            used=self.used[index],
            formula=row.formula,
            evidence=numbers.evidence if numbers.known else "",
            origin=numbers.origin if numbers.known else "the stack has no such kernel",
        )

    def by_group(self) -> dict[str, float]:
        """Seconds of the rows in use by group [s]."""
        groups: dict[str, float] = {}
        for numbers, seconds, used in zip(self.breakdown.numbers.rows, self.rows_s, self.used, strict=True):
            if used:
                groups[numbers.row.group] = groups.get(numbers.row.group, 0.0) + seconds
        return groups

    @property
    def used_rows(self) -> tuple[RowTime, ...]:
        """Rows that count in this pass."""
        return tuple(row for row in self.rows if row.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A pass table of one layout with all rates, ready to break down one point after another.

    Args:
        numbers: the rows.
        policy: how they combine.
        assumptions: assumptions of the table.
        feature_names: columns of `coefficients`.
        coefficients: per unit of each feature, (3, rows, features): amounts of both resources, overhead.
        rates: achieved rates of the two resources of each row, (2, rows) [FLOP/s or bytes/s].
        exposed, ramp: those of each row, (rows,).
        jobs: positions of alternative kernels for one job, the fastest of which is used at each point.
        weights: contributions of the rows to the sums, (rows, chip and fabric and streams).
    """

    numbers: PassNumbers
    policy: StepPolicy
    assumptions: tuple[str, ...]
    feature_names: tuple[str, ...]
    coefficients: Array
    rates: Array
    exposed: Array
    ramp: Array
    jobs: tuple[tuple[int, ...], ...]
    weights: Array

    @classmethod
    def of(cls, numbers: PassNumbers, policy: StepPolicy, assumptions: tuple[str, ...] = ()) -> Breakdown:
        """Resolve rates, efficiencies and overheads. Raises InputError for a table of several layouts."""
        require(
            numbers.num_layouts is None,
            what="table",
            given=f"{numbers.num_layouts} layouts",
            allowed="one layout; use table.layout(index)",
        )
        rows = numbers.rows
        names = feature_names(one.row for one in rows)
        place = {name: index for index, name in enumerate(names)}
        coefficients = np.zeros((3, len(rows), len(names)))
        rates = np.ones((2, len(rows)))
        for index, one in enumerate(rows):
            for lane, resource in enumerate(one.row.resources):
                if resource in one.rates:
                    rates[lane, index] = _one(one.rates[resource])
                    for name, value in one.row.amounts(resource).items():
                        coefficients[lane, index, place[name]] = _one(value)
            for name, value in one.overhead_s.items():
                coefficients[2, index, place[name]] = _one(value)
            if not one.known:  # it has amounts and no time
                coefficients[2, index], rates[:, index] = 0.0, np.inf
        known = np.array([float(one.known) for one in rows])
        jobs: dict[str, list[int]] = {}
        if policy == "blackboard":
            known[known > 0.0] = shortest_on_the_wire(numbers.in_use(), names, 1)[:, 0]
        else:
            for index, one in enumerate(rows):
                if one.row.choice and one.known:
                    jobs.setdefault(one.row.choice, []).append(index)
        fabric = np.array([float(one.row.is_fabric) for one in rows])
        match policy:
            case "overlap":
                streams = sorted({one.row.stream for one in rows})
            case "serial" | "blackboard":
                streams = []
            case _:
                assert_never(policy)
        columns = [1.0 - fabric, fabric, *(np.array([one.row.stream == name for one in rows]) for name in streams)]
        return cls(
            numbers=numbers,
            policy=policy,
            assumptions=assumptions,
            feature_names=names,
            coefficients=coefficients.reshape(3 * len(rows), len(names)),
            rates=rates,
            exposed=np.array([one.exposed for one in rows]),
            ramp=np.array([_one(one.ramp) for one in rows]),
            jobs=tuple(tuple(members) for members in jobs.values() if len(members) > 1),
            weights=np.stack(columns, axis=1) * known[:, None],
        )

    def time(self, features: Mapping[str, FloatLike]) -> PassTime:
        """Break the pass down at one point; equals `PassTable.seconds` to rounding.

        Args:
            features: name → value; missing ones are 0.

        Raises:
            InputError: more than one point.
        """
        given = {name: _one(value, name) for name, value in features.items()}
        vector = np.array([given.get(name, 0.0) for name in self.feature_names])
        count = self.rates.shape[1]
        found = np.empty((6, count))  # amounts of both resources, overhead, seconds; times of both resources
        found[:3] = (self.coefficients @ vector).reshape(3, count)
        np.divide(found[:2], self.rates, out=found[4:])
        found[3] = line_seconds(found[2], (found[4], found[5]), exposed=self.exposed, ramp=self.ramp)
        first, second, overheads_s, rows_s, *resource_s = found.tolist()
        weights = self.weights
        if self.jobs:
            weights = weights.copy()
            for members in self.jobs:
                best = min(members, key=rows_s.__getitem__)
                weights[[index for index in members if index != best]] = 0.0
        (overheads, seconds, chip_and_up, hbm_and_out) = (found[2:] @ weights).tolist()
        by_resource = {
            "compute": chip_and_up[0],
            "hbm": hbm_and_out[0],
            "scale_up": chip_and_up[1],
            "scale_out": hbm_and_out[1],
            "overhead": overheads[0] + overheads[1],
        }
        match self.policy:
            case "blackboard":
                total = max(by_resource[resource] for resource in RESOURCES) + by_resource["overhead"]
            case "overlap":
                total = max(seconds[2:], default=0.0)
            case "serial":
                total = seconds[0] + seconds[1]
            case _:
                assert_never(self.policy)
        calibration = self.numbers.calibration
        return PassTime(
            seconds=total + calibration.host_s_per_step,
            by_resource=by_resource,
            binds=max(by_resource, key=by_resource.__getitem__),
            policy=self.policy,
            calibration=calibration.name,
            evidence=calibration.evidence,
            host_s=calibration.host_s_per_step,
            assumptions=self.assumptions,
            features=given,
            breakdown=self,
            amounts=(first, second),
            resource_s=(resource_s[0], resource_s[1]),
            overheads_s=overheads_s,
            rows_s=rows_s,
            used=(weights[:, 0] + weights[:, 1] > 0.0).tolist(),
        )


def _one(value: FloatLike, name: str = "") -> float:
    """The only value of a feature or coefficient."""
    if isinstance(value, float):
        return float(value)
    array = np.asarray(value)
    require(array.size == 1, what=f"feature {name}", given=f"{array.size} points", allowed="one point")
    return float(array.item())


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
