"""A mixture of experts: router, top-k, shared expert, capacity, balance, cost (lecture C39).

A router scores the experts for each token, the best k compute, their outputs are added by their gates, and a shared
expert sees every token. Tokens are gathered into one block an expert, with room for a stated number (capacity), so that
the work is proportional to k and not to the number of experts. Left alone, training sends more and more tokens to few
experts; a bias on the scores that chooses them, raised for experts with too few tokens, keeps the loads level.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.transformer import compiled_cost, largest_difference, shortest_s
from rackline.passes.routing import experts_touched_mean

Weights = dict[str, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the layer.

    Args:
        d_model, d_expert: [count].
        num_experts, experts_per_token: routed ones [count].
    """

    d_model: int = 64
    d_expert: int = 128
    num_experts: int = 16
    experts_per_token: int = 2

    @property
    def expert_params(self) -> int:
        """Parameters of one expert [count]."""
        return 3 * self.d_model * self.d_expert

    @property
    def total_over_active(self) -> float:
        """Routed and shared experts over those that a token uses."""
        return (self.num_experts + 1) / (self.experts_per_token + 1)


def init(key: jax.Array, sizes: Sizes) -> Weights:
    """Random weights: router, routed experts, and the shared expert as the last of each."""
    keys = jax.random.split(key, 4)
    experts, d, ff = sizes.num_experts + 1, sizes.d_model, sizes.d_expert
    return {
        "router": jax.random.normal(keys[0], (d, sizes.num_experts)) / np.sqrt(d),
        "gate": jax.random.normal(keys[1], (experts, d, ff)) / np.sqrt(d),
        "up": jax.random.normal(keys[2], (experts, d, ff)) / np.sqrt(d),
        "down": jax.random.normal(keys[3], (experts, ff, d)) / np.sqrt(ff),
    }


