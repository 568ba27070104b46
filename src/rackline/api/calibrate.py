"""`calibrate`: operation tables, or observed runs, → fitted calibrations, with their errors on held-out data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.option import Texts, Whole, option, whole
from rackline.api.question import Question, question
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.files import check_outputs, write_text
from rackline.late import late
from rackline.units import format_percent

with late:
    from rackline import arch, catalog, fitting, hardware, validation
    from rackline.fitting import report
    from rackline.report import figure
    from rackline.validation import observed_fit, observed_report


@question
class CalibrateQuestion(Question):
    """What are the numbers of each chip, stack, operation and data type in measurements?"""

    ask: ClassVar[str] = "calibrate"

    tables: Texts = option(
        "text",
        "CSV files of measured operations, recognised by their columns",
        default=None,
        several=True,
        kw_only=False,
    )
    observed: Texts = option(
        "text",
        "runs of one live server instead, as observe writes them: fits the few numbers of its stack and chip that "
        "they determine; may be repeated",
        default=None,
        flag="--from",
        several=True,
        repeated=True,
    )
    calibration: str = option(
        "text",
        "with `observed`: the calibration to start from: auto (that of the runs' stack), a name or a file",
        default="auto",
    )
    output: str | None = option(
        "text",
        "TOML file to write; a folder gets one file per stack and generic.toml",
        default=None,
        short="o",
        output=True,
    )
    processes: Whole = whole("number of processes", default="2", maximum=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Fitted numbers.

    Args:
        fitted: of each group, with errors.
        files: that were written.
        unwritten: why they were not; empty where they were.
    """

    json_keys: ClassVar = ("*summary", "files", "unwritten")

    fitted: fitting.CalibrationResult
    files: tuple[str, ...]
    unwritten: str = ""

    @property
    def summary(self) -> fitting.Summary:
        """Errors by kind, group and collective."""
        return fitting.summary(self.fitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedServer:
    """Numbers of one server, fitted to its observed runs.

    Args:
        observed: numbers and errors.
        files: that were written.
        unwritten: why they were not; empty where they were.
    """

    json_keys: ClassVar = ("*observed", "files", "unwritten")

    observed: observed_fit.ObservedFit
    files: tuple[str, ...]
    unwritten: str = ""


if TYPE_CHECKING:
    Answered = Answer[CalibrateQuestion, Calibrated | CalibratedServer]


def _text(answer: Answered, width: int) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, CalibratedServer):
        yield observed_report.observed_fit_report(found.observed, found.files)
        return
    yield report.calibrate_report(found.fitted, list(found.files))


def _notes(answer: Answered) -> Iterable[str]:
    if answer.result.unwritten:
        yield f"error: {answer.result.unwritten}"


def _status(answer: Answered) -> int:
    return 2 if answer.result.unwritten else 0


def _summary(answer: Answered) -> str:
    if isinstance(answer.result, CalibratedServer):
        errors = ", ".join(
            f"{one.metric} {format_percent(one.held_out_median)} held out, {format_percent(one.shipped_median)} shipped"
            for one in answer.result.observed.errors
        )
        return f"{answer.result.observed.requests:,} requests on {answer.result.observed.chip}: {errors}"
    fitted = answer.result.fitted
    return f"{len(fitted.kernels)} groups of kernels and {len(fitted.collectives)} of collectives, {fitted.rows:,} rows"


def _rows(answer: Answered) -> Iterable[Any]:
    if isinstance(answer.result, CalibratedServer):
        return answer.result.observed.estimates
    return answer.result.summary.groups


def _figure(answer: Answered) -> figure.Figure:
    if isinstance(answer.result, CalibratedServer):
        raise InputError(what="plot", given="numbers of a server", allowed="only without `observed`")
    found = answer.result.summary
    return report.errors_figure(found.kinds, found.rows)


