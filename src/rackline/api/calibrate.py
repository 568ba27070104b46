"""`calibrate`: operation tables, or observed runs, → fitted calibrations, with their errors on held-out data.

With a release or a chip, the fits become entries of the catalogue, held against what is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import Question, Texts, Whole, option, question, whole
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.files import check_outputs, read_text
from rackline.late import late
from rackline.units import format_percent, several

with late:
    from rackline import arch, catalog, hardware, validation
    from rackline.catalog import index, load
    from rackline.display import figure
    from rackline.fitting import onboard, report, run as fits, tables as measured, write
    from rackline.passes import fallback
    from rackline.validation import observed_fit, observed_report, run


Catalogue = Literal["user", "project"]
_ONBOARDING = "Only with tables of a new release or chip"


@question
class CalibrateQuestion(Question):
    """What are the numbers of each chip, stack, operation and data type in measurements?"""

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
    release: str | None = option(
        "text",
        "fit the rows of a release, such as vllm=0.33, and put the numbers into the catalogue",
        default=None,
        group=_ONBOARDING,
        output=True,
    )
    chip: str | None = option(
        "text",
        "fit the rows of a chip, by name or as the TOML file that describes it, and put the numbers into the catalogue",
        default=None,
        group=_ONBOARDING,
        output=True,
    )
    cases: Texts = option(
        "text",
        "measured servings that are predicted with the catalogue before and after; may be repeated",
        default=None,
        several=True,
        repeated=True,
        group=_ONBOARDING,
    )
    catalogue: Catalogue = option(
        "text",
        "where the entries go: user (RACKLINE_CATALOGUE, or rackline/catalogue in the user's data folder) or project "
        "(the files of this installation)",
        default="user",
        choices=get_args(Catalogue),
        group=_ONBOARDING,
        output=True,
    )
    processes: Whole = whole("number of processes", default="2", maximum=256)

    def check_options(self) -> None:
        """Refuse what observed runs and tables of operations do not share, or neither of them.

        Raises:
            InputError: such options.
        """
        if self.observed:
            self.refuse("tables", "release", "chip", "cases", allowed="only without `observed`")
        else:
            self._check_tables()
        super().check_options()

    def _check_tables(self) -> None:
        require(self.tables, what="tables", given="nothing", allowed="CSV files of measured operations, or `observed`")
        self.refuse("calibration", allowed="only with `observed`")
        require(
            self.release or self.chip or (not self.cases and self.catalogue == "user"),
            what="cases",
            given="without a release",
            allowed="`release` or `chip` beside it",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of the files of a fit, which is not lost where they cannot be written.

    Args:
        files: names of the files that were written.
        unwritten: why none could be written; empty where they were.
    """

    files: tuple[str, ...] = ()
    unwritten: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated(Written):
    """Fitted numbers.

    Args:
        fitted: the numbers of each group, with errors.
    """

    json_keys: ClassVar = ("*summary", "files", "unwritten")

    fitted: fits.CalibrationResult

    @property
    def summary(self) -> report.Summary:
        """Errors by kind, group and collective."""
        return report.summary(self.fitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedServer(Written):
    """Numbers of one server, fitted to its observed runs.

    Args:
        observed: numbers and errors.
    """

    json_keys: ClassVar = ("*observed", "files", "unwritten")

    observed: observed_fit.ObservedFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Onboarded(Written):
    """A release or chip in the catalogue.

    Args:
        onboarding: what became of its rows, group by group.
        rescored: measured servings before and after; None where none were given.
    """

    json_keys: ClassVar = ("groups=onboarding.groups", "rescored", "worse", "files", "unwritten")

    onboarding: onboard.Onboarding
    rescored: run.Rescored | None

    @property
    def worse(self) -> tuple[str, ...]:
        """What got worse against what was stored, one line each."""
        return (*report.worse_groups(self.onboarding), *(self.rescored.worse if self.rescored else ()))


Answered: TypeAlias = "Answer[CalibrateQuestion, Calibrated | CalibratedServer | Onboarded]"


def _text(answer: Answered, width: int) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, CalibratedServer):
        yield observed_report.observed_fit_report(found.observed, found.files)
        return
    if isinstance(found, Onboarded):
        changes = found.rescored.changes if found.rescored else ()
        yield report.onboarding_report(found.onboarding, changes, found.worse, found.files)
        return
    yield report.calibrate_report(found.fitted, list(found.files))


