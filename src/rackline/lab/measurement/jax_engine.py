"""The lab's transformer as an engine: slots of a cache, one compiled pass for each number of sequences and prompt.

A pass takes one token of the first sequences and, optionally, one whole prompt. All tokens go through the products
together. Each sequence attends to what it has cached, in blocks, as far as the longest one needs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rackline.lab.measurement.device import available_cores
from rackline.lab.measurement.engine import Dtype, Limits, Scheduler, ServedTimes, Work
from rackline.lab.measurement.workers.worker import Clock
from rackline.lab.transformer import Params, Shape, causal_attention, ffn_block, init, norm, project
from rackline.simulation import Requests

QUICK_SHAPE = Shape(num_layers=1, d_model=128, num_q_heads=4, num_kv_heads=2, head_dim=32, d_ff=256, vocab_size=512)
BLOCK = 64  # cached tokens that one turn of the attention reads
Layers = list[jax.Array]
"""A layer each: (slots, kv heads, capacity, head_dim)."""


def by_columns(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Product with weights (outputs, inputs), states as columns: on processors XLA then packs the few states, not the
    weights, and a batch of 16 takes half the time.

    Args:
        x: (tokens, inputs).
    """
    return jax.lax.optimization_barrier(jnp.einsum("oi,bi->ob", weights, x)).T


