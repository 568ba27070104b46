"""Continuous batching: a real server of a small transformer against the simulator (lecture C26 to C31).

The same requests are served in real time and simulated, under the same policies. The simulator knows times of the
machine, measured before: of a decode step by its sequences, and of a prompt. Under batch trains passes start at fixed
intervals T: a request waits between 0 and T for the next train, T / 2 on average, and with a ride of T takes 1.5 T on
average and 2 T at worst.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.measurement.jax_engine import SERVED_LIMITS, SERVED_SCHEDULER, JaxEngine, served_engine
from rackline.lab.server import SlotClock, measured_clock, serve, simulated_pool
from rackline.serving.blackboard import train_latency
from rackline.simulation import Policy, Pool, Requests, poisson, policy, simulate

POLICIES = ("fcfs", "prefill-first", "decode-first")
OUTPUT, LOAD = 24, 0.5
PROMPT, SLOTS = SERVED_SCHEDULER.prompt_tokens, SERVED_SCHEDULER.max_num_seqs


def saturation_per_s(clock: SlotClock) -> float:
    """Requests a second that full slots carry: a prompt, and a share of the steps [requests/s]."""
    return 1.0 / (clock.prompt_s + (OUTPUT - 1) * clock.step_s[-1] / SLOTS)


def simulated(clock: SlotClock, chosen: Policy) -> Pool:
    """The served engine for the simulator."""
    return simulated_pool(clock, chosen, SERVED_SCHEDULER, SERVED_LIMITS.context_len + 1)


def run(setup: Setup) -> Experiment:
    """Time to first token, time of a request and throughput by policy, and the latency of batch trains."""
    setup.progress("measuring a step and a prompt")
    engine = served_engine(setup.seed)
    clock = measured_clock(engine, 15 if setup.quick else 100)
    random = np.random.default_rng(setup.seed)
    number = 60 if setup.quick else 300
    rate = LOAD * saturation_per_s(clock)
    requests = Requests(
        arrival_s=poisson(random, number, rate),
        input_len=np.full(number, PROMPT),
        output_len=random.integers(1, 2 * OUTPUT, number),
        name="requests of the lab",
    )
    rows: list[Reading] = []
    shares: dict[str, tuple[list[float], list[float]]] = {}
    for name in POLICIES:
        setup.progress(f"policy {name}, {number} requests at {rate:.0f}/s")
        chosen = policy(name)
        found = serve(engine, requests, chosen)
        expected = simulate(requests, simulated(clock, chosen))
        for quantity, unit, predicted, measured in (
            ("mean time to first token", "s", float(expected.ttft_s.mean()), float(found.ttft_s.mean())),
            ("mean time of a request", "s", float(expected.e2e_s.mean()), float(found.e2e_s.mean())),
            ("requests served", "requests/s", number / expected.makespan_s, number / found.makespan_s),
        ):
            rows.append(
                Reading(
                    quantity=f"{name}: {quantity}",
                    unit=unit,
                    predicted=predicted,
                    measured=measured,
                    tolerance=0.15,
                    check="equal",
                    statistical=True,
                    source="the simulator with measured times of passes",
                )
            )
        shares[name] = (sorted(expected.e2e_s.tolist()), sorted(found.e2e_s.tolist()))
    setup.progress("batch trains")
    rows += _trains(engine, clock, setup)
    points = [(index + 0.5) / number for index in range(0, number, max(1, number // 40))]
    curves = tuple(
        Curve(name=name, kind=kind, x=tuple(float(np.quantile(times, one)) for one in points), y=tuple(points))
        for name, both in shares.items()
        for kind, times in zip(("predicted", "measured"), both, strict=True)
    )
    errors = [abs(row.error) for row in rows if row.error is not None]
    return Experiment(
        name="serve",
        claims=("C26", "C27", "C31"),
        rows=tuple(rows),
        findings=(f"median difference between server and simulator {float(np.median(errors)):.0%}",),
        curves=curves,
        axes=("seconds of a request", "share of the requests"),
        log_axes=(True, False),
    )


def _trains(engine: JaxEngine, clock: SlotClock, setup: Setup) -> list[Reading]:
    """Waiting for a departure, of requests with one token each, half as many as there are places."""
    interval_s = 1.5 * SLOTS * clock.prompt_s  # a full train is back before the next departs
    number = 60 if setup.quick else 300
    random = np.random.default_rng(setup.seed + 1)
    requests = Requests(
        arrival_s=poisson(random, number, 0.25 * SLOTS / interval_s),
        input_len=np.full(number, PROMPT),
        output_len=np.ones(number, dtype=int),
        name="passengers",
    )
    found = serve(engine, requests, replace(policy("trains"), interval_s=interval_s))
    expected = train_latency(interval_s)
    waits = {
        "mean": (float(expected.mean_s) - interval_s, float(found.wait_s.mean()), 0.15),
        "longest": (float(expected.worst_s) - interval_s, float(np.quantile(found.wait_s, 0.99)), 0.1),
    }
    return [
        Reading(
            quantity=f"trains: {name} latency over the interval, the ride taking one",
            predicted=(predicted + interval_s) / interval_s,
            measured=(measured + interval_s) / interval_s,
            tolerance=tolerance,
            check="equal" if name == "mean" else "at_most",
            statistical=True,
            source="C27: 1.5 T on average, 2 T at worst",
        )
        for name, (predicted, measured, tolerance) in waits.items()
    ]
