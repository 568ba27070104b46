"""Put weight gradients into the bubbles of a table without them."""

from __future__ import annotations

from rackline.training.schedules.executor import Durations, Op, Place, Slot, Table, needs_of


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
