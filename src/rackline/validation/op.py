"""Single operations: shapes of operation tables as cases, timed at once like the rows of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np

from rackline.errors import InputError, RacklineError, unknown_name
from rackline.fitting.amounts import Amounts, amounts
from rackline.fitting.collectives import EXCHANGE, ONE_SHOT, TWO_SHOT, exchange_wire_s, wire_bytes
from rackline.fitting.fit import seconds as line_seconds
from rackline.fitting.modules import LAYERS, seconds as layer_seconds
from rackline.fitting.tables import FORMATS, RING_CLASSES, Measurements, TableFormat, TableRow, table_rows
from rackline.hardware import Chip
from rackline.passes import Calibration
from rackline.passes.calibration import UNIT_COLLECTIVE, CollectiveCalibration
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.routing import distinct_ranks
from rackline.passes.row import collective_seconds, fastest
from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.resolve import Resolver

_CHIPS_A_NODE = 8  # of the DeepEP tables


def predict_operations(resolver: Resolver, cases: Sequence[Case]) -> list[dict[str, float] | RacklineError]:
    """Predict operations, table by table; a group that fails is retried case by case."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, case in enumerate(cases):
        op = case.text("op")
        labels = [case.text(name) for name in FORMATS[op].labels if name != "num_chips"]
        groups.setdefault((op, case.chip, case.stack, case.stack_version, *labels), []).append(place)
    found: dict[int, dict[str, float] | RacklineError] = {}
    for places in groups.values():
        found |= zip(places, _of_table(resolver, [cases[place] for place in places]), strict=True)
    return [found[place] for place in range(len(cases))]


def _of_table(resolver: Resolver, cases: Sequence[Case]) -> list[dict[str, float] | RacklineError]:
    try:
        return [{"seconds": value} for value in op_seconds(resolver, cases)]
    except RacklineError as error:
        return [error] if len(cases) == 1 else [one for case in cases for one in _of_table(resolver, [case])]


def op_seconds(resolver: Resolver, cases: Sequence[Case]) -> list[float]:
    """Times of operations of one table, chip, stack and data type [s], one per case.

    Raises:
        RacklineError: the chip, data type, collective or a column is unknown.
    """
    op = cases[0].text("op")
    chip = resolver.chip(cases[0].chip)
    numbers = resolver.calibration(cases[0], chip)
    columns = {name: _column(cases, name) for name in FORMATS[op].sizes}
    if op == "deepep_low_latency":
        seconds = _deepep(resolver, chip, numbers, columns)
    elif op == EXCHANGE:
        seconds = _exchange(resolver, chip, numbers, cases, columns)
    elif op in ("collective", "custom_all_reduce"):
        seconds = _collective(resolver, chip, numbers, cases, columns["message_bytes"])
    elif op in LAYERS:
        seconds = layer_seconds(_measurements(op, cases, columns), chip, numbers)
    else:
        seconds = kernel_seconds(amounts(_measurements(op, cases, columns), chip), numbers)
    return [float(value) for value in np.broadcast_to(seconds, (len(cases),))]


def kernel_seconds(work: Amounts, numbers: Calibration) -> Array:
    """Time of kernels under a calibration [s].

    A separate quantisation and the sorting of rows by expert are part of the measured operation. Passes leave the
    quantisation out, because serving stacks fuse it.
    """
    found = asdict(numbers.lookup(work.op_class, work.dtype))
    values = {name: value for name, value in found.items() if isinstance(value, float)}
    if not values["quantise_s"]:
        del values["quantise_s"]
    return line_seconds(values, work)


def _column(cases: Sequence[Case], name: str) -> Array:
    usual = FORMATS[cases[0].text("op")].usual.get(name, "")
    return np.array([float(case.text(name, usual)) for case in cases], dtype=float)


def _measurements(op: str, cases: Sequence[Case], columns: dict[str, Array]) -> Measurements:
    form = FORMATS[op]
    return Measurements(
        table=op,
        chip=cases[0].chip,
        stack=cases[0].stack,
        stack_version=cases[0].stack_version,
        labels=tuple(cases[0].text(name) for name in form.labels),
        columns=columns,
        words={name: tuple(case.text(name) for case in cases) for name in form.words},
        seconds=np.array([case.measured["seconds"] for case in cases]),
        families=np.zeros(len(cases), dtype=np.int64),
    )


