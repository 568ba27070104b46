"""Replay of recorded server runs in the simulator, compared request by request.

A `runs.json` has the engine settings of each run; a `requests.csv` in the same folder has the arrival, lengths and
timings of each request. Settings that are not stated follow from the stack's version and the chip.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.arch import AppliedAdapter, Model, apply_adapter
from rackline.catalog import canonical_name, names
from rackline.errors import InputError, RacklineError
from rackline.files import parse_json, read_lines
from rackline.hardware import chip_record
from rackline.hub import Adapter
from rackline.parallel import Deployment
from rackline.parallel.memory import kv_size
from rackline.passes.features import Array
from rackline.serving.stack import Stack
from rackline.serving.workload import PLAIN, Speculation, usual_speculation
from rackline.simulation import CacheConfig, Requests, Result, pool_of, simulate
from rackline.validation.cases import Case, Unsupported
from rackline.validation.forms import LARGEST, is_number
from rackline.validation.resolve import Resolver
from rackline.validation.scoreboard import Score, group_of

# metric → column of requests.csv [ms]
METRICS = {"ttft_s": "ttft_ms", "tpot_s": "tpot_ms", "e2e_s": "e2e_ms"}
_PERCENTILES = (50, 90, 99)
# values of vLLM's --quantization, and parts of checkpoint names → data types
_QUANTIZATIONS = {
    "fp8": "fp8", "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "w4a16": "int4",
    "modelopt": "fp8", "modelopt_fp4": "fp4", "nvfp4": "fp4", "fp4": "fp4", "mxfp4": "mxfp4", "int8": "int8",
}  # fmt: skip
_MOST = 1e9  # tokens, sequences, chips
_COLUMNS = ("run", "arrival_s", "input_toks", "output_toks", *METRICS.values())


def read_runs(path: Path, text: str) -> list[Case | Unsupported]:
    """Read runs, one case each.

    Args:
        path: path of `runs.json`.
        text: its content.

    Raises:
        InputError: there is no table of requests next to it.
    """
    runs = cast("dict[str, object]", parse_json(text))["runs"]
    if not isinstance(runs, dict):
        return [_bad(path.stem, path.name, "runs: got no table, allowed: run → settings")]
    if not path.with_name("requests.csv").is_file():
        raise InputError(what="runs", given=str(path), allowed="a requests.csv in the same folder")
    return [_case(str(name), settings, path) for name, settings in cast("dict[object, object]", runs).items()]


def _bad(name: str, where: str, cause: str) -> Unsupported:
    return Unsupported(case_id=name, kind="requests", where=where, cause=cause, bad_input=True, metrics=tuple(METRICS))


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _whole(table: Mapping[str, Any], key: str) -> int:
    """An integer in the engine settings; 0 if it is not stated.

    Raises:
        InputError: the value is not an integer.
    """
    value = table.get(key)
    if not value:
        return 0
    if not is_number(value) or value > _MOST or value != int(value):
        raise InputError(what=key, given=value, allowed=f"a whole number from 1 to {_MOST:.0f}")
    return int(value)


def _case(name: str, settings: object, path: Path) -> Case | Unsupported:
    where = f"{path.name}, run {name}"
    if not isinstance(settings, dict) or "engine_kwargs" not in settings:
        return _bad(name, where, "engine_kwargs: got nothing, allowed: the settings of the engine")
    data = cast("dict[str, Any]", settings)
    engine = _table(data, "engine_kwargs")
    device = str(_table(data, "hardware").get("device_name") or name.partition("/")[0])
    try:
        tp, pp, dp = (_whole(engine, f"{name}_parallel_size") or 1 for name in ("tensor", "pipeline", "data"))
    except InputError as error:
        return _bad(name, where, str(error))
    layout = {"tp": tp, "pp": pp, "attention_dp": dp}
    if engine.get("enable_expert_parallel"):
        layout["ep"] = tp * dp
    model = str(data.get("model") or engine.get("model") or "")
    label = _precision(engine, model)
    if label is None:
        allowed = ", ".join(_QUANTIZATIONS)
        return _bad(name, where, f"quantization: got {engine['quantization']!r}, allowed: {allowed}")
    kv_type = str(engine.get("kv_cache_dtype") or "auto")
    kv = "fp8" if kv_type.startswith("fp8") else "" if label == "native" else "bf16"
    return Case(
        case_id=name,
        kind="requests",
        where=where,
        measured={},
        model=model,
        chip=chip_of(device) or device,
        num_chips=tp * pp * dp,
        stack="vllm",
        stack_version=str(data.get("vllm_version") or ""),
        precision=label,
        precision_detail=f"kv={kv}" if kv else "",
        layout=layout,
        values={"settings": data, "path": str(path)},
    )


def _precision(engine: Mapping[str, Any], model: str) -> str | None:
    """Data types from the engine's quantization, else of the checkpoint, by its name where it is not in the catalogue.

    >>> _precision({}, "Qwen/Qwen3-8B-FP8"), _precision({}, "Qwen/Qwen3-8B-AWQ"), _precision({}, "x/Qwen3-8B-FP8")
    ('native', 'int4', 'fp8')
    >>> _precision({"quantization": "fp8"}, "Qwen/Qwen3-8B")
    'fp8'
    """
    asked = engine.get("quantization")
    if asked is not None:
        return _QUANTIZATIONS.get(str(asked).lower())
    if canonical_name("models", model) is not None:
        return "native"
    words = re.split(r"[-_./]", model.lower())
    return next((label for word, label in _QUANTIZATIONS.items() if word in words), "native")


def chip_of(label: str) -> str | None:
    """Catalogue name of a chip from the name that the driver reports; None if there is none.

    >>> chip_of("NVIDIA GeForce RTX 4090"), chip_of("RTXPRO6000")
    ('rtx-4090', 'rtx-pro-6000')
    """

    def bare(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("nvidia").replace("geforce", ""))

    wanted = bare(label)
    found: dict[str, str] = {}
    for name in names("chips"):
        for known in (name, *chip_record(name).aliases):
            found.setdefault(bare(known), name)
    if wanted in found:
        return found[wanted]
    longer = [key for key in found if len(key) > 3 and wanted.startswith(key)]  # "rtxpro6000blackwellserveredition"
    return found[max(longer, key=len)] if longer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """A recorded run with the server that is simulated for it.

    Args:
        requests: as they were sent.
        measured: seconds by metric, in the same order; NaN where there is none.
        deployment, stack, cache, speculation: of the server.
    """

    requests: Requests
    measured: Mapping[str, Array]
    deployment: Deployment
    stack: Stack
    cache: CacheConfig
    speculation: Speculation = PLAIN

    def simulated(self) -> Result:
        """The same requests in the simulator.

        Raises:
            RacklineError: they do not fit on the server.
        """
        pool = pool_of(self.deployment, self.stack, cache=self.cache, speculation=self.speculation)
        return simulate(self.requests, pool, beyond_s=self.stack.arrivals.first_token_s)


def recorded_run(resolver: Resolver, case: Case) -> ServedRun:
    """The run of a case with a table of requests beside it.

    Raises:
        RacklineError: settings or requests cannot be used.
    """
    settings = cast("Mapping[str, Any]", case.values["settings"])
    engine, cache = _table(settings, "engine_kwargs"), _table(settings, "kv_cache")
    requests, measured = _requests(Path(str(case.values["path"])).with_name("requests.csv"), case.case_id)
    deployment = resolver.deployments(case)[0]
    around = resolver.stack(case)
    key = "gpu_memory_utilization"
    fraction = cache.get(key) or engine.get(key) or around.memory.memory_fraction
    if not is_number(fraction) or fraction > 1.0:
        raise InputError(what=key, given=fraction, allowed="a number above 0 and at most 1", where=case.where)
    scheduler = around.scheduler
    around = around.with_values(
        {
            "scheduler.max_num_seqs": _whole(engine, "max_num_seqs") or scheduler.max_num_seqs,
            "scheduler.max_batched_tokens": _whole(engine, "max_num_batched_tokens") or scheduler.max_batched_tokens,
            "memory.memory_fraction": float(fraction),
        }
    )
    drafts = _whole(_table(engine, "speculative_config"), "num_speculative_tokens")
    caching = cache.get("enable_prefix_caching", engine.get("enable_prefix_caching"))
    return ServedRun(
        requests=requests,
        measured=measured,
        deployment=deployment,
        stack=around,
        cache=CacheConfig(
            pool_tokens=_whole(cache, "num_kv_tokens") or None,
            block_size=_whole(cache, "block_size") or _whole(engine, "block_size") or 16,
            prefix_caching=around.scheduler.admission == "chunked" if caching is None else bool(caching),
        ),
        speculation=usual_speculation(drafts) if drafts else PLAIN,
    )


def score_run(case: Case, run: ServedRun) -> list[Score]:
    """Scores for each request and metric, and for percentiles of each metric.

    Raises:
        RacklineError: see `ServedRun.simulated`.
    """
    result, measured = run.simulated(), run.measured
    groups = group_of(case)
    scores: list[Score] = []

    def add(metric: str, name: str, of: float, found: float) -> None:
        scores.append(Score(case_id=name, where=case.where, metric=metric, measured=of, predicted=found, groups=groups))

    for metric, values in measured.items():
        found = cast("Array", getattr(result, metric))
        known = np.isfinite(found) & (values > 0)
        for index in np.flatnonzero(known).tolist():
            add(metric, f"{case.case_id}#{index}", float(values[index]), float(found[index]))
        for q in _PERCENTILES if known.any() else ():
            name = f"{metric.removesuffix('_s')}_p{q}_s"
            add(name, case.case_id, float(np.percentile(values[known], q)), float(np.percentile(found[known], q)))
    return scores


def _requests(path: Path, run: str) -> tuple[Requests, dict[str, Array]]:
    rows: list[tuple[float, ...]] = []
    reader = csv.DictReader(read_lines(path, what="requests", allowed="a readable CSV file"))
    try:
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(
                what="columns", given=f"no {', '.join(missing)}", allowed=", ".join(_COLUMNS), where=path.name
            )
        for number, row in enumerate(reader, start=2):
            if row["run"] == run:
                rows.append(_numbers(row, f"{path.name}, line {number}"))
    except csv.Error as error:
        raise InputError(what="requests", given=str(path), allowed=f"a readable CSV file ({error})") from None
    if not rows:
        raise InputError(what="run", given=run, allowed=f"a run with at least one request in {path.name}")
    table = np.array(rows)
    table = table[np.argsort(table[:, 0], kind="stable")]
    requests = Requests(
        arrival_s=table[:, 0],
        input_len=table[:, 1].astype(np.int64),
        output_len=table[:, 2].astype(np.int64),
        name=run,
    )
    return requests, {metric: table[:, 3 + index] / 1e3 for index, metric in enumerate(METRICS)}


def _numbers(row: Mapping[str, str | None], where: str) -> tuple[float, ...]:
    """Arrival, lengths and timings of a request; a timing that was not measured may be NaN.

    Raises:
        InputError: a value is not a number, or a time or length is out of range.
    """
    try:
        found = tuple(float(row[name] or "") for name in _COLUMNS[1:])
    except ValueError:
        raise InputError(what="line", given=dict(row), allowed="numbers in every column", where=where) from None
    arrival_s, *lengths = found[:3]
    if not 0.0 <= arrival_s <= LARGEST or not all(1.0 <= length <= _MOST for length in lengths):
        allowed = "an arrival of at least 0 s and lengths of at least 1 token"
        raise InputError(what="line", given=dict(row), allowed=allowed, where=where)
    return found


_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Modules that have adapters in S-LoRA (arXiv:2311.03285, section 7.1)."""
_SEED = 42
"""Random seed of its requests (github.com/S-LoRA/S-LoRA, benchmarks/trace.py)."""
_SHARE_OF_A_PASS = 6
"""A pass of prompts takes a sixth of the pool's tokens at most (its --batch_max_tokens by default)."""


