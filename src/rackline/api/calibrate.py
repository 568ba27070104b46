"""`calibrate`: operation tables → fitted calibrations, with their errors on held-out data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.option import Quantity, count, option, texts, whole
from rackline.api.question import Question
from rackline.api.watch import Watch
from rackline.errors import InputError
from rackline.files import check_outputs

if TYPE_CHECKING:
    from rackline.api.option import Texts
    from rackline.arch import Model
    from rackline.fitting import CalibrationResult, Summary
    from rackline.report.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateQuestion(Question):
    """What are the numbers of each chip, stack, operation and data type in tables of measured operations?"""

    ask: ClassVar[str] = "calibrate"

    tables: Texts = field(
        kw_only=False,
        metadata=option("text", "CSV files, recognised by their columns", positional=True, several=True),
    )
    output: str | None = field(
        default=None,
        metadata=option(
            "text", "TOML file to write; a folder gets one file per stack and generic.toml", short="o", output=True
        ),
    )
    processes: Quantity = field(default="2", metadata=whole("number of processes", maximum=256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Fitted numbers.

    Args:
        fitted: of each group, with errors.
        files: that were written.
        unwritten: why they were not; empty where they were.
    """

    json_keys: ClassVar = ("*summary", "files", "unwritten")

    fitted: CalibrationResult
    files: tuple[str, ...]
    unwritten: str = ""

    @property
    def summary(self) -> Summary:
        """Errors by kind, group and collective."""
        from rackline.fitting import summary

        return summary(self.fitted)


def _text(answer: Answer[CalibrateQuestion, Calibrated], width: int) -> Iterable[Any]:
    from rackline.fitting.report import calibrate_report

    yield calibrate_report(answer.result.fitted, list(answer.result.files))


def _notes(answer: Answer[CalibrateQuestion, Calibrated]) -> Iterable[str]:
    if answer.result.unwritten:
        yield f"error: {answer.result.unwritten}"


def _status(answer: Answer[CalibrateQuestion, Calibrated]) -> int:
    return 2 if answer.result.unwritten else 0


def _summary(answer: Answer[CalibrateQuestion, Calibrated]) -> str:
    fitted = answer.result.fitted
    return f"{len(fitted.kernels)} groups of kernels and {len(fitted.collectives)} of collectives, {fitted.rows:,} rows"


def _rows(answer: Answer[CalibrateQuestion, Calibrated]) -> Iterable[Any]:
    return answer.result.summary.groups


def _figure(answer: Answer[CalibrateQuestion, Calibrated]) -> Figure:
    from rackline.fitting.figure import errors_figure

    found = answer.result.summary
    return errors_figure(found.kinds, found.rows)


@asks(
    CalibrateQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    notes=_notes,
    status=_status,
    figures={"errors": _figure},
)
def calibrate(question: CalibrateQuestion, watch: Watch) -> Calibrated:
    """Fit the numbers of each chip, stack, operation and data type to tables of measured operations.

    Example:
        >>> import rackline as rl
        >>> rl.calibrate("no-such-table.csv")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    target = _target(question.output) if question.output is not None else None

    from rackline.catalog import names
    from rackline.fitting import (
        calibrate_tables,
        generic_file,
        merged_file,
        stack_file,
        stacks_of,
        write_files,
    )
    from rackline.hardware import FabricLevel
    from rackline.hardware import chip as find_chip
    from rackline.hardware import cluster as find_cluster

    levels: dict[str, FabricLevel] = {}
    for cluster_name in names("clusters"):
        cluster = find_cluster(cluster_name)
        levels.setdefault(cluster.chip.name, cluster.scale_up)
    chips = {chip_name: find_chip(chip_name) for chip_name in names("chips")}
    with watch.counting("reading tables", "fitted") as done:
        result = calibrate_tables(
            list(texts(question.tables)),
            chips=chips,
            links={name: level.bytes_per_s_each_way for name, level in levels.items()},
            in_network=[name for name, level in levels.items() if level.in_network_reduction],
            models=_models(),
            processes=count(question.processes),
            done=done,
        )
    if target is None:
        return Calibrated(fitted=result, files=())
    if target.is_dir():
        files = {target / f"{stack}.toml": stack_file(result, stack) for stack in stacks_of(result)}
        files[target / "generic.toml"] = generic_file(result)
    else:
        files = {target: merged_file(result, target.stem.lower())}
    try:
        write_files(files)
    except InputError as error:  # the fit took minutes: it is not lost with its file
        return Calibrated(fitted=result, files=(), unwritten=str(error))
    return Calibrated(fitted=result, files=tuple(str(path) for path in files))


def _target(output: str) -> Path:
    """The file or folder to write."""
    target = Path(output)
    folder = target.is_dir() or output.endswith("/")
    if not folder and (target.suffix != ".toml" or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", target.stem.lower())):
        raise InputError(what="output", given=output, allowed="a name such as calibration.toml, or a folder")
    if not folder:
        check_outputs({"output": output})
    elif not target.is_dir():
        raise InputError(what="output", given=output, allowed=f"a folder that exists; {target} is none")
    return target


def _models() -> list[Model]:
    from rackline.arch import Model, model
    from rackline.catalog import names

    found = [model(name) for name in names("models")]
    return [item for item in found if isinstance(item, Model)]
