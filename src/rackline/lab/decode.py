"""Decoding with a KV cache: the three regimes of a step, on the machine at hand (lecture C02 to C17, C101).

A step reads all weights once and the cache of every sequence, and multiplies each token with all weights. So its time
is flat while the weights are read, rises with the sequences' caches, and rises with the work of the tokens. Four
numbers of the machine are fitted to five of its steps: time of a call, products' rate, bandwidth of weights and of the
cache. All other steps are predicted from the amounts in the pass table.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

from rackline.lab.compiled import Compiled, compiled_cost
from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.this_machine import deployment_of, model_of
from rackline.lab.transformer import Cache, Params, Shape, decode_step, init, logits, prefill
from rackline.passes import Batch

SHAPE = Shape(num_layers=6, d_model=512, num_q_heads=8, num_kv_heads=2, head_dim=64, d_ff=2048, vocab_size=2048)
SMALL = Shape()
BATCHES, CONTEXTS = (1, 4, 16, 64), (64, 256, 1024)
FITTED = ((1, 64), (64, 64), (1, 1024), (64, 1024), (16, 256))

Point = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a decode step of this engine reaches on this machine.

    Args:
        call_s: time of a step that does nothing [s].
        flop_per_s: of products [FLOP/s].
        weight_bytes_per_s, cache_bytes_per_s: bandwidth of products and of attention [bytes/s].
    """

    call_s: float
    flop_per_s: float
    weight_bytes_per_s: float
    cache_bytes_per_s: float

    def step_s(self, point: Point) -> float:
        """Time of a decode step: products as long as their slower resource, then attention [s]."""
        flop, weights, cache = amounts(SHAPE, point)
        products = max(flop / self.flop_per_s, weights / self.weight_bytes_per_s)
        return self.call_s + products + cache / self.cache_bytes_per_s


def amounts(shape: Shape, point: Point) -> tuple[float, float, float]:
    """(FLOP of products, bytes of products, bytes of attention) of a decode step, from the pass table."""
    batch_size, context_len = point
    batch = Batch(decode_sequences=float(batch_size), context_len=float(context_len))
    rows = deployment_of(shape).table().time(batch).rows
    attention = [row for row in rows if row.op_class == "attention_decode"]
    others = [row for row in rows if row.op_class != "attention_decode"]
    flop = sum(row.amounts.get("compute", 0.0) for row in others)
    products, cache = (sum(row.amounts.get("hbm", 0.0) for row in some) for some in (others, attention))
    return flop, products, cache


def fitted_machine(measured: dict[Point, float]) -> Machine:
    """The machine whose steps are nearest to measured ones, by the squares of relative errors.

    Args:
        measured: time of each step [s].
    """
    start = np.log([1e-3, 3e10, 1e10, 5e9])

    def errors(logs: Any) -> Any:
        machine = Machine(**dict(zip(Machine.__slots__, np.exp(logs).tolist(), strict=True)))
        wrong = [np.log(machine.step_s(point) / seconds) for point, seconds in measured.items()]
        return [*wrong, *(0.01 * (logs - start))]  # weakly held to the start: one regime may not show in these steps

    found = least_squares(errors, start)
    return Machine(**dict(zip(Machine.__slots__, np.exp(found.x).tolist(), strict=True)))


def random_cache(key: jax.Array, shape: Shape, point: Point) -> Cache:
    """A cache of a batch of contexts, with room for one token more."""
    batch_size, context_len = point
    size = (shape.num_layers, batch_size, context_len + 1, shape.num_kv_heads, shape.head_dim)
    first, second = jax.random.split(key)
    return jax.random.normal(first, size), jax.random.normal(second, size)


def measured_step_s(params: Params, point: Point, repeats: int) -> float:
    """Shortest time of a decode step of some sequences of a context [s]. The cache is donated, as a server does."""
    batch_size, context_len = point
    step = jax.jit(partial(decode_step, shape=SHAPE), donate_argnums=1)
    cache = random_cache(jax.random.key(0), SHAPE, point)
    tokens = jnp.zeros(batch_size, dtype=jnp.int32)
    lengths = jnp.full(batch_size, context_len, dtype=jnp.int32)
    best = np.inf
    for number in range(repeats + 1):
        began = time.perf_counter()
        found, cache = step(params, cache, tokens, lengths)
        jax.block_until_ready((found, cache))
        if number:
            best = min(best, time.perf_counter() - began)
    return float(best)


