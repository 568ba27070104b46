"""ZB-V: two chunks per device in a V, so that the first device also ends the forward pass and begins the backward one.

The order of forwards and backwards is a building block, repeated every six slots: a micro-batch comes down the V by one
slot a device, goes up by five, and back the same way. Gradients of weights fill the gaps while the step runs, oldest
first, and where memory would not allow another forward.

Source: Qi et al. 2023, arXiv:2401.10241, section 6; building blocks: Qi et al. 2024, arXiv:2405.15362. The offsets were
found by search over all blocks that keep 2 pp chunks in memory.
"""

from __future__ import annotations

from rackline.training.schedules.schedule import Op, Schedule, Slot, Table, folded

DOWN, UP = 1, 5
"""Slots from device to device: down the first chunk, up the second one; the same for the backward pass."""
PERIOD = 6
"""Slots of a micro-batch on a device: forward, backward and weight of two chunks."""


def table(pp: int, micro_batches: int, chunks: int) -> Table:
    """Forwards and backwards of each device, without gradients of weights."""
    turn = DOWN * (pp - 1) + 1
    top = turn + UP * (pp - 1) + 1
    bottom = top + DOWN * (pp - 1) + 1
    found: list[tuple[Slot, ...]] = []
    for device in range(pp):
        block: tuple[tuple[int, Op, int], ...] = (
            (DOWN * device, "F", 0),
            (turn + UP * (pp - 1 - device), "F", 1),
            (top + DOWN * device, "B", 1),
            (bottom + UP * (pp - 1 - device), "B", 0),
        )
        timed = [(start + PERIOD * m, Slot(op, m, chunk)) for m in range(micro_batches) for start, op, chunk in block]
        found.append(tuple(slot for _, slot in sorted(timed, key=lambda one: one[0])))
    return tuple(found)


ZB_V = Schedule(
    name="zb-v",
    table=table,
    chunks=2,
    place=folded,
    splits_backward=True,
    span_counts=True,
    weights_fill=True,
    # the paper's greedy search reaches 0 where all three take equally long
    bubble=lambda p, m, v, forward, backward, weight: (p - 1) / 2.0 * forward,
    in_flight=lambda p, m, v: float(min(p, m)),
    source="Qi et al. 2023, arXiv:2401.10241",
)
