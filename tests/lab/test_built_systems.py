"""Systems of the lecture that are built in JAX (Y04, Y06, Y07, Y20), by a second hand: plain loops of NumPy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rackline.lab.experiment import start_jax

pytest.importorskip("jax", reason="JAX has no wheel on this platform")
start_jax()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from rackline.lab import moe, reversible, sparse, transformer  # noqa: E402

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


Array = NDArray[np.float64]
SHAPE = transformer.Shape(num_layers=2, d_model=12, num_q_heads=3, num_kv_heads=1, head_dim=4, d_ff=10, vocab_size=11)


def normed(x: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def turned(x: Array, place: int) -> Array:
    """One head's vector at a position: pairs are turned by an angle that falls with their number."""
    half = x.size // 2
    found = np.empty_like(x)
    for i in range(half):
        angle = place * 10_000.0 ** (-i / half)
        a, b = x[i], x[i + half]
        found[i], found[i + half] = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
    return found


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def next_logits(params: Any, tokens: list[int], cache: list[list[tuple[Array, Array]]]) -> Array:
    """The newest token alone, with the keys and values of those before it in lists, which grow by one."""
    place = len(tokens) - 1
    x = np.asarray(params["embedding"], dtype=float)[tokens[-1]]
    for layer, held in zip(params["layers"], cache, strict=True):
        w = {name: np.asarray(one, dtype=float) for name, one in layer.items()}
        y = normed(x)
        held.append((turned(y @ w["k"], place), y @ w["v"]))
        heads: list[Array] = []
        for head in range(SHAPE.num_q_heads):
            q = turned((y @ w["q"])[head * 4 : head * 4 + 4], place)
            scores = np.array([q @ key / 2.0 for key, _ in held])
            weights = np.exp(scores - scores.max())
            heads.append(sum(a * v for a, (_, v) in zip(weights / weights.sum(), held, strict=True)))  # type: ignore
        x = x + np.concatenate(heads) @ w["o"]
        y = normed(x)
        x = x + (silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
    return normed(x) @ np.asarray(params["head"], dtype=float)


def test_y04() -> None:
    """Three heads that share one key head, token by token with a cache: the logits of all positions at once."""
    params = transformer.init(jax.random.key(3), SHAPE)
    text = [7, 2, 2, 9, 0, 5]
    wanted = np.asarray(jax.jit(partial(transformer.logits, shape=SHAPE))(params, jnp.asarray(text)))
    cache: list[list[tuple[Array, Array]]] = [[] for _ in range(SHAPE.num_layers)]
    for place in range(len(text)):
        assert np.allclose(next_logits(params, text[: place + 1], cache), wanted[place], atol=1e-4)
    numbers = sum(key.size + value.size for held in cache for key, value in held)
    assert numbers == len(text) * 2 * 1 * 4 * 2  # tokens, layers, key heads, their size, keys and values (C101)


def test_y06() -> None:
    """20 tokens in blocks of 5, two chosen beside the own, query by query."""
    q, k, v = (np.asarray(jax.random.normal(jax.random.key(n), (20, 1, 6)), dtype=float) for n in (4, 5, 6))
    found = np.asarray(sparse.sparse_attention(*(jnp.asarray(one) for one in (q, k, v)), blocks=2, size=5))
    for i in range(20):
        own = i // 5
        scores = {b: k[5 * b : 5 * b + 5, 0].mean(axis=0) @ q[i, 0] for b in range(own)}
        chosen = {own, *sorted(scores, key=lambda b: -scores[b])[:2]}
        seen = [j for j in range(i + 1) if j // 5 in chosen]
        weights = np.exp([q[i, 0] @ k[j, 0] / math.sqrt(6) for j in seen])
        wanted = sum(a * v[j, 0] for a, j in zip(weights / weights.sum(), seen, strict=True))
        assert np.allclose(found[i, 0], wanted, atol=1e-4)


def test_y07() -> None:
    """Five experts, two a token, and one that all share, token by token."""
    sizes = moe.Sizes(num_experts=5, experts_per_token=2, d_model=6, d_expert=7)
    weights = moe.init(jax.random.key(1), sizes)
    x = jax.random.normal(jax.random.key(2), (9, 6))
    out, load, dropped = moe.layer(weights, x, jnp.zeros(5), sizes, 9)
    w = {name: np.asarray(one, dtype=float) for name, one in weights.items()}
    counted = np.zeros(5)
    for row, found in zip(np.asarray(x, dtype=float), np.asarray(out), strict=True):
        scores = 1.0 / (1.0 + np.exp(-(row @ w["router"])))
        best = np.argsort(-scores)[:2]
        counted[best] += 1

        def expert(e: int, row: Array = row) -> Array:
            return (silu(row @ w["gate"][e]) * (row @ w["up"][e])) @ w["down"][e]

        wanted = sum(scores[e] / scores[best].sum() * expert(e) for e in best) + expert(-1)  # the last is shared
        assert np.allclose(found, wanted, atol=1e-4)
    assert (np.asarray(load) == counted).all()
    assert int(dropped) == 0


def test_y20() -> None:
    """Two layers of a reversible net: back from its outputs by hand, and a slope by small differences."""
    params = transformer.init(jax.random.key(5), SHAPE)
    layers = params["layers"]
    x = jax.random.normal(jax.random.key(6), (4, SHAPE.d_model))
    y1, y2 = reversible.stored_stack(layers, (x, 2.0 * x), SHAPE)
    for layer in reversed(layers):
        y2 = y2 - transformer.ffn_block(layer, y1)
        y1 = y1 - transformer.attention_block(layer, y2, SHAPE)
    assert np.allclose(y1, x, atol=1e-5)
    assert np.allclose(y2, 2.0 * x, atol=1e-5)

    def total(scale: Any) -> Any:
        return sum(jnp.sum(jnp.cos(one)) for one in reversible.reversible_stack(layers, (scale * x, 2.0 * x), SHAPE))

    total, step = jax.jit(total), 1e-2
    slope = float(jax.grad(total)(1.0))
    assert slope == pytest.approx(float(total(1.0 + step) - total(1.0 - step)) / (2 * step), rel=0.02)
