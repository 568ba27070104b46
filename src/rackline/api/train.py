"""`train`: layout, step time, memory, days and dollars of a training run, and how a long run is operated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.groups import CHIPS, POWER_CAP, PRICE, PUE, OnCluster
from rackline.api.question import (
    MOST_SECONDS,
    MOST_TOKENS,
    MaybeNumber,
    MaybeWhole,
    Number,
    Option,
    Question,
    Text,
    Texts,
    group,
    option,
    question,
    shared,
    whole,
)
from rackline.api.resolve import named
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.files import write_text
from rackline.late import late
from rackline.units import format_percent, format_seconds, format_usd, several

with late:
    from rackline import arch
    from rackline.bands import bands
    from rackline.report import exports, memory_report, train_report
    from rackline.search import changes as search_changes, train as search_train, train_space
    from rackline.training import (
        practice,
        reliability,
        runs,
        schedules,
        stack as training_stack,
        system as training_system,
    )


OPERATION = "Operation of a long run"
Checkpoint = Literal["sync", "async"]


@group
class Operated(Question):
    """A question of a run that fails, is saved, and goes on."""

    checkpoint: Checkpoint = option(
        "text",
        "checkpoints: sync, which stop work until they are in the store, or async, which stop it until they are in the "
        "memory of the hosts and are written from there",
        default="sync",
        choices=get_args(Checkpoint),
        group=OPERATION,
    )
    store: MaybeNumber = option(
        "count",
        "bandwidth of the store of the checkpoints in bytes/s, all chips together, such as 2T; 0.25G a chip by default",
        default=None,
        unit="B/s",
        minimum=1.0,
        group=OPERATION,
    )
    failure_hours: MaybeNumber = option(
        "count",
        "chip-hours between failures that stop the run; 50,630 by default, as Llama 3 405B had on H100",
        default=None,
        unit="h",
        minimum=1.0,
        group=OPERATION,
    )
    restart: Number = option(
        "seconds",
        "time to detect a failure, replace the host and load the last checkpoint",
        default="10min",
        unit="s",
        maximum=MOST_SECONDS,
        group=OPERATION,
    )
    spares: MaybeWhole = whole(
        "spare hosts; a run that finds none waits for a repair of 2.2 h; enough by default",
        default=None,
        minimum=0,
        group=OPERATION,
    )
    jitter: MaybeNumber = option(
        "count",
        "slow ranks: standard deviation of the step of a rank over its mean, such as 0.01; all wait for the slowest",
        default=None,
        unit="1",
        maximum=0.2,
        group=OPERATION,
    )
    slow_node: Number = option(
        "count",
        "one slow host: its step over that of the others, such as 1.1",
        default="1",
        unit="1",
        minimum=1.0,
        maximum=100.0,
        group=OPERATION,
    )


LoraTargets = Literal["all", "attention", "qkv"]
Pace = Literal["published", "tuned"]
ContextName = Literal["ring", "all-gather", "ulysses"]


@group
class TrainingTokens(Question):
    """A question of the tokens of a run: of a step, of a sequence, of all of it."""

    global_batch: Number = option(
        "count",
        "global batch size in tokens, such as 16M; adjusted by up to 6 % to divide evenly over replicas",
        unit="token",
        minimum=1.0,
        maximum=MOST_TOKENS,
    )
    seq: MaybeWhole = whole(
        "sequence length in tokens, such as 4096 or 8Ki (k is 1000); by default 8192, at most the context of the model",
        default=None,
    )
    tokens: MaybeNumber = option(
        "count",
        "training tokens of the whole run, such as 15.6T, for days, dollars and kWh",
        default=None,
        unit="token",
        minimum=1.0,
    )
    packed: MaybeNumber = option(
        "count",
        "mean length in tokens of the samples packed into a sequence, such as 200; attention stays within a sample",
        default=None,
        unit="token",
        minimum=1.0,
        maximum=MOST_TOKENS,
    )


@group
class LaidOut(Question):
    """A question of how training is laid out over chips, and what it recomputes to fit their memory."""

    layout: str | None = option(
        "text",
        "settings to fix, such as tp=8,pp=16 or micro_batch=2,zero=3; the others are searched",
        default=None,
    )
    schedule: Texts = option(
        "text",
        "pipeline schedule: 1f1b, interleaved, gpipe, zb-h1, zb-h2, zb-v or dualpipe; may be repeated; those "
        "of the stack by default",
        default=None,
        several=True,
        repeated=True,
    )
    recompute: Texts = option(
        "text",
        "activation recomputation: none, selective, modules, selective-op (by operators, as torchtitan), full or "
        "reversible; may be repeated; what the stack has by default",
        default=None,
        several=True,
        repeated=True,
    )
    context_parallel: ContextName | None = option(
        "text",
        "context parallelism, where cp is above 1: ring, all-gather or ulysses; the stack's by default",
        default=None,
        choices=get_args(ContextName),
    )
    expert_load: Number = option(
        "count",
        "expert load imbalance: tokens of the busiest expert rank over the mean, such as 1.3; 1 is balanced",
        default="1",
        unit="1",
        minimum=1.0,
        maximum=1000.0,
    )
    capacity_factor: MaybeNumber = option(
        "count",
        "expert capacity factor: tokens beyond this multiple of a rank's mean are dropped",
        default=None,
        unit="1",
        minimum=1.0,
        maximum=1000.0,
    )


@group
class FineTuned(Question):
    """A question of a run that may train adapters beside frozen weights."""

    lora: MaybeWhole = whole("LoRA: train adapters of this rank and freeze the weights, such as 16", default=None)
    lora_targets: LoraTargets = option(
        "text",
        "products with adapters: all (attention and dense blocks), attention, or qkv",
        default="all",
        choices=get_args(LoraTargets),
    )
    frozen: str | None = option(
        "text",
        "QLoRA: data type in which frozen weights are kept, nf4; that of the products by default",
        default=None,
    )


@question
class TrainQuestion(FineTuned, LaidOut, TrainingTokens, OnCluster, Operated):
    """What layout, step time, memory, days and dollars does a training run have?"""

    chips: MaybeWhole = shared(CHIPS, default=None)
    precision: Text = option("text", "training precision: bf16, fp8, fp8-block, mxfp8 or nvfp4", default="bf16")
    optimizer: str | None = option(
        "text",
        "optimiser: adam, adam-bf16, adam-8bit, momentum, muon or sgd; the stack's by default",
        default=None,
    )
    stack: str | None = option(
        "text",
        "training stack: nemo, megatron-bridge, megatron-lm, llm-foundry, torchtitan, torch-fsdp, torch-eager "
        "(transformers as it comes), hai-llm (DeepSeek-V3), llama-3, maxtext, unit (ideal) or a TOML file; the newest "
        "of megatron-bridge by default, maxtext on TPUs",
        default=None,
    )
    pace: Pace = option(
        "text",
        "pace of steps: published, as pre-training runs under this stack and its kin went, or tuned, as the benchmarks "
        "of frameworks go; fine-tuning, TPUs and ideal kernels are tuned",
        default="published",
        choices=get_args(Pace),
    )
    power_cap: MaybeNumber = shared(POWER_CAP, default=None)
    pue: Number = shared(PUE, default="1")
    price: MaybeNumber = shared(PRICE, default=None)


DEFAULT_SEQ_LEN = 8192
"""Tokens of a sequence where a question states none: that of Llama 3's pre-training before its context was lengthened
(arXiv:2407.21783, section 3.4.1)."""


def _seq_len(question: TrainQuestion, model: arch.AnyModel, watch: Watch) -> int:
    """Length of a sequence [tokens]: as asked for; else the default, within the model's context."""
    seq_len = question.seq
    if seq_len is None:
        return min(DEFAULT_SEQ_LEN, getattr(model, "max_context_len", None) or DEFAULT_SEQ_LEN)
    thousands = seq_len // 1000
    if seq_len % 1000 == 0 and thousands.bit_count() == 1:
        watch.takes(f"sequences of {seq_len:,} tokens: k is 1000; {thousands}Ki is {1024 * thousands:,} (--seq)")
    return seq_len