def _notes(answer: Answered) -> Iterable[str]:
    if answer.result.unwritten:
        yield f"error: {answer.result.unwritten}"


def _summary(answer: Answered) -> str:
    if isinstance(answer.result, CalibratedServer):
        errors = ", ".join(
            f"{one.metric} {format_percent(one.held_out_median)} held out, {format_percent(one.shipped_median)} shipped"
            for one in answer.result.observed.errors
        )
        return f"{answer.result.observed.requests:,} requests on {answer.result.observed.chip}: {errors}"
    if isinstance(answer.result, Onboarded):
        groups = answer.result.onboarding.groups
        return f"{len(groups)} groups onboarded, {len(answer.result.worse)} figures worse than what was stored"
    fitted = answer.result.fitted
    groups = f"{several(len(fitted.kernels), 'group')} of kernels and {len(fitted.collectives)} of collectives"
    return f"{groups}, {several(fitted.rows, 'row')}"


def _rows(answer: Answered) -> Iterable[Any]:
    if isinstance(answer.result, CalibratedServer):
        return answer.result.observed.estimates
    if isinstance(answer.result, Onboarded):
        return answer.result.onboarding.groups
    return answer.result.summary.groups


def _figure(answer: Answered) -> figure.Figure:
    if not isinstance(answer.result, Calibrated):
        raise InputError(what="plot", given="numbers of a server or release", allowed="only for fits of tables alone")
    found = answer.result.summary
    return report.errors_figure(found.kinds, found.rows)


