"""Results of load generators as cases: means, or each request where a file has them.

Of aggregated results means are imported, because means are predicted. Result files do not contain the chip and mostly
not the layout, so these are given separately.

Sources:
    vLLM: `vllm bench serve --save-result [--save-detailed]`, vllm/benchmarks/serve.py of vllm-project/vllm at 009e6d4
        (keys model_id, max_concurrency, completed, total_input_tokens, total_output_tokens, mean_ttft_ms, mean_tpot_ms;
        input_lens, output_lens, ttfts, itls, start_times, errors; seconds, start_times of a clock of its own).
    GenAI-Perf: profile_export_genai_perf.json, genai-perf/genai_perf/export_data/json_exporter.py of
        triton-inference-server/perf_analyzer (blocks with unit and avg, input_config); profile_export.json of Perf
        Analyzer (experiments.0.requests: timestamp, response_timestamps in nanoseconds; no lengths of prompts).
    AIPerf: profile_export_aiperf.json, https://docs.nvidia.com/aiperf/reference/json-export-schema;
        profile_export.jsonl, docs/tutorials/working-with-profile-exports.md of ai-dynamo/aiperf at 13992db
        (metadata.request_start_ns, request_end_ns; metrics with value and unit; error).
    InferenceX: agg_*.json, utils/process_result.py of SemiAnalysisAI/InferenceX (seconds; hw, conc, isl, osl, tp, ep,
        dp_attention); prompt and output lengths are uniform in 0.8 to 1.0 of isl and osl.
    inference-perf: per_request_lifecycle_metrics.json, inference_perf/apis/base.py and reportgen/base.py of
        kubernetes-sigs/inference-perf at 03e89d4 (start_time, end_time; info.input_tokens,
        info.response_metrics.output_tokens and output_token_times, in older files in info itself; error).
    GuideLLM: benchmarks.json, src/guidellm/schemas/base/request_stats.py and info.py of vllm-project/guidellm at
        31c74ea and 1053a03 (benchmarks.N.requests.successful, errored, incomplete: info.timings with Unix times,
        prompt_tokens, output_tokens).
"""

