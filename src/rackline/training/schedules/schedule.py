"""A pipeline schedule: its table, where its chunks lie, its closed forms, and the executor that runs every table.

Each device works through its own order, and each slot waits for what it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal, assert_never

from rackline.errors import InputError, require

Op = Literal["F", "B", "W"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One piece of work of a device: forward, backward or weight gradient of a micro-batch in one of its chunks."""

    op: Op
    micro_batch: int
    chunk: int = 0


Table = tuple[tuple[Slot, ...], ...]
"""Order of the slots of each device."""
Place = Callable[[int, int], int]
"""(device, chunk) → position of that chunk along the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Time of each part of the model, in order along it.

    Args:
        forward, backward, weight: one value per part [s]; backward includes the gradient of the weight if a schedule
            does not separate the two (weight is then not used).
        hop_s: activations or gradients from one device to the next [s].
    """

    forward: Sequence[float]
    backward: Sequence[float]
    weight: Sequence[float]
    hop_s: float = 0.0

    def of(self, op: Op, part: int) -> float:
        """Time of one slot [s]."""
        return {"F": self.forward, "B": self.backward, "W": self.weight}[op][part]

    @classmethod
    def equal(cls, parts: int, forward: float, backward: float, weight: float, hop_s: float = 0.0) -> Durations:
        """The same times for every part."""
        return cls(forward=[forward] * parts, backward=[backward] * parts, weight=[weight] * parts, hop_s=hop_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One slot in time [s]."""

    device: int
    slot: Slot
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The slots of all devices in time.

    Args:
        events: in the order in which they were placed.
        num_devices: number of devices [count].
        span_counts: whether a device may begin the next step before the others have ended this one, so that the longest
            span of a device is the step.
    """

    events: tuple[Event, ...]
    num_devices: int
    span_counts: bool = False
    of_device: tuple[tuple[Event, ...], ...] = field(default=())

    @property
    def step_s(self) -> float:
        """Time of the step: until the last device has ended, or the longest span of a device [s]."""
        if self.span_counts:
            return max(events[-1].end - events[0].start for events in self.of_device if events)
        return max((event.end for event in self.events), default=0.0)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Time that each device works [s]."""
        return tuple(sum(event.end - event.start for event in events) for events in self.of_device)

    @property
    def bubble_s(self) -> float:
        """Time that the busiest device waits [s]."""
        return self.step_s - max(self.busy_s, default=0.0)

    @property
    def bubble_fraction(self) -> float:
        """Share of the step that the busiest device waits."""
        return self.bubble_s / self.step_s if self.step_s else 0.0

    def in_flight(self, device: int, released_by_backward: float = 1.0) -> list[tuple[float, float]]:
        """(time, stored activations) of a device after each change, in units of one micro-batch and chunk.

        Args:
            released_by_backward: share that the gradient of the input frees; the gradient of the weight frees the rest.
        """
        parted = "W" in {event.slot.op for event in self.of_device[device]}
        freed = {"B": released_by_backward if parted else 1.0, "W": 1.0 - released_by_backward}
        steps = [
            (event.start, 1.0) if event.slot.op == "F" else (event.end, -freed[event.slot.op])
            for event in self.of_device[device]
        ]
        steps.sort()
        held = accumulate((change for _, change in steps), initial=0.0)
        return list(zip([0.0, *(time for time, _ in steps)], held, strict=True))

    def peak_in_flight(self, device: int, released_by_backward: float = 0.0) -> float:
        """Most activations that a device stores at once, in units of one micro-batch and chunk."""
        return max(held for _, held in self.in_flight(device, released_by_backward))


def execute(
    table: Table,
    durations: Durations,
    place: Place,
    *,
    num_parts: int,
    span_counts: bool = False,
    breaks: frozenset[int] = frozenset(),
) -> Timeline:
    """Place every slot as early as its device and its dependencies allow.

    A forward waits for the forward of the part before, a backward for the own forward and the backward of the part
    behind, a weight gradient for its backward; what comes from another device is a hop later.

    Args:
        place: where a device's chunk lies along the model.
        num_parts: parts of the model [count].
        breaks: parts at which another copy of the model begins.

    Raises:
        InputError: the table has a cyclic dependency.
    """
    part_device = {place(device, slot.chunk): device for device, slots in enumerate(table) for slot in slots}
    done: dict[tuple[Op, int, int], float] = {}
    free = [0.0] * len(table)
    following = [0] * len(table)
    per_device: list[list[Event]] = [[] for _ in table]
    events: list[Event] = []
    waiting: dict[tuple[Op, int, int], list[int]] = {}
    ready = list(range(len(table)))
    while ready:
        device = ready.pop()
        while following[device] < len(table[device]):
            slot = table[device][following[device]]
            part = place(device, slot.chunk)
            needs = needs_of(slot, part, num_parts, breaks)
            missing = next((need for need in needs if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            start = free[device]
            for need in needs:
                hop = durations.hop_s if part_device[need[2]] != device else 0.0
                start = max(start, done[need] + hop)
            end = start + durations.of(slot.op, part)
            event = Event(device=device, slot=slot, start=start, end=end)
            events.append(event)
            per_device[device].append(event)
            free[device] = end
            following[device] += 1
            key = (slot.op, slot.micro_batch, part)
            done[key] = end
            ready += waiting.pop(key, [])
    stuck = [device for device in range(len(table)) if following[device] < len(table[device])]
    if stuck:
        slot = table[stuck[0]][following[stuck[0]]]
        raise InputError(
            what="pipeline schedule",
            given=f"device {stuck[0]} waits for {slot.op}{slot.micro_batch} forever",
            allowed="an order without cycles",
        )
    return Timeline(
        events=tuple(events),
        num_devices=len(table),
        span_counts=span_counts,
        of_device=tuple(tuple(one) for one in per_device),
    )


def needs_of(slot: Slot, part: int, num_parts: int, breaks: frozenset[int]) -> list[tuple[Op, int, int]]:
    """Dependencies of a slot: (op, micro-batch, part)."""
    if slot.op == "F":
        return [("F", slot.micro_batch, part - 1)] if part and part not in breaks else []
    if slot.op == "W":
        return [("B", slot.micro_batch, part)]
    if slot.op == "B":
        found: list[tuple[Op, int, int]] = [("F", slot.micro_batch, part)]
        if part + 1 < num_parts and part + 1 not in breaks:
            found.append(("B", slot.micro_batch, part + 1))
        return found
    assert_never(slot.op)


def filled(table: Table, durations: Durations, place: Place, *, num_parts: int, limit: int) -> Table:
    """The table with its weight gradients: in gaps that hold at least half of one, and where memory is full.

    Args:
        table: forwards and backwards of each device.
        limit: chunks of activations that a device may hold [count].
    """
    device_of = {place(device, slot.chunk): device for device, slots in enumerate(table) for slot in slots}
    done: dict[tuple[Op, int, int], float] = {}
    position, held = [0] * len(table), [0] * len(table)
    free = [0.0] * len(table)
    waiting: list[list[Slot]] = [[] for _ in table]
    order: list[list[Slot]] = [[] for _ in table]

    def start_of(device: int) -> float | None:
        slot = table[device][position[device]]
        part = place(device, slot.chunk)
        start = free[device]
        for need in needs_of(slot, part, num_parts, frozenset()):
            end = done.get(need)
            if end is None:
                return None
            start = max(start, end + (durations.hop_s if device_of[need[2]] != device else 0.0))
        return start

    active = list(range(len(table)))
    while active:
        starts = [(start, device) for device in active if (start := start_of(device)) is not None]
        if not starts:
            break  # a cycle, which executing the table will report
        start, device = min(starts)
        slot = table[device][position[device]]
        weight_s = durations.of("W", place(device, slot.chunk))
        while waiting[device] and (
            (slot.op == "F" and held[device] >= limit) or free[device] + 0.5 * weight_s <= start
        ):
            order[device].append(waiting[device].pop(0))
            free[device] += weight_s
            held[device] -= 1
        end = max(start, free[device]) + durations.of(slot.op, place(device, slot.chunk))
        done[slot.op, slot.micro_batch, place(device, slot.chunk)] = end
        free[device] = end
        order[device].append(slot)
        if slot.op == "F":
            held[device] += 1
        else:
            waiting[device].append(Slot("W", slot.micro_batch, slot.chunk))
        position[device] += 1
        active = [one for one in active if position[one] < len(table[one])]
    for device, rest in enumerate(waiting):
        order[device] += [*table[device][position[device] :], *rest]
    return tuple(tuple(slots) for slots in order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A published pipeline schedule.

    Args:
        name: of `rackline.training.runs.SCHEDULES`.
        table: (stages, micro-batches, chunks of a device) → order of slots of each device.
        chunks: chunks of a device: a count, or 0 for as many as asked for.
        place: (stages, chunks) → where a device's chunk lies along the model.
        splits_backward: whether gradients of inputs and weights are slots of their own.
        span_counts: whether devices begin and end a step at different times.
        bubble: (stages, micro-batches, chunks, forward, backward with weight, weight) → waiting of a device [s], for
            whole stages of equal time and no hops.
        in_flight: (stages, micro-batches, chunks) → activations of the fullest device, in those of a whole stage.
        weights_fill: whether gradients of weights go into the gaps, as the times of the parts leave them.
        copies: of the model on the devices together [count].
    """

    name: str
    table: Callable[[int, int, int], Table]
    bubble: Callable[[int, int, int, float, float, float], float]
    in_flight: Callable[[int, int, int], float]
    place: Callable[[int, int], Place]
    chunks: int = 1
    splits_backward: bool = False
    span_counts: bool = False
    copies: int = 1
    weights_fill: bool = False
    source: str = ""

    def num_chunks(self, virtual_pp: int = 1) -> int:
        """Chunks of a device."""
        return self.chunks or virtual_pp

    def run(self, pp: int, micro_batches: int, durations: Durations, virtual_pp: int = 1) -> Timeline:
        """The timeline of a step.

        Args:
            durations: of the pp · chunks / copies parts of the model, in order along it; where the schedule does not
                part backward and weight, backward holds both.

        Raises:
            InputError: not one duration a part, or no micro-batch.
        """
        chunks = self.num_chunks(virtual_pp)
        require(
            micro_batches >= 1 and pp >= 1,
            what="pipeline schedule",
            given=f"{pp} stages, {micro_batches} micro-batches",
            allowed="1 or more",
        )
        parts = pp * chunks // self.copies
        require(
            len(durations.forward) == parts,
            what=f"durations of {self.name}",
            given=len(durations.forward),
            allowed=f"{parts}, one per part",
        )
        if self.copies > 1:
            durations = replace(
                durations,
                forward=[*durations.forward] * self.copies,
                backward=[*durations.backward] * self.copies,
                weight=[*durations.weight] * self.copies,
            )
        order, place = self.table(pp, micro_batches, chunks), self.place(pp, chunks)
        if self.weights_fill:
            order = filled(order, durations, place, num_parts=pp * chunks, limit=pp * chunks)
        return execute(
            order,
            durations,
            place,
            num_parts=pp * chunks,
            span_counts=self.span_counts,
            breaks=frozenset(range(parts, pp * chunks, parts)),
        )


def in_turn(pp: int, chunks: int) -> Place:
    """Chunks go round: chunk c of device i is part c · pp + i."""
    return lambda device, chunk: chunk * pp + device


def folded(pp: int, chunks: int) -> Place:
    """Two chunks in a V: the second one comes back over the devices."""
    return lambda device, chunk: device if chunk == 0 else 2 * pp - 1 - device


def equal_stages(
    schedule: Schedule,
    pp: int,
    forward: float,
    backward: float,
    weight: float,
    *,
    virtual_pp: int = 1,
    hop_s: float = 0.0,
) -> Durations:
    """Durations of equal stages for a schedule, given those of a whole stage.

    Args:
        forward, backward, weight: of a stage; backward without the gradient of the weight [s].
    """
    chunks = schedule.num_chunks(virtual_pp) // schedule.copies
    both = backward if schedule.splits_backward else backward + weight
    return Durations.equal(pp * chunks, forward / chunks, both / chunks, weight / chunks, hop_s)
