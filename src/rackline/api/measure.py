"""`measure`: this machine and an engine on it, as a file that every command takes, with its proof."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import MOST_SECONDS, MaybeNumber, Question, Whole, option, question, whole
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.files import check_outputs, write_text
from rackline.late import late

with late:
    from rackline.lab import engine, experiment, measured as measurement


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


def _text(answer: Answer[MeasureQuestion, MachineFile], width: int) -> Iterable[Any]:
    from rich.text import Text

    found = answer.result
    yield from measurement.measured_report(found.measured, width)
    yield Text(f"\n{found.file}: use it as --on {found.file}", style="bold")


def _summary(answer: Answer[MeasureQuestion, MachineFile]) -> str:
    errors = ", ".join(
        f"{kind} {one.median_abs_error:.0%}"
        for kind, one in answer.result.measured.held_out.items()
        if one.median_abs_error is not None
    )
    return f"{answer.result.file}: median error of what was not fitted: {errors}"


@asks(
    MeasureQuestion,
    text=_text,
    summary=_summary,
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
    if target.suffix != ".toml":
        raise InputError(what="output", given=str(target), allowed="a name that ends in .toml")
    check_outputs({"output": target})
    experiment.start_jax(question.device)

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