def cached_difference(seed: int) -> float:
    """Largest relative difference between logits with a cache, token by token, and without one."""
    shape, tokens, prompt = SMALL, 48, 16
    params = init(jax.random.key(seed), shape)
    text = jax.random.randint(jax.random.key(seed + 1), (tokens,), 0, shape.vocab_size)
    wanted = jax.jit(partial(logits, shape=shape))(params, text)
    first, (keys, values) = jax.jit(partial(prefill, shape=shape))(params, text[:prompt], jnp.asarray(prompt))
    step = jax.jit(partial(decode_step, shape=shape))
    room = ((0, 0), (0, tokens - prompt), (0, 0), (0, 0))
    cache = jnp.pad(keys, room)[:, None], jnp.pad(values, room)[:, None]
    found = [first]
    for place in range(prompt, tokens):
        one, cache = step(params, cache, text[place][None], jnp.asarray([place]))
        found.append(one[0])
    return float(jnp.max(jnp.abs(jnp.stack(found) - wanted[prompt - 1 :])) / jnp.max(jnp.abs(wanted)))


def step_cost(point: Point, *, donate: bool) -> Compiled:
    """Cost of a decode step of a batch and context, from shapes alone."""
    params = jax.eval_shape(partial(init, shape=SHAPE), jax.random.key(0))
    cache = jax.eval_shape(partial(random_cache, shape=SHAPE, point=point), jax.random.key(0))
    whole = jax.ShapeDtypeStruct((point[0],), jnp.int32)
    return compiled_cost(partial(decode_step, shape=SHAPE), params, cache, whole, whole, donate=(1,) if donate else ())


def run(setup: Setup) -> Experiment:
    """Equality with and without a cache, bytes and work, and the time of a step over batch and context."""
    setup.progress("with and without a cache")
    rows = [
        Reading(
            quantity="logits with a cache: relative difference to those without",
            predicted=1e-5,
            measured=cached_difference(setup.seed),
            check="at_most",
            source="the same sums (C06)",
        ),
        *_compiled_rows(),
    ]
    params = init(jax.random.key(setup.seed), SHAPE)
    measured: dict[Point, float] = {}
    for batch_size in BATCHES:
        for context_len in CONTEXTS:
            setup.progress(f"decode steps: {batch_size} sequences of {context_len} tokens")
            point = (batch_size, context_len)
            measured[point] = measured_step_s(params, point, 5 if setup.quick else 20)
    machine = fitted_machine({point: measured[point] for point in FITTED})
    others = [point for point in measured if point not in FITTED]
    errors = sorted(abs(machine.step_s(point) / measured[point] - 1.0) for point in others)
    alone, full = ((measured[(n, CONTEXTS[0])]) for n in (BATCHES[0], BATCHES[-1]))
    predicted_gain = machine.step_s((1, CONTEXTS[0])) / (machine.step_s((BATCHES[-1], CONTEXTS[0])) / BATCHES[-1])
    rows += [
        Reading(
            quantity=f"decode steps not fitted (n = {len(others)}): median error",
            predicted=0.15,
            measured=float(np.median(errors)),
            check="at_most",
            statistical=True,
            source="a line of four numbers fitted to five steps (C02 to C08)",
        ),
        Reading(
            quantity="decode steps not fitted: error that nine in ten stay below",
            measured=float(np.quantile(errors, 0.9)),
            statistical=True,
        ),
        Reading(
            quantity="one sequence: time over that of reading the weights",
            predicted=1.0,
            measured=alone / (amounts(SHAPE, (1, CONTEXTS[0]))[1] / machine.weight_bytes_per_s),
            tolerance=0.3,
            check="at_least",
            statistical=True,
            source="C09: no batch is faster than reading all weights",
        ),
        Reading(
            quantity=f"cost of a token, 1 sequence over {BATCHES[-1]}",
            predicted=predicted_gain,
            measured=alone / (full / BATCHES[-1]),
            tolerance=0.3,
            check="equal",
            statistical=True,
            source="C10, C13: time of a step over its tokens",
        ),
        *(
            Reading(quantity=name, unit=unit, measured=value, statistical=True)
            for name, unit, value in (
                ("time of a call", "s", machine.call_s),
                ("rate of products", "FLOP/s", machine.flop_per_s),
                ("bandwidth of weights", "B/s", machine.weight_bytes_per_s),
                ("bandwidth of the cache", "B/s", machine.cache_bytes_per_s),
            )
        ),
    ]
    finer = tuple(float(2 ** (power / 4)) for power in range(4 * 6 + 1))
    curves = tuple(
        curve
        for context_len in CONTEXTS
        for curve in (
            Curve(
                name=f"{context_len} tokens",
                kind="predicted",
                x=finer,
                y=tuple(_between(machine, batch_size, context_len) for batch_size in finer),
            ),
            Curve(
                name=f"{context_len} tokens",
                kind="measured",
                x=tuple(float(n) for n in BATCHES),
                y=tuple(measured[(n, context_len)] for n in BATCHES),
            ),
        )
    )
    return Experiment(
        name="decode",
        claims=("C02", "C03", "C04", "C06", "C08", "C09", "C10", "C13", "C101"),
        rows=tuple(rows),
        findings=(
            f"a token costs {alone / (full / BATCHES[-1]):.0f} times less in a batch of {BATCHES[-1]} than alone",
        ),
        curves=curves,
        axes=("sequences of a batch", "seconds of a decode step"),
        log_axes=(True, True),
    )