_NUMBERS = ("adapters", "rank", "request_rate", "arrival_cv", "duration_s", "shortest", "longest", "kv_tokens")


def predict_adapters(resolver: Resolver, cases: Sequence[Case]) -> list[dict[str, float] | RacklineError]:
    """Throughput of each case, and over that of the run with the fewest adapters."""

    def served(case: Case) -> float:
        """Throughput of a case, which several may share [requests/s]."""
        key = (case.model, case.chip, case.precision, *(case.values.get(name) for name in _NUMBERS))
        return resolver.once(("adapters", *key), lambda: requests_per_s(resolver, case))

    found: list[dict[str, float] | RacklineError] = []
    for case in cases:
        try:
            values = {"requests_per_s": served(case)}
            if "over_fewest_adapters" in case.measured:
                fewest = cast("Mapping[str, int]", case.values["fewest"])
                first = served(replace(case, values={**case.values, **fewest}))
                values["over_fewest_adapters"] = values["requests_per_s"] / first
            found.append(values)
        except RacklineError as error:
            found.append(error)
    return found


def adapter_requests(case: Case) -> Requests:
    """The very requests of the benchmark, drawn in its order from its generator."""
    rng, rate = np.random.RandomState(_SEED), case.number("request_rate")
    count, shape = int(rate * case.number("duration_s")), case.number("arrival_cv", 1.0) ** -2.0
    adapters, lengths = case.whole("adapters"), (case.whole("shortest"), case.whole("longest"))
    chosen = (rng.power(1.0, count) * adapters).astype(int)
    prompts, answers = rng.randint(*lengths, count), rng.randint(*lengths, count)
    return Requests(
        arrival_s=np.cumsum(rng.gamma(shape, 1.0 / (shape * rate), count)),
        input_len=prompts,
        output_len=answers,
        adapters=chosen if adapters > 1 else None,
        name="S-LoRA",
    )


