"""Runs of a benchmark whose lengths have a long tail: simulated as they were run, request by request.

A closed form has the mean request. In a run of some waves the longest answers decide when the last one ends, and a
server is full for part of the time only. Runs of equal lengths stay closed forms: a simulated server keeps them in step
from wave to wave, which servers do less (docs/log.md), so that closed forms are nearer to what was measured.
"""

from __future__ import annotations

import numpy as np

from rackline.parallel import Deployment
from rackline.passes.features import Array
from rackline.serving.stack import Stack
from rackline.simulation import CacheConfig, Lengths, Requests, open_arrivals, pool_of, simulate
from rackline.validation.cases import Case
from rackline.validation.sources import requests_of

LONG_TAIL = "lognormal"
# Samplers of benchmarks leave out prompts above 1,024 tokens, and prompts with answers above 2,048 (vLLM's
# is_valid_sequence, which SGLang's client has as well).
_LONGEST_PROMPT, _LONGEST = 1024, 2048
_SEED = 0


def output_rate(deployment: Deployment, stack: Stack, case: Case) -> float:
    """Output tokens of all chips over the whole time of a run [tokens/s].

    Raises:
        RacklineError: the model or a request does not fit on the server.
    """
    requests = run_of(case)
    longest = int(np.max(requests.input_len + requests.output_len))
    pool = pool_of(deployment, stack, cache=CacheConfig(longest=longest))
    result = simulate(requests, pool, beyond_s=stack.first_token_s)
    return float(np.sum(requests.output_len) / np.max(result.finish_s))


def run_of(case: Case) -> Requests:
    """The requests of a run with long tails: as many as stated, at the stated rate or all at once."""
    count, rng = int(requests_of(case)), np.random.default_rng(_SEED)
    means = case.number("input_len"), case.number("output_len")
    if "request_rate" in case.values:
        lengths = Lengths(input_len=means[0], output_len=means[1], spread=LONG_TAIL)
        return open_arrivals(rng, count, case.number("request_rate"), lengths)
    drawn = Lengths(input_len=means[0], output_len=means[1], spread=LONG_TAIL).draw(rng, count)
    prompts = np.minimum(drawn[0], max(_LONGEST_PROMPT, means[0]))
    answers = np.minimum(drawn[1], np.maximum(_LONGEST - prompts, means[1]))
    return Requests(
        arrival_s=np.zeros(count), input_len=_of_mean(prompts, means[0]), output_len=_of_mean(answers, means[1])
    )


def _of_mean(lengths: Array, mean: float) -> Array:
    return np.maximum(np.rint(lengths * (mean / np.mean(lengths))), 1).astype(np.int64)