Answered: TypeAlias = "Answer[TrainQuestion, search_train.TrainPlan]"


def _timeline(plan: search_train.TrainPlan) -> schedules.Timeline | None:
    """What each stage of the best run does when; None without a pipeline."""
    return search_train.timeline_of(plan, plan.best[0]) if plan.best and plan.best[0].layout.pp > 1 else None


def _text(answer: Answered, width: int) -> Iterable[Any]:
    found, took_s = answer.result, answer.elapsed_s
    yield train_report.train_report(
        found, bands=_measured(answer), width=width, elapsed_s=took_s, timeline=_timeline(found)
    )


def _measured(answer: Answered) -> Sequence[bands.Interval]:
    """What measured runs of this kind deviate by: published runs at their pace, then the steps of benchmarks."""
    plan, system = answer.result, answer.result.system
    if not plan.best:
        return ()
    runs, tuned_s = plan.practice, plan.best[0].tuned_s
    tuned = bands.of_training(
        system.model,
        system.cluster.chip.name,
        system.stack.name,
        tuned_s,
        tuning=system.lora_rank > 0 or answer.question.packed is not None,
    )
    if runs is None:
        return tuned
    as_run = bands.Interval(
        metric="step_s",
        predicted=plan.best[0].step_s,
        low=tuned_s * runs.low,
        high=tuned_s * runs.high,
        group=runs.words,
        num_cases=runs.num_runs,
    )
    return as_run, *tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A plan and how long it took [s]."""

    json_keys: ClassVar = ("*result", "elapsed_s")

    result: search_train.TrainPlan
    elapsed_s: float


def _data(answer: Answered) -> Timed:
    return Timed(result=answer.result, elapsed_s=answer.elapsed_s)


def _summary(answer: Answered) -> str:
    plan = answer.result
    if not plan.best:
        return plan.reason
    best = plan.best[0]
    whole_run = "" if best.days is None else f", {best.days:,.1f} days"
    paid = "" if best.usd is None else f", {format_usd(best.usd)}"
    return (
        f"{format_seconds(best.step_s)} a step, MFU {format_percent(best.mfu)}{whole_run}{paid};\n  "
        f"{plan.system.model.name} on {several(plan.system.cluster.num_chips, 'chip')} of {plan.system.cluster.name} "
        f"with {best.layout.label()}"
    )


def _write_trace(answer: Answered, path: Path, _: str) -> None:
    plan = answer.result
    timeline = _timeline(plan)
    if timeline is None:
        raise InputError(what="trace", given=str(path), allowed="only for a best run with a pipeline (pp above 1)")
    title = f"{plan.system.model.name}, {plan.best[0].layout.label()}"
    write_text(path, json.dumps(exports.schedule_trace(timeline, title)), what="trace")


@asks(
    TrainQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: answer.result.best,
    data=_data,
    figures={
        "step": lambda answer: train_report.step_figure(answer.result),
        "pipeline": lambda answer: train_report.pipeline_of_plan(answer.result),
        "mfu": lambda answer: train_report.mfu_figure(answer.result),
        "memory": lambda answer: train_report.train_memory_figure(answer.result),
        "memory-time": lambda answer: memory_report.memory_over_time(answer.result),
    },
    files={
        "trace": SideFile(
            option=Option(kind="text", help="write the pipeline of the best run as a Chrome trace to FILE.json"),
            write=_write_trace,
        )
    },
    interval=lambda answer: bands.interval_line(_measured(answer)[:1], "runs"),
    entry=Entry(
        group="Decide",
        place=4,
        line="Layout, step time, memory, days and dollars of a run.",
        usual=("seq", "chips", "tokens", "precision", "layout", "recompute", "set"),
        request={"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 64, "tokens": "1T", "global_batch": "4M"},
        is_long=True,
        sweep_s=1.0,
        sweep_results="best.",
        view={
            "id": "train",
            "place": 13,
            "title": "Train",
            "question": "How long does a training run take, and how is it laid out?",
            "claims": ["C59", "C63", "C64", "C132"],
            "figures": ["step", "memory"],
            "fields": {
                "model": "llama-3.1-70b",
                "on": "dgx-h100",
                "chips": "256",
                "tokens": "15T",
                "global_batch": "8M",
                "schedule": "",
                "precision": "",
            },
            "stop": "chips",
            "stops": ["128", "256", "1024"],
        },
        examples="""
    rackline train llama-3.1-405b --on dgx-h100 --chips 16384 \\
      --tokens 15.6T --global-batch 16M
    rackline train deepseek-v3 --on gb200-nvl72 --chips 2304 \\
      --global-batch 63M --seq 4Ki --precision mxfp8 --plot pipeline.html --plot-kind pipeline
    rackline train llama-3.1-70b --on dgx-h100 --chips 64 \\
      --global-batch 1M --layout tp=4,pp=4 --recompute full --json