def requests_per_s(resolver: Resolver, case: Case) -> float:
    """Requests of a server with many adapters over the time to the end of the last one [requests/s].

    Raises:
        RacklineError: as the resolver; a model whose layers are not known.
    """
    deployment = resolver.deployments(case)[0]
    if not isinstance(deployment.model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    requests, pool_tokens, taken = adapter_requests(case), case.whole("kv_tokens"), 0.0
    if case.values.get("adapters"):
        size = kv_size(deployment.model, deployment.layout, deployment.precision)
        adapter, tokens = _adapters(deployment.model, case, requests, float(size.bytes_per_token))
        taken = adapter.resident * tokens
        deployment = replace(deployment, model=replace(deployment.model, adapter=adapter))
    budget = pool_tokens // _SHARE_OF_A_PASS
    pool = pool_of(
        deployment,
        resolver.stack(case).with_values({"scheduler.max_batched_tokens": budget, "scheduler.max_num_seqs": 1000}),
        cache=CacheConfig(pool_tokens=int(pool_tokens - taken), reserve="prompt"),
        policy_name="prefill-first",
    )
    return len(requests) / float(np.max(simulate(requests, pool).finish_s))


def _adapters(model: Model, case: Case, requests: Requests, token_bytes: float) -> tuple[AppliedAdapter, float]:
    """The adapters, as many of them resident as the requests use that fit beside them, and the tokens of the cache
    whose memory one of them takes.

    Raises:
        InputError: nothing fits beside one adapter.
    """
    rank, number, pool_tokens = round(case.number("rank", 0.0)), case.whole("adapters"), case.whole("kv_tokens")
    found = apply_adapter(model, Adapter(name="adapter", base="", rank=rank, alpha=rank, targets=_TARGETS)).adapter
    if found is None:
        raise InputError(what="model", given=model.name, allowed="one with queries, keys, values and outputs")
    adapter = replace(found, number=number, resident=number)
    each = adapter.stored_bytes / token_bytes
    held = float(np.mean(requests.input_len) + 0.5 * np.mean(requests.output_len))
    low, high = 0.0, pool_tokens / held
    while high - low > 0.5:  # sequences that fit together with what they use
        middle = 0.5 * (low + high)
        tokens = middle * held + adapter.adapters_touched(middle) * each
        low, high = (middle, high) if tokens <= pool_tokens else (low, middle)
    if low < 1.0:
        raise InputError(what="kv_tokens", given=pool_tokens, allowed="room for a request and its adapter")
    return replace(adapter, resident=min(number, math.ceil(adapter.adapters_touched(low)))), each
