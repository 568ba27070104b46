"""The lab's transformer as an engine: slots of a cache, one compiled pass for each size of batch and prompt.

A pass takes one token of the first sequences and, optionally, one whole prompt. All tokens go through the products
together. Each sequence attends to what it has cached, in blocks, as far as the longest one needs. Batches are padded to
1, 2, 4, 8, 16, ... sequences, as engines on GPUs pad them to their graphs: there are fewer passes to compile, and
products of 12 rows take another kernel of XLA's, which is slower than that of 16.

`serve` schedules such passes over requests in real time, by the policies of the simulator: a pass computes one token of
every sequence that decodes and the prompts that the policy lets in, one call each; answers are seen when it ends.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rackline.lab.engine import LIMITS, QUICK_LIMITS, Dtype, Engine, Limits, Scheduler, ServedTimes, Work
from rackline.lab.rates import available_cores
from rackline.lab.transformer import Params, Shape, causal_attention, ffn_block, init, norm, project
from rackline.lab.workers.worker import Clock
from rackline.passes.features import Array
from rackline.simulation import POLICIES, Policy, Requests

SHAPE = Shape(num_layers=3, d_model=1024, num_q_heads=16, num_kv_heads=4, head_dim=64, d_ff=2816, vocab_size=8192)
QUICK_SHAPE = Shape(num_layers=1, d_model=128, num_q_heads=4, num_kv_heads=2, head_dim=32, d_ff=256, vocab_size=512)
GPU_SHAPE = Shape(
    num_layers=8, d_model=2048, num_q_heads=16, num_kv_heads=8, head_dim=128, d_ff=6144, vocab_size=32768
)  # 0.54 billion parameters, twenty times the last cache of an H100
GPU_LIMITS = Limits(sequences=64, context_len=4096, prompt_tokens=2048)
BLOCK, GPU_BLOCK = 64, 1024  # cached tokens that one turn of the attention reads; on GPUs each turn is several launches
Layers = list[jax.Array]
"""A layer each: (slots, kv heads, capacity, head_dim)."""
Ids = NDArray[np.int32]


def by_columns(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Product with weights (outputs, inputs), states as columns: on processors XLA then packs the few states, not the
    weights, and a batch of 16 takes half the time.

    Args:
        x: (tokens, inputs).
    """
    return jax.lax.optimization_barrier(jnp.einsum("oi,bi->ob", weights, x)).T


