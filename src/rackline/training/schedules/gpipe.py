"""GPipe: all forwards, then all backwards.

Source: Huang et al. 2019, arXiv:1811.06965.
"""

from __future__ import annotations

from rackline.training.schedules.schedule import Schedule, Slot, Table, in_turn


def table(pp: int, micro_batches: int, chunks: int) -> Table:
    """Forwards in order, backwards in reverse order."""
    slots = [Slot("F", m) for m in range(micro_batches)] + [Slot("B", m) for m in reversed(range(micro_batches))]
    return (tuple(slots),) * pp


GPIPE = Schedule(
    name="gpipe",
    table=table,
    place=in_turn,
    bubble=lambda p, m, v, forward, backward, weight: (p - 1) * (forward + backward),
    in_flight=lambda p, m, v: float(m),
    source="Huang et al. 2019, arXiv:1811.06965",
)
