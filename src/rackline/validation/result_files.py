"""Result files of load generators, request by request, read and written.

Sources:
    vLLM: `vllm bench serve --save-result --save-detailed`, vllm/benchmarks/serve.py of vllm-project/vllm at 009e6d4
        (input_lens, output_lens, ttfts, itls, start_times, errors; seconds, start_times of a clock of its own).
    AIPerf: profile_export.jsonl, docs/tutorials/working-with-profile-exports.md of ai-dynamo/aiperf at 13992db
        (metadata.request_start_ns, request_end_ns; metrics with value and unit; error).
    GenAI-Perf: profile_export.json of Perf Analyzer, perf_analyzer of triton-inference-server
        (experiments.0.requests: timestamp and response_timestamps in nanoseconds; no lengths of prompts).
    inference-perf: per_request_lifecycle_metrics.json, inference_perf/apis/base.py and reportgen/base.py of
        kubernetes-sigs/inference-perf at 03e89d4 (start_time, end_time; info.input_tokens,
        info.response_metrics.output_tokens and output_token_times, in older files in info itself; error).
    GuideLLM: benchmarks.json, src/guidellm/schemas/base/request_stats.py and info.py of vllm-project/guidellm at
        31c74ea and 1053a03 (benchmarks.N.requests.successful, errored, incomplete: info.timings with Unix times,
        prompt_tokens, output_tokens).
"""

# the files' rows have no types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.errors import InputError
from rackline.files import parse_json, read_text
from rackline.validation.observed import ObservedRequest, ObservedRun, Outcome

Row = Any
_MS, _NS = 1e-3, 1e-9
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One request of a file, at times of the file's own clock [s].

    Args:
        start_s, due_s: when it was sent and was to be sent; None where it was not sent or that is not said.
        token_s: of each piece of the answer.
        end_s: of its stream.
        input_len, output_len: tokens; None where they are not counted.
        error: empty where it finished.
        outcome: how it ended.
    """

    start_s: float | None
    token_s: tuple[float, ...]
    due_s: float | None = None
    end_s: float | None = None
    input_len: int | None = None
    output_len: int | None = None
    error: str = ""
    outcome: Outcome = "finished"


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _failed(text: str) -> Outcome:
    low = text.lower()
    if "429" in low or "too many requests" in low:
        return "rate_limited"
    if "timeout" in low or "timed out" in low:
        return "timeout"
    return "server_error"


def _of_vllm(data: Row) -> Iterator[_Seen]:
    columns = [data[name] for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times")]
    errors = data.get("errors") or [""] * len(columns[0])
    for size, made, first, gaps, start, error in zip(*columns, errors, strict=True):
        times = start + first + np.concatenate([[0.0], np.cumsum(gaps)]) if not error else np.zeros(0)
        yield _Seen(
            start_s=float(start), token_s=tuple(times.tolist()), input_len=_whole(size), output_len=_whole(made),
            error=str(error or ""), outcome=_failed(str(error)) if error else "finished",
        )  # fmt: skip


def _of_aiperf(rows: Sequence[Row]) -> Iterator[_Seen]:
    for row in rows:
        about, metrics, error = row["metadata"], row.get("metrics") or {}, row.get("error")
        start = about["request_start_ns"] * _NS
        times: tuple[float, ...] = ()
        if not error and "time_to_first_token" in metrics:
            first = _seconds(metrics["time_to_first_token"])
            gaps = metrics.get("inter_chunk_latency")
            spread = np.cumsum(_seconds(gaps)) if gaps is not None else np.zeros(0)
            times = tuple((start + first + np.concatenate([[0.0], spread])).tolist())
        message = "" if not error else str(error.get("message") or error.get("type") or "error")
        counted = metrics.get("output_sequence_length") or metrics.get("output_token_count") or {}
        end = about.get("request_end_ns")
        yield _Seen(
            start_s=start, token_s=times, end_s=None if end is None else end * _NS,
            input_len=_whole((metrics.get("input_sequence_length") or metrics.get("error_isl") or {}).get("value")),
            output_len=_whole(counted.get("value")), error=message,
            outcome=("unfinished" if about.get("was_cancelled") else _failed(message)) if error else "finished",
        )  # fmt: skip


def _seconds(metric: Row) -> Any:
    """A metric with its unit, one value or several [s]."""
    return np.asarray(metric["value"], dtype=np.float64) * _UNITS[metric.get("unit", "ms")]


def _of_genai_perf(data: Row) -> list[_Seen]:
    return [
        _Seen(
            start_s=row["timestamp"] * _NS,
            token_s=tuple(one * _NS for one in row["response_timestamps"]),
        )
        for row in data["experiments"][0]["requests"]
    ]


def _of_inference_perf(rows: Sequence[Row]) -> Iterator[_Seen]:
    for row in rows:
        info, error = row.get("info") or {}, row.get("error")
        answer = info.get("response_metrics") or info
        message = "" if not error else str(error.get("error_msg") or error.get("error_type") or "error")
        yield _Seen(
            start_s=float(row["start_time"]), end_s=float(row["end_time"]),
            token_s=tuple(float(one) for one in answer.get("output_token_times") or ()),
            input_len=_whole(info.get("input_tokens")), output_len=_whole(answer.get("output_tokens")),
            error=message, outcome=_failed(message) if error else "finished",
        )  # fmt: skip


def _of_guidellm(data: Row) -> Iterator[_Seen]:
    for kind, outcome in (("successful", "finished"), ("errored", "server_error"), ("incomplete", "unfinished")):
        for row in data["requests"].get(kind) or ():
            times = row["info"]["timings"]
            first, last = times.get("first_token_iteration"), times.get("last_token_iteration")
            pieces = int(times.get("token_iterations") or 0)
            start = times.get("request_start") or times.get("resolve_start")
            error = str(row["info"].get("error") or "") or ("" if outcome == "finished" else outcome)
            yield _Seen(
                start_s=start, due_s=times.get("targeted_start"), end_s=times.get("request_end"),
                # only the first and the last piece have times; those between are spread evenly
                token_s=tuple(np.linspace(first, last, max(pieces, 2)).tolist()) if first and last else (),
                input_len=_whole(row.get("prompt_tokens")), output_len=_whole(row.get("output_tokens")),
                error=error, outcome=cast("Outcome", outcome if start is not None else "not_sent"),
            )  # fmt: skip


READ: Mapping[str, Callable[[Any], Iterable[_Seen]]] = {
    "vllm": _of_vllm,
    "aiperf": _of_aiperf,
    "genai-perf": _of_genai_perf,
    "inference-perf": _of_inference_perf,
    "guidellm": _of_guidellm,
}


def _vllm_runs(rows: list[Any]) -> list[Any]:
    open_loop = [row for row in rows if row.get("max_concurrency") is None and "start_times" in row]
    return open_loop if all("itls" in row for row in rows) else []


# the runs in the rows of a file, by the form of the file
_RUNS: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "vllm": _vllm_runs,
    "aiperf": lambda rows: [rows] if all("metadata" in row for row in rows) else [],
    "genai-perf": lambda rows: [row for row in rows if "experiments" in row],
    "inference-perf": lambda rows: [rows] if all("start_time" in row and "info" in row for row in rows) else [],
    "guidellm": lambda rows: [one for row in rows for one in row.get("benchmarks", ()) if "requests" in one],
}


def result_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a file: one JSON object, a list of them, or one per line; empty where it holds something else.

    Raises:
        InputError: the file cannot be read.
    """
    text = read_text(path, what="result file", allowed="a readable file")
    try:
        data: Any = parse_json(text)
    except ValueError:
        try:
            data = [parse_json(line) for line in text.split("\n") if line.strip()]
        except ValueError:
            return []
    rows: list[Any] = cast("list[Any]", data) if isinstance(data, list) else [data]
    return rows if all(isinstance(row, dict) for row in rows) else []