def swiglu(gate: jax.Array, up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    """One expert, or one a block with leading dimensions in common."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def route(weights: Weights, x: jax.Array, bias: jax.Array, experts_per_token: int) -> tuple[jax.Array, jax.Array]:
    """Chosen experts and gates, both (tokens, k). The bias chooses; the gates are the scores without it.

    Sources: Wang et al. 2024, arXiv:2408.15664 (balance without an auxiliary loss).
    """
    scores = jax.nn.sigmoid(x @ weights["router"])
    _, chosen = jax.lax.top_k(scores + bias, experts_per_token)
    kept = jnp.take_along_axis(scores, chosen, axis=-1)
    return chosen, kept / jnp.sum(kept, axis=-1, keepdims=True)


def layer(
    weights: Weights, x: jax.Array, bias: jax.Array, sizes: Sizes, capacity: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What the layer adds to the stream, tokens of each expert, and how many found no room.

    Args:
        x: (tokens, d_model).
        capacity: tokens that an expert has room for [count].
    """
    tokens, k = x.shape[0], sizes.experts_per_token
    chosen, gates = route(weights, x, bias, k)
    flat = jnp.reshape(chosen, -1)
    hits = jax.nn.one_hot(flat, sizes.num_experts, dtype=jnp.int32)
    place = jnp.sum((jnp.cumsum(hits, axis=0) - 1) * hits, axis=-1)  # order of arrival at its expert
    fits = place < capacity
    slot = jnp.where(fits, flat * capacity + place, sizes.num_experts * capacity)
    source = jnp.repeat(jnp.arange(tokens), k)
    blocks = jnp.zeros((sizes.num_experts * capacity + 1, x.shape[1]), x.dtype).at[slot].set(x[source])
    blocks = jnp.reshape(blocks[:-1], (sizes.num_experts, capacity, -1))
    done = swiglu(weights["gate"][:-1], weights["up"][:-1], weights["down"][:-1], blocks)
    back = jnp.concatenate([jnp.reshape(done, (-1, x.shape[1])), jnp.zeros((1, x.shape[1]), x.dtype)])[slot]
    routed = jnp.sum(jnp.reshape(back * jnp.reshape(gates, -1)[:, None], (tokens, k, -1)), axis=1)
    shared = swiglu(weights["gate"][-1], weights["up"][-1], weights["down"][-1], x)
    return routed + shared, jnp.sum(hits, axis=0), jnp.sum(~fits)


def dense_sum(weights: Weights, x: jax.Array, bias: jax.Array, sizes: Sizes) -> jax.Array:
    """The layer by all experts on all tokens: the sum over the chosen ones by their gates, and the shared expert."""
    chosen, gates = route(weights, x, bias, sizes.experts_per_token)
    share = jnp.sum(jax.nn.one_hot(chosen, sizes.num_experts) * gates[..., None], axis=1)
    every = jax.vmap(swiglu, (0, 0, 0, None))(weights["gate"], weights["up"], weights["down"], x)
    return jnp.einsum("te,etd->td", share, every[:-1]) + every[-1]


def compiled_flop(sizes: Sizes, tokens: int, capacity: int) -> float:
    """Work of one forward of the layer as XLA counts it [FLOP]."""
    shapes = jax.eval_shape(partial(init, sizes=sizes), jax.random.key(0))
    given = (shapes, jax.ShapeDtypeStruct((tokens, sizes.d_model), jnp.float32))
    function = partial(layer, sizes=sizes, capacity=capacity)
    return compiled_cost(function, *given, jax.ShapeDtypeStruct((sizes.num_experts,), jnp.float32)).flop


def clustered(key: jax.Array, tokens: int, sizes: Sizes, clusters: int = 32) -> jax.Array:
    """Inputs in clusters of unequal size, as words are: cluster i is drawn in proportion to 1 / (i + 1)."""
    centres = jax.random.normal(jax.random.key(7), (clusters, sizes.d_model))
    first, second = jax.random.split(key)
    picked = jax.random.categorical(first, -jnp.log(jnp.arange(1.0, clusters + 1.0)), shape=(tokens,))
    return centres[picked] + 0.3 * jax.random.normal(second, (tokens, sizes.d_model))


def busiest_over_mean(seed: int, sizes: Sizes, steps: int, *, balanced: bool, rate: float = 0.02) -> float:
    """Load of the busiest expert over the mean, at the end of training.

    The layer learns a random target of each cluster's tokens; with `balanced`, the bias of an expert rises by `rate`
    after a step in which it had fewer tokens than the mean, and falls otherwise.
    """
    key = jax.random.key(seed)
    params, bias = init(key, sizes), jnp.zeros(sizes.num_experts)
    optimiser, step = _training_step(sizes)
    state = optimiser.init(params)
    loads: list[float] = []
    for number in range(steps):
        params, state, bias, load = step(params, state, bias, jax.random.fold_in(key, number), rate * balanced)
        if number >= steps * 3 // 4:
            loads.append(float(load.max() / load.mean()))
    return float(np.mean(loads))


@lru_cache(maxsize=2)
def _training_step(sizes: Sizes) -> tuple[Any, Callable[..., Any]]:
    """Adam and a step of it, compiled once for all seeds, with a bias or without."""
    tokens = 256
    target = init(jax.random.key(11), sizes)
    optimiser = optax.adam(3e-3)

    def loss(p: Weights, x: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, load, _ = layer(p, x, b, sizes, tokens)
        wanted = swiglu(target["gate"][-1], target["up"][-1], target["down"][-1], x)
        return jnp.mean((out - wanted) ** 2), load

    @jax.jit
    def step(
        p: Weights, state: Any, b: jax.Array, key: jax.Array, rate: float
    ) -> tuple[Weights, Any, jax.Array, jax.Array]:
        slopes, load = jax.grad(loss, has_aux=True)(p, clustered(key, tokens, sizes), b)
        updates, state = optimiser.update(slopes, state, p)
        moved: Any = optax.apply_updates(p, updates)
        return moved, state, b + rate * jnp.sign(jnp.mean(load) - load), load

    return optimiser, step


def forward_s(sizes: Sizes, tokens: int, capacity: int, repeats: int) -> float:
    """Shortest time of one forward of the layer [s]."""
    weights = init(jax.random.key(0), sizes)
    x, bias = jax.random.normal(jax.random.key(1), (tokens, sizes.d_model)), jnp.zeros(sizes.num_experts)
    return shortest_s(partial(jax.jit(partial(layer, sizes=sizes, capacity=capacity)), weights, x, bias), repeats)


def run(setup: Setup) -> Experiment:
    """Equality with the dense sum, balance, and cost by active and by total parameters."""
    sizes, tokens = Sizes(), 512
    key = jax.random.key(setup.seed)
    weights = init(key, sizes)
    x = jax.random.normal(jax.random.key(setup.seed + 1), (tokens, sizes.d_model))
    bias = jnp.zeros(sizes.num_experts)
    setup.progress("gathered experts against the dense sum")
    out, load, dropped = jax.jit(partial(layer, sizes=sizes, capacity=tokens))(weights, x, bias)
    wanted = jax.jit(partial(dense_sum, sizes=sizes))(weights, x, bias)

    def square(w: Weights, *, gathered: bool) -> jax.Array:
        found = layer(w, x, bias, sizes, tokens)[0] if gathered else dense_sum(w, x, bias, sizes)
        return jnp.sum(found**2)

    tight = tokens * sizes.experts_per_token // sizes.num_experts
    ours, theirs = (jax.jit(jax.grad(partial(square, gathered=gathered)))(weights) for gathered in (True, False))
    rows = [
        Reading(
            quantity="output: relative difference to the sum over chosen experts",
            predicted=1e-5,
            measured=float(jnp.linalg.norm(out - wanted) / jnp.linalg.norm(wanted)),
            check="at_most",
            source="C39",
        ),
        Reading(
            quantity="gradients: largest relative difference, router included",
            predicted=1e-4,
            measured=largest_difference(ours, theirs),
            check="at_most",
            source="C39",
        ),
        Reading(
            quantity="tokens without room, capacity of all tokens",
            unit="tokens",
            predicted=0.0,
            measured=float(dropped),
            check="equal",
        ),
        _touched(sizes, setup),
        Reading(
            quantity="copies without room, capacity of the mean load",
            unit="copies",
            predicted=float(jnp.sum(jnp.maximum(load - tight, 0))),
            measured=float(jax.jit(partial(layer, sizes=sizes, capacity=tight))(weights, x, bias)[2]),
            check="equal",
            source="what the busier experts have above it",
        ),
        *_balance(sizes, setup),
    ]
    setup.progress("cost by active and total parameters")
    costs, curves = _costs(setup)
    rows += costs
    level, left = (next(row.measured for row in rows if word in row.quantity) for word in ("with a bias", "left alone"))
    return Experiment(
        name="moe",
        claims=("C39",),
        rows=tuple(rows),
        findings=(f"the busiest expert has {left:.1f} times the mean load when left alone, {level:.1f} with a bias",),
        curves=curves,
        axes=("total over active parameters", "seconds of a forward"),
        log_axes=(True, True),
    )


def _touched(sizes: Sizes, setup: Setup) -> Reading:
    """Experts that eight random tokens touch."""
    tokens, draws = 8, 400
    x = jax.random.normal(jax.random.key(setup.seed + 2), (draws, tokens, sizes.d_model))
    keys = jax.random.split(jax.random.key(setup.seed + 3), draws)

    def touched(key: jax.Array, x: jax.Array) -> jax.Array:
        # a router of its own for each draw: the average over routers has equally likely experts
        router = {"router": jax.random.normal(key, (sizes.d_model, sizes.num_experts))}
        chosen, _ = route(router, x, jnp.zeros(sizes.num_experts), sizes.experts_per_token)
        return jnp.sum(jnp.any(jax.nn.one_hot(chosen, sizes.num_experts), axis=(0, 1)))

    return Reading(
        quantity=f"experts that {tokens} tokens touch, of {sizes.num_experts}",
        unit="experts",
        predicted=float(experts_touched_mean(sizes.num_experts, sizes.experts_per_token, float(tokens))),
        measured=float(jax.vmap(touched)(keys, x).mean()),
        tolerance=0.03,
        check="equal",
        statistical=True,
        source="E (1 - (1 - k/E)^T) (passes.routing.experts_touched_mean)",
    )


def _balance(sizes: Sizes, setup: Setup) -> list[Reading]:
    """Loads at the end of training, with and without a bias."""
    steps = 60 if setup.quick else 600
    runs: dict[bool, list[float]] = {False: [], True: []}
    for balanced, found in runs.items():
        for seed in setup.seeds(3, 5):
            setup.progress(f"balance in training, {'with a bias' if balanced else 'left alone'}, random seed {seed}")
            found.append(busiest_over_mean(seed, sizes, steps, balanced=balanced))
    return [
        Reading.of_runs(runs[False], quantity="busiest expert over the mean after training, left alone"),
        Reading.of_runs(runs[True], quantity="busiest expert over the mean after training, with a bias"),
        Reading.of_runs(
            [with_bias / alone for with_bias, alone in zip(runs[True], runs[False], strict=True)],
            quantity="the same, with a bias over left alone",
            predicted=1.0,
            check="at_most",
            source="the bias levels the loads (arXiv:2408.15664)",
        ),
    ]


def _costs(setup: Setup) -> tuple[list[Reading], tuple[Curve, ...]]:
    """Work and time of the layer when experts are added and a token still uses two."""
    tokens, numbers = 2048, (8, 64) if setup.quick else (8, 16, 32, 64)
    all_sizes = [Sizes(num_experts=number) for number in numbers]

    def room(sizes: Sizes) -> int:
        return tokens * sizes.experts_per_token // sizes.num_experts

    work = [compiled_flop(sizes, tokens, room(sizes)) for sizes in all_sizes]
    seconds = [forward_s(sizes, tokens, room(sizes), 5 if setup.quick else 30) for sizes in all_sizes]
    dense_s = forward_s(Sizes(num_experts=8, experts_per_token=2), tokens, tokens, 3 if setup.quick else 10)
    active = 2.0 * tokens * 3 * all_sizes[0].expert_params
    routers = 2.0 * tokens * all_sizes[0].d_model * numbers[0]
    x = tuple(sizes.total_over_active for sizes in all_sizes)
    rows = [
        Reading(
            quantity="work of a forward over that of the active parameters, 8 experts",
            predicted=1.0,
            measured=(work[0] - routers) / active,
            tolerance=0.05,
            check="equal",
            source="2 FLOP a parameter and token; XLA also counts activation functions and sums",
        ),
        Reading(
            quantity="work: 64 experts over 8, two per token",
            predicted=1.0,
            measured=(work[-1] - 2.0 * tokens * all_sizes[0].d_model * numbers[-1]) / (work[0] - routers),
            tolerance=0.15,
            check="equal",
            source="work goes by active parameters; routing itself grows with the experts",
        ),
        Reading(
            quantity="total parameters, 64 experts over 8",
            measured=x[-1] / x[0],
        ),
        Reading(
            quantity="time: 64 experts over 8, two per token",
            predicted=x[-1] / x[0] / 2.0,
            measured=seconds[-1] / seconds[0],
            check="at_most",
            statistical=True,
            source="far from growing as the total parameters do",
        ),
        Reading(
            quantity="time, 8 experts with room for all tokens over room for the mean",
            measured=dense_s / seconds[0],
            statistical=True,
        ),
    ]
    curves = (
        Curve(name="as active parameters", kind="predicted", x=x, y=(seconds[0],) * len(x)),
        Curve(name="as total parameters", kind="predicted", x=x, y=tuple(seconds[0] * one / x[0] for one in x)),
        Curve(name="forward", kind="measured", x=x, y=tuple(seconds)),
    )
    return rows, curves
