"""A reversible transformer: flat memory for more work (lecture C131 to C133).

The stream has two halves. A layer adds attention of one half to the other and then the feed-forward block of the other
to the first: y1 = x1 + F(x2), y2 = x2 + G(y1). It can be run backwards, x2 = y2 - G(y1), x1 = y1 - F(x2), so the
backward pass rebuilds the activations layer by layer from the last ones and nothing is stored in between. In exact
arithmetic the gradients are the same; in floating point the rebuilt activations carry rounding errors.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.transformer import (
    Layer,
    Params,
    Shape,
    attention_block,
    compiled_cost,
    ffn_block,
    init,
    largest_difference,
    next_token_loss,
    norm,
    prose_loss,
    shortest_s,
)

Halves = tuple[jax.Array, jax.Array]
DEPTHS = (2, 4, 8, 16)
TOKENS, BATCH_SIZE = 128, 16
SHAPE = Shape(num_layers=4, d_model=64, num_q_heads=4, num_kv_heads=2, head_dim=16, d_ff=128, vocab_size=128)


def layer_forward(layer: Layer, halves: Halves, shape: Shape) -> Halves:
    """One layer: y1 = x1 + attention(x2), y2 = x2 + ffn(y1)."""
    x1, x2 = halves
    y1 = x1 + attention_block(layer, x2, shape)
    return y1, x2 + ffn_block(layer, y1)


def layer_inverse(layer: Layer, halves: Halves, shape: Shape) -> Halves:
    """The inputs of a layer from its outputs: x2 = y2 - ffn(y1), x1 = y1 - attention(x2)."""
    y1, y2 = halves
    x2 = y2 - ffn_block(layer, y1)
    return y1 - attention_block(layer, x2, shape), x2


def stored_stack(layers: list[Layer], halves: Halves, shape: Shape) -> Halves:
    """All layers in order, differentiated as usual: every activation is stored."""
    for layer in layers:
        halves = layer_forward(layer, halves, shape)
    return halves


_reversible = jax.custom_vjp(stored_stack, nondiff_argnums=(2,))


def reversible_stack(layers: list[Layer], halves: Halves, shape: Shape) -> Halves:
    """The same layers; the backward pass keeps the last halves only."""
    return cast(Halves, _reversible(layers, halves, shape))


def _stack_forward(layers: list[Layer], halves: Halves, shape: Shape) -> tuple[Halves, tuple[list[Layer], Halves]]:
    last = stored_stack(layers, halves, shape)
    return last, (layers, last)


def _stack_backward(
    shape: Shape, kept: tuple[list[Layer], Halves], slopes: Halves
) -> tuple[list[dict[str, jax.Array]], Halves]:
    """Rebuild each layer's inputs and differentiate it, from the last layer to the first.

    The block that the inverse evaluates is the one that is differentiated, so each is evaluated once: its value gives
    the input, its derivative the slope. That is one more forward in all.
    """
    layers, (y1, y2) = kept
    s1, s2 = slopes
    found: list[dict[str, jax.Array]] = []
    for layer in reversed(layers):
        # a barrier, or the compiler would find that the rebuilt activations equal the first ones and keep those
        y1, y2, s1, s2 = jax.lax.optimization_barrier((y1, y2, s1, s2))
        added, back_g = jax.vjp(ffn_block, layer, y1)
        x2 = y2 - added
        of_g, change = back_g(s2)
        s1 = s1 + change
        added, back_f = jax.vjp(partial(attention_block, shape=shape), layer, x2)
        y1, y2 = y1 - added, x2
        of_f, change = back_f(s1)
        s2 = s2 + change
        found.append(jax.tree.map(jnp.add, of_g, of_f))
    return found[::-1], (s1, s2)


_reversible.defvjp(_stack_forward, _stack_backward)


def recomputed_stack(layers: list[Layer], halves: Halves, shape: Shape) -> Halves:
    """The same layers, each recomputed from its stored input in the backward pass (full recomputation)."""

    def one(layer: Layer, halves: Halves) -> Halves:
        return layer_forward(layer, halves, shape)

    checkpointed = jax.checkpoint(one)
    for layer in layers:
        halves = checkpointed(layer, halves)
    return halves


def standard_stack(layers: list[Layer], halves: Halves, shape: Shape) -> Halves:
    """An ordinary residual transformer of the same size, on one half."""
    x, _ = halves
    for layer in layers:
        x = x + attention_block(layer, x, shape)
        x = x + ffn_block(layer, x)
    return x, x


_standard = jax.custom_vjp(standard_stack, nondiff_argnums=(2,))


def standard_by_layers(layers: list[Layer], halves: Halves, shape: Shape) -> Halves:
    """The ordinary transformer in the implementation of the reversible one: a backward pass layer by layer.

    The forward pass keeps what each block's derivative needs, so nothing is recomputed. Left to itself JAX
    schedules a whole backward pass worse than layer by layer, and a comparison with that would credit reversibility.
    """
    return cast(Halves, _standard(layers, halves, shape))


def _standard_forward(layers: list[Layer], halves: Halves, shape: Shape) -> tuple[Halves, list[tuple[Any, Any]]]:
    x, _ = halves
    kept: list[tuple[Any, Any]] = []
    for layer in layers:
        added, back_f = jax.vjp(partial(attention_block, shape=shape), layer, x)
        x = x + added
        added, back_g = jax.vjp(ffn_block, layer, x)
        x = x + added
        kept.append((back_f, back_g))
    return (x, x), kept


def _standard_backward(
    shape: Shape, kept: list[tuple[Any, Any]], slopes: Halves
) -> tuple[list[dict[str, jax.Array]], Halves]:
    slope = slopes[0] + slopes[1]
    found: list[dict[str, jax.Array]] = []
    for back_f, back_g in reversed(kept):
        slope = jax.lax.optimization_barrier(slope)
        of_g, change = back_g(slope)
        slope = slope + change
        of_f, change = back_f(slope)
        slope = slope + change
        found.append(jax.tree.map(jnp.add, of_g, of_f))
    return found[::-1], (slope, jnp.zeros_like(slope))


_standard.defvjp(_standard_forward, _standard_backward)


Stack = Callable[[list[Layer], Halves, Shape], Halves]
STACKS: dict[str, Stack] = {
    "stored": stored_stack,
    "recomputed": recomputed_stack,
    "reversible": reversible_stack,
}


def loss_of(params: Params, tokens: jax.Array, shape: Shape, stack: Stack) -> jax.Array:
    """Cross-entropy of the next token of one sequence, (tokens + 1,) [nats]."""
    x = params["embedding"][tokens[:-1]]
    y1, y2 = stack(params["layers"], (x, x), shape)
    return next_token_loss(norm(0.5 * (y1 + y2)) @ params["head"], tokens[1:])


def inverse_error(layers: list[Layer], halves: Halves, shape: Shape) -> float:
    """Relative error of the first halves after all layers and their inverses."""
    last = stored_stack(layers, halves, shape)
    for layer in reversed(layers):
        last = layer_inverse(layer, last, shape)
    wrong = sum(float(jnp.sum((a - b).astype(jnp.float32) ** 2)) for a, b in zip(last, halves, strict=True))
    return float(np.sqrt(wrong / sum(float(jnp.sum(b.astype(jnp.float32) ** 2)) for b in halves)))


def gradient_cost(stack: Stack, shape: Shape, tokens: int, batch_size: int | None = None) -> tuple[float, float]:
    """(temporaries [bytes], work [FLOP]) of loss and gradient of a sequence or a batch, as XLA counts them."""
    params = jax.eval_shape(partial(init, shape=shape), jax.random.key(0))
    sequences = () if batch_size is None else (batch_size,)
    text = jax.ShapeDtypeStruct((*sequences, tokens + 1), jnp.int32)
    loss = loss_of if batch_size is None else batch_loss
    cost = compiled_cost(jax.grad(partial(loss, shape=shape, stack=stack)), params, text)
    return cost.temporary_bytes, cost.flop


def batch_loss(params: Params, tokens: jax.Array, shape: Shape, stack: Stack) -> jax.Array:
    """Mean loss of a batch of sequences, (batch, tokens + 1) [nats per token]."""
    return jnp.mean(jax.vmap(partial(loss_of, shape=shape, stack=stack), (None, 0))(params, tokens))


@lru_cache(maxsize=8)
def _batch_loss(stack: Stack, shape: Shape) -> Callable[..., jax.Array]:
    """Loss of a batch under a stack, the same function for all random seeds."""
    return partial(batch_loss, shape=shape, stack=stack)


def train(stack: Stack, shape: Shape, seed: int, steps: int, batch_size: int = BATCH_SIZE) -> float:
    """Loss on text that was not seen, after some steps of Adam on the project's prose [nats per token]."""
    params = init(jax.random.key(seed), shape)
    return prose_loss(params, _batch_loss(stack, shape), seed, steps, batch_size, TOKENS + 1)


