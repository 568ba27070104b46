"""Calibration: the few numbers per operation class and data type that turn a roofline into a data centre."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from rackline.catalog import CalibrationRecord, CollectiveRecord, OperationRecord, calibration_record
from rackline.hardware import Chip
from rackline.passes.borrowed import adapted
from rackline.passes.features import Array, FloatLike, as_array

StepPolicy = Literal["blackboard", "serial", "overlap"]
STACKS = ("trtllm", "vllm", "sglang")
GENERIC = "generic"
PARENT_CLASS = {"mla_decode": "attention_decode", "mla_prefill": "attention_prefill"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCalibration:
    """The numbers of one kernel class.

    seconds = overhead + max_r t_r + exposed (sum_r t_r - max_r t_r)

    Args:
        overhead_s: per launch [s].
        eta_compute, eta_memory: share of the peak that is reached, 0 to 1.
        exposed: share of the shorter resource that does not hide behind the longer, 0 to 1.
        depth_s: per element that is gone through in order (reduction, tokens of one sequence) [s].
        tile_s: per tile of work on one core [s].
        cached: share of the last-level cache that a repeated call finds filled, which passes leave out.
        quantise_s: a separate quantisation of the activations, which passes leave out [s].
        permute: passes of routed tokens through memory around the experts [count].
        evidence: what kind of number this is.
        origin: which chip, stack and rule it comes from, for people.
        median_error: on shapes that the fit did not see; NaN when unknown.
    """

    overhead_s: float = 0.0
    eta_compute: float = 1.0
    eta_memory: float = 1.0
    exposed: float = 0.0
    depth_s: float = 0.0
    tile_s: float = 0.0
    cached: float = 0.0
    quantise_s: float = 0.0
    permute: float = 0.0
    evidence: str = "derived"
    origin: str = "unit"
    median_error: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCalibration:
    """The numbers of one collective over group sizes.

    seconds = overhead + alpha steps + t + ramp sqrt(overhead t), t = bytes / (eta_link rate)

    Between measured sizes the numbers are interpolated in log2 of the size; beyond the largest the overhead goes on
    growing as between the last two, the efficiency stays.

    Args:
        group_sizes: measured sizes, rising; (0,) for one set of numbers at every size [count].
        overheads_s, eta_links, ramps: one value a size.
        alpha_s: per message step [s].
    """

    group_sizes: tuple[int, ...] = (0,)
    overheads_s: tuple[float, ...] = (0.0,)
    eta_links: tuple[float, ...] = (1.0,)
    ramps: tuple[float, ...] = (0.0,)
    alpha_s: float = 0.0
    evidence: str = "derived"
    origin: str = "unit"

    def at(self, group_size: FloatLike) -> tuple[Array, Array, Array]:
        """(overhead [s], eta_link, ramp) of groups of this size; arrays of the shape of `group_size`."""
        log = np.log2(np.maximum(as_array(group_size), 1.0))
        if len(self.group_sizes) == 1:
            one = np.ones_like(log)
            return self.overheads_s[0] * one, self.eta_links[0] * one, self.ramps[0] * one
        known = np.log2(np.array(self.group_sizes, dtype=float))
        overhead = np.interp(log, known, self.overheads_s)
        slope = max(self.overheads_s[-1] - self.overheads_s[-2], 0.0) / (self.group_sizes[-1] - self.group_sizes[-2])
        beyond = np.maximum(as_array(group_size) - self.group_sizes[-1], 0.0)
        return (
            overhead + slope * beyond,
            np.interp(log, known, self.eta_links),
            np.interp(log, known, self.ramps),
        )


UNIT_OPERATION = OperationCalibration()
UNIT_COLLECTIVE = CollectiveCalibration()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All numbers of one stack on one chip.

    Args:
        step_policy: how rows combine into a pass.
        host_s_per_step: host time that does not hide behind the device [s].
        separate_quantise: data types of products whose activations the stack quantises in a kernel of its own.
        operations: (class, data type) → numbers; data type "*" is the fallback of a class. Empty means unit.
        collectives: class → numbers; "collective" is the fallback.
    """

    name: str
    stack: str
    step_policy: StepPolicy
    host_s_per_step: float = 0.0
    evidence: str = "derived"
    description: str = ""
    separate_quantise: tuple[str, ...] = ()
    operations: Mapping[tuple[str, str], OperationCalibration] = field(
        default_factory=dict[tuple[str, str], OperationCalibration]
    )
    collectives: Mapping[str, CollectiveCalibration] = field(default_factory=dict[str, CollectiveCalibration])

    def lookup(self, op_class: str, dtype: str, compute_dtype: str = "") -> OperationCalibration:
        """Numbers of an operation class and data type; else of its multiply, of the class, of bf16; else unit.

        A class that has no numbers of its own takes those of its parent class.
        """
        for name in (op_class, PARENT_CLASS.get(op_class, op_class)):
            for key in (dtype, compute_dtype, "*", "bf16"):
                if (name, key) in self.operations:
                    return self.operations[name, key]
        return UNIT_OPERATION

    def collective(self, name: str) -> CollectiveCalibration | None:
        """Numbers of a collective; None when this stack does not have that kernel."""
        if not self.collectives:
            return UNIT_COLLECTIVE
        return self.collectives.get(name, self.collectives.get("collective"))


UNIT = Calibration(name="unit", stack="none", step_policy="blackboard", description="the lecture's roofline")


