"""`rl`: a step of reinforcement learning: split of the chips, both layouts, time, days and dollars."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import CALIBRATION, CHIPS, ENGINE, PRECISION, PRICE, OnCluster
from rackline.api.question import (
    MOST_TOKENS,
    CalibrationLike,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    ModelLike,
    Number,
    Question,
    Text,
    Whole,
    group,
    option,
    question,
    shared,
    whole,
)
from rackline.api.resolve import lookup_of, named, resolve_on
from rackline.api.server import speculation_of
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.files import read_text
from rackline.late import late
from rackline.units import format_seconds, format_usd, several

with late:
    from rackline import arch, parallel
    from rackline.posttraining import job as posttraining_job, plan as posttraining_plan
    from rackline.report import budget_report
    from rackline.simulation import traces
    from rackline.training import runs


Algorithm = Literal["grpo", "dapo", "ppo"]
Mode = Literal["sync", "one-step-off", "async"]


@group
class LearningStep(Question):
    """A question of one step of reinforcement learning: its answers, what judges them, and what trains on them."""

    prompts: Whole = whole("prompts of a step", default="64")
    generations: Whole = whole("answers generated for each prompt", default="16")
    algorithm: Algorithm = option(
        "text",
        "grpo (with a reference model), dapo (without one) or ppo (with a reference and a critic of equal size)",
        default="grpo",
        choices=get_args(Algorithm),
    )
    no_reference: bool = option("switch", "leave out the reference model that the algorithm has", default=False)
    reward: ModelLike | None = option("object", "reward model that reads every answer; rules by default", default=None)
    trained: MaybeWhole = whole("answers of a step that are trained on; all of them by default", default=None)
    update: MaybeWhole = whole(
        "answers per update of the weights; all of a step in one update by default", default=None
    )


@group
class Rollouts(Question):
    """A question of answers that a model generates to be trained on: their lengths, tools and drafts."""

    input: Number = option(
        "count",
        "mean prompt length in tokens, such as 200",
        default="200",
        unit="token",
        minimum=1.0,
        maximum=MOST_TOKENS,
    )
    output: Number = option(
        "count",
        "mean answer length in tokens, such as 2k",
        default="2k",
        unit="token",
        minimum=1.0,
        maximum=MOST_TOKENS,
    )
    longest: Number = option(
        "count",
        "answer length at which generation is cut off",
        default="8k",
        unit="token",
        minimum=1.0,
        maximum=MOST_TOKENS,
    )
    spread: Number = option(
        "count",
        "standard deviation of the answer lengths over their mean, before long ones are cut off; 0 for equal ones",
        default="0.6",
        unit="1",
        zero=True,
        maximum=10.0,
    )
    trace: str | None = option(
        "text",
        "measured prompts and answers in place of these lengths: recorded requests in the formats that `simulate` "
        "reads, or a file with the tokens of one answer in each line",
        default=None,
    )
    turns: Whole = whole("turns of an answer, between which it waits for tools; its tokens spread evenly", default="1")
    tool_time: Number = option(
        "seconds", "mean time of a tool call between two turns, such as 5s", default="1s", unit="s", zero=True
    )
    tool_output: Number = option(
        "count", "tokens that a tool call returns", default="200", unit="token", zero=True, maximum=MOST_TOKENS
    )
    speculate: str | None = option(
        "text",
        "speculative decoding of the rollouts by the model's own layer for multi-token prediction, or by one like its "
        "last: draft tokens, at typical acceptance or with the tokens that a step yields, such as 3=2.4",
        default=None,
    )

    def check_options(self) -> None:
        """Refuse lengths that a trace has, and tools without turns between which they are called.

        Raises:
            InputError: such options.
        """
        if self.trace is not None:
            self.refuse("output", "spread", "longest", allowed="only without `trace`, which has the lengths")
        if self.turns == 1:
            self.refuse("tool_time", "tool_output", allowed="only with `turns` of 2 and more")
        super().check_options()


@group
class Lagging(Question):
    """A question of how far generation may run ahead of training, and of the chips of each."""

    mode: Mode = option(
        "text",
        "sync (one after the other), one-step-off (rollouts of the next step while this one trains) or async",
        default="sync",
        choices=get_args(Mode),
    )
    staleness: MaybeWhole = whole(
        "steps by which answers may lag behind the weights with async, such as 4", default=None
    )
    partial: bool = option("switch", "partial rollouts: unfinished answers go on in the next step", default=False)
    separate: bool = option("switch", "generate and train on separate chips, as all modes but sync do", default=False)
    gen_chips: MaybeWhole = whole("chips that generate, on separate chips; the fastest split by default", default=None)

    def check_options(self) -> None:
        """Refuse a lag that the mode fixes.

        Raises:
            InputError: such an option.
        """
        require(
            self.staleness is None or self.mode == "async",
            what="--staleness",
            given=self.staleness,
            allowed="only with --mode async",
            nearest="--mode async",
        )
        super().check_options()


@group
class TwoLayouts(Question):
    """A question of a model that is laid out twice: to generate, and to be trained."""

    gen_layout: MaybeLayout = option(
        "text", "layout of a generating replica, such as tp=8; searched by default", default=None
    )
    train_layout: str | None = option(
        "text", "settings of training to fix, such as tp=2,pp=8,ep=16; the others are searched", default=None
    )
    train_precision: str = option("text", "training precision: bf16, fp8, fp8-block, mxfp8 or nvfp4", default="bf16")
    train_stack: str | None = option(
        "text", "training stack or TOML file; nemo-rl by default, maxtext on TPUs", default=None
    )


@question
class RlQuestion(TwoLayouts, Lagging, Rollouts, LearningStep, OnCluster):
    """How long does a step of reinforcement learning take, and which split of the chips is fastest?"""

    chips: MaybeWhole = shared(CHIPS, default=None)
    precision: Text = shared(PRECISION, default="bf16")
    engine: Text = shared(ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    memory_fraction: Number = option(
        "fraction", "fraction of a chip's memory that the engine of rollouts may use", default="0.6", unit="1"
    )
    steps: Number = option(
        "count", "steps of the whole run, for days and dollars", default="1000", unit="1", minimum=1.0
    )
    price: MaybeNumber = shared(PRICE, default=None)


def _summary(answer: Answer[RlQuestion, posttraining_plan.RlPlan]) -> str:
    plan = answer.result
    if plan.best is None or plan.run is None:
        return plan.reason
    run, job = plan.run, plan.job
    paid = "" if run.usd is None else f", {format_usd(run.usd)}"
    return (
        f"{format_seconds(plan.best.seconds)} a step, {run.steps:,.0f} steps in {run.days:,.1f} days{paid};\n  "
        f"{job.model.name} on {several(job.cluster.num_chips, 'chip')} of {job.cluster.name}, "
        f"bound by {plan.best.binds}"
    )


@asks(
    RlQuestion,
    text=lambda answer, width: [budget_report.rl_report(answer.result, width=width)],
    summary=_summary,
    rows=lambda answer: () if answer.result.best is None else answer.result.best.parts,
    figures={
        "step": lambda answer: budget_report.rl_gantt(answer.result),
        "tail": lambda answer: budget_report.running_figure(answer.result),
    },
    entry=Entry(
        group="Decide",
        place=5,
        line="A step of reinforcement learning: split, layouts, time, cost.",
        usual=("prompts", "generations", "input", "output", "longest", "algorithm", "mode", "chips", "steps", "set"),
        request={"model": "qwen3-8b", "on": "dgx-h100", "chips": 16, "output": "1k"},
        is_long=True,
        examples="""
    rackline rl qwen3-32b --on gb200-nvl72 --chips 32 --prompts 64 \\
      --generations 32 --output 3k --longest 4k --mode one-step-off
    rackline rl llama-3.1-8b --on dgx-h100 --chips 16 --mode async \\
      --staleness 4 --plot step.svg
    rackline rl qwen3-8b --on dgx-h100 --chips 16 --output 4k --longest 16k \\
      --turns 8 --tool-time 5s --speculate 3=2.4