def _between(machine: Machine, batch_size: float, context_len: int) -> float:
    """Step time at a batch between whole numbers, for the figure: interpolated between its neighbours [s]."""
    low, high = int(np.floor(batch_size)), int(np.ceil(batch_size))
    below, above = machine.step_s((low, context_len)), machine.step_s((high, context_len))
    return below if high == low else below + (above - below) * (batch_size - low) / (high - low)


def _compiled_rows() -> list[Reading]:
    """Work and bytes of a step as XLA counts them, its copy of the cache, and bytes of the cache."""
    point = (16, 1024)
    flop, weights, cache = amounts(SHAPE, point)
    attention_flop = 4.0 * SHAPE.num_layers * SHAPE.num_q_heads * SHAPE.head_dim * point[0] * (point[1] + 1)
    cache_shapes = jax.eval_shape(partial(random_cache, shape=SHAPE, point=point), jax.random.key(0))
    held = float(sum(one.size * one.dtype.itemsize for one in cache_shapes))
    donated, kept = (step_cost(point, donate=donate) for donate in (True, False))
    per_token = model_of(SHAPE).kv_bytes_per_token(4.0)
    return [
        Reading(
            quantity="work of a step, XLA over the pass table",
            predicted=1.0,
            measured=donated.flop / (flop + attention_flop),
            tolerance=0.05,
            check="equal",
            source="2 FLOP a parameter and token, and attention; XLA also counts softmax and norms (C03)",
        ),
        Reading(
            quantity="bytes of a step, XLA over the pass table",
            measured=donated.accessed_bytes / (weights + cache),
        ),
        Reading(
            quantity="bytes of a cached token",
            unit="B",
            predicted=per_token,
            measured=held / point[0] / (point[1] + 1),
            check="equal",
            source="layers x 2 x KV heads x head size x 4 B (C101)",
        ),
        Reading(
            quantity="cache that a step writes to a new place, donated",
            unit="B",
            predicted=0.0,
            measured=held - donated.reused_bytes,
            check="at_most",
            source="the donated cache is updated where it lies",
        ),
        Reading(
            quantity="cache that a step writes to a new place, not donated",
            unit="B",
            predicted=held,
            measured=held - kept.reused_bytes,
            check="equal",
            source="all of it is copied",
        ),
    ]
