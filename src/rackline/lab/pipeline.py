"""Pipeline schedules, executed: the tables of `rackline.training.schedules` run over devices (lecture C60 to C64).

A stack of blocks is cut into parts, a part lies on a device, micro-batches pass through. Every slot of a schedule's
table is one call: forward, backward of the input, gradient of the weight. The order is the table's, what a slot needs
must be there, and what it keeps is counted. Slots are timed one by one, because the devices of one host share its
cores, and in processor time, because other programs do too; the measured times are then placed as the devices would run
them side by side.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import jax
import jax.numpy as jnp
import numpy as np

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.lab.transformer import largest_difference
from rackline.training.schedules import SCHEDULE_OF, Durations, Schedule, Slot, equal_stages, ring
from rackline.training.schedules.schedule import Op

Weights = dict[str, jax.Array]
PP, MICRO_BATCHES, VIRTUAL_PP = 4, 8, 2
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
WIDTH, ROWS, BLOCKS = 256, 128, 8
REPEATS = 3


def block(weights: Weights, x: jax.Array) -> jax.Array:
    """One residual block, (rows, width)."""
    return x + jnp.tanh(x @ weights["up"]) @ weights["down"]


def part(blocks: Sequence[Weights], x: jax.Array) -> jax.Array:
    """The blocks of one part."""
    for weights in blocks:
        x = block(weights, x)
    return x


def make_blocks(key: jax.Array, number: int, width: int) -> list[Weights]:
    """Random blocks."""

    def one(number: int) -> Weights:
        up, down = jax.random.split(jax.random.fold_in(key, number))
        return {
            "up": jax.random.normal(up, (width, 2 * width)) / np.sqrt(width),
            "down": jax.random.normal(down, (2 * width, width)) / np.sqrt(8 * width),
        }

    return [one(index) for index in range(number)]


def loss(x: jax.Array) -> jax.Array:
    """What the last part's output is trained to: the mean square."""
    return jnp.mean(x * x)


def reference(blocks: list[Weights], inputs: jax.Array) -> list[Weights]:
    """Gradients on one device: the mean over the micro-batches, (micro-batches, rows, width)."""

    def one(all_blocks: list[Weights], x: jax.Array) -> jax.Array:
        return loss(part(all_blocks, x))

    def total(all_blocks: list[Weights]) -> jax.Array:
        return jnp.mean(jax.vmap(one, (None, 0))(all_blocks, inputs))

    return jax.jit(jax.grad(total))(blocks)


@dataclass(slots=True, kw_only=True)
class Run:
    """What came out of one run of a schedule.

    Args:
        gradients: of each part's blocks, summed over micro-batches.
        seconds: of each kind of slot and part of the model, one per micro-batch [s].
        peak: most inputs of parts that each device kept at once [count].
    """

    gradients: list[list[Weights]]
    seconds: dict[tuple[Op, int], list[float]]
    peak: list[int]


@jax.jit
def _forward(blocks: list[Weights], x: jax.Array) -> jax.Array:
    return part(blocks, x)


@jax.jit
def _backward_input(blocks: list[Weights], x: jax.Array, slope: jax.Array) -> jax.Array:
    """Slope of the part's input, without those of its weights."""
    return jax.vjp(partial(part, blocks), x)[1](slope)[0]


@jax.jit
def _backward_weight(blocks: list[Weights], x: jax.Array, slope: jax.Array) -> list[Weights]:
    """Slopes of the part's weights alone."""
    return jax.vjp(part, blocks, x)[1](slope)[0]  # XLA drops what is not used


@jax.jit
def _backward(blocks: list[Weights], x: jax.Array, slope: jax.Array) -> tuple[list[Weights], jax.Array]:
    """Slopes of weights and input at once."""
    return jax.vjp(part, blocks, x)[1](slope)


