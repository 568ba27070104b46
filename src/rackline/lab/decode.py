"""Decoding with a KV cache: the three regimes of a step, on the machine at hand (lecture C02 to C17, C101).

A step reads all weights once and the cache of every sequence, and multiplies each token with all weights. So its time
is flat while the weights are read, rises with the sequences' caches, and rises with the work of the tokens. Steps are
those of the engine that `rackline measure` uses: its calibration is fitted to five of them, near to what the machine
reaches without it, and predicts the others by the pass table.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rackline.lab.engine import Limits, Scheduler, Work, batch_of
from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.fitted import fitted
from rackline.lab.jax_engine import JaxEngine
from rackline.lab.measured import deployment_on, device_of, timed
from rackline.lab.rates import measured_rates, peaks_of
from rackline.lab.transformer import (
    Cache,
    Compiled,
    Shape,
    compiled_cost,
    decode_step,
    deployment_of,
    init,
    logits,
    model_of,
    prefill,
)
from rackline.lab.workers.worker import Clock
from rackline.passes import Batch

SHAPE = Shape(num_layers=6, d_model=512, num_q_heads=8, num_kv_heads=2, head_dim=64, d_ff=2048, vocab_size=2048)
BATCHES, CONTEXTS = (1, 4, 16, 64), (64, 256, 1024)
POINTS = tuple((batch_size, context_len) for batch_size in BATCHES for context_len in CONTEXTS)
FITTED = ((1, 64), (64, 64), (1, 1024), (64, 1024), (16, 256))

Point = tuple[int, int]


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


def random_cache(key: jax.Array, shape: Shape, point: Point) -> Cache:
    """A cache of a batch of contexts, with room for one token more."""
    batch_size, context_len = point
    size = (shape.num_layers, batch_size, context_len + 1, shape.num_kv_heads, shape.head_dim)
    first, second = jax.random.split(key)
    return jax.random.normal(first, size), jax.random.normal(second, size)


def cached_difference(seed: int) -> float:
    """Largest relative difference between logits with a cache, token by token, and without one, in full fp32: GPUs
    round inputs of products to TF32 otherwise."""
    with jax.default_matmul_precision("highest"):
        return _cached_difference(seed)


def _cached_difference(seed: int) -> float:
    shape, tokens, prompt = Shape(), 48, 16
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
    setup.progress("rates of the machine")
    repeats = 3 if setup.quick else 9
    device = device_of(setup.device)
    rates = measured_rates(device, repeats, Clock(cpu=False))
    peaks, launch_s = peaks_of(rates), next(rate.value for rate in rates if rate.name == "launch")
    engine = JaxEngine(
        shape=SHAPE,
        dtype="fp32",
        limits=Limits(sequences=BATCHES[-1], context_len=CONTEXTS[-1] + 1, prompt_tokens=CONTEXTS[0]),
        scheduler=Scheduler(
            admission="prefill_first",
            max_num_seqs=BATCHES[-1],
            max_batched_tokens=CONTEXTS[0],
            prompt_tokens=CONTEXTS[0],
        ),
        clock=Clock(cpu=False),
        seed=setup.seed,
    )
    setup.progress(f"decode steps of {len(POINTS)} batches and contexts")
    works = {point: Work(sequences=point[0], context_len=point[1]) for point in POINTS}
    engine.prepare([*works.values()])
    times = timed(engine, [*works.values()], repeats)
    measured = {point: times[work].typical_s for point, work in works.items()}
    table = deployment_on(engine, device, peaks).table()
    fit = fitted(
        table,
        [works[point] for point in FITTED],
        [measured[point] for point in FITTED],
        launch_s,
        engine.name,
        engine.context_block,
    )
    table = table.with_calibration(fit.calibration)
    others = [point for point in POINTS if point not in FITTED]
    predicted = dict(zip(POINTS, table.seconds(batch_of([*works.values()])).tolist(), strict=True))
    errors = sorted(abs(predicted[point] / measured[point] - 1.0) for point in others)
    weights_per_s = fit.values["product_memory"] * peaks.bytes_per_s
    alone, full = ((measured[(n, CONTEXTS[0])]) for n in (BATCHES[0], BATCHES[-1]))
    predicted_gain = predicted[(1, CONTEXTS[0])] / (predicted[(BATCHES[-1], CONTEXTS[0])] / BATCHES[-1])
    rows += [
        Reading(
            quantity=f"decode steps not fitted (n = {len(others)}): median error",
            predicted=0.15,
            measured=float(np.median(errors)),
            check="at_most",
            statistical=True,
            source="the pass table under a calibration fitted to five steps (C02 to C08)",
        ),
        Reading(
            quantity="decode steps not fitted: error that nine in ten stay below",
            measured=float(np.quantile(errors, 0.9)),
            statistical=True,
        ),
        Reading(
            quantity="one sequence: time over that of reading the weights",
            predicted=1.0,
            measured=alone / (amounts(SHAPE, (1, CONTEXTS[0]))[1] / weights_per_s),
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
                ("time of a launch", "s", fit.values["launch_s"]),
                ("rate of products", "FLOP/s", fit.values["product_compute"] * peaks.flop_per_s["fp32"]),
                ("bandwidth of weights", "B/s", weights_per_s),
                ("bandwidth of the cache", "B/s", fit.values["cache_memory"] * peaks.bytes_per_s),
            )
        ),
    ]
    finer = [2.0 ** (power / 4.0) for power in range(4 * 6 + 1)]
    curves = tuple(
        curve
        for context_len in CONTEXTS
        for curve in (
            Curve(
                name=f"{context_len} tokens",
                kind="predicted",
                x=tuple(finer),
                y=tuple(
                    table.seconds(Batch(decode_sequences=np.array(finer), context_len=float(context_len))).tolist()
                ),
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


def _compiled_rows() -> list[Reading]:
    """Work and bytes of a step as XLA counts them, its copy of the cache, and bytes of the cache."""
    point = (16, 1024)
    flop, weights, cache = amounts(SHAPE, point)
    attention_flop = 4.0 * SHAPE.num_layers * SHAPE.num_q_heads * SHAPE.head_dim * point[0] * (point[1] + 1)
    cache_shapes = jax.eval_shape(partial(random_cache, shape=SHAPE, point=point), jax.random.key(0))
    held = float(sum(one.size * one.dtype.itemsize for one in cache_shapes))
    donated, kept = (step_cost(point, donate=donate) for donate in (True, False))
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
            predicted=model_of(SHAPE).kv_bytes_per_token(4.0),
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
