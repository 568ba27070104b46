"""`rl`: a step of reinforcement learning: split of the chips, both layouts, time, days and dollars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rackline.api import fields as shared
from rackline.api.answer import Answer, asks
from rackline.api.model_question import ModelQuestion
from rackline.api.option import MOST_TOKENS, Quantity, count, layout_text, option, si, whole
from rackline.api.resolve import named, resolve_on
from rackline.api.watch import Watch
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Settings
    from rackline.arch import Model
    from rackline.posttraining.plan import RlPlan, Schedule
    from rackline.report.figure import Figure

Algorithm = Literal["grpo", "dapo", "ppo"]
Mode = Literal["sync", "one-step-off", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RlQuestion(ModelQuestion):
    """How long does a step of reinforcement learning take, and which split of the chips is fastest?"""

    ask: ClassVar[str] = "rl"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    prompts: Quantity = field(default="64", metadata=whole("prompts of a step"))
    generations: Quantity = field(default="16", metadata=whole("answers generated for each prompt"))
    input: Quantity = field(
        default="200",
        metadata=option(
            "count", "mean prompt length in tokens, such as 200", unit="token", minimum=1.0, maximum=MOST_TOKENS
        ),
    )
    output: Quantity = field(
        default="2k",
        metadata=option(
            "count", "mean answer length in tokens, such as 2k", unit="token", minimum=1.0, maximum=MOST_TOKENS
        ),
    )
    spread: Quantity = field(
        default="0.6",
        metadata=option(
            "count",
            "standard deviation of the answer lengths over their mean, before long ones are cut off; 0 for equal ones",
            unit="1",
            zero=True,
            maximum=10.0,
        ),
    )
    longest: Quantity = field(
        default="8k",
        metadata=option(
            "count", "answer length at which generation is cut off", unit="token", minimum=1.0, maximum=MOST_TOKENS
        ),
    )
    algorithm: Algorithm = field(
        default="grpo",
        metadata=option(
            "text",
            "grpo (with a reference model), dapo (without one) or ppo (with a reference and a critic of equal size)",
            choices=get_args(Algorithm),
        ),
    )
    no_reference: bool = field(
        default=False, metadata=option("switch", "leave out the reference model that the algorithm has")
    )
    reward: ModelLike | None = field(
        default=None, metadata=option("object", "reward model that reads every answer; rules by default")
    )
    trained: Quantity | None = field(
        default=None, metadata=whole("answers of a step that are trained on; all of them by default")
    )
    update: Quantity | None = field(
        default=None, metadata=whole("answers per update of the weights; all of a step in one update by default")
    )
    mode: Mode = field(
        default="sync",
        metadata=option(
            "text",
            "sync (one after the other), one-step-off (rollouts of the next step while this one trains) or async",
            choices=get_args(Mode),
        ),
    )
    staleness: Quantity | None = field(
        default=None, metadata=whole("steps by which answers may lag behind the weights with async, such as 4")
    )
    in_flight: bool = field(
        default=False, metadata=option("switch", "update the weights of engines while they generate")
    )
    partial: bool = field(
        default=False, metadata=option("switch", "partial rollouts: unfinished answers go on in the next step")
    )
    separate: bool = field(
        default=False,
        metadata=option("switch", "generate and train on separate chips, as all modes but sync do"),
    )
    chips: Quantity | None = field(default=None, metadata=shared.CHIPS)
    gen_chips: Quantity | None = field(
        default=None, metadata=whole("chips that generate, on separate chips; the fastest split by default")
    )
    gen_layout: LayoutLike | None = field(
        default=None, metadata=option("text", "layout of a generating replica, such as tp=8; searched by default")
    )
    train_layout: str | None = field(
        default=None,
        metadata=option("text", "settings of training to fix, such as tp=2,pp=8,ep=16; the others are searched"),
    )
    precision: str = field(default="bf16", metadata=shared.PRECISION)
    train_precision: str = field(
        default="bf16", metadata=option("text", "training precision: bf16, fp8, fp8-block, mxfp8 or nvfp4")
    )
    calibration: CalibrationLike = field(default="auto", metadata=shared.CALIBRATION)
    train_stack: str | None = field(
        default=None,
        metadata=option("text", "training stack or TOML file; the newest of megatron-bridge by default"),
    )
    memory_fraction: Quantity = field(default="0.6", metadata=shared.MEMORY_FRACTION)
    steps: Quantity = field(
        default="1000", metadata=option("count", "steps of the whole run, for days and dollars", unit="1", minimum=1.0)
    )
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    set: Settings | None = field(default=None, metadata=shared.SET)


def _text(answer: Answer[RlQuestion, RlPlan], width: int) -> Iterable[Any]:
    from rackline.report.rl_report import rl_report

    yield rl_report(answer.result, width=width)


def _summary(answer: Answer[RlQuestion, RlPlan]) -> str:
    from rackline.units import format_seconds, format_usd

    plan = answer.result
    if plan.best is None or plan.run is None:
        return plan.reason
    run, job = plan.run, plan.job
    paid = "" if run.usd is None else f", {format_usd(run.usd)}"
    return (
        f"{format_seconds(plan.best.seconds)} a step, {run.steps:,.0f} steps in {run.days:,.1f} days{paid};\n  "
        f"{job.model.name} on {job.cluster.num_chips:,} chips of {job.cluster.name}, bound by {plan.best.binds}"
    )


def _rows(answer: Answer[RlQuestion, RlPlan]) -> Iterable[Any]:
    best = answer.result.best
    return () if best is None else best.parts


def _gantt(answer: Answer[RlQuestion, RlPlan]) -> Figure:
    from rackline.report.rl_figures import rl_gantt

    return rl_gantt(answer.result)


def _running(answer: Answer[RlQuestion, RlPlan]) -> Figure:
    from rackline.report.rl_figures import running_figure

    return running_figure(answer.result)


@asks(RlQuestion, text=_text, summary=_summary, rows=_rows, figures={"step": _gantt, "tail": _running})
def rl(question: RlQuestion, watch: Watch) -> RlPlan:
    """A step of reinforcement learning: rollouts, log-probabilities, updates, weights back to the engines.

    Finds the split of the chips and both layouts, says what decides the time and what a part twice as fast would give.

    Example:
        >>> import rackline as rl
        >>> found = rl.rl("llama-3.1-8b", on="dgx-h100", chips=8, prompts=32, generations=8, output="500", longest="1k")
        >>> found.result.best.gen_layout.num_chips
        8
    """
    model, cluster = named(question, watch)

    from rackline.parallel import matching_layouts
    from rackline.posttraining.job import AnswerLengths, RlJob
    from rackline.posttraining.plan import rl_plan
    from rackline.training.runs import parse_train_layout

    policy = _with_layers(model, "model")
    job = RlJob.of(
        resolve_on(question, policy, cluster, watch, question.calibration),
        prompts=count(question.prompts),
        generations=count(question.generations),
        prompt_len=si(question.input),
        lengths=AnswerLengths(mean=si(question.output), spread=si(question.spread), longest=si(question.longest)),
        train_stack=question.train_stack or "",
        train_precision=question.train_precision,
        algorithm=question.algorithm,
        reference=question.algorithm != "dapo" and not question.no_reference,
        reward=None if question.reward is None else _reward(question, watch),
        train_batch=count(question.update),
        trained=count(question.trained),
    )
    layout, fixed = layout_text(question.gen_layout), layout_text(question.train_layout)
    gen_chips = count(question.gen_chips)
    with watch.moving("searching splits and layouts"):
        return rl_plan(
            job,
            _schedule(question, gen_chips),
            steps=si(question.steps),
            gen_chips=gen_chips,
            gen_layouts=matching_layouts(layout, policy, gen_chips or cluster.num_chips) if layout else None,
            train_fixed=parse_train_layout(fixed) if fixed else {},
        )


_LAGS: dict[Mode, int] = {"sync": 0, "one-step-off": 1, "async": 2}
"""Steps by which answers lag behind the weights, where nothing is asked for; with async it may be more."""


def _schedule(question: RlQuestion, gen_chips: int | None) -> Schedule:
    from rackline.posttraining.plan import Schedule

    lag = count(question.staleness)
    if lag is not None and question.mode != "async":
        raise InputError(what="--staleness", given=lag, allowed="only with --mode async", nearest="--mode async")
    usual = _LAGS[question.mode]
    return Schedule(
        mode=question.mode,
        colocated=not (question.separate or usual > 0 or gen_chips is not None),
        staleness=lag or usual,
        in_flight=question.in_flight,
        partial=question.partial,
    )


def _with_layers(model: object, what: str) -> Model:
    from rackline.arch import Model

    if not isinstance(model, Model):
        raise InputError(what=what, given=getattr(model, "name", model), allowed="a model whose layers are known")
    return model


def _reward(question: RlQuestion, watch: Watch) -> Model:
    from rackline.api.resolve import lookup_of

    given = question.reward
    return _with_layers(lookup_of(question, watch).model(given) if isinstance(given, str) else given, "--reward")
