"""1F1B with a flush (PipeDream-flush): a backward as soon as possible, then alternately one forward and one backward.

Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
"""

from __future__ import annotations

from rackline.training.schedules.schedule import Schedule, Slot, Table, in_turn


def table(pp: int, micro_batches: int, chunks: int) -> Table:
    """Device i begins with pp - 1 - i forwards."""

    def device(ahead: int) -> tuple[Slot, ...]:
        behind = (
            slot
            for m in range(micro_batches)
            for slot in ((Slot("F", m + ahead), Slot("B", m)) if m + ahead < micro_batches else (Slot("B", m),))
        )
        return (*(Slot("F", m) for m in range(ahead)), *behind)

    return tuple(device(min(pp - 1 - place, micro_batches)) for place in range(pp))


ONE_F_ONE_B = Schedule(
    name="1f1b",
    table=table,
    place=in_turn,
    bubble=lambda p, m, v, forward, backward, weight: (p - 1) * (forward + backward),
    in_flight=lambda p, m, v: float(min(p, m)),
    source="Narayanan et al. 2021, arXiv:2104.04473",
)
