"""Calibration of a stack on a chip: its own numbers, those of other chips or versions by documented rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from rackline.catalog import (
    CalibrationRecord,
    CollectiveRecord,
    OperationRecord,
    apart,
    calibration_record,
    canonical_name,
    measured_stacks,
    names,
    release_numbers,
    resolve_beside,
)
from rackline.errors import InputError, UnknownNameError, nearest_name, require
from rackline.hardware import Chip, Cluster, chip as find_chip
from rackline.passes.calibration import UNIT, Calibration, CollectiveCalibration, OperationCalibration

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
    found = (find_chip(name) for name in sorted(set(names("chips")) & set(measured)))
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


Entry = TypeVar("Entry", OperationRecord, CollectiveRecord)


def split_version(given: str) -> tuple[str, str]:
    """Name and version of "sglang=0.5.9"; a name or file without one has an empty version.

    Raises:
        InputError: a version of what has none, or text that is none.

    >>> split_version("atom=0.5.9"), split_version("auto")
    (('atom', '0.5.9'), ('auto', ''))
    """
    name, _, version = given.partition("=")
    if given.endswith(".toml") or name == given:
        return given, ""
    name = canonical_name("stacks", name) or name
    if name not in measured_stacks():
        near = nearest_name(name, measured_stacks())
        allowed = f"a version only of {', '.join(measured_stacks())}"
        raise InputError(what="calibration", given=given, allowed=allowed, nearest=near)
    require(
        release_numbers(version),
        what=f"version of {name}",
        given=version,
        allowed="a version such as 0.5.9 or 1.3.0rc15",
    )
    return name, version


def at_version(record: CalibrationRecord, chip: str, version: str) -> tuple[CalibrationRecord, tuple[str, ...]]:
    """The record with the numbers of the nearest versions on a chip, and which operations have those of an older one.

    Args:
        record: of a stack.
        chip: name.
        version: that runs there, such as "0.5.9".
    """
    operations = [_nearest(entry, record.older_operation, version, chip) for entry in record.operation]
    collectives = [_nearest(entry, record.older_collective, version, chip) for entry in record.collective]
    said = [
        f"{found.operation_class} {found.dtype} of {found.stack_version}"
        for found, entry in zip(operations, record.operation, strict=True)
        if found is not entry
    ]
    said += [
        f"all-reduce of {found.stack_version}"
        for found, entry in zip(collectives, record.collective, strict=True)
        if found is not entry
    ]
    changed = record.model_copy(update={"operation": tuple(operations), "collective": tuple(collectives)})
    return changed, tuple(dict.fromkeys(said))


def _nearest(entry: Entry, older: Sequence[Entry], version: str, chip: str) -> Entry:
    """The entry of the nearest version; the newer of two that are as near. An entry whose version is a commit or a
    library's has no older ones."""
    if entry.chip != chip or not release_numbers(entry.stack_version or ""):
        return entry
    same = [one for one in older if _key(one) == _key(entry)]
    newest_first = sorted(same, key=lambda one: release_numbers(one.stack_version or ""), reverse=True)
    return min((entry, *newest_first), key=lambda one: _apart(one, version))


def _apart(entry: OperationRecord | CollectiveRecord, version: str) -> tuple[int, ...]:
    newest = entry.stack_version or ""
    return apart(version, entry.oldest_version or newest, newest)


def _key(entry: OperationRecord | CollectiveRecord) -> tuple[str, str, str]:
    if isinstance(entry, OperationRecord):
        return entry.chip, entry.operation_class, entry.dtype
    return entry.chip, entry.collective_class, str(entry.group_size)


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
        for other in (calibration_record(stack) for stack in measured_stacks() if stack != record.name):
            found = _fill(found, calibration_from_record(other, chip, own_chip_only=True))
        found = _fill(found, calibration_from_record(calibration_record(GENERIC), chip))
    if record.falls_back_to is not None:
        found = _fill(found, calibration_from_record(calibration_record(record.falls_back_to), chip))
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
            nearest=nearest_name(name, allowed),
        ) from error


_COMMON = frozenset(
    {
        "gemm",
        "moe",
        "elementwise",
        *(f"{kind}_{phase}" for kind in ("attention", "mla") for phase in ("decode", "prefill")),
    }
)
"""Classes of kernels that most models run."""


def best_stack(chip: Chip | None) -> str:
    """The stack with the most measured entries for a chip; the generic one if there are none."""
    if chip is None:
        return GENERIC
    counts = {stack: num_measured(stack, chip) for stack in measured_stacks()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else GENERIC


def num_measured(stack: str, chip: Chip) -> int:
    """Entries of a stack that were measured on a chip, of kernels that most models run [count].

    Kernels of single kinds of attention do not count: a stack whose sparse attention or recurrent states were measured
    says no more of the products, attention and experts of all other models.
    """
    entries = calibration_record(stack).operation
    return sum(entry.chip == chip.name and entry.operation_class in _COMMON for entry in entries)


def _matches(entry: OperationRecord | CollectiveRecord, chip: Chip | None, own_chip_only: bool) -> int:
    """How well an entry matches the chip: 3 the chip itself, 2 its generation, 1 all chips, 0 not at all."""
    if chip is not None and entry.chip == chip.name:
        return 3
    if own_chip_only:
        return 0
    if chip is not None and entry.chip == chip.generation:
        return 2
    return 1 if entry.chip == "*" else 0


def _matching(
    entries: Iterable[Entry], chip: Chip | None, own_chip_only: bool
) -> dict[tuple[str, str], tuple[int, Entry]]:
    """The entry of each class, and data type or group size, that matches the chip best, with how well it does."""
    found: dict[tuple[str, str], tuple[int, Entry]] = {}
    for entry in entries:
        rank, (_, *key) = _matches(entry, chip, own_chip_only), _key(entry)
        if rank > found.get((key[0], key[1]), (0, entry))[0]:
            found[key[0], key[1]] = (rank, entry)
    return found


def calibration_from_record(
    record: CalibrationRecord, chip: Chip | None = None, *, own_chip_only: bool = False
) -> Calibration:
    """Build the object of one validated record alone, for a chip.

    Args:
        own_chip_only: whether to leave out numbers of its generation and of all chips.
    """
    operations = _matching(record.operation, chip, own_chip_only)
    return Calibration(
        name=record.name,
        stack=record.stack,
        step_policy=record.step_policy,
        host_s_per_step=record.host_s_per_step,
        evidence=str(record.evidence),
        description=record.description,
        separate_quantise=record.separate_quantise,
        operations={key: _operation(entry, record.name) for key, (_, entry) in operations.items()},
        collectives=_collectives(record.name, _matching(record.collective, chip, own_chip_only)),
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
    stack: str, entries: Mapping[tuple[str, str], tuple[int, CollectiveRecord]]
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

    extra = {
        key: replace(numbers, **fallback(numbers))
        for key, numbers in parent.operations.items()
        if key not in found.operations
    }
    collectives = {
        key: replace(numbers, **fallback(numbers))
        for key, numbers in parent.collectives.items()
        if key not in found.collectives
    }
    return replace(found, operations={**found.operations, **extra}, collectives={**found.collectives, **collectives})