@asks(
    CalibrateQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    notes=_notes,
    status=_status,
    figures={"errors": _figure},
    entry=Entry(
        group="Measure",
        place=3,
        line="Fit calibrations to measured operations or observed runs.",
        request={
            "tables": ["gemm.csv"],
            "uploads": {
                "gemm.csv": "chip,stack,stack_version,kernel,dtype,m,n,k,seconds\n"
                "h100-sxm,own,1,own,bfloat16,64,8192,8192,6.2e-05\n"
                "h100-sxm,own,1,own,bfloat16,512,8192,8192,1.3e-04\n"
                "h100-sxm,own,1,own,bfloat16,4096,8192,8192,8.6e-04\n"
                "h100-sxm,own,1,own,bfloat16,64,4096,4096,2.1e-05\n"
                "h100-sxm,own,1,own,bfloat16,8192,4096,4096,4.4e-04\n"
                "h100-sxm,own,1,own,bfloat16,8,4096,4096,1.9e-05\n"
            },
        },
        is_long=True,
        examples="""
    rackline calibrate gemm.csv moe.csv collective.csv -o calibration.toml
    rackline plan llama-3.1-70b --on dgx-h100 \\
      --input 1k --output 500 --calibration ./calibration.toml
    rackline calibrate --from observed.jsonl -o mine.toml
    rackline validate observed-later.jsonl --calibration mine
""",
    ),
)
def calibrate(question: CalibrateQuestion, watch: Watch) -> Calibrated | CalibratedServer:
    """Fit the numbers of each chip, stack, operation and data type to tables of measured operations.

    From observed runs of one server it fits the few numbers of its stack and chip that they determine, drawn to the
    shipped ones; the file works by its name as a calibration of plan, simulate, explain and validate.

    Example:
        >>> import rackline as rl
        >>> rl.calibrate("no-such-table.csv")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    target = _target(question.output) if question.output is not None else None
    if question.observed:
        return _of_server(question, target, watch)
    if not question.tables:
        raise InputError(what="tables", given="nothing", allowed="CSV files of measured operations, or `observed`")
    if question.calibration != "auto":
        raise InputError(what="calibration", given=question.calibration, allowed="only with `observed`")

    levels: dict[str, hardware.FabricLevel] = {}
    for cluster_name in catalog.names("clusters"):
        cluster = hardware.cluster(cluster_name)
        levels.setdefault(cluster.chip.name, cluster.scale_up)
    chips = {chip_name: hardware.chip(chip_name) for chip_name in catalog.names("chips")}
    with watch.counting("reading tables", "fitted") as done:
        result = fitting.calibrate_tables(
            list(question.tables),
            chips=chips,
            links={name: level.bytes_per_s_each_way for name, level in levels.items()},
            in_network=[name for name, level in levels.items() if level.in_network_reduction],
            models=_models(),
            processes=question.processes,
            done=done,
        )
    if target is None:
        return Calibrated(fitted=result, files=())
    if target.is_dir():
        files = {target / f"{stack}.toml": fitting.stack_file(result, stack) for stack in fitting.stacks_of(result)}
        files[target / "generic.toml"] = fitting.generic_file(result)
    else:
        files = {target: fitting.merged_file(result, target.stem.lower())}
    try:
        fitting.write_files(files)
    except InputError as error:  # the fit took minutes: it is not lost with its file
        return Calibrated(fitted=result, files=(), unwritten=str(error))
    return Calibrated(fitted=result, files=tuple(str(path) for path in files))


def _of_server(question: CalibrateQuestion, target: Path | None, watch: Watch) -> CalibratedServer:
    """Fit to observed runs, and say what they leave open."""
    if question.tables:
        raise InputError(what="tables", given=question.tables[0], allowed="only without `observed`")
    if target is not None and target.is_dir():
        raise InputError(what="output", given=str(target), allowed="a file, such as mine.toml")
    found = validation.read_cases(question.observed)
    for one in found.unsupported:
        watch.warn(f"{one.case_id} is left out: {one.reason}")
    with watch.counting("fitting", "fitted") as done:
        fit = observed_fit.fit_observed(found.cases, question.calibration, done)
    for one in fit.estimates:
        if one.name in fit.undetermined:
            watch.warn(
                f"the runs do not determine the {one.meaning} (by {one.determined:.0%}): it stays near its shipped "
                "value; runs at other rates and lengths may"
            )
    if fit.clipped:
        watch.warn(f"{fit.clipped} efficiencies stand at the peak of {fit.chip}: the peak may be too low")
    worse = [one.metric for one in fit.errors if one.held_out_median > one.shipped_median]
    if worse:
        watch.warn(f"held out, the fitted numbers are worse than the shipped ones in {', '.join(worse)}: keep those")
    if target is None:
        return CalibratedServer(observed=fit, files=())
    try:
        write_text(target, observed_report.calibration_text(fit, target.stem.lower()), what="output")
    except InputError as error:  # the fit took minutes: it is not lost with its file
        return CalibratedServer(observed=fit, files=(), unwritten=str(error))
    return CalibratedServer(observed=fit, files=(str(target),))


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


def _models() -> list[arch.Model]:
    found = [arch.model(name) for name in catalog.names("models")]
    return [item for item in found if isinstance(item, arch.Model)]
