"""Import of benchmark results as cases: vLLM's own, NVIDIA's genai-perf and AIPerf, InferenceX.

Means are imported, because means are predicted. Result files do not contain the chip and mostly not the layout, so
these are given separately.

Sources:
    vLLM: `vllm bench serve --save-result`, vllm/benchmarks/serve.py of vllm-project/vllm (keys model_id,
        max_concurrency, completed, total_input_tokens, total_output_tokens, mean_ttft_ms, mean_tpot_ms).
    GenAI-Perf: profile_export_genai_perf.json, genai-perf/genai_perf/export_data/json_exporter.py of
        triton-inference-server/perf_analyzer (blocks with unit and avg, input_config).
    AIPerf: profile_export_aiperf.json, https://docs.nvidia.com/aiperf/reference/json-export-schema.
    InferenceX: agg_*.json, utils/process_result.py of SemiAnalysisAI/InferenceX (seconds; hw, conc, isl, osl, tp, ep,
        dp_attention); prompt and output lengths are uniform in 0.8 to 1.0 of isl and osl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError, nearest_name, unknown_name
from rackline.units import parse_seconds
from rackline.validation.forms import find_problem, is_number
from rackline.validation.result_files import READ, detailed_results, result_rows, run_of_result

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
    "stack": "unknown",
    "precision": "native",
    "length_distribution": "fixed",
    "speculative": "unknown",
}
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
    known = (*READERS, *(one for one in READ if one not in READERS))
    if form not in known:
        raise unknown_name("--import", form, known)
    lines: list[str] = []
    for path in map(Path, paths):
        rows = result_rows(path)
        runs = detailed_results(rows, form)
        for number, run in enumerate(runs, start=1):
            name = path.stem if len(runs) == 1 else f"{path.stem}-{number}"
            lines.append(run_of_result(run, form, name, _stated(given, run, form, str(path))).line().rstrip("\n"))
        if runs:
            continue
        if form not in READERS:
            raise InputError(what="--import", given=str(path), allowed=f"requests as {form} writes them")
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
            what=f"{key} of a result of {self.form}",
            given=shown,
            allowed=allowed,
            where=self.where,
            nearest=nearest_name(key, [name for name in self.values if name != key]),
        )

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

    def at(self, *path: str | int) -> object:
        """A value inside nested objects and lists; None if the path does not exist."""
        value: Any = self.values
        for step in path:
            if isinstance(value, Mapping) and isinstance(step, str):
                value = cast("Mapping[str, Any]", value).get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(cast("list[Any]", value)):
                value = cast("list[Any]", value)[step]
            else:
                return None
        return cast("object", value)

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
    average, unit = result.at(name, "avg"), result.at(name, "unit")
    if not is_number(average):
        raise result.fail(name, "an object with unit and avg")
    if not seconds:
        return float(cast("float", average))
    return parse_seconds(f"{average!r}{'' if unit in ('sec', None) else unit}", name=f"{result.where}: {name}")


def _first(result: _Reader, paths: Sequence[tuple[str | int, ...]]) -> object:
    """The value at the first of several paths: the formats moved their settings between versions."""
    return next((value for path in paths if (value := result.at(*path)) not in (None, "", [])), None)


_MODELS: Sequence[tuple[str | int, ...]] = (
    ("input_config", "endpoint", "model_names", 0),
    ("input_config", "models", "items", 0, "name"),
    ("input_config", "models", 0),
    ("input_config", "model", 0),
    ("input_config", "model_names", 0),
)
_CONCURRENCIES: Sequence[tuple[str | int, ...]] = (
    ("input_config", "loadgen", "concurrency"),
    ("input_config", "phases", 0, "concurrency"),
    ("input_config", "perf_analyzer", "stimulus", "concurrency"),
    ("input_config", "concurrency"),
)


def read_perf(result: _Reader) -> Result:
    """Export of genai-perf or AIPerf: one block per metric, settings under input_config."""
    model, concurrency = _first(result, _MODELS), _first(result, _CONCURRENCIES)
    tpot_s, ttft_s = _block(result, "inter_token_latency"), _block(result, "time_to_first_token")
    requests = result.at("request_count", "avg")  # where the export counts them
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
        model=result.text("model"),
        concurrency=int(result.number("conc")),
        input_len=result.optional("isl"),
        output_len=result.optional("osl"),
        stack="trtllm" if framework.startswith("trt") else framework,
        chip=result.text("hw").lower().replace("_", "-").split("-")[0],
        num_chips=tp,
        precision=result.text("precision"),
        layout={"attention_dp": tp, "ep": ep} if spread else {"tp": tp, "ep": ep},
        length_distribution="uniform_0.8_1.0",
        speculative="none" if speculative.lower() in ("", "none", "off") else speculative,
        num_prompts=10 * int(result.number("conc")),  # --num-prompts of all of its commands
        statistic=result.statistic("mean_ttft"),
    )


READERS: dict[str, Callable[[_Reader], Result]] = {
    "vllm": read_vllm,
    "genai-perf": read_perf,
    "aiperf": read_perf,
    "inferencex": read_inferencex,
}


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


def parse_layout(text: str, where: str) -> dict[str, int]:
    """Parts of a layout such as "tp=4,ep=4"; none of an empty text.

    Raises:
        InputError: a part is not NAME=N.
    """
    parts: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not value.isdigit() or int(value) < 1:
            raise InputError(what="--layout", given=part, allowed="PART=N, such as tp=4", where=where)
        parts[key.replace("-", "_")] = int(value)
    return parts