def execute_schedule(schedule: Schedule, blocks: list[Weights], inputs: jax.Array, pp: int) -> Run:
    """Run a schedule's table over devices, slot by slot in an order that each device's own order allows.

    A schedule of two directions has two copies of the model, each of which takes its share of the micro-batches; the
    gradients of both are added.

    Args:
        blocks: of the whole model, a multiple of its parts.
        inputs: (micro-batches, rows, width).
        pp: devices of the pipeline [count].
    """
    micro_batches = inputs.shape[0]
    chunks = schedule.num_chunks(VIRTUAL_PP)
    parts, place = pp * chunks, schedule.place(pp, chunks)
    table = schedule.table(pp, micro_batches, chunks)
    devices = jax.devices("cpu")[:pp]
    device_of = {place(index, chunk): devices[index] for index in range(pp) for chunk in range(chunks)}
    of_model, of_copy = parts // schedule.copies, micro_batches // schedule.copies
    per_part = len(blocks) // of_model
    held = [
        jax.device_put(blocks[stage * per_part : (stage + 1) * per_part], device_of[index])
        for index, stage in ((index, index % of_model) for index in range(parts))
    ]
    sums: list[Any] = [None] * parts
    run = Run(gradients=[], seconds={}, peak=[0] * pp)
    arrived: dict[tuple[str, int, int], jax.Array] = {
        ("x", micro % of_copy, micro // of_copy * of_model): inputs[micro] for micro in range(micro_batches)
    }
    kept: list[set[tuple[int, int]]] = [set() for _ in range(pp)]
    slopes: dict[tuple[int, int], jax.Array] = {}

    def timed(op: Op, index: int, call: Callable[..., Any], *given: Any) -> Any:
        began = time.process_time()
        found = jax.block_until_ready(call(*given))
        run.seconds.setdefault((op, index % of_model), []).append(time.process_time() - began)
        return found

    def add(index: int, change: Any) -> None:
        sums[index] = change if sums[index] is None else jax.tree.map(jnp.add, sums[index], change)

    def do(device: int, slot: Slot) -> None:
        index = place(device, slot.chunk)
        name = (slot.micro_batch, index)
        here = held[index]
        match slot.op:
            case "F":
                x = jax.device_put(arrived[("x", *name)], device_of[index])
                arrived[("x", *name)] = x
                kept[device].add(name)
                run.peak[device] = max(run.peak[device], len(kept[device]))
                y = timed("F", index, _forward, here, x)
                if (index + 1) % of_model:
                    arrived[("x", slot.micro_batch, index + 1)] = y
                else:
                    slopes[name] = jax.grad(loss)(y) / micro_batches
            case "B":
                x, slope = arrived[("x", *name)], jax.device_put(slopes[name], device_of[index])
                slopes[name] = slope
                if schedule.splits_backward:
                    change = timed("B", index, _backward_input, here, x, slope)
                else:
                    of_weights, change = timed("B", index, _backward, here, x, slope)
                    add(index, of_weights)
                    kept[device].discard(name)
                    del arrived[("x", *name)], slopes[name]
                if index % of_model:
                    slopes[(slot.micro_batch, index - 1)] = change
            case "W":
                x, slope = arrived.pop(("x", *name)), slopes.pop(name)
                add(index, timed("W", index, _backward_weight, here, x, slope))
                kept[device].discard(name)
            case _:
                assert_never(slot.op)

    # the order of a run with equal slots is one that no slot waits in
    timeline = schedule.run(
        pp, micro_batches, equal_stages(schedule, pp, 1.0, 1.0, 1.0, virtual_pp=VIRTUAL_PP), VIRTUAL_PP
    )
    ordered = sorted(timeline.events, key=lambda event: (event.start, event.end))
    for device, slots in enumerate(table):
        mine = [event.slot for event in ordered if event.device == device]
        if not schedule.weights_fill and mine != list(slots):
            raise RuntimeError(f"{schedule.name}: device {device} left its table")
    for event in ordered:
        do(event.device, event.slot)
    for index in range(of_model, parts):
        add(index % of_model, jax.device_put(sums[index], device_of[index % of_model]))
    run.gradients = sums[:of_model]
    return run


def measured_durations(runs: Sequence[Run], parts: int) -> Durations:
    """The shortest time of each kind of slot of each part: other programs on the machine only add to it [s]."""

    def times(op: Op) -> list[float]:
        return [min(min(one.seconds.get((op, index), [0.0])) for one in runs) for index in range(parts)]

    return Durations(forward=times("F"), backward=times("B"), weight=times("W"))


def decode_in_a_ring(blocks: list[Weights], groups: int, passes: int, pp: int) -> tuple[float, float]:
    """Busy share of the stages and wrong outputs of decoding in a ring, stages measured on their devices.

    Each group of sequences goes through all stages, and its output is its next input.
    """
    devices = jax.devices("cpu")[:pp]
    per_stage = len(blocks) // pp
    held = [jax.device_put(blocks[i * per_stage : (i + 1) * per_stage], device) for i, device in enumerate(devices)]
    states = [jax.random.normal(jax.random.key(group), (ROWS, WIDTH)) for group in range(groups)]
    expected = list(states)
    seconds: list[list[float]] = [[] for _ in range(pp)]
    for _ in range(passes):
        for group in range(groups):
            x = states[group]
            for stage, device in enumerate(devices):
                x = jax.device_put(x, device)
                began = time.process_time()
                x = jax.block_until_ready(_forward(held[stage], x))
                seconds[stage].append(time.process_time() - began)
            states[group] = x
    for _ in range(passes):  # apart: a pass over all blocks in between leaves other caches to the first stage
        expected = [_forward(blocks, one) for one in expected]
    wrong = max(
        float(jnp.linalg.norm(jax.device_put(one, devices[0]) - other) / jnp.linalg.norm(other))
        for one, other in zip(states, expected, strict=True)
    )
    stage_s = [float(np.median(one)) for one in seconds]  # a shortest time is luck where there are few
    # long enough that filling and emptying of the ring do not count
    timeline = ring(stage_s, groups, 400)
    return float(np.mean(timeline.busy_s)) / timeline.step_s, wrong


def run(setup: Setup) -> Experiment:
    """Gradients, idle share and activations of each schedule; idle share of decoding in a ring."""
    blocks = make_blocks(jax.random.key(setup.seed), BLOCKS, WIDTH)
    inputs = jax.random.normal(jax.random.key(setup.seed + 1), (MICRO_BATCHES, ROWS, WIDTH))
    wanted = reference(blocks, inputs)
    rows: list[Reading] = []
    predicted, measured = [], []
    for name in NAMES:
        setup.progress(f"schedule {name}")
        schedule = SCHEDULE_OF[name]
        chunks = schedule.num_chunks(VIRTUAL_PP)
        execute_schedule(schedule, blocks, inputs, PP)  # compiles
        runs = [execute_schedule(schedule, blocks, inputs, PP) for _ in range(REPEATS)]
        wrong = largest_difference([weights for one in runs[-1].gradients for weights in one], wanted)
        times = measured_durations(runs, PP * chunks // schedule.copies)
        parts = len(times.forward)
        level = Durations.equal(parts, *(sum(one) / parts for one in (times.forward, times.backward, times.weight)))
        predicted.append(_busy_share(schedule, level))  # the mean time of a part for all of them
        measured.append(_busy_share(schedule, times))
        rows += [
            Reading(
                quantity=f"{name}: gradient, relative difference to one device",
                predicted=1e-5,
                measured=wrong,
                check="at_most",
                source="the same sums in another order",
            ),
            Reading(
                quantity=f"{name}: activations in flight, of whole stages",
                predicted=schedule.in_flight(PP, MICRO_BATCHES, chunks),
                measured=max(runs[-1].peak) / (chunks // schedule.copies),
                check="equal",
                source="closed form of the schedule",
            ),
            Reading(
                quantity=f"{name}: share of the step that a device works",
                predicted=predicted[-1],
                measured=measured[-1],
                tolerance=0.07,
                check="equal",
                statistical=True,
                source="the schedule's table with equal stages (C63)",
            ),
        ]
    setup.progress("decoding in a ring")
    for groups in (1, 2, 4, 8):
        busy, wrong = decode_in_a_ring(blocks, groups, 12, PP)
        rows.append(
            Reading(
                quantity=f"decoding, {groups} groups in a ring of {PP} stages: share that a stage works",
                predicted=min(groups / PP, 1.0),
                measured=busy,
                tolerance=0.07,
                check="equal",
                statistical=True,
                source="C61, C62: groups / stages, all of it from as many groups as stages",
            )
        )
        if groups == PP:
            rows.append(
                Reading(
                    quantity="decoding in a ring: relative difference to one device",
                    predicted=1e-5,
                    measured=wrong,
                    check="at_most",
                    source="the same sums",
                )
            )
    places = tuple(float(index) for index in range(len(NAMES)))
    return Experiment(
        name="pipeline",
        claims=("C60", "C61", "C62", "C63"),
        rows=tuple(rows),
        findings=(
            f"{PP} stages, {MICRO_BATCHES} micro-batches, devices work: "
            + ", ".join(f"{name} {share:.0%}" for name, share in zip(NAMES, measured, strict=True)),
        ),
        curves=(
            Curve(name="busy share", kind="predicted", x=places, y=tuple(predicted)),
            Curve(name="busy share", kind="measured", x=places, y=tuple(measured)),
        ),
        axes=(
            "schedule: " + ", ".join(f"{index} {name}" for index, name in enumerate(NAMES)),
            "share of the step that a device works",
        ),
    )


def _busy_share(schedule: Schedule, times: Durations) -> float:
    """Share of the step that the busiest device works."""
    return 1.0 - schedule.run(PP, MICRO_BATCHES, times, VIRTUAL_PP).bubble_fraction
