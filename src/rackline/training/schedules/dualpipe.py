"""DualPipe: micro-batches enter from both ends; a forward pass of one direction overlaps a backward pass of the other.

Every device holds two parts of the model: its own and that of its mirror image. The order is the eight steps of
DeepSeek's implementation; a forward and a backward that run together are placed after each other here, and what their
overlap saves (communication) is in their times.

Source: DeepSeek-V3, arXiv:2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from rackline.errors import require
from rackline.training.schedules.schedule import Place, Schedule, Slot, Table


def table(pp: int, micro_batches: int, chunks: int) -> Table:
    """Slots of each device; chunk 0 is the direction that begins on the nearer end, chunk 1 the other.

    Raises:
        InputError: pp or the micro-batches are odd, or there are fewer than two micro-batches per stage.
    """
    require(
        not pp % 2 and not micro_batches % 2 and micro_batches >= 2 * pp,
        what="DualPipe",
        given=f"{pp} stages, {micro_batches} micro-batches",
        allowed="an even number of stages, and an even number of at least 2 micro-batches per stage",
        nearest=f"{pp + pp % 2} stages, {max(2 * (pp + pp % 2), micro_batches + micro_batches % 2)} micro-batches",
    )
    return tuple(tuple(_device(pp, micro_batches // 2, device)) for device in range(pp))


def _device(pp: int, half: int, device: int) -> Iterator[Slot]:
    """The eight steps of one device, each direction with half of the micro-batches."""
    rank = min(device, pp - 1 - device)
    middle = pp // 2
    count = {(op, side): 0 for op in "FBW" for side in (0, 1)}
    waiting: list[Slot] = []

    def take(op: str, side: int) -> Slot:
        number = count[op, side]
        count[op, side] += 1
        return Slot("F" if op == "F" else "B", number, side)

    def backward(side: int, later: bool) -> Iterator[Slot]:
        slot = take("B", side)
        yield slot
        weight = Slot("W", slot.micro_batch, side)
        if later:
            waiting.append(weight)
        else:
            yield weight

    for _ in range((middle - rank - 1) * 2):
        yield take("F", 0)
    for _ in range(rank + 1):
        yield take("F", 0)
        yield take("F", 1)
    for _ in range(middle - rank - 1):
        yield from backward(1, later=True)
        yield waiting.pop(0)
        yield take("F", 1)
    for _ in range(half - pp + rank + 1):
        yield take("F", 0)
        yield from backward(1, later=False)
        yield take("F", 1)
        yield from backward(0, later=False)
    for _ in range(middle - rank - 1):
        yield from backward(1, later=False)
        yield take("F", 1)
        yield from backward(0, later=False)
    # the second half of these delays its weights, to have something to do while it waits
    turn, odd = (rank + 1) // 2, rank % 2 == 1
    for number in range(rank + 1):
        yield from backward(1, later=number > turn or (number == turn and odd))
        yield from backward(0, later=number >= turn)
    for _ in range(middle - rank - 1):
        if waiting:
            yield waiting.pop(0)
        yield from backward(0, later=True)
    yield from waiting


def both_ways(pp: int, chunks: int) -> Place:
    """Parts 0 to pp - 1 are the model in the one direction, pp to 2 pp - 1 in the other, on mirrored devices."""

    def place(device: int, chunk: int) -> int:
        own = (device < pp // 2) == (chunk == 0)
        return device if own else 2 * pp - 1 - device

    return place


DUALPIPE = Schedule(
    name="dualpipe",
    table=table,
    chunks=2,
    place=both_ways,
    splits_backward=True,
    copies=2,
    # F&B is a forward and a backward that run together; without overlap their sum
    bubble=lambda p, m, v, forward, backward, weight: (p / 2 - 1) * (forward + 2.0 * backward - 3.0 * weight),
    in_flight=lambda p, m, v: float(min(p + 1, m)),
    source="DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
)
