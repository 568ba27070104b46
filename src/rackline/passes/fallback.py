"""Calibration of a stack on a chip: its own measurements, or those of other chips by a documented fallback rule.

Of a stack in an older version, operations that were measured in several versions take the numbers of the nearest one;
all else is as in the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rackline.catalog import (
    CalibrationRecord,
    CollectiveRecord,
    OperationRecord,
    calibration_record,
    measured_stacks,
    names,
    resolve_beside,
)
from rackline.errors import UnknownNameError, nearest_names
from rackline.hardware import Chip, Cluster
from rackline.passes.borrowed import adapted
from rackline.passes.calibration import UNIT, Calibration, CollectiveCalibration, OperationCalibration
from rackline.passes.versions import at_version, split_version

GENERIC = "generic"


def calibration(name: str, chip: Chip | None = None) -> Calibration:
    """Load the calibration of a stack for a chip.

    Args:
        name: "auto" (the stack with the most measurements on the chip, else the generic one), "unit", a stack, one with
            a version ("sglang=0.5.9"), or a file.
        chip: the chip; None for the numbers of all chips.

    Missing entries are filled in, and marked as such, from: the same chip under another stack, the same generation
    (corrected for power and memory, see `borrowed`), all chips.

    Raises:
        UnknownNameError, CatalogError: the name is unknown, or the file is invalid.
        InputError: a version of what has none, or that is none.
    """
    name, version = split_version(name)
    if name == "auto":
        name = best_stack(chip)
    record = _record(name)
    if record.name == "unit":
        return UNIT
    nearest: tuple[str, ...] = ()
    if version and chip is not None:
        record, nearest = at_version(record, chip.name, version)
    found = replace(calibration_from_record(record, chip), version=version, nearest=nearest)
    if found.serving:
        found = replace(found, serving=resolve_beside(found.serving, name))
    if record.name in measured_stacks():
        others = [calibration_record(stack) for stack in measured_stacks() if stack != record.name]
        for other in others:
            found = _fill(found, _resolve(other, chip, own_chip_only=True))
        found = _fill(found, _resolve(calibration_record(GENERIC), chip))
    if record.falls_back_to is not None:
        found = _fill(found, _resolve(calibration_record(record.falls_back_to), chip))
    if chip is None:
        return found
    if record.operation and not found.operations:
        known = ", ".join(dict.fromkeys(entry.chip for entry in record.operation))
        raise UnknownNameError(what="calibration", given=f"{record.name} on {chip.name}", allowed=f"chips: {known}")
    tables = [entry for stack in measured_stacks() for entry in calibration_record(stack).operation]
    return replace(found, operations=adapted(found.operations, chip, tables, calibration_record(GENERIC)))


def calibration_on(cluster: Cluster) -> Calibration:
    """The calibration that a cluster comes with; else that of the stack with the most measurements on its chip."""
    return calibration(cluster.calibration or "auto", cluster.chip)


def _record(name: str) -> CalibrationRecord:
    try:
        return calibration_record(name)
    except UnknownNameError as error:
        if name.endswith(".toml"):
            raise
        allowed = ["auto", *names("calibrations")]
        raise UnknownNameError(
            what="calibration",
            given=name,
            allowed=f"{', '.join(allowed)} or a TOML file",
            nearest=next(iter(nearest_names(name, allowed, 1)), None),
        ) from error


def best_stack(chip: Chip | None) -> str:
    """The stack with the most measured entries for a chip; the generic one if there are none."""
    if chip is None:
        return GENERIC
    stacks = measured_stacks()
    counts = {stack: sum(entry.chip == chip.name for entry in calibration_record(stack).operation) for stack in stacks}
    best = max(stacks, key=lambda stack: counts[stack])
    return best if counts[best] else GENERIC


def calibration_from_record(record: CalibrationRecord, chip: Chip | None = None) -> Calibration:
    """Build the object of one validated record alone, for a chip."""
    return _resolve(record, chip)


def _matches(entry: OperationRecord | CollectiveRecord, chip: Chip | None, own_chip_only: bool) -> int:
    """How well an entry matches the chip: 3 the chip itself, 2 its generation, 1 all chips, 0 not at all."""
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
        context_block=record.context_block,
        serving=record.serving or "",
    )


def _origin(stack: str, entry: OperationRecord | CollectiveRecord) -> str:
    return f"{stack}, {'all chips' if entry.chip == '*' else entry.chip}"


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
        origin=_origin(stack, entry),
        median_error=float("nan") if entry.median_error is None else entry.median_error,
        version=entry.stack_version or "",
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
            origin=_origin(stack, chosen[0]),
        )
    return found


def _fill(found: Calibration, parent: Calibration) -> Calibration:
    """Add missing entries. Measured ones become "derived", as they were not measured here; assumed ones stay
    assumed."""

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
