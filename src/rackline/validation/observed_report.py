"""Observed runs and the numbers fitted to them: terminal reports, the figure, and the file that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict, cast

import numpy as np
from rich.console import Group
from rich.text import Text

from rackline.catalog.base import schema_of
from rackline.display.axes import Layer, Measure, Row, colour, hovered, linear_axis, log_axis, thinned
from rackline.display.column import Column, Sheet, spaced, stacked
from rackline.display.figure import Figure
from rackline.display.wording import Prose, composed, percent, written
from rackline.files import rounded, toml_text
from rackline.passes.features import Array
from rackline.serving.stack import Stack
from rackline.units import format_count, format_seconds
from rackline.validation.diagnosis import Diagnosis
from rackline.validation.observed import GeneratorLimits, ObservedRequest, ObservedRun
from rackline.validation.observed_fit import DETERMINED, Estimate, ObservedFit

_TIMES = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole request"}
_WORDS = {
    "finished": "finished", "timeout": "took too long", "stalled": "stalled", "cut": "were cut off",
    "garbage": "got no readable stream", "connection": "found no connection", "rate_limited": "were limited (429)",
    "refused": "were refused (4xx)", "server_error": "met an error of the server (5xx)",
    "unfinished": "were in flight at the end", "not_sent": "were not sent",
}  # fmt: skip
_MOST_POINTS = 3000
_LEAST_PROBABILITY = 0.01


class ObservedSpread(TypedDict):
    """Mean and percentiles of a time [s]; None where nothing was measured."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class ObservedClass(TypedDict):
    """Requests of one class; those that were limited (429) count as refused."""

    name: str
    requests: int
    finished: int
    refused: int
    ttft_s: ObservedSpread
    tpot_s: ObservedSpread


class ObservedSummary(TypedDict):
    """What a run came to, in SI units."""

    requests: int
    finished: int
    outcomes: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    without_usage: int
    retries: int
    malformed_events: int
    ttft_s: ObservedSpread
    tpot_s: ObservedSpread
    e2e_s: ObservedSpread
    by_class: list[ObservedClass]


def summary_of_run(run: ObservedRun) -> ObservedSummary:
    """Counts, rates and percentiles of a run."""
    done = [one for one in run.requests if one.outcome == "finished"]
    took_s = run.duration_s
    tokens = sum(one.tokens for one in done)
    return {
        "requests": len(run.requests),
        "finished": len(done),
        "outcomes": run.counts,
        "duration_s": took_s,
        "requests_per_s": len(done) / took_s if took_s else 0.0,
        "output_tokens_per_s": tokens / took_s if took_s else 0.0,
        "input_tokens": sum(one.prompt_len for one in done),
        "output_tokens": tokens,
        "cached_tokens": sum(one.cached_tokens or 0 for one in done),
        "without_usage": sum(one.output_tokens is None for one in done),
        "retries": sum(one.retries for one in run.requests),
        "malformed_events": sum(one.malformed for one in run.requests),
        "ttft_s": _spread(run.measured("ttft_s")),
        "tpot_s": _spread(run.measured("tpot_s")),
        "e2e_s": _spread(run.measured("e2e_s")),
        "by_class": [_class(run, name) for name in dict.fromkeys(one.class_name for one in run.requests) if name],
    }


def _class(run: ObservedRun, name: str) -> ObservedClass:
    mine = [one.outcome for one in run.requests if one.class_name == name]
    return {
        "name": name,
        "requests": len(mine),
        "finished": mine.count("finished"),
        "refused": mine.count("rate_limited"),
        "ttft_s": _spread(run.measured("ttft_s", name)),
        "tpot_s": _spread(run.measured("tpot_s", name)),
    }


def _spread(values: Array) -> ObservedSpread:
    if not len(values):
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    p50, p90, p99 = (float(one) for one in np.percentile(values, (50, 90, 99)))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}


