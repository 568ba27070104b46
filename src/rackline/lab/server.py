"""A continuous-batching server of the small transformer, in real time, under the policies of the simulator.

Its engine has a fixed number of slots. A pass computes the prompts that the policy lets in, one call each, and then one
token of every slot that decodes; answers are seen when the pass ends. The scheduler asks the same `Policy` as the
simulator does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rackline.lab.transformer import Cache, Params, Shape, decode_step, empty_cache, init, prefill
from rackline.passes.features import Array
from rackline.simulation import Policy, Pool, RankSpec, Requests
from rackline.simulation.clock import Chunk, Line

SHAPE = Shape(num_layers=4, d_model=256, num_q_heads=8, num_kv_heads=2, head_dim=32, d_ff=1024, vocab_size=512)
SLOTS, PROMPT, CAPACITY = 8, 64, 128


@dataclass(slots=True, kw_only=True)
class Engine:
    """The transformer with its slots.

    Args:
        params: weights.
        cache: of all slots.
        tokens, lengths: newest token of each slot and what it has cached, (slots,).
    """

    params: Params
    cache: Cache
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(SLOTS, dtype=np.int32))
    lengths: NDArray[np.int32] = field(default_factory=lambda: np.zeros(SLOTS, dtype=np.int32))
    _prefill: Any = None
    _decode: Any = None

    @classmethod
    def of(cls, seed: int) -> Engine:
        """An engine with random weights, compiled."""

        def enter(params: Params, cache: Cache, text: jax.Array, length: jax.Array, slot: jax.Array) -> Any:
            last, (keys, values) = prefill(params, text, length, SHAPE)
            start = (0, slot, 0, 0, 0)
            placed = tuple(
                jax.lax.dynamic_update_slice(whole, one[:, None], start)
                for whole, one in zip(cache, (keys, values), strict=True)
            )
            return jnp.argmax(last), placed

        def step(params: Params, cache: Cache, tokens: jax.Array, lengths: jax.Array) -> Any:
            found, cache = decode_step(params, cache, tokens, lengths, SHAPE)
            return jnp.argmax(found, axis=-1), cache

        engine = cls(params=init(jax.random.key(seed), SHAPE), cache=empty_cache(SHAPE, SLOTS, CAPACITY))
        engine._prefill, engine._decode = jax.jit(enter, donate_argnums=1), jax.jit(step, donate_argnums=1)
        engine.enter(0, np.zeros(PROMPT, dtype=np.int32))
        engine.step()
        return engine

    def enter(self, slot: int, prompt: NDArray[np.int32]) -> None:
        """Compute a prompt into a slot; its first token is there afterwards."""
        text = np.zeros(PROMPT, dtype=np.int32)
        text[: prompt.size] = prompt
        token, self.cache = self._prefill(self.params, self.cache, text, prompt.size, slot)
        self.tokens[slot], self.lengths[slot] = int(token), prompt.size

    def step(self) -> None:
        """One more token of every slot; slots that are not in use compute what nobody reads."""
        found, self.cache = self._decode(self.params, self.cache, self.tokens, self.lengths)
        self.tokens = np.array(found, dtype=np.int32)
        self.lengths = np.minimum(self.lengths + 1, CAPACITY - 1)


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


def serve(engine: Engine, requests: Requests, policy: Policy) -> Served:
    """Serve all requests in real time.

    Args:
        requests: prompts of at most PROMPT tokens, prompt and answer of at most CAPACITY.
        policy: order, and which passes carry prompts; prompts are never cut.
    """
    random = np.random.default_rng(0)
    prompts = [random.integers(0, SHAPE.vocab_size, int(n)).astype(np.int32) for n in requests.input_len]
    count = len(requests)
    start_s, first_s, last_s = (np.full(count, np.nan) for _ in range(3))
    arrival = requests.arrival_s.tolist()
    left = [int(n) for n in requests.output_len]
    waiting: list[int] = []
    slots: dict[int, int] = {}  # slot -> request
    came = done = 0
    began = time.perf_counter()
    while done < count:
        now = time.perf_counter() - began
        if policy.interval_s:
            departure = np.ceil(now / policy.interval_s) * policy.interval_s
            _wait_until(began + departure)
            now = time.perf_counter() - began
        while came < count and arrival[came] <= now:
            waiting.append(came)
            came += 1
        if not waiting and not slots:
            if not policy.interval_s:
                _wait_until(began + arrival[came])
            continue
        decoding = list(slots)
        entered = _admitted(waiting, slots, policy)
        for slot in entered:
            request = slots[slot]
            start_s[request] = now
            engine.enter(slot, prompts[request])
        with_decode = decoding and (policy.passes == "mixed" or not entered)
        if with_decode:
            engine.step()
        now = time.perf_counter() - began
        for slot in (*entered, *(decoding if with_decode else ())):
            request = slots[slot]
            left[request] -= 1
            if np.isnan(first_s[request]):
                first_s[request] = now
            if not left[request]:
                last_s[request] = now
                del slots[slot]
                done += 1
    arrived = np.array(arrival)
    return Served(
        ttft_s=first_s - arrived, e2e_s=last_s - arrived, wait_s=start_s - arrived, makespan_s=float(last_s.max())
    )


def _admitted(waiting: list[int], slots: dict[int, int], policy: Policy) -> list[int]:
    """Put waiting requests into free slots as the policy allows; which slots."""
    if policy.passes == "batch" and slots:
        return []
    found: list[int] = []
    for slot in range(SLOTS):
        if waiting and slot not in slots:
            slots[slot] = waiting.pop(0)
            found.append(slot)
    return found


def _wait_until(moment: float) -> None:
    """Sleep most of the time, and watch the clock for the rest."""
    while (left := moment - time.perf_counter()) > 0.0:
        if left > 0.002:
            time.sleep(left - 0.001)


@dataclass(slots=True, kw_only=True)
class SlotClock:
    """The simulator's clock of this engine: a step of all slots, and a call for each prompt.

    Args:
        step_s: of a decode step, full slots or empty [s].
        prompt_s: of a prompt of any length [s].
    """

    step_s: float
    prompt_s: float
    verified: int = 1
    tokens_per_step: float = 1.0

    def line(self, sequences: int, group_tokens: float) -> Line | None:
        """Always the same step."""
        return Line(self.step_s, 0.0, 0.0, 0.0, 0.0)

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        """Always the same step."""
        return np.full(np.shape(advance), self.step_s)

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
    ) -> float:
        """The prompts one after the other, then the step."""
        return len(chunks) * self.prompt_s + (self.step_s if sequences else 0.0)


def measured_clock(engine: Engine, repeats: int) -> SlotClock:
    """Median time of a decode step and of a prompt on this machine, in turns as a server runs them."""
    steps: list[float] = []
    prompts: list[float] = []
    prompt = np.zeros(PROMPT, dtype=np.int32)
    for number in range(repeats):
        for times, call in ((steps, engine.step), (prompts, partial(engine.enter, number % SLOTS, prompt))):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return SlotClock(step_s=float(np.median(steps)), prompt_s=float(np.median(prompts)))


def simulated_pool(clock: SlotClock, policy: Policy) -> Pool:
    """The same server for the simulator."""
    spec = RankSpec(
        pool_tokens=SLOTS * CAPACITY,
        block_size=1,
        max_num_seqs=SLOTS,
        max_batched_tokens=SLOTS * (PROMPT + 1),
        reserve="final",
    )
    return Pool(clock=clock, spec=spec, policy=policy)
