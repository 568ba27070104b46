"""Requests that the engine serves in real time, against the simulator with the calibration that was fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rackline.lab.measurement.engine import Engine
from rackline.lab.measurement.held_out import Compared
from rackline.parallel import Deployment
from rackline.passes import Batch
from rackline.serving.stack import Stack
from rackline.simulation import CacheConfig, Requests, poisson, pool_of, simulate

LOADS = (0.3, 0.6, 0.85)  # of the highest rate
_FEWEST, _MOST = 8, 60  # requests of a trace
_BACKLOG = 3  # requests for each slot that are there at once


def saturation_per_s(engine: Engine, deployment: Deployment, output_len: int) -> float:
    """Requests a second that full slots carry: a prompt, and a share of the steps [requests/s].

    Args:
        engine: whose slots they are.
        deployment: of its model.
        output_len: mean of the answers [tokens].
    """
    table, slots, prompt = deployment.table(), engine.scheduler.max_num_seqs, engine.scheduler.prompt_tokens
    step_s = float(table.seconds(Batch(decode_sequences=float(slots), context_len=prompt + output_len / 2.0)))
    prompt_s = float(table.seconds(Batch(prefill_sequences=1.0, chunk_tokens=float(prompt))))
    return 1.0 / (prompt_s + (output_len - 1) * step_s / slots)


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
    highest = saturation_per_s(engine, deployment, output_len)
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
    number = _BACKLOG * settings.max_num_seqs
    requests = Requests(
        arrival_s=np.zeros(number),
        input_len=np.full(number, settings.prompt_tokens),
        output_len=random.integers(2, 2 * output_len, number),
        name="all requests at once",
    )
    times = [float(np.max(one.e2e_s)) / number for one in (simulate(requests, pool), engine.serve(requests))]
    saturated = Compared(
        kind="saturation",
        sequences=settings.max_num_seqs,
        prompt_tokens=settings.prompt_tokens,
        predicted_s=times[0],
        measured_s=times[1],
    )
    return [*rows, saturated]
