"""`lecture`, `lab` and `measure`: the claims, the mechanisms built small, and this machine with an engine on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.question import (
    MOST_SECONDS,
    MaybeNumber,
    MaybeWhole,
    Option,
    Question,
    Settings,
    Whole,
    option,
    question,
    whole,
)
from rackline.api.resolve import assignments
from rackline.api.verbs import Entry
from rackline.errors import InputError, nearest_name, require
from rackline.files import check_outputs, write_text
from rackline.late import late
from rackline.plain import plain

with late:
    from rackline.lab import engine, experiment as lab_experiment, experiments, measured as measurement
    from rackline.ledger import guide, said, table, work


@question
class LectureQuestion(Question):
    """Is what the lecture says true, and where does it stop being true?"""

    segment: MaybeWhole = whole(
        "1 batch size, 2 experts on racks, 3 pipelines, 4 memory wall, 5 over-training, 6 prices, 7 cryptography, "
        "8 inconsistencies, 9 golden values, 10 summaries, 11 flash cards; all by default",
        default=None,
        maximum=11,
    )
    claim: str | None = option(
        "text", "one claim in full, such as C99, N01 (a summary) or Q4 (a flash card)", default=None
    )
    guess: bool = option(
        "switch",
        "the guided lecture: asks step by step, reads a guess, draws the figure and says how far off it was; all of "
        "it, one `segment`, or the steps of one `claim`",
        default=False,
    )
    measured: str | None = option(
        "text",
        "results of `rackline lab all --json` that take the place of the stored ones, and what they say of each claim",
        default=None,
    )
    set: Settings = option(
        "settings",
        "NAME:KEY=VALUE overrides a number of the catalogue, such as gb200:hbm_bytes_per_s=16TB/s; may be repeated",
        default=None,
    )

    def check_options(self) -> None:
        """Refuse what the guided lecture does not have.

        Raises:
            InputError: such options.
        """
        if self.guess:
            self.refuse("set", "measured", allowed="nothing together with `guess`")
        super().check_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The claims that were examined, or the steps of the guided lecture.

    Args:
        claims: each with what was said, what is computed and the verdict.
        experiments: what stored experiments say of each claim that they test, by its id.
        steps: of the guided lecture, each with what was guessed, if anybody was asked, and the answer.
    """

    claims: tuple[work.Finding, ...]
    experiments: Mapping[str, str]
    steps: tuple[guide.Guess, ...]


def _text(answer: Answer[LectureQuestion, Ledger], width: int) -> Iterable[Any]:
    if answer.question.guess:
        guessed = [one for one in answer.result.steps if one.guess is not None]
        if guessed:
            yield guide.score_table(guessed)
        yield guide.summary(answer.result.steps)
        return
    found, measured = answer.result.claims, answer.result.experiments
    if answer.question.claim is not None:
        yield from (table.claim_panel(one, measured.get(one.claim.id, "")) for one in found)
    else:
        yield table.ledger_table(found, full=answer.question.segment is not None, measured=measured)


def _summary(answer: Answer[LectureQuestion, Ledger]) -> str:
    if answer.question.guess:
        return guide.summary(answer.result.steps)
    found = answer.result.claims
    if answer.question.claim is not None:
        return f"{found[0].claim.id}: {found[0].verdict}"
    verdicts = Counter(str(one.verdict) for one in found)
    return f"{len(found)} claims: " + ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())


def _refuse(question: LectureQuestion, outputs: frozenset[str]) -> None:
    """Files of the ledger have no meaning beside guesses.

    Raises:
        InputError: there is one.
    """
    for name in sorted(outputs - {"json"}) if question.guess else ():
        raise InputError(what=name, given="a file", allowed="without `guess`, which draws on the terminal")


@asks(
    LectureQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: answer.result.steps if answer.question.guess else answer.result.claims,
    figures={"verdicts": lambda answer: table.verdicts_figure(answer.result.claims)},
    files={
        "page": SideFile(
            option=Option(kind="text", help="write the ledger as Markdown to FILE.md"),
            write=lambda answer, path, _: write_text(path, table.page(answer.result.claims), what="page"),
        )
    },
    refuse=_refuse,
    entry=Entry(
        group="Learn",
        place=0,
        line="Check the lecture's claims, and where they stop holding.",
        request={"claim": "C99"},
        examples="""
    rackline lecture
    rackline lecture --segment 6
    rackline lecture --claim C99
    rackline lecture --claim Q4
    rackline lecture --claim C28 --set gb200:hbm_bytes_per_s=16TB/s
    rackline lecture --guess --segment 1
""",
    ),
)
def lecture(question: LectureQuestion, watch: Watch) -> Ledger:
    """Is what the lecture says true, and where does it stop being true?

    For each claim of "The math behind how LLMs are trained and served": what was said, the formula, what was quoted,
    what the library computes from its catalogue, the verdict and why. Inconsistencies and golden values follow.

    Example:
        >>> import rackline as rl
        >>> rl.lecture(claim="C99").result.claims[0].claim.segment
        6
    """
    if question.guess:
        return _guessed(question, watch)
    measured = () if question.measured is None else experiments.read_experiments(question.measured)
    with watch.moving("examining the claims"):
        world = work.World(
            work.overrides_from_texts(assignments(question.set)),
            _readings(measured, f"from {question.measured}"),
        )
        found = table.ledger(world, segment=question.segment, claim=question.claim)
    return Ledger(claims=tuple(found), experiments=experiments.verdicts_by_claim(measured), steps=())


