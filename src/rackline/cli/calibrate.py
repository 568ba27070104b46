"""`rackline calibrate`: operation tables → fitted calibrations, with their errors on what was not fitted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.cli.options import Json, MaybeValue, whole
from rackline.cli.screen import counting, print_json, screen
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.arch import Model
    from rackline.hardware import FabricLevel


def calibrate(
    tables: list[str],
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    processes: MaybeValue = "2",
    json: Json = False,
) -> None:
    """Fit the numbers of each chip, stack, operation and data type to tables of measured operations.

    Args:
        tables: CSV files, recognised by their columns
        output: TOML file to write; a folder gets one file a stack and generic.toml
        processes: how many to use
        json: print JSON (SI units) and nothing else
    """
    workers = whole(processes or "2", "--processes", maximum=256)
    target = Path(output)
    folder = target.is_dir() or output.endswith("/")
    name = target.stem.lower()
    if not folder and (target.suffix != ".toml" or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name)):
        raise InputError(what="--output", given=output, allowed="a name such as calibration.toml, or a folder")
    parent = target if folder else target.parent
    if not parent.is_dir():
        raise InputError(what="--output", given=output, allowed=f"an existing folder; {parent} is none")

    from rackline.catalog import names
    from rackline.fitting import (
        as_dict,
        calibrate_tables,
        generic_file,
        merged_file,
        stack_file,
        stacks_of,
        write_files,
    )
    from rackline.hardware import chip as find_chip
    from rackline.hardware import cluster as find_cluster

    levels: dict[str, FabricLevel] = {}
    for cluster_name in names("clusters"):
        cluster = find_cluster(cluster_name)
        levels.setdefault(cluster.chip.name, cluster.scale_up)
    links = {name: level.bytes_per_s_each_way for name, level in levels.items()}
    in_network = [name for name, level in levels.items() if level.in_network_reduction]
    chips = {chip_name: find_chip(chip_name) for chip_name in names("chips")}
    with counting("reading tables", "fitted") as done:
        result = calibrate_tables(
            tables,
            chips=chips,
            links=links,
            in_network=in_network,
            models=_models(),
            processes=workers,
            done=done,
        )
    if folder:
        files = {target / f"{stack}.toml": stack_file(result, stack) for stack in stacks_of(result)}
        files[target / "generic.toml"] = generic_file(result)
    else:
        files = {target: merged_file(result, name)}
    write_files(files)
    if json:
        print_json({**as_dict(result), "files": [str(path) for path in files]})
        return
    from rackline.fitting.report import calibrate_report

    screen().print(calibrate_report(result, [str(path) for path in files]))


def _models() -> list[Model]:
    from rackline.arch import Model, model
    from rackline.catalog import names

    found = [model(name) for name in names("models")]
    return [item for item in found if isinstance(item, Model)]
