"""Memory of each stage of a training run by part, over the time of a step: which stage is fullest, when, and with what.

`memory.py` has the closed form of the fullest chip for thousands of runs at once; here one run is followed slot by slot
through the timeline of its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, assert_never

import numpy as np

from rackline.training.memory import (
    MARGIN,
    RUNTIME_BYTES,
    activations_of,
    late_gradients,
    logits_of,
    micro_batches_in_flight,
    shards,
    states_of,
)
from rackline.training.schedules import Event, Timeline
from rackline.training.system import MicroBatch

WHAT = {"F": "forward pass", "B": "backward pass", "W": "gradient of the weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of a chip of one stage, by part at its fullest moment, and over the time that a timeline shows.

    Args:
        stage: from 0; of DualPipe the device, which holds a stage from each end.
        layers: of the stage [count].
        dense_bytes, expert_bytes: weights of everything but the routed experts, and of these, with gathered layers and
            narrow copies [bytes].
        gradient_bytes, optimizer_bytes: gradients; master weights and moments [bytes].
        activation_bytes: stored for the backward pass, with what is recomputed at that moment [bytes].
        logit_bytes: of the loss, where it is worked on at that moment [bytes].
        runtime_bytes, margin_bytes: driver and buffers; fragments [bytes].
        total_bytes: sum.
        peak_s: the moment, from the start of the step [s].
        peak_in: what the chip does then.
        times_s, held_bytes: all changes of the memory in time.
    """

    json_keys: ClassVar = (
        "stage",
        "layers",
        "dense_bytes",
        "expert_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "activation_bytes",
        "logit_bytes",
        "runtime_bytes",
        "margin_bytes",
        "total_bytes",
        "peak_s",
        "peak_in",
    )

    stage: int
    layers: int
    dense_bytes: float
    expert_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    logit_bytes: float
    runtime_bytes: float
    margin_bytes: float
    total_bytes: float
    peak_s: float
    peak_in: str
    times_s: tuple[float, ...]
    held_bytes: tuple[float, ...]


def stage_memory(batch: MicroBatch, timeline: Timeline) -> tuple[StageMemory, ...]:
    """Memory of every stage of one run.

    Args:
        batch: of one run.
        timeline: of its schedule, of at least as many micro-batches as its first stage holds at once.
    """
    runs, pp = batch.runs, int(batch.runs.pp[0])
    layers = batch.system.num_layers
    most = -(-layers // pp)
    counts = [max(min(most, layers - index * most), 0) for index in range(pp)]
    dual = pp > 1 and runs.layout(0).schedule == "dualpipe"
    held, (stored, again) = shards(batch.system, runs), activations_of(batch)
    logits, ends = float(logits_of(batch)[0]), float(held.ends[0])
    found: list[StageMemory] = []
    for device in range(pp):
        mine = counts[device] + (counts[pp - 1 - device] if dual else 0)
        outer = device in (0, pp - 1)
        tables = (2.0 if dual else 1.0) * ends * outer
        share = mine * pp / layers
        states = states_of(batch, held, np.array([share]), np.array([tables]))
        experts = states_of(batch, held, np.array([share]), np.array([tables]), experts_only=True)["weights"]
        events = timeline.of_device[device]
        chunks = len({event.slot.chunk for event in events}) or 1
        unit = float(stored[0]) * mine / layers / chunks
        last = _places_of_loss(timeline, device, dual=dual)
        gradients = float(states["gradients"][0])
        late = gradients * bool(late_gradients(batch)[0])
        times, parts = _levels(_changes(events, unit, float(again[0]), logits, last, late))
        top = int(np.argmax(parts.sum(axis=1)))
        whole = float(sum(value[0] for value in states.values())) - late
        used = whole + parts.sum(axis=1)
        total = used * (1.0 + MARGIN) + RUNTIME_BYTES
        now = next((event for event in events if event.start <= times[top] < event.end), None)
        found.append(
            StageMemory(
                stage=device,
                layers=mine,
                dense_bytes=float(states["weights"][0]) - float(experts[0]),
                expert_bytes=float(experts[0]),
                gradient_bytes=gradients - late + float(parts[top, 2]),
                optimizer_bytes=float(states["optimizer"][0]),
                activation_bytes=float(parts[top, 0]),
                logit_bytes=float(parts[top, 1]),
                runtime_bytes=RUNTIME_BYTES,
                margin_bytes=MARGIN * float(used[top]),
                total_bytes=float(total[top]),
                peak_s=times[top],
                peak_in=f"{WHAT[now.slot.op]} of micro-batch {now.slot.micro_batch + 1}" if now else "between passes",
                times_s=tuple(times),
                held_bytes=tuple(map(float, total)),
            )
        )
    return tuple(found)


def held_at_once(batch: MicroBatch) -> int:
    """Micro-batches that a timeline needs so that every stage comes to its fullest [count]."""
    flight = float(micro_batches_in_flight(batch.runs, batch.per_step)[0])
    return min(2 * int(np.ceil(flight)), int(batch.per_step[0]))


def _places_of_loss(timeline: Timeline, device: int, *, dual: bool) -> frozenset[int]:
    """Chunks of a device whose forward pass ends in the loss: the last of the last device; of DualPipe at both ends."""
    pp = timeline.num_devices
    chunks = sorted({event.slot.chunk for event in timeline.of_device[device]})
    if dual:  # the first device begins the stages of one direction and ends those of the other
        return frozenset(chunks[1:] if device == 0 else chunks[:1] if device == pp - 1 else ())
    return frozenset(chunks[-1:] if device == pp - 1 else ())


Change = tuple[float, float, float, float]
"""Time, and what changes of the activations, logits and gradients [s, bytes]."""


def _changes(
    events: Sequence[Event], unit: float, again: float, logits: float, last: frozenset[int], late: float
) -> list[Change]:
    """What changes on a device.

    A forward pass adds what it stores; the backward pass recomputes one layer at a time and frees what was stored, the
    gradient of the weights where that comes later. Logits are there while a pass of the last stage works on its loss,
    before its backward pass comes to the layers. Late gradients take the place of what was stored; as both change
    evenly, the two ends of the backward pass are its fullest moments.

    Args:
        late: gradients that are not there before the only backward pass [bytes].
    """
    parted = any(event.slot.op == "W" for event in events)
    changes: list[Change] = []
    for event in events:
        loss = logits if event.slot.chunk in last else 0.0
        if event.slot.op == "F":
            changes += [(event.start, unit, loss, 0.0), (event.end, 0.0, -loss, 0.0)]
        elif event.slot.op == "B":
            freed = 0.0 if parted else unit
            work, shown = (0.0, loss) if loss > again else (again, 0.0)
            changes.append((event.start, work, shown, 0.0))
            if late:
                middle = (event.start + event.end) / 2.0
                changes.append((middle, again - work - freed, -shown, late))
                work, shown, freed = again, 0.0, 0.0
            changes.append((event.end, -work - freed, -shown, 0.0))
        elif event.slot.op == "W":
            changes.append((event.end, -unit, 0.0, 0.0))
        else:
            assert_never(event.slot.op)
    return sorted(changes, key=lambda change: (change[0], sum(change[1:])))


def _levels(changes: Sequence[Change]) -> tuple[list[float], np.ndarray]:
    """(times, activations, logits and late gradients held from each on), one level a moment."""
    table = np.array(changes)
    held = zip(table[:, 0].tolist(), np.cumsum(table[:, 1:], axis=0), strict=True)
    levels = {0.0: np.zeros(3)} | dict(held)  # the last of those of one moment
    return list(levels), np.array(list(levels.values()))