def _guessed(question: LectureQuestion, watch: Watch) -> Ledger:
    """Ask the steps of the guided lecture.

    Raises:
        InputError: no chapter or step shows what is asked for; an option that the guided lecture does not have.
    """
    with watch.moving("computing the figures"):
        chapters = guide.chapters(question.segment)
    require(chapters, what="segment", given=question.segment, allowed="1 to 7 with `guess`")
    shown = guide.steps_of(chapters)
    claim = None if question.claim is None else question.claim.strip().upper()
    if claim is not None and claim not in shown:
        allowed = f"a claim that a step shows: {', '.join(sorted(shown))}"
        raise InputError(
            what="claim", given=question.claim, allowed=allowed, nearest=nearest_name(claim, sorted(shown))
        )
    watch.says(guide.HELP, "")
    steps = tuple(guide.guesses(chapters, claim, watch.says, watch.asks))
    return Ledger(claims=(), experiments={}, steps=steps)


def _readings(found: Sequence[lab_experiment.Experiment], run: str) -> dict[tuple[str, str], said.Seen]:
    """What experiments measured, for the claims that rest on it; run: where that is from, as text."""
    return {
        (one.name, row.quantity): said.Seen(
            experiment=one.name,
            quantity=row.quantity,
            measured=row.measured,
            low=row.measured if row.low is None else row.low,
            high=row.measured if row.high is None else row.high,
            run=run,
        )
        for one in found
        for row in one.rows
    }