def gradients_s(stacks: Sequence[Stack], shape: Shape, repeats: int = 4) -> list[float]:
    """Shortest processor time of the gradient of a batch under each stack, measured in turns [s]."""
    params = init(jax.random.key(0), shape)
    tokens = jnp.zeros((BATCH_SIZE, TOKENS + 1), dtype=jnp.int32)
    calls = [
        partial(jax.jit(jax.grad(partial(batch_loss, shape=shape, stack=stack))), params, tokens) for stack in stacks
    ]
    return [
        min(times)
        for times in zip(
            *([shortest_s(call, 3, time.process_time) for call in calls] for _ in range(repeats)), strict=True
        )
    ]


def run(setup: Setup) -> Experiment:
    """Gradients, rounding, memory, work and loss of a reversible transformer."""
    setup.progress("gradients")
    key = jax.random.key(setup.seed)
    params = init(key, SHAPE)
    tokens = jax.random.randint(key, (TOKENS + 1,), 0, SHAPE.vocab_size)
    with jax.default_matmul_precision("highest"):  # GPUs round inputs of products to TF32 otherwise
        slopes = {
            name: jax.jit(jax.grad(partial(loss_of, shape=SHAPE, stack=stack)))(params, tokens)
            for name, stack in STACKS.items()
        }
    rows = [
        Reading(
            quantity="gradient: relative difference to stored activations, float32",
            predicted=1e-4,
            measured=largest_difference(slopes["reversible"], slopes["stored"]),
            check="at_most",
            source="equal but for rounding (C131)",
        )
    ]
    setup.progress("rounding of the inverse")
    with jax.default_matmul_precision("highest"):
        rows += _rounding(key)
    costs, curves = _costs(setup, DEPTHS[:2] if setup.quick else DEPTHS)
    rows += costs
    setup.progress("training")
    rows += _losses(setup, 50 if setup.quick else 300)
    work = next(row.measured for row in rows if row.quantity.startswith("work of reversible"))
    return Experiment(
        name="reversible",
        claims=("C131", "C132", "C133"),
        rows=tuple(rows),
        findings=(f"memory between the passes does not grow with depth, for {work:.2f} times the work",),
        curves=tuple(curves),
        axes=("layers", "temporaries of loss and gradient, bytes"),
        log_axes=(True, True),
    )


