"""Requests that the engine serves in real time, against the simulator with the calibration that was fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rackline.lab.measurement.engine import Engine
from rackline.lab.measurement.fitted import Compared
from rackline.parallel import Deployment
from rackline.serving.stack import Stack
from rackline.simulation import CacheConfig, Requests, poisson, pool_of, simulate

LOADS = (0.3, 0.6, 0.85)  # of the highest rate
_FEWEST, _MOST = 8, 60  # requests of a trace
_BACKLOG = 3  # requests for each slot that are there at once


def served(
    engine: Engine, deployment: Deployment, stack: Stack, *, seed: int, trace_s: float, output_len: int
) -> list[Compared]:
    """Random arrivals at several loads, each served and simulated, a row for each request; then all at once, one row.

    Args:
        engine: that serves.
        deployment, stack: that are simulated.
        seed: random seed of the arrivals.
        trace_s: how long a trace should take about [s].
        output_len: mean of the answers, which are between 1 and twice that [tokens].
    """
    rows: list[Compared] = []
    random = np.random.default_rng(seed)
    settings = engine.scheduler
    one_prompt = replace(
        stack,
        max_batched_tokens=settings.prompt_tokens
        if settings.admission == "prefill_first"
        else settings.max_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
    )
    cache = CacheConfig(
        pool_tokens=(settings.max_num_seqs + 1) * engine.limits.context_len, longest=engine.limits.context_len
    )
    pool = pool_of(deployment, one_prompt, cache=cache)
    number = _BACKLOG * settings.max_num_seqs
    backlog = Requests(
        arrival_s=np.zeros(number),
        input_len=np.full(number, settings.prompt_tokens),
        output_len=random.integers(2, 2 * output_len, number),
        name="all requests at once",
    )
    each_s = simulate(backlog, pool).makespan_s / number
    highest = 1.0 / each_s
    for load in LOADS:
        number = int(np.clip(load * highest * trace_s, _FEWEST, _MOST))
        requests = Requests(
            arrival_s=poisson(random, number, load * highest),
            input_len=np.full(number, settings.prompt_tokens),
            output_len=random.integers(2, 2 * output_len, number),
            name=f"random arrivals at {load:.0%} of the highest rate",
        )
        expected = simulate(requests, pool)
        found = engine.serve(requests)
        rows += [
            Compared(
                kind="served",
                sequences=1,
                prompt_tokens=settings.prompt_tokens,
                load=load,
                predicted_s=float(predicted),
                measured_s=float(measured),
            )
            for predicted, measured in zip(expected.e2e_s, found.e2e_s, strict=True)
        ]
    saturated = Compared(
        kind="saturation",
        sequences=settings.max_num_seqs,
        prompt_tokens=settings.prompt_tokens,
        predicted_s=each_s,
        measured_s=float(np.max(engine.serve(backlog).e2e_s)) / len(backlog),
    )
    return [*rows, saturated]
