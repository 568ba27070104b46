"""Zero-bubble schedules with one chunk per device: ZB-H1 and ZB-H2 fill bubbles with weight gradients.

Source: Qi et al. 2023, arXiv:2401.10241, section 2.
"""

from __future__ import annotations

from rackline.training.schedules.schedule import Schedule, Slot, Table, in_turn


def ordered(pp: int, micro_batches: int, ahead: tuple[int, ...], later: tuple[int, ...]) -> Table:
    """One table from two numbers per device: forwards before the first backward, backwards before the first weight.

    Args:
        ahead: forwards that a device begins with [count].
        later: micro-batches by which gradients of weights lag behind those of inputs [count].
    """
    found: list[tuple[Slot, ...]] = []
    for device in range(pp):
        first = min(ahead[device], micro_batches)
        slots = [Slot("F", m) for m in range(first)]
        for m in range(micro_batches):
            slots.append(Slot("B", m))
            if m >= later[device]:
                slots.append(Slot("W", m - later[device]))
            if first + m < micro_batches:
                slots.append(Slot("F", first + m))
        slots += [Slot("W", m) for m in range(max(micro_batches - later[device], 0), micro_batches)]
        found.append(tuple(slots))
    return tuple(found)


def table_h1(pp: int, micro_batches: int, chunks: int) -> Table:
    """Forwards as 1F1B; device i lets i weight gradients wait, so that all devices hold pp micro-batches."""
    return ordered(pp, micro_batches, tuple(pp - i for i in range(pp)), tuple(range(pp)))


def table_h2(pp: int, micro_batches: int, chunks: int) -> Table:
    """Twice the forwards ahead: the trapezoid of a step becomes a parallelogram."""
    return ordered(pp, micro_batches, tuple(2 * (pp - i) - 1 for i in range(pp)), tuple(2 * i for i in range(pp)))


ZB_H1 = Schedule(
    name="zb-h1",
    table=table_h1,
    place=in_turn,
    splits_backward=True,
    span_counts=True,
    bubble=lambda p, m, v, forward, backward, weight: (p - 1) * (forward + backward - 2.0 * weight),
    in_flight=lambda p, m, v: float(min(p, m)),
    source="Qi et al. 2023, arXiv:2401.10241",
)
ZB_H2 = Schedule(
    name="zb-h2",
    table=table_h2,
    place=in_turn,
    splits_backward=True,
    span_counts=True,
    bubble=lambda p, m, v, forward, backward, weight: (p - 1) * max(forward + backward - 3.0 * weight, 0.0),
    in_flight=lambda p, m, v: float(min(2 * p - 1, m)),
    source="Qi et al. 2023, arXiv:2401.10241",
)