def observed_report(run: ObservedRun) -> Group:
    """What `rackline observe` prints: counts, rates, latencies, and what limited the load generator."""
    data = summary_of_run(run)
    failed = ", ".join(f"{number:,} {_WORDS[name]}" for name, number in data["outcomes"].items() if name != "finished")
    reasons = list(dict.fromkeys(one.error for one in run.requests if one.error and one.outcome != "finished"))
    body = composed(
        (
            f"{data['finished']:,} of {data['requests']:,} requests finished",
            "bold green" if data["finished"] == data["requests"] else "bold yellow",
        ),
        f" in {format_seconds(data['duration_s'])}: {run.served_name or run.source}",
        f"\n{written(data['requests_per_s'])} requests/s, {format_count(data['output_tokens_per_s'])} output tokens/s; "
        f"{format_count(data['input_tokens'])} prompt and {format_count(data['output_tokens'])} output tokens",
        f"\n{percent(data['cached_tokens'] / data['input_tokens'])} of the prompt tokens were cached"
        if data["cached_tokens"]
        else None,
        (f"\n{failed}", "yellow") if failed else None,
        *((f"\n  {reason}", "dim") for reason in reasons[:3]),
        f"\nsent again {data['retries']:,} times after 429 or 503" if data["retries"] else None,
    )
    spreads = (data["ttft_s"], data["tpot_s"], data["e2e_s"])
    rows = [{"latency": label, **spread} for label, spread in zip(_TIMES.values(), spreads, strict=True)]
    columns: list[Column[Any]] = [
        Column("latency"),
        *(Column(name, name, "s") for name in ("mean", "p50", "p90", "p99")),
    ]
    of: list[Column[Any]] = [
        Column("name", "class"),
        *(Column(name, name, "whole") for name in ("requests", "finished", "refused")),
        *(Column(f"{key}.{place}", f"{name} {place}", "s", lambda row, key=key, place=place: row[key][place])
          for key, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")) for place in ("p50", "p99")),
    ]  # fmt: skip
    return spaced(
        [
            body,
            Sheet("latency", columns, rows, title="latency"),
            Sheet("by_class", of, data["by_class"], title="by class") if data["by_class"] else None,
            None if run.generator is None else _generator(run.generator),
        ]
    )


def _generator(found: GeneratorLimits) -> Prose:
    """The load generator's own errors."""
    late, lag, busy = _seconds(found.late_p99_s), _seconds(found.lag_p99_s), percent(found.busy_share)
    told = f"load generator: sent {late} late, read {lag} late at p99; {busy} of a core, at most "
    return Prose(f"{told}{found.in_flight:,} requests at once", style="dim")


def _seconds(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else format_seconds(value)


def observed_figure(run: ObservedRun) -> Figure:
    """Latency of each finished request over the moment at which it was sent."""
    sent = Measure(field="sent_s", title="sent at", kind="seconds")
    latency = Measure(field="latency_s", title="latency", kind="seconds")
    done = [one for one in run.requests if one.outcome == "finished" and one.sent_s is not None]
    rows: list[Row] = [
        {"metric": label, "sent_s": one.sent_s, "latency_s": value, "prompt": one.prompt_len, "answer": one.tokens}
        for one in (done[index] for index in thinned(len(done), _MOST_POINTS))
        for name, label in _TIMES.items()
        if math.isfinite(value := getattr(one, name)) and value > 0
    ]
    metrics = [label for label in _TIMES.values() if any(row["metric"] == label for row in rows)]
    encoding: Layer = {
        "x": linear_axis(sent, [row["sent_s"] for row in rows]),
        "y": log_axis(latency, [row["latency_s"] for row in rows]),
        "color": colour(metrics, "metric"),
    }
    shown = [
        Measure(field="metric", title="metric"), sent, latency, Measure(field="prompt", title="prompt [tokens]"),
        Measure(field="answer", title="answer [tokens]"),
    ]  # fmt: skip
    return Figure(
        title=f"{len(done):,} of {len(run.requests):,} requests finished",
        subtitle=f"{run.served_name}, {run.started}",
        description="Latency of each request over the moment at which it was sent.",
        spec={
            "layer": [hovered({"type": "point", "filled": True, "size": 18}, encoding, shown)],
            "data": {"values": rows},
        },
    )


_ERRORS = {"shipped": "shipped", "fitted": "fitted", "held_out": "held out"}


def observed_fit_report(fit: ObservedFit, files: Sequence[str]) -> Group:
    """The numbers with their shipped values, and the errors before, after and held out."""
    kernels = "kernels measured there" if fit.has_table else "kernels not measured there"
    head = composed(
        (f"{fit.requests:,} requests of {fit.runs:,} {'run' if fit.runs == 1 else 'runs'}", "bold green"),
        f" of {fit.stack.name} on {fit.chip} ({kernels})",
    )
    columns: list[Column[Estimate]] = [
        Column("meaning", "", "words"),
        Column("shipped", "shipped", "figures", lambda one: _shown(one, one.shipped)),
        Column("value", "fitted", "figures", lambda one: _shown(one, one.value)),
        Column("low", "68 % from", "figures", lambda one: _shown(one, one.low)),
        Column("high", "to", "figures", lambda one: _shown(one, one.high)),
        Column(
            "determined",
            "determined",
            "figures",
            lambda one: Text(percent(one.determined), style="" if one.determined >= DETERMINED else "yellow"),
        ),
    ]
    numbers = Sheet("numbers", columns, fit.estimates, title="numbers")
    of: list[Column[Any]] = [Column("metric", "", getter=lambda one: _TIMES[one.metric])]
    for kind, title in _ERRORS.items():
        of += [Column(f"{kind}_median", title, "share"), Column(f"{kind}_p90", "p90", "share")]
    errors = Sheet("errors", of, fit.errors, title="|predicted / measured - 1|, median and 90th percentile")
    what = "each run" if fit.folds == fit.runs else "each quarter of the time"
    written_to = Text(f"written to {', '.join(files)}", style="dim") if files else None
    held_out = Text(f"held out: {what} in turn", style="dim")
    return spaced([head, numbers, stacked(errors, held_out, written_to)])


def _shown(one: Estimate, value: float) -> str:
    if one.unit != "s":
        return f"× {written(value)}"
    return "0" if value == 0.0 else format_seconds(value)


_MS = 1e-3
_DIGITS = 6  # of numbers: shares of peaks are products of several


def calibration_text(fit: ObservedFit, name: str) -> str:
    """The file.

    Args:
        fit: numbers with their errors.
        name: of the calibration and its stack.
    """
    date = datetime.now(UTC).date().isoformat()
    held = {one.metric: one for one in fit.errors}
    errors = ", ".join(
        f"{metric.removesuffix('_s')} {one.held_out_median:.1%} (shipped {one.shipped_median:.1%})"
        for metric, one in held.items()
    )
    said = f"fitted to {fit.requests} requests of {fit.runs} observed runs; held-out median errors: {errors}"
    source = {"fields": ["*"], "kind": "derived", "citation": f"{said}, rackline calibrate {date}", "accessed": date}
    numbers, stack = fit.calibration, fit.stack
    calibration: dict[str, Any] = {
        "name": name,
        "full_name": f"{stack.name} on {fit.chip}, observed",
        "stack": stack.name,
        "description": f"Numbers of {numbers.name} on {fit.chip}, {said}.",
        "evidence": "derived",
        "step_policy": numbers.step_policy,
        "host_s_per_step": numbers.host_s_per_step,
        "context_block": numbers.context_block,
        "separate_quantise": list(numbers.separate_quantise),
        "operation": [
            {
                "chip": fit.chip, "class": kind, "dtype": dtype, "overhead_s": one.overhead_s,
                "eta_compute": one.eta_compute, "eta_memory": one.eta_memory, "exposed": one.exposed,
                "depth_s": one.depth_s, "tile_s": one.tile_s, "cached": one.cached, "quantise_s": one.quantise_s,
                "permute": one.permute, "evidence": "derived", "note": one.origin,
            }
            for (kind, dtype), one in sorted(numbers.operations.items())
        ],
        "collective": [
            {
                "chip": fit.chip, "class": kind, "group_size": size, "overhead_s": overhead_s,
                "alpha_s": one.alpha_s, "eta_link": eta_link, "ramp": ramp, "evidence": "derived", "note": one.origin,
            }
            for kind, one in sorted(numbers.collectives.items())
            for size, overhead_s, eta_link, ramp in zip(
                one.group_sizes, one.overheads_s, one.eta_links, one.ramps, strict=True
            )
        ],
        "sources": [source],
    }  # fmt: skip
    comments = ["Written by rackline calibrate --from; works wherever a calibration is asked for."]
    errors_of = {
        metric: {"n": one.n, "median_abs_error": one.held_out_median, "p90_abs_error": one.held_out_p90}
        for metric, one in held.items()
    }
    parts = {"calibration": calibration, "stack": _stack(stack, name, source), "measured": {"held_out": errors_of}}
    return toml_text(rounded(parts, _DIGITS), comments)


def _stack(stack: Stack, name: str, source: dict[str, Any]) -> dict[str, Any]:
    """The stack; what its version does to steps and experts stands in the calibration already."""
    rest = stack.with_values(
        {
            "host.s_per_step": 0.0,
            "host.gap_s_per_layer": 0.0,
            "experts.untuned": (),
            "experts.untuned_slowdown": 1.0,
        }
    )
    known = set(schema_of(Stack).model_fields) - {"name", "full_name", "aliases", "sources", "defaults"}
    return {
        "name": name,
        "full_name": f"{stack.name}, observed",
        **{key: value for key in sorted(known) if (value := _in_file(getattr(rest, key))) is not None},
        "sources": [source],
    }


def _in_file(value: Any) -> Any:
    """Return a value of an object as its file writes it: a dataclass as a table, without what is missing."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    own = {one.name: getattr(value, one.name) for one in fields(value) if one.metadata.get("in_files", True)}
    return {key: inner for key, inner in own.items() if inner is not None}


_PROBABILITY = Measure(field="probability", title="probability", kind="share")


def causes_figure(runs: Sequence[Diagnosis]) -> Figure:
    """How likely each cause made a run slow, the runs by colour; causes that no run makes likely are left out."""
    kept = {one.cause.key for found in runs for one in found.suspects if one.probability >= _LEAST_PROBABILITY}
    rows: list[Row] = [
        {"run": found.run_id, "cause": one.cause.key, "title": one.cause.title, "probability": one.probability}
        for found in runs
        for one in found.suspects
        if one.cause.key in kept
    ] + [
        {"run": found.run_id, "cause": "nothing", "title": "nothing wrong", "probability": found.nothing}
        for found in runs
    ]
    x = linear_axis(_PROBABILITY, [0.0, 1.0], zero=True)
    y: Layer = {"field": "cause", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False}}
    names = [found.run_id for found in runs]
    shown = [Measure(field="run", title="run"), Measure(field="title", title="cause"), _PROBABILITY]
    encoding: Layer = {"x": x, "y": y, "color": colour(names, "run")}
    if len(names) > 1:
        encoding |= {"yOffset": {"field": "run", "type": "nominal", "sort": names}}
    words = "; ".join(f"{row['run']}: {row['cause']} {percent(row['probability'])}" for row in rows)
    return Figure(
        title="Why the server is slow",
        subtitle="probability of each cause, alone or with another",
        description=f"Probability of each cause. {words}.",
        spec={"data": {"values": rows}, "layer": [hovered({"type": "bar"}, encoding, shown)]},
        width=420,
        height=(len(kept) + 1) * max(22, 12 * len(names)),
    )


def result_text(run: ObservedRun, form: str) -> str:
    """A run in the format of another load generator, as far as the format goes.

    Args:
        form: "vllm", "aiperf", "genai-perf" or "inference-perf"; a report of GuideLLM holds settings that only GuideLLM
            has.
    """
    begin = datetime.fromisoformat(run.started).timestamp() if run.started else datetime.now(UTC).timestamp()
    return _WRITERS[form](run, [one for one in run.requests if one.sent_s is not None], begin)


def _ns(begin: float, at: float | None) -> int:
    return round((begin + (at or 0.0)) * 1e9)


def _vllm(run: ObservedRun) -> dict[str, Any]:
    done = [one for one in run.requests if one.is_finished]
    took = max(run.duration_s, 1e-9)
    inputs, outputs = sum(one.prompt_len for one in done), sum(one.tokens for one in done)
    data: dict[str, Any] = {
        "date": run.started, "backend": "openai", "model_id": run.served_name, "num_prompts": len(run.requests),
        "request_rate": run.load.get("rate", "inf"), "max_concurrency": run.load.get("users"), "duration": took,
        "completed": len(done), "failed": len(run.requests) - len(done), "total_input_tokens": inputs,
        "total_output_tokens": outputs, "request_throughput": len(done) / took, "output_throughput": outputs / took,
        "total_token_throughput": (inputs + outputs) / took,
    }  # fmt: skip
    for name, key in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2el", "e2e_s")):
        values = run.measured(cast("Any", key))
        if len(values):
            data |= {f"mean_{name}_ms": values.mean() / _MS, f"median_{name}_ms": np.median(values) / _MS}
            data |= {f"std_{name}_ms": values.std() / _MS, f"p99_{name}_ms": np.percentile(values, 99) / _MS}
    each = list(zip(run.requests, [one.is_finished for one in run.requests], strict=True))
    data |= {
        "input_lens": [one.prompt_len for one in run.requests],
        "output_lens": [one.tokens if well else 0 for one, well in each],
        "ttfts": [one.ttft_s if well and one.token_s else 0.0 for one, well in each],
        "itls": [np.diff(one.token_s).tolist() if well else [] for one, well in each],
        "start_times": [one.arrival_s if one.sent_s is None else one.sent_s for one in run.requests],
        "errors": ["" if well else one.error or one.outcome for one, well in each],
    }
    return data


def _aiperf(one: ObservedRequest, index: int, begin: float) -> dict[str, Any]:
    cancelled = one.outcome == "unfinished"
    end = None if one.end_s is None else _ns(begin, one.end_s)
    metadata: dict[str, Any] = {
        "session_num": index, "turn_index": 0, "request_start_ns": _ns(begin, one.sent_s), "request_end_ns": end,
        "benchmark_phase": "profiling", "was_cancelled": cancelled,
        "cancellation_time_ns": end if cancelled else None,
    }  # fmt: skip
    if not one.is_finished:
        error = {"code": one.status or 0, "type": one.outcome, "message": one.error}
        return {"metadata": metadata, "metrics": {"error_isl": _tokens(one.prompt_len)}, "error": error}
    metrics: dict[str, Any] = {
        "input_sequence_length": _tokens(one.prompt_len),
        "output_sequence_length": _tokens(one.tokens),
        "request_latency": {"value": one.e2e_s / _MS, "unit": "ms"},
        "time_to_first_token": {"value": one.ttft_s / _MS, "unit": "ms"},
    }
    if len(one.token_s) > 1:
        metrics["inter_chunk_latency"] = {"value": (np.diff(one.token_s) / _MS).tolist(), "unit": "ms"}
        if one.tokens > 1:
            metrics["inter_token_latency"] = {"value": one.tpot_s / _MS, "unit": "ms"}
    return {"metadata": metadata, "metrics": metrics, "error": None}


def _tokens(count: int) -> dict[str, Any]:
    return {"value": count, "unit": "tokens"}


def _inference_perf(one: ObservedRequest, begin: float) -> dict[str, Any]:
    well = one.is_finished
    times = [begin + at for at in one.token_s]
    answer = {"output_tokens": one.tokens, "response_chunks": [], "chunk_times": times, "output_token_times": times}
    return {
        "start_time": begin + (one.sent_s or 0.0),
        "end_time": begin + (one.end_s if one.end_s is not None else one.sent_s or 0.0),
        "request": "",
        "response": None,
        "info": {
            "request_metrics": {"text": {"input_tokens": one.prompt_len}},
            "response_metrics": answer if well else None,
            "input_tokens": one.prompt_len,
        },
        "error": None if well else {"error_type": one.outcome, "error_msg": one.error or one.outcome},
    }


def _genai_perf(run: ObservedRun, sent: Sequence[ObservedRequest], begin: float) -> dict[str, Any]:
    rows = [
        {"timestamp": _ns(begin, one.sent_s), "response_timestamps": [_ns(begin, at) for at in one.token_s]}
        for one in sent
        if one.is_finished
    ]
    users = run.load.get("users")
    mode = {"mode": "concurrency", "value": int(users)} if users else {"mode": "request_rate", "value": 0}
    return {"service_kind": "openai", "experiments": [{"experiment": mode, "requests": rows}]}


# (run, requests that were sent, Unix time of its begin) -> text of the file
_WRITERS: Mapping[str, Callable[[ObservedRun, Sequence[ObservedRequest], float], str]] = {
    "vllm": lambda run, sent, begin: json.dumps(_vllm(run)) + "\n",
    "aiperf": lambda run, sent, begin: "".join(json.dumps(_aiperf(one, i, begin)) + "\n" for i, one in enumerate(sent)),
    "genai-perf": lambda run, sent, begin: json.dumps(_genai_perf(run, sent, begin)) + "\n",
    "inference-perf": lambda run, sent, begin: json.dumps([_inference_perf(one, begin) for one in sent]) + "\n",
}
