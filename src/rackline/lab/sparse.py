"""Block-sparse attention that reads √L: bytes, time and quality (lecture C17, C103, C115).

The cache is cut into blocks of √(L/n) tokens with one summary key each. A query scores all summaries, takes the n best
blocks and attends to their tokens and to its own block. Summaries and chosen tokens both grow as √(n·L), so that is
what is read. What is not chosen is not seen: a task that has to find something there fails with too few blocks. The
models on text have rotary positions: without, a query's own block tells a model where it is and dense attention does
not, and text came out better with fewer blocks.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rackline.arch.kinds.gqa import RootSparseAttention
from rackline.lab.experiment import Curve, Experiment, Reading, Setup, shares_apart
from rackline.lab.transformer import (
    Attend,
    Params,
    Shape,
    attention_block,
    causal_attention,
    ffn_block,
    fit,
    init,
    next_token_loss,
    norm,
    prose_loss,
    recall_task,
    shortest_s,
)

HEAD_DIM, BLOCKS = 64, 4
LENGTHS = tuple(2**power for power in range(10, 19))
RECALL = Shape(num_layers=1, d_model=64, num_q_heads=2, num_kv_heads=2, head_dim=32, d_ff=128, vocab_size=64)
TEXT = Shape(num_layers=2, d_model=64, num_q_heads=2, num_kv_heads=2, head_dim=32, d_ff=128, vocab_size=128)
PAIRS, QUERIES, SYMBOLS = 16, 16, 32  # 64 tokens, blocks of 8
ASKED = 256  # new sequences


# --- Decoding: what one query reads ---


def block_size(context_len: int, blocks: int) -> int:
    """Tokens of a block: √(L / n), a power of two that divides the context."""
    return 2 ** round(np.log2(np.sqrt(context_len / blocks)))


def decode_dense(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """One query over all keys: q (head_dim,), k and v (tokens, head_dim)."""
    return jax.nn.softmax(k @ q / np.sqrt(q.shape[0])) @ v


def decode_sparse(
    q: jax.Array, summaries: jax.Array, k: jax.Array, v: jax.Array, blocks: int
) -> tuple[jax.Array, jax.Array]:
    """One query over the best blocks, and which they are.

    Args:
        q: (head_dim,).
        summaries: mean key of each block, kept beside the cache, (number of blocks, head_dim).
        k, v: (number of blocks, block size, head_dim).
        blocks: that are read [count].
    """
    _, best = jax.lax.top_k(summaries @ q, blocks)
    keys, values = (jnp.reshape(one[best], (-1, q.shape[0])) for one in (k, v))
    return decode_dense(q, keys, values), best


def bytes_read(context_len: int, blocks: int) -> float:
    """Bytes that the arrays hold which one query of `decode_sparse` reads, in float32."""
    size = block_size(context_len, blocks)
    given = (
        jax.ShapeDtypeStruct((HEAD_DIM,), jnp.float32),
        jax.ShapeDtypeStruct((context_len // size, HEAD_DIM), jnp.float32),
        *(jax.ShapeDtypeStruct((context_len // size, size, HEAD_DIM), jnp.float32),) * 2,
    )
    traced: Any = jax.make_jaxpr(partial(decode_sparse, blocks=blocks))(*given)
    gathered = [one.outvars[0].aval for one in traced.eqns if "gather" in str(one.primitive)]
    inner = [
        equation.outvars[0].aval
        for one in traced.eqns
        for equation in getattr(one.params.get("jaxpr"), "eqns", [])
        if "gather" in str(equation.primitive)
    ]
    chosen = [one for one in (*gathered, *inner) if one.ndim == 3]  # blocks of keys and of values
    return float(sum(one.size for one in (given[1], *chosen))) * 4.0


# --- Training: the same choice for all queries of a sequence ---


def sparse_attention(q: jax.Array, k: jax.Array, v: jax.Array, *, blocks: int, size: int) -> jax.Array:
    """Each query attends to its own block and to the best of those before it.

    Args:
        q: (tokens, heads, head_dim).
        k, v: (tokens, kv heads, head_dim), as many heads as q.
        blocks: chosen for each query and head [count].
        size: of a block [tokens].
    """
    tokens, _, head_dim = q.shape
    number = tokens // size
    summaries = jnp.mean(jnp.reshape(k, (number, size, *k.shape[1:])), axis=1)
    own = jnp.arange(tokens) // size
    before = jnp.arange(number)[None, :] < own[:, None]  # (tokens, blocks)
    scores = jnp.where(before[None], jnp.einsum("ihd,bhd->hib", q, summaries), -jnp.inf)
    best, chosen = jax.lax.top_k(scores, min(blocks, number))
    taken = jnp.any(jax.nn.one_hot(chosen, number, dtype=bool) & jnp.isfinite(best)[..., None], axis=2)
    taken = taken | (jnp.arange(number)[None, :] == own[:, None])[None]
    seen = jnp.repeat(taken, size, axis=-1) & (jnp.arange(tokens)[:, None] >= jnp.arange(tokens)[None, :])[None]
    all_scores = jnp.einsum("ihd,jhd->hij", q, k) / np.sqrt(head_dim)
    weights = jax.nn.softmax(jnp.where(seen, all_scores, -jnp.inf), axis=-1)
    return jnp.einsum("hij,jhd->ihd", weights, v)


def shifted_logits(
    params: Params, tokens: jax.Array, shape: Shape, attend: Attend, *, rotary: bool = False
) -> jax.Array:
    """A transformer whose input also holds the token before (a short convolution), without positions by default."""
    embedded = params["embedding"][tokens]
    before = jnp.concatenate([jnp.zeros_like(embedded[:1]), embedded[:-1]]) @ params["shift"]
    x = embedded + before
    for layer in params["layers"]:
        x = x + attention_block(layer, x, shape, attend, rotary=rotary)
        x = x + ffn_block(layer, x)
    return norm(x) @ params["head"]


def make_params(seed: int, shape: Shape) -> Params:
    """Random weights with those of the short convolution."""
    key = jax.random.key(seed)
    shift = jax.random.normal(jax.random.fold_in(key, 99), (shape.d_model, shape.d_model)) / np.sqrt(shape.d_model)
    return {**init(key, shape), "shift": shift}


@lru_cache(maxsize=4)
def _recall(attend: Attend) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """Logits and loss of the recall task, the same functions for all seeds."""
    logits = jax.vmap(partial(shifted_logits, shape=RECALL, attend=attend), (None, 0))

    def loss(params: Params, tokens: jax.Array, answers: jax.Array) -> jax.Array:
        return next_token_loss(logits(params, tokens)[:, :-1], tokens[:, 1:], answers)

    return jax.jit(logits), loss


def recall_accuracy(attend: Attend, seed: int, steps: int) -> float:
    """Share of right answers in associative recall, after training."""
    random = np.random.default_rng(seed)
    logits, loss = _recall(attend)

    def batch(number: int) -> tuple[Any, ...]:
        return recall_task(random, 32, PAIRS, QUERIES, SYMBOLS)

    params = fit(make_params(seed, RECALL), loss, batch, steps)
    tokens, answers = recall_task(np.random.default_rng(10**6 + seed), ASKED, PAIRS, QUERIES, SYMBOLS)
    right = np.argmax(np.asarray(logits(params, tokens)[:, :-1]), axis=-1) == tokens[:, 1:]
    return float((right * answers).sum() / answers.sum())


@lru_cache(maxsize=4)
def _text(attend: Attend) -> Callable[..., jax.Array]:
    """Loss on text, the same function for all seeds."""

    def loss(params: Params, tokens: jax.Array) -> jax.Array:
        logits = partial(shifted_logits, shape=TEXT, attend=attend, rotary=True)
        return next_token_loss(jax.vmap(logits, (None, 0))(params, tokens[:, :-1]), tokens[:, 1:])

    return loss


def text_loss(attend: Attend, seed: int, steps: int, length: int = 128) -> float:
    """Loss on prose that was not seen, after training [nats per token]."""
    return prose_loss(make_params(seed, TEXT), _text(attend), seed, steps, 16, length + 1)


def run(setup: Setup) -> Experiment:
    """Bytes, time and quality of attention that reads √L."""
    setup.progress("bytes and time by context")
    rows, curves = _reads(setup)
    setup.progress("quality")
    more, said = _recalled(setup)
    if not setup.quick:
        written, words = _written(setup)
        more, said = [*more, *written], f"{said}; {words}"
    return Experiment(
        name="sparse",
        claims=("C17", "C103", "C115"),
        rows=(*rows, *more),
        findings=(said,),
        curves=curves,
        axes=("context, tokens", "bytes that a query reads"),
        log_axes=(True, True),
    )


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _reads(setup: Setup) -> tuple[list[Reading], tuple[Curve, ...]]:
    kind = RootSparseAttention(num_q_heads=1, num_kv_heads=1, head_dim=HEAD_DIM, top_blocks=BLOCKS)
    lengths = np.array(LENGTHS, dtype=float)
    entry = 2.0 * HEAD_DIM * 4.0
    predicted = np.asarray(kind.kv_read_tokens(lengths)) * entry
    measured = [bytes_read(length, BLOCKS) for length in LENGTHS]
    even = [index for index, length in enumerate(LENGTHS) if (length // BLOCKS) ** 0.5 % 1 == 0]
    q = jax.random.normal(jax.random.key(setup.seed), (HEAD_DIM,))
    dense_s, sparse_s = [], []
    timed = LENGTHS[2:] if not setup.quick else LENGTHS[2::2]
    for length in timed:
        setup.progress(f"time over {length:,} tokens")
        k, v = jax.random.normal(jax.random.key(setup.seed + 1), (2, length, HEAD_DIM))
        size = block_size(length, BLOCKS)
        blocked = tuple(jnp.reshape(one, (length // size, size, HEAD_DIM)) for one in (k, v))
        summaries = jnp.mean(blocked[0], axis=1)
        dense_s.append(shortest_s(partial(jax.jit(decode_dense), q, k, v), 20, time.process_time))
        sparse_call = partial(jax.jit(partial(decode_sparse, blocks=BLOCKS)), q, summaries, *blocked)
        sparse_s.append(shortest_s(sparse_call, 50, time.process_time))
    rows = [
        Reading(
            quantity="slope of the bytes over context, both logarithmic",
            predicted=0.5,
            measured=slope([LENGTHS[index] for index in even], [measured[index] for index in even]),
            tolerance=0.02,
            check="equal",
            source="C17: a square root",
        ),
        Reading(
            quantity=f"bytes that a query reads of {LENGTHS[even[-1]]:,} tokens",
            unit="B",
            predicted=float(predicted[even[-1]]),
            measured=measured[even[-1]],
            tolerance=0.001,
            check="equal",
            source="1.5 √(n L) entries (arch.kinds.block_sparse)",
        ),
        Reading(
            quantity="slope of the processor time over context, dense",
            measured=slope(timed[-4:], dense_s[-4:]),
            statistical=True,
        ),
        Reading(
            quantity="slope of the processor time over context, sparse",
            predicted=0.6,
            measured=slope(timed[-4:], sparse_s[-4:]),
            check="at_most",
            statistical=True,
            source="a half where bytes count, less where the call itself does",
        ),
        Reading(
            quantity=f"processor time over dense attention at {timed[-1]:,} tokens",
            predicted=1.0,
            measured=sparse_s[-1] / dense_s[-1],
            check="at_most",
            statistical=True,
        ),
    ]
    x = tuple(lengths)
    curves = (
        Curve(name="sparse", kind="predicted", x=x, y=tuple(float(one) for one in predicted)),
        Curve(name="sparse", kind="measured", x=x, y=tuple(measured)),
        Curve(name="dense", kind="predicted", x=x, y=tuple(float(entry * one) for one in LENGTHS)),
    )
    return rows, curves


OWN = "own block alone"


def _attentions(blocks: Sequence[int], size: int = 8) -> dict[str, Attend]:
    """Dense attention, and that to a number of blocks beside a query's own."""
    names = {n: OWN if n == 0 else f"own block and {n} more" for n in blocks}
    return {"dense": causal_attention} | {names[n]: partial(sparse_attention, blocks=n, size=size) for n in blocks}