""",
    ),
)
def train(question: TrainQuestion, watch: Watch) -> search_train.TrainPlan:
    """Layout, step time, memory, days and dollars of a training run.

    Looks at every layout × micro-batch × schedule × recompute that fills the chips, and explains the fastest that fits.

    Example:
        >>> import rackline as rl
        >>> found = rl.train("llama-3.1-8b", on="dgx-h100", chips=64, tokens="1T", global_batch="4M")
        >>> found.result.best[0].layout.num_chips
        64
    """
    model, cluster = named(question, watch)

    load, asked = question.expert_load, question.global_batch
    seq_len = _seq_len(question, model, watch)
    system = training_system.TrainingSystem.of(
        model,
        cluster,
        stack=question.stack or "",
        precision=question.precision,
        optimizer=question.optimizer,
        frozen=question.frozen,
        global_batch_sequences=train_space.whole_batch(asked, seq_len, cluster.num_chips),
        seq_len=seq_len,
        expert_load=min(load, question.capacity_factor or load),  # a capacity factor drops the rest
        lora_rank=question.lora or 0,
        lora_targets=question.lora_targets,
        packed_len=question.packed or 0.0,
        context=question.context_parallel or "",
    )
    own = "" if question.stack else training_stack.stack_that_trained(model.name)
    if own:
        watch.takes(f"stack {system.stack.name}; its authors trained {model.name} with their own (--stack {own})")
    fixed = runs.parse_train_layout(question.layout) if question.layout else {}
    with watch.moving("searching layouts, micro-batches, schedules and recomputation"):
        plan = search_train.train_plan(
            system,
            tokens=question.tokens,
            pue=question.pue,
            asked_batch_tokens=asked,
            practice=practice.practice_of(system) if question.pace == "published" else None,
            operations=reliability.Operations(
                chip_hours=question.failure_hours or reliability.CHIP_HOURS_BETWEEN_FAILURES,
                restart_s=question.restart,
                checkpoint=question.checkpoint,
                store_bytes_per_s=question.store or 0.0,
                spares=question.spares,
                jitter=question.jitter or 0.0,
                slow_node=question.slow_node,
            ),
            fixed=fixed,
            schedules=question.schedule,
            recompute=question.recompute,
        )
    if plan.best:
        return plan
    with watch.moving("nothing fits: trying changes"):
        changes = search_changes.TrainChanges(
            plan=plan,
            fixed=fixed,
            schedules=question.schedule or (),
            recompute=question.recompute or (),
            pue=question.pue,
        )
        return replace(plan, misfit=changes.misfit())
