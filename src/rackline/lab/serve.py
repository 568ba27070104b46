"""Continuous batching: a real server of a small transformer against the simulator (lecture C26 to C31).

The same requests are served in real time and simulated, under the same policies. The simulator knows times of the
machine: of a decode step by its sequences, and of a prompt, each measured before and after every part of the run. Under
batch trains passes start at fixed intervals T: a request waits between 0 and T for the next train, T / 2 on average,
and with a ride of T takes 1.5 T on average and 2 T at worst.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from rackline.lab.engine import Limits, Scheduler
from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.jax_engine import JaxEngine, Served, serve
from rackline.lab.transformer import Shape
from rackline.lab.workers.worker import Clock
from rackline.passes.features import Array
from rackline.serving.blackboard import train_latency
from rackline.simulation import POLICIES, Policy, Pool, RankSpec, Requests, Result, poisson, simulate
from rackline.simulation.clock import Chunk, Line

COMPARED = ("fcfs", "prefill-first", "decode-first")
OUTPUT, LOAD = 24, 0.35
"""Mean answer [tokens], and arrivals over what full slots carry. Decode-first carries less, as its slots empty
together: at half of that load it is near its own limit, where a few percent in a pass are half of a wait."""
PARTS = 3
"""Parts of a run, between which passes are timed: a shared machine changes its pace within seconds."""
SERVED_SHAPE = Shape(num_layers=4, d_model=256, num_q_heads=8, num_kv_heads=2, head_dim=32, d_ff=1024, vocab_size=512)
SERVED_LIMITS = Limits(sequences=8, context_len=127, prompt_tokens=64)
SERVED_SCHEDULER = Scheduler(
    admission="chunked", max_num_seqs=8, max_batched_tokens=8 * (64 + 1), prompt_tokens=SERVED_LIMITS.prompt_tokens
)  # whole prompts of all slots fit into a pass
PROMPT, SLOTS = SERVED_SCHEDULER.prompt_tokens, SERVED_SCHEDULER.max_num_seqs


def served_engine(seed: int) -> JaxEngine:
    """The engine with a model whose passes take about a millisecond, for the experiment `serve` and over HTTP."""
    return JaxEngine(
        shape=SERVED_SHAPE,
        dtype="fp32",
        limits=SERVED_LIMITS,
        scheduler=SERVED_SCHEDULER,
        clock=Clock(cpu=False),
        seed=seed,
    )


@dataclass(slots=True, kw_only=True)
class SlotClock:
    """The simulator's clock of an engine with slots: a step by its sequences, and a call for each prompt.

    Args:
        step_s: of a decode step with 1, 2, ... sequences [s].
        prompt_s: of a prompt, all of one size [s].
    """

    step_s: tuple[float, ...]
    prompt_s: float
    verified: int = 1
    tokens_per_step: float = 1.0

    @property
    def straight_from(self) -> float:
        """0: all of it is straight."""
        return 0.0

    def bends(self, sequences: int, group_tokens: float) -> Sequence[float] | None:
        """The same step at all contexts."""
        return ()

    def line(self, sequences: int, group_tokens: float, kv_tokens: float = inf) -> Line | None:
        """The same step at all contexts."""
        return Line(self.step_s[sequences - 1], 0.0, 0.0)

    def straight(self, sequences: int, kv_tokens: Any, longest: Any, group_tokens: float) -> Any:
        """The same step at all contexts."""
        return self.step_s[sequences - 1] + 0.0 * kv_tokens

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        """The same step at all contexts."""
        return np.full(np.shape(advance), self.step_s[len(contexts) - 1])

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
        *,
        others_decode: bool = False,
    ) -> float:
        """The step, and the prompts one after the other."""
        return len(chunks) * self.prompt_s + (self.step_s[sequences - 1] if sequences else 0.0)


def measured_clock(engine: JaxEngine, repeats: int) -> SlotClock:
    """Median times of decode steps and of a prompt on this machine, in turns as a server runs them."""
    settings = engine.scheduler
    prompt = np.zeros(settings.prompt_tokens, dtype=np.int32)
    engine.ready([prompt.size])
    steps: list[list[float]] = [[] for _ in range(settings.max_num_seqs)]
    prompts: list[float] = []
    for _ in range(repeats):
        for times in steps:
            began = time.perf_counter()
            engine.enter(prompt)
            entered = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - entered)
            prompts.append(entered - began)
        for place in reversed(range(len(steps))):
            engine.leave(place)
    return SlotClock(step_s=tuple(float(np.median(times)) for times in steps), prompt_s=float(np.median(prompts)))


def mean_clock(one: SlotClock, other: SlotClock) -> SlotClock:
    """Times halfway between two measurements."""
    return SlotClock(
        step_s=tuple(float(np.mean(both)) for both in zip(one.step_s, other.step_s, strict=True)),
        prompt_s=(one.prompt_s + other.prompt_s) / 2,
    )


def simulated(clock: SlotClock, chosen: Policy) -> Pool:
    """The served engine for the simulator."""
    spec = RankSpec(
        pool_tokens=SLOTS * (SERVED_LIMITS.context_len + 1),
        block_size=1,
        max_num_seqs=SLOTS,
        max_batched_tokens=SERVED_SCHEDULER.max_batched_tokens,
        reserve="final",
    )
    return Pool(clock=clock, spec=spec, policy=chosen)


def _compared(name: str, expected: Sequence[Result], found: Sequence[Served]) -> list[Reading]:
    """Simulated and measured means of a policy over the parts of its run."""
    both: tuple[Sequence[Result | Served], ...] = (expected, found)
    ttft_s, e2e_s = (
        [float(np.mean(np.concatenate([getattr(one, key) for one in runs]))) for runs in both]
        for key in ("ttft_s", "e2e_s")
    )
    served_per_s = [sum(one.e2e_s.size for one in runs) / sum(one.makespan_s for one in runs) for runs in both]
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
        for quantity, unit, (predicted, measured) in (
            ("mean time to first token", "s", ttft_s),
            ("mean time of a request", "s", e2e_s),
            ("requests served", "requests/s", served_per_s),
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
    full_per_s = 1.0 / (clock.prompt_s + (OUTPUT - 1) * clock.step_s[-1] / SLOTS)  # a prompt, and a share of the steps
    rate = LOAD * full_per_s
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
        found, expected = list[Served](), list[Result]()
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
        for name, predicted, measured, tolerance in (
            ("mean", float(expected.mean_s) - interval_s, float(found.wait_s.mean()), 0.15),
            ("longest", float(expected.worst_s) - interval_s, float(np.quantile(found.wait_s, 0.99)), 0.1),
        )
    ]
