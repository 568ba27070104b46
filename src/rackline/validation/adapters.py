"""Servers with many low-rank adapters: published runs as cases, and their predicted throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from rackline.arch import AppliedAdapter, Model, apply_adapter
from rackline.errors import InputError, RacklineError
from rackline.hub import Adapter
from rackline.parallel import Deployment
from rackline.parallel.memory import kv_size
from rackline.serving.stack import Stack
from rackline.simulation import CacheConfig, Requests, pool_of, simulate
from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.resolve import Resolver
from rackline.validation.tables import TableRow, has_columns, number, read_rows, table_rows, whole

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Modules that have adapters in S-LoRA (arXiv:2311.03285, section 7.1)."""
_SEED = 42
"""Of its requests (github.com/S-LoRA/S-LoRA, benchmarks/trace.py)."""
_SHARE_OF_A_PASS = 6
"""A pass of prompts takes a sixth of the pool's tokens at most (its --batch_max_tokens by default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRun:
    """A run of a server with many adapters that share the pool of the KV cache.

    Args:
        deployment: without adapters.
        stack: around it.
        adapters: of which each request uses one; 0 for none [count].
        rank: mean of the adapters, rounded [elements].
        rate: of the requests [requests/s].
        arrival_cv: standard deviation of the time between two arrivals over its mean [1].
        duration_s: of the arrivals [s].
        shortest, longest: prompts and answers, alike in between; the longest is not reached [tokens].
        pool_tokens: that caches and adapters share [tokens].
    """

    deployment: Deployment
    stack: Stack
    adapters: int
    rank: int
    rate: float
    arrival_cv: float
    duration_s: float
    shortest: int
    longest: int
    pool_tokens: int

    def requests(self) -> Requests:
        """The very requests of the benchmark, drawn in its order from its generator."""
        rng = np.random.RandomState(_SEED)
        count, shape = int(self.rate * self.duration_s), self.arrival_cv**-2.0
        chosen = (rng.power(1.0, count) * self.adapters).astype(int)
        prompts = rng.randint(self.shortest, self.longest, count)
        answers = rng.randint(self.shortest, self.longest, count)
        return Requests(
            arrival_s=np.cumsum(rng.gamma(shape, 1.0 / (shape * self.rate), count)),
            input_len=prompts,
            output_len=answers,
            adapters=chosen if self.adapters > 1 else None,
            name="S-LoRA",
        )

    def requests_per_s(self) -> float:
        """Requests over the time to the end of the last one [requests/s]."""
        requests, model, taken = self.requests(), cast("Model", self.deployment.model), 0.0
        if self.adapters:
            adapter = self._adapter(requests)
            taken = adapter.resident * self._tokens_of(adapter)
            model = replace(model, adapter=adapter)
        pool = pool_of(
            replace(self.deployment, model=model),
            replace(self.stack, max_batched_tokens=self.pool_tokens // _SHARE_OF_A_PASS, max_num_seqs=1000),
            cache=CacheConfig(pool_tokens=int(self.pool_tokens - taken), reserve="prompt"),
            policy_name="prefill-first",
        )
        result = simulate(requests, pool)
        return len(requests) / float(np.max(result.finish_s))

    def _adapter(self, requests: Requests) -> AppliedAdapter:
        """The adapters, as many of them resident as the requests use that fit beside them.

        Raises:
            InputError: nothing fits beside one adapter.
        """
        model = cast("Model", self.deployment.model)
        shape = Adapter(name="adapter", base="", rank=self.rank, alpha=self.rank, targets=_TARGETS)
        found = apply_adapter(model, shape).adapter
        if found is None:
            raise InputError(what="model", given=model.name, allowed="one with queries, keys, values and outputs")
        adapter = replace(found, number=self.adapters, resident=self.adapters)
        held = float(np.mean(requests.input_len) + 0.5 * np.mean(requests.output_len))
        low, high = 0.0, self.pool_tokens / held
        while high - low > 0.5:  # sequences that fit together with what they use
            middle = 0.5 * (low + high)
            tokens = middle * held + adapter.adapters_touched(middle) * self._tokens_of(adapter)
            low, high = (middle, high) if tokens <= self.pool_tokens else (low, middle)
        if low < 1.0:
            raise InputError(what="kv_tokens", given=self.pool_tokens, allowed="room for a request and its adapter")
        return replace(adapter, resident=min(self.adapters, math.ceil(adapter.adapters_touched(low))))

    def _tokens_of(self, adapter: AppliedAdapter) -> float:
        """Tokens of the cache whose memory one adapter takes [tokens]."""
        size = kv_size(self.deployment.model, self.deployment.layout, self.deployment.precision)
        return adapter.stored_bytes / float(size.bytes_per_token)


def predict_adapters(
    resolver: Resolver, cases: Sequence[Case]
) -> Iterator[tuple[Case, dict[str, float] | Unsupported]]:
    """Throughput of each case, and over that of the run with the fewest adapters."""
    known: dict[tuple[object, ...], float] = {}
    for case in cases:
        try:
            values = {"requests_per_s": _served(resolver, case, known)}
            if "over_fewest_adapters" in case.measured:
                fewest = cast("Mapping[str, int]", case.values["fewest"])
                first = _served(resolver, replace(case, values={**case.values, **fewest}), known)
                values["over_fewest_adapters"] = values["requests_per_s"] / first
            yield case, values
        except RacklineError as error:
            yield case, Unsupported.of(case, str(error), bad_input=True)


_NUMBERS = ("adapters", "rank", "request_rate", "arrival_cv", "duration_s", "shortest", "longest", "kv_tokens")


def _served(resolver: Resolver, case: Case, known: dict[tuple[object, ...], float]) -> float:
    """Throughput of a case, which several may share [requests/s]."""
    key = (case.model, case.chip, case.precision, *(case.values.get(name) for name in _NUMBERS))
    if key not in known:
        known[key] = run_of(resolver, case).requests_per_s()
    return known[key]


def run_of(resolver: Resolver, case: Case) -> AdapterRun:
    """The run of a case.

    Raises:
        RacklineError: as the resolver; a model whose layers are not known.
    """
    deployment = resolver.deployments(case)[0]
    if not isinstance(deployment.model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    return AdapterRun(
        deployment=deployment,
        stack=resolver.stack(case),
        adapters=int(case.number("adapters")) if case.values.get("adapters") else 0,
        rank=round(case.number("rank")) if case.values.get("rank") else 0,
        rate=case.number("request_rate"),
        arrival_cv=case.number("arrival_cv") if case.values.get("arrival_cv") else 1.0,
        duration_s=case.number("duration_s"),
        shortest=int(case.number("shortest")),
        longest=int(case.number("longest")),
        pool_tokens=int(case.number("kv_tokens")),
    )


_COLUMNS = ("system", "setting", "lora_ranks", "num_adapters", "alpha", "req_rate", "cv", "throughput_req_s")
_MODELS = {"llama-7b": "llama-2-7b", "llama-13b": "llama-2-13b"}
"""LLaMA's first models have the shapes of the second."""
_CHIPS = {"a10g": "a10g", "a100-40": "a100-sxm-40gb", "a100-80": "a100-sxm-80gb"}
_POOL_TOKENS = {
    ("S1", "a10g"): 14500,
    ("S2", "a10g"): 14500,
    ("S4", "a100-40"): 14000,
    ("S1", "a100-80"): 125000,
    ("S2", "a100-80"): 125000,
    ("S4", "a100-80"): 65000,
}
"""Tokens of the pool that caches and adapters share: --num-token of the commands beside the published results
(github.com/S-LoRA/S-LoRA, benchmarks/paper/*/exp_cmds*.sh)."""
_OTHERS = {
    "abort": "drops requests that would be late",
    "bmm": "pads adapters to one rank and multiplies them in batches, an ablation",
    "lifo": "serves the newest requests first",
    "no_mem": "keeps adapters outside of the pool, an ablation",
    "peft": "serves one adapter at a time",
    "pets": "batches by another scheduler",
    "vllm": "runs a server for each adapter",
    "ablation_cluster": "batches requests of the same adapters, and the chip is not stated",
    "ablation_merge": "merges adapters into the weights",
}