def _collective(resolver: Resolver, chip: Chip, numbers: Calibration, cases: Sequence[Case], size: Array) -> Array:
    """Times of collectives by the whole buffer of a rank, by algorithm [s]."""
    n = np.array([float(case.num_chips) for case in cases])
    level = resolver.cluster(chip, int(n.max())).scale_up

    def seconds(op_class: str, found: CollectiveCalibration) -> FloatLike:
        sent = wire_bytes(op_class, size, n, in_network=level.in_network_reduction)
        return collective_seconds(found, n, [sent / level.bytes_per_s_each_way])

    if cases[0].text("op") == "collective":
        name = cases[0].text("collective")
        if name not in RING_CLASSES:
            raise unknown_name("collective", name, RING_CLASSES)
        op_class = RING_CLASSES[name]
        found = numbers.collective(op_class)
        staged = numbers.collective(op_class, peer_access=False)
        if staged is not None and staged.origin.endswith(f", {chip.name}"):
            found = staged  # the box of this chip's tables had no peer access
        return as_array(seconds(op_class, found or UNIT_COLLECTIVE))
    ending = "_eager" if cases[0].text("implementation").endswith("_eager") else ""
    options: list[FloatLike] = []
    for op_class in (ONE_SHOT, TWO_SHOT):
        found = numbers.collective(op_class + ending) or numbers.collective(op_class)
        if found is not None:
            options.append(seconds(op_class, found))
    return fastest(options or [seconds(TWO_SHOT, UNIT_COLLECTIVE)])


def _exchange(
    resolver: Resolver, chip: Chip, numbers: Calibration, cases: Sequence[Case], columns: dict[str, Array]
) -> Array:
    """One phase of an exchange of experts."""
    ranks = np.array([float(case.num_chips) for case in cases])
    on = resolver.cluster(chip, int(ranks.max()))
    outer = np.inf if on.scale_out is None else on.scale_out.bytes_per_s_each_way
    method, phase = cases[0].text("method"), cases[0].text("phase")
    wire_s = exchange_wire_s(method, columns, ranks, (on.scale_up.bytes_per_s_each_way, outer))
    found = numbers.collective(f"{phase}_{method}") or numbers.collective("all_to_all") or UNIT_COLLECTIVE
    return as_array(collective_seconds(found, ranks, [wire_s]))


def _deepep(resolver: Resolver, chip: Chip, numbers: Calibration, columns: dict[str, Array]) -> Array:
    """Dispatch in fp8 and combine in bf16: each token once to every distinct rank that holds one of its experts."""
    ranks = columns["num_nodes"] * _CHIPS_A_NODE
    on = resolver.cluster(chip, int(ranks.max()))
    found = numbers.collective("all_to_all") or UNIT_COLLECTIVE
    picks = zip(ranks, columns["num_experts"], columns["top_k"], strict=True)
    copies = np.array([float(distinct_ranks(r, int(experts), int(k))) for r, experts, k in picks])
    outside = np.maximum(ranks - on.scale_up.size, 0.0) / ranks
    elements = columns["tokens"] * copies * columns["d_model"]
    total = np.zeros_like(elements)
    for size in (1.0, 2.0):
        wire_s = [size * elements * (1.0 - outside) / on.scale_up.bytes_per_s_each_way]
        if on.scale_out is not None:
            wire_s.append(size * elements * outside / on.scale_out.bytes_per_s_each_way)
        total = total + collective_seconds(found, ranks, wire_s)
    return total


_OF_EVERY_TABLE = ("chip", "stack", "stack_version")


def read_op_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table whose operations follow from its columns, or from one that names them.

    Args:
        text: the content of the file.

    Raises:
        InputError: the columns do not match any operation.
    """
    found: list[Case | Unsupported] = []
    places: dict[tuple[object, ...], int] = {}
    for row in table_rows(path, text.splitlines()):
        where = f"{path.name}, line {row.line}"
        if row.problem or row.form is None:
            cause = f"line: got {row.problem[0]}, allowed: {row.problem[1]}" if row.problem else _unknown(row)
            found.append(Unsupported(case_id=where, kind="op", where=where, cause=cause, bad_input=True))
            continue
        data = _data(row, f"{path.stem}:{row.line}")
        case = case_from(data, where, unknown_keys)
        key = tuple(value for name, value in data.items() if name not in ("id", "measured"))
        if isinstance(case, Case) and places.setdefault(key, len(found)) < len(found):
            other = found[places[key]]
            if isinstance(other, Case) and case.measured["seconds"] < other.measured["seconds"]:
                found[places[key]] = case
            continue
        found.append(case)
    return found


def _unknown(row: TableRow) -> str:
    given = row.cells.get("op_name") or "nothing"
    return str(InputError(what="operation", given=given, allowed=f"one of {', '.join(FORMATS)}"))


def _data(row: TableRow, case_id: str) -> dict[str, object]:
    form = cast("TableFormat", row.form)
    data: dict[str, object] = {"id": case_id, "kind": "op", "op": form.name}
    for name in (*_OF_EVERY_TABLE, *form.texts, *form.sizes, "num_chips"):
        cell = row.cells.get(name, "")
        if cell and cell != form.usual.get(name):
            data[name] = cell if name in form.texts or name in _OF_EVERY_TABLE else _number(cell)
    data["measured"] = {"seconds": _number(row.cells.get("seconds", ""))}
    return data


def _number(cell: str) -> object:
    """The number in a cell; the text if it is not one, which is refused later with its location."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() else value
