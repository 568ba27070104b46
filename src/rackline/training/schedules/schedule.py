"""A pipeline schedule: its table, the placement of its chunks, and its closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rackline.errors import InputError
from rackline.training.schedules.executor import Durations, Place, Table, Timeline, execute
from rackline.training.schedules.filling import filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One published schedule.

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
        if micro_batches < 1 or pp < 1:
            raise InputError(
                what="pipeline schedule", given=f"{pp} stages, {micro_batches} micro-batches", allowed="1 or more"
            )
        parts = pp * chunks // self.copies
        if len(durations.forward) != parts:
            raise InputError(
                what=f"durations of {self.name}", given=len(durations.forward), allowed=f"{parts}, one per part"
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