def _losses(setup: Setup, steps: int) -> list[Reading]:
    """Loss less that of a standard transformer of equal size, over as many tokens and over as much time."""
    setup.progress("processor time of a step")
    compared = (standard_by_layers, standard_stack, stored_stack, recomputed_stack, reversible_stack)
    standard_s, whole_s, stored_s, recomputed_s, reversible_s = gradients_s(compared, SHAPE, 2 if setup.quick else 8)
    affordable = round(steps * standard_s / reversible_s)
    equal_tokens: list[float] = []
    equal_time: list[float] = []
    for seed in setup.seeds(2, 4):
        setup.progress(f"training, random seed {seed}")
        standard = train(standard_by_layers, SHAPE, seed, steps)
        equal_tokens.append(train(reversible_stack, SHAPE, seed, steps) - standard)
        if not setup.quick:
            equal_time.append(train(reversible_stack, SHAPE, seed, affordable) - standard)
    return [
        Reading.of_runs(
            equal_tokens,
            quantity=f"loss less that of a standard transformer of equal size, {steps} steps each",
            unit="nats",
            predicted=0.0,
            tolerance=0.05,
            check="equal",
            source="any layer can be made reversible (C131)",
        ),
        Reading(
            quantity="time of a step, reversible over standard, same implementation",
            measured=reversible_s / standard_s,
            statistical=True,
            source="processor time; 1.33 where work binds, less where temporaries stay in the last cache",
        ),
        *(
            Reading(quantity=f"time of a step, {name}", measured=one / other, statistical=True)
            for name, one, other in (
                ("a standard transformer whose backward pass JAX schedules, over layer by layer", whole_s, standard_s),
                ("reversible over stored activations as JAX schedules them", reversible_s, stored_s),
                ("recomputed over stored activations as JAX schedules them", recomputed_s, stored_s),
            )
        ),
        *(
            Reading(
                quantity=f"temporaries of a step of {BATCH_SIZE} sequences, {name}",
                unit="B",
                measured=gradient_cost(stack, SHAPE, TOKENS, BATCH_SIZE)[0],
            )
            for name, stack in (("stored", stored_stack), ("reversible", reversible_stack))
        ),
        *(
            [
                Reading.of_runs(
                    equal_time,
                    quantity=f"loss less that of a standard transformer, equal time ({affordable} steps for {steps})",
                    unit="nats",
                )
            ]
            if equal_time
            else []
        ),
    ]