def _recalled(setup: Setup) -> tuple[list[Reading], str]:
    steps, seeds = 200 if setup.quick else 300, setup.seeds(2, 5)
    found: dict[str, Reading] = {}
    for name, attend in _attentions((0,) if setup.quick else (4, 1, 0)).items():
        shares: list[float] = []
        for seed in seeds:
            setup.progress(f"quality: recall, {name}, random seed {seed}")
            shares.append(recall_accuracy(attend, seed, steps))
        found[name] = Reading.of_shares(shares, ASKED * QUERIES, quantity=f"right answers in recall, {name}")
    gap = shares_apart(
        found[OWN],
        found["dense"],
        quantity=f"right answers in recall: {OWN} less dense",
        predicted=0.0,
        check="at_most",
        source="too sparse loses quality (C115)",
    )
    return [*found.values(), gap], "right answers in recall: " + _listed(found)


def _written(setup: Setup) -> tuple[list[Reading], str]:
    steps, seeds = 300, setup.seeds(5, 5)
    losses: dict[str, list[float]] = {}
    for name, attend in _attentions((0,)).items():
        for seed in seeds:
            setup.progress(f"quality: text, {name}, random seed {seed}")
            losses.setdefault(name, []).append(text_loss(attend, seed, steps))
    found = {
        name: Reading.of_runs(values, quantity=f"loss on text, {name}", unit="nats") for name, values in losses.items()
    }
    gap = Reading.of_runs(
        [own - dense for own, dense in zip(losses[OWN], losses["dense"], strict=True)],
        quantity=f"loss on text: {OWN} less dense",
        unit="nats",
        predicted=0.0,
        check="at_least",
        source="too sparse loses quality (C115)",
    )
    return [*found.values(), gap], "loss on text: " + _listed(found)


def _listed(found: dict[str, Reading]) -> str:
    return ", ".join(f"{name} {row.measured:.3g}" for name, row in found.items())
