"""One file with a whole machine: its chip, the cluster of it, the calibration of an engine there and its scheduler.

``rackline measure`` writes it. Its tables ``[chip]``, ``[cluster]``, ``[calibration]`` and ``[stack]`` are records of
the catalogue; wherever one of these is asked for by name, the file gives its table. The cluster is made of the file's
chip and comes with the file's calibration, the calibration with its stack. ``[measured]`` says how the numbers came
about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rackline.errors import CatalogError, nearest_names

PARTS = {"chips": "chip", "clusters": "cluster", "calibrations": "calibration", "stacks": "stack"}
MEASURED = "measured"
_BESIDE: Mapping[str, Mapping[str, str]] = {
    "clusters": {"chip": "chip", "calibration": "calibration"},
    "calibrations": {"serving": "stack"},
}
"""Kind of record → key that names another record → table of the file that holds it."""
_TABLES = (*PARTS.values(), MEASURED)


def is_machine(data: Mapping[str, Any]) -> bool:
    """Whether a file holds several records; a single one has its name at the top."""
    return "name" not in data and any(isinstance(data.get(table), dict) for table in PARTS.values())


def part_of_machine(data: Mapping[str, Any], kind: str, file: str, where: str) -> dict[str, Any]:
    """The record of a kind in the file of a machine.

    Args:
        data: the whole file.
        kind: of the record: "chips", "clusters", "calibrations", "stacks", ...
        file: name of the file, without its folder.
        where: the file, for messages.

    Raises:
        CatalogError: an unknown table, or no record of this kind.
    """
    for table in data:
        if table not in _TABLES:
            near = nearest_names(table, _TABLES, 1)
            raise CatalogError(
                what=table,
                given=table,
                allowed=f"the tables of a machine: {', '.join(_TABLES)}",
                where=where,
                nearest=near[0] if near else None,
            )
    table = PARTS.get(kind, "")
    found = data.get(table)
    if not isinstance(found, dict):
        held = ", ".join(name for name in PARTS.values() if name in data)
        raise CatalogError(
            what=table or kind, given=f"a machine with {held}", allowed=f"a file with the table [{table}]", where=where
        )
    record = dict(cast("Mapping[str, Any]", found))
    beside = {key: file for key, other in _BESIDE.get(kind, {}).items() if other in data}
    return {**beside, **record}