""",
    ),
)
def rl(question: RlQuestion, watch: Watch) -> posttraining_plan.RlPlan:
    """A step of reinforcement learning: rollouts, log-probabilities, updates, weights back to the engines.

    Finds the split of the chips and both layouts, says what decides the time and what a part twice as fast would give.

    Example:
        >>> import rackline as rl
        >>> found = rl.rl("llama-3.1-8b", on="dgx-h100", chips=8, prompts=32, generations=8, output="500", longest="1k")
        >>> found.result.best.gen_layout.num_chips
        8
    """
    model, cluster = named(question, watch)

    policy, reward = _with_layers(model, "model"), question.reward
    if isinstance(reward, str):
        reward = lookup_of(question, watch).model(reward)
    prompt_len, lengths = _lengths(question)
    job = posttraining_job.RlJob.of(
        resolve_on(question, policy, cluster, watch),
        prompts=question.prompts,
        generations=question.generations,
        prompt_len=prompt_len,
        lengths=lengths,
        tools=_tools(question),
        speculation=speculation_of(question.speculate),
        train_stack=question.train_stack or "",
        train_precision=question.train_precision,
        algorithm=question.algorithm,
        reference=question.algorithm != "dapo" and not question.no_reference,
        reward=None if reward is None else _with_layers(reward, "--reward"),
        train_batch=question.update,
        trained=question.trained,
    )
    layout, fixed, gen_chips = question.gen_layout, question.train_layout, question.gen_chips
    with watch.moving("searching splits and layouts"):
        return posttraining_plan.rl_plan(
            job,
            _schedule(question),
            steps=question.steps,
            gen_chips=gen_chips,
            gen_layouts=parallel.matching_layouts(layout, policy, gen_chips or cluster.num_chips) if layout else None,
            train_fixed=runs.parse_train_layout(fixed) if fixed else {},
        )


def _lengths(question: RlQuestion) -> tuple[float, posttraining_job.AnswerLengths]:
    """Mean prompt [tokens] and the answers of a question or of its file."""
    path = question.trace
    if path is None:
        mean, spread, longest = question.output, question.spread, question.longest
        return question.input, posttraining_job.AnswerLengths(mean=mean, spread=spread, longest=longest)
    numbers = _one_a_line(path)
    if numbers is not None:
        return question.input, posttraining_job.AnswerLengths.of(numbers)
    question.refuse("input", allowed="only without `trace`, which has the prompts")
    requests = traces.lengths_of_trace(path)
    return float(requests.input_len.mean()), posttraining_job.AnswerLengths.of(requests.output_len.astype(float))


def _one_a_line(path: str) -> Any:
    """The numbers of a file that has nothing else, (n,) [tokens]; None for others.

    Raises:
        InputError: a length below 1 token or above `MOST_TOKENS`.
    """
    import numpy as np

    words = read_text(path, what="trace", allowed="a file of lengths or requests", max_bytes=64 * 2**20).split("\n")
    try:
        numbers = np.array([float(word) for word in words if word.strip()])
    except ValueError:
        return None
    if not numbers.size or not np.all((numbers >= 1.0) & (numbers <= MOST_TOKENS)):
        raise InputError(
            what="trace",
            given=f"{numbers.min():g} to {numbers.max():g} tokens" if numbers.size else "an empty file",
            allowed=f"answers of 1 to {MOST_TOKENS:g} tokens",
            where=path,
        )
    return numbers


def _tools(question: RlQuestion) -> posttraining_job.Tools:
    if question.turns == 1:
        return posttraining_job.Tools()
    return posttraining_job.Tools(pauses=question.turns - 1, seconds=question.tool_time, returned=question.tool_output)


_LAGS: dict[Mode, int] = {"sync": 0, "one-step-off": 1, "async": 2}
"""Steps by which answers lag behind the weights, where nothing is asked for; with async it may be more."""


def _schedule(question: RlQuestion) -> posttraining_plan.Schedule:
    usual = _LAGS[question.mode]
    return posttraining_plan.Schedule(
        mode=question.mode,
        colocated=not (question.separate or usual > 0 or question.gen_chips is not None),
        staleness=question.staleness or usual,
        partial=question.partial,
    )


def _with_layers(model: object, what: str) -> arch.Model:
    if not isinstance(model, arch.Model):
        raise InputError(what=what, given=getattr(model, "name", model), allowed="a model whose layers are known")
    return model
