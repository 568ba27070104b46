"""Kernels of an older version of a stack: those of the nearest version that was measured.

Few operations were measured in several versions, and most of them take the same time in all. A calibration holds older
numbers only where they differ (`rackline.fitting.older`); all else is as in the newest version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rackline.catalog import (
    CalibrationRecord,
    CollectiveRecord,
    OperationRecord,
    apart,
    canonical_name,
    measured_stacks,
    release_numbers,
)
from rackline.errors import InputError, nearest_names

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
        near = next(iter(nearest_names(name, measured_stacks(), 1)), None)
        allowed = f"a version only of {', '.join(measured_stacks())}"
        raise InputError(what="calibration", given=given, allowed=allowed, nearest=near)
    if not release_numbers(version):
        raise InputError(what=f"version of {name}", given=version, allowed="a version such as 0.5.9 or 1.3.0rc15")
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
    """The entry of the nearest version; the newer of two that are as near."""
    if entry.chip != chip or not entry.stack_version:
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
