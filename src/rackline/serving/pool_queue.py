"""Prompts that arrive at random and wait for a replica of a prefill pool.

A prefill replica takes the waiting prompts, at most m, into one pass of T_j seconds for j prompts of about equal
length. With k replicas in turn, each receives every k-th arrival, so k exponential phases lie between two of its
arrivals. The phases X that a replica holds at the end of a pass form a Markov chain, for lambda prompts/s per replica

    X' = X - k j + Poisson(k lambda T_j)      j = min(floor(X / k), m), after waiting for X = k if no prompt is there

Its stationary distribution gives the mean number of phases over time, of which (k - 1) / 2 belong to no prompt yet, and
Little's law gives the time to the end of a prompt's pass. This is exact; no number is fitted.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from rackline.passes import Batch
from rackline.passes.features import Array, as_array
from rackline.serving.steady import Engine
from rackline.serving.workload import Mode, Workload

_TOO_FULL = 0.98  # of the rate of a prefill replica: beyond it, the chain has too many states


def prompt_passes_s(engine: Engine, workload: Workload, mode: Mode) -> Array:
    """Time of passes with 1, 2, ... prompts, as many as fit, spread evenly over ranks and micro-batches [s].

    Returns:
        Array of shape (m,); for a prompt that needs several passes, one entry with the time of all of them.

    Assumes: prompts of equal length; where a pass does not hold a whole number of prompts, the nearest one at the same
    rate.
    """
    new, room = workload.new_tokens, float(mode.max_batched_tokens)
    peers = round(float(as_array(engine.attention_dp)) * float(as_array(engine.micro_batches)))
    ranks = float(as_array(engine.attention_dp))
    each = max(round(room / new), 1)
    prompts = np.arange(1.0, each * peers + 1.0)
    busiest = np.ceil(prompts / peers)
    chunk = min(new, room)
    tokens = np.minimum(busiest * chunk, room)
    batch = Batch(
        prefill_sequences=tokens / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.prefix_tokens + (new - chunk) / 2.0,
        group_tokens=np.maximum(prompts * chunk * ranks / peers, tokens),
    )
    overlap = mode.two_batch_overlap
    times = engine.time_table(overlap)
    found = engine.with_prompts_s(0.0, engine.seconds(batch, times, two_batch_overlap=overlap), tokens=tokens)
    # the token rate of passes that are full to the last token
    return np.where(busiest == each, found * np.maximum(each * new / room, 1.0), found)


def prompt_time_s(pass_s: Array, prompts_per_s: float, in_turn: int = 1) -> float:
    """Mean time from the arrival of a prompt at a replica to the end of its pass [s].

    Args:
        pass_s: time of passes with 1, 2, ..., m prompts [s], (m,).
        prompts_per_s: lambda, arrival rate at this replica [requests/s].
        in_turn: k, replicas that receive the arrivals round-robin [count].

    Returns:
        Seconds; infinite if the load is above 98 %.

    Assumes: Poisson arrivals at all replicas together; a pass starts as soon as a prompt is waiting.
    Sources: Bailey 1954, On queueing processes with bulk service; the method of phases, Erlang 1917.

    >>> round(prompt_time_s(np.array([1.0]), 0.5), 6)
    1.5
    """
    most, k = len(pass_s), in_turn
    load = prompts_per_s * float(pass_s[-1]) / most
    if load > _TOO_FULL:
        return float("inf")
    phases_per_s = k * prompts_per_s
    size = k * (most + 1) + int(8.0 * np.sqrt(phases_per_s * pass_s[-1]) + 6.0 * k / (1.0 - load))
    held = np.arange(size)
    ready = np.minimum(held // k, most)
    taken = np.maximum(ready, 1)
    left = np.where(ready == 0, 0, held - k * taken)
    seconds = np.asarray(pass_s, dtype=float)[taken - 1]
    # transitions: what is left, and what arrives during a pass
    come = held[None, :] - left[:, None]
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, size)))))
    mean = (phases_per_s * seconds)[:, None]
    some = np.maximum(come, 0)
    chance = np.where(come >= 0, np.exp(some * np.log(mean) - mean - logs[some]), 0.0)
    chance[:, -1] += np.maximum(1.0 - chance.sum(axis=1), 0.0)
    balance = chance.T - np.eye(size)
    balance[-1] = 1.0
    share = cast(Array, np.linalg.solve(balance, np.eye(size)[-1]))
    begin = np.maximum(held, k)
    idle_s = (begin - held) / phases_per_s
    waited = (begin - held) * (begin + held - 1.0) / 2.0 / phases_per_s
    whole_s = float(share @ (idle_s + seconds))
    phases = float(share @ (waited + begin * seconds + phases_per_s * seconds**2 / 2.0)) / whole_s
    return (phases - (k - 1) / 2.0) / k / prompts_per_s