@asks(
    CalibrateQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    notes=_notes,
    status=lambda answer: 2 if answer.result.unwritten else 0,
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
    rackline calibrate --release vllm=0.33 gemm.csv --cases servings.jsonl
    rackline calibrate --from observed.jsonl -o mine.toml
    rackline validate observed-later.jsonl --calibration mine
""",
    ),
)
def calibrate(question: CalibrateQuestion, watch: Watch) -> Calibrated | CalibratedServer | Onboarded:
    """Fit the numbers of each chip, stack, operation and data type to tables of measured operations.

    With a release (vllm=0.33) or a chip, its rows are fitted beside what is stored of it, scored on shapes and families
    that the fit did not see, and put into the catalogue: numbers that describe a new release as well as a new fit stay.
    What got worse is said, with measured servings (`cases`) also of whole predictions.

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
    if question.release or question.chip:
        return _onboarded(question, target, watch)
    shipping = onboard.ships() if target is not None and target.is_dir() else {"fitted": (), "held": ()}
    chips = _chips()
    result = _fitted(measured.read_tables(question.tables, list(chips), shipping["held"]), chips, question, watch)
    if target is None:
        return Calibrated(fitted=result)
    if target.is_dir():
        stacks = [stack for stack in write.stacks_of(result) if stack in shipping["fitted"]]
        files = {target / f"{stack}.toml": write.stack_file(result, stack) for stack in stacks}
        files[target / "generic.toml"] = write.generic_file(result)
    else:
        files = {target: write.merged_file(result, target.stem.lower())}
    return Calibrated(fitted=result, **_written(files))


def _written(files: Mapping[Path, str]) -> dict[str, Any]:
    """Write the files, and say which were written and why others were not: the fit took minutes, it is not lost."""
    try:
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        write.write_files(files)
    except (InputError, OSError) as error:
        return {"unwritten": str(error)}
    return {"files": tuple(map(str, files))}


def _fitted(
    tables: list[measured.Measurements], chips: dict[str, hardware.Chip], question: CalibrateQuestion, watch: Watch
) -> fits.CalibrationResult:
    clusters = [hardware.cluster(name) for name in reversed(catalog.names("clusters"))]  # of a chip the first counts
    levels = {one.chip.name: one.scale_up for one in clusters}
    outer = {one.chip.name: one.scale_out.bytes_per_s_each_way for one in clusters if one.scale_out is not None}
    with watch.counting("reading tables", "fitted") as done:
        return fits.calibrate(
            tables,
            chips=chips,
            links={name: level.bytes_per_s_each_way for name, level in levels.items()},
            in_network=[name for name, level in levels.items() if level.in_network_reduction],
            scale_out=outer,
            models=[found for name in catalog.names("models") if isinstance(found := arch.model(name), arch.Model)],
            processes=question.processes,
            done=done,
        )


def _chips() -> dict[str, hardware.Chip]:
    return {name: hardware.chip(name) for name in catalog.names("chips")}


def _onboarded(question: CalibrateQuestion, target: Path | None, watch: Watch) -> Onboarded:
    """Fit a release or chip beside what is stored, score cases before and after, write the catalogue."""
    require(
        target is None,
        what="output",
        given=str(target),
        allowed="only without a release or chip, whose numbers go to the catalogue",
    )
    stack, version = fallback.split_version(question.release) if question.release else ("", "")
    require(
        not stack or version,
        what="release",
        given=question.release,
        allowed="a stack and its version, such as vllm=0.33",
    )
    if question.cases:
        run.read_cases(question.cases)  # what cannot be read is said before the fit
    chips, texts = _chips(), dict[str, str]()
    name = ""
    if question.chip:
        found = hardware.chip(question.chip)
        name = found.name
        if name not in chips:
            chips[name] = found
            allowed = "a readable file that describes the chip"
            texts[f"chips/{name}.toml"] = read_text(question.chip, what="chip", allowed=allowed)
    tables = onboard.of_release(measured.read_tables(question.tables, list(chips)), stack, version, name)
    asked = " ".join(
        [*([f"--release {stack}={version}"] if stack else []), *([f"--chip {name}"] if name else [])]
        + [Path(table).name for table in question.tables]
    )
    onboarding = onboard.onboard(
        _fitted(tables, chips, question, watch), f"operation tables: rackline calibrate {asked}"
    )
    texts |= {f"calibrations/{stack}.toml": text for stack, text in onboarding.texts.items()}
    change = None
    if question.cases:
        with watch.moving("predicting cases"):
            change = run.rescored(question.cases, texts)
    place = index.user_catalogue() if question.catalogue == "user" else Path(str(index.folder("calibrations"))).parent
    written = _written({place / file: text for file, text in texts.items()})
    load.forget()
    return Onboarded(onboarding=onboarding, rescored=change, **written)


def _of_server(question: CalibrateQuestion, target: Path | None, watch: Watch) -> CalibratedServer:
    """Fit to observed runs, and say what they leave open."""
    require(
        target is None or not target.is_dir(), what="output", given=str(target), allowed="a file, such as mine.toml"
    )
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
    files = {} if target is None else {target: observed_report.calibration_text(fit, target.stem.lower())}
    return CalibratedServer(observed=fit, **_written(files))


def _target(output: str) -> Path:
    """The file or folder to write."""
    target = Path(output)
    folder = target.is_dir() or output.endswith("/")
    require(
        folder or (target.suffix == ".toml" and re.fullmatch(r"[a-z0-9][a-z0-9._-]*", target.stem.lower())),
        what="output",
        given=output,
        allowed="a name such as calibration.toml, or a folder",
    )
    if not folder:
        check_outputs({"output": output})
    elif not target.is_dir():
        raise InputError(what="output", given=output, allowed=f"a folder that exists; {target} is none")
    return target