@question
class LabQuestion(Question):
    """Does a mechanism of the lecture do what the theory says, when it is built and run?"""

    name: str = option(
        "text", "decode, sparse, moe, experts, pipeline, reversible, cipher, serve, or all", kw_only=False
    )
    quick: bool = option("switch", "fewer random seeds and shorter training, for a first look", default=False)
    seed: Whole = whole("random seed of weights and data", default="0", minimum=0, maximum=2**31 - 1)
    device: str = option("text", "JAX platform: cpu or gpu", default="cpu", choices=("cpu", "gpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiments:
    """The experiments that were run.

    Args:
        experiments: each with its readings, claims and verdict.
    """

    experiments: tuple[lab_experiment.Experiment, ...]


def _lab_rows(answer: Answer[LabQuestion, Experiments]) -> Iterable[Any]:
    return [{"experiment": one.name, **plain(row)} for one in answer.result.experiments for row in one.rows]


@asks(
    LabQuestion,
    text=lambda answer, width: [experiments.experiments_table(answer.result.experiments)],
    summary=lambda answer: ", ".join(f"{one.name} {one.verdict}" for one in answer.result.experiments),
    rows=_lab_rows,
    figures={"curves": lambda answer: experiments.experiment_figure(answer.result.experiments[0])},
    files={
        "report": SideFile(
            option=Option(kind="text", help="write tables and figures as one page to FILE.html"),
            write=lambda answer, path, _: write_text(
                path, experiments.report_page(answer.result.experiments), what="report"
            ),
        )
    },
    entry=Entry(
        group="Learn",
        place=1,
        line="Run the lecture's mechanisms at small scale, and measure them.",
        name="lab",
        elsewhere="measures the machine that it runs on",
        examples="""
    rackline lab cipher --quick
    rackline lab all --quick --report lab.html
""",
    ),
)
def experiment(question: LabQuestion, watch: Watch) -> Experiments:
    """The lecture's mechanisms built small, run on this machine, and compared with what the library predicts.

    Each experiment ends in readings: predicted, measured, and whether they agree. It needs JAX (extra `lab`).

    Example:
        >>> import rackline as rl
        >>> rl.experiment("cipher", quick=True).result.experiments[0].verdict  # doctest: +SKIP
        'holds'
    """
    names = list(experiments.EXPERIMENTS) if question.name == "all" else [experiments.entry(question.name).name]
    lab_experiment.start_jax(question.device)
    found: list[lab_experiment.Experiment] = []
    with watch.counting("experiments", "experiments") as counted:
        for number, name in enumerate(names):
            setup = lab_experiment.Setup(
                quick=question.quick,
                seed=question.seed,
                device=question.device,
                progress=lambda text, name=name, number=number: counted(f"{name}: {text}", number, len(names)),
            )
            found.append(experiments.run_experiment(name, setup))
            if len(names) > 1:
                watch.announces(experiments.result_line(found[-1]))
    return Experiments(experiments=tuple(found))


@question
class MeasureQuestion(Question):
    """How fast is this machine, and does the theory hold here?"""

    engine: str = option(
        "text",
        "whose passes are measured: jax (the lab's own transformer), llama.cpp, vllm or sglang, which are "
        "installed beside rackline",
        default="jax",
    )
    device: str = option("text", "cpu or gpu", default="cpu", choices=("cpu", "gpu"))
    dtype: str | None = option(
        "text",
        "type of weights and cache: fp32 or bf16; by default fp32 on a cpu, bf16 on a gpu",
        default=None,
        choices=("fp32", "bf16"),
    )
    output: str = option("text", "file to write", default="my-machine.toml", short="o")
    engine_python: str | None = option(
        "text",
        "Python of the environment that has the engine; by default the one that runs rackline",
        default=None,
    )
    clock: str = option(
        "text",
        "wall, or cpu: processor time of one core, where other programs keep the machine busy",
        default="wall",
        choices=("wall", "cpu"),
    )
    quick: bool = option("switch", "a small model and few repeats, for a first look", default=False)
    max_time: MaybeNumber = option(
        "seconds",
        "longest time of measuring passes until the repeats agree (medians known to 5 %); after it the result is "
        "marked; 5min by default, 20s with --quick",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
    )
    seed: Whole = whole("random seed of weights and requests", default="0", minimum=0, maximum=2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFile:
    """A machine that was measured, and its file.

    Args:
        measured: rates, passes, errors.
        file: that was written.
    """

    json_keys: ClassVar = ("*measured", "file")

    measured: measurement.Measured
    file: str


def _measure_text(answer: Answer[MeasureQuestion, MachineFile], width: int) -> Iterable[Any]:
    from rich.text import Text

    found = answer.result
    yield from measurement.measured_report(found.measured, width)
    yield Text(f"\n{found.file}: use it as --on {found.file}", style="bold")


def _measure_summary(answer: Answer[MeasureQuestion, MachineFile]) -> str:
    errors = ", ".join(
        f"{kind} {one.median_abs_error:.0%}"
        for kind, one in answer.result.measured.held_out.items()
        if one.median_abs_error is not None
    )
    return f"{answer.result.file}: median error of what was not fitted: {errors}"


@asks(
    MeasureQuestion,
    text=_measure_text,
    summary=_measure_summary,
    rows=lambda answer: answer.result.measured.rows,
    figures={"passes": lambda answer: measurement.measured_figure(answer.result.measured)},
    entry=Entry(
        group="Measure",
        place=0,
        line="Measure this machine and an engine; a file for --on.",
        elsewhere="measures the machine that it runs on",
        examples="""
    rackline measure
    rackline measure --engine llama.cpp --dtype bf16 -o laptop.toml
    rackline explain qwen3-0.6b --on my-machine.toml --batch 4 --context 1k
""",
    ),
)
def measure(question: MeasureQuestion, watch: Watch) -> MachineFile:
    """Measure this machine and an engine on it, fit a calibration, and test it on passes that were not fitted.

    The file holds chip, cluster, calibration and scheduler; every command takes it as `--on my-machine.toml`.

    Example:
        >>> import rackline as rl
        >>> rl.measure(quick=True, output="my-machine.toml").result.file  # doctest: +SKIP
        'my-machine.toml'
    """
    target = Path(question.output)
    require(target.suffix == ".toml", what="output", given=str(target), allowed="a name that ends in .toml")
    check_outputs({"output": target})
    lab_experiment.start_jax(question.device)

    dtype = question.dtype or ("fp32" if question.device == "cpu" else "bf16")
    with watch.counting("measuring", "measured") as counted:
        found = measurement.measure_machine(
            engine.MeasureSetup(
                engine=question.engine,
                dtype="bf16" if dtype == "bf16" else "fp32",
                device=question.device,
                quick=question.quick,
                agreed_within_s=question.max_time,
                seed=question.seed,
                python=question.engine_python,
                cpu_clock=question.clock == "cpu",
                progress=counted,
            )
        )
    if found.is_busy:
        watch.warn(
            f"the machine was busy: medians of passes are known to {found.uncertainty:.0%} (repeats spread by "
            f"{found.spread:.0%}); measure again when it is quiet, or longer with --max-time"
        )
    write_text(target, found.text, what="output")
    return MachineFile(measured=found, file=str(target))
