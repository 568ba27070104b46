"""A small decoder transformer as plain functions over a tree of parameters, its training and its texts."""

# JAX's own annotations are partial
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from rackline.arch import Model, build_model
from rackline.catalog import ModelRecord
from rackline.errors import InputError
from rackline.hardware import Chip, Cluster, FabricLevel
from rackline.parallel import Deployment, Layout
from rackline.parallel.precision import PARTS, Precision
from rackline.passes import UNIT
from rackline.system import System

Layer = dict[str, jax.Array]
Params = dict[str, Any]
"""embedding (vocab, d_model), head (d_model, vocab), layers: a list of dictionaries."""
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""queries (tokens, heads, head_dim), keys and values (tokens, kv heads, head_dim) -> (tokens, heads, head_dim)"""
Product = Callable[[jax.Array, jax.Array], jax.Array]
"""states (..., inputs) and a matrix of weights -> (..., outputs); usually the weights are (inputs, outputs)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a transformer.

    Args:
        num_layers, d_model, num_q_heads, num_kv_heads, head_dim, d_ff, vocab_size: as in a config.json [count].
    """

    num_layers: int = 4
    d_model: int = 128
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    d_ff: int = 256
    vocab_size: int = 256


def init(key: jax.Array, shape: Shape) -> Params:
    """Random weights, normal with standard deviation 1 / √inputs; what is added to the stream is damped by depth."""
    damped = 1.0 / np.sqrt(2.0 * shape.num_layers)
    q, kv = shape.num_q_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {
        "q": (shape.d_model, q, 1.0),
        "k": (shape.d_model, kv, 1.0),
        "v": (shape.d_model, kv, 1.0),
        "o": (q, shape.d_model, damped),
        "gate": (shape.d_model, shape.d_ff, 1.0),
        "up": (shape.d_model, shape.d_ff, 1.0),
        "down": (shape.d_ff, shape.d_model, damped),
    }

    def layer(number: int) -> Layer:
        keys = jax.random.split(jax.random.fold_in(key, number), len(sizes))
        return {
            name: jax.random.normal(one, (rows, columns)) * gain / np.sqrt(rows)
            for one, (name, (rows, columns, gain)) in zip(keys, sizes.items(), strict=True)
        }

    first, last = jax.random.split(jax.random.fold_in(key, shape.num_layers))
    return {
        "embedding": jax.random.normal(first, (shape.vocab_size, shape.d_model)),
        "head": jax.random.normal(last, (shape.d_model, shape.vocab_size)) / np.sqrt(shape.d_model),
        "layers": [layer(number) for number in range(shape.num_layers)],
    }


def norm(x: jax.Array) -> jax.Array:
    """RMS norm without a gain."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions, base 10,000.

    Args:
        x: (..., tokens, heads, head_dim).
        positions: (..., tokens).
    """
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-jnp.arange(half) / half)
    angles = positions[..., None, None] * rates
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x.dtype)


def project(
    layer: Layer, x: jax.Array, shape: Shape, positions: jax.Array, product: Product = operator.matmul
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys (both rotated) and values of normed states, each (..., tokens, heads, head_dim)."""

    def heads(name: str, number: int) -> jax.Array:
        return jnp.reshape(product(x, layer[name]), (*x.shape[:-1], number, shape.head_dim))

    q, k, v = heads("q", shape.num_q_heads), heads("k", shape.num_kv_heads), heads("v", shape.num_kv_heads)
    return rotate(q, positions), rotate(k, positions), v


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Each query attends to the keys up to its own position; query heads share the key heads in groups."""
    tokens, num_q_heads, head_dim = q.shape
    grouped = jnp.reshape(q, (tokens, k.shape[1], num_q_heads // k.shape[1], head_dim))
    scores = jnp.einsum("ikgd,jkd->kgij", grouped, k).astype(jnp.float32) / np.sqrt(head_dim)
    seen = jnp.arange(tokens)[:, None] >= jnp.arange(tokens)[None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(v.dtype)
    return jnp.reshape(jnp.einsum("kgij,jkd->ikgd", weights, v), q.shape)


def attention_block(
    layer: Layer, x: jax.Array, shape: Shape, attend: Attend = causal_attention, *, rotary: bool = True
) -> jax.Array:
    """What attention adds to the stream of one sequence, (tokens, d_model); without positions if not `rotary`."""
    positions = jnp.arange(x.shape[0]) if rotary else jnp.zeros(x.shape[0])
    q, k, v = project(layer, norm(x), shape, positions)
    return jnp.reshape(attend(q, k, v), (x.shape[0], -1)) @ layer["o"]


def ffn_block(layer: Layer, x: jax.Array, product: Product = operator.matmul) -> jax.Array:
    """What the SwiGLU block adds to the stream, (..., d_model)."""
    normed = norm(x)
    return product(jax.nn.silu(product(normed, layer["gate"])) * product(normed, layer["up"]), layer["down"])


def logits(params: Params, tokens: jax.Array, shape: Shape, attend: Attend = causal_attention) -> jax.Array:
    """Logits of all positions of one sequence, (tokens, vocab)."""
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = x + attention_block(layer, x, shape, attend)
        x = x + ffn_block(layer, x)
    return norm(x) @ params["head"]


Cache = tuple[jax.Array, jax.Array]
"""Keys and values, each (layers, sequences, capacity, kv heads, head_dim)."""


def prefill(params: Params, tokens: jax.Array, length: jax.Array, shape: Shape) -> tuple[jax.Array, Cache]:
    """Logits after the last token of one prompt, (vocab,), and its cache, (layers, tokens, kv heads, head_dim).

    Args:
        tokens: (capacity,), the prompt first; what is behind it does not count.
        length: of the prompt [tokens].
    """
    x = params["embedding"][tokens]
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    for layer in params["layers"]:
        q, k, v = project(layer, norm(x), shape, jnp.arange(tokens.shape[0]))
        keys.append(k)
        values.append(v)
        x = x + jnp.reshape(causal_attention(q, k, v), (tokens.shape[0], -1)) @ layer["o"]
        x = x + ffn_block(layer, x)
    return norm(x[length - 1]) @ params["head"], (jnp.stack(keys), jnp.stack(values))


def decode_step(
    params: Params, cache: Cache, tokens: jax.Array, lengths: jax.Array, shape: Shape
) -> tuple[jax.Array, Cache]:
    """One new token of each sequence: logits, (sequences, vocab), and the cache with its keys and values.

    Args:
        cache: of which each sequence's first `lengths` entries are filled.
        tokens: newest token of each sequence, (sequences,).
        lengths: tokens in the cache before it, (sequences,).
    """
    keys, values = cache
    sequences, capacity = keys.shape[1:3]
    rows = jnp.arange(sequences)
    seen = jnp.arange(capacity)[None, :] <= lengths[:, None]
    group = shape.num_q_heads // shape.num_kv_heads
    x = params["embedding"][tokens]
    for number, layer in enumerate(params["layers"]):
        q, k, v = project(layer, norm(x)[:, None], shape, lengths[:, None])
        keys = keys.at[number, rows, lengths].set(k[:, 0])
        values = values.at[number, rows, lengths].set(v[:, 0])
        grouped = jnp.reshape(q, (sequences, shape.num_kv_heads, group, shape.head_dim))
        scores = jnp.einsum("bkgd,bckd->bkgc", grouped, keys[number]) / np.sqrt(shape.head_dim)
        weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf), axis=-1)
        x = x + jnp.reshape(jnp.einsum("bkgc,bckd->bkgd", weights, values[number]), (sequences, -1)) @ layer["o"]
        x = x + ffn_block(layer, x)
    return norm(x) @ params["head"], (keys, values)


def next_token_loss(logits_of: jax.Array, wanted: jax.Array, counted: jax.Array | None = None) -> jax.Array:
    """Mean cross-entropy of the wanted tokens [nats].

    Args:
        logits_of: (..., vocab).
        wanted: (...).
        counted: weight of each position, (...); all the same by default.
    """
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits_of), wanted[..., None], axis=-1)[..., 0]
    return jnp.mean(losses) if counted is None else jnp.sum(losses * counted) / jnp.sum(counted)


Tree = TypeVar("Tree")


def fit(
    params: Tree,
    loss: Callable[..., jax.Array],
    batch: Callable[[int], tuple[Any, ...]],
    steps: int,
    learning_rate: float = 3e-3,
) -> Tree:
    """Parameters after some steps of Adam; what is trained again with the same function is compiled once.

    Args:
        params: a tree of arrays.
        loss: (params, *batch) -> scalar.
        batch: number of the step -> what the loss takes beside the parameters.
        steps: [count].
        learning_rate: at the start; it falls to zero as a cosine.
    """
    optimiser, step = _compiled(loss, steps, learning_rate)
    state = optimiser.init(cast(Any, params))
    now: Any = params
    for number in range(steps):
        now, state = step(now, state, batch(number))
    return now


@lru_cache(maxsize=4)
def _compiled(loss: Callable[..., jax.Array], steps: int, learning_rate: float) -> tuple[Any, Callable[..., Any]]:
    """Adam and a step of it."""
    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    @jax.jit
    def step(now: Any, state: Any, given: tuple[Any, ...]) -> tuple[Any, Any]:
        updates, state = optimiser.update(jax.grad(loss)(now, *given), state, now)
        return optax.apply_updates(now, updates), state

    return optimiser, step


Tokens = NDArray[np.int32]


@cache
def prose_tokens() -> tuple[Tokens, Tokens]:
    """The project's own documentation as characters: what is trained on, and the last tenth, which is not.

    The text lies in `rackline/lab/prose.txt`, under the project's licence. Tokens are ASCII codes.

    Returns:
        Two arrays of one dimension.
    """
    data = files("rackline.lab").joinpath("prose.txt").read_bytes()
    tokens = np.frombuffer(data, dtype=np.uint8).astype(np.int32)
    cut = tokens.size * 9 // 10
    return tokens[:cut], tokens[cut:]


def windows(text: Tokens, random: np.random.Generator, number: int, length: int) -> Tokens:
    """Pieces of a text from random places, (number, length)."""
    starts = random.integers(0, text.size - length, number)
    return text[starts[:, None] + np.arange(length)]


def prose_loss(params: Any, loss: Callable[..., jax.Array], seed: int, steps: int, number: int, length: int) -> float:
    """Loss on prose that was not seen, after some steps of Adam on the rest [nats per token].

    Args:
        params, loss, steps: as of `fit`.
        seed: of the pieces that are trained on.
        number, length: of the pieces of a step.
    """
    text, held_out = prose_tokens()
    random = np.random.default_rng(seed)
    fitted = fit(params, loss, lambda step: (windows(text, random, number, length),), steps)
    unseen = windows(held_out, np.random.default_rng(0), 64, length)
    return float(jax.jit(loss)(fitted, jnp.asarray(unseen)))


def recall_task(
    random: np.random.Generator, number: int, pairs: int, queries: int, symbols: int
) -> tuple[Tokens, NDArray[np.float32]]:
    """Associative recall: keys with values, then keys whose value is to be given.

    A sequence is k1 v1 k2 v2 ... then q1 a1 q2 a2 ...; keys differ from each other, values are random.

    Args:
        number: of sequences [count].
        pairs, queries: of a sequence [count].
        symbols: keys, and as many values [count].

    Returns:
        Tokens, (number, 2 · (pairs + queries)), and the positions whose next token is an answer, one shorter.

    Sources: Arora et al. 2023, arXiv:2312.04927 (multi-query associative recall).
    """
    keys = np.argsort(random.random((number, symbols)), axis=1)[:, :pairs]
    values = random.integers(0, symbols, (number, pairs)) + symbols
    asked = random.integers(0, pairs, (number, queries))
    rows = np.arange(number)[:, None]
    shown = np.stack([keys, values], axis=-1).reshape(number, -1)
    wanted = np.stack([keys[rows, asked], values[rows, asked]], axis=-1).reshape(number, -1)
    answers = np.zeros((number, 2 * (pairs + queries) - 1), dtype=np.float32)
    answers[:, 2 * pairs :: 2] = 1.0
    return np.concatenate([shown, wanted], axis=1).astype(np.int32), answers


def largest_difference(one: Any, other: Any) -> float:
    """Largest relative difference of the leaves of two trees, each by its norm; they may lie on different devices."""

    def difference(a: Any, b: Any) -> float:
        wanted = np.asarray(b)
        return float(np.linalg.norm(np.asarray(a) - wanted) / max(float(np.linalg.norm(wanted)), 1e-30))

    return max(jax.tree.leaves(jax.tree.map(difference, one, other)))


def shortest_s(call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Shortest time of a call after a first one that compiles: other programs on the machine only add to it [s].

    Args:
        call: what is timed.
        repeats: [count].
        clock: wall time, or processor time of this process, which waiting for other programs does not count in.
    """
    jax.block_until_ready(call())
    best = np.inf
    for _ in range(repeats):
        began = clock()
        jax.block_until_ready(call())
        best = min(best, clock() - began)
    return float(best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Cost of one call of a compiled function.

    Args:
        flop: work, element-wise work included [FLOP].
        accessed_bytes: operands and results of all operations, fused ones once [bytes].
        temporary_bytes: memory beside arguments and results [bytes].
        reused_bytes: arguments whose memory the results take [bytes].
    """

    flop: float
    accessed_bytes: float
    temporary_bytes: float
    reused_bytes: float


def compiled_cost(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Compiled:
    """Compile a function for arguments, or their shapes, and ask what it costs.

    Args:
        donate: arguments whose memory may be taken, by position.
    """
    compiled: Any = jax.jit(function, donate_argnums=donate).lower(*arguments).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return Compiled(
        flop=float(cost["flops"]),
        accessed_bytes=float(cost["bytes accessed"]),
        temporary_bytes=float(memory.temp_size_in_bytes),
        reused_bytes=float(memory.alias_size_in_bytes),
    )


_SOURCES = [{"fields": ["*"], "kind": "assumed", "citation": "a transformer of rackline.lab"}]


def model_of(shape: Shape) -> Model:
    """The architecture of a small transformer in the catalogue's vocabulary."""
    attention = {"num_q_heads": shape.num_q_heads, "num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    record = ModelRecord.model_validate(
        {
            "name": "lab-transformer",
            "full_name": "transformer of the lab",
            "native_precision": "bf16",
            "architecture": {
                "num_layers": shape.num_layers,
                "d_model": shape.d_model,
                "vocab_size": shape.vocab_size,
                "tied_embeddings": False,
                "norm": "rmsnorm",
                "attention": {"kind": "gqa", **attention},
                "ffn": {"kind": "swiglu", "d_ff": shape.d_ff},
            },
            "sources": _SOURCES,
        },
        strict=False,
    )
    model = build_model(record)
    if not isinstance(model, Model):
        raise InputError(what="shape", given=str(shape), allowed="a transformer with layers")
    return model


@cache
def deployment_of(shape: Shape) -> Deployment:
    """The transformer in float32 on one chip whose peaks are 1: times of its rows are amounts of FLOP and bytes."""
    chip = Chip(
        name="this-machine",
        full_name="this machine",
        vendor="-",
        generation="-",
        peak_flop_per_s={"fp32": 1.0, "bf16": 1.0},
        hbm_bytes=1e12,
        hbm_bytes_per_s=1.0,
    )
    level = FabricLevel(name="scale_up", size=1, bytes_per_s_each_way=1.0, latency_s=0.0)
    alone = Cluster(name="this-machine", chip=chip, num_chips=1, levels=(level,))
    types = Precision(label="fp32", **dict.fromkeys(PARTS, "fp32"))
    return System.of(model_of(shape), alone, calibration=UNIT, precisions=[types]).deployment(Layout())