def is_adapters_table(text: str) -> bool:
    """Whether a CSV file has the columns of published runs with many adapters."""
    return has_columns(text, _COLUMNS)


def read_adapters_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table; runs of other systems, and those that do not say what was run, are named with the reason.

    The throughput over that of the run with the fewest adapters (at least one) of the same setting, chip, rate and
    burstiness is a measurement of its own.

    Args:
        text: the content of the file.
        unknown_keys: ignored keys → number of cases that have them.
    """
    rows = table_rows(text)
    fewest: dict[tuple[str, ...], TableRow] = {}
    for row in rows:
        with suppress(InputError):  # told with its row below
            if not _doubt(row) and whole(row, "num_adapters") >= 1:
                best = fewest.get(_group(row))
                if best is None or whole(row, "num_adapters") < whole(best, "num_adapters"):
                    fewest[_group(row)] = row

    def read(row: TableRow, case_id: str, where: str) -> Case | Unsupported:
        doubt, first = _doubt(row), fewest.get(_group(row))
        case = case_from(_data(row, case_id, None if doubt or first is row else first), where, unknown_keys)
        return Unsupported.of(case, doubt) if doubt and isinstance(case, Case) else case

    return read_rows(path, rows, "adapters", read)


def _group(row: TableRow) -> tuple[str, ...]:
    return tuple(row[name] for name in ("setting", "chip", "req_rate", "cv"))


def _doubt(row: TableRow) -> str:
    """Why a row cannot be scored; empty if it can."""
    system = row["system"]
    if system in _OTHERS:
        return _OTHERS[system]
    if system == "ablation_mem" and not row["variant"].endswith("_dm.jsonl"):
        return _OTHERS["no_mem"]
    if row["used_in_paper"] != "yes":
        return "a run that the paper does not use"
    if (row["setting"], row["chip"]) not in _POOL_TOKENS:
        return "requests are those of a service that is not published"
    return "requests choose adapters by another law" if number(row, "alpha") != 1.0 else ""


def _ranks(row: TableRow) -> float:
    """Mean rank: the ranks of a setting in turn, from the first."""
    ranks = [int(rank) for rank in row["lora_ranks"].split(",") if rank.strip().isdigit()]
    number = whole(row, "num_adapters", 0)
    return sum(ranks[index % len(ranks)] for index in range(number)) / number if ranks and number else 0.0


def _data(row: TableRow, case_id: str, fewest: TableRow | None) -> dict[str, object]:
    measured = {"requests_per_s": number(row, "throughput_req_s")}
    data: dict[str, object] = {
        "id": case_id,
        "kind": "adapters",
        "model": _MODELS.get(row["model"], row["model"]),
        "chip": _CHIPS.get(row["chip"], row["chip"] or "-"),
        "num_chips": 1,
        "stack": row["system"],
        "precision": "bf16",
        "request_rate": number(row, "req_rate", 1.0),
        "arrival_cv": number(row, "cv", 1.0),
        "duration_s": number(row, "duration_s", 1.0),
        "shortest": 8,
        "longest": 512,
        "kv_tokens": _POOL_TOKENS.get((row["setting"], row["chip"]), 1),
        "source": row["source"],
        "measured": measured,
    }
    if whole(row, "num_adapters", 0):
        data |= {"adapters": whole(row, "num_adapters"), "rank": _ranks(row)}
    if fewest is not None and whole(row, "num_adapters", 0) > 1:
        data["fewest"] = {
            "adapters": whole(fewest, "num_adapters"),
            "rank": round(_ranks(fewest)),
            "duration_s": int(number(fewest, "duration_s")),
        }
        measured["over_fewest_adapters"] = measured["requests_per_s"] / number(fewest, "throughput_req_s")
    return data
