"""`lab`: the lecture's mechanisms built small, run here, and compared with what the library predicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.option import Option, Whole, option, whole
from rackline.api.question import Question, question
from rackline.api.verbs import Entry
from rackline.files import write_text
from rackline.late import late
from rackline.plain import plain

with late:
    from rackline import lab
    from rackline.lab import experiments
    from rackline.report import figure


@question
class LabQuestion(Question):
    """Does a mechanism of the lecture do what the theory says, when it is built and run?"""

    ask: ClassVar[str] = "lab"

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

    experiments: tuple[lab.Experiment, ...]


def _text(answer: Answer[LabQuestion, Experiments], width: int) -> Iterable[Any]:
    yield experiments.experiments_table(answer.result.experiments)


def _summary(answer: Answer[LabQuestion, Experiments]) -> str:
    return ", ".join(f"{one.name} {one.verdict}" for one in answer.result.experiments)


def _rows(answer: Answer[LabQuestion, Experiments]) -> Iterable[Any]:
    return [{"experiment": one.name, **plain(row)} for one in answer.result.experiments for row in one.rows]


def _figure(answer: Answer[LabQuestion, Experiments]) -> figure.Figure:
    return experiments.experiment_figure(answer.result.experiments[0])


def _write_report(answer: Answer[LabQuestion, Experiments], path: Path) -> None:
    write_text(path, experiments.report_page(answer.result.experiments), what="report")


_REPORT = SideFile(
    option=Option(kind="text", help="write tables and figures as one page to FILE.html"), write=_write_report
)


@asks(
    LabQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    figures={"curves": _figure},
    files={"report": _REPORT},
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
    names = list(lab.EXPERIMENTS) if question.name == "all" else [lab.entry(question.name).name]
    lab.start_jax(question.device)
    found: list[lab.Experiment] = []
    with watch.counting("experiments", "experiments") as counted:
        for number, name in enumerate(names):
            setup = lab.Setup(
                quick=question.quick,
                seed=question.seed,
                device=question.device,
                progress=lambda text, name=name, number=number: counted(f"{name}: {text}", number, len(names)),
            )
            found.append(lab.run_experiment(name, setup))
    return Experiments(experiments=tuple(found))