def attend_to_cache(q: jax.Array, keys: jax.Array, values: jax.Array, lengths: jax.Array) -> jax.Array:
    """Attention of one token each of the first sequences to their caches, block by block with a running softmax.

    Args:
        q: (sequences, heads, head_dim).
        keys, values: (slots, kv heads, capacity, head_dim); the first slots are those of the sequences.
        lengths: newest position of each sequence, (sequences,).

    Returns:
        (sequences, heads, head_dim).
    """
    sequences, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    grouped = jnp.reshape(q, (sequences, kv_heads, heads // kv_heads, head_dim)) / np.sqrt(head_dim).astype(q.dtype)
    size = (sequences, kv_heads, BLOCK, head_dim)

    def turn(number: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        most, total, mixed = state
        at = (0, 0, number * BLOCK, 0)
        scores = jnp.einsum("bkgd,bkcd->bkgc", grouped, jax.lax.dynamic_slice(keys, at, size)).astype(jnp.float32)
        seen = number * BLOCK + jnp.arange(BLOCK)[None, :] <= lengths[:, None]
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
    blocks = jnp.max(lengths) // BLOCK + 1
    _, total, mixed = jax.lax.fori_loop(0, blocks, turn, start)
    return jnp.reshape(mixed / total[..., None], q.shape).astype(q.dtype)


def one_pass(
    params: Params,
    cache: tuple[Layers, Layers],
    newest: jax.Array,
    lengths: jax.Array,
    prompt: jax.Array,
    slot: jax.Array,
    shape: Shape,
) -> tuple[jax.Array, tuple[Layers, Layers]]:
    """One token of each sequence and a prompt: next tokens, (sequences,) or (sequences + 1,), and the cache.

    Args:
        cache: keys and values.
        newest, lengths: last token of each of the first slots and what it has cached, (sequences,).
        prompt: all of one prompt, (tokens,); empty for none.
        slot: that the prompt goes to.
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
            parts.append(attend_to_cache(q[:count], held[0][number], held[1][number], lengths))
        if tokens:
            parts.append(causal_attention(q[count:], *(new[count:] for new in added)))
        x = x + by_columns(jnp.reshape(jnp.concatenate(parts), (count + tokens, -1)), layer["o"])
        x = x + ffn_block(layer, x, by_columns)
    last = jnp.concatenate([x[:count], x[-1:]]) if tokens else x
    return jnp.argmax(by_columns(norm(last), params["head"]), axis=-1).astype(jnp.int32), held


def turned(params: Params) -> Params:
    """Weights as `by_columns` takes them, (outputs, inputs)."""
    layers = [{name: jnp.array(weights.T) for name, weights in layer.items()} for layer in params["layers"]]
    return {"embedding": params["embedding"], "head": jnp.array(params["head"].T), "layers": layers}


@dataclass(slots=True, kw_only=True)
class JaxEngine:
    """The transformer with its slots and compiled passes; see `Engine`.

    Args:
        shape: of the model.
        dtype: of weights and cache.
        limits: largest passes.
        scheduler: how it serves.
        clock: that times passes.
        seed: of the weights.
        name: of the engine.
        context_block: cached tokens that attention reads at once [tokens].
        in_a_row: timings of one pass that follow each other [count].
    """

    shape: Shape
    dtype: Dtype
    limits: Limits
    scheduler: Scheduler
    clock: Clock
    seed: int = 0
    name: str = "jax"
    context_block: int = BLOCK
    in_a_row: int = 1
    _params: Params = field(init=False)
    _cache: tuple[Layers, Layers] = field(init=False)
    _passes: dict[tuple[int, int], Any] = field(init=False, default_factory=dict[tuple[int, int], Any])

    def __post_init__(self) -> None:
        """Random weights and an empty cache."""
        number = jnp.float32 if self.dtype == "fp32" else jnp.bfloat16
        start: Any = jax.jit(partial(init, shape=self.shape))
        self._params = turned(jax.tree.map(lambda leaf: leaf.astype(number), start(jax.random.key(self.seed))))
        self._cache = self._empty()

    @property
    def versions(self) -> dict[str, str]:
        """Of JAX and its compiled part."""
        return {"jax": version("jax"), "jaxlib": version("jaxlib")}

    def prepare(self, works: Sequence[Work]) -> None:
        """Compile the passes, as many at once as there are cores, and run each."""
        new = {(work.sequences, work.prompt_tokens) for work in works} - set(self._passes)
        with ThreadPoolExecutor(available_cores()) as pool:
            self._passes |= dict(zip(new, pool.map(self._compiled, new), strict=True))
        for work in works:
            self.seconds(work)

    def seconds(self, work: Work) -> float:
        """Time of one pass [s]; the cache is donated, as a server does."""
        newest = np.zeros(work.sequences, dtype=np.int32)
        lengths = np.full(work.sequences, work.context_len, dtype=np.int32)
        prompt = np.zeros(work.prompt_tokens, dtype=np.int32)
        return self._timed(newest, lengths, prompt, self.limits.sequences)

    def serve(self, requests: Requests) -> ServedTimes:
        """Serve requests in real time: a waiting prompt by itself first, then one token of all sequences."""
        self._compile(requests)
        count = len(requests)
        arrival = requests.arrival_s.tolist()
        first, last = np.full(count, np.nan), np.full(count, np.nan)
        left = [int(n) for n in requests.output_len]
        lengths = np.zeros(self.limits.sequences, dtype=np.int32)
        running: list[int] = []  # request of each slot in use, the first slots
        came = done = 0
        began = self.clock.now()
        while done < count:
            now = self.clock.now() - began
            while came < count and arrival[came] <= now and came - done < self.scheduler.max_num_seqs:
                prompt = np.zeros(int(requests.input_len[came]), dtype=np.int32)
                self._timed(lengths[:0], lengths[:0], prompt, len(running))
                lengths[len(running)] = prompt.size
                running.append(came)
                left[came] -= 1
                first[came] = self.clock.now() - began
                came += 1
                now = first[came - 1]
            if not running:
                self.clock.wait_until(began + arrival[came])
                continue
            self._timed(np.zeros(len(running), dtype=np.int32), lengths[: len(running)], lengths[:0], 0)
            lengths[: len(running)] += 1
            now = self.clock.now() - began
            for place in reversed(range(len(running))):
                left[running[place]] -= 1
                if left[running[place]] <= 0:
                    last[running[place]] = now
                    done += 1
                    self._free(place, running, lengths)
        return ServedTimes(ttft_s=first - requests.arrival_s, e2e_s=last - requests.arrival_s)

    def _compile(self, requests: Requests) -> None:
        """All passes that these requests may need, before the first arrives."""
        most = min(self.scheduler.max_num_seqs, len(requests))
        works = [Work(sequences=number + 1, context_len=1) for number in range(most)]
        works += [Work(prompt_tokens=tokens) for tokens in sorted({int(n) for n in requests.input_len})]
        self.prepare(works)
        self._cache = _move(self._cache, 0, 0)

    def close(self) -> None:
        """Nothing was started."""

    def _free(self, place: int, running: list[int], lengths: Any) -> None:
        """Give a slot back: the last one moves there."""
        moved = len(running) - 1
        if place != moved:
            self._cache = _move(self._cache, moved, place)
            running[place], lengths[place] = running[moved], lengths[moved]
        running.pop()

    def _timed(self, newest: Any, lengths: Any, prompt: Any, slot: int) -> float:
        size = (len(newest), len(prompt))
        if size not in self._passes:
            self._passes[size] = self._compiled(size)
        run = self._passes[size]
        slot = min(slot, self.limits.sequences - 1)
        began = self.clock.now()
        found, self._cache = run(self._params, self._cache, newest, lengths, prompt, slot)
        jax.block_until_ready((found, self._cache))
        return self.clock.now() - began

    def _compiled(self, size: tuple[int, int]) -> Any:
        """The pass of a number of sequences and a prompt."""
        newest, prompt = (np.zeros(one, dtype=np.int32) for one in size)
        run: Any = jax.jit(partial(one_pass, shape=self.shape), donate_argnums=1)
        return run.lower(self._params, self._cache, newest, newest, prompt, 0).compile()

    def _empty(self) -> tuple[Layers, Layers]:
        capacity = -(-(self.limits.context_len + 1) // BLOCK) * BLOCK
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


def jax_engine(dtype: Dtype, seed: int, *, quick: bool, clock: Clock | None = None) -> JaxEngine:
    """The engine with a model whose weights do not fit a usual cache; a small one if `quick`."""
    if quick:
        shape = QUICK_SHAPE
        limits = Limits(sequences=2, context_len=128, prompt_tokens=64)
    else:
        shape = Shape(
            num_layers=3, d_model=1024, num_q_heads=16, num_kv_heads=4, head_dim=64, d_ff=2816, vocab_size=8192
        )
        limits = Limits(sequences=16, context_len=1024, prompt_tokens=256)
    prompt = limits.prompt_tokens // 2
    scheduler = Scheduler(
        admission="prefill_first",
        max_num_seqs=max(limits.sequences // 2, 2),
        max_batched_tokens=limits.prompt_tokens,
        prompt_tokens=prompt,
    )
    return JaxEngine(
        shape=shape, dtype=dtype, limits=limits, scheduler=scheduler, clock=clock or Clock(cpu=False), seed=seed
    )
