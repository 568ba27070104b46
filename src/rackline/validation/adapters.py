"""Predicted throughput of a server with many low-rank adapters, by simulating its requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from rackline.arch import AppliedAdapter, Model, apply_adapter
from rackline.errors import InputError, RacklineError
from rackline.hub import Adapter
from rackline.parallel import Deployment
from rackline.parallel.memory import kv_size
from rackline.serving.stack import Stack
from rackline.simulation import CacheConfig, Requests, pool_of, simulate
from rackline.validation.cases import Case, Unsupported
from rackline.validation.resolve import Resolver

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
