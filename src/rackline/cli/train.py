"""`rackline train`: layout, step time, memory, days and dollars of a training run."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from rackline.cli.options import (
    Json,
    MaybeValue,
    On,
    Overrides,
    Several,
    Value,
    check_file_to_write,
    read_model_and_cluster,
    tokens,
    whole,
)
from rackline.cli.plot import PlotFile, PlotLook, read_plot
from rackline.cli.screen import print_json, progress, screen
from rackline.errors import InputError
from rackline.units import parse_count


def train(
    model: str,
    /,
    *,
    on: On,
    global_batch: Value,
    seq: Value = "8k",
    chips: MaybeValue = None,
    tokens_in_all: Annotated[MaybeValue, Parameter(name="--tokens")] = None,
    precision: str = "bf16",
    optimizer: str | None = None,
    stack: str = "megatron-bridge",
    layout: str | None = None,
    schedule: Several = None,
    recompute: Several = None,
    expert_load: Value = "1",
    capacity: MaybeValue = None,
    lora: MaybeValue = None,
    price: MaybeValue = None,
    sets: Overrides = None,
    json: Json = False,
    plot: PlotFile = None,
    plot_kind: str | None = None,
    plot_theme: PlotLook = "auto",
    trace: str | None = None,
) -> None:
    """Layout, step time, memory, days and dollars of a training run.

    Looks at every layout × micro-batch × schedule × recompute that fills the chips, and explains the fastest that fits.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        global_batch: tokens of a step, such as 16M; moved by up to 6 % to sequences that replicas can share
        seq: tokens of a sequence, such as 8k (k is 1024 here)
        chips: chips to use; the cluster's own number by default
        tokens_in_all: tokens of the whole run, such as 15.6T, for days, dollars and kWh
        precision: bf16, fp8, fp8-block, mxfp8 or nvfp4
        optimizer: adam, adam-bf16, adam-8bit, momentum, muon or sgd; that of the stack by default
        stack: training stack: nemo, megatron-bridge, megatron-lm, llm-foundry, hai-llm (DeepSeek-V3), llama-3, unit
            (ideal) or a TOML file
        layout: parts that are fixed, such as tp=8,pp=16 or micro_batch=2,zero=3; the others stay free
        schedule: 1f1b, interleaved, gpipe, zb-h1, zb-h2, zb-v or dualpipe; may be repeated; those that the stack has
            by default
        recompute: none, selective, modules, full or reversible; may be repeated; all but reversible by default
        expert_load: tokens of the busiest expert rank over the mean, such as 1.3; 1 is balanced
        capacity: capacity factor of experts: what a rank gets beyond so many times the mean is dropped
        lora: train adapters of this rank beside frozen weights, such as 16
        price: price of a chip, in USD an hour
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
        plot_kind: step (where the time goes; default), pipeline (each stage over time) or memory
        trace: write the same as a Chrome trace to FILE.json
    """
    found_model, cluster = read_model_and_cluster(model, on, chips=chips, price=price, sets=sets)

    from rackline.arch import Model
    from rackline.passes import calibration
    from rackline.search.train import train_plan
    from rackline.search.train_evaluate import TrainJob
    from rackline.search.train_inputs import busiest, find_train_stack, read_recompute, read_schedules, whole_batch
    from rackline.training.precision import train_precision
    from rackline.training.runs import parse_train_layout

    if not isinstance(found_model, Model):
        raise InputError(what="model", given=model, allowed="a model whose layers are known, not only its totals")
    seq_len = whole(_binary(seq), "--seq")
    total = parse_count(tokens_in_all, name="--tokens", minimum=1.0) if tokens_in_all is not None else None
    found_stack = find_train_stack(stack)
    asked = tokens(_binary(global_batch), "--global-batch")
    job = TrainJob(
        model=found_model,
        cluster=cluster,
        precision=train_precision(precision, cluster.chip, optimizer, found_stack),
        stack=found_stack,
        calibration=calibration(found_stack.kernels, cluster.chip),
        global_batch_sequences=whole_batch(asked, seq_len, cluster.num_chips),
        seq_len=seq_len,
        mtp_layers=found_model.mtp_layers,
        expert_load=busiest(expert_load, capacity),
        lora_rank=whole(lora, "--lora") if lora is not None else 0,
    )
    fixed = parse_train_layout(layout) if layout else {}
    schedules, again = read_schedules(schedule, found_stack), read_recompute(recompute)
    drawing = read_plot(plot, "rackline.report.train_figures:FIGURES", plot_kind, plot_theme)
    trace_file = check_file_to_write(trace, "--trace")
    start = time.perf_counter()
    with progress("looking at layouts, micro-batches, schedules and recompute"):
        answer = train_plan(
            job, tokens=total, asked_batch_tokens=asked, fixed=fixed, schedules=schedules, recompute=again
        )
    elapsed_s = time.perf_counter() - start
    from rackline.search.train_timeline import timeline_of

    timeline = timeline_of(answer, answer.best[0]) if answer.best and answer.best[0].layout.pp > 1 else None
    title = f"{found_model.name}, {answer.best[0].layout.label()}" if answer.best else found_model.name
    if trace_file is not None and timeline is None:
        raise InputError(
            what="--trace", given=str(trace_file), allowed="only for a best run with a pipeline (pp above 1)"
        )
    if drawing is not None:
        drawing.write(answer)
    if trace_file is not None and timeline is not None:
        import json as json_text

        from rackline.report.gantt import schedule_trace

        trace_file.write_text(json_text.dumps(schedule_trace(timeline, title)), encoding="utf-8")
    if json:
        print_json({**answer.as_dict(), "elapsed_s": elapsed_s})
        return
    from rackline.report.train_report import train_report

    out = screen()
    out.print(train_report(answer, width=out.width, elapsed_s=elapsed_s, timeline=timeline))


def _binary(text: str) -> str:
    """Lengths of sequences are powers of two: 8k means 8192."""
    stripped = text.strip()
    return f"{stripped[:-1]}Ki" if stripped[-1:] in ("k", "K") and not stripped.endswith("Ki") else stripped