def _rounding(key: jax.Array) -> list[Reading]:
    """Error of the inverse by depth and type."""
    rows: list[Reading] = []
    for dtype, epsilon in (("float32", 2.0**-23), ("bfloat16", 2.0**-7)):
        for num_layers in (DEPTHS[0], DEPTHS[-1]):
            shape = replace(SHAPE, num_layers=num_layers)
            layers = [{name: w.astype(dtype) for name, w in layer.items()} for layer in init(key, shape)["layers"]]
            x = jax.random.normal(key, (TOKENS, shape.d_model)).astype(dtype)
            rows.append(
                Reading(
                    quantity=f"inverse: relative error after {num_layers} layers, {dtype}",
                    predicted=epsilon * num_layers,
                    measured=inverse_error(layers, (x, x), shape),
                    check="at_most",
                    statistical=True,
                    source="rounding of the type times layers",
                )
            )
    return rows


def _costs(setup: Setup, depths: Sequence[int]) -> tuple[list[Reading], list[Curve]]:
    """Temporaries and FLOP of the three ways by depth; XLA counts them."""
    counted: dict[str, list[tuple[float, float]]] = {name: [] for name in STACKS}
    for name, stack in STACKS.items():
        for layers in depths:
            setup.progress(f"memory and work of {layers} layers, {name}")
            counted[name].append(gradient_cost(stack, replace(SHAPE, num_layers=layers), TOKENS))
    added = depths[-1] - depths[-2]

    def slope(name: str, which: int) -> float:
        return (counted[name][-1][which] - counted[name][-2][which]) / added

    # what a layer's backward pass returns, the gradients of its weights, is an output and no temporary
    stored_layer = slope("stored", 0)
    sources = {
        "reversible": (1.0, "one more forward beside one forward and two of backward (C133)"),
        "recomputed": (1.0 - _share_of_down(SHAPE, TOKENS), "the same, but a layer's last product is not needed again"),
    }
    rows = [
        Reading(
            quantity="temporaries a layer, reversible over stored",
            predicted=0.02,
            measured=slope("reversible", 0) / stored_layer,
            check="at_most",
            source="nothing is stored between layers (C132)",
        ),
        Reading(quantity="temporaries a layer, recomputed over stored", measured=slope("recomputed", 0) / stored_layer),
        Reading(quantity="temporaries a layer, stored", unit="B", measured=stored_layer),
        *(
            Reading(
                quantity=f"work of {name} over stored activations",
                predicted=1.0 + share / 3.0,
                measured=slope(name, 1) / slope("stored", 1),
                tolerance=0.01,
                check="equal",
                source=source,
            )
            for name, (share, source) in sources.items()
        ),
    ]
    curves = [
        Curve(name=name, kind="measured", x=tuple(map(float, depths)), y=tuple(one[0] for one in found))
        for name, found in counted.items()
    ]
    return rows, curves


def _share_of_down(shape: Shape, tokens: int) -> float:
    """Share of a layer's forward work that is its last product, scores over the full square of positions."""
    heads = shape.num_q_heads * shape.head_dim
    projections = shape.d_model * (2 * heads + 2 * shape.num_kv_heads * shape.head_dim)
    down = shape.d_model * shape.d_ff
    return down / (projections + 2 * tokens * heads + 3 * down)