def detailed_results(rows: list[dict[str, Any]], form: str) -> list[Any]:
    """The runs in the rows of a file that has each request of them; empty where it has not.

    Args:
        form: "vllm", "aiperf", "genai-perf", "inference-perf" or "guidellm".
    """
    return _RUNS[form](rows) if rows and form in _RUNS else []


def run_of_result(data: Any, form: str, name: str, given: Mapping[str, Any]) -> ObservedRun:
    """One run of a result file.

    Args:
        data: as `detailed_results` gives it.
        name: of the run.
        given: keys of a case: model, chip, num_chips, ...; input_len and output_len where the file does not count them.

    Raises:
        InputError: the file does not have the form, or lacks lengths that are not given.
    """
    try:
        seen = list(READ[form](data))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(what=f"result of {form}", given=reason, allowed="its requests", where=name) from None
    starts = [one.due_s if one.due_s is not None else one.start_s for one in seen]
    begin = min((one for one in starts if one is not None), default=None)
    if begin is None:
        raise InputError(what=f"result of {form}", given="no request", allowed="at least one that was sent", where=name)
    kept = {key: value for key, value in given.items() if key not in ("input_len", "output_len")}
    requests = [_request(one, begin, given, name) for one in seen]
    requests.sort(key=lambda one: one.arrival_s)
    return ObservedRun(run_id=name, requests=tuple(requests), deployment=kept, source=f"{form}: {name}")


def _request(one: _Seen, begin: float, given: Mapping[str, Any], name: str) -> ObservedRequest:
    lengths: dict[str, int] = {}
    for key, counted in (("input_len", one.input_len), ("output_len", one.output_len)):
        value = counted or given.get(key)
        if not value and one.outcome == "finished":
            allowed = "a number: the result does not count it"
            raise InputError(what=f"--{key.replace('_', '-')}", given="nothing", allowed=allowed, where=name)
        lengths[key] = max(round(float(value or 1)), 1)
    sent = None if one.start_s is None else one.start_s - begin
    due = sent if one.due_s is None else one.due_s - begin
    return ObservedRequest(
        arrival_s=max(min(due or 0.0, sent if sent is not None else due or 0.0), 0.0),
        outcome=one.outcome,
        sent_s=sent,
        token_s=tuple(max(at - begin, sent or 0.0) for at in one.token_s),
        end_s=None if one.end_s is None else one.end_s - begin,
        prompt_tokens=one.input_len,
        output_tokens=one.output_len if one.outcome == "finished" else None,
        error=one.error,
        input_len=lengths["input_len"],
        output_len=lengths["output_len"],
    )


WRITTEN = ("vllm", "aiperf", "genai-perf", "inference-perf")
"""Formats that a run is written in; a report of GuideLLM holds settings that only GuideLLM has."""


def result_text(run: ObservedRun, form: str) -> str:
    """A run in the format of another load generator, as far as the format goes.

    Args:
        form: one of WRITTEN.
    """
    begin = datetime.fromisoformat(run.started).timestamp() if run.started else datetime.now(UTC).timestamp()
    sent = [one for one in run.requests if one.sent_s is not None]
    return _WRITERS[form](run, sent, begin)


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
    good = [one.is_finished for one in run.requests]
    each = list(zip(run.requests, good, strict=True))
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
        gaps = (np.diff(one.token_s) / _MS).tolist()
        metrics["inter_chunk_latency"] = {"value": gaps, "unit": "ms"}
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
