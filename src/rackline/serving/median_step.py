"""The median inter-token time, which many benchmarks publish in place of the mean.

The mean weights the steps that carry prompts by their share. The median is a single step: a Poisson number of prompts
of random length arrives between two steps, so with few arrivals the median step carries none, however long the others
take.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rackline.passes import Batch
from rackline.passes.features import Array, as_array
from rackline.serving.steady import Engine
from rackline.serving.workload import Mode, Workload, Workloads

_MOST = 64.0  # prompts per step above which the distribution is taken as symmetric around mean - _BEHIND
_BEHIND = 0.65
_POINTS = 200


def median_prompts(arrivals: Array) -> Array:
    """Median amount of prompt tokens that arrive in a step, in units of the mean prompt [1].

    Equation:
        F(x) = e^-r + sum over n >= 1 of Poisson(n; r) Gamma(x; n),  F(median) = 1/2, and 0 up to r = ln 2

    Args:
        arrivals: r, prompts per step [1].

    Assumes: Poisson arrivals and exponentially distributed prompt lengths.

    >>> median_prompts(np.array([0.5, 1.0, 4.0])).round(2).tolist()
    [0.0, 0.4, 3.49]
    """
    rates, medians = _tabulated()
    r = as_array(arrivals)
    return np.where(r < _MOST, np.interp(r, rates, medians), r - _BEHIND)


@cache
def _tabulated() -> tuple[Array, Array]:
    from scipy.special import gammainc, gammaln

    rates = np.concatenate([[0.0, np.log(2.0)], np.geomspace(0.7, _MOST, _POINTS)])
    numbers = np.arange(1.0, 2.5 * _MOST)
    medians = np.zeros_like(rates)
    shares = np.exp(numbers * np.log(rates[2:, None]) - rates[2:, None] - gammaln(numbers + 1.0))
    low, high = np.zeros(_POINTS), np.full(_POINTS, 2.0 * _MOST)
    for _ in range(50):
        middle = 0.5 * (low + high)
        below = np.exp(-rates[2:]) + (shares * gammainc(numbers, middle[:, None])).sum(axis=1) < 0.5
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    medians[2:] = high
    return rates, medians


def median_step_s(engine: Engine, workload: Workload | Workloads, mode: Mode, sequences_per_rank: Array) -> Array:
    """Median inter-token time of a request with `sequences_per_rank` sequences decoding on each rank [s].

    Args:
        workload: one workload, or one per row.
        sequences_per_rank: (points,) or (workloads, points) [sequences].

    Returns:
        Array in the shape of `sequences_per_rank`; with drafts, the median step over the mean tokens per step.

    Assumes: ranks in lockstep share the prompts evenly.
    """
    b = as_array(sequences_per_rank)
    overlap = mode.two_batch_overlap
    times = engine.time_table(overlap)
    verified, per_step = engine.speculation.verified_tokens, engine.speculation.tokens_per_step
    peers = as_array(engine.attention_dp) * as_array(engine.micro_batches)
    decode = Batch(decode_sequences=b, decode_tokens=verified, context_len=workload.mean_context)
    decode_s = engine.decode_s(decode, times, two_batch_overlap=overlap)
    room = np.maximum(float(mode.max_batched_tokens) - (b * verified if mode.is_mixed else 0.0), 1.0)
    arrivals = peers * b * per_step / (workload.output_len - 1.0) * (1.0 - engine.stack.synchrony)
    tokens = np.minimum(median_prompts(arrivals) / peers * workload.new_tokens, room)
    some = np.maximum(tokens, 1.0)
    chunk = np.minimum(workload.new_tokens, some)
    beside = b if mode.is_mixed else np.zeros_like(b)
    with_prompts = Batch(
        decode_sequences=beside,
        decode_tokens=verified,
        context_len=workload.mean_context,
        prefill_sequences=some / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.cached_tokens + (workload.new_tokens - chunk) / 2.0,
    )
    mixed_s = engine.seconds(with_prompts, times, two_batch_overlap=overlap)
    if mode.is_mixed:
        mixed_s = engine.with_prompts_s(decode_s, mixed_s, tokens=b * verified + some, sequences=b)
    else:
        mixed_s = decode_s + engine.with_prompts_s(0.0, mixed_s, tokens=some)
    if mode.is_batch_by_batch:  # no prompts between the steps of a batch
        mixed_s = decode_s
    step_s = np.where(tokens > 0.0, mixed_s, decode_s) + engine.drafts_s(b, workload.mean_context)
    return step_s / per_step
