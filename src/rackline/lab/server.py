"""Continuous batching in real time, under the policies of the simulator, over an engine with slots.

A pass computes one token of every sequence that decodes and the prompts that the policy lets in, one call each; answers
are seen when the pass ends. `serve` runs a list of requests, each at its time; `http_server` puts those that come over
HTTP through the same passes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, Protocol, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from rackline.lab.measurement.engine import Scheduler
from rackline.lab.measurement.workers.worker import Clock
from rackline.lab.transformer import Shape
from rackline.passes.features import Array
from rackline.simulation import Policy, Pool, RankSpec, Requests
from rackline.simulation.clock import Chunk, Line

Ids = NDArray[np.int32]


class SlotEngine(Protocol):
    """An engine whose sequences take its first slots, in an order that `leave` changes."""

    @property
    def shape(self) -> Shape: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def newest(self) -> Ids:
        """Last token of the sequence in each slot, (slots,)."""
        ...

    def ready(self, prompt_sizes: Sequence[int]) -> None:
        """Empty the slots, and do what only first passes with such prompts do, such as compiling."""
        ...

    def enter(self, prompt: Ids) -> None:
        """Compute a prompt into the next slot; its first token is there afterwards."""
        ...

    def step(self) -> None:
        """One more token of every sequence."""
        ...

    def leave(self, place: int) -> None:
        """Give a slot back: the last sequence moves there."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request as the passes see it.

    Args:
        prompt: ids.
        left: tokens that it is still to get [tokens].
    """

    prompt: Ids
    left: int

    @property
    def is_over(self) -> bool:
        """Whether its slot is free again."""
        return self.left <= 0


J = TypeVar("J", bound=Job)


@dataclass(slots=True, kw_only=True)
class Passes(Generic[J]):
    """The requests of an engine, pass by pass.

    Args:
        engine: that computes; its scheduler says how many sequences and tokens a pass has at most.
        policy: which passes carry prompts; prompts are never cut, and wait in the order of arrival.
        waiting: requests without a slot.
        running: requests by slot.
    """

    engine: SlotEngine
    policy: Policy
    waiting: deque[J] = field(default_factory=deque[J])
    running: list[J] = field(default_factory=list[J])

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.waiting and not self.running

    def run_pass(self) -> tuple[list[J], list[tuple[J, int]]]:
        """One pass: the requests whose prompts it computed, and every new token with its request."""
        entering = self._entering()
        before = len(self.running)
        steps = before > 0 and (self.policy.passes == "mixed" or not entering)
        if steps:
            self.engine.step()  # before the prompts: a step that is padded writes to slots behind its sequences
        for job in entering:
            self.engine.enter(job.prompt)
        self.running += entering
        first = 0 if steps else before
        found = [(job, int(self.engine.newest[first + at])) for at, job in enumerate(self.running[first:])]
        for job, _ in found:
            job.left -= 1
        for place in reversed(range(len(self.running))):
            if self.running[place].is_over:
                self.engine.leave(place)
                last = self.running.pop()
                if place < len(self.running):
                    self.running[place] = last
        return entering, found

    def _entering(self) -> list[J]:
        """Requests that the policy lets in now."""
        match self.policy.passes:
            case "batch" if self.running:
                return []
            case "mixed":
                tokens = len(self.running)
            case "batch" | "prompts_first":
                tokens = 0
            case _:
                assert_never(self.policy.passes)
        limits, found = self.engine.scheduler, list[J]()
        while self.waiting and len(self.running) + len(found) < limits.max_num_seqs:
            tokens += self.waiting[0].prompt.size
            if found and tokens > limits.max_batched_tokens:
                break
            found.append(self.waiting.popleft())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What clients saw, one value per request [s].

    Args:
        ttft_s: arrival to first token.
        e2e_s: arrival to last token.
        wait_s: arrival to the start of the pass that computes the prompt.
        makespan_s: until the last token of all.
    """

    ttft_s: Array
    e2e_s: Array
    wait_s: Array
    makespan_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Listed(Job):
    """A request of a list, by its number."""

    number: int


def serve(engine: SlotEngine, requests: Requests, policy: Policy) -> Served:
    """Serve all requests in real time.

    Args:
        engine: with room for them; all that it may have to compile is compiled before the first arrives.
        requests: each arrives at its time.
        policy: which passes carry prompts, and at which times passes start.
    """
    random = np.random.default_rng(0)
    jobs = [
        _Listed(number=number, prompt=random.integers(0, engine.shape.vocab_size, size, np.int32), left=left)
        for number, (size, left) in enumerate(
            zip(requests.input_len.tolist(), requests.output_len.tolist(), strict=True)
        )
    ]
    engine.ready(sorted({job.prompt.size for job in jobs}))
    passes: Passes[_Listed] = Passes(engine=engine, policy=policy)
    arrival, clock = requests.arrival_s.tolist(), engine.clock
    start_s, first_s, last_s = (np.full(len(jobs), np.nan) for _ in range(3))
    came = done = 0
    began = clock.now()
    while done < len(jobs):
        now = boards = clock.now() - began
        if policy.interval_s:  # a train that leaves late takes those that came by its time, nobody later
            boards = np.ceil(now / policy.interval_s) * policy.interval_s
            clock.wait_until(began + boards)
            now = clock.now() - began
        while came < len(jobs) and arrival[came] <= boards:
            passes.waiting.append(jobs[came])
            came += 1
        if passes.is_idle:
            if not policy.interval_s:
                clock.wait_until(began + arrival[came])
            continue
        entered, found = passes.run_pass()
        start_s[[job.number for job in entered]] = now
        now = clock.now() - began
        for job, _ in found:
            if np.isnan(first_s[job.number]):
                first_s[job.number] = now
            if job.is_over:
                last_s[job.number] = now
                done += 1
    arrived = np.array(arrival)
    return Served(
        ttft_s=first_s - arrived, e2e_s=last_s - arrived, wait_s=start_s - arrived, makespan_s=float(last_s.max())
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
        """All of it is."""
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


def measured_clock(engine: SlotEngine, repeats: int) -> SlotClock:
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


def simulated_pool(clock: SlotClock, policy: Policy, scheduler: Scheduler, context_len: int) -> Pool:
    """The same server for the simulator.

    Args:
        clock: of its engine.
        policy: of its passes.
        scheduler: largest passes.
        context_len: of one sequence at most [tokens].
    """
    spec = RankSpec(
        pool_tokens=scheduler.max_num_seqs * context_len,
        block_size=1,
        max_num_seqs=scheduler.max_num_seqs,
        max_batched_tokens=scheduler.max_batched_tokens,
        reserve="final",
    )
    return Pool(clock=clock, spec=spec, policy=policy)
