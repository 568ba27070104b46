"""Continuous batching: a real server of a small transformer against the simulator (lecture C26 to C31).

The same requests are served in real time and simulated, under the same policies. The simulator knows times of the
machine: of a decode step by its sequences, and of a prompt, each measured before and after every part of the run. Under
batch trains passes start at fixed intervals T: a request waits between 0 and T for the next train, T / 2 on average,
and with a ride of T takes 1.5 T on average and 2 T at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.measurement.jax_engine import SERVED_LIMITS, SERVED_SCHEDULER, JaxEngine, served_engine
from rackline.lab.server import Served, SlotClock, measured_clock, serve, simulated_pool
from rackline.passes.features import Array
from rackline.serving.blackboard import train_latency
from rackline.simulation import POLICIES, Policy, Pool, Requests, Result, poisson, simulate

COMPARED = ("fcfs", "prefill-first", "decode-first")
OUTPUT, LOAD = 24, 0.35
"""Mean answer [tokens], and arrivals over what full slots carry. Decode-first carries less, as its slots empty
together: at half of that load it is near its own limit, where a few percent in a pass are half of a wait."""
PARTS = 3
"""Parts of a run, between which passes are timed: a shared machine changes its pace within seconds."""
PROMPT, SLOTS = SERVED_SCHEDULER.prompt_tokens, SERVED_SCHEDULER.max_num_seqs


def saturation_per_s(clock: SlotClock) -> float:
    """Requests a second that full slots carry: a prompt, and a share of the steps [requests/s]."""
    return 1.0 / (clock.prompt_s + (OUTPUT - 1) * clock.step_s[-1] / SLOTS)


def mean_clock(one: SlotClock, other: SlotClock) -> SlotClock:
    """Times halfway between two measurements."""
    return SlotClock(
        step_s=tuple(float(np.mean(both)) for both in zip(one.step_s, other.step_s, strict=True)),
        prompt_s=(one.prompt_s + other.prompt_s) / 2,
    )


def simulated(clock: SlotClock, chosen: Policy) -> Pool:
    """The served engine for the simulator."""
    return simulated_pool(clock, chosen, SERVED_SCHEDULER, SERVED_LIMITS.context_len + 1)


def _compared(name: str, expected: Sequence[Result], found: Sequence[Served]) -> list[Reading]:
    """Simulated and measured means of a policy over the parts of its run."""

    def mean(times: Sequence[Array]) -> float:
        return float(np.mean(np.concatenate(times)))

    def served_per_s(runs: Sequence[Result] | Sequence[Served]) -> float:
        return sum(one.e2e_s.size for one in runs) / sum(one.makespan_s for one in runs)

    return [
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
        for quantity, unit, predicted, measured in (
            (
                "mean time to first token",
                "s",
                mean([one.ttft_s for one in expected]),
                mean([one.ttft_s for one in found]),
            ),
            ("mean time of a request", "s", mean([one.e2e_s for one in expected]), mean([one.e2e_s for one in found])),
            ("requests served", "requests/s", served_per_s(expected), served_per_s(found)),
        )
    ]


def run(setup: Setup) -> Experiment:
    """Time to first token, time of a request and throughput by policy, and the latency of batch trains."""
    setup.progress("measuring a step and a prompt")
    engine = served_engine(setup.seed)
    repeats = 5 if setup.quick else 20
    clock = measured_clock(engine, repeats)
    random = np.random.default_rng(setup.seed)
    number = 20 if setup.quick else 100
    rate = LOAD * saturation_per_s(clock)
    parts = [
        Requests(
            arrival_s=poisson(random, number, rate),
            input_len=np.full(number, PROMPT),
            output_len=random.integers(1, 2 * OUTPUT, number),
            name="requests of the lab",
        )
        for _ in range(PARTS)
    ]
    rows: list[Reading] = []
    shares: dict[str, tuple[list[float], list[float]]] = {}
    for name in COMPARED:
        setup.progress(f"policy {name}, {PARTS} times {number} requests at {rate:.0f}/s")
        chosen = POLICIES.find(name)
        found: list[Served] = []
        expected: list[Result] = []
        for requests in parts:
            found.append(serve(engine, requests, chosen))
            before, clock = clock, measured_clock(engine, repeats)
            expected.append(simulate(requests, simulated(mean_clock(before, clock), chosen)))
        rows += _compared(name, expected, found)
        shares[name] = (
            sorted(time for one in expected for time in one.e2e_s.tolist()),
            sorted(time for one in found for time in one.e2e_s.tolist()),
        )
    setup.progress("batch trains")
    rows += _trains(engine, clock, setup)
    total = PARTS * number
    points = [(index + 0.5) / total for index in range(0, total, max(1, total // 40))]
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
    found = serve(engine, requests, replace(POLICIES.find("trains"), interval_s=interval_s))
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