def calibration(name: str, chip: Chip | None = None) -> Calibration:
    """Load the numbers of a stack for a chip.

    Args:
        name: "auto" (the stack that was measured most on the chip, else the generic numbers), "unit", a stack, or a
            file.
        chip: for which chip; None takes the numbers for all chips.

    What a stack's own table does not have is filled in, and marked so, from: the same chip under another stack, the
    same generation (corrected for power and memory, see `borrowed`), all chips.

    Raises:
        UnknownNameError, CatalogError: as the catalogue.
    """
    if name == "auto":
        name = best_stack(chip)
    record = calibration_record(name)
    if record.name == "unit":
        return UNIT
    found = calibration_from_record(record, chip)
    if record.name in STACKS:
        others = [calibration_record(stack) for stack in STACKS if stack != record.name]
        for other in others:
            found = _fill(found, _resolve(other, chip, own_chip_only=True))
        found = _fill(found, _resolve(calibration_record(GENERIC), chip))
    if chip is None:
        return found
    tables = [entry for stack in STACKS for entry in calibration_record(stack).operation]
    return replace(found, operations=adapted(found.operations, chip, tables, calibration_record(GENERIC)))


def best_stack(chip: Chip | None) -> str:
    """The stack with the most measured entries for a chip; the generic set where nothing was measured."""
    if chip is None:
        return GENERIC
    counts = {stack: sum(entry.chip == chip.name for entry in calibration_record(stack).operation) for stack in STACKS}
    best = max(STACKS, key=lambda stack: counts[stack])
    return best if counts[best] else GENERIC


def calibration_from_record(record: CalibrationRecord, chip: Chip | None = None) -> Calibration:
    """Build the object of one validated record alone, for a chip."""
    return _resolve(record, chip)


def _matches(entry: OperationRecord | CollectiveRecord, chip: Chip | None, own_chip_only: bool) -> int:
    """How well an entry fits the chip: 3 its own, 2 its generation, 1 all chips, 0 not at all."""
    if chip is not None and entry.chip == chip.name:
        return 3
    if own_chip_only:
        return 0
    if chip is not None and entry.chip == chip.generation:
        return 2
    return 1 if entry.chip == "*" else 0


def _resolve(record: CalibrationRecord, chip: Chip | None, own_chip_only: bool = False) -> Calibration:
    operations: dict[tuple[str, str], tuple[int, OperationRecord]] = {}
    for entry in record.operation:
        rank, key = _matches(entry, chip, own_chip_only), (entry.operation_class, entry.dtype)
        if rank > operations.get(key, (0, entry))[0]:
            operations[key] = (rank, entry)
    collectives: dict[tuple[str, int], tuple[int, CollectiveRecord]] = {}
    for entry in record.collective:
        rank, place = _matches(entry, chip, own_chip_only), (entry.collective_class, entry.group_size)
        if rank > collectives.get(place, (0, entry))[0]:
            collectives[place] = (rank, entry)
    return Calibration(
        name=record.name,
        stack=record.stack,
        step_policy=record.step_policy,
        host_s_per_step=record.host_s_per_step,
        evidence=str(record.evidence),
        description=record.description,
        separate_quantise=record.separate_quantise,
        operations={key: _operation(entry, record.name) for key, (_, entry) in operations.items()},
        collectives=_collectives(record.name, collectives),
    )


def _operation(entry: OperationRecord, stack: str) -> OperationCalibration:
    return OperationCalibration(
        overhead_s=entry.overhead_s,
        eta_compute=entry.eta_compute,
        eta_memory=entry.eta_memory,
        exposed=entry.exposed,
        depth_s=entry.depth_s,
        tile_s=entry.tile_s,
        cached=entry.cached,
        quantise_s=entry.quantise_s,
        permute=entry.permute,
        evidence=str(entry.evidence),
        origin=f"{stack}, {'all chips' if entry.chip == '*' else entry.chip}",
        median_error=float("nan") if entry.median_error is None else entry.median_error,
    )


def _collectives(
    stack: str, entries: Mapping[tuple[str, int], tuple[int, CollectiveRecord]]
) -> dict[str, CollectiveCalibration]:
    found: dict[str, CollectiveCalibration] = {}
    for name in {key[0] for key in entries}:
        best = max(rank for (kind, _), (rank, _) in entries.items() if kind == name)
        chosen = sorted(
            (entry for (kind, _), (rank, entry) in entries.items() if kind == name and rank == best),
            key=lambda entry: entry.group_size,
        )
        found[name] = CollectiveCalibration(
            group_sizes=tuple(entry.group_size for entry in chosen),
            overheads_s=tuple(entry.overhead_s for entry in chosen),
            eta_links=tuple(entry.eta_link for entry in chosen),
            ramps=tuple(entry.ramp for entry in chosen),
            alpha_s=chosen[0].alpha_s,
            evidence=str(chosen[0].evidence),
            origin=f"{stack}, {'all chips' if chosen[0].chip == '*' else chosen[0].chip}",
        )
    return found


def _fill(found: Calibration, parent: Calibration) -> Calibration:
    """Add what is missing. Measured entries become "derived", they were not measured here; assumed ones stay so."""

    def fallback(numbers: OperationCalibration | CollectiveCalibration) -> dict[str, str]:
        evidence = "assumed" if numbers.evidence == "assumed" else "derived"
        return {"evidence": evidence, "origin": f"fallback: {numbers.origin}"}

    known: Iterable[tuple[str, str]] = found.operations
    extra = {
        key: replace(numbers, **fallback(numbers))
        for key, numbers in parent.operations.items()
        if key not in set(known)
    }
    collectives = {
        key: replace(numbers, **fallback(numbers))
        for key, numbers in parent.collectives.items()
        if key not in found.collectives
    }
    return replace(found, operations={**found.operations, **extra}, collectives={**found.collectives, **collectives})