# rows of result files have no types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.errors import InputError, nearest_name, unknown_name
from rackline.files import parse_json, read_text
from rackline.units import parse_seconds
from rackline.validation.forms import find_problem, is_number, parse_layout
from rackline.validation.observed import ObservedRequest, ObservedRun, Outcome

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user states about a result file; it takes precedence over the content of the file.

    Args:
        model, chip, layout ("tp=4,ep=4"), precision, stack: names.
        num_chips: all chips [chips].
        input_len, output_len: mean lengths [tokens].
        concurrency: requests in flight [requests].
    """

    model: str | None = None
    chip: str | None = None
    num_chips: int | None = None
    layout: str | None = None
    precision: str | None = None
    stack: str | None = None
    input_len: float | None = None
    output_len: float | None = None
    concurrency: int | None = None


Result = dict[str, Any]
"""One run of a benchmark as the keys of a case; None or empty where its file does not say."""
_USUAL: Result = {
    "stack": "unknown", "precision": "native", "length_distribution": "fixed", "speculative": "unknown",
}  # fmt: skip
_REQUIRED = ("model", "chip", "num_chips", "layout", "input_len", "output_len", "concurrency")
_KEYS = (
    *("model", "chip", "num_chips", "stack", "precision", "layout", "input_len", "output_len", "concurrency"),
    *("length_distribution", "speculative", "num_prompts", "statistic", "measured"),
)


def import_results(paths: Iterable[str | Path], form: str, given: Given) -> str:
    """Read result files as cases of kind serve.

    Args:
        form: "vllm", "genai-perf", "aiperf", "inferencex", "inference-perf" or "guidellm". Results that hold each
            request of an open loop become cases of kind observed, others cases of kind serve.

    Returns:
        JSON lines, one case per line.

    Raises:
        InputError: the format is unknown, a file does not have it, or a number is given neither in the file nor by the
            user.
    """
    if form not in {**READERS, **DETAILED}:
        raise unknown_name("format", form, (*READERS, *(one for one in DETAILED if one not in READERS)))
    lines: list[str] = []
    for path in map(Path, paths):
        rows = result_rows(path)
        runs = DETAILED[form][0](rows) if rows and form in DETAILED else []
        for number, run in enumerate(runs, start=1):
            name = path.stem if len(runs) == 1 else f"{path.stem}-{number}"
            lines.append(run_of_result(run, form, name, _stated(given, run, form, str(path))).line().rstrip("\n"))
        if runs:
            continue
        if form not in READERS:
            raise InputError(what=str(path), given="something else", allowed=f"requests as {form} writes them")
        if not rows:
            allowed = "a JSON object, a list of them, or one object per line"
            raise InputError(what="result file", given=str(path), allowed=allowed)
        for number, row in enumerate(rows, start=1):
            where = str(path) if len(rows) == 1 else f"{path}, result {number}"
            case_id = path.stem if len(rows) == 1 else f"{path.stem}-{number}"
            case = _case(READERS[form](_Reader(values=row, where=where, form=form)), given, case_id, where, form)
            lines.append(json.dumps(case, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Typed access to a result; errors name a missing key, the file and the nearest key."""

    values: Table
    where: str
    form: str

    def fail(self, key: str, allowed: str) -> InputError:
        given = self.values.get(key)
        shown = "no such key" if key not in self.values else "null" if given is None else given
        if isinstance(given, list | dict):
            shown = "a JSON array" if isinstance(given, list) else "a JSON object"
        return InputError(
            what=f"{key} of a result of {self.form}", given=shown, allowed=allowed, where=self.where,
            nearest=nearest_name(key, [name for name in self.values if name != key]),
        )  # fmt: skip

    def optional(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not is_number(value):
            raise self.fail(key, "a number above 0")
        return float(cast("float", value))

    def number(self, *keys: str) -> float:
        """The value of the first of several keys that is present."""
        for key in keys:
            value = self.optional(key)
            if value is not None:
                return value
        raise self.fail(keys[0], "a number above 0" + (f" (or {', '.join(keys[1:])})" if keys[1:] else ""))

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value.strip() if isinstance(value, str) else ""

    def at(self, *paths: tuple[str | int, ...]) -> object:
        """A value inside nested objects and lists, at the first of several paths that holds one; else None."""
        for path in paths:
            value: Any = self.values
            for step in path:
                inside: Any = dict(enumerate(value)) if isinstance(value, list) else value
                value = inside.get(step) if isinstance(inside, Mapping) else None
            if value not in (None, "", []):
                return value
        return None

    def statistic(self, mean: str) -> str:
        """Empty where the result holds this mean, else that it holds only a median."""
        return "" if self.optional(mean) is not None else "median"


def read_vllm(result: _Reader) -> Result:
    """Result of `vllm bench serve`; milliseconds."""
    completed = result.number("completed")
    concurrency = result.optional("max_concurrency")
    if concurrency is None:
        if result.values.get("request_rate") not in ("inf", None, float("inf")):
            raise result.fail("max_concurrency", "a closed loop, as --max-concurrency drives it (this is an open loop)")
        concurrency = result.optional("num_prompts")  # all at once
    backend = result.text("backend") or result.text("endpoint_type")
    tpot_ms, ttft_ms = (result.number(f"mean_{name}_ms", f"median_{name}_ms") for name in ("tpot", "ttft"))
    return Result(
        measured={"tpot_s": tpot_ms * 1e-3, "ttft_s": ttft_ms * 1e-3},
        model=result.text("model_id"),
        concurrency=None if concurrency is None else int(concurrency),
        input_len=result.number("total_input_tokens") / completed,
        output_len=result.number("total_output_tokens") / completed,
        stack=backend if backend in ("sglang", "tensorrt-llm") else "vllm",
        num_prompts=int(completed),
        statistic=result.statistic("mean_ttft_ms"),
    )


def _block(result: _Reader, name: str, *, seconds: bool = True) -> float:
    """The mean of a metric block {"unit": "ms", "avg": 12.3, ...}, in seconds for times."""
    average, unit = result.at((name, "avg")), result.at((name, "unit"))
    if not is_number(average):
        raise result.fail(name, "an object with unit and avg")
    if not seconds:
        return float(cast("float", average))
    return parse_seconds(f"{average!r}{'' if unit in ('sec', None) else unit}", name=f"{result.where}: {name}")


# the formats moved their settings between versions
_MODELS: tuple[tuple[str | int, ...], ...] = (
    ("input_config", "endpoint", "model_names", 0),
    ("input_config", "models", "items", 0, "name"),
    ("input_config", "models", 0),
    ("input_config", "model", 0),
    ("input_config", "model_names", 0),
)
_CONCURRENCIES: tuple[tuple[str | int, ...], ...] = (
    ("input_config", "loadgen", "concurrency"),
    ("input_config", "phases", 0, "concurrency"),
    ("input_config", "perf_analyzer", "stimulus", "concurrency"),
    ("input_config", "concurrency"),
)


def read_perf(result: _Reader) -> Result:
    """Export of genai-perf or AIPerf: one block per metric, settings under input_config."""
    model, concurrency = result.at(*_MODELS), result.at(*_CONCURRENCIES)
    tpot_s, ttft_s = _block(result, "inter_token_latency"), _block(result, "time_to_first_token")
    requests = result.at(("request_count", "avg"))  # where the export counts them
    return Result(
        measured={"tpot_s": tpot_s, "ttft_s": ttft_s},
        model=model if isinstance(model, str) else "",
        concurrency=int(cast("float", concurrency)) if is_number(concurrency) else None,
        input_len=_block(result, "input_sequence_length", seconds=False),
        output_len=_block(result, "output_sequence_length", seconds=False),
        num_prompts=int(cast("float", requests)) if is_number(requests) else None,
    )


def read_inferencex(result: _Reader) -> Result:
    """Aggregated result of InferenceX; in seconds, with nominal lengths."""
    for key in ("disagg", "is_multinode"):
        if result.values.get(key) in (True, "true", "True"):
            raise result.fail(key, "false: prefill and decode on separate chips are not a case of kind serve")
    tp, ep = int(result.number("tp")), int(result.optional("ep") or 1)
    tpot_s, ttft_s = (result.number(f"mean_{name}", f"median_{name}") for name in ("tpot", "ttft"))
    spread = str(result.values.get("dp_attention")).lower() == "true"
    framework = result.text("framework").lower()
    speculative = result.text("spec_decoding") or result.text("mtp")
    return Result(
        measured={"tpot_s": tpot_s, "ttft_s": ttft_s},
        model=result.text("model"), concurrency=int(result.number("conc")),
        input_len=result.optional("isl"), output_len=result.optional("osl"),
        stack="trtllm" if framework.startswith("trt") else framework,
        chip=result.text("hw").lower().replace("_", "-").split("-")[0], num_chips=tp,
        precision=result.text("precision"),
        layout={"attention_dp": tp, "ep": ep} if spread else {"tp": tp, "ep": ep},
        length_distribution="uniform_0.8_1.0",
        speculative="none" if speculative.lower() in ("", "none", "off") else speculative,
        num_prompts=10 * int(result.number("conc")),  # --num-prompts of all of its commands
        statistic=result.statistic("mean_ttft"),
    )  # fmt: skip


def _stated(given: Given, run: Any, form: str, where: str) -> dict[str, Any]:
    """The keys of an observed case that a result of requests does not hold."""
    named = cast("Mapping[str, Any]", run).get("model_id") if isinstance(run, Mapping) else None
    stated: dict[str, Any] = {"model": given.model or named, "chip": given.chip}
    _check_stated(stated, stated, form, where)
    stated |= {"num_chips": given.num_chips or 1, "precision": given.precision or "native"}
    stated |= {"stack": given.stack} if given.stack else {"stack": "vllm"} if form == "vllm" else {}
    stated |= {"layout": parse_layout(given.layout, where)} if given.layout else {}
    lengths = {"input_len": given.input_len, "output_len": given.output_len}
    return stated | {key: value for key, value in lengths.items() if value is not None}


def _case(result: Result, given: Given, case_id: str, where: str, form: str) -> Result:
    found = _USUAL | {key: value for key, value in result.items() if value not in (None, "")}
    found |= {key: value for key, value in asdict(given).items() if value}
    if given.layout:
        found["layout"] = parse_layout(given.layout, where)
    if given.input_len:
        found["length_distribution"] = "fixed"
    if found.get("num_chips") == 1:
        found.setdefault("layout", {})
    _check_stated(found, _REQUIRED, form, where)
    source = f"{form}: {Path(where.split(', result')[0]).name}"
    case = {"id": case_id, "kind": "serve", **{key: found[key] for key in _KEYS if key in found}, "source": source}
    problem = find_problem(case)
    if problem is not None:
        raise InputError(what=problem.what, given=problem.given, allowed=problem.allowed, where=where)
    return case


def _check_stated(found: Table, required: Iterable[str], form: str, where: str) -> None:
    """Refuse a result that lacks a key that neither its file nor the user states."""
    for key in required:
        if found.get(key) in (None, ""):
            option, allowed = f"--{key.replace('_', '-')}", f"a value: the {form} result does not contain it"
            raise InputError(what=option, given="nothing", allowed=allowed, where=where)


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
    limited, late = "429" in low or "too many requests" in low, "timeout" in low or "timed out" in low
    return "rate_limited" if limited else "timeout" if late else "server_error"


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
    found = np.asarray(metric["value"], dtype=np.float64) * _UNITS[metric.get("unit", "ms")]
    if not np.all(np.isfinite(found)):
        raise ValueError(f"{metric['value']} is no time")
    return found


def _of_genai_perf(data: Row) -> list[_Seen]:
    return [
        _Seen(start_s=row["timestamp"] * _NS, token_s=tuple(one * _NS for one in row["response_timestamps"]))
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


def _vllm_runs(rows: list[Any]) -> list[Any]:
    open_loop = [row for row in rows if row.get("max_concurrency") is None and "start_times" in row]
    return open_loop if all("itls" in row for row in rows) else []


READERS: Mapping[str, Callable[[_Reader], Result]] = {
    "vllm": read_vllm, "genai-perf": read_perf, "aiperf": read_perf, "inferencex": read_inferencex,
}  # fmt: skip
"""Format → what reads an aggregated result."""
DETAILED: Mapping[str, tuple[Callable[[list[Any]], list[Any]], Callable[[Any], Iterable[_Seen]]]] = {
    "vllm": (_vllm_runs, _of_vllm),
    "aiperf": (lambda rows: [rows] if all("metadata" in row for row in rows) else [], _of_aiperf),
    "genai-perf": (lambda rows: [row for row in rows if "experiments" in row], _of_genai_perf),
    "inference-perf": (
        lambda rows: [rows] if all("start_time" in row and "info" in row for row in rows) else [], _of_inference_perf,
    ),
    "guidellm": (
        lambda rows: [
            one for found in (row.get("benchmarks") for row in rows) if isinstance(found, list)
            for one in found if "requests" in one
        ], _of_guidellm,
    ),
}  # fmt: skip
"""Format → (the runs in the rows of a file that has each request of them, none where it has not; requests of a run)."""


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


def run_of_result(data: Any, form: str, name: str, given: Mapping[str, Any]) -> ObservedRun:
    """One run of a result file.

    Args:
        data: one of the runs that `DETAILED` finds.
        name: of the run.
        given: keys of a case: model, chip, num_chips, ...; input_len and output_len where the file does not count them.

    Raises:
        InputError: the file does not have the form, or lacks lengths that are not given.
    """
    try:
        seen = list(DETAILED[form][1](data))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        said: dict[type[Exception], str] = {KeyError: f"no {error}", ValueError: str(error)}
        reason = said.get(type(error), f"something else than {form} writes ({error})")
        raise InputError(what=f"result of {form}", given=reason, allowed="its requests", where=name) from None
    starts = [one.due_s if one.due_s is not None else one.start_s for one in seen]
    begin = min((one for one in starts if one is not None), default=None)
    if begin is None:
        raise InputError(what=f"result of {form}", given="no request", allowed="at least one that was sent", where=name)
    kept = {key: value for key, value in given.items() if key not in ("input_len", "output_len")}
    requests = sorted((_request(one, begin, given, name) for one in seen), key=lambda one: one.arrival_s)
    return ObservedRun(run_id=name, requests=tuple(requests), deployment=kept, source=f"{form}: {name}")


def _request(one: _Seen, begin: float, given: Mapping[str, Any], name: str) -> ObservedRequest:
    lengths: dict[str, Any] = {}
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
        **lengths,
    )