def attend_to_cache(
    q: jax.Array, keys: jax.Array, values: jax.Array, lengths: jax.Array, block: int = BLOCK
) -> jax.Array:
    """Attention of one token each of the first sequences to their caches, block by block with a running softmax.

    Args:
        q: (sequences, heads, head_dim).
        keys, values: (slots, kv heads, capacity, head_dim); the first slots are those of the sequences.
        lengths: newest position of each sequence, (sequences,).
        block: cached tokens that one turn reads; it divides the capacity [tokens].

    Returns:
        (sequences, heads, head_dim).
    """
    sequences, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    grouped = jnp.reshape(q, (sequences, kv_heads, heads // kv_heads, head_dim)) / np.sqrt(head_dim).astype(q.dtype)
    size = (sequences, kv_heads, block, head_dim)

    def turn(number: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        most, total, mixed = state
        at = (0, 0, number * block, 0)
        scores = jnp.einsum("bkgd,bkcd->bkgc", grouped, jax.lax.dynamic_slice(keys, at, size)).astype(jnp.float32)
        seen = number * block + jnp.arange(block)[None, :] <= lengths[:, None]
        scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
        higher = jnp.maximum(most, jnp.max(scores, axis=-1))
        weights, kept = jnp.exp(scores - higher[..., None]), jnp.exp(most - higher)
        part = jnp.einsum("bkgc,bkcd->bkgd", weights.astype(q.dtype), jax.lax.dynamic_slice(values, at, size))
        return higher, total * kept + jnp.sum(weights, axis=-1), mixed * kept[..., None] + part

    start = (
        jnp.full(grouped.shape[:-1], -1e30, dtype=jnp.float32),
        jnp.zeros(grouped.shape[:-1], dtype=jnp.float32),
        jnp.zeros(grouped.shape, dtype=jnp.float32),
    )
    _, total, mixed = jax.lax.fori_loop(0, jnp.max(lengths) // block + 1, turn, start)
    return jnp.reshape(mixed / total[..., None], q.shape).astype(q.dtype)


def one_pass(
    params: Params,
    cache: tuple[Layers, Layers],
    newest: jax.Array,
    lengths: jax.Array,
    prompt: jax.Array,
    slot: jax.Array,
    last: jax.Array,
    shape: Shape,
    block: int = BLOCK,
) -> tuple[jax.Array, tuple[Layers, Layers]]:
    """One token of each sequence and a prompt: next tokens, (sequences,) or (sequences + 1,), and the cache.

    Args:
        cache: keys and values.
        newest, lengths: last token of each of the first slots and what it has cached, (sequences,).
        prompt: all of one prompt, (tokens,), and anything behind it; empty for none.
        slot: that the prompt goes to.
        last: place of the prompt's last token.
        block: cached tokens that one turn of the attention reads [tokens].
    """
    count, tokens = newest.shape[0], prompt.shape[0]
    slots = jnp.arange(count)[:, None], jnp.arange(shape.num_kv_heads)[None, :]
    x = params["embedding"][jnp.concatenate([newest, prompt])]
    positions = jnp.concatenate([lengths, jnp.arange(tokens, dtype=lengths.dtype)])
    held: tuple[Layers, Layers] = ([], [])
    for number, layer in enumerate(params["layers"]):
        q, *added = project(layer, norm(x), shape, positions, by_columns)
        parts: list[jax.Array] = []
        for kept, old, new in zip(held, cache, added, strict=True):
            one = old[number]
            if count:
                one = one.at[*slots, lengths[:, None]].set(new[:count])
            if tokens:
                one = jax.lax.dynamic_update_slice(one, jnp.swapaxes(new[count:], 0, 1)[None], (slot, 0, 0, 0))
            kept.append(one)
        if count:
            parts.append(attend_to_cache(q[:count], held[0][number], held[1][number], lengths, block))
        if tokens:
            parts.append(causal_attention(q[count:], *(new[count:] for new in added)))
        x = x + by_columns(jnp.reshape(jnp.concatenate(parts), (count + tokens, -1)), layer["o"])
        x = x + ffn_block(layer, x, by_columns)
    heads = jnp.concatenate([x[:count], jax.lax.dynamic_slice_in_dim(x, count + last, 1)]) if tokens else x
    return jnp.argmax(by_columns(norm(heads), params["head"]), axis=-1).astype(jnp.int32), held


def padded(sequences: int, most: int) -> int:
    """The batch that is computed for some sequences.

    >>> [padded(number, 10) for number in (0, 1, 2, 3, 5, 9)]
    [0, 1, 2, 4, 8, 10]
    """
    return min(1 << (sequences - 1).bit_length(), most) if sequences else 0


def turned(params: Params) -> Params:
    """Weights as `by_columns` takes them, (outputs, inputs)."""
    layers = [{name: jnp.array(weights.T) for name, weights in layer.items()} for layer in params["layers"]]
    return {"embedding": params["embedding"], "head": jnp.array(params["head"].T), "layers": layers}


@dataclass(slots=True, kw_only=True)
class JaxEngine(Engine):
    """The transformer with its slots and compiled passes. Its sequences take the first slots; `leave` moves them.

    Args:
        clock: that times passes.
        seed: of the weights.
        newest: last token of the sequence in each slot, (slots,).
    """

    name: str = "jax"
    context_block: int = BLOCK
    clock: Clock
    seed: int = 0
    newest: Ids = field(init=False)
    _lengths: Ids = field(init=False)
    _running: int = field(init=False, default=0)
    _params: Params = field(init=False)
    _cache: tuple[Layers, Layers] = field(init=False)
    _passes: dict[tuple[int, int], Any] = field(init=False, default_factory=dict[tuple[int, int], Any])

    def __post_init__(self) -> None:
        """Random weights and an empty cache."""
        number = jnp.float32 if self.dtype == "fp32" else jnp.bfloat16
        start: Any = jax.jit(partial(init, shape=self.shape))
        self._params = turned(jax.tree.map(lambda leaf: leaf.astype(number), start(jax.random.key(self.seed))))
        self._cache = self._empty()
        self.versions = {name: version(name) for name in ("jax", "jaxlib")}
        self.newest, self._lengths = (np.zeros(self.limits.sequences, dtype=np.int32) for _ in range(2))

    def prepare(self, works: Sequence[Work]) -> None:
        """Compile the passes, as many at once as there are cores, and run each."""
        new = {(padded(work.sequences, self.limits.sequences), work.prompt_tokens) for work in works}
        new -= set(self._passes)
        with ThreadPoolExecutor(available_cores()) as pool:
            self._passes |= dict(zip(new, pool.map(self._compiled, new), strict=True))
        for work in works:
            self.seconds(work)

    def seconds(self, work: Work) -> float:
        """Time of one pass [s]; the cache is donated, as a server does."""
        size = padded(work.sequences, self.limits.sequences)
        lengths = np.zeros(size, dtype=np.int32)
        lengths[: work.sequences] = work.context_len
        prompt = np.zeros(work.prompt_tokens, dtype=np.int32)
        began = self.clock.now()
        self._computed(np.zeros(size, dtype=np.int32), lengths, prompt, self.limits.sequences - 1, prompt.size - 1)
        return self.clock.now() - began

    def serve(self, requests: Requests) -> ServedTimes:
        """Serve requests in real time: waiting prompts by themselves first, then one token of all sequences."""
        found = serve(self, requests, POLICIES.find("prefill-first"))
        return ServedTimes(ttft_s=found.ttft_s, e2e_s=found.e2e_s)

    def ready(self, prompt_sizes: Sequence[int]) -> None:
        """Empty the slots, and compile all passes that prompts of these sizes may need."""
        works = [Work(sequences=number + 1, context_len=1) for number in range(self.scheduler.max_num_seqs)]
        works += [Work(prompt_tokens=tokens) for tokens in prompt_sizes]
        self.prepare(works)
        self._cache = _move(self._cache, 0, 0)
        self._running = 0
        self._lengths[:] = 0

    def enter(self, prompt: Ids) -> None:
        """Compute a prompt into the next slot, padded to the next size that is compiled."""
        fitting = [tokens for sequences, tokens in self._passes if not sequences and tokens >= prompt.size]
        text = np.zeros(min(fitting, default=prompt.size), dtype=np.int32)
        text[: prompt.size] = prompt
        slot = self._running
        found = self._computed(self.newest[:0], self._lengths[:0], text, slot, prompt.size - 1)
        self.newest[slot], self._lengths[slot] = found[-1], prompt.size
        self._running += 1

    def step(self) -> None:
        """One more token of every sequence; what is padded computes what nobody reads."""
        count, size = self._running, padded(self._running, self.limits.sequences)
        found = self._computed(self.newest[:size], self._lengths[:size], self.newest[:0], 0, 0)
        self.newest[:count] = found[:count]
        self._lengths[:count] += 1

    def leave(self, place: int) -> None:
        """Give a slot back: the last sequence moves there."""
        self._running -= 1
        last = self._running
        if place != last:
            self._cache = _move(self._cache, last, place)
            self.newest[place], self._lengths[place] = self.newest[last], self._lengths[last]
        self._lengths[last] = 0

    def _computed(self, newest: Ids, lengths: Ids, prompt: Ids, slot: int, last: int) -> Ids:
        """Next tokens of a pass whose batch is padded already."""
        size = (len(newest), len(prompt))
        if size not in self._passes:
            self._passes[size] = self._compiled(size)
        found, self._cache = self._passes[size](self._params, self._cache, newest, lengths, prompt, slot, last)
        jax.block_until_ready(self._cache)
        return np.asarray(found)

    def _compiled(self, size: tuple[int, int]) -> Any:
        """The pass of a number of sequences and a prompt."""
        newest, prompt = (np.zeros(one, dtype=np.int32) for one in size)
        run: Any = jax.jit(partial(one_pass, shape=self.shape, block=self.context_block), donate_argnums=1)
        return run.lower(self._params, self._cache, newest, newest, prompt, 0, 0).compile()

    def _empty(self) -> tuple[Layers, Layers]:
        capacity = -(-(self.limits.context_len + 1) // self.context_block) * self.context_block
        number = jnp.float32 if self.dtype == "fp32" else jnp.bfloat16
        size = (self.limits.sequences, self.shape.num_kv_heads, capacity, self.shape.head_dim)
        keys, values = ([jnp.zeros(size, dtype=number) for _ in range(self.shape.num_layers)] for _ in range(2))
        return keys, values


@partial(jax.jit, donate_argnums=0)
def _move(cache: tuple[Layers, Layers], source: Any, target: Any) -> tuple[Layers, Layers]:
    def moved(one: jax.Array) -> jax.Array:
        row = jax.lax.dynamic_slice_in_dim(one, source, 1)
        return jax.lax.dynamic_update_slice_in_dim(one, row, target, axis=0)

    return jax.tree.map(moved, cache)


def jax_engine(dtype: Dtype, seed: int, *, quick: bool, clock: Clock, device: str = "cpu") -> JaxEngine:
    """The engine with a model whose weights do not fit a usual cache of the device; a small one if `quick`."""
    shape, limits, block = (GPU_SHAPE, GPU_LIMITS, GPU_BLOCK) if device == "gpu" else (SHAPE, LIMITS, BLOCK)
    if quick:
        shape, limits, block = QUICK_SHAPE, QUICK_LIMITS, BLOCK
    scheduler = Scheduler(
        admission="prefill_first",
        max_num_seqs=max(limits.sequences // 2, 2),
        max_batched_tokens=limits.prompt_tokens,
        prompt_tokens=limits.prompt_tokens // 2,
    )
    return JaxEngine(
        shape=shape,
        dtype=dtype,
        limits=limits,
        context_block=block,
        scheduler=scheduler,
        clock=clock,
        seed=seed,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request as the passes see it.

    Args:
        prompt: ids.
        left: tokens that it is still to get [tokens].
        number: of it in a list.
    """

    prompt: Ids
    left: int
    number: int = 0

    @property
    def is_over(self) -> bool:
        """Whether its slot is free again."""
        return self.left <= 0


@dataclass(slots=True, kw_only=True)
class Passes:
    """The requests of an engine, pass by pass.

    Args:
        engine: that computes; its scheduler says how many sequences and tokens a pass has at most.
        policy: which passes carry prompts; prompts are never cut, and wait in the order of arrival.
        waiting: requests without a slot.
        running: requests by slot.
    """

    engine: JaxEngine
    policy: Policy
    waiting: deque[Job] = field(default_factory=deque[Job])
    running: list[Job] = field(default_factory=list[Job])

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.waiting and not self.running

    def run_pass(self) -> tuple[list[Job], list[tuple[Job, int]]]:
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

    def _entering(self) -> list[Job]:
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
        limits, found = self.engine.scheduler, list[Job]()
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


def serve(engine: JaxEngine, requests: Requests, policy: Policy) -> Served:
    """Serve all requests in real time.

    Args:
        engine: with room for them; all that it may have to compile is compiled before the first arrives.
        requests: each arrives at its time.
        policy: which passes carry prompts, and at which times passes start.
    """
    random = np.random.default_rng(0)
    jobs = [
        Job(number=number, prompt=random.integers(0, engine.shape.vocab_size, size, np.int32), left=left)
        for number, (size, left) in enumerate(
            zip(requests.input_len.tolist(), requests.output_len.tolist(), strict=True)
        )
    ]
    engine.ready(sorted({job.prompt.size for job in jobs}))
    passes = Passes(engine=engine, policy=policy)
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
